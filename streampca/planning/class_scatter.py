"""Plans of method 'class-scatter': one pass for p x p and the means of classes, for Fisher's discriminants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..units import format_shape
from .budget import smallest
from .covariance import covariance_plan
from .memory import COMPONENT_COPIES, MemoryEstimate, Phase, runtime
from .plan import Candidate, Plan
from .rates import Work, products
from .request import Problem, Request
from .sizes import MOST_THREADS

KINDS = ("fisher-discriminant", "sliced-inverse-regression")
APPROXIMATE = False


def reason_against(problem: Problem) -> str:
    """Return why "auto" leaves the method out; never."""
    return ""


def candidates(problem: Problem, request: Request) -> Iterator[Candidate]:
    """Yield the plan if it fits."""
    yield Candidate.of(class_scatter_plan(problem, request))


def least(problem: Problem, request: Request) -> tuple[int, MemoryEstimate]:
    """Return the smallest budget that would do, and the estimate for the budget that there is."""
    budget = smallest(lambda memory: class_scatter_plan(problem, replace(request, memory=memory)).fits)
    return budget, class_scatter_plan(problem, request).memory_estimate


def class_scatter_plan(problem: Problem, request: Request) -> Plan:
    """Return the plan of the scatter matrix, with the sums of classes beside it and another solve."""
    n, p, width, most = problem.n_samples, problem.n_features, problem.target_width, problem.most_components
    k = min(request.n_components, most) if isinstance(request.n_components, int) else most
    sums = 3 * 8 * width * p  # with those of a piece
    budget, _ = problem.machine.budget(request.memory)
    within = replace(request.asking(n_components=k), memory=max(1, budget - MOST_THREADS * sums - 16 * n))
    plan = covariance_plan(problem, within)
    beside = {"classes of samples": 16 * n, f"sums of {width} classes": plan.threads * sums}
    if request.workers > 1:
        beside["sums of another worker"] = sums
    passing = (Phase.of(phase.name, dict(phase.items), beside) for phase in plan.memory_estimate.phases[:1])
    matrix, groups = format_shape((p, p)), "slices" if request.kind == "sliced-inverse-regression" else "classes"
    solving = {
        f"scatter matrix, {matrix} float64": 8 * p * p,
        "the matrix solved with, and its triangle": 8 * p * p,
        "classes of samples": 16 * n,
        f"means of {width} classes, solved with": 5 * 8 * width * p,
        f"{k} components": (COMPONENT_COPIES + 2) * 8 * p * k,
    }
    if request.shrinkage:
        solving["inverse of the triangle, and the matrix of the shrunk problem"] = 4 * 8 * p * p
    return replace(
        plan,
        request=request,
        method="class-scatter",
        why=f"the {matrix} scatter matrix and the means of {width} {groups} fit; exact, in one pass",
        solver="dense",
        room=k,
        dense_room=k,
        memory_estimate=MemoryEstimate((*passing, Phase.of("solve", solving, runtime()))),
        work=plan.work + products(2.0 * n * p * width, plan.precision) + Work(centring=float(n) * p),
    )
