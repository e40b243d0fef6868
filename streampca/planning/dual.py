"""Plans of method 'dual': n x n instead of p x p, for images with more pixels than there are images.

Every two samples are multiplied with one another, which takes ranges of features with all samples in memory. *Sweep*:
ranges of the collection; storage cut by samples (a file an image) is decoded again for every range. *Scratch*: one copy
in ranges of features, then sweeps of that.

Of the sizes that fit the fastest are taken, so for a given number of components more memory makes the
fastest plan no slower. A plan that keeps components in memory, or has room for a dense solve, is preferred to a faster
one if it takes at most a fourth longer. Where the number of components is open, memory makes room for more of them
first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple

from ..units import MIB, format_shape
from .blocks import block_rows, spans_of
from .budget import MOST_BLOCK, most_that_fits, precision_of, solver_of, span_count
from .component_chunks import POOLS, WRITE_COPIES, tile_bytes
from .decoding import Reading, read_boxes
from .memory import RUNTIME_BYTES, THREAD_BYTES, MemoryEstimate, Phase, decoding_bytes, smallest_of, solve_memory
from .plan import Candidate, Plan
from .rates import Work, products, solve_work
from .request import Problem, Request
from .sizes import PROBES, gram_threads

SCHEDULES = ("sweep", "scratch")
OPEN_SHARES = (4, 16, 64)  # components counted on where k is open: a fourth of n, or what there is memory for
WORTH_CHANGING = 0.8  # a plan to be preferred gives way to one that takes less than so much of its time
TILES = (4096, 1024, 256)  # features multiplied at a time: adding n x n then costs little beside making it
READS = (MOST_BLOCK, 4 * MIB, MIB // 2, 1)  # bytes of a block as it is read; the last one is a single sample

RowRule = Callable[[int], int]  # samples to a block, given the bytes of one
POLISH_PART = 8 * MIB  # of components being multiplied with one another, and as much of what comes of it
# k x k: their products, a part's, LAPACK's copy and work, eigenvectors, and these scaled; or a Cholesky factor of them.
POLISH_SQUARES = {"single": 6, "double": 3}
COPY_POOLS = 26 * MIB  # 8 to 25 measured, with Zarr


# -- the search


class Choice(NamedTuple):
    """A cutting with what it takes."""

    attempt: Attempt
    cutting: Cutting
    cost: Cost
    seconds: float


def reason_against(problem: Problem) -> str:
    """Return why "auto" leaves the method out; empty if it does not."""
    n, p = problem.n_samples, problem.n_features
    return f"{n} samples are no fewer than {p} features, so n x n is no smaller a matrix" if n >= p else ""


def candidates(problem: Problem, request: Request, memory: int, source: str) -> Iterator[Candidate]:
    """Yield the fastest plan of each schedule."""
    for schedule in SCHEDULES:
        name, plan = f"dual ({schedule})", None
        if schedule == "scratch" and request.workers > 1:
            reason = "workers are not known to share a disk for a copy"
        elif schedule == "scratch" and not can_copy(request):
            reason = "there is no place for a copy; name a folder by --scratch (scratch=), or an output"
        else:
            plan = dual_plan(problem, request, schedule, memory, source)
            reason = "" if plan else str(_least(problem, request, schedule))
        yield Candidate(name, plan, reason)


def least(problem: Problem, request: Request) -> tuple[int, MemoryEstimate]:
    """Return the smallest budget that would do, and its memory estimate."""
    schedules = [name for name in SCHEDULES if name != "scratch" or can_copy(request)]
    return smallest_of(_least(problem, request, schedule) for schedule in schedules)


def _least(problem: Problem, request: Request, schedule: str) -> MemoryEstimate:
    """The least memory that a schedule can do with, item by item."""
    k = _components_counted_on(problem, request)[-1]
    attempts = [_attempt(problem, request, schedule, k, stored, dense=False) for stored in places(request)]
    estimates = [attempt.memory_estimate(cutting) for attempt in attempts for cutting in smallest_cuttings(attempt)]
    return smallest_of(estimates)[1]


def dual_plan(problem: Problem, request: Request, schedule: str, memory: int, source: str) -> Plan | None:
    """The fastest plan of a schedule that fits the budget; None where none does."""
    for k in _components_counted_on(problem, request):
        attempts = [
            _attempt(problem, request, schedule, k, stored, dense)
            for dense in _rooms_to_solve(problem, request)
            for stored in places(request)
        ]
        found = [choice for choice in (_fastest(attempt, memory) for attempt in attempts) if choice is not None]
        if found:
            return _planned(request, _preferred(found), memory, source)
    return None


def can_copy(request: Request) -> bool:
    """Tell whether there is a place for a scratch copy; the workers of a cluster may share no disk."""
    return (request.scratch is not None or request.output) and request.workers == 1


def _components_counted_on(problem: Problem, request: Request) -> list[int]:
    """Components to make room for: those asked for, or where k is open several counts, to be tried in turn."""
    wanted = request.counted_on(problem.most_components)
    if not isinstance(wanted, float):
        return [wanted or problem.most_components]
    shares = (1, *OPEN_SHARES) if request.output else OPEN_SHARES  # with an output none need be left out
    return [max(1, problem.most_components // share) for share in shares] + [1]


def places(request: Request) -> tuple[bool, ...]:
    """Return the choices for `Cutting.stored`: components go to disk only where there is an output."""
    return (False, True) if request.output else (False,)


def _rooms_to_solve(problem: Problem, request: Request) -> tuple[bool, ...]:
    """Return the choices for `Arithmetic.dense`, the preferred one first: Lanczos may give way to a dense solve."""
    solver = solver_of(problem.n_samples, request, problem.most_components)
    return (True,) if solver == "dense" else (True, False)


def _attempt(problem: Problem, request: Request, schedule: str, k: int, stored: bool, dense: bool) -> Attempt:
    """Stored components cannot be recomputed, so they are computed in double precision from the start."""
    n, most = problem.n_samples, problem.most_components
    precision = precision_of(problem, request, n * n * problem.n_features)
    if stored and request.precision == "auto":
        precision = "double"
    solver = solver_of(n, request, most)
    threads = gram_threads(problem.n_samples, precision, problem.machine.cores)
    arithmetic = Arithmetic(
        precision, solver, dense, request.counted_on(most), request.workers, threads, request.output
    )
    return Attempt(problem, schedule, arithmetic, k, stored)


def _fastest(attempt: Attempt, memory: int) -> Choice | None:
    problem, arithmetic = attempt.problem, attempt.arithmetic
    found = []
    for cutting in cuttings_that_fit(attempt, memory):
        cost = cost_of(problem, arithmetic, cutting, attempt.k)
        found.append(Choice(attempt, cutting, cost, cost.work.seconds(problem.machine.cores, arithmetic.workers)))
    return min(found, key=lambda choice: choice.seconds, default=None)


def _preferred(found: list[Choice]) -> Choice:
    """The first, as they come in order of preference, that no other is so much faster than."""
    fastest = min(choice.seconds for choice in found)
    return next(choice for choice in found if WORTH_CHANGING * choice.seconds <= fastest)


def _planned(request: Request, choice: Choice, memory: int, source: str) -> Plan:
    attempt, cutting, cost, seconds = choice
    problem, arithmetic = attempt.problem, attempt.arithmetic
    room = _room(request, choice, memory)
    side = format_shape((problem.n_samples, problem.n_samples))
    passes = "one pass" if cost.passes == 1 else f"{cost.passes:g} passes"
    return Plan(
        problem=problem,
        request=request,
        method="dual",
        why=f"the {side} Gram matrix fits the budget; exact, in {passes}",
        rejected=(),
        precision=arithmetic.precision,
        solver=arithmetic.solver,
        room=room,
        dense_room=room if arithmetic.dense or arithmetic.solver == "dense" else 0,
        block_rows=cutting.block_rows,
        product_rows=0,
        spans=spans_of(problem.n_features, span_count(request.workers), cutting.block_features),
        passes=cost.passes,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        memory_estimate=attempt.memory_estimate(cutting),
        memory=memory,
        budget_source=source,
        cores=problem.machine.cores,
        schedule=cutting.schedule,
        block_features=cutting.block_features,
        product_features=min(cutting.product_features, problem.n_features),
        stored=cutting.stored,
        workers=request.workers,
        work=cost.work,
        seconds=seconds,
    )


def _room(request: Request, choice: Choice, memory: int) -> int:
    """Components asked for, or where k is open, as many as these sizes leave memory for."""
    attempt, most = choice.attempt, choice.attempt.problem.most_components
    if not isinstance(request.counted_on(most), float):
        return attempt.k

    def fits(k: int) -> bool:
        return replace(attempt, k=k).memory_estimate(choice.cutting).total <= memory

    return max(attempt.k, most_that_fits(fits, most))


# -- candidates


@dataclass(frozen=True)
class Attempt:
    """The fixed part of a candidate: schedule, arithmetic, and k components, stored while they are computed or not."""

    problem: Problem
    schedule: str
    arithmetic: Arithmetic
    k: int
    stored: bool

    def memory_estimate(self, cutting: Cutting) -> MemoryEstimate:
        """Memory of all phases."""
        return dual_memory(self.problem, self.arithmetic, cutting, self.k)


def cuttings_that_fit(attempt: Attempt, memory: int) -> Iterator[Cutting]:
    """For each tile and block, the largest ranges that fit, one by one."""
    p = attempt.problem.n_features
    for tile, rows_of in product(TILES, _block_rules(attempt.problem)):
        unit = _unit(attempt, tile)
        cut = partial(_ranged, attempt, tile, rows_of)

        def fits(count: int, cut: Callable[[int], Cutting] = cut, unit: int = unit) -> bool:
            return attempt.memory_estimate(cut(count * unit)).total <= memory

        most = -(-p // unit)
        if fits(most):  # asked apart: a range of everything is kept while the eigenproblem is solved
            yield cut(p)
        elif count := most_that_fits(fits, most - 1):
            yield cut(_even(p, unit, count))


def smallest_cuttings(attempt: Attempt) -> Iterator[Cutting]:
    """Those with the least of everything, one of which needs least memory."""
    for tile in TILES:
        unit = _unit(attempt, tile)
        yield from (_ranged(attempt, tile, rule, unit) for rule in _block_rules(attempt.problem))


def _ranged(attempt: Attempt, tile: int, rows_of: RowRule, width: int) -> Cutting:
    """A cutting by ranges of features."""
    problem, schedule = attempt.problem, attempt.schedule
    one = Cutting(schedule, 1, min(width, problem.n_features), tile, attempt.stored)
    rows = rows_of(read_bytes(problem, one, wide=schedule == "scratch"))
    return replace(one, block_rows=min(rows, problem.n_samples))


def _unit(attempt: Attempt, tile: int) -> int:
    """Return the unit of ranges of features: a tile, or a storage chunk where that is wider."""
    p, chunk = attempt.problem.n_features, attempt.problem.chunk_features
    if attempt.schedule == "scratch" or chunk >= p:
        return min(tile, p)
    return chunk if chunk > tile else tile // chunk * chunk


def _block_rules(problem: Problem) -> tuple[RowRule, ...]:
    """Samples to a block: all, storage chunks enough to keep cores busy, or as many as take so many bytes."""
    chunk = problem.chunk_samples
    within = tuple(partial(_rows_within, chunk, limit) for limit in READS)
    return (lambda row_bytes: problem.n_samples, lambda row_bytes: chunk * problem.machine.cores, *within)


def _rows_within(chunk: int, limit: int, row_bytes: int) -> int:
    return block_rows(row_bytes, chunk, limit)


def _even(length: int, unit: int, count: int) -> int:
    """Multiples of `unit` that cut a length into as few pieces as `count` of them do, of nearly one size."""
    pieces = -(-length // (unit * count))
    return -(-length // (unit * pieces)) * unit


# -- memory


@dataclass(frozen=True)
class Cutting:
    """Sizes of ranges, blocks and tiles; fields as in `Plan`."""

    schedule: str
    block_rows: int
    block_features: int
    product_features: int
    stored: bool = False


@dataclass(frozen=True)
class Arithmetic:
    """How it is computed.

    Attributes
    ----------
    precision, solver, dense
        As in `Plan`; `dense` says whether there is room for a dense solve.
    wanted : int, float or None
        Components to solve for.
    workers, threads : int
        Processes; tiles multiplied at a time.
    output : bool
        Whether the model is written.
    """

    precision: str
    solver: str
    dense: bool
    wanted: int | float | None
    workers: int = 1
    threads: int = 1
    output: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of a value being multiplied."""
        return 8 if self.precision == "double" else 4


