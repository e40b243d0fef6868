"""Small data in memory: CPU time of each fit beside scikit-learn's, of one transformed row, and of importing.

Calls alternate in this process, with one thread of BLAS; imports and the help are fresh processes. Where a peer takes
less than a millisecond, ours is compared with one millisecond. Ends with 1 if a ratio misses what is promised.

    OPENBLAS_NUM_THREADS=1 python benchmarks/small.py
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from fresh import machine, print_table
from sklearn import decomposition, manifold
from sklearn.datasets import load_digits, load_iris

import streampca

FLOOR = 1e-3  # least CPU seconds of a peer that a fit or a process is compared with
ROWS = 100  # transforms of one row in a call
IMPORTS = "import numpy, scipy.linalg"


class Case(NamedTuple):
    """One row: ours, the peer's, and the largest ratio of their CPU times."""

    ours: Callable[[], Any]
    peer: Callable[[], Any]
    aim: float = 3.0
    clock: Callable[[], float] = time.process_time


def children() -> float:
    """Return the CPU seconds of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fresh(*words: str) -> Callable[[], Any]:
    """Return a call that runs Python in a process of its own."""
    return partial(subprocess.run, [sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


def one_row(model: Any, row: Any) -> None:
    """Transform one row again and again."""
    for _ in range(ROWS):
        model.transform(row)


def cases(n: int) -> dict[str, Case]:
    """Return all rows; n is the number of samples of the largest fit."""
    random, digits, iris = np.random.default_rng(0), load_digits().data, load_iris().data
    many, some = random.standard_normal((n, 100)), random.standard_normal((600, 10))
    angle = random.uniform(0, 12, 800)
    roll = np.column_stack((angle * np.cos(angle), random.uniform(0, 10, 800), angle * np.sin(angle)))
    graph: dict[str, Any] = {"n_components": 2, "n_neighbors": 10}
    kernel: dict[str, Any] = {"n_components": 10, "kernel": "rbf", "gamma": 0.05}

    def fits(ours: Any, peer: Any, data: Any) -> Case:
        return Case(lambda: ours.fit(data), lambda: peer.fit(data))

    def principal(data: Any, k: int) -> Case:
        return fits(streampca.PCA(k), decomposition.PCA(k), data)

    table = {
        "PCA, iris, k = 2": principal(iris, 2),
        "PCA, digits, k = 10": principal(digits, 10),
        f"PCA, {n} x 100, k = 10": principal(many, 10),
        "KernelPCA, 600 x 10": fits(streampca.KernelPCA(**kernel), decomposition.KernelPCA(**kernel), some),
    }
    for name, more in (
        ("Isomap", {}),
        ("LocallyLinearEmbedding", {}),
        ("SpectralEmbedding", {"affinity": "nearest_neighbors"}),
    ):
        ours, peer = getattr(streampca, name)(**graph), getattr(manifold, name)(**graph, **more)
        table[f"{name}, 800 x 3"] = fits(ours, peer, roll)
    fitted = [cls(10).fit(digits) for cls in (streampca.PCA, decomposition.PCA)]
    ours_of_row, peer_of_row = (partial(one_row, model, digits[:1]) for model in fitted)
    return {
        **table,
        f"transform of one digit, {ROWS} times": Case(ours_of_row, peer_of_row, 1.5),
        "import streampca": Case(fresh("-c", "import streampca"), fresh("-c", IMPORTS), 1.2, children),
        "streampca --help": Case(fresh("-m", "streampca", "--help"), fresh("-c", IMPORTS), 1.2, children),
    }


def seconds(case: Case, rounds: int) -> tuple[float, float]:
    """Return the median CPU seconds of ours and of the peer, in turns, after a round that is not counted."""
    times: dict[Callable[[], Any], list[float]] = {case.ours: [], case.peer: []}
    for number in range(rounds + 1):
        for call, taken in times.items():
            began = case.clock()
            call()
            if number:
                taken.append(case.clock() - began)
    ours, peer = (statistics.median(taken) for taken in times.values())
    return ours, peer


def main() -> int:
    """Print one row a case; return 1 if one misses its aim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--samples", type=int, default=10_000, help="samples of the largest fit")
    parser.add_argument("--only", default="", help="cases with this in their name")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # peers, of graphs and of their solvers
    print(f"{machine()}\n")
    rows, misses = [], False
    for name, case in cases(options.samples).items():
        if options.only in name:
            ours, peer = seconds(case, options.rounds)
            ratio = ours / max(peer, FLOOR)
            misses |= ratio > case.aim
            verdict = "missed" if ratio > case.aim else ""
            rows.append([name, f"{ours * 1e3:.2f}", f"{peer * 1e3:.2f}", f"{ratio:.2f}", f"{case.aim}", verdict])
    print_table(["CPU time", "ours, ms", "peer, ms", "ratio", "at most", ""], rows)
    return int(misses)


if __name__ == "__main__":
    sys.exit(main())
