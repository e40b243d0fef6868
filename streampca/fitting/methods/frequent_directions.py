"""Decomposition of a sketch by frequent directions: leading pairs, with bounds on the error of the sketch.

With 0 <= x^T (S - B^T B) x <= Delta, the matrix B^T B + (Delta/2) I is within Delta/2 of S. This bounds the residuals S
v - theta v of its pairs, and the differences of its eigenvalues from those of S, rank by rank (Weyl, 1912). The bounds
involve no probability.

Models without a statistic are sketches as well: their components, times the roots of their variances, are rows. Let r
be the norm of the pairs' residuals and delta the largest variance outside; then -2 r <= x^T (S - B^T B) x <= delta + 2
r, as the norm of a symmetric matrix of blocks A, B, C is at most max(|A|, |C|) + |B|.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ...accumulators import FrequentDirections
from ...accumulators.blas import times
from ...accumulators.frequent_directions import LeadingPairs
from ...eigensolvers import Solution, certificate_of, count_components, fix_signs, solve_dense
from ...eigensolvers.error_bounds import lengths
from ...errors import ModelError
from ...events import Listener, PassStarted, Solving, Warned
from ...models.accuracy import largest_outside
from ...models.pca import PCAModel
from ...planning import Plan
from .job import Decomposition, Job, stored_dtype
from .leading_pairs import chosen_of, wanted_of
from .tasks import SamplesTask

EPS = float(np.finfo(np.float64).eps)


def sketch_samples(job: Job) -> FrequentDirections:
    """Return a sketch of the samples of a job, with the number of rows of its plan."""
    plan = job.plan
    new = partial(FrequentDirections, job.collection.n_features, rows=plan.product_rows)
    task = SamplesTask.of(job, new, FrequentDirections.from_state)
    with job.reporting_pass(PassStarted("sketch", 1, 1, plan.problem.n_samples, plan.bytes_read)):
        return task.fold(job, job.checkpoint("sketch"))


def decompose_sketch(sketch: FrequentDirections, plan: Plan, listener: Listener) -> Decomposition:
    """Return the decomposition that a plan requests of a sketch, whose trace must be above 0.

    Notes
    -----
    Cost: m^2 p flops for m rows of the sketch, and 6 k^2 p for k components.
    """
    solution = _leading(sketch, plan, listener)
    values, shrunk, divisor = solution.values, sketch.shrunk, sketch.weight - 1
    components = np.ascontiguousarray(solution.vectors.T, dtype=stored_dtype(values, plan))
    # Rounding of products and rotations of the rows, for each possible shrink.
    error = shrunk / 2 + sketch.slack + EPS * sketch.trace * (1 + sketch.n_samples / sketch.rows)
    # One deterministic bound holds for all pairs; storage rounds the components alone, not their variances.
    residual = np.full(len(values), error)
    stored = residual + float(np.finfo(components.dtype).eps) * values[0]
    outside = float(solution.next_value or 0.0) + error
    return Decomposition(
        mean=sketch.mean.copy(),
        components=components,
        explained_variance=values / divisor,
        residual_bound=stored / values,
        error_bound=residual / values,
        angle_bound=certificate_of(values, residual, next_value=outside).of_stored(
            lengths(components.T - solution.vectors)
        ),
        total_variance=sketch.trace / divisor,
        n_samples=sketch.n_samples,
        total_weight=sketch.weight,
        statistic=sketch,
        outside=outside / divisor,
    )


def _leading(sketch: FrequentDirections, plan: Plan, listener: Listener) -> Solution:
    """Return leading pairs of B^T B + (Delta/2) I, as many as requested, at most those of the sketch."""
    rows, half, wanted = sketch.sketch, sketch.shrunk / 2, wanted_of(plan, sketch.weight)
    listener(Solving(f"eigenvectors of a {len(rows)} x {len(rows)} matrix"))
    solution = solve_dense(sketch.gram, None, most=min(len(rows), sketch.rows, plan.problem.most_components))
    rank = max(1, int(np.count_nonzero(solution.values > EPS * len(rows) * solution.values[0])))
    if isinstance(wanted, int) and wanted > rank:
        listener(Warned(f"the samples span {rank} directions, and {wanted} were asked for; these were kept."))
    count = count_components(solution.values[:rank] + half, sketch.trace, wanted) or rank
    pairs = Solution(solution.values[:count] + half, solution.vectors[:, :count], np.zeros(count))
    chosen = chosen_of(pairs, sketch.trace, plan, listener, total_weight=sketch.weight)
    k = len(chosen.values)
    # Products leave vectors of small variance not quite orthogonal to those of large variance.
    vectors = np.linalg.qr(times(rows.T, chosen.vectors / np.sqrt(solution.values[:k])))[0]
    after = float(solution.values[k]) if k < len(solution.values) else 0.0
    return replace(chosen, vectors=fix_signs(vectors), next_value=after + half)


def sketch_of_model(model: PCAModel, rows: int) -> FrequentDirections:
    """Return the sketch of a model without a statistic; see `FrequentDirections.of_components`.

    Raises
    ------
    ModelError
        If the error bounds of its components are unknown.
    """
    subspace, scale = model.subspace, (model.total_weight or model.n_samples) - 1
    components = np.asarray(subspace.components)
    residual = model.explained_variance * model.residual_bound
    if not np.isfinite(residual).all():
        raise ModelError(
            f"{model.name} has components without an error bound, so that nobody knows what is right of a sum with "
            "them; fit its samples together with the others."
        )
    rounding = float(np.finfo(components.dtype).eps) * float(model.explained_variance[0])
    # The bound 2 r of the module's docstring, in units of variances.
    slack = 2 * (float(np.linalg.norm(residual)) + rounding)
    pairs = LeadingPairs(
        components.astype(np.float64),
        scale * model.explained_variance,
        trace=scale * model.total_variance,
        outside=scale * largest_outside(model),
        slack=scale * slack,
    )
    most = max(rows, len(components))
    return FrequentDirections.of_components(
        pairs, subspace.mean, n_samples=model.n_samples, weight=scale + 1, rows=most
    )