def dual_memory(problem: Problem, arithmetic: Arithmetic, cutting: Cutting, k: int) -> MemoryEstimate:
    """Memory of all phases, for k components."""
    phases = [copy_phase(problem, cutting)] if cutting.schedule == "scratch" else []
    phases += [gram_phase(problem, arithmetic, cutting), *_solve_phases(problem, arithmetic, cutting, k)]
    return MemoryEstimate(
        (*phases, components_phase(problem, arithmetic, cutting, k), *last_phases(problem, arithmetic, cutting, k))
    )


def last_phases(problem: Problem, arithmetic: Arithmetic, cutting: Cutting, k: int) -> list[Phase]:
    """Memory after the last read: while components are completed, and those in memory are written."""
    if cutting.stored:
        return [_signs_phase(problem, k)]
    written = [_writing_phase(problem, k)] if arithmetic.output else []
    return [_polish_phase(problem, k, arithmetic.precision), *written]


def gram_phase(problem: Problem, arithmetic: Arithmetic, cutting: Cutting) -> Phase:
    """Memory while the Gram matrix is added up."""
    n, p = problem.n_samples, problem.n_features
    items = {f"Gram matrix, {format_shape((n, n))} float64": 8 * n * n}
    if arithmetic.workers > 1:
        items["Gram matrix of another worker, merged"] = 8 * n * n
    items |= held_items(problem, cutting)
    items |= read_items(problem, cutting)
    tile = _tile(problem, cutting)
    items["tile of it, centred"] = arithmetic.threads * n * tile * arithmetic.itemsize
    if arithmetic.precision == "single":  # in double precision products are added up at once
        items["product of a tile"] = arithmetic.threads * 4 * n * n
    items["mean"] = 16 * p
    items["probes"] = PROBES * (2 * 8 * n + arithmetic.threads * 12 * tile)
    if problem.weighted:
        items["sample weights"] = 8 * n
    items["BLAS and Python"] = RUNTIME_BYTES + pool_bytes(problem, arithmetic, cutting)
    return Phase("Gram matrix", tuple(items.items()))


