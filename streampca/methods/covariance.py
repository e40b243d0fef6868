"""The exact method when p x p fits: one pass for the scatter matrix, then its leading eigenpairs.

Cost: n p^2 flops for the pass; 8/3 p^3 for a dense solve, about 2 p^2 times a few hundred columns for Lanczos.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..accumulate import NotFiniteError, Scatter
from ..blocks import Span, blocks_of
from ..events import BlockDone, Listener, PassFinished, PassStarted
from ..execute import Executor
from ..execute.protocol import Offer
from ..machine import hand_back
from ..planning import Plan
from ..readers import Collection
from ..solve import Solution, certify
from .faults import bad_sample, check_variance
from .leading import leading_pairs, next_value
from .protocol import Decomposition, Float64, stored_dtype


@dataclass(frozen=True)
class ScatterTask:
    """Fold spans of a collection into a `Scatter`."""

    collection: Collection
    precision: str
    product_rows: int
    block_rows: int
    seed: int
    weights: Float64 | None = None

    def start(self) -> Scatter:
        """Return an empty scatter of the collection's width."""
        return Scatter(
            self.collection.n_features, precision=self.precision, product_rows=self.product_rows, seed=self.seed
        )

    def blocks(self, span: Span) -> Iterable[Span]:
        """Blocks that end at multiples of the plan's block length."""
        return blocks_of(span, self.block_rows)

    def feed(self, accumulator: Scatter, block: Span) -> BlockDone:
        """Read and absorb a block; name the sample and its file when it holds no number."""
        rows = self.collection.read(slice(*block))
        weights = None if self.weights is None else self.weights[slice(*block)]
        try:
            accumulator.update(rows, at=block.start, weights=weights)
        except NotFiniteError as error:
            raise bad_sample(error, self.collection) from None
        return BlockDone(block.size, block.size * self.collection.row_bytes)


def fit_covariance(
    collection: Collection,
    plan: Plan,
    executor: Executor,
    *,
    weights: Float64 | None = None,
    listener: Listener,
    offer: Offer | None = None,
    scratch: str | None = None,
) -> Decomposition:
    """Carry out a plan of method 'covariance', which needs no scratch copy.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, or all samples are equal.
    """
    task = ScatterTask(collection, plan.precision, plan.product_rows, plan.block_rows, plan.request.seed, weights)
    scatter = _accumulate(task, plan, executor, listener, offer)
    scatter.settle()
    trace = scatter.trace
    check_variance(trace, collection, plan)
    return _decomposed(scatter, leading_pairs(scatter, plan, listener), plan, trace)


def _accumulate(task: ScatterTask, plan: Plan, executor: Executor, listener: Listener, offer: Offer | None) -> Scatter:
    began = time.perf_counter()
    listener(PassStarted("scatter matrix", 1, 1, task.collection.n_samples, plan.bytes_read))
    scatter = executor.fold(task, plan.spans, Scatter.absorb, listener=listener, offer=offer)
    scatter.release()
    hand_back()
    listener(PassFinished(time.perf_counter() - began))
    return scatter


def _decomposed(scatter: Scatter, solution: Solution, plan: Plan, trace: float) -> Decomposition:
    divisor = scatter.weight - 1
    values = solution.values
    components = np.ascontiguousarray(solution.vectors.T, dtype=stored_dtype(values, plan))
    spectrum = solution.spectrum
    certificate = certify(
        values,
        components.T,
        directions=scatter.probe_directions,
        products=scatter.probe_products,
        rounding=scatter.probe_rounding,
        next_value=next_value(solution, scatter.n_features),
    )
    return Decomposition(
        mean=scatter.mean,
        components=components,
        explained_variance=values / divisor,
        error_bound=certificate.relative,
        angle_bound=certificate.angle,
        eigenvalues=None if spectrum is None else spectrum / divisor,
        total_variance=trace / divisor,
        n_samples=scatter.n_samples,
        total_weight=scatter.weight,
        exact=scatter.exact,
        statistic=scatter,
    )
