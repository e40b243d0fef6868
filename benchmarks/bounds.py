"""Whether error bounds hold, and how far above the truth they lie: seeded problems by all three methods.

The true error of a component, as stored, is |S v - lambda v| / lambda with S in float64; beside it the bound that the
model gives. Found are the leading components if every variance is right to a hundredth and none larger was left out.
The spectra are those that are hard in different ways, each with an offset of 0 and of ten thousand deviations:

    python benchmarks/bounds.py

Ends with 1 if a bound fails, a component is missed, or the median of bound to true error is 100 or more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fresh import machine, print_table, tell
from synthetic import textures

import streampca
from streampca.fitting.methods.randomized_start import sample_runs
from streampca.planning import sample_rows

Floats = npt.NDArray[np.floating[Any]]

SIDE, SAMPLES, COMPONENTS = 30, 1500, 20
METHODS = ("covariance", "dual", "randomized")
AIM = 100.0  # bound to true error, the median at most
NEAR = 1e-2  # of a variance: an error that no pair of the wrong component has


class Outcome(NamedTuple):
    """Of one fit: bounds and true errors, (k,) each, and whether the leading components were found."""

    bounds: Floats
    errors: Floats
    leading: bool


def random_rows(rng: np.random.Generator, sizes: Floats) -> Floats:
    """Normal samples whose covariance has eigenvalues ``sizes**2``, (n, p), in random directions."""
    turn = np.linalg.qr(rng.standard_normal((len(sizes), len(sizes))))[0]
    return (rng.standard_normal((SAMPLES, len(sizes))) * sizes) @ turn


def falling(rng: np.random.Generator) -> Floats:
    return random_rows(rng, 1 / np.arange(1, SIDE**2 + 1) ** 0.5)


def spiked(rng: np.random.Generator) -> Floats:
    sizes = np.ones(SIDE**2)
    sizes[:COMPONENTS] = np.linspace(10, 4, COMPONENTS)
    return random_rows(rng, sizes)


def exponential(rng: np.random.Generator) -> Floats:
    return random_rows(rng, 0.8 ** np.arange(SIDE**2))


def images(rng: np.random.Generator) -> Floats:
    drawn = textures(SAMPLES, SIDE, int(rng.integers(2**31)), noise=0.01)
    return np.concatenate([one.reshape(1, -1) for one in drawn]).astype(np.float64) - 5


def sorted_by_class(rng: np.random.Generator) -> Floats:
    rows = random_rows(rng, 1 / np.arange(1, SIDE**2 + 1))
    centres = rng.standard_normal((10, SIDE**2)) / SIDE
    return rows + np.repeat(centres, SAMPLES // 10, axis=0)


def drifting(rng: np.random.Generator) -> Floats:
    rows = random_rows(rng, 1 / np.arange(1, SIDE**2 + 1) ** 0.5)
    return rows + np.outer(np.linspace(-3, 3, SAMPLES), rng.standard_normal(SIDE**2)) / SIDE


def rank_deficient(rng: np.random.Generator) -> Floats:
    sizes = np.zeros(SIDE**2)
    sizes[: COMPONENTS + 5] = 1 / np.arange(1, COMPONENTS + 6)
    return random_rows(rng, sizes)


def unsampled(rng: np.random.Generator) -> Floats:
    """The largest component lies in samples only that a start from a sample does not see."""
    rows = random_rows(rng, 1 / np.arange(1, SIDE**2 + 1) ** 0.5)
    seen = np.zeros(SAMPLES, bool)
    width = streampca.plan(rows, streampca.PCA(COMPONENTS, method="randomized")).width
    for run in sample_runs(SAMPLES, sample_rows(SAMPLES, SIDE**2, width), 1):
        seen[run.start : run.stop] = True
    hidden = np.flatnonzero(~seen)
    direction = rng.standard_normal(SIDE**2)
    direction /= np.linalg.norm(direction)
    size = 2 * (SAMPLES / len(hidden)) ** 0.5
    rows[hidden] += np.outer(rng.choice([-size, size], len(hidden)), direction)
    return rows


FAMILIES: dict[str, Callable[[np.random.Generator], Floats]] = {
    "variances 1/i": falling,
    "spikes in noise": spiked,
    "exponential": exponential,
    "1/f images": images,
    "sorted by class": sorted_by_class,
    "drifting mean": drifting,
    "rank-deficient": rank_deficient,
    "largest component not sampled": unsampled,
}


def problems(seeds: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Name of the family, and samples of deviation about 1, offset or not, (n, side, side)."""
    for name, draw in FAMILIES.items():
        for seed in range(seeds):
            rows = draw(np.random.default_rng(seed))
            rows /= rows.std()
            for offset in (0.0, 1e4):
                yield name, (rows + offset).astype(np.float32).reshape(-1, SIDE, SIDE)


def outcome(rows: npt.NDArray[np.float32], method: str) -> Outcome:
    """Fit, and compare with float64."""
    model = streampca.fit(rows, streampca.PCA(COMPONENTS, method=method, precision="single"))
    centred = rows.reshape(len(rows), -1).astype(np.float64)
    centred -= centred.mean(axis=0)
    scatter = centred.T @ centred / (len(rows) - 1)
    values, vectors = model.explained_variance, model.components.reshape(len(model.explained_variance), -1)
    vectors = vectors.astype(np.float64).T
    errors = np.linalg.norm(scatter @ vectors - vectors * values, axis=0) / values
    truth = np.linalg.eigvalsh(scatter)[::-1][: len(values)]
    return Outcome(model.residual_bound, errors, bool(np.all(np.abs(values - truth) <= NEAR * truth)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="problems of every family, twice: with and without offset")
    seeds = parser.parse_args().seeds
    print(machine())
    found: dict[tuple[str, str], list[Outcome]] = {}
    for number, (name, rows) in enumerate(problems(seeds)):
        tell(f"problem {number + 1} of {2 * seeds * len(FAMILIES)}: {name}")
        for method in METHODS:
            found.setdefault((name, method), []).append(outcome(rows, method))
    print_table(("problem", "method", "worst error", "bound / error", "fails", "leading"), [*rows_of(found)])
    every = [one for outcomes in found.values() for one in outcomes]
    ratio = float(np.median(np.concatenate([one.bounds / one.errors for one in every])))
    fails = sum(int(np.count_nonzero(one.bounds < one.errors)) for one in every)
    missed = sum(not one.leading for one in every)
    print(
        f"{len(every)} fits: {fails} bounds fail, {missed} miss a component, bound to true error {ratio:.0f} (median)"
    )
    return int(fails > 0 or missed > 0 or ratio >= AIM)


def rows_of(found: dict[tuple[str, str], list[Outcome]]) -> Iterator[list[str]]:
    for (name, method), outcomes in found.items():
        errors, bounds = (
            np.concatenate(values) for values in zip(*((o.errors, o.bounds) for o in outcomes), strict=True)
        )
        yield [
            name, method, f"{errors.max():.0e}", f"{np.median(bounds / errors):.0f}",
            f"{np.count_nonzero(bounds < errors)}", f"{sum(one.leading for one in outcomes)} of {len(outcomes)}",
        ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
