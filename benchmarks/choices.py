"""What chose four things: one BLAS for a loop, blocks of 24 MiB, dense solves to p = 2048, and threads to p = 2048.

python benchmarks/choices.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
from fresh import folder, machine, median_seconds, print_table, tell, warm
from scipy.linalg import blas
from synthetic import npy_of, strokes

import streampca
from streampca.eigensolvers import solve_dense
from streampca.events import Event, PassFinished
from streampca.planning import covariance as planning

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


def threads(directory: Path, sizes: list[int], nbytes: int, rounds: int) -> list[tuple[str, float]]:
    """The pass of whole fits of so many bytes of pictures of each size, in one thread and in two, in turn."""
    found = []
    for side in sizes:
        file = npy_of(directory, strokes, nbytes // side**2, side)
        warm(file)
        tell(f"pictures of {side} x {side}")
        seconds: dict[str, list[float]] = {"one thread": [], "two": []}
        for _ in range(rounds):
            for name, most in zip(seconds, (0, side**2), strict=True):
                seconds[name].append(pass_seconds(file, most))
        found += [(f"p = {side**2}, {name}", statistics.median(taken)) for name, taken in seconds.items()]
    return found


def pass_seconds(file: Path, thread_features: int) -> float:
    """Seconds of the pass of one fit where samples of up to so many features are analysed in threads."""
    events: list[Event] = []
    with patch.object(planning, "THREAD_FEATURES", thread_features):
        streampca.fit(file, streampca.PCA(10, method="covariance", precision="single"), listener=events.append)
    return next(event.seconds for event in events if isinstance(event, PassFinished))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--megabytes", type=int, default=384)
    parser.add_argument("--sizes", type=int, nargs="*", default=[512, 1024, 2048, 4096], help="of dense solves")
    parser.add_argument("--sides", type=int, nargs="*", default=[28, 40, 48, 56], help="of the pictures of threads")
    parser.add_argument("--pictures", type=int, default=120, help="of threads, megabytes of each size")
    parser.add_argument("--directory", type=Path, help="keep the pictures here")
    options = parser.parse_args()
    print(machine())
    with folder(options.directory) as directory:
        for title, rows in (
            ("products of a loop", one_blas(options.features, options.rounds)),
            (f"reading {options.megabytes} MiB in blocks", block_sizes(options.megabytes * MIB, options.rounds)),
            ("dense solves", dense_solves(options.sizes)),
            ("passes of fits", threads(directory, options.sides, options.pictures * 10**6, options.rounds)),
        ):
            print()
            print_table((title, "seconds"), [(name, f"{seconds:.4f}") for name, seconds in rows])


if __name__ == "__main__":
    main()