def components_phase(problem: Problem, arithmetic: Arithmetic, cutting: Cutting, k: int) -> Phase:
    """Memory while components are made from the eigenvectors of the Gram matrix."""
    n, p = problem.n_samples, problem.n_features
    tile = _tile(problem, cutting)
    items = {f"{k} eigenvectors of {n} samples, as found and scaled": n * k * (24 if arithmetic.itemsize == 8 else 28)}
    items |= held_items(problem, cutting) | read_items(problem, cutting)
    # Components much smaller than the first are made in double precision, which the plan cannot know beforehand.
    items["tile of it, centred, and of the components"] = arithmetic.threads * (n + 2 * k + 2 * PROBES) * tile * 8
    if cutting.stored:
        items |= _written(problem, k)
    else:
        items |= _kept(problem, k)
    items["mean"] = 24 * p
    items["BLAS and Python"] = RUNTIME_BYTES + pool_bytes(problem, arithmetic, cutting)
    return Phase("components", tuple(items.items()))


def _polish_phase(problem: Problem, k: int, precision: str) -> Phase:
    """Memory while components are multiplied with one another, to make good what rounding did; the data are let go."""
    items = {
        f"{k} eigenvectors of {problem.n_samples} samples, as found": 8 * problem.n_samples * k,
        f"products of components, {format_shape((k, k))} float64": POLISH_SQUARES[precision] * 8 * k * k,
        **_kept(problem, k),
        "parts of components, multiplied": 2 * min(POLISH_PART, 8 * k * problem.n_features),
        "mean": 24 * problem.n_features,
        "BLAS and Python": RUNTIME_BYTES,
    }
    return Phase("polish", tuple(items.items()))


