"""`make_plan`: the method that costs least among those that fit the budget, or a refusal that says what would fit.

Exact methods go before the approximate one, which is taken where none of them fits, or few components are wanted and
it is so much faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..errors import BudgetError, RequestError
from ..units import MIB, budget_size, format_bytes
from .covariance import covariance_plan, least_covariance
from .dual import SCHEDULES, can_copy, dual_plan, least_dual
from .memory import MemoryEstimate
from .plan import Plan, Slower
from .randomized import approximate_plan, least_approximate
from .randomized_features import is_open
from .request import Problem, Request

WORTH_APPROXIMATING = 20  # times longer that "auto" lets an exact method take than an approximate one
FEW_COLUMNS = 4  # times that the columns of a basis go into the smaller side, or an exact method costs less


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
    plan = found.pop(chosen)
    slower = tuple(
        Slower(name, other.work, _reads(other)) for name, other in found.items() if not _is_worse(other, plan)
    )
    reasons = {each.name: each.reason(plan.cores, plan.workers) for each in slower}
    worse = {name: _worse(other, plan) for name, other in found.items() if _is_worse(other, plan)}
    return replace(plan, rejected=_rejections({**reasons, **worse, **lost}, chosen), slower=slower)


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
    """Whether so few columns are enough that an exact method need not cost less after all."""
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


# -- who comes into question


def _candidates(problem: Problem, request: Request, memory: int, source: str) -> Iterator[tuple[str, Plan | None, str]]:
    """Every method and schedule: its name, and its plan if it fits, else the reason why not."""
    if request.method in ("auto", "covariance"):
        plan = covariance_plan(problem, request, memory, source)
        fits = plan.memory_estimate.total <= memory
        yield "covariance", plan if fits else None, "" if fits else _needs(plan.memory_estimate)
    if request.method == "dual" or (request.method == "auto" and not _dual_reason(problem)):
        for schedule in SCHEDULES:
            yield _dual_candidate(problem, request, schedule, memory, source)
    elif request.method == "auto":
        yield "dual", None, _dual_reason(problem)
    if _approximates(request):
        approximate = approximate_plan(problem, request, memory, source)
        yield "randomized", approximate, "" if approximate else _needs(least_approximate(problem, request))


def _dual_reason(problem: Problem) -> str:
    """Why "auto" does not look at method 'dual', if it does not."""
    n, p = problem.n_samples, problem.n_features
    return f"{n} samples are no fewer than {p} features, so n x n is no smaller a matrix" if n >= p else ""


def _approximates(request: Request) -> bool:
    """Whether method 'randomized' comes into question: not where every component, or every variance, is wanted."""
    return request.method == "randomized" or (request.method == "auto" and request.n_components not in ("mle", None))


def _dual_candidate(
    problem: Problem, request: Request, schedule: str, memory: int, source: str
) -> tuple[str, Plan | None, str]:
    name = f"dual ({schedule})"
    if schedule == "scratch" and not can_copy(request):
        if request.workers > 1:
            return name, None, "workers are not known to share a disk for a copy"
        return name, None, "there is no place for a copy; name a folder by --scratch (scratch=), or an output"
    plan = dual_plan(problem, request, schedule, memory, source)
    return name, plan, "" if plan else _needs(least_dual(problem, request, schedule))


# -- why not the others, in words


def _needs(estimate: MemoryEstimate) -> str:
    name, share = max(estimate.largest.items, key=lambda item: item[1])
    return f"needs {format_bytes(estimate.total)}, of which the {name} {format_bytes(share)}"


def _is_worse(plan: Plan, chosen: Plan) -> bool:
    """Whether a plan is rejected for more than its time: it approximates what the chosen one finds exactly."""
    return plan.method == "randomized" and chosen.method != "randomized"


def _worse(plan: Plan, chosen: Plan) -> str:
    return f"approximate and {plan.passes:g} passes, where {chosen.passes:g} {_passes(chosen)} exact"


def _reads(plan: Plan) -> str:
    written = f" and writing {format_bytes(plan.bytes_written)}" if plan.bytes_written else ""
    return f"reading {format_bytes(plan.bytes_read)}{written}"


def _passes(plan: Plan) -> str:
    return "pass is" if plan.passes == 1 else "passes are"


def _rejections(reasons: dict[str, str], chosen: str) -> tuple[tuple[str, str], ...]:
    """In the order of the methods."""
    schedules = [f"dual ({schedule})" for schedule in SCHEDULES]
    order = ["covariance", "dual", *schedules, "randomized"]
    return tuple((name, reasons[name]) for name in order if name in reasons and name != chosen)


# -- refusals


def _least_needs(problem: Problem, request: Request) -> Iterator[tuple[str, int, MemoryEstimate]]:
    """Methods that may be used: name, smallest budget in bytes, and the memory estimate then."""
    if request.method in ("auto", "covariance"):
        least = least_covariance(problem, request)
        yield "covariance", least, covariance_plan(problem, request, least, "").memory_estimate
    if request.method == "dual" or (request.method == "auto" and not _dual_reason(problem)):
        schedules = [name for name in SCHEDULES if name != "scratch" or can_copy(request)]
        estimates = [least_dual(problem, request, schedule) for schedule in schedules]
        estimate = min(estimates, key=lambda estimate: estimate.total)
        yield "dual", -(-estimate.total // MIB) * MIB, estimate
    if _approximates(request):
        estimate = least_approximate(problem, request)
        yield "randomized", -(-estimate.total // MIB) * MIB, estimate


def _refusal(problem: Problem, request: Request, memory: int, source: str) -> str:
    """Name what does not fit, of the method that needs least, and the budget it would do with."""
    method, least, estimate = min(_least_needs(problem, request), key=lambda need: need[1])
    if method == "covariance":
        estimate = covariance_plan(problem, request, memory, source).memory_estimate
    name, share = max(estimate.largest.items, key=lambda item: item[1])
    smaller = " or make p smaller (resize, bin, crop or mask)" if problem.n_features > 64 else ""
    return (
        f"method {method!r} needs {format_bytes(estimate.total)} and memory allows {format_bytes(memory)} "
        f"({source}); the largest share is the {name} ({format_bytes(share)}). "
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
