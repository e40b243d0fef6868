"""Plans of method 'dual': n x n instead of p x p, for images with more pixels than there are images.

Every two samples are multiplied with one another, which takes ranges of features with all samples in memory. *Sweep*:
ranges of the collection; storage cut by samples (a file an image) is decoded again for every range. *Scratch*: one copy
in ranges of features, then sweeps of that.

Of the sizes that fit (`dual_sizes`) the fastest are taken, so for a given number of components more memory makes the
fastest plan no slower. A plan that keeps components in memory, or has room for a dense solve, is preferred to a faster
one if it takes at most a fourth longer. Where the number of components is open, memory makes room for more of them
first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..units import format_shape
from .blocks import spans_of
from .budget import most_that_fits, precision_of, solver_of, span_count
from .dual_candidates import Attempt, cuttings_that_fit, smallest_cuttings
from .dual_cost import Cost, cost_of
from .dual_memory import Arithmetic, Cutting
from .memory import MemoryEstimate
from .plan import Plan
from .request import Problem, Request
from .sizes import gram_threads

SCHEDULES = ("sweep", "scratch")
OPEN_SHARES = (4, 16, 64)  # components counted on where k is open: a fourth of n, or what there is memory for
WORTH_CHANGING = 0.8  # a plan to be preferred gives way to one that takes less than so much of its time


class Choice(NamedTuple):
    """A cutting with what it takes."""

    attempt: Attempt
    cutting: Cutting
    cost: Cost
    seconds: float


def dual_plan(problem: Problem, request: Request, schedule: str, memory: int, source: str) -> Plan | None:
    """The fastest plan of a schedule that fits the budget; None where none does."""
    for k in _components_counted_on(problem, request):
        attempts = [
            _attempt(problem, request, schedule, k, stored, dense)
            for dense in _rooms_to_solve(problem, request)
            for stored in _places(request)
        ]
        found = [choice for choice in (_fastest(attempt, memory) for attempt in attempts) if choice is not None]
        if found:
            return _planned(request, _preferred(found), memory, source)
    return None


def can_copy(request: Request) -> bool:
    """Whether there is a place for a scratch copy: none that the workers of a cluster are known to share."""
    return (request.scratch is not None or request.output) and request.workers == 1


def least_dual(problem: Problem, request: Request, schedule: str) -> MemoryEstimate:
    """The least memory that a schedule can do with, item by item."""
    k = _components_counted_on(problem, request)[-1]
    attempts = [_attempt(problem, request, schedule, k, stored, dense=False) for stored in _places(request)]
    estimates = [attempt.memory_estimate(cutting) for attempt in attempts for cutting in smallest_cuttings(attempt)]
    return min(estimates, key=lambda estimate: estimate.total)


def _components_counted_on(problem: Problem, request: Request) -> list[int]:
    """Components to make room for: those asked for, or where k is open several counts, to be tried in turn."""
    wanted = request.counted_on(problem.most_components)
    if not isinstance(wanted, float):
        return [wanted or problem.most_components]
    shares = (1, *OPEN_SHARES) if request.output else OPEN_SHARES  # with an output none need be left out
    return [max(1, problem.most_components // share) for share in shares] + [1]


def _places(request: Request) -> tuple[bool, ...]:
    """Whether components are stored as they are made: never without an output."""
    return (False, True) if request.output else (False,)


def _rooms_to_solve(problem: Problem, request: Request) -> tuple[bool, ...]:
    """Whether there is room for a dense solve: always for a dense solver, and better so for one that may give up."""
    solver = solver_of(problem.n_samples, request, problem.most_components)
    return (True,) if solver == "dense" else (True, False)


def _attempt(problem: Problem, request: Request, schedule: str, k: int, stored: bool, dense: bool) -> Attempt:
    """What is stored as it is made cannot be made again in double precision where single turns out not to do."""
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
        component_features=cutting.component_features,
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
