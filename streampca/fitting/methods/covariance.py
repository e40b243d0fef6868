"""Exact method if p x p fits in memory: one pass for the scatter matrix, then its leading eigenpairs.

Cost: n p^2 flops for the pass; 8/3 p^3 for a dense solve, about 2 p^2 times a few hundred columns for Lanczos.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...accumulators import Scatter
from ...arrays import Float64
from ...eigensolvers import Certificate, Solution, certificate_of
from ...eigensolvers.error_bounds import gaps_around, lengths
from ...eigensolvers.pair_bounds import EPS
from ...events import Listener, PassStarted
from ...planning import Plan
from ...planning.memory import probe_columns
from .data_checks import check_products, check_variance, warn_of_wrong_products, warn_of_wrong_sums
from .exact_residuals import exact_bounds, sum_errors
from .job import Decomposition, Job, stored_dtype
from .leading_pairs import leading_pairs, next_value, residual_bounds
from .tasks import SamplesTask


def fit_covariance(job: Job) -> Decomposition:
    """Carry out a plan of method 'covariance'.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, or all samples are equal.
    """
    collection, plan = job.collection, job.plan
    scatter = accumulate(job)
    scatter.settle()
    if plan.problem.n_samples == collection.n_samples:  # a part of the samples can be all equal
        check_variance(scatter.trace, collection.source, plan)
    check_products(scatter.probe_products, collection.source, plan)
    return decompose(scatter, plan, job.listener)


def decompose(scatter: Scatter, plan: Plan, listener: Listener) -> Decomposition:
    """Return the decomposition that a plan requests of a settled scatter matrix; no components without variance."""
    trace, weight, p = scatter.trace, scatter.weight, scatter.n_features
    # Models of a part without variance are still merged: they have a mean and a weight.
    solution = Solution(np.empty(0), np.empty((p, 0)), np.empty(0))
    if trace > 0 and weight > 1:
        solution = leading_pairs(scatter, plan, listener, weight)
    values, spectrum, divisor = solution.values, solution.spectrum, weight - 1
    dtype = stored_dtype(values, plan) if len(values) else np.dtype(np.float32)
    components = np.ascontiguousarray(solution.vectors.T, dtype=dtype)
    after, agrees = next_value(solution, p), scatter.agrees
    warn_of_wrong_sums(agrees, listener)
    residual, unrounded = _bounds(scatter, solution, components.T, after)
    # Rounding of products or of stored components, whichever is coarser, is no fault of the machine.
    coarsest = components.dtype if plan.precision == "double" else np.float32
    warn_of_wrong_products(residual, trace, coarsest, listener, residuals=solution.residuals)
    return Decomposition(
        mean=scatter.mean,
        components=components,
        explained_variance=values / divisor,
        residual_bound=certificate_of(values, residual).relative,
        angle_bound=unrounded.of_stored(lengths(components.T - solution.vectors)),
        eigenvalues=None if spectrum is None else spectrum / divisor,
        total_variance=trace / divisor if divisor > 0 else 0.0,
        n_samples=scatter.n_samples,
        total_weight=scatter.weight,
        exact=scatter.sums_exactly and agrees is not False,
        statistic=scatter,
        error_bound=unrounded.relative,
        measured={"samples_on_integer_units": scatter.n_on_integer_units} if scatter.n_on_integer_units else {},
    )


def _bounds(
    scatter: Scatter, solution: Solution, components: npt.NDArray[Any], after: float | None
) -> tuple[Float64, Certificate]:
    """Bound the residuals of stored components, (p, k), and the errors of the solution, from the matrix or probes."""
    values, vectors, is_stored = solution.values, solution.vectors, components.dtype == solution.vectors.dtype
    errors = None if scatter.agrees else sum_errors(scatter, vectors)
    exact = exact_bounds(scatter, values, vectors, after, errors)
    # Dividing eigenvalues by the weight rounds them once more.
    relative, angle = certificate_of(values, exact.value).relative + EPS, exact.angle
    residual = exact.residual + EPS * values
    if not is_stored:
        residual = residual_bounds(scatter, values, components)
        if errors is not None:
            residual += errors.lengths(values) + errors.whole(values) * lengths(components - vectors)
    if solution.spectrum is None:  # models tell variance k + 1 by quotients of the two bounds
        gaps = gaps_around(values, residual, after)
        angle = np.maximum(angle, np.divide(values * relative, gaps, out=angle.copy(), where=gaps > 0))
    return residual, Certificate(exact.residual, relative, angle)


def accumulate(job: Job) -> Scatter:
    """Accumulate the scatter matrix of a job's samples, as its plan describes."""
    plan = job.plan
    how: dict[str, Any] = {"precision": plan.precision, "product_rows": plan.product_rows, "seed": plan.request.seed}
    where: dict[str, Any] = {"one_thread": plan.threads > 1, "integer_units": plan.integer_units}
    where["device"] = plan.request.device
    how["probes"] = probe_columns(plan.problem)
    new = partial(Scatter, job.collection.n_features, **how, **where)
    task = SamplesTask.of(job, new, partial(Scatter.from_state, copy=False, **where))
    with job.reporting_pass(PassStarted("scatter matrix", 1, 1, plan.problem.n_samples, plan.bytes_read)):
        scatter = task.fold(job, job.checkpoint("scatter"))
    job.held.clear()  # no other pass multiplies them, and the solve needs the memory
    return scatter