def _signs_phase(problem: Problem, k: int) -> Phase:
    """Memory while the signs of written components are fixed, a tile of storage at a time; the data are let go."""
    items = {
        f"{k} eigenvectors of {problem.n_samples} samples, as found": 8 * problem.n_samples * k,
        **_written(problem, k),
        "mean": 24 * problem.n_features,
        "BLAS and Python": RUNTIME_BYTES,
    }
    return Phase("signs", tuple(items.items()))


def _writing_phase(problem: Problem, k: int) -> Phase:
    """Memory while a model whose components are in memory is written."""
    items = {
        **_kept(problem, k),
        "components being written": WRITE_COPIES * min(_tile_bytes(problem, k), 8 * k * problem.n_features) + POOLS,
        "mean": 24 * problem.n_features,
        "BLAS and Python": RUNTIME_BYTES,
    }
    return Phase("writing the model", tuple(items.items()))


def _kept(problem: Problem, k: int) -> dict[str, int]:
    """Components in memory, and what is kept beside them; with a mask, also as they go into the model."""
    p, frame = problem.n_features, math.prod(problem.sample_shape)
    items = {f"{k} components": 8 * k * p, "probes of components": PROBES * 8 * p}
    return items if frame == p else {**items, "components in their frame": 8 * k * frame}


