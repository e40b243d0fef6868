"""Kernel PCA of all samples, by the kernel matrix computed from inner products; samples need not fit in memory.

Inner products of all pairs are added up over ranges of features, as in the dual method. Kernels of differences use
inner products about the mean, so that |x - y|^2 = |x|^2 - 2 x.y + |y|^2 has all its digits; other kernels use those
about zero. The matrix is turned into the kernel matrix in place, centred in feature space and solved. The result is the
exact feature map whose landmarks are all samples, with one feature for each component. A new sample is compared with
every fitted sample; these are read from the source, or from the model once it is stored.

Residuals are computed from the matrix itself in float64; products in single precision are exact here.

Cost: n^2 p flops for the matrix, n^2 values of the kernel, 8/3 n^3 for a dense solve.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from ...accumulators.gram import CentredGram, centre_products
from ...arrays import Float64
from ...eigensolvers import Solution, fix_signs
from ...eigensolvers.error_bounds import angle_bounds
from ...errors import DataError, RequestError
from ...machine import hand_back
from ...planning.blocks import Span, blocks_of
from ...planning.kernel_matrix import KERNEL_COLUMNS
from ...preprocessing import Prepared
from ...preprocessing.feature_map import KernelMap
from ...preprocessing.kernels import OF_DIFFERENCES, Kernel
from ...preprocessing.landmark_rows import RowsOfCollection
from .dual import Reads
from .gram_pairs import RANK
from .job import Decomposition, Job
from .leading_pairs import leading_pairs, next_value, residuals_of
from .scratch_copy import scratch_copy

# Rounding of a sum of n values of the kernel, relative to n times the largest.
ROUNDING = 8 * float(np.finfo(np.float64).eps)

# Sum of the kernel of a sample with all others, below which it is like none of them.
ALONE = 0.01


def fit_kernel_matrix(job: Job) -> Decomposition:
    """Carry out a plan of method 'kernel-matrix'.

    Raises
    ------
    DataError
        If a sample, or the kernel of two samples, is NaN or infinite, or no eigenvalue is above 0.
    RequestError
        If the kernel has negative eigenvalues beyond rounding.
    OutputError
        If a scratch copy cannot be written.
    """
    collection, plan, weights = job.collection, job.plan, job.weights
    assert isinstance(collection, Prepared) and collection.pending is not None  # noqa: S101,PT018 - as it is planned
    differs = collection.pending.kernel.name in OF_DIFFERENCES
    with scratch_copy(job) if plan.schedule == "scratch" else nullcontext(collection) as source:
        sums = Reads(source, job).gram(about="mean" if differs else "zero", centres=collection.n_features)
    hand_back()
    # The kernel replaces the inner products in the same memory.
    matrix, origin = sums.products()
    # Samples of weight 0 do not influence a default gamma.
    counted = np.arange(len(matrix)) if weights is None else np.flatnonzero(weights)
    kernel = collection.pending.kernel.resolved_by_products(matrix, collection.n_features, counted)
    _make_kernel(matrix, kernel)
    means, level = centre_products(matrix, weights)
    trace, rounding = float(matrix.trace()), ROUNDING * len(matrix) * float(np.abs(means).max())
    if not trace > len(matrix) * rounding:
        raise DataError(f"{collection.source} has no variance in the features of kernel {kernel}; give another kernel.")
    if kernel.name == "rbf" and weights is None and float(np.median(means)) * len(matrix) < 1 + ALONE:
        job.warn(
            f"the kernel matrix is nearly the identity, so that all components are alike: gamma = {kernel.gamma:.4g} "
            "is too large; give --gamma auto (gamma='auto'), or a smaller number."
        )
    centred = CentredGram(matrix, trace, np.zeros((0, 0)), np.zeros((0, 0)))
    solution = leading_pairs(centred, plan, job.listener, job.total_weight, signed=True)
    solution = _above_rounding(solution, kernel, rounding)
    asked, values = plan.request.n_components, solution.values
    if isinstance(asked, int) and len(values) < asked:
        job.warn(f"the features of kernel {kernel} span {len(values)} dimensions; there are no more components.")
    residuals = residuals_of(centred, values, solution.vectors)
    # Rounding of centring, and of the matrix itself.
    residuals += max(rounding, ROUNDING * len(matrix) * float(values[0]))
    roots = np.ones(len(matrix)) if weights is None else np.sqrt(weights)
    if weights is not None:  # by the scores, which are the vectors divided by the roots: weights do not decide
        fix_signs(solution.vectors, by=solution.vectors[counted] / roots[counted, None])
    # Centring made the vectors orthogonal to the roots; a part along them, due to rounding, would multiply the mean.
    factors = solution.vectors - np.outer(roots, (roots @ solution.vectors) / float(roots @ roots))
    factors *= roots[:, None]
    factors /= np.sqrt(values)
    landmarks = RowsOfCollection(collection, collection.states() if job.states is None else job.states)
    mapped = KernelMap(
        kernel=kernel,
        landmarks=np.asarray(landmarks) if collection.holds_landmarks else landmarks,
        weights=np.ascontiguousarray(factors.T),
        offset=factors.T @ means,
        origin=origin,
        level=np.array(level),
    )
    return _decomposed(solution, residuals, trace, mapped, job)


def _make_kernel(products: Float64, kernel: Kernel) -> None:
    """Replace inner products of samples by the kernel, in place, in the upper triangle."""
    # The diagonal is overwritten with the first columns.
    squares = products.diagonal().copy()
    for columns in blocks_of(Span(0, len(products)), KERNEL_COLUMNS):
        tile = products[: columns.stop, slice(*columns)]
        tile[...] = kernel.of_products(tile.copy(), squares[: columns.stop], squares[slice(*columns)])
        if not np.isfinite(tile).all():
            raise DataError(f"kernel {kernel} of some samples is NaN or infinite; give a smaller gamma or degree.")


def _above_rounding(solution: Solution, kernel: Kernel, rounding: float) -> Solution:
    """Return the pairs with eigenvalues above rounding; refuse a kernel with negative ones."""
    values, spectrum = solution.values, solution.spectrum
    rounding = max(rounding, RANK * float(values[0]))
    if spectrum is not None and spectrum[-1] < -100 * rounding and kernel.name != "sigmoid":
        raise RequestError(
            f"kernel {kernel} of the samples has the eigenvalue {spectrum[-1]:.3g} (its largest is {values[0]:.3g}): "
            "it is no inner product of any features. Give another kernel."
        )
    count = int(np.count_nonzero(values > rounding))
    return replace(solution.first(count), next_value=0.0) if count < len(values) else solution


def _decomposed(solution: Solution, residuals: Float64, trace: float, mapped: KernelMap, job: Job) -> Decomposition:
    """Return the decomposition of mapped samples, whose features are the components themselves."""
    values, spectrum, weights = solution.values, solution.spectrum, job.weights
    n, k = job.collection.n_samples, len(values)
    weight = float(n if weights is None else weights.sum())
    after, eigenvalues = next_value(solution, n - 1), None if spectrum is None else np.maximum(spectrum[: n - 1], 0.0)
    fields: dict[str, Any] = {
        "residual_estimate": residuals / values,
        "left_out": 0.0,
        "checked_rows": n,
        "references": np.empty((0, job.collection.n_features), job.collection.dtype),
    }
    return Decomposition(
        mean=np.zeros(k),
        components=np.eye(k),
        explained_variance=values / (weight - 1),
        residual_bound=residuals / values,
        angle_bound=angle_bounds(values, residuals, after),
        eigenvalues=None if eigenvalues is None else eigenvalues / (weight - 1),
        # Negative eigenvalues, which kernel "sigmoid" has, do not count.
        total_variance=(trace if eigenvalues is None else float(eigenvalues.sum())) / (weight - 1),
        n_samples=n if weights is None else int(np.count_nonzero(weights)),
        total_weight=weight,
        kind="kernel-pca",
        own_fields=fields,
        mapped=mapped,
    )
