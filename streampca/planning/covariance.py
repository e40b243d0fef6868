"""Plans of method 'covariance': one pass for p x p."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from ..units import MIB, format_shape
from .blocks import block_rows, spans_of
from .budget import BLOCK_SHARES, CHUNK_SHARE, MOST_BLOCK, precision_of, smallest, solver_of, span_count
from .decoding import read_boxes
from .memory import MemoryEstimate, component_room, pass_memory, scatter_solve_memory
from .plan import Candidate, Plan
from .rates import Work, products, solve_work
from .request import Problem, Request
from .sizes import thread_count

MOST_PRODUCT_ROWS = 2048  # adding up p x p then costs little beside making it (benchmarks/limits.py --phases)
LEAST_PRODUCT_ROWS = 64
THREAD_BLOCK = 8 * MIB  # of a block in a thread: as fast as 24, and two of each thread are in memory
THREAD_SHARES = 3  # of the shares below that are tried with threads: smaller blocks cost more than threads gain


THREAD_FEATURES = (
    2048  # beyond, adding p x p to the sum of each thread takes what BLAS's threads lose (benchmarks/choices.py)
)


def reason_against(problem: Problem) -> str:
    """Return why "auto" leaves the method out; never."""
    return ""


def candidates(problem: Problem, request: Request, memory: int, source: str) -> Iterator[Candidate]:
    """Yield the plan if it fits."""
    plan = covariance_plan(problem, request, memory, source)
    fits = plan.memory_estimate.total <= memory
    yield Candidate("covariance", plan) if fits else Candidate("covariance", None, str(plan.memory_estimate))


def least(problem: Problem, request: Request) -> tuple[int, MemoryEstimate]:
    """Return the smallest budget that would do, and the estimate for the budget that there is."""
    memory, source = problem.machine.budget(request.memory)
    budget = smallest(lambda memory: covariance_plan(problem, request, memory, "").memory_estimate.total <= memory)
    return budget, covariance_plan(problem, request, memory, source).memory_estimate


def covariance_plan(problem: Problem, request: Request, memory: int, source: str) -> Plan:
    """The plan with several threads if they fit, then with reading ahead, and with the largest blocks that fit.

    Where none keeps within the budget, the one that takes least.
    """
    last = None
    for threads, ahead, share in _ways(problem, request):
        last = _covariance_plan(problem, request, memory, source, share, threads, ahead)
        if last.memory_estimate.total <= memory:
            break
    return cast("Plan", last)


def _ways(problem: Problem, request: Request) -> Iterator[tuple[int, int, int]]:
    """Threads, blocks read ahead, and the share of the budget that a block may take: what is faster, first."""
    threads = thread_count(problem.machine.cores)
    p, n = problem.n_features, problem.n_samples
    if precision_of(problem, request, n * p * p) == "single" and p <= THREAD_FEATURES and request.workers == 1:
        yield from ((threads, int(problem.fills), threads * share) for share in BLOCK_SHARES[:THREAD_SHARES])
    for ahead in (1, 0) if problem.fills else (0,):
        yield from ((1, ahead, share) for share in BLOCK_SHARES)


def _covariance_plan(
    problem: Problem, request: Request, memory: int, source: str, share: int, threads: int, ahead: int
) -> Plan:
    n, p = problem.n_samples, problem.n_features
    precision = precision_of(problem, request, n * p * p)
    rows = _rows_in_memory(problem, memory, share, MOST_BLOCK if threads == 1 else THREAD_BLOCK)
    product_rows = _product_rows(p, 8 if precision == "double" else 4, rows, memory // share)
    solver = solver_of(p, request, problem.most_components)
    room = component_room(problem, request, solver, memory)
    dense_room = _dense_room(problem, request, solver, room, memory)
    spans = spans_of(n, span_count(request.workers, threads), rows)
    threads = min(threads, len(spans))
    how = {"threads": threads, "ahead": ahead, "workers": request.workers}
    phases = [pass_memory(problem, precision, rows, product_rows, **how)]
    phases.append(scatter_solve_memory(problem, request, solver, room))
    if dense_room and solver != "dense":
        phases.append(scatter_solve_memory(problem, request, "dense", min(room, dense_room)))
    work, read = _work(problem, precision, solver, rows, product_rows)
    return Plan(
        problem=problem,
        request=request,
        method="covariance",
        why=f"the {format_shape((p, p))} scatter matrix fits the budget; exact, in one pass",
        rejected=(),
        precision=precision,
        solver=solver,
        room=room,
        dense_room=dense_room,
        block_rows=rows,
        product_rows=product_rows,
        spans=spans,
        passes=1,
        bytes_read=read,
        bytes_written=0,
        memory_estimate=MemoryEstimate(tuple(phases)),
        memory=memory,
        budget_source=source,
        cores=problem.machine.cores,
        block_features=p,
        threads=threads,
        ahead=ahead,
        workers=request.workers,
        work=work,
        seconds=work.seconds(problem.machine.cores, request.workers),
    )


def _work(problem: Problem, precision: str, solver: str, rows: int, product_rows: int) -> tuple[Work, int]:
    """Return the work, and the bytes that are read."""
    n, p = float(problem.n_samples), float(problem.n_features)
    read = read_boxes(problem, rows, problem.n_features)
    work = read.work(problem) + products(n * p * p, precision)
    work += Work(centring=n * p) + solve_work(problem.n_features, solver)
    if precision == "single":
        work += Work(adding=n / product_rows * p * p)
    return work, read.bytes


def _rows_in_memory(problem: Problem, memory: int, share: int, most: int) -> int:
    """Samples to a block: within its share of the budget, whole storage chunks where that is affordable."""
    row_bytes = problem.row_bytes + problem.prepared_bytes
    chunk, limit = problem.chunk_samples * row_bytes, memory // share
    if chunk <= limit:
        limit = max(chunk, min(limit, most))
    rows = block_rows(row_bytes, problem.chunk_samples, limit)
    if rows < problem.chunk_samples and chunk <= memory // max(share // 2, CHUNK_SHARE):
        rows = problem.chunk_samples
    return min(rows, problem.n_samples)


def _product_rows(p: int, itemsize: int, rows: int, share_bytes: int) -> int:
    most = max(LEAST_PRODUCT_ROWS, share_bytes // (p * itemsize))
    return max(1, min(MOST_PRODUCT_ROWS, most, max(rows, LEAST_PRODUCT_ROWS)))


def _dense_room(problem: Problem, request: Request, solver: str, room: int, memory: int) -> int:
    """Most components that a dense solve has memory for, 0 where it does not fit with `room` of them."""
    if solver == "dense":
        return room
    fits = scatter_solve_memory(problem, request, "dense", room).total <= memory
    return component_room(problem, request, "dense", memory) if fits else 0