def _written(problem: Problem, k: int) -> dict[str, int]:
    """A tile of components as it is gathered, written and in pools of Zarr's threads; signs of each in every tile."""
    tile = _tile_bytes(problem, k)
    return {
        "a tile of components being written": (2 + WRITE_COPIES) * tile,
        "signs of components in each tile": k * -(-8 * k * problem.n_features // tile),
    }


def _tile_bytes(problem: Problem, k: int) -> int:
    return tile_bytes((k, *problem.sample_shape), 8)


def _solve_phases(problem: Problem, arithmetic: Arithmetic, cutting: Cutting, k: int) -> list[Phase]:
    """Memory of the solver, and of a dense one where it may take over, with the data held meanwhile."""
    n, p = problem.n_samples, problem.n_features
    beside = {"mean": 16 * p, **held_items(problem, cutting)}
    solvers = [arithmetic.solver, *(["dense"] if arithmetic.dense and arithmetic.solver != "dense" else [])]
    phases = [solve_memory("Gram matrix", n, arithmetic.wanted, solver, k) for solver in solvers]
    return [Phase(phase.name, phase.items + tuple(beside.items())) for phase in phases]


def copy_phase(problem: Problem, cutting: Cutting) -> Phase:
    """Memory while a scratch copy is written."""
    items = {
        **read_items(problem, cutting, wide=True),
        "the same, turned to be written": cutting.block_rows * problem.n_features * problem.itemsize,
        "BLAS and Python": RUNTIME_BYTES,
    }
    return Phase("scratch copy", tuple(items.items()))


def held_items(problem: Problem, cutting: Cutting) -> dict[str, int]:
    """The range of features in memory, as stored."""
    width = min(cutting.block_features, problem.n_features)
    name = "all samples as stored" if width == problem.n_features else f"{width} features of all samples, as stored"
    return {name: problem.n_samples * width * problem.itemsize}


def read_items(problem: Problem, cutting: Cutting, *, wide: bool = False) -> dict[str, int]:
    """A block as it is read, and what decodes it; all samples of a range read at once are the range itself."""
    rows = cutting.block_rows
    items = {}
    at_once = cutting.schedule == "scratch" or rows >= problem.n_samples
    if wide or not (at_once and _is_read_in_place(problem, cutting)):
        items[f"block of {rows} samples as read"] = rows * read_bytes(problem, cutting, wide=wide)
    if (wide or cutting.schedule != "scratch") and (problem.decode_bytes or problem.scratch_bytes):
        items["storage being decoded"] = decoding_bytes(problem, rows)
    return items


def read_bytes(problem: Problem, cutting: Cutting, *, wide: bool) -> int:
    """Bytes held for one sample of a read: whole, or the features asked for within what covers them."""
    p, item = problem.n_features, problem.itemsize
    width = min(cutting.block_features, p)
    if wide:
        return problem.row_bytes + problem.prepared_bytes
    if _is_read_in_place(problem, cutting):
        return width * item
    if problem.is_prepared:
        return problem.row_bytes + problem.prepared_bytes + (width * item if width < p else 0)
    line = math.prod(problem.sample_shape[1:])
    return (min(p, width + 2 * line) + width) * item


def _is_read_in_place(problem: Problem, cutting: Cutting) -> bool:
    """Tell whether a range is read straight into place: from the copy, or whole lines of samples as stored."""
    width, line = min(cutting.block_features, problem.n_features), math.prod(problem.sample_shape[1:])
    if cutting.schedule == "scratch":
        return True
    return not problem.is_prepared and (width % line == 0 or width == problem.n_features)


def _tile(problem: Problem, cutting: Cutting) -> int:
    return min(cutting.product_features, problem.n_features)


def pool_bytes(problem: Problem, arithmetic: Arithmetic, cutting: Cutting) -> int:
    """Bytes that threads hold besides tiles and products, and that threads which decoded for a copy retain."""
    threads = THREAD_BYTES * arithmetic.threads if arithmetic.threads > 1 else 0
    return threads + (COPY_POOLS if cutting.schedule == "scratch" and problem.encoded else 0)


# -- work


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
        work += Work(writing=2 * 8.0 * k * p, reading=8.0 * k * p)  # again, for the signs
    return Cost(passes, read.bytes + copied, copy_bytes, work)


def read_by_features(problem: Problem, cutting: Cutting, sweeps: int, *, alone: bool) -> tuple[Reading, int, int]:
    """Count what is read in `sweeps` sweeps and for the components: of the collection, and in bytes of its copy.

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
