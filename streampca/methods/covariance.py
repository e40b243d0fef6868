"""The exact method when p x p fits: one pass for the scatter matrix, then its leading eigenpairs.

Cost: n p^2 flops for the pass; 8/3 p^3 for a dense solve, about 2 p^2 times a few hundred columns for Lanczos.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas

from ..accumulate import NotFiniteError, Scatter
from ..blocks import Span, blocks_of
from ..errors import DataError
from ..events import Listener, PassFinished, PassStarted, Solving, Warned
from ..execute import Executor
from ..execute.protocol import Offer
from ..machine import hand_back
from ..planning import Plan
from ..prepare import Prepared, missing_share
from ..readers import Collection
from ..solve import Rule, Solution, Wanted, certify, dense_flops, elbow, noise_edge, solve_dense, start_lanczos
from .protocol import Decomposition, Float64

DOUBLE_BELOW = 1e-3  # components with less of the first variance are stored as float64, whatever the products were
PATIENCE = 3  # times the cost of a dense solve that Lanczos may take where there is no memory for one
NOT_CONVERGED = (
    "the spectrum is too flat for the eigensolver that fits the budget; components it could not settle were left out. "
    "Give more memory, or ask for fewer."
)


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

    def feed(self, accumulator: Scatter, block: Span) -> int:
        """Read and absorb a block; name the sample and its file when it holds no number."""
        rows = self.collection.read(slice(*block))
        weights = None if self.weights is None else self.weights[slice(*block)]
        try:
            accumulator.update(rows, at=block.start, weights=weights)
        except NotFiniteError as error:
            name, remedy = self.collection.named(error.sample), _remedy(error, self.collection)
            raise DataError(f"{name} {error.problem}. {remedy}") from None
        return block.size * self.collection.row_bytes


def _remedy(error: NotFiniteError, collection: Collection) -> str:
    """What to do about it: where pixels are missing in every sample (land, say), leave those out, not the samples."""
    if "overflow" in error.problem:
        return "The values are finite; only their squares are not."
    share = missing_share(collection) if isinstance(collection, Prepared) and collection.mask is None else 0.0
    if 0 < share < 1:
        return (
            f"{100 * share:.2g} % of its features are missing in all samples looked at; leave them out with --mask "
            'valid (mask="valid").'
        )
    return "Leave the sample out, fill the values in, or mask the pixels."


def fit_covariance(
    collection: Collection,
    plan: Plan,
    executor: Executor,
    *,
    weights: Float64 | None = None,
    listener: Listener,
    offer: Offer | None = None,
) -> Decomposition:
    """Carry out a plan of method 'covariance'.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, or all samples are equal.
    """
    task = ScatterTask(collection, plan.precision, plan.product_rows, plan.block_rows, plan.request.seed, weights)
    scatter = _accumulate(task, plan, executor, listener, offer)
    scatter.settle()
    trace = scatter.trace
    if trace <= 0 or not np.isfinite(trace):
        tiny = ", or they differ by less than float32 squares can hold (try precision='double')"
        raise DataError(
            f"{collection.source} has no variance: all {scatter.n_samples} samples are equal"
            f"{tiny if plan.problem.kind == 'f' and plan.precision == 'single' else ''}; give samples that differ."
        )
    return _decomposed(scatter, _solve(scatter, plan, listener), plan, trace)


def _accumulate(task: ScatterTask, plan: Plan, executor: Executor, listener: Listener, offer: Offer | None) -> Scatter:
    began = time.perf_counter()
    listener(PassStarted("scatter matrix", 1, 1, task.collection.n_samples, plan.bytes_read))
    scatter = executor.fold(task, plan.spans, Scatter.absorb, listener=listener, offer=offer)
    scatter.release()
    hand_back()
    listener(PassFinished(time.perf_counter() - began))
    return scatter


def _solve(scatter: Scatter, plan: Plan, listener: Listener) -> Solution:
    p, wanted = scatter.n_features, _wanted(plan)
    listener(Solving(f"eigenvectors of a {p} x {p} matrix"))
    solution = _lanczos(scatter, wanted, plan, listener) if plan.solver == "lanczos" else None
    if solution is None:
        hand_back()
        solution = solve_dense(scatter.matrix, wanted, most=plan.problem.most_components, room=plan.dense_room)
    reached = len(solution.values)
    if plan.request.n_components == "elbow":
        return solution.first(elbow(solution.values))
    if isinstance(wanted, Rule):
        _warn_of_rule(wanted, solution, scatter.trace, plan, listener)
    if isinstance(wanted, float) and np.sum(solution.values) < wanted * scatter.trace * (1 - 1e-12):
        listener(Warned(_too_many(reached, wanted, float(np.sum(solution.values)) / scatter.trace)))
    return solution


def _wanted(plan: Plan) -> Wanted:
    """What the solver is asked for: an elbow is sought in the values of a fixed number of components."""
    wanted, problem = plan.request.n_components, plan.problem
    if wanted == "elbow":
        return plan.request.counted_on(problem.most_components)
    return Rule(wanted, problem.n_samples, problem.n_features) if isinstance(wanted, str) else wanted


def _warn_of_rule(rule: Rule, solution: Solution, trace: float, plan: Plan, listener: Listener) -> None:
    known = solution.values if solution.spectrum is None else solution.spectrum
    count = rule.count(known, trace, solution.spectrum is not None)
    reached = len(solution.values)
    if count is None or count > reached:
        listener(Warned(f"the budget holds {reached} components, and at least as many lie above the noise."))
    elif rule.name == "mp" and solution.values[0] <= noise_edge(known, trace, 0, rule.n_samples, rule.n_features):
        listener(Warned("no component lies above the edge of white noise; the first was kept."))


def _too_many(reached: int, wanted: float, share: float) -> str:
    return (
        f"the budget holds {reached} components, {share:.2%} of the variance, and {wanted:.2%} were asked for; these "
        "were kept. Give more memory for the rest."
    )


def _lanczos(scatter: Scatter, wanted: Wanted, plan: Plan, listener: Listener) -> Solution | None:
    """Leading pairs by products with the matrix in memory.

    None once a dense solve would have cost less, where one fits; else what a generous number of steps reached.
    """
    state = start_lanczos(scatter.n_features, wanted=wanted, total=scatter.trace, seed=plan.request.seed)
    upper, offset, n = scatter.upper, scatter.offset, scatter.weight
    spent, allowed = 0.0, dense_flops(scatter.n_features)
    while state.solution is None:
        spent += state.flops
        if plan.dense_room and spent > allowed:
            return None
        if spent > PATIENCE * allowed:
            listener(Warned(NOT_CONVERGED))
            return state.so_far().first(plan.room)
        block = state.wants
        product = blas.dsymm(1.0, upper, block)
        along = blas.dgemv(1.0, block, offset, trans=1)
        state = state.step(blas.dger(-n, offset, along, a=product, overwrite_a=1))
    if len(state.solution.values) > plan.room and plan.dense_room > plan.room:
        return None
    return state.solution.first(plan.room)


def _decomposed(scatter: Scatter, solution: Solution, plan: Plan, trace: float) -> Decomposition:
    divisor = scatter.weight - 1
    values = solution.values
    narrow = plan.request.precision != "double" and plan.problem.is_narrow
    narrow = narrow and values[-1] >= DOUBLE_BELOW * values[0]
    components = np.ascontiguousarray(solution.vectors.T, dtype=np.float32 if narrow else np.float64)
    spectrum = solution.spectrum
    certificate = certify(
        values,
        components.T,
        directions=scatter.probe_directions,
        products=scatter.probe_products,
        rounding=scatter.probe_rounding,
        next_value=_next(solution, scatter.n_features),
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


def _next(solution: Solution, p: int) -> float | None:
    """What eigenvalue k + 1 is at most, where that is known; minus infinity where there is none, as nothing is near."""
    k, spectrum = len(solution.values), solution.spectrum
    if k == p:
        return -np.inf
    if spectrum is None:
        return solution.next_value
    return float(spectrum[k]) if k < len(spectrum) else 0.0
