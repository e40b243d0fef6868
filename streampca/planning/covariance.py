"""Plans of method 'covariance': one pass for p x p."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..units import MIB, format_shape
from .blocks import block_rows, spans_of
from .budget import (
    BLOCK_SHARES,
    CHUNK_SHARE,
    MOST_BLOCK,
    precision_of,
    smallest,
    solver_of,
    span_count,
)
from .decoding import read_boxes
from .integer_units import bytes_a_number, integer_items, worthwhile_units
from .memory import (
    COMPONENT_COPIES,
    MemoryEstimate,
    Phase,
    block_items,
    in_threads,
    runtime,
    solve_memory,
)
from .plan import Candidate, Plan
from .rates import Work, integer_products, products, solve_work
from .request import Problem, Request
from .sizes import integer_rows, scatter_bytes, thread_count

MOST_PRODUCT_ROWS = 2048  # adding up p x p then costs little beside making it (benchmarks/limits.py --phases)
LEAST_PRODUCT_ROWS = 64
THREAD_BLOCK = 8 * MIB  # of a block in a thread: as fast as 24, and two of each thread are in memory
THREAD_SHARES = 3  # of the shares below that are tried with threads: smaller blocks cost more than threads gain
# Beyond, adding p x p to the sum of each thread takes what BLAS's threads lose (benchmarks/choices.py).
THREAD_FEATURES = 2048
# That writing a scatter matrix takes beside it: 3.3 MiB for 400 features, 4.5 for 576, 7.7 for 784, 15 for 2100, and 30
# for 3000 were measured.
MOST_WRITING_BYTES = 64 * MIB

APPROXIMATE = False
KINDS = ("pca", "kernel-pca", "classical-mds")


def reason_against(problem: Problem) -> str:
    """Return why "auto" leaves the method out; never."""
    return ""


def candidates(problem: Problem, request: Request) -> Iterator[Candidate]:
    """Yield the plan if it fits."""
    yield Candidate.of(covariance_plan(problem, request, integer_units=_units(problem, request)))


def least(problem: Problem, request: Request) -> tuple[int, MemoryEstimate]:
    """Return the smallest budget that would do, and the estimate for the budget that there is."""
    budget = smallest(lambda memory: covariance_plan(problem, replace(request, memory=memory)).fits)
    return budget, covariance_plan(problem, request).memory_estimate


def _units(problem: Problem, request: Request) -> str:
    """Return the integer units that multiply samples faster than floating point does, or "none"."""
    multiplications = problem.n_samples * problem.n_features**2
    precision = precision_of(problem, request, multiplications)
    if problem.weighted:
        return "none"  # roots of weights make fractions of them
    if problem.kind == "f" and not _takes_threads(problem, precision):
        return "none"  # most are fractions, which threads of their own do not suit
    return worthwhile_units(problem, request, multiplications, precision)


def covariance_plan(
    problem: Problem, request: Request, *, thread_block: int = THREAD_BLOCK, integer_units: str = "none"
) -> Plan:
    """The plan with integer units if they fit, with several threads, with reading ahead, and with the largest blocks.

    Where none keeps within the budget, the one that takes least. A block in a thread has `thread_block` bytes at most.
    """
    for way in _ways(problem, request, integer_units):
        plan = _covariance_plan(problem, request, *way, thread_block)
        if plan.fits:
            break
    return plan


def _ways(problem: Problem, request: Request, units: str) -> Iterator[tuple[str, int, int, int]]:
    """Integer units, threads, blocks read ahead, and the share of the budget that a block may take: faster ones first.

    The library for integer units multiplies in the thread that calls it, so that all cores need threads, or workers.
    Workers without the library multiply in floating point.
    """
    threads = thread_count(problem.machine.cores)
    p, n = problem.n_features, problem.n_samples
    narrow = _takes_threads(problem, precision_of(problem, request, n * p * p))
    kinds = [*([units] if units != "none" else []), *(["none"] if narrow else [])]
    for own in kinds if request.workers == 1 else []:
        yield from ((own, threads, int(problem.fills), threads * share) for share in BLOCK_SHARES[:THREAD_SHARES])
    for own in dict.fromkeys((units, "none")) if request.workers > 1 else ("none",):
        for ahead in (1, 0) if problem.fills else (0,):
            yield from ((own, 1, ahead, share) for share in BLOCK_SHARES)


def _takes_threads(problem: Problem, precision: str) -> bool:
    return precision == "single" and problem.n_features <= THREAD_FEATURES


def _covariance_plan(
    problem: Problem, request: Request, units: str, threads: int, ahead: int, share: int, thread_block: int
) -> Plan:
    n, p, (memory, _) = problem.n_samples, problem.n_features, problem.machine.budget(request.memory)
    precision = precision_of(problem, request, n * p * p)
    rows = _rows_in_memory(problem, memory, share, MOST_BLOCK if threads == 1 else thread_block)
    product_rows = _product_rows(p, 8 if precision == "double" else 4, rows, memory // share)
    solver = solver_of(p, request, problem.most_components)
    room = _component_room(problem, request, solver, memory)
    dense_room = room
    if solver != "dense":
        fits = _solve_memory(problem, request, "dense", room).total <= memory
        dense_room = _component_room(problem, request, "dense", memory) if fits else 0
    spans = spans_of(n, span_count(request.workers, threads), rows)
    threads = min(threads, len(spans))
    blocks = block_items(problem, rows, threads, ahead)
    if units != "none":
        at_once = min(rows, integer_rows(p * bytes_a_number(problem)))
        blocks |= integer_items(p, bytes_a_number(problem), at_once, threads)
    phases = [
        _pass_memory(problem, request, precision, product_rows, blocks, threads),
        _solve_memory(problem, request, solver, room),
    ]
    if dense_room and solver != "dense":
        phases.append(_solve_memory(problem, request, "dense", min(room, dense_room)))
    phases.append(_save_memory(p, room))
    work, read = _work(problem, precision, solver, rows, product_rows, units)
    return Plan(
        problem=problem,
        request=request,
        method="covariance",
        why=f"the {format_shape((p, p))} scatter matrix fits the budget; exact, in one pass",
        precision=precision,
        solver=solver,
        room=room,
        dense_room=dense_room,
        block_rows=rows,
        product_rows=product_rows,
        spans=spans,
        passes=1,
        bytes_read=read,
        memory_estimate=MemoryEstimate(tuple(phases)),
        block_features=p,
        threads=threads,
        ahead=ahead,
        integer_units=units,
        work=work,
    )


def _work(problem: Problem, precision: str, solver: str, rows: int, product_rows: int, units: str) -> tuple[Work, int]:
    """Return the work, and the bytes that are read."""
    n, p = float(problem.n_samples), float(problem.n_features)
    read = read_boxes(problem, rows, problem.n_features)
    is_integer = units != "none" and problem.kind != "f"
    work = read.work(problem) + Work(centring=n * p) + solve_work(problem.n_features, solver)
    if is_integer:
        count = bytes_a_number(problem)
        work += integer_products(n * p * p * count**2, units)
        # Half of p x p is joined, centred twice and added.
        work += Work(adding=n / min(rows, integer_rows(problem.n_features * count)) * 2 * p * p)
    else:
        work += products(n * p * p, precision)
    if precision == "single" and not is_integer:
        work += Work(adding=n / product_rows * p * p)
    return work, read.bytes


def _rows_in_memory(problem: Problem, memory: int, share: int, most: int) -> int:
    """Samples to a block: within its share of the budget, whole storage chunks where that is affordable."""
    chunk, limit = problem.chunk_samples * problem.sample_bytes, memory // share
    if chunk <= limit:
        limit = max(chunk, min(limit, most))
    rows = block_rows(problem.sample_bytes, problem.chunk_samples, limit)
    if rows < problem.chunk_samples and chunk <= memory // max(share // 2, CHUNK_SHARE):
        rows = problem.chunk_samples
    return min(rows, problem.n_samples)


def _product_rows(p: int, itemsize: int, rows: int, share_bytes: int) -> int:
    most = max(LEAST_PRODUCT_ROWS, share_bytes // (p * itemsize))
    return max(1, min(MOST_PRODUCT_ROWS, most, max(rows, LEAST_PRODUCT_ROWS)))


def _component_room(problem: Problem, request: Request, solver: str, memory: int) -> int:
    """Return the components there is memory for: all that were asked for, or for a fraction what the budget leaves."""
    most = problem.most_components
    wanted = request.counted_on(most)
    if not isinstance(wanted, float):
        return wanted or most
    left = memory - _solve_memory(problem, request, solver, 0).total
    return max(1, min(most, left // (COMPONENT_COPIES * 8 * problem.n_features)))


def _pass_memory(
    problem: Problem, request: Request, precision: str, product_rows: int, blocks: dict[str, int], threads: int
) -> Phase:
    """Memory while samples are absorbed in blocks."""
    items = in_threads(scatter_bytes(problem.n_features, precision, product_rows), threads)
    if request.workers > 1:
        items["scatter matrix of another worker, merged"] = 8 * problem.n_features**2
    return Phase.of("pass", items, blocks, runtime(threads))


def _save_memory(p: int, room: int) -> Phase:
    """Memory while the model is written, its statistic a file at a time (`streampca.storage.stored_arrays`)."""
    matrix = 8 * p * p
    items = {
        f"scatter matrix, {format_shape((p, p))} float64": matrix,
        "files of it being written": min(2 * MIB + 6 * matrix // 5, 6 * MIB + 2 * matrix // 5, MOST_WRITING_BYTES),
        f"{room} components": 8 * p * room,
    }
    return Phase.of("saving", items, runtime())


def _solve_memory(problem: Problem, request: Request, solver: str, room: int) -> Phase:
    """Memory while the p x p problem is solved; for a fraction of the variance, up to a quarter of p components."""
    p, wanted = problem.n_features, request.counted_on(problem.most_components)
    return solve_memory("scatter matrix", p, wanted, solver, min(room, p // 4) if request.is_open else room)
