"""`make_plan`: the method that costs least among those that fit the budget, or a refusal that says what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..bill import Bill
from ..errors import BudgetError, RequestError
from ..request import Problem, Request
from ..units import MIB, budget_size, format_bytes, format_seconds
from .budget import budget_of
from .covariance import covariance_plan, least_covariance
from .dual import SCHEDULES, can_copy, dual_plan, least_bill
from .planned import Plan
from .randomized import randomized_plan

EXECUTABLE = frozenset({"covariance", "dual"})  # methods that `fit` can carry out, which "auto" chooses from
WORTH_APPROXIMATING = 20  # times longer that "auto" lets an exact method take than an approximate one
NOT_YET = "not part of this version"


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
        Of the exact method and schedule that takes least time; where none fits, of method 'randomized'.

    Raises
    ------
    RequestError
        If the request cannot be met on a collection of this size by any budget.
    BudgetError
        If nothing fits the budget; the message says which memory would do.
    """
    _check_components(problem, request)
    memory, source = budget_of(request.memory)
    found: dict[str, Plan] = {}
    lost: dict[str, str] = {}
    for name, plan, reason in _candidates(problem, request, memory, source):
        if plan is not None:
            found[name] = plan
        else:
            lost[name] = reason
    if not found:
        raise BudgetError(_refusal(problem, request, memory, source))
    chosen = _cheapest(found)
    slower = {name: _slower(plan, found[chosen]) for name, plan in found.items() if name != chosen}
    why = found[chosen].why
    if found[chosen].method not in EXECUTABLE:
        why += f"; {_not_yet(problem, request)}"
    return replace(found[chosen], why=why, rejected=_rejections({**slower, **lost}, chosen))


def _cheapest(found: dict[str, Plan]) -> str:
    """The exact plan that takes least time, or the approximate one where there is none, or so much is gained by it."""
    exact = [name for name in found if name != "randomized"]
    if not exact:
        return "randomized"
    name = min(exact, key=lambda name: found[name].seconds)
    if {"randomized"} <= found.keys() & EXECUTABLE:
        gain = found[name].seconds / found["randomized"].seconds
        return "randomized" if gain > WORTH_APPROXIMATING else name
    return name


def check_executable(plan: Plan) -> None:
    """Refuse a plan that can be printed and not carried out.

    Raises
    ------
    RequestError
        If its method was asked for.
    BudgetError
        If no other fits; the message says which memory would do.
    """
    if plan.method in EXECUTABLE:
        return
    if plan.request.method == plan.method:
        others = ", ".join(repr(name) for name in sorted(EXECUTABLE))
        raise RequestError(f"method {plan.method!r} is {NOT_YET}; use {others} or 'auto'.")
    raise BudgetError(_refusal(plan.problem, plan.request, plan.memory, plan.budget_source))


def least_exact_memory(problem: Problem, request: Request) -> int:
    """Smallest budget, in whole MiB, with which an exact method that can be carried out fits."""
    return min(least for _, least, _ in _exact_needs(problem, request))


def _check_components(problem: Problem, request: Request) -> None:
    n, p, most = problem.n_samples, problem.n_features, problem.most_components
    if isinstance(request.n_components, int) and request.n_components > most:
        raise RequestError(
            f"n_components={request.n_components} exceeds {most}, the most that {n} "
            f"samples of {p} features have (min(n_samples - 1, n_features)); ask for at most that."
        )
    if request.n_components != "mle":
        return
    if n < p:
        raise RequestError(
            f"n_components='mle' needs at least as many samples as features, and there are {n} samples "
            f"of {p} features; use 'elbow', 'mp' or a fraction such as 0.95."
        )
    if request.method == "randomized":
        raise RequestError(
            "n_components='mle' needs the whole spectrum, which method 'randomized' does not find; use method "
            "'covariance', or 'elbow', 'mp' or a fraction such as 0.95."
        )


# -- who comes into question


def _candidates(problem: Problem, request: Request, memory: int, source: str) -> Iterator[tuple[str, Plan | None, str]]:
    """Every method and schedule: its name, and its plan if it fits, else the reason why not."""
    if request.method in ("auto", "covariance"):
        plan = covariance_plan(problem, request, memory, source)
        fits = plan.bill.total <= memory
        yield "covariance", plan if fits else None, "" if fits else _needs(plan.bill)
    if request.method == "dual" or (request.method == "auto" and not _dual_reason(problem)):
        for schedule in SCHEDULES:
            yield _dual_candidate(problem, request, schedule, memory, source)
    elif request.method == "auto":
        yield "dual", None, _dual_reason(problem)
    if request.method == "randomized" or (request.method == "auto" and request.n_components != "mle"):
        plan = randomized_plan(problem, request, memory, source)
        fits = plan.bill.total <= memory
        yield "randomized", plan if fits else None, "" if fits else _needs(plan.bill)


