"""Supervised principal component analysis: axes along which samples depend most on their targets.

The axes are the leading eigenvectors of Q = X^T H B H X, for a kernel B of the targets. With label features,
B = Delta^T Delta and Q = Psi Psi^T for the cross-scatter Psi = X^T H Delta^T, p x l: its left singular vectors are the
axes, and no n x n matrix is needed. The eigenvalues of Q over (n - 1)^2 add up to the Hilbert-Schmidt independence
criterion (HSIC) of samples and targets, with a linear kernel of samples.

References
----------
E. Barshan, A. Ghodsi, Z. Azimifar, M. Zolghadri Jahromi, "Supervised principal component analysis: Visualization,
classification and regression on subspaces and submanifolds", Pattern Recognition 44, 2011.
A. Gretton, O. Bousquet, A. Smola, B. Schoelkopf, "Measuring statistical dependence with Hilbert-Schmidt norms", ALT,
2005.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import svd

from ...accumulators import CrossScatter, ScatterBlock
from ...arrays import Float64
from ...eigensolvers import count_components, fix_signs
from ...errors import DataError
from ...events import PassStarted, Solving
from ...machine import hand_back
from .data_checks import check_variance
from .job import Decomposition, Job, stored_dtype
from .leading_pairs import wanted_of
from .tasks import SamplesTask


def fit_cross_scatter(job: Job) -> Decomposition:
    """Carry out a plan of method 'cross-scatter'.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, all samples are equal, or they do not depend on the target.
    """
    plan, source = job.plan, job.collection.source
    cross = _products(job)
    job.listener(Solving(f"singular vectors of {cross.n_features} x {cross.n_targets}"))
    mean, weight, n_samples = cross.mean, cross.weight, cross.n_samples
    vectors, roots, _ = svd(cross.products, full_matrices=False, overwrite_a=True, check_finite=False)
    del cross
    values = np.square(roots)[: plan.problem.most_components]
    rounding = (np.finfo(np.float64).eps * max(vectors.shape)) ** 2
    # Directions whose singular value is rounding do not depend on the target.
    values = values[values > rounding * values[:1]]
    if not len(values) or values[0] == 0:
        raise _no_dependence(source)
    total = float(values.sum())
    count = min(count_components(values, total, wanted_of(plan)) or len(values), plan.room)
    # A copy of the leading columns in Fortran order, so that the rest can be freed.
    axes = fix_signs(np.ascontiguousarray(vectors[:, :count].T).T)
    del vectors
    hand_back()
    variances, trace = variances_along(job, axes, mean)
    check_variance(trace, source, plan)
    if job.target is not None and values[0] <= rounding * trace * job.target.scatter(job.weights):
        raise _no_dependence(source)  # the means of all classes differ by rounding only
    scale = (weight - 1) ** 2
    dependence = values[:count] / scale
    return Decomposition(
        mean=mean,
        components=np.ascontiguousarray(axes.T, dtype=stored_dtype(dependence, plan)),
        explained_variance=variances / (weight - 1),
        residual_bound=np.full(count, np.nan),
        angle_bound=np.full(count, np.nan),
        total_variance=trace / (weight - 1),
        n_samples=n_samples,
        total_weight=weight,
        kind=plan.request.kind,
        own_fields={"dependence": dependence, "total_dependence": total / scale},
    )


def _no_dependence(source: str) -> DataError:
    return DataError(f"the samples of {source} do not vary with the target at all; give another target.")


def variances_along(job: Job, axes: Float64, centre: Float64) -> tuple[Float64, float]:
    """Return sums of squares along unit axes, the columns of (p, k), and the trace, by reading all samples again."""
    plan = job.plan
    how: dict[str, Any] = {"precision": plan.precision, "product_rows": plan.product_rows, "seed": plan.request.seed}
    device = plan.request.device
    new = partial(ScatterBlock, axes, centre, device=device, **how)
    task = SamplesTask.of(job, new, partial(ScatterBlock.from_state, vectors=axes, copy=False, device=device))
    started = PassStarted("variances along the axes", 2, 2, plan.problem.n_samples, job.collection.nbytes)
    with job.reporting_pass(started):
        product = task.fold(job, job.checkpoint("variances"))
    # Directions as multiplied, rounded to the precision of products.
    trace, used = product.trace, product.vectors.astype(np.float64)
    return np.maximum(np.einsum("ij,ij->j", used, product.take()), 0.0), trace


def _products(job: Job) -> CrossScatter:
    """Accumulate the products of samples with label features."""
    plan, target = job.plan, job.target
    assert target is not None  # noqa: S101 - all kinds of this method have one
    device = plan.request.device
    new = partial(CrossScatter, job.collection.n_features, target.width, target.values, device=device)
    task = SamplesTask.of(job, new, partial(CrossScatter.from_state, copy=False, device=device))
    started = PassStarted("products with label features", 1, 2, plan.problem.n_samples, job.collection.nbytes)
    with job.reporting_pass(started):
        return task.fold(job, job.checkpoint("cross-scatter"))
