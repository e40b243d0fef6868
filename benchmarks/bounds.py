"""How far bounds on variances and angles lie above the true errors, method by method, on seeded collections.

Truth is computed with the 64 binary digits of x86's long double: the scatter or Gram matrix, whichever is smaller, and
its eigenpairs, refined as T. Ogita and K. Aishima, "Iterative refinement for symmetric eigenvalue decomposition", Japan
J. Indust. Appl. Math. 35, 2018. What is left of its rounding is allowed for. True errors below 10 eps of float64 count
as 10 eps, and components without a bound on their angle are counted in a column of their own.

    python benchmarks/bounds.py                     # about a minute on one core
    python benchmarks/bounds.py --by-set            # a row for each method and kind of collection

Ends with 1 if a bound is violated, a component is missed, or bounds of a method are above 20 times the true errors in
the median, or above 100 times for 95 % of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fresh import machine, print_table, tell
from synthetic import textures

import streampca
from streampca.events import silent
from streampca.models.accuracy import trust_of

Floats = npt.NDArray[np.floating[Any]]
Wide = npt.NDArray[np.longdouble]

SIDE, COMPONENTS = 16, 20
ROWS = {"features": 400, "samples": 120}  # whichever of features and samples is fewer
MOST = 20.0, 100.0  # times the truth: median, and 95 %
FLOOR = 10 * float(np.finfo(np.float64).eps)  # true errors below count as this
ULP = float(np.finfo(np.longdouble).eps)
NEAR = 1e-2  # of a variance: a larger error within a smaller bound is a wrong component


# -- collections


def random_rows(rng: np.random.Generator, n: int, sizes: Floats) -> Floats:
    """Return normal samples whose covariance has eigenvalues ``sizes**2``, (n, p), in random directions."""
    turn = np.linalg.qr(rng.standard_normal((len(sizes), len(sizes))))[0]
    return (rng.standard_normal((n, len(sizes))) * sizes) @ turn


def images(rng: np.random.Generator, n: int) -> Floats:
    drawn = textures(n, SIDE, int(rng.integers(2**31)), noise=0.01)
    return np.concatenate([one.reshape(1, -1) for one in drawn]).astype(np.float64)


def slow(rng: np.random.Generator, n: int) -> Floats:
    return random_rows(rng, n, 1 / np.arange(1, SIDE**2 + 1) ** 0.5)


def spiked(rng: np.random.Generator, n: int) -> Floats:
    sizes = np.ones(SIDE**2)
    sizes[:COMPONENTS] = np.linspace(10, 4, COMPONENTS)
    return random_rows(rng, n, sizes)


def steep(rng: np.random.Generator, n: int) -> Floats:
    return random_rows(rng, n, 0.7 ** np.arange(SIDE**2))


def paired(rng: np.random.Generator, n: int) -> Floats:
    """Return samples of pairs of nearly equal variances, to a millionth."""
    orthonormal = np.linalg.qr(rng.standard_normal((n, SIDE**2)) if n > SIDE**2 else rng.standard_normal((n, n - 1)))[0]
    sizes = 1 / (1 + np.arange(orthonormal.shape[1]) // 2) + 1e-6 * (np.arange(orthonormal.shape[1]) % 2)
    turn = np.linalg.qr(rng.standard_normal((SIDE**2, SIDE**2)))[0]
    return (orthonormal * sizes) @ turn[: len(sizes)]


def drifting(rng: np.random.Generator, n: int) -> Floats:
    rows = slow(rng, n)
    return rows + np.outer(np.linspace(-3, 3, n), rng.standard_normal(SIDE**2)) / SIDE + 1e3 * rows.std()


SETS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "1/f images": images,
    "slow decay": slow,
    "low rank and noise": spiked,
    "steep": steep,
    "nearly equal pairs": paired,
    "drifting, with an offset": drifting,
}


# -- truth


class Truth(NamedTuple):
    """Variances, descending, and components, (count, p), with bounds on their rounding."""

    values: Wide
    components: Wide
    value_rounding: float
    gaps: Floats


def truth_of(rows: npt.NDArray[Any], count: int) -> Truth:
    """Return leading variances and components of samples, (n, p), in long double."""
    wide = rows.astype(np.longdouble)
    centred: Wide = wide - wide.mean(axis=0)
    by_features = centred.shape[1] <= centred.shape[0]
    matrix = product(centred.T, centred) if by_features else product(centred, centred.T)
    vectors: Wide = np.linalg.eigh(matrix.astype(np.float64))[1][:, ::-1].astype(np.longdouble)
    for _ in range(2):
        values, vectors = refined(matrix, vectors)
    order = np.argsort(-values)
    values, vectors = values[order], vectors[:, order[: count + 1]]
    components = vectors.T if by_features else product(vectors.T, centred)
    components /= np.sqrt(np.sum(components**2, axis=1))[:, None]
    spacing = (values[:count] - values[1 : count + 1]).astype(np.float64)
    gaps = np.minimum(np.append(np.inf, spacing[:-1]), spacing)
    rounding = 4 * ULP * len(matrix) ** 0.5 * float(values[0])
    return Truth(
        values[:count] / (len(rows) - 1), components[:count], rounding / (len(rows) - 1), gaps / (len(rows) - 1)
    )


def product(left: Wide, right: Wide) -> Wide:
    return np.einsum("ij,jk->ik", left, right)


def refined(matrix: Wide, vectors: Wide) -> tuple[Wide, Wide]:
    """Return eigenvalues and vectors with twice the digits, unless more would be those of long double."""
    off = np.eye(len(matrix)) - product(vectors.T, vectors)
    along = product(vectors.T, product(matrix, vectors))
    values = along.diagonal() / (1 - off.diagonal())
    apart = np.abs(values[:, None] - values)
    noise = 2 * (np.abs(along - np.diag(values)).max() + abs(values).max() * np.abs(off).max())
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.where(apart > noise, (along + values * off) / (values - values[:, None]), off / 2)
    np.fill_diagonal(step, off.diagonal() / 2)
    return values, vectors + product(vectors, step)


# -- methods


def fitted(**options: Any) -> Callable[[npt.NDArray[Any]], Any]:
    def fit(rows: npt.NDArray[Any]) -> Any:
        return streampca.fit(rows.reshape(len(rows), SIDE, SIDE), streampca.PCA(COMPONENTS, **options), listener=silent)

    return fit


def merged(*, approximate: bool, **options: Any) -> Callable[[npt.NDArray[Any]], Any]:
    """Return a merge of models of halves; approximate ones keep all components, without a statistic."""

    def merge(rows: npt.NDArray[Any]) -> Any:
        halves = np.array_split(rows.reshape(len(rows), SIDE, SIDE), 2)
        k = min(len(halves[0]) - 1, SIDE**2) if approximate else COMPONENTS
        models = [streampca.fit(half, streampca.PCA(k, **options), listener=silent) for half in halves]
        return streampca.merge(models, approximate=approximate, n_components=COMPONENTS, listener=silent)

    return merge


class Method(NamedTuple):
    """How a model is made, from samples of which dtype, and of what shape: fewer features, or fewer samples."""

    fit: Callable[[npt.NDArray[Any]], Any]
    dtype: str = "f4"
    fewer: str = "features"


METHODS = {
    "covariance, float32": Method(fitted(method="covariance")),
    "covariance, float64": Method(fitted(method="covariance", precision="double"), "f8"),
    "covariance, single products": Method(fitted(method="covariance", precision="single")),
    "exact sums, float32": Method(fitted(method="covariance", precision="single"), "u1"),
    "exact sums, float64": Method(fitted(method="covariance", precision="double"), "u1"),
    "dual, float32": Method(fitted(method="dual"), "f4", "samples"),
    "dual, float64": Method(fitted(method="dual", precision="double"), "f8", "samples"),
    "dual, single products": Method(fitted(method="dual", precision="single"), "f4", "samples"),
    "dual, exact sums": Method(fitted(method="dual", precision="double"), "u1", "samples"),
    "randomized": Method(fitted(method="randomized", precision="double"), "f4"),
    "randomized, tol=1e-3": Method(fitted(method="randomized", precision="double", tol=1e-3), "f4"),
    "randomized, single products": Method(fitted(method="randomized", precision="single"), "f4"),
    "randomized, fewer samples": Method(fitted(method="randomized", precision="double"), "f4", "samples"),
    "randomized, fewer samples, single": Method(fitted(method="randomized", precision="single"), "f4", "samples"),
    "merged, exactly": Method(merged(approximate=False, method="covariance", precision="double")),
    "merged, approximately, float32": Method(merged(approximate=True, method="dual")),
    "merged, approximately, float64": Method(merged(approximate=True, method="dual", precision="double"), "f8"),
}


@dataclass(frozen=True)
class Outcome:
    """Ratios of bounds to true errors of a fit, by quantity, and whether it found the leading components.

    `violated` counts the true errors above their bounds, `unresolved` the components without a bound on any angle.
    """

    ratios: dict[str, Floats]
    violated: int
    unresolved: int
    leading: bool


def outcome(model: Any, truth: Truth) -> Outcome:
    """Compare a model with the truth."""
    values, k = model.explained_variance, len(model.explained_variance)
    components = np.asarray(model.components).reshape(k, -1).astype(np.longdouble)
    components /= np.sqrt(np.sum(components**2, axis=1))[:, None]
    off = np.abs(truth.values[:k] - values).astype(np.float64) / values
    allowed = truth.value_rounding / values
    violated = int(np.count_nonzero(off > model.error_bound + allowed))
    ratios = {"variances": model.error_bound / np.maximum(off, FLOOR)}
    along = np.sum(components * truth.components[:k], axis=1)[:, None]
    angles = np.sqrt(np.sum((components - along * truth.components[:k]) ** 2, axis=1)).astype(np.float64)
    angles = np.arcsin(np.minimum(angles, 1.0))
    with np.errstate(divide="ignore"):
        rounding = truth.value_rounding / truth.gaps[:k] + 1e-18
    given = np.isfinite(model.angle_bound)
    violated += int(np.count_nonzero((angles > model.angle_bound + rounding)[given]))
    ratios["angles"] = (model.angle_bound / np.maximum(angles, FLOOR))[given]
    together, joint = trust_of(model).together, []
    for group in together:
        members = slice(group.first, group.last + 1)
        given[members] |= np.isfinite(group.angle)
        if np.isfinite(group.angle):
            basis = truth.components[members]
            apart = components[members] - product(product(components[members], basis.T), basis)
            true = float(np.linalg.norm(apart.astype(np.float64), 2))
            joint.append(group.angle / max(true, FLOOR))
            violated += true > group.angle + 1e-15
    ratios["subspaces"] = np.array(joint)
    missed = (off > NEAR) & ~(model.error_bound >= NEAR)  # wider bounds tell of such errors themselves
    return Outcome(ratios, violated, int(np.count_nonzero(~given)), not missed.any())


def as_dtype(rows: Floats, dtype: str) -> npt.NDArray[Any]:
    """Return samples of deviation 1 in a dtype; whole numbers have a deviation of 25."""
    rows = rows / rows.std()
    if dtype[0] != "u":
        return rows.astype(dtype)
    return np.clip(np.rint((rows - rows.mean()) * 25 + 128), 0, 255).astype(dtype)


def outcomes(seeds: int, wanted: str) -> Iterator[tuple[str, str, Outcome]]:
    """Yield method, collection and outcome of all fits."""
    for name, draw in SETS.items():
        for seed in range(seeds):
            truths: dict[tuple[str, str], tuple[npt.NDArray[Any], Truth]] = {}
            for method, how in METHODS.items():
                if wanted not in method:
                    continue
                if (how.dtype, how.fewer) not in truths:
                    rows = as_dtype(draw(np.random.default_rng(seed), ROWS[how.fewer]), how.dtype)
                    truths[how.dtype, how.fewer] = rows, truth_of(rows, COMPONENTS)
                rows, truth = truths[how.dtype, how.fewer]
                tell(f"{name} {seed + 1} of {seeds}: {method}")
                yield method, name, outcome(how.fit(rows), truth)


def row_of(title: list[str], found: list[Outcome]) -> tuple[list[str], bool]:
    """Return a row of the table, and whether everything in it is as wanted."""
    cells, good = [], True
    for quantity in ("variances", "angles", "subspaces"):
        ratios = np.concatenate([one.ratios[quantity] for one in found])
        if not len(ratios):
            cells.append("")
            continue
        figures = np.median(ratios), np.quantile(ratios, 0.95), ratios.max()
        good &= bool(figures[0] <= MOST[0] and figures[1] <= MOST[1])
        cells.append(" / ".join(f"{figure:.3g}" for figure in figures))
    violated, missed = sum(one.violated for one in found), sum(not one.leading for one in found)
    cells += [str(sum(one.unresolved for one in found)), str(violated), str(missed)]
    return [*title, *cells, "" if good else "wide"], good and not violated and not missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="collections of every kind (default: %(default)s)")
    parser.add_argument("--methods", default="", help="only methods whose name contains this")
    parser.add_argument("--by-set", action="store_true", help="a row for each kind of collection")
    args = parser.parse_args()
    print(machine())
    found: dict[tuple[str, ...], list[Outcome]] = {}
    for method, name, one in outcomes(args.seeds, args.methods):
        found.setdefault((method, name) if args.by_set else (method,), []).append(one)
    tell("")
    made = [row_of([*key], found[key]) for key in sorted(found)]
    heads = ("method", "collections") if args.by_set else ("method",)
    times = (f"{quantity}, median / 95 % / most" for quantity in ("variances", "angles", "subspaces"))
    print_table((*heads, *times, "unresolved", "violated", "missed", ""), [row for row, _ in made])
    return int(not all(good for _, good in made))


if __name__ == "__main__":
    sys.exit(main())
