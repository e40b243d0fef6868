"""Fisher's discriminant analysis and sliced inverse regression: axes along which means of classes or slices differ.

With S the scatter of all samples and S_B the scatter of the means, sum of n_c (m_c - m)(m_c - m)^T, discriminants solve
S_B v = mu S_W v for the scatter within classes, S_W = S - S_B. Sliced inverse regression solves S_B v = mu S v, with
slices of the sorted target as classes. The rank of S_B is the number of classes less one, so that one Cholesky factor
and a thin singular value decomposition suffice.

References
----------
R. Fisher, "The use of multiple measurements in taxonomic problems", Annals of Eugenics 7, 1936.
C. R. Rao, "The utilization of multiple measurements in problems of biological classification", JRSS B 10, 1948.
K.-C. Li, "Sliced inverse regression for dimension reduction", Journal of the American Statistical Association 86, 1991.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import blas, qr

from ...accumulators import ClassScatter
from ...arrays import Float64
from ...eigensolvers import count_components, solve_generalized
from ...eigensolvers.generalized import Dependent
from ...errors import DataError
from ...events import PassStarted, Solving
from .data_checks import check_variance, place_of_feature
from .job import Decomposition, Job, stored_dtype
from .leading_pairs import wanted_of
from .tasks import SamplesTask

ROUNDING = {"single": 1e-6, "double": 1e-12}  # relative rounding of a feature's scatter, by precision of products


def fit_class_scatter(job: Job) -> Decomposition:
    """Carry out a plan of method 'class-scatter'.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, a feature is constant or determined by others, or all means are equal.
    """
    plan, source, request = job.plan, job.collection.source, job.plan.request
    scatter = _accumulated(job)
    scatter.settle()
    check_variance(scatter.trace, source, plan)
    p, weight = scatter.n_features, scatter.weight
    job.listener(Solving(f"{scatter.between.shape[0]} means in a {p} x {p} scatter matrix"))
    factor, matrix, ridge = scatter.between, scatter.matrix(), 0.0
    between = float(np.square(factor).sum())
    if request.kind == "fisher-discriminant":
        matrix = blas.dsyrk(-1.0, np.asfortranarray(factor.T), beta=1.0, c=matrix, overwrite_c=1)
    if request.shrinkage:
        share, diagonal = request.shrinkage, np.einsum("ii->i", matrix)
        # Shrink both matrices towards multiples of the identity with the same traces.
        level = float(diagonal.sum()) / p
        matrix *= 1 - share
        diagonal += share * level
        factor, ridge = factor * (1 - share) ** 0.5, share * between / p
    tolerance = ROUNDING["double" if scatter.exact else plan.precision]
    solved = solve_generalized(matrix, factor, ridge=ridge, tolerance=tolerance)
    del matrix
    if isinstance(solved, Dependent):
        raise DataError(_dependent(job, solved.feature))
    values, vectors = (array[..., : plan.problem.most_components] for array in solved)
    # Equal means differ by rounding, whose square is relative to the trace.
    if not between > 1e-24 * scatter.trace:
        raise DataError(f"the means of all classes of {source} are equal; give another target.")
    # A fraction of components is of the sum of separations, not of the variance.
    total = float(values.sum())
    count = min(count_components(values, total, wanted_of(plan)) or len(values), plan.room)
    lengths = np.linalg.norm(vectors[:, :count], axis=0)
    axes = vectors[:, :count] / lengths
    # Discriminants are not orthogonal: variances of the components are along an orthonormal basis.
    basis, _ = qr(axes, mode="economic", check_finite=False)
    return Decomposition(
        mean=scatter.mean,
        components=np.ascontiguousarray(axes.T, dtype=stored_dtype(values[:count], plan)),
        explained_variance=_along(scatter, basis) / (weight - 1),
        residual_bound=np.full(count, np.nan),
        angle_bound=np.full(count, np.nan),
        total_variance=scatter.trace / (weight - 1),
        n_samples=scatter.n_samples,
        total_weight=weight,
        exact=scatter.sums_exactly,
        kind=request.kind,
        own_fields={
            "separation": values[:count],
            "total_separation": total,
            "score_variance": _along(scatter, axes) / (weight - 1),
            "scaling": lengths * weight**0.5,
        },
    )


def _along(scatter: ClassScatter, axes: Float64) -> Float64:
    """Return the sums of squares along unit axes, the columns of (p, k)."""
    squares: Float64 = np.maximum(np.einsum("ij,ij->j", axes, scatter.multiply(np.asfortranarray(axes))), 0.0)
    return squares


def _dependent(job: Job, feature: int) -> str:
    """Return a message that names the feature that makes the problem singular, and a remedy."""
    collection, within = job.collection, " within classes" if job.plan.request.kind == "fisher-discriminant" else ""
    shrink = "give --shrinkage 0.01 (shrinkage=0.01), " if within else ""
    return (
        f"feature {place_of_feature(collection, feature)} of {collection.source} is constant{within}, or follows from "
        f"others before it, so that axes are not determined; {shrink}leave such features out by --mask (mask=), make "
        "fewer by --bin (bin=) or --resize (resize=), or give more samples."
    )


def _accumulated(job: Job) -> ClassScatter:
    """Accumulate the scatter matrix of the samples, and their sums by class."""
    plan, target = job.plan, job.target
    assert target is not None  # noqa: S101 - all kinds of this method have one
    where: dict[str, Any] = {"one_thread": plan.threads > 1, "device": plan.request.device}
    how: dict[str, Any] = {"precision": plan.precision, "product_rows": plan.product_rows, "seed": plan.request.seed}
    new = partial(ClassScatter, job.collection.n_features, target.width, target.values, **where, **how)
    restored = partial(ClassScatter.from_state, copy=False, **where)
    task = SamplesTask.of(job, new, restored)
    started = PassStarted("scatter matrix, and sums by class", 1, 1, plan.problem.n_samples, plan.bytes_read)
    with job.reporting_pass(started):
        return task.fold(job, job.checkpoint("class-scatter"))
