"""`make_plan`: the method that costs least among those that fit the budget, or a refusal that says what would fit.

Exact methods go before the approximate one, which is taken where none of them fits, or few components are wanted and
it is so much faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Protocol, cast

from ..errors import BudgetError, RequestError
from ..units import budget_size, format_bytes
from .memory import MemoryEstimate
from .plan import Candidate, Plan, Slower
from .randomized_features import is_open
from .registry import METHODS
from .request import Problem, Request

WORTH_APPROXIMATING = 20  # times longer that "auto" lets an exact method take than an approximate one
FEW_COLUMNS = 4  # times that the columns of a basis go into the smaller side, or an exact method costs less


class Method(Protocol):
    """Functions of a module that plans a method."""

    def reason_against(self, problem: Problem) -> str:
        """Return why "auto" leaves the method out; empty if it does not."""

    def candidates(self, problem: Problem, request: Request, memory: int, source: str) -> Iterable[Candidate]:
        """Return the fastest plan of each schedule, or why there is none within the budget."""

    def least(self, problem: Problem, request: Request) -> tuple[int, MemoryEstimate]:
        """Return the smallest budget that would do, in bytes, and a memory estimate to quote."""


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
        Of the exact method and schedule that takes least time; of method 'randomized' where none fits, or few
        components are wanted and it is so much faster.

    Raises
    ------
    RequestError
        If the request cannot be met on a collection of this size by any budget.
    BudgetError
        If nothing fits the budget; the message says which memory would do.
    """
    _check_components(problem, request)
    memory, source = problem.machine.budget(request.memory)
    candidates = [
        candidate for name in _methods(request) for candidate in _candidates(name, problem, request, memory, source)
    ]
    plans = {name: plan for name, plan, _ in candidates if plan is not None}
    if not plans:
        raise BudgetError(_refusal(problem, request, memory, source))
    chosen = _cheapest(plans)
    plan = plans.pop(chosen)
    slower = tuple(
        Slower(name, other.work, _reads(other)) for name, other in plans.items() if not _is_worse(other, plan)
    )
    reasons = {name: reason for name, _, reason in candidates if name != chosen}
    reasons |= {name: _worse(other, plan) for name, other in plans.items()}
    reasons |= {each.name: each.reason(plan.cores, plan.workers) for each in slower}
    return replace(plan, rejected=tuple(reasons.items()), slower=slower)


def _cheapest(found: dict[str, Plan]) -> str:
    """The exact plan that takes least time, or the approximate one where there is none, or so much is gained by it.

    How much is known only where the number of components is, and is small.
    """
    exact = [name for name in found if name != "randomized"]
    if not exact:
        return "randomized"
    name = min(exact, key=lambda name: found[name].seconds)
    approximate = found.get("randomized")
    if approximate is None or not _has_few_columns(approximate):
        return name
    return "randomized" if found[name].seconds > WORTH_APPROXIMATING * approximate.seconds else name


def _has_few_columns(plan: Plan) -> bool:
    """Tell whether the basis is so small that an approximate method can cost less than an exact one."""
    known = not is_open(plan.problem, plan.request)
    return known and FEW_COLUMNS * plan.columns <= plan.problem.most_components


def least_memory(problem: Problem, request: Request) -> int:
    """Smallest budget, in whole MiB, with which a method that may be used fits."""
    return min(least for _, least, _ in _least_needs(problem, request))


def _check_components(problem: Problem, request: Request) -> None:
    n, p, most = problem.n_samples, problem.n_features, problem.most_components
    if isinstance(request.n_components, int) and request.n_components > most:
        raise RequestError(
            f"n_components={request.n_components} exceeds {most}, the most that {n} "
            f"samples of {p} features have (min(n_samples - 1, n_features)); ask for at most that."
        )
    if request.n_components is None and request.method == "randomized":
        raise RequestError(
            "n_components=None (-k all) asks for all components, and method 'randomized' finds the leading ones; use "
            f"method 'auto', or a number such as {min(50, most)} or a fraction such as 0.95."
        )
    if request.n_components != "mle":
        return
    if (n if problem.total_weight is None else problem.total_weight) < p:
        weighing = "" if problem.total_weight is None else f", weighing {problem.total_weight:g} together,"
        raise RequestError(
            f"n_components='mle' needs at least as many samples as features, and there are {n} samples{weighing} "
            f"of {p} features; use 'elbow', 'mp' or a fraction such as 0.95."
        )
    if request.method == "randomized":
        raise RequestError(
            "n_components='mle' needs the whole spectrum, which method 'randomized' does not find; use method "
            "'covariance', or 'elbow', 'mp' or a fraction such as 0.95."
        )


# -- which methods are tried


def _methods(request: Request) -> tuple[str, ...]:
    """Methods to try; an approximate one not where every component, or every variance, is wanted."""
    if request.method != "auto":
        return (request.method,)
    return tuple(name for name in METHODS if name != "randomized" or request.n_components not in ("mle", None))


def _candidates(name: str, problem: Problem, request: Request, memory: int, source: str) -> Iterable[Candidate]:
    against = _method(name).reason_against(problem) if request.method == "auto" else ""
    return [Candidate(name, None, against)] if against else _method(name).candidates(problem, request, memory, source)


# -- why not the others, in words


def _is_worse(plan: Plan, chosen: Plan) -> bool:
    """Tell whether a plan only approximates what the chosen one finds exactly."""
    return plan.method == "randomized" and chosen.method != "randomized"


def _worse(plan: Plan, chosen: Plan) -> str:
    return f"approximate and {plan.passes:g} passes, where {chosen.passes:g} {_passes(chosen)} exact"


def _reads(plan: Plan) -> str:
    written = f" and writing {format_bytes(plan.bytes_written)}" if plan.bytes_written else ""
    return f"reading {format_bytes(plan.bytes_read)}{written}"


def _passes(plan: Plan) -> str:
    return "pass is" if plan.passes == 1 else "passes are"


# -- refusals


def _least_needs(problem: Problem, request: Request) -> Iterator[tuple[str, int, MemoryEstimate]]:
    """Methods to try: name, smallest budget in bytes, and a memory estimate to quote."""
    for name in _methods(request):
        if request.method != "auto" or not _method(name).reason_against(problem):
            yield name, *_method(name).least(problem, request)


def _refusal(problem: Problem, request: Request, memory: int, source: str) -> str:
    """Name what does not fit, of the method that needs least, and the budget it would do with."""
    method, least, estimate = min(_least_needs(problem, request), key=lambda need: need[1])
    smaller = " or make p smaller (resize, bin, crop or mask)" if problem.n_features > 64 else ""
    return (
        f"method {method!r} needs {format_bytes(estimate.total)} and memory allows {format_bytes(memory)} "
        f"({source}); the largest share is the {estimate.largest.largest_share}. "
        f"Set memory to at least {budget_size(least)}{smaller}{_with_output(problem, request, memory, least)}."
    )


def _with_output(problem: Problem, request: Request, memory: int, least: int) -> str:
    """The remedy of writing components as they are made, where that needs less memory."""
    if request.output:
        return ""
    written = least_memory(problem, replace(request, output=True))
    if written <= memory:
        return "; or give an output (-o, output=...) to write components to: this memory is then enough"
    if written < least:
        return f", or to {budget_size(written)} with an output (-o, output=...) to write components to"
    return ""
