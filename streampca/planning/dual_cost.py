"""What a way of cutting the data for method 'dual' costs: bytes read and written, exactly, and work."""

from __future__ import annotations

from typing import NamedTuple

from .decoding import Reading, read_boxes
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


def cost_of(problem: Problem, arithmetic: Arithmetic, cutting: Cutting, k: int) -> Cost:
    """Price a cutting for k components."""
    n, p = problem.n_samples, problem.n_features
    read, copied, again = read_by_features(problem, cutting, 1, alone=arithmetic.workers == 1)
    passes = round(1 + (cutting.schedule == "scratch") + again / p, 2)
    copy_bytes = n * p * problem.itemsize if cutting.schedule == "scratch" else 0
    work = read.work(problem)
    work += Work(reading=copied, writing=copy_bytes, centring=2.0 * n * p)
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
