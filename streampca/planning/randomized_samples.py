"""Plans of method 'randomized' along samples: n x basis instead of p x basis, for fewer samples than features.

Data are read as method 'dual' reads them, by ranges of features with all samples of each: sweeps of the collection,
or of a scratch copy where storage is cut by samples; one for every product, and one for the components. The ways of
cutting are those of `dual`, for the memory that this takes (`along_samples_memory`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from ..units import format_shape
from .blocks import spans_of
from .budget import span_count
from .decoding import Reading
from .dual import (
    SCHEDULES,
    WORTH_CHANGING,
    Arithmetic,
    Attempt,
    Cutting,
    can_copy,
    components_phase,
    copy_phase,
    cuttings_that_fit,
    held_items,
    last_phases,
    places,
    pool_bytes,
    read_by_features,
    read_items,
    smallest_cuttings,
)
from .memory import COMPONENT_COPIES, RUNTIME_BYTES, THREAD_BYTES, MemoryEstimate, Phase
from .plan import Plan
from .randomized_features import (
    OPEN_SHARE,
    TWICE,
    Basis,
    bases,
    basis_of,
    counted_on,
    is_open,
    precision_of_products,
    reason,
)
from .rates import Work, products
from .request import Problem, Request
from .sizes import (
    PROBES,
    PROBES_OF_PASS,
    basis_bytes,
    gram_block_bytes,
    gram_threads,
    in_double,
    step_bytes,
    thread_count,
)

LATER = 1  # passes that a block at random takes more than one made of a sample (30000 x 128 x 128; 1/f images)
OPEN_PARTS = 4  # of the components there can be, where k is open: all, a fourth, and so on are tried
START_COPIES = 4  # of the start block: as drawn, made orthogonal to the roots, and LAPACK's
BOUND_COPIES = 8  # of products with probes, while bounds are made of them
PROBE_BYTES = 8 * (2 * PROBES_OF_PASS + 2 * PROBES)  # a sample, kept to the end


@dataclass(frozen=True)
class Crossing(Attempt):
    """The fixed part of a candidate, as of the dual method, with a basis."""

    basis: Basis

    def memory_estimate(self, cutting: Cutting) -> MemoryEstimate:
        """Memory of all phases."""
        sizes = self.basis.width, self.basis.columns
        return along_samples_memory(self.problem, self.arithmetic, cutting, *sizes, self.k)


class Choice(NamedTuple):
    """A cutting with what it takes; `late` passes that are wanted beyond those allowed."""

    attempt: Crossing
    cutting: Cutting
    passes: int
    late: int
    read: Reading
    copied: int
    work: Work
    seconds: float


def passes_beside(schedule: str) -> int:
    """Passes beside those with products: for components, and for a scratch copy."""
    return 1 + (schedule == "scratch")


def along_samples_plan(problem: Problem, request: Request, memory: int, source: str, *, late: bool) -> Plan | None:
    """The fastest plan that fits the budget; None where none does.

    Parameters
    ----------
    problem, request : Problem, Request
        What is to be done.
    memory, source : int, str
        The budget, and where it comes from.
    late : bool
        Whether it may end by `max_passes` before it has what was asked for.
    """
    for k, some in _bases_to_try(problem, request):
        found = [
            choice
            for same_width in some
            for choice in _of_width(problem, request, k, same_width, memory)
            if late or not choice.late
        ]
        if found:
            return _planned(request, min(found, key=_merit), memory, source)
    return None


def least_along_samples(problem: Problem, request: Request) -> list[MemoryEstimate]:
    """The memory that it can do with, item by item, for every way of reading."""
    *_, (k, some) = _bases_to_try(problem, request)
    return [
        attempt.memory_estimate(cutting)
        for same_width in some
        for way in _ways(request)
        for attempt in [_attempt(problem, request, k, same_width[-1], *way)]
        for cutting in smallest_cuttings(attempt)
    ]


def _bases_to_try(problem: Problem, request: Request) -> Iterator[tuple[int, list[list[Basis]]]]:
    """Components to make room for, and bases for them: those of every width, the largest first.

    Where k is open, there are several to be tried in turn: all components there are, and fewer.
    """
    n, most = problem.n_samples, problem.most_components
    found = list(bases(problem, request, n, later=LATER))
    if not is_open(problem, request):
        widths = groupby(found, key=attrgetter("width"))
        yield counted_on(problem, request), [list(same_width)[::-1] for _, same_width in widths]
        return
    (least,) = found
    for part in range(math.ceil(math.log(most, OPEN_PARTS)) + 1):
        k = max(1, most // OPEN_PARTS**part)
        columns = min(max(least.columns, OPEN_SHARE * k), n)
        yield k, [[basis_of(problem, n, least.width, columns, least.passes - least.restarting)]]


def _of_width(problem: Problem, request: Request, k: int, same_width: list[Basis], memory: int) -> Iterator[Choice]:
    """For every way of reading what fits with the largest basis that anything fits with."""
    for way in _ways(request):
        for basis in same_width:
            found = list(_choices(_attempt(problem, request, k, basis, *way), request, memory))
            yield from found
            if found:
                break


def _ways(request: Request) -> Iterator[tuple[str, bool]]:
    """Every way of reading, with components in memory, or stored as they are made."""
    for schedule in SCHEDULES:
        if (schedule != "scratch" or can_copy(request)) and _allowed(request, schedule) != 0:
            yield from ((schedule, stored) for stored in places(request))


def _attempt(problem: Problem, request: Request, k: int, basis: Basis, schedule: str, stored: bool) -> Crossing:
    """Stored components cannot be orthonormalized afterwards, so they are computed in double precision."""
    precision = precision_of_products(problem, request)
    if stored and request.precision == "auto":
        precision = "double"
    threads = gram_threads(problem.n_samples, precision, problem.machine.cores)
    wanted = request.counted_on(problem.most_components)
    arithmetic = Arithmetic(precision, "lanczos", False, wanted, request.workers, threads, request.output)
    return Crossing(problem, schedule, arithmetic, k, stored, basis)


def _allowed(request: Request, schedule: str) -> int | None:
    """Products that are allowed; None for any number."""
    most = request.max_passes
    return None if most is None else max(0, most - passes_beside(schedule))


def _choices(attempt: Crossing, request: Request, memory: int) -> Iterator[Choice]:
    basis = attempt.basis
    allowed = _allowed(request, attempt.schedule)
    passes = basis.passes if allowed is None else min(basis.passes, allowed)
    if all(attempt.memory_estimate(cutting).total > memory for cutting in smallest_cuttings(attempt)):
        return  # as what fits does not tell as soon
    for cutting in cuttings_that_fit(attempt, memory):
        read, copied, _ = read_by_features(attempt.problem, cutting, passes, alone=request.workers == 1)
        work = read.work(attempt.problem) + _work(attempt, cutting, passes) + Work(reading=copied)
        seconds = work.seconds(attempt.problem.machine.cores, request.workers)
        yield Choice(attempt, cutting, passes, basis.passes - passes, read, copied, work, seconds)


def _merit(choice: Choice) -> tuple[int, float]:
    """Sort key: missing passes, then predicted time; a plan that stores components must be much faster."""
    return choice.late, choice.seconds / (WORTH_CHANGING if choice.cutting.stored else 1)


def _work(attempt: Crossing, cutting: Cutting, passes: int) -> Work:
    """The products of all passes, the steps between, the components, and a copy's writing."""
    problem, precision, (width, columns, *_) = attempt.problem, attempt.arithmetic.precision, attempt.basis
    n, p, k = float(problem.n_samples), float(problem.n_features), attempt.k
    tiles = -(-problem.n_features // cutting.product_features)
    work = products(4 * n * p * width * passes + 2 * n * p * k, precision)
    work += Work(centring=n * p * (passes + 1), adding=float(passes * tiles) * n * width)
    held = min(passes * width, columns)
    work += products((4 * n * held * width + 8 * n * width**2) * passes, "double")
    if precision == "single":
        work += products(2 * p * k**2, "single")  # components with one another
    if cutting.stored:
        work += Work(writing=2 * 8.0 * k * p, reading=8.0 * k * p)  # again, for the signs
    if cutting.schedule == "scratch":
        pieces = -(-problem.n_samples // cutting.block_rows) * -(-problem.n_features // cutting.block_features)
        work += Work(writing=n * p * problem.itemsize, accesses=float(pieces))
    return work


def _planned(request: Request, choice: Choice, memory: int, source: str) -> Plan:
    attempt, cutting = choice.attempt, choice.cutting
    problem, basis = attempt.problem, attempt.basis
    n, p = problem.n_samples, problem.n_features
    products_made = "1 product" if choice.passes == 1 else f"{choice.passes} products"
    made = f"{products_made} with {basis.width} vectors along samples need"
    plan = Plan(
        problem=problem,
        request=request,
        method="randomized",
        why=reason(made, problem, request, basis, choice.late),
        rejected=(),
        precision=attempt.arithmetic.precision,
        solver="lanczos",
        room=attempt.k,
        dense_room=0,
        block_rows=cutting.block_rows,
        product_rows=0,
        spans=spans_of(p, span_count(request.workers), cutting.block_features),
        passes=passes_beside(cutting.schedule) + choice.passes,
        bytes_read=choice.read.bytes + choice.copied,
        bytes_written=n * p * problem.itemsize if cutting.schedule == "scratch" else 0,
        memory_estimate=attempt.memory_estimate(cutting),
        memory=memory,
        budget_source=source,
        cores=problem.machine.cores,
        schedule=cutting.schedule,
        block_features=cutting.block_features,
        product_features=min(cutting.product_features, p),
        stored=cutting.stored,
        width=basis.width,
        columns=basis.columns,
        workers=request.workers,
        work=choice.work,
        seconds=choice.seconds,
    )
    return replace(plan, passes=passes_beside(cutting.schedule)) if plan.reads_once else plan


# -- memory


def along_samples_memory(
    problem: Problem, arithmetic: Arithmetic, cutting: Cutting, width: int, columns: int, k: int
) -> MemoryEstimate:
    """Memory of all phases, for k components, blocks of `width` vectors and a basis of `columns`."""
    n = problem.n_samples
    basis = {f"basis, {format_shape((n, columns))} float64": basis_bytes(n, columns)}
    held = held_items(problem, cutting)
    runtime = {"BLAS and Python": RUNTIME_BYTES + TWICE + pool_bytes(problem, arithmetic, cutting)}
    start = {f"start block, {format_shape((n, width))} float64": START_COPIES * 8 * n * width}
    step = {
        f"product with {width} vectors, being projected, and small matrices": step_bytes(n, width, columns),
        "probes": PROBE_BYTES * n,
    }
    bounds = {
        f"{k} eigenvectors of {n} samples": COMPONENT_COPIES * 8 * n * k + 8 * 5 * columns**2,
        "probes, and bounds of errors": (PROBE_BYTES + BOUND_COPIES * 8 * PROBES_OF_PASS) * n,
    }
    phases = [copy_phase(problem, cutting)] if cutting.schedule == "scratch" else []
    phases += [Phase("start", tuple((basis | start | runtime).items()))]
    phases += [_pass_phase(problem, arithmetic, cutting, width, basis | held)]
    phases += [Phase("step", tuple((basis | held | step | runtime).items()))]
    phases += [Phase("bounds", tuple((basis | held | bounds | runtime).items()))]
    made = components_phase(problem, arithmetic, cutting, k)
    beside = {"products of samples with probes": 4 * 8 * PROBES * n, "a second library of BLAS": TWICE}
    phases += [Phase(made.name, tuple((dict(made.items) | beside).items()))]
    return MemoryEstimate((*phases, *last_phases(problem, arithmetic, cutting, k)))


def _pass_phase(
    problem: Problem, arithmetic: Arithmetic, cutting: Cutting, width: int, beside: dict[str, int]
) -> Phase:
    """Memory while ranges of features are multiplied, also where products in single precision turn out not to do."""
    n, threads = problem.n_samples, thread_count(problem.machine.cores)
    tile = min(cutting.product_features, problem.n_features)
    items = beside | read_items(problem, cutting)
    planned = gram_block_bytes(n, width, tile, itemsize=arithmetic.itemsize, threads=threads)
    fewer, less = in_double(tile, threads)
    doubled = planned if arithmetic.itemsize == 8 else gram_block_bytes(n, width, fewer, itemsize=8, threads=less)
    items |= {name: max(count, doubled[name]) for name, count in planned.items()}
    items["the vectors, as handed to a task"] = 8 * n * width
    items["probes"] = PROBE_BYTES * n
    if arithmetic.workers > 1:
        items["product of another worker, as sent and merged"] = 2 * 8 * n * (width + 2 * (PROBES_OF_PASS + PROBES))
    if problem.weighted:
        items["sample weights"] = 2 * 8 * n
    runtime = RUNTIME_BYTES + TWICE + pool_bytes(problem, arithmetic, cutting)
    items["BLAS and Python"] = runtime + (THREAD_BYTES * threads if threads > 1 else 0)
    return Phase("pass", tuple(items.items()))
