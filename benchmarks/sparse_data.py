"""Sparse data: CPU time and errors of streampca beside scikit-learn's arpack, for densities below 10 %.

Matrices of random values at random places, whose spectra are nearly flat (the hardest case of all solvers), and of
words of documents, with few common and many rare features. Fits alternate in one process, and the smallest CPU time of
each counts, without import and a first small fit. Errors are those of variances, relative, against a dense solution in
float64 where that is feasible, else against arpack's:

    OPENBLAS_NUM_THREADS=1 python benchmarks/sparse_data.py
    python benchmarks/sparse_data.py --quick                        # small ones

It ends with 1 if a fit takes more than 1.5 times arpack's CPU time and 30 ms, or an error exceeds its bound.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
from fresh import machine, print_table
from scipy.linalg import eigh
from sklearn import decomposition

from streampca import PCA

# samples, features, share of values, kind
SHAPES = (
    (500, 60000, 0.001, "random"),
    (20000, 2000, 0.01, "random"),
    (20000, 20000, 0.001, "random"),
    (5000, 5000, 0.05, "random"),
    (3000, 30000, 0.01, "random"),
    (10000, 20000, 0.005, "words"),
)
QUICK = ((300, 3000, 0.01, "random"), (3000, 500, 0.02, "words"))
MOST = 1.5  # CPU time, in that of arpack ...
FLOOR = 0.03  # ... beside what any fit takes: seconds
DENSE = 3000  # largest order of a dense reference
ROUNDING = 1e-14  # relative error of variances below which bounds are not compared
CHUNKS = 4  # of samples, of a dask array


def words(n: int, p: int, share: float) -> sp.csr_array:
    """Return counts whose features are as frequent as words: inverse to their rank."""
    rng = np.random.default_rng(0)
    frequent = 1 / np.arange(1, p + 1)
    columns = rng.choice(p, int(n * p * share), p=frequent / frequent.sum())
    rows = rng.integers(0, n, len(columns))
    counts = sp.coo_array((np.ones(len(columns)), (rows, columns)), shape=(n, p)).tocsr()
    counts.data = np.log1p(counts.data)
    return counts


def matrix(n: int, p: int, share: float, kind: str) -> sp.csr_array:
    """Return a matrix of a kind."""
    return words(n, p, share) if kind == "words" else sp.random_array((n, p), density=share, rng=0, format="csr")


def in_chunks(rows: sp.csr_array) -> da.Array:
    """Return the same as a dask array of sparse chunks, which are in memory."""
    step = -(-rows.shape[0] // CHUNKS)
    parts = [sp.csr_matrix(rows[start : start + step]) for start in range(0, rows.shape[0], step)]
    return da.concatenate([da.from_array(part, chunks=part.shape, asarray=False) for part in parts])


FORMATS: dict[str, Callable[[sp.csr_array], Any]] = {
    "csr": lambda rows: rows,
    "csc": lambda rows: rows.tocsc(),
    "bsr": lambda rows: rows.tobsr(blocksize=(1, 1)),
    "dask": in_chunks,
}


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and what it returns."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def reference(rows: sp.csr_array, k: int) -> np.ndarray | None:
    """Return the variances by LAPACK, None where the matrix is too large."""
    if min(rows.shape) > DENSE:
        return None
    centred = rows.toarray() - rows.mean(axis=0)
    product = centred @ centred.T if rows.shape[0] < rows.shape[1] else centred.T @ centred
    size = len(product)
    return eigh(product, eigvals_only=True, subset_by_index=(size - k, size - 1))[::-1] / (rows.shape[0] - 1)


def compared(rows: sp.csr_array, k: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row of the table for each format."""
    given = {name: make(rows) for name, make in FORMATS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ("arpack", *given)}
    models: dict[str, Any] = {}
    for _ in range(rounds):
        taken, models["arpack"] = timed(lambda: decomposition.PCA(k, svd_solver="arpack", random_state=0).fit(rows))
        seconds["arpack"].append(taken)
        for name, source in given.items():
            taken, models[name] = timed(lambda source=source: PCA(k).fit(source))
            seconds[name].append(taken)
    expected, table = reference(rows, k), []
    expected = models["arpack"].explained_variance_ if expected is None else expected
    for name in given:
        fitted = models[name]
        ours, arpack = min(seconds[name]), min(seconds["arpack"])
        errors = np.abs(fitted.explained_variance_ / expected - 1)
        bounds = fitted.model_.error_bound
        table.append({
            "format": name, "method": fitted.model_.provenance["plan"]["method"],
            "arpack": arpack, "ours": ours, "ratio": ours / arpack,
            "late": ours > MOST * arpack + FLOOR, "error": float(errors.max()),
            "bound": float(bounds.max()), "holds": bool(np.all(errors <= bounds + ROUNDING)),
        })  # fmt: skip
    return table


def main() -> int:
    """Print the table; return 1 where it misses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small matrices")
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", sp.SparseEfficiencyWarning)
    print(machine())
    small = matrix(200, 50, 0.1, "random")
    compared(small, 3, 1)  # what the first fits import
    lines, missed = [], 0
    for n, p, share, kind in QUICK if options.quick else SHAPES:
        for row in compared(matrix(n, p, share, kind), options.components, options.rounds):
            missed += row["late"] or not row["holds"]
            size = f"{n} x {p}, {100 * share:g} % {kind}"
            figures = [f"{row[name]:.3f}" for name in ("arpack", "ours", "ratio")]
            accuracy = [f"{row[name]:.1e}" for name in ("error", "bound")]
            marks = " *" if row["late"] or not row["holds"] else ""
            lines.append([size, row["format"], row["method"], *figures, *accuracy, marks])
    print_table(["data", "format", "method", "arpack, s", "ours, s", "ratio", "error", "bound", "missed"], lines)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