def _dual_reason(problem: Problem) -> str:
    """Why "auto" does not look at method 'dual', if it does not."""
    n, p = problem.n_samples, problem.n_features
    if n >= p:
        return f"{n} samples are no fewer than {p} features, so n x n is no smaller a matrix"
    return "" if "dual" in EXECUTABLE else NOT_YET


def _dual_candidate(
    problem: Problem, request: Request, schedule: str, memory: int, source: str
) -> tuple[str, Plan | None, str]:
    name = f"dual ({schedule})"
    if schedule == "scratch" and not can_copy(request):
        if request.workers > 1:
            return name, None, "workers are not known to share a disk for a copy"
        return name, None, "there is no place for a copy; name a folder by --scratch (scratch=), or an output"
    plan = dual_plan(problem, request, schedule, memory, source)
    return name, plan, "" if plan else _needs(least_bill(problem, request, schedule))


# -- why not the others, in words


def _needs(bill: Bill) -> str:
    name, share = max(bill.largest.items, key=lambda item: item[1])
    return f"needs {format_bytes(bill.total)}, of which the {name} {format_bytes(share)}"


def _not_yet(problem: Problem, request: Request) -> str:
    return f"{NOT_YET}, and exact methods need at least {budget_size(least_exact_memory(problem, request))}"


def _slower(plan: Plan, chosen: Plan) -> str:
    if plan.method == "randomized" and chosen.method != "randomized":
        return f"approximate and {plan.passes:g} passes, where {chosen.passes:g} {_passes(chosen)} exact"
    written = f" and writing {format_bytes(plan.bytes_written)}" if plan.bytes_written else ""
    return f"would take about {format_seconds(plan.seconds)}, reading {format_bytes(plan.bytes_read)}{written}"


def _passes(plan: Plan) -> str:
    return "pass is" if plan.passes == 1 else "passes are"


def _rejections(reasons: dict[str, str], chosen: str) -> tuple[tuple[str, str], ...]:
    """In the order of the methods."""
    schedules = [f"dual ({schedule})" for schedule in SCHEDULES]
    order = ["covariance", "dual", *schedules, "randomized"]
    return tuple((name, reasons[name]) for name in order if name in reasons and name != chosen)


# -- refusals


def _exact_needs(problem: Problem, request: Request) -> Iterator[tuple[str, int, Bill]]:
    """Exact methods that may be used: name, smallest budget in bytes, and the bill then."""
    if request.method in ("auto", "covariance", "randomized"):
        least = least_covariance(problem, request)
        yield "covariance", least, covariance_plan(problem, request, least, "").bill
    if request.method == "dual" or (request.method == "auto" and not _dual_reason(problem)):
        schedules = [name for name in SCHEDULES if name != "scratch" or can_copy(request)]
        bills = [least_bill(problem, request, schedule) for schedule in schedules]
        bill = min(bills, key=lambda bill: bill.total)
        yield "dual", -(-bill.total // MIB) * MIB, bill


def _refusal(problem: Problem, request: Request, memory: int, source: str) -> str:
    """Name what does not fit, of the method that needs least, and the budget it would do with."""
    method, least, bill = min(_exact_needs(problem, request), key=lambda need: need[1])
    if method == "covariance":
        bill = covariance_plan(problem, request, memory, source).bill
    name, share = max(bill.largest.items, key=lambda item: item[1])
    smaller = " or make p smaller (resize, bin, crop or mask)" if problem.n_features > 64 else ""
    return (
        f"method {method!r} needs {format_bytes(bill.total)} and memory allows {format_bytes(memory)} "
        f"({source}); the largest share is the {name} ({format_bytes(share)}). "
        f"Set memory to at least {budget_size(least)}{smaller}{_with_output(problem, request, memory, least)}."
    )


def _with_output(problem: Problem, request: Request, memory: int, least: int) -> str:
    """The remedy of writing components as they are made, where that needs less memory."""
    if request.output:
        return ""
    written = least_exact_memory(problem, replace(request, output=True))
    if written <= memory:
        return "; or give an output (-o, output=...) to write components to: this memory is then enough"
    if written < least:
        return f", or to {budget_size(written)} with an output (-o, output=...) to write components to"
    return ""
