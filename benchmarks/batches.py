"""`partial_fit` beside one fit of the same samples, and sketches beside the exact answer.

uint8 pictures of 28 x 28 are given in batches of several sizes, and the components asked for in the end; next to it
stands one fit by method "covariance", in turns. Single samples are compared on fewer of them. The second table is of
frequent directions: what of the exact variance sketches of several rows keep, and how far off they may say to be:

    python benchmarks/batches.py                    # ends with 1 if a ratio or a sketch misses what is promised
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from fresh import alternating, machine, print_table
from synthetic import strokes

from streampca import PCA
from streampca.accumulators import FrequentDirections

Array = npt.NDArray[Any]

BATCHES = (256, 1000, 10007)
MOST, MOST_SINGLE = 1.3, 3.0  # times one fit, by batches and by single samples
LEAST_KEPT = 0.98  # of the exact variance, by 4 rows a component


def in_batches(x: Array, rows: int, k: int) -> PCA:
    """Fit batches of so many rows, and solve."""
    estimator = PCA(k)
    for start in range(0, len(x), rows):
        estimator.partial_fit(x[start : start + rows])
    estimator.model_  # noqa: B018 - solves
    return estimator


def seconds(work: Callable[[], object]) -> float:
    """Time of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ratios(x: Array, batches: tuple[int, ...], k: int, rounds: int) -> list[tuple[str, float, float, bool]]:
    """Name, median time, least ratio to one fit in a round, and whether the bits are those of one fit."""
    whole = PCA(k, method="covariance").fit(x)
    jobs: dict[str, Callable[[], float]] = {
        f"{len(x)} samples, one fit": partial(seconds, lambda: PCA(k, method="covariance").fit(x))
    }
    jobs |= {f"  by {rows}": partial(seconds, partial(in_batches, x, rows, k)) for rows in batches}
    times = list(alternating(rounds, jobs).items())
    found = [(times[0][0], statistics.median(times[0][1]), 1.0, True)]
    for (name, taken), rows in zip(times[1:], batches, strict=True):
        ratio = statistics.median(a / b for a, b in zip(taken, times[0][1], strict=True))
        same = np.array_equal(in_batches(x, rows, k).components_, whole.components_)
        found.append((name, statistics.median(taken), ratio, same))
    return found


def sketches(x: Array, k: int) -> list[tuple[int, float, float, float]]:
    """Rows of a sketch; share of the exact variance that its components keep; Delta over the last variance; seconds."""
    covariance = np.cov(x.T.astype(np.float64))
    exact = np.linalg.eigvalsh(covariance)[::-1][:k].sum()
    found = []
    for times in (2, 3, 4, 8):
        sketch = FrequentDirections(x.shape[1], rows=times * k)
        taken = seconds(lambda sketch=sketch: [sketch.update(x[at : at + 1000]) for at in range(0, len(x), 1000)])
        _, values, vectors = np.linalg.svd(sketch.sketch, full_matrices=False)
        kept = float(np.trace(vectors[:k] @ covariance @ vectors[:k].T)) / exact
        found.append((times * k, kept, sketch.shrunk / values[k - 1] ** 2, taken))
    return found


def main() -> int:
    """Print both tables; return 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--single", type=int, default=2000, help="samples that are given one by one")
    parser.add_argument("--side", type=int, default=28)
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    x = np.concatenate(list(strokes(options.samples, options.side)))
    k, failed = options.components, False
    rows = []
    for some, batches, most in ((x, BATCHES, MOST), (x[: options.single], (1,), MOST_SINGLE)):
        for name, taken, ratio, same in ratios(some, batches, k, options.rounds):
            rows.append((name, f"{taken:.3f}", f"{ratio:.2f}", f"{most}", "yes" if same else "NO"))
            failed |= ratio > most or not same
    print(machine())
    print_table((f"k = {k}", "seconds", "to one fit", "at most", "same bits"), rows)
    print()
    found = sketches(x.reshape(len(x), -1), k)
    failed |= any(kept < LEAST_KEPT for rows, kept, _, _ in found if rows >= 4 * k)
    cells = [(f"{rows} rows", f"{kept:.6f}", f"{bound:.2f}", f"{taken:.2f}") for rows, kept, bound, taken in found]
    print_table(("frequent directions", "variance kept", "Delta / last", "seconds"), cells)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
