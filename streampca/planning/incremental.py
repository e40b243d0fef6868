"""Plans of fits whose samples come in batches, of which nobody knows how many there will be.

While p x p fits the budget they are added up in a scatter matrix, and the answer is exact. Beyond, they are sketched by
frequent directions: a stated number of rows, with a bound on all that it loses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..errors import RequestError
from ..units import MIB, budget_size, format_shape
from .blocks import Span, block_rows
from .budget import BLOCK_SHARES, MOST_BLOCK, precision_of, smallest, too_small
from .covariance import THREAD_BLOCK, THREAD_FEATURES, covariance_plan
from .decoding import read_boxes
from .memory import COMPONENT_COPIES, MemoryEstimate, Phase, block_items, runtime
from .plan import Plan
from .rates import Work, products
from .request import Problem, Request
from .sizes import thread_count

__all__ = [
    "SKETCH",
    "THREAD_FEATURES",
    "WAITING_BYTES",
    "checked_plan",
    "incremental_plan",
    "scatter_plan",
    "sketch_plan",
    "stream_precision",
    "waiting_rows",
]

SKETCH = "frequent directions"  # as `Plan.method`
WAITING_BYTES = 8 * MIB  # of rows that wait to be multiplied together ...
WAITING_SHARE = 16  # ... and of the budget; one row at least
ROWS_A_COMPONENT = 4  # of a sketch: they keep more than 99.99 % of the exact variance of 20 components of MNIST
OPEN_COMPONENTS = 50  # for which a sketch has rows where their number depends on the data
LEAST_ROWS = 64  # of a sketch: fewer take as long, as it shrinks more often


def incremental_plan(problem: Problem, request: Request) -> Plan:
    """Choose the statistic for any number of batches like the first one: the scatter matrix, or a sketch of it.

    Parameters
    ----------
    problem : Problem
        Sizes of the first batch.
    request : Request
        Options; `method` is "auto" or "covariance".

    Raises
    ------
    RequestError
        If the method cannot add up batches, or no number of samples has so many components.
    BudgetError
        If neither statistic fits the budget, or the scatter matrix does not and is asked for.
    """
    p, wanted = problem.n_features, request.n_components
    if request.method not in ("auto", "covariance"):
        raise RequestError(
            f"method {request.method!r} has nothing to which later batches could be added; use method 'auto' or "
            "'covariance', or fit all samples at once."
        )
    if isinstance(wanted, int) and wanted > p:
        raise RequestError(f"n_components={wanted} exceeds {p}, the number of features; ask for at most that.")
    many = replace(problem, n_samples=max(problem.n_samples, p + 1))
    exact = scatter_plan(many, request)
    if exact.fits:
        return exact
    if request.method == "covariance":
        raise _refusal("method 'covariance'", exact, _least(scatter_plan, many, request))
    if wanted in (None, "mle"):
        least, allowed = _least(scatter_plan, many, request), exact.memory_estimate
        raise RequestError(
            f"n_components={wanted!r} asks for all variances, and the {format_shape((p, p))} scatter matrix that has "
            f"them {allowed}; set memory to at least {budget_size(least)}, or ask for a number such as "
            f"{min(OPEN_COMPONENTS, p)} or a fraction such as 0.95."
        )
    sketch = sketch_plan(many, request)
    if sketch.fits:
        return sketch
    raise _refusal(f"a sketch of {sketch_rows(request, p)} rows", sketch, _least(sketch_plan, many, request))


def checked_plan(make: Callable[[Problem, Request], Plan], problem: Problem, request: Request) -> Plan:
    """Return the plan of a batch, or of the solve, by the statistic that was chosen with the first batch.

    Raises
    ------
    BudgetError
        If it does not fit the budget, as after this was lowered, or for a batch in larger chunks than the first.
    """
    plan = make(problem, request)
    if plan.fits:
        return plan
    raise _refusal(f"a batch of {problem.n_samples} samples", plan, _least(make, problem, request))


def _least(make: Callable[[Problem, Request], Plan], problem: Problem, request: Request) -> int:
    """Smallest budget in which a plan fits."""
    return smallest(lambda memory: make(problem, replace(request, memory=memory)).fits)


def _refusal(what: str, plan: Plan, least: int) -> Exception:
    budget = plan.problem.machine.budget(plan.request.memory)
    estimate = plan.memory_estimate
    share = f"the largest share is the {estimate.largest.largest_share}"
    return too_small(what, least, budget, needed=estimate.total, share=share)


def waiting_rows(problem: Problem, request: Request) -> int:
    """Rows that wait until they are multiplied together, 1 at least."""
    budget, _ = problem.machine.budget(request.memory)
    return max(1, min(WAITING_BYTES, budget // WAITING_SHARE) // (problem.n_features * problem.itemsize))


def stream_precision(problem: Problem, request: Request) -> str:
    """Precision of further products, by all samples so far: as one fit of them would have it."""
    return precision_of(problem, request, problem.n_samples * problem.n_features**2)


def scatter_plan(problem: Problem, request: Request) -> Plan:
    """Plan to add samples to a scatter matrix that is there: they have one of their own, and it is added."""
    p, (budget, _) = problem.n_features, problem.machine.budget(request.memory)
    matrix = f"{format_shape((p, p))} float64"
    beside = {f"statistic of the last model, {matrix}": 8 * p * p, **_waiting(problem, request)}
    held = {f"scatter matrix of earlier batches, {matrix}": 8 * p * p, **beside}
    within = replace(request, memory=max(1, budget - sum(held.values()) - problem.held_bytes))
    # Few samples make one block a thread; the row more keeps a remainder from making a further block.
    share = (problem.n_samples // thread_count(problem.machine.cores) + 1) * problem.sample_bytes
    plan = covariance_plan(problem, within, thread_block=min(THREAD_BLOCK, share))
    phases = (_with(phase, held if phase.name == "pass" else beside) for phase in plan.memory_estimate.phases)
    return replace(
        plan,
        request=request,
        why=f"the {format_shape((p, p))} scatter matrix of samples in batches fits the budget; exact",
        memory_estimate=MemoryEstimate(tuple(phases)).beside(problem),
    )


def _with(phase: Phase, more: Mapping[str, int]) -> Phase:
    return Phase(phase.name, (*phase.items, *more.items()))


def _waiting(problem: Problem, request: Request) -> dict[str, int]:
    rows = waiting_rows(problem, request)
    return {f"{rows} samples that wait": rows * (problem.n_features * problem.itemsize + 8)}


def sketch_rows(request: Request, n_features: int) -> int:
    """Rows of a sketch, l: 4 a component, and no fewer than 64."""
    wanted = request.n_components if isinstance(request.n_components, int) else OPEN_COMPONENTS
    return min(max(ROWS_A_COMPONENT * wanted, LEAST_ROWS), n_features)


def sketch_plan(problem: Problem, request: Request, rows: int | None = None) -> Plan:
    """Plan to add samples to a sketch of so many rows that is there: they have one of their own, and it is added."""
    n, p, (budget, _) = problem.n_samples, problem.n_features, problem.machine.budget(request.memory)
    rows = rows or sketch_rows(request, p)
    room = min(rows, problem.most_components)
    block = block_rows(problem.sample_bytes, problem.chunk_samples, min(MOST_BLOCK, budget // BLOCK_SHARES[0]))
    block = min(block, n)
    small = {f"inner products of {2 * rows} rows, their eigenvectors and LAPACK's copies": 5 * 8 * (2 * rows) ** 2}
    held = {
        f"sketch, {format_shape((2 * rows, p))} float64": 16 * rows * p,
        "sketch of the last model": 16 * rows * p,
        **_waiting(problem, request),
    }
    work = {
        "sketch of a batch": 16 * rows * p,
        f"{rows} rows, rotated": 8 * rows * p,
        f"{rows} samples, centred": 8 * rows * p,
        "means and squares": 10 * 8 * p,
    }
    found = {f"{room} components": COMPONENT_COPIES * 8 * room * p + 8 * room * p}
    phases = (
        Phase.of("pass", held, work, small, block_items(problem, block, 1, 0), runtime()),
        Phase.of("solve", held, found, small, runtime()),
    )
    read = read_boxes(problem, block, p)
    return Plan(
        problem=problem,
        request=request,
        method=SKETCH,
        why=f"the {format_shape((p, p))} scatter matrix of samples in batches does not fit the budget; a sketch of "
        f"{rows} rows, with a bound on what it loses",
        precision="double",
        solver="dense",
        room=room,
        dense_room=room,
        block_rows=block,
        product_rows=rows,
        spans=(Span(0, n),),
        passes=1,
        bytes_read=read.bytes,
        memory_estimate=MemoryEstimate(phases).beside(problem),
        block_features=p,
        work=read.work(problem) + products(8.0 * rows * n * p, "double") + Work(centring=float(n) * p),
    )
