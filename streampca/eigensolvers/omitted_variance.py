"""Bounds on the largest variance outside a set of components, from the probes that bound their errors.

Let P be the projector on the span of the components V, R = (I - P) S (I - P) the rest of S, mu its largest eigenvalue
and u the direction of mu. With W Gaussian and independent of V, T = (I - P) S W equals R W up to a contribution of the
residuals of V. As S has no negative eigenvalue,

    T^T T = mu^2 z z^T + D,    z = W^T u Gaussian in R^q, D positive semi-definite and independent of z.

Let l_1 >= ... >= l_q be the eigenvalues of T^T T and d_1 >= ... >= d_q those of D. For D fixed, l_1 <= L holds for z in
the ellipsoid mu^2 z^T (L - D)^-1 z <= 1, whose Gaussian measure is at most that of the ball of equal volume: the
probability that a chi-square of q degrees of freedom is at most g / mu^2, with g the geometric mean of L - d_i. As
l_{i+1} <= d_i and 0 <= d_q, g is at most (l_1 (l_1 - l_2) ... (l_1 - l_q))^(1/q), which can be computed. So

    mu^2 <= g / c    except with probability delta, c the delta quantile of chi-square with q degrees of freedom,

whatever the rest of R is: no model of it is assumed. A single direction outside attains the bound. A long tail hides
single directions: for variances as 1/i and 8 probes the bound is 10 to 20 times the largest variance outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv

from ..accumulators.blas import times
from ..arrays import Float64
from .error_bounds import FAILURE, product_bounds
from .krylov_basis import KrylovBasis

PIECE = 2**22  # numbers of the vectors that are converted to float64 at a time


def outside_bound(
    vectors: npt.NDArray[Any],
    *,
    directions: Float64,
    products: Float64,
    residual: Float64 | None = None,
    rounding: Float64 | None = None,
    left: float = np.inf,
    failure: float = FAILURE,
) -> float:
    """Bound the largest eigenvalue of a positive semi-definite matrix outside the span of some vectors.

    Parameters
    ----------
    vectors : ndarray of shape (p, k)
        Vectors, orthonormal to float32, that are independent of the directions.
    directions, products : ndarray of shape (p, q)
        W and Y = S W.
    residual : ndarray of shape (k,), optional
        Bound on |S v - theta v| for each vector; or on the error of that vector, if the part of S V outside of the span
        has been subtracted from `products`.
    rounding : ndarray of shape (p, q), optional
        Measured error of Y.
    left : float
        Trace of S less the eigenvalues of the vectors, if known, which is an upper bound as well.
    failure : float
        Probability that the bound is wrong.

    Returns
    -------
    float
        Bound in the units of the eigenvalues; 0 if the vectors are a complete basis.

    Notes
    -----
    Cost: 8 p k q operations. Memory: p x q float64 numbers, and pieces of the vectors in float64.
    """
    (p, k), q = vectors.shape, directions.shape[1]
    if k >= p:
        return 0.0
    rest = np.array(products, dtype=np.float64)
    for _ in range(2):  # vectors rounded to float32 are not exactly orthogonal, so once is not enough
        along = _along(vectors, rest)
        for rows, piece in _pieces(vectors):
            rest[rows] -= times(piece, along)
    # Rounding and residuals change every singular value of the rest by at most their norm (Weyl).
    error = 0.0 if rounding is None else float(np.linalg.norm(rounding))
    if residual is not None:
        along = _along(vectors, directions)
        error += float(
            min(residual @ np.linalg.norm(along, axis=1), np.linalg.norm(residual) * np.linalg.norm(along, 2))
        )
        left = max(left, 0.0) + float(residual.sum())
    sizes = np.linalg.svd(np.linalg.qr(rest, mode="r"), compute_uv=False)
    largest = (sizes[0] + error) ** 2
    others = np.zeros(q - 1)  # if fewer than q directions remain, the other values are 0
    others[: len(sizes) - 1] = np.maximum(sizes[1:] - error, 0) ** 2
    with np.errstate(divide="ignore"):
        # g, the geometric mean of l_1 and l_1 - l_i; others are rounded down, which only raises it.
        mean = np.exp(np.mean(np.log(largest - np.append(0.0, others))))
    return float(min(np.sqrt(mean / (2 * gammaincinv(q / 2, failure))), left))


class RestOfBasis(NamedTuple):
    """Bounds on what a basis K leaves.

    Attributes
    ----------
    outside : float
        Largest eigenvalue of S outside of K.
    error : float
        Norm of the errors of the products S K.
    """

    outside: float
    error: float

    def beyond(self, krylov: KrylovBasis, claimed: int) -> float:
        """Bound the largest eigenvalue outside the leading Ritz pairs of the basis, given their number.

        The rest of S outside of them is [[Ritz values not claimed, C^T], [C, rest outside the basis]], for C the
        residual vectors of those not claimed.
        """
        values, turn = krylov.ritz
        if claimed >= len(values):
            return self.outside
        unclaimed = krylov.coupling @ turn[:, claimed:]
        across = float(np.linalg.norm(unclaimed, 2)) + self.error if unclaimed.size else self.error
        inside = float(values[claimed]) + self.error
        # Largest eigenvalue of the 2 x 2 matrix of norms of the blocks, which bounds that of the block matrix.
        return (inside + self.outside) / 2 + float(np.hypot((inside - self.outside) / 2, across))


def rest_of_basis(
    krylov: KrylovBasis,
    *,
    directions: Float64,
    products: Float64,
    rounding: Float64 | None = None,
    total: float = np.inf,
    failure: float = FAILURE,
) -> RestOfBasis:
    """Bound the largest eigenvalue outside a basis, which is smaller than that outside its leading pairs.

    A block Lanczos iteration knows the part of S K outside of its basis K: the block it would multiply next, times
    small numbers, which are nonzero only in the columns of the last block, or in all columns after a restart.

    Parameters
    ----------
    krylov : KrylovBasis
        Whole basis of the solver.
    directions, products, rounding
        See `outside_bound`.
    total : float
        Trace of S, if known.
    failure : float
        Probability that the bound is wrong, even if products in the solver were wrong.

    Notes
    -----
    Cost: 12 p m q operations. For variances as 1/i, 50 components and bases of 360 to 800 columns the bound is 3 to 6
    times the largest variance outside; for variances as 1/i^2 it is within 1 %.
    """
    # Two bounds share the probability: on the solver's products, and on the rest outside the basis.
    failure /= 2
    basis, block, coupling = krylov.basis, krylov.block, krylov.coupling
    along = _along(basis, directions)
    claimed_products = times(along.T, krylov.projected) + times(times(directions.T, block), coupling)
    errors = product_bounds(_along(basis, products).T, claimed_products, failure=failure)
    outside = outside_bound(
        basis,
        directions=directions,
        products=products - times(block, times(coupling, along)),
        residual=errors,
        rounding=rounding,
        left=total - float(krylov.ritz[0].sum()),
        failure=failure,
    )
    return RestOfBasis(outside, float(np.linalg.norm(errors)))


def _pieces(vectors: npt.NDArray[Any]) -> Iterator[tuple[slice, Float64]]:
    """Yield ranges of features and the vectors there in float64; all at once if that needs no copy."""
    if vectors.dtype == np.float64 and vectors.flags.forc:
        yield slice(None), vectors
        return
    width = max(1, PIECE // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), width):
        rows = slice(start, start + width)
        yield rows, vectors[rows].astype(np.float64, copy=False)


def _along(vectors: npt.NDArray[Any], others: Float64) -> Float64:
    """Return V^T X, (k, q)."""
    total = np.zeros((vectors.shape[1], others.shape[1]))
    for rows, piece in _pieces(vectors):
        total += times(piece.T, others[rows])
    return total
