"""Bounds on the largest variance that a set of components leaves, from the probes that bound their errors.

Take P the projector on the span of the components V, R = (I - P) S (I - P) what they leave of S, mu its largest
eigenvalue, u the direction of it. With W Gaussian and independent of V, the columns of T = (I - P) S W are those of R W
but for what the residuals of V add. As S has no negative eigenvalue,

    T^T T = mu^2 z z^T + D,    z = W^T u Gaussian in R^q, D positive semi-definite and independent of z.

Let l_1 >= ... >= l_q be the eigenvalues of T^T T and d_1 >= ... >= d_q those of D. For D fixed, l_1 <= L holds for z in
the ellipsoid mu^2 z^T (L - D)^-1 z <= 1, whose Gaussian measure is at most that of the ball of equal volume: the chance
that a chi-square of q degrees of freedom is at most g / mu^2, with g the geometric mean of L - d_i. As l_{i+1} <= d_i
and 0 <= d_q, the same g taken from what is seen, (l_1 (l_1 - l_2) ... (l_1 - l_q))^(1/q), is no smaller. So

    mu^2 <= g / c    except with probability delta, c the delta quantile of chi-square with q degrees of freedom,

whatever else was left outside: no model of the rest is assumed. A single direction left outside attains it. A long
tail hides single directions: for variances as 1/i and 8 probes the bound is 10 to 20 times the largest one left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.special import gammaincinv

from ..accumulators.blas import times
from .error_bounds import FAILURE, product_bounds

Float64 = npt.NDArray[np.float64]

PIECE = 2**22  # numbers of the vectors that are float64 at a time


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
    """Bound the largest eigenvalue of what vectors leave of a positive semi-definite matrix.

    Parameters
    ----------
    vectors : ndarray of shape (p, k)
        Orthonormal, to float32; chosen independently of the directions.
    directions, products : ndarray of shape (p, q)
        W and Y = S W.
    residual : ndarray of shape (k,), optional
        Bound on |S v - theta v| for each vector; or on how wrong that was, where what S V has outside of the span was
        taken off `products`.
    rounding : ndarray of shape (p, q), optional
        Measured error of Y.
    left : float
        Trace of S less the eigenvalues of the vectors, where it is known: nothing left is larger.
    failure : float
        Probability that the bound is wrong.

    Returns
    -------
    float
        In the units of the eigenvalues; 0 where the vectors are a whole basis.

    Notes
    -----
    Costs 8 p k q operations and p x q float64 numbers; of the vectors only pieces become float64.
    """
    (p, k), q = vectors.shape, directions.shape[1]
    if k >= p:
        return 0.0
    rest = np.array(products, dtype=np.float64)
    for _ in range(2):  # once leaves what rounding the vectors to float32 does to their being orthogonal
        _take_off(rest, vectors)
    error = 0.0 if rounding is None else float(np.linalg.norm(rounding))
    if residual is not None:
        along = _along(vectors, directions)
        error += float(
            min(residual @ np.linalg.norm(along, axis=1), np.linalg.norm(residual) * np.linalg.norm(along, 2))
        )
        left = max(left, 0.0) + float(residual.sum())
    sizes = np.linalg.svd(np.linalg.qr(rest, mode="r"), compute_uv=False)
    largest = (sizes[0] + error) ** 2
    others = np.zeros(q - 1)  # where fewer than q directions are left, the others are none
    others[: len(sizes) - 1] = np.maximum(sizes[1:] - error, 0) ** 2
    with np.errstate(divide="ignore"):
        mean = np.exp(np.mean(np.log(largest - np.append(0.0, others))))
    return float(min(np.sqrt(mean / (2 * gammaincinv(q / 2, failure))), left))


def outside_bound_of_basis(
    basis: Float64,
    projected: Float64,
    block: Float64,
    coupling: Float64,
    claimed: int,
    *,
    directions: Float64,
    products: Float64,
    rounding: Float64 | None = None,
    total: float = np.inf,
    failure: float = FAILURE,
) -> float:
    """Bound the largest eigenvalue of what the leading Ritz pairs of a basis leave, by the whole of the basis.

    What the whole basis leaves is less, and is bounded by `outside_bound`. What the claimed pairs leave is then
    [[Ritz values not claimed, C^T], [C, what the basis leaves]], for C the residual vectors of those not claimed.

    A block Lanczos iteration knows what S K has outside of its basis K: the block it would multiply next, times small
    numbers, which are zero but for the columns of the last block, or for all of them after a restart.

    Parameters
    ----------
    basis : ndarray of shape (p, m)
        Orthonormal K.
    projected : ndarray of shape (m, m)
        K^T S K, as the solver knows it.
    block : ndarray of shape (p, l)
        Orthonormal, and orthogonal to the basis; l may be 0.
    coupling : ndarray of shape (l, m)
        With (I - K K^T) S K = block @ coupling, as the solver knows it.
    claimed : int
        How many Ritz pairs are claimed.
    directions, products, rounding
        See `outside_bound`.
    total : float
        Trace of S, where it is known.
    failure : float
        Probability that the bound is wrong, be it for wrong products in the solver.

    Notes
    -----
    Costs 12 p m q operations. For variances as 1/i, 50 components and bases of 360 to 800 columns it is 3 to 6 times
    the largest one left; where they decay as 1/i^2, within 1 %.
    """
    failure /= 2
    along = _along(basis, directions)
    taken = times(along.T, projected) + times(times(directions.T, block), coupling)
    wrong = product_bounds(_along(basis, products).T, taken, failure=failure)
    values, turn = (turned[..., ::-1] for turned in eigh(projected, check_finite=False))
    outside = outside_bound(
        basis,
        directions=directions,
        products=products - times(block, times(coupling, along)),
        residual=wrong,
        rounding=rounding,
        left=total - float(values.sum()),
        failure=failure,
    )
    if claimed >= len(values):
        return outside
    unclaimed, error = coupling @ turn[:, claimed:], float(np.linalg.norm(wrong))
    across = float(np.linalg.norm(unclaimed, 2)) + error if unclaimed.size else error
    inside = float(values[claimed]) + error
    return (inside + outside) / 2 + float(np.hypot((inside - outside) / 2, across))


def _pieces(vectors: npt.NDArray[Any]) -> Iterator[tuple[slice, Float64]]:
    """Ranges of features, and the vectors there in float64; all at once where that copies nothing."""
    if vectors.dtype == np.float64 and vectors.flags.forc:
        yield slice(None), vectors
        return
    width = max(1, PIECE // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), width):
        rows = slice(start, start + width)
        yield rows, vectors[rows].astype(np.float64, copy=False)


def _along(vectors: npt.NDArray[Any], others: Float64) -> Float64:
    """V^T X, (k, q)."""
    total = np.zeros((vectors.shape[1], others.shape[1]))
    for rows, piece in _pieces(vectors):
        total += times(piece.T, others[rows])
    return total


def _take_off(rest: Float64, vectors: npt.NDArray[Any]) -> None:
    """Take from the columns of `rest`, in place, what lies along the vectors."""
    along = _along(vectors, rest)
    for rows, piece in _pieces(vectors):
        rest[rows] -= times(piece, along)
