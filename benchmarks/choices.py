"""What chose four things: one BLAS for a loop, blocks of 24 MiB, dense solves to p = 2048, and lanes to p = 1536.

python benchmarks/choices.py
"""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from fresh import machine, median_seconds, print_table
from scipy.linalg import blas

from streampca.accumulate import Scatter
from streampca.lanes import sharing_blas
from streampca.solve import solve_dense

MIB = 2**20


def one_blas(p: int, rounds: int) -> list[tuple[str, float]]:
    """Sixteen products of 1024 rows with the probes' thin products between them, by scipy's BLAS and by numpy's."""
    rows = np.random.default_rng(0).random((1024, p), dtype=np.float32)
    thin, product = np.ones((p, 8), np.float32, order="F"), np.zeros((p, p), np.float32, order="F")

    def scipys() -> None:
        for _ in range(16):
            blas.ssyrk(1.0, rows.T, beta=0.0, c=product, overwrite_c=1)
            blas.sgemm(1.0, rows.T, blas.sgemm(1.0, thin, rows.T, trans_a=1), trans_b=1)

    def numpys() -> None:
        for _ in range(16):
            blas.ssyrk(1.0, rows.T, beta=0.0, c=product, overwrite_c=1)
            _ = rows.T @ (rows @ thin)

    return [("scipy for all", median_seconds(scipys, rounds)), ("numpy between", median_seconds(numpys, rounds))]


def block_sizes(total: int, rounds: int) -> list[tuple[str, float]]:
    """Reading a file from the system's cache into a new buffer for every block."""
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(MIB) * (total // MIB))
        file.flush()

        def read(size: int) -> None:
            for start in range(0, total, size):
                os.preadv(file.fileno(), [np.empty(size, np.uint8).data], start)

        return [(f"{size} MiB", median_seconds(partial(read, size * MIB), rounds)) for size in (4, 12, 24, 48, 96)]


def dense_solves(sizes: list[int]) -> list[tuple[str, float]]:
    """Whole spectrum and 50 vectors."""
    found = []
    for p in sizes:
        x = np.random.default_rng(p).standard_normal((p, p)) / np.arange(1, p + 1)
        scatter = np.asfortranarray(x.T @ x)
        solve = lambda scatter=scatter, p=p: solve_dense(lambda: scatter.copy(order="F"), 50, most=p)  # noqa: E731
        found.append((f"p = {p}", median_seconds(solve, 1)))
    return found


def lanes(sizes: list[int], rounds: int) -> list[tuple[str, float]]:
    """Scatter matrices of whole numbers in two lanes of one BLAS thread, against one lane of two threads."""
    found = []
    for p in sizes:
        n = 8192 if p > 1024 else 32768
        rows = np.random.default_rng(p).integers(0, 255, (n, p), dtype=np.uint8)

        def together(rows: np.ndarray = rows) -> None:
            with sharing_blas(2), ThreadPoolExecutor(2) as threads:
                one, other = threads.map(partial(added, in_lane=True), np.array_split(rows, 2))
            one.absorb(other)

        found.append((f"p = {p}, two lanes", median_seconds(together, rounds)))
        found.append((f"p = {p}, one", median_seconds(partial(added, rows), rounds)))
    return found


def added(rows: np.ndarray, *, in_lane: bool = False) -> Scatter:
    """The scatter of some rows, a block at a time."""
    scatter = Scatter(rows.shape[1], in_lane=in_lane)
    for start in range(0, len(rows), 4096):
        scatter.update(rows[start : start + 4096])
    return scatter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--megabytes", type=int, default=384)
    parser.add_argument("--sizes", type=int, nargs="*", default=[512, 1024, 2048, 4096])
    options = parser.parse_args()
    print(machine())
    for title, rows in (
        ("products of a loop", one_blas(options.features, options.rounds)),
        (f"reading {options.megabytes} MiB in blocks", block_sizes(options.megabytes * MIB, options.rounds)),
        ("dense solves", dense_solves(options.sizes)),
        ("scatter matrices", lanes(options.sizes, options.rounds)),
    ):
        print()
        print_table((title, "seconds"), [(name, f"{seconds:.4f}") for name, seconds in rows])


if __name__ == "__main__":
    main()
