"""Plans of fits whose samples come in batches, of which nobody knows how many there will be.

While p x p fits the budget they are added up in a scatter matrix, and the answer is exact. Beyond, they are sketched by
frequent directions: a stated number of rows, with a bound on all that it loses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from ..errors import RequestError
from ..units import MIB, budget_size, format_shape
from .blocks import BLOCK_SHARES, MOST_BLOCK, Span, block_rows
from .candidate_sizes import (
    Cost,
    Groups,
    MethodSizes,
    SizesByBudget,
    precision_of,
    refusal,
    search,
    search_or_refuse,
    smallest_sizes,
)
from .covariance import THREAD_BLOCK, CovarianceSizes
from .decoding import read_boxes
from .memory import COMPONENT_COPIES, MemoryEstimate, Phase, block_items, runtime, thread_count
from .plan import Plan
from .rates import Work, products
from .request import Problem, Request

SKETCH = "frequent directions"  # as `Plan.method`
WAITING_BYTES = 8 * MIB  # of rows that wait to be multiplied together ...
WAITING_SHARE = 16  # ... and of the budget; one row at least
ROWS_A_COMPONENT = 4  # of a sketch: they keep more than 99.99 % of the exact variance of 20 components of MNIST
OPEN_COMPONENTS = 50  # for which a sketch has rows where their number depends on the data
MERGED_ROWS = 8  # times the rows of a sketch that a merge has at most, to lose nothing of its parts
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
    p, asked = problem.n_features, request.n_components
    if request.method not in ("auto", "covariance"):
        raise RequestError(
            f"method {request.method!r} has nothing to which later batches could be added; use method 'auto' or "
            "'covariance', or fit all samples at once."
        )
    if isinstance(asked, int) and asked > p:
        raise RequestError(f"n_components={asked} exceeds {p}, the number of features; ask for at most that.")
    many = replace(problem, n_samples=max(problem.n_samples, p + 1))
    budget = problem.machine.budget(request.memory)
    exact = scatter_candidates(many, request)
    if sizes := search(exact, budget[0]):
        return sizes.plan()
    smallest = smallest_sizes(exact)
    if request.method == "covariance":
        raise refusal("method 'covariance'", smallest.least_budget, smallest.memory_estimate, budget)
    if asked in (None, "mle"):
        raise RequestError(
            f"n_components={asked!r} asks for all variances, and the {format_shape((p, p))} scatter matrix that has "
            f"them {smallest.memory_estimate}; set memory to at least {budget_size(smallest.least_budget)}, or ask for "
            f"a number such as {min(OPEN_COMPONENTS, p)} or a fraction such as 0.95."
        )
    doing = f"a sketch of {sketch_rows(request, p)} rows"
    return search_or_refuse(doing, sketch_candidates(many, request), budget).plan()


def batch_plan(candidates: Groups[MethodSizes], problem: Problem, request: Request) -> Plan:
    """Return the plan of a batch, or of the solve, by the statistic that was chosen with the first batch.

    Raises
    ------
    BudgetError
        If it does not fit the budget, as after this was lowered, or for a batch in larger chunks than the first.
    """
    budget = problem.machine.budget(request.memory)
    return search_or_refuse(f"a batch of {problem.n_samples} samples", candidates, budget).plan()


def waiting_rows(problem: Problem, request: Request) -> int:
    """Rows that wait until they are multiplied together, 1 at least."""
    budget, _ = problem.machine.budget(request.memory)
    return max(1, min(WAITING_BYTES, budget // WAITING_SHARE) // (problem.n_features * problem.itemsize))


def stream_precision(problem: Problem, request: Request) -> str:
    """Precision of further products, by all samples so far: as one fit of them would have it."""
    return precision_of(problem, request, problem.n_samples * problem.n_features**2)


def sketch_rows(request: Request, n_features: int) -> int:
    """Rows of a sketch, l: 4 a component, and no fewer than 64."""
    k = request.n_components if isinstance(request.n_components, int) else OPEN_COMPONENTS
    return min(max(ROWS_A_COMPONENT * k, LEAST_ROWS), n_features)


def scatter_candidates(problem: Problem, request: Request) -> Groups[BatchScatterSizes]:
    """Return sizes with which a batch could be added to a scatter matrix."""
    # Few samples make one block a thread; the row more keeps a remainder from making a further block.
    share = (problem.n_samples // thread_count(problem.machine.cores) + 1) * problem.sample_bytes
    sizes = BatchScatterSizes(problem=problem, request=request)
    return sizes.concurrent(thread_block=min(THREAD_BLOCK, share))


def sketch_candidates(problem: Problem, request: Request, rows: int | None = None) -> Groups[BatchSketchSizes]:
    """Return sizes with which a batch could be added to a sketch of so many rows."""
    rows = rows or sketch_rows(request, problem.n_features)
    k = min(rows, problem.most_components)
    return [[BatchSketchSizes(problem=problem, request=request, k=k, dense_room=k, product_rows=rows)]]


def merged_sketch_candidates(problem: Problem, request: Request, directions: int) -> Groups[BatchSketchSizes]:
    """Return sizes for a merge of sketches of so many directions in all: with rows for all of them, if they fit."""
    least = sketch_rows(request, problem.n_features)
    most = min(-(-directions // 2), problem.n_features, MERGED_ROWS * least)  # a sketch holds twice its rows
    return [*sketch_candidates(problem, request, max(least, most)), *sketch_candidates(problem, request)]


def _waiting(problem: Problem, request: Request) -> dict[str, int]:
    rows = waiting_rows(problem, request)
    return {f"{rows} samples that wait": rows * (problem.n_features * problem.itemsize + 8)}


@dataclass(frozen=True, kw_only=True)
class BatchScatterSizes(CovarianceSizes):
    """Sizes of a batch's own scatter matrix, which is added to that of earlier batches."""

    @property
    def _other_statistics(self) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes by name beside the pass, and beside each phase."""
        p = self.problem.n_features
        earlier = {f"scatter matrix of earlier batches, {format_shape((p, p))} float64": 8 * p * p}
        last = {f"statistic of the last model, {format_shape((p, p))} float64": 8 * p * p}
        return earlier, last | _waiting(self.problem, self.request)

    def cut(self, memory: int) -> Self:
        """Return the sizes for what the other statistics leave of so many bytes."""
        held = sum(sum(items.values()) for items in self._other_statistics) + self.problem.held_bytes
        return super().cut(max(1, memory - held))

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        matrix = format_shape((self.problem.n_features,) * 2)
        return replace(super().plan(), why=f"the {matrix} scatter matrix of samples in batches fits the budget; exact")

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        earlier, throughout = self._other_statistics
        phases = (
            Phase.of(phase.name, dict(phase.items), earlier if phase.name == "pass" else {}, throughout)
            for phase in super().phases()
        )
        yield from MemoryEstimate(tuple(phases)).plus_preparation(self.problem).phases


@dataclass(frozen=True, kw_only=True)
class BatchSketchSizes(SizesByBudget, MethodSizes):
    """Sizes of a batch's own sketch, which is added to that of earlier batches; a sketch has `product_rows` rows."""

    def cut(self, memory: int) -> Self:
        """Return the sizes with the largest blocks of their share of so many bytes."""
        problem, limit = self.problem, min(MOST_BLOCK, memory // BLOCK_SHARES[0])
        rows = block_rows(problem.sample_bytes, problem.chunk_samples, limit)
        return replace(self, block_rows=min(rows, problem.n_samples))

    @property
    def spans(self) -> tuple[Span, ...]:
        """One span: rows are rotated in order."""
        return (Span(0, self.problem.n_samples),)

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        matrix, rows = format_shape((self.problem.n_features,) * 2), self.product_rows
        why = f"the {matrix} scatter matrix of samples in batches does not fit the budget; a sketch of {rows} rows, "
        why += "with a bound on what it loses"
        return self.planned(SKETCH, why, precision="double", solver="dense")

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        p, rows, k = self.problem.n_features, self.product_rows, self.k
        small = {f"inner products of {2 * rows} rows, their eigenvectors and LAPACK's copies": 5 * 8 * (2 * rows) ** 2}
        held = {
            f"sketch, {format_shape((2 * rows, p))} float64": 16 * rows * p,
            "sketch of the last model": 16 * rows * p,
            **_waiting(self.problem, self.request),
        }
        rotating = {
            "sketch of a batch": 16 * rows * p,
            f"{rows} rows, rotated": 8 * rows * p,
            f"{rows} samples, centred": 8 * rows * p,
            "means and squares": 10 * 8 * p,
        }
        components = {f"{k} components": COMPONENT_COPIES * 8 * k * p + 8 * k * p}
        phases = (
            Phase.of("pass", held, rotating, small, block_items(self.problem, self.block_rows, 1, 0), runtime()),
            Phase.of("solve", held, components, small, runtime()),
        )
        yield from MemoryEstimate(phases).plus_preparation(self.problem).phases

    @property
    def sent(self) -> tuple[int, int]:
        """No vectors; a sketch of all rows, if workers shared them."""
        return 0, 16 * self.product_rows * self.problem.n_features

    @cached_property
    def cost(self) -> Cost:
        """Cost of the only pass."""
        n, p = self.problem.n_samples, self.problem.n_features
        read = read_boxes(self.problem, self.block_rows, p)
        work = products(8.0 * self.product_rows * n * p, "double") + Work(centring=float(n) * p)
        return Cost(1, read.bytes, read.work(self.problem) + work)
