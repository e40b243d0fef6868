"""What a way of cutting the data for method 'dual' costs: bytes read and written, exactly, and work."""

from __future__ import annotations

from typing import NamedTuple

from ..rates import Work, products
from ..request import Problem
from ..solve import dense_flops
from .decoded import Reading, read_boxes, read_spread
from .dual_bill import Arithmetic, Cutting

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
    passes, read, copied = _reading(problem, cutting)
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


def _reading(problem: Problem, cutting: Cutting) -> tuple[float, Reading, int]:
    """Passes, what is read of the collection, and the bytes read of its copy.

    The second time the range that was read last is there still, and needs no reading; unless components are written in
    order, as they are made.
    """
    if cutting.schedule == "pairs":
        return _reading_pairs(problem, cutting)
    n, p, width = problem.n_samples, problem.n_features, min(cutting.block_features, problem.n_features)
    again = 0 if width == p else p if cutting.stored else (p - 1) // width * width
    if cutting.schedule == "scratch":
        copied = n * (p + again) * problem.itemsize
        return round(2 + again / p, 2), read_boxes(problem, cutting.block_rows, p), copied
    read = read_boxes(problem, cutting.block_rows, width)
    if again:
        read = read.plus(read_boxes(problem, cutting.block_rows, width, width=again))
    return round(1 + again / p, 2), read, 0


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
