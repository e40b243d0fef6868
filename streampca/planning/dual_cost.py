"""What a way of cutting the data for method 'dual' costs: bytes read and written, exactly, and work."""

from __future__ import annotations

from typing import NamedTuple

from .decoding import Reading, read_boxes, read_spread
from .dual_memory import Arithmetic, Cutting
from .rates import Work, products
from .request import Problem
from .sizes import dense_flops

LANCZOS = 2e3  # times size^2: twice what 20 steps of some 60 columns take at the rate of solving (1.7 s at 6000)


class Cost(NamedTuple):
    """Reads of all the data, bytes of them and of a copy, and everything that takes time."""

    passes: float
    bytes_read: int
    bytes_written: int
    work: Work


def cost_of(problem: Problem, arithmetic: Arithmetic, cutting: Cutting, k: int, cores: int) -> Cost:
    """Price a cutting for k components."""
    n, p = problem.n_samples, problem.n_features
    passes, read, copied = _reading(problem, cutting, alone=arithmetic.workers == 1)
    copy_bytes = n * p * problem.itemsize if cutting.schedule == "scratch" else 0
    work = read.work(encoded=problem.encoded, cores=cores)
    work += Work(reading=copied, writing=copy_bytes, centring=_centred(problem, cutting))
    if copy_bytes:
        work += Work(accesses=float(-(-n // cutting.block_rows) * -(-p // cutting.block_features)))
    work += products(float(n) * n * p + 2.0 * n * p * k, arithmetic.precision)
    work += solve_work(n, arithmetic.solver)
    if arithmetic.precision == "single":
        work += Work(adding=float(n) * n * -(-p // cutting.product_features))
    if cutting.stored:
        work += Work(writing=8.0 * k * p)
    return Cost(passes, read.bytes + copied, copy_bytes, work)


def solve_work(size: int, solver: str) -> Work:
    """Of the eigenproblem; Lanczos gives way when it has cost as much as a dense solve, and rarely comes near."""
    dense = dense_flops(size)
    return Work(solving=2.0 * dense if solver == "dense" else min(0.5 * dense, LANCZOS * float(size) ** 2))


def _reading(problem: Problem, cutting: Cutting, *, alone: bool) -> tuple[float, Reading, int]:
    """Passes, what is read of the collection, and the bytes read of its copy."""
    if cutting.schedule == "pairs":
        return _reading_pairs(problem, cutting)
    read, copied, again = read_by_features(problem, cutting, 1, alone=alone)
    return round(1 + (cutting.schedule == "scratch") + again / problem.n_features, 2), read, copied


def read_by_features(problem: Problem, cutting: Cutting, sweeps: int, *, alone: bool) -> tuple[Reading, int, int]:
    """What is read by so many sweeps and while components are made: of the collection, and in bytes of its copy.

    A process alone reads nothing again where it holds all samples. Else the range that it read last is there still when
    components are made, unless these are written in order. The third number is the features that are read for them.
    """
    n, p, width = problem.n_samples, problem.n_features, min(cutting.block_features, problem.n_features)
    once = alone and width == p
    again = 0 if once else (p - 1) // width * width if alone and not cutting.stored else p
    sweeps = 1 if once else sweeps
    if cutting.schedule == "scratch":
        return read_boxes(problem, cutting.block_rows, p), n * (sweeps * p + again) * problem.itemsize, again
    read = read_boxes(problem, cutting.block_rows, width).times(sweeps)
    return read.plus(read_boxes(problem, cutting.block_rows, width, width=again)) if again else read, 0, again


def _reading_pairs(problem: Problem, cutting: Cutting) -> tuple[float, Reading, int]:
    """Samples for a mean, each panel with all that follow it, and all samples once more for every range of components.

    A panel is one read, and the samples after it are read block by block.
    """
    n, p, rows = problem.n_samples, problem.n_features, cutting.block_rows
    starts = range(0, n, cutting.panel_rows)
    read = read_spread(problem).plus(read_boxes(problem, cutting.panel_rows, p))
    for start in starts[1:]:
        read = read.plus(read_boxes(problem, rows, p, start=start))
    ranges = -(-p // cutting.component_features)
    read = read.plus(read_boxes(problem, rows, cutting.component_features))
    passes = sum(n - start for start in starts) / n + ranges
    return round(passes, 2), read, 0


def _centred(problem: Problem, cutting: Cutting) -> float:
    """Values converted and centred: each once a stage, but with panels both at every meeting."""
    n, p = float(problem.n_samples), float(problem.n_features)
    if cutting.by_features:
        return 2 * n * p
    panels = -(-problem.n_samples // cutting.panel_rows)
    after = n * (panels - 1) / 2  # samples that pass a panel, over all panels
    return p * (2 * n + after * (1 + cutting.panel_rows / cutting.block_rows))
