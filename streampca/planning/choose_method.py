"""`make_plan`: the method that costs least among those that fit the budget, or a refusal that says what would fit.

Exact methods go before approximate ones, which are taken where none of them fits, or few components are wanted and
it is so much faster; or wherever it is faster, if a tolerance is asked for or samples are sparse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Protocol, cast

from ..errors import BudgetError, RequestError
from ..units import MIB, budget_size, counted_passes, format_bytes
from .candidate_sizes import Schedule, refusal, search, smallest_sizes
from .device import check_device, device_refusal
from .landmarks import LandmarkSizes
from .memory import MemoryEstimate, Phase
from .plan import Candidate, Plan
from .rates import products
from .registry import METHODS, OF_KERNEL, OF_PAIRS
from .request import Problem, Request
from .sparse import sparse_groups, suits_sparse

WORTH_APPROXIMATING = 20  # times longer that "auto" lets an exact method take than an approximate one
QUICK = 1.0  # predicted seconds of an exact method beside which no approximate one is priced, which takes 20 ms ...
QUICK_BESIDE = 0.1  # ... where a tolerance is asked for, or samples are sparse ...
INSTANT = 1e-3  # ... and no other at all, as pricing one takes longer
FILLS_IN = "em"  # the method for missing values, and the rule that asks for it
LONG = 10.0  # predicted seconds from which a plan says that a little more memory would make it much faster ...
MUCH_FASTER, LITTLE_MORE = 10, 2  # ... so many times, with at most so many times the budget
FEW_COLUMNS = 4  # times that the columns of a basis go into the smaller side, or an exact method costs less


class Method(Protocol):
    """Contents of a module that plans a method."""

    KINDS: tuple[str, ...]  # kinds of model that the method makes
    APPROXIMATE: bool  # True where components approach the exact ones pass by pass, and only the leading ones are found

    def schedules(self, problem: Problem, request: Request) -> Iterable[Schedule]:
        """Return the candidates of each schedule, or why "auto" leaves the method or the schedule out."""


@cache
def _method(name: str) -> Method:
    return cast("Method", import_module(METHODS[name], __package__))


def make_plan(problem: Problem, request: Request) -> Plan:
    """Decide how a request is carried out on a problem.

    Parameters
    ----------
    problem : Problem
        The collection's size and storage.
    request : Request
        What was asked.

    Returns
    -------
    Plan
        Of the exact method and schedule that takes least time; of an approximate one where none fits, or few
        components are wanted and it is so much faster.

    Raises
    ------
    RequestError
        If the request cannot be met on a collection of this size by any budget.
    BudgetError
        If nothing fits the budget; the message says which memory would do.
    """
    if request.method != "auto":
        _check_method(request)
    _check_components(problem, request)
    if request.device:
        check_device(problem)
    plan = _best(problem, request)
    return plan if plan.seconds < LONG else replace(plan, faster=_faster(problem, request, plan))


def _best(problem: Problem, request: Request) -> Plan:
    """Return the plan of a request that can be met; see `make_plan`."""
    candidates = list(_candidates(problem, request))
    plans = [candidate.plan for candidate in candidates if candidate.plan is not None]
    if not plans or problem.learning_bytes > problem.machine.budget(request.memory)[0]:
        raise _refusal(problem, request)
    best = plans[0] if len(plans) == 1 else _cheapest(plans)
    others = tuple(
        candidate if candidate.plan is None else _described(candidate.name, candidate.plan, best)
        for candidate in candidates
        if candidate.plan is not best
    )
    following = products(problem.n_samples * problem.following_flops, "double")
    estimate = best.memory_estimate.plus_preparation(problem)
    return replace(best, memory_estimate=estimate, work=best.work + following, others=others)


def _faster(problem: Problem, request: Request, plan: Plan) -> Plan | None:
    """Return the plan by the least of some larger budgets with which a long one would take a tenth of its time."""
    budget = problem.machine.memory // 2 if request.memory is None else request.memory
    most = min(LITTLE_MORE * budget, problem.machine.memory or LITTLE_MORE * budget)
    if most <= budget:
        return None
    faster = None
    low, high = budget, -(-most // MIB) * MIB  # the first is not enough
    while faster is None or high - low > max(MIB, budget // 16):
        memory = high if faster is None else (low + high) // 2 // MIB * MIB
        other = _best(problem, replace(request, memory=memory))
        if MUCH_FASTER * other.seconds <= plan.seconds:
            faster, high = other, memory
        elif faster is None:
            return None
        else:
            low = memory
    return faster


def _cheapest(plans: list[Plan]) -> Plan:
    """The exact plan that takes least time, or an approximate one where there is none, or so much is gained by it.

    How much is known only where the number of components is, and is small.
    """
    exact = min((plan for plan in plans if not _approximates(plan)), key=lambda plan: plan.seconds, default=None)
    approximate = min((plan for plan in plans if _approximates(plan)), key=lambda plan: plan.seconds, default=None)
    if exact is None or approximate is None:
        return exact or cast("Plan", approximate)
    if (exact.request.names_accuracy or exact.sparse) and not exact.request.is_open:
        return min(exact, approximate, key=lambda plan: plan.seconds)
    few = not exact.request.is_open and FEW_COLUMNS * approximate.columns <= exact.problem.most_components
    return approximate if few and exact.seconds > WORTH_APPROXIMATING * approximate.seconds else exact


def _approximates(plan: Plan) -> bool:
    return _method(plan.method).APPROXIMATE


def _described(name: str, plan: Plan, chosen: Plan) -> Candidate:
    """Return a plan that was not taken; instead of one that only approximates what the chosen one finds, the reason."""
    if _approximates(chosen) or not _approximates(plan):
        return Candidate(name, plan)
    passes, exact = counted_passes(plan.passes), counted_passes(chosen.passes)
    return Candidate(name, None, f"approximate, in {passes}; {chosen.method} is exact, in {exact}")


def least_memory(problem: Problem, request: Request) -> int:
    """Smallest budget, in whole MiB, with which a method that may be used fits."""
    return _smallest(problem, request)[1]


def _check_method(request: Request) -> None:
    """Refuse a method that makes models of another kind than the one asked for, or of other data."""
    kinds, makers = _method(request.method).KINDS, _makers(request)
    if request.method in makers:
        return
    if request.kind in kinds:
        accepted = "a matrix of pairs of samples" if request.method == OF_PAIRS else "samples of features"
        raise RequestError(
            f"method {request.method!r} takes {accepted}, which {request.input_option} is not; use method 'auto' or "
            f"{' or '.join(map(repr, makers))}."
        )
    raise RequestError(
        f"method {request.method!r} makes a model of kind {' or '.join(map(repr, kinds))}, and kind is "
        f"{request.kind!r}; use method 'auto' or {' or '.join(map(repr, makers))}, or another kind, such as "
        f"{kinds[0]!r}."
    )


def _makers(request: Request) -> tuple[str, ...]:
    """Return the methods that make models of a kind, from samples or from a matrix of pairs of them."""
    names = (name for name in METHODS if (name == OF_PAIRS) == (request.metric != "euclidean"))
    return tuple(name for name in names if request.kind in _method(name).KINDS)


def _check_components(problem: Problem, request: Request) -> None:
    n, p, most = problem.n_samples, problem.n_features, problem.most_components
    if isinstance(request.n_components, int) and request.n_components > most:
        of_target = f" and a target of rank {problem.target_rank}" if problem.target_rank else ""
        rank = ", rank of the target" if problem.target_rank else ""
        least = "n_samples - 1" if problem.kernel_rank else f"min(n_samples - 1, n_features{rank})"
        raise RequestError(
            f"n_components={request.n_components} exceeds {most}, the most that {n} "
            f"samples of {p} features{of_target} have ({least}); ask for at most that."
        )
    approximates = request.method != "auto" and _method(request.method).APPROXIMATE
    if request.n_components is None and approximates:
        raise RequestError(
            f"-k all (n_components=None) asks for all components, and method {request.method!r} finds the leading "
            f"ones; use method 'auto', or a number such as {min(50, most)} or a fraction such as 0.95."
        )
    if problem.target_width and isinstance(request.n_components, str):
        raise RequestError(
            f"n_components={request.n_components!r} counts principal components of all features, and kind "
            f"{request.kind!r} finds other axes; ask for a number, a fraction such as 0.95, or all."
        )
    if request.n_components != "mle":
        return
    if (n if problem.total_weight is None else problem.total_weight) < p:
        weighing = "" if problem.total_weight is None else f", weighing {problem.total_weight:g} together,"
        raise RequestError(
            f"n_components='mle' needs at least as many samples as features, and there are {n} samples{weighing} "
            f"of {p} features; use 'elbow', 'mp' or a fraction such as 0.95."
        )
    if approximates:
        raise RequestError(
            f"n_components='mle' needs the whole spectrum, which method {request.method!r} does not find; use method "
            "'covariance', or 'elbow', 'mp' or a fraction such as 0.95."
        )


# -- which methods are tried


def _methods(problem: Problem, request: Request) -> tuple[str, ...]:
    """Return the methods to try; no approximate ones where every component, or every variance, is wanted."""
    if request.method != "auto":
        return (request.method,)
    if request.missing == FILLS_IN and problem.kind == "f":  # among whole numbers nothing is missing
        return (FILLS_IN,)
    all_are_wanted = request.n_components in ("mle", None)
    if problem.kernel_rank:
        return (OF_KERNEL,)
    names = [name for name in _makers(request) if name not in (FILLS_IN, OF_KERNEL)]
    return tuple(name for name in names if not (all_are_wanted and _method(name).APPROXIMATE))


def _candidates(problem: Problem, request: Request) -> Iterator[Candidate]:
    """Yield the candidates of every method, exact ones first; others are priced where they may be worth taking."""
    names = sorted(_methods(problem, request), key=lambda name: _method(name).APPROXIMATE)
    quick = QUICK_BESIDE if request.names_accuracy or suits_sparse(problem, request) else QUICK
    # A preparation holds what it has learned throughout, and what follows the fit comes beside its passes.
    memory = max(1, problem.machine.budget(request.memory)[0] - problem.held_bytes - problem.bytes_after)
    seconds = math.inf  # of the fastest plan so far
    for name in names:
        if seconds < quick and _method(name).APPROXIMATE:
            yield Candidate(name, None, f"approximate, and an exact method takes less than {quick:g} s")
        elif seconds < INSTANT:
            yield Candidate(name, None, "not considered, as another exact method takes less than a millisecond")
        else:
            for schedule in _schedules(name, problem, request, memory):
                sizes = None if schedule.reason_against else search(schedule.groups, memory)
                if sizes is None:
                    yield Candidate(schedule.name, None, schedule.reason_against or _lacking(schedule, memory))
                else:
                    plan = sizes.plan()
                    seconds = min(seconds, plan.seconds)
                    yield Candidate(schedule.name, plan)


def _lacking(schedule: Schedule, memory: int) -> str:
    """Return which memory a schedule needs that neither the budget nor a device has."""
    sizes = smallest_sizes(schedule.groups)
    phase = sizes.on_device
    if phase is None or not sizes.fits_budget(memory):
        return str(sizes.memory_estimate)
    return f"on the device it {MemoryEstimate((phase,))}"


def _schedules(name: str, problem: Problem, request: Request, memory: int) -> Iterable[Schedule]:
    """Return the schedules of a method: for sparse samples, if it fits, the only one."""
    if suits_sparse(problem, request):
        groups = sparse_groups(name, problem, request)
        if search(groups, memory) is not None:
            return [Schedule(name, groups)]
    return _method(name).schedules(problem, request)


# -- refusals


def _smallest(problem: Problem, request: Request) -> tuple[str, int, MemoryEstimate]:
    """Return the method that needs least memory, the smallest budget that would do, and the method's own estimate."""
    needs = []
    for name in _methods(problem, request):
        for schedule in _method(name).schedules(problem, request):
            if schedule.groups:
                sizes = smallest_sizes(schedule.groups)
                least = max(sizes.least_budget + problem.held_bytes + problem.bytes_after, problem.learning_bytes)
                needs.append((name, -(-least // MIB) * MIB + problem.machine.held, sizes.memory_estimate))
    return min(needs, key=lambda need: need[1])


def _refusal(problem: Problem, request: Request) -> BudgetError:
    """Name what does not fit, of the method that needs least, and the budget it would do with."""
    budget = problem.machine.budget(request.memory)
    if (refused := _refusal_of_device(problem, request, budget[0])) is not None:
        return refused
    method, least, estimate = _smallest(problem, request)
    estimate = estimate.plus_preparation(problem)
    shrinks = problem.n_features > 64 and method not in (OF_PAIRS, OF_KERNEL)
    remedies = " or make the samples smaller (resize, bin, crop or mask)" if shrinks else ""
    if method == OF_KERNEL and problem.n_samples > (few := 1000):
        weights = 8 * few * (2 * few + 2 * problem.n_features)
        sizes = LandmarkSizes(problem=problem, landmarks=few, rows=few, weights=weights)
        if sizes.fits(budget[0] // 2):  # the passes of the fit need as much again at most
            remedies += f", or compare all samples with some of them, such as --landmarks {few} (landmarks={few})"
    if method == OF_PAIRS and not isinstance(request.n_components, int):
        remedies += ", or ask for a number of dimensions, such as -k 10 (n_components=10): the matrix is then not held"
    remedies += _with_output(problem, request, budget[0], least)
    return refusal(f"method {method!r}", least, estimate, budget, remedies)


def _refusal_of_device(problem: Problem, request: Request, memory: int) -> BudgetError | None:
    """Name what does not fit on a device, of the method that needs least there, if the budget would do."""
    free = problem.machine.device_memory
    if free is None:
        return None
    needs: list[tuple[Phase, str]] = []
    for name in _methods(problem, request):
        for schedule in _method(name).schedules(problem, request):
            least = [sizes for group in schedule.groups for family in group for sizes in family.smallest()]
            needs += [(sizes.on_device, name) for sizes in least if sizes.on_device and sizes.fits_budget(memory)]
    phase, method = min(needs, key=lambda need: need[0].total, default=(None, ""))
    if phase is None or phase.total <= free:
        return None
    other = ""
    with suppress(BudgetError):
        if request.method != "auto":
            plan = _best(problem, request.asking(method="auto"))
            other = f"Use method {plan.method!r}, which needs {format_bytes(plan.device_bytes)} there"
    return device_refusal(f"method {method!r}", request.device, format_bytes(phase.total), free, other)


def _with_output(problem: Problem, request: Request, memory: int, least: int) -> str:
    """Return the remedy of writing components as they are made, where that needs less memory."""
    if request.output:
        return ""
    written = least_memory(problem, replace(request, output=True))
    if written <= memory:
        return "; or give an output (-o, output=...) to write components to: this memory is then enough"
    if written < least:
        return f", or to {budget_size(written)} with an output (-o, output=...) to write components to"
    return ""
