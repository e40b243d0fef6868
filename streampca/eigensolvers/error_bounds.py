"""Error bounds for claimed eigenpairs from a few random probes, whatever computed the pairs.

With W Gaussian, p x q, independent of everything, and Y = S W computed by separate products, each
g = Y^T v - theta W^T v is Gaussian with variance |S v - theta v|^2 in every entry. So |S v - theta v| <= |g| / sqrt(c)
except with probability delta, for c the delta quantile of chi-square with q degrees of freedom. A union bound over k
pairs uses delta / k for each. For q = 8, delta = 1e-6 and k = 50 the bound is about 12 times the truth. It includes the
rounding of Y. If S is exact and Y is not, residuals are better computed from S itself, in float64 (`certificate_of`).

A residual r has these consequences: some eigenvalue lies within r; the angle of the direction is at most r/gap, with
gap the distance of the next eigenvalue (Davis and Kahan, 1970). An eigenvalue lies within r^2/gap of v^T S v (Kato and
Temple, 1949), from which theta differs only by errors of the products: `value_bounds` adds a bound on these, from
`product_bounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv

from ..accumulators.blas import times
from ..arrays import Float64

LEAST_SQUARE = 1e-270  # sums of squares down to here lose nothing that counts to squares that do not fit float64
FAILURE = 1e-6  # probability that any bound of one kind is wrong: on residuals, on variances, on omitted variance


@dataclass(frozen=True)
class Certificate:
    """Bounds on the errors of k claimed pairs.

    Attributes
    ----------
    residual : ndarray of shape (k,)
        Bound on |S v - theta v|, in the units of the eigenvalues.
    relative : ndarray of shape (k,)
        Residual bound divided by theta; infinite where theta is zero.
    angle : ndarray of shape (k,)
        Bound on the angle between claimed and true direction, radians; NaN where neighbours are too close.
    """

    residual: Float64
    relative: Float64
    angle: Float64

    def of_stored(self, rounding: Float64 | float) -> Float64:
        """Return bounds on the angles of stored vectors, (k,), which differ from the unit vectors by so much."""
        angle = self.angle + np.arcsin(np.minimum(rounding, 1.0))
        return np.where(angle < 1, angle, np.nan)


@dataclass
class Sketch:
    """Products of k vectors with probes, added up over ranges of features, so that vectors need not fit in memory.

    Attributes
    ----------
    products, along : ndarray of shape (q, k)
        Y^T V and W^T V; 0 before anything is added.
    rounding : ndarray of shape (q, k)
        Error of Y along the vectors; 0 if unknown.
    """

    products: Float64 | float = 0.0
    along: Float64 | float = 0.0
    rounding: Float64 | float = 0.0

    def add(self, vectors: npt.NDArray[Any], directions: npt.NDArray[Any], products: npt.NDArray[Any]) -> None:
        """Add a range of w features: vectors (w, k) exactly as they are stored, W and Y, (w, q)."""
        vectors = vectors.astype(np.float64, copy=False)
        self.products = self.products + times(products.T.astype(np.float64, copy=False), vectors)
        self.along = self.along + times(directions.T.astype(np.float64, copy=False), vectors)

    def first(self, count: int) -> Sketch:
        """Return the sketch of the first vectors."""
        return Sketch(*(value[:, :count] if isinstance(value, np.ndarray) else value for value in vars(self).values()))

    def certificate(self, values: Float64, *, next_value: float | None = None, failure: float = FAILURE) -> Certificate:
        """Bound the residuals and angles of the pairs of these vectors and values; see `certify`."""
        products, rounding = np.asarray(self.products), np.asarray(self.rounding) if np.ndim(self.rounding) else None
        residual = product_bounds(products, self.along * values, rounding=rounding, failure=failure)
        return certificate_of(values, residual, next_value=next_value)


def certificate_of(values: Float64, residual: Float64, *, next_value: float | None = None) -> Certificate:
    """Return the certificate for bounds on the residuals of claimed pairs, (k,); see `certify`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(values > 0, residual / values, np.inf)
    return Certificate(residual, relative, angle_bounds(values, residual, next_value))


def certify(
    values: Float64,
    vectors: npt.NDArray[Any],
    *,
    directions: Float64,
    products: Float64,
    rounding: Float64 | None = None,
    next_value: float | None = None,
    failure: float = FAILURE,
) -> Certificate:
    """Bound the residuals and angles of claimed eigenpairs.

    Parameters
    ----------
    values : ndarray of shape (k,)
        Claimed eigenvalues, descending.
    vectors : ndarray of shape (p, k)
        Claimed unit eigenvectors, exactly as they are stored.
    directions, products : ndarray of shape (p, q)
        W and Y = S W.
    rounding : ndarray of shape (p, q), optional
        Measured error of Y.
    next_value : float, optional
        Eigenvalue k + 1 where it is known; the last pair's angle needs it.
    failure : float
        Probability that any of the bounds is wrong.
    """
    sketch = Sketch()
    sketch.add(vectors, directions, products)
    if rounding is not None:
        sketch.rounding = times(rounding.T.astype(np.float64, copy=False), vectors.astype(np.float64, copy=False))
    return sketch.certificate(values, next_value=next_value, failure=failure)


def product_bounds(
    products: Float64, claimed: Float64, *, rounding: Float64 | None = None, failure: float = FAILURE
) -> Float64:
    """Bound the errors of the products S v that a solver used.

    Parameters
    ----------
    products : ndarray of shape (q, k)
        Y^T V, for the vectors that the solver multiplied.
    claimed : ndarray of shape (q, k)
        W^T Z, for Z (p, k) the products that it used: for a Ritz pair theta v plus its own residual vector.
    rounding : ndarray of shape (q, k), optional
        Measured error of Y along the vectors.
    failure : float
        Probability that any of the bounds is wrong.

    Returns
    -------
    ndarray of shape (k,)
        Bounds in the units of the eigenvalues. They are small even for pairs that have not converged.
    """
    sketch = lengths(products - claimed)
    if rounding is not None:
        sketch += lengths(rounding)
    return np.asarray(sketch / quantile_root(len(products), failure / max(1, sketch.size)))


def quantile_root(count: int, failure: float) -> float:
    """Return what the length of so many standard normal numbers exceeds, except with this probability."""
    # The root of chi2.ppf(failure, count), without loading scipy.stats.
    return float(np.sqrt(2 * gammaincinv(count / 2, failure)))


def value_bounds(
    values: Float64, residual: Float64, next_value: float | None, product: Float64 | None = None
) -> Float64:
    """Bound the distance of each claimed eigenvalue to a true one, by r or by r^2/gap plus the error of the product.

    Parameters
    ----------
    values, residual : ndarray of shape (k,)
        Claimed eigenvalues, descending, and the bounds on their residuals.
    next_value : float or None
        See `certify`.
    product : ndarray of shape (k,), optional
        From `product_bounds`, for values that are v^T times the solver's product S v. Without it a value can be wrong
        by its whole residual, however far its neighbours are, because the residual can be rounding along v.

    Returns
    -------
    ndarray of shape (k,)
        Bounds in the units of the eigenvalues.
    """
    if product is None:
        return residual.copy()
    gap = gaps_around(values, residual, next_value) - product
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gap > 0, np.minimum(residual, product + residual**2 / gap), residual)


def lengths(columns: Float64) -> Float64:
    """Return the Euclidean norms of columns, shape (k,), whatever their scale.

    Squares of numbers below 1e-154 or above 1e154 do not fit float64, and a bound from them would be 0 or infinite.
    Where they might not fit, columns are divided by powers of two first, which rounds nothing.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = np.add.reduce(columns * columns, axis=0)
    if squares.min(initial=1.0) > LEAST_SQUARE and squares.max(initial=1.0) < 1 / LEAST_SQUARE:
        return np.sqrt(squares)  # type: ignore[no-any-return]
    largest = np.abs(columns).max(axis=0, initial=0.0)
    unit = np.ldexp(1.0, np.frexp(np.where(np.isfinite(largest), largest, 1.0))[1] - 1)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(unit * np.linalg.norm(columns / unit, axis=0))


def gaps_around(values: Float64, residual: Float64, next_value: float | None) -> Float64:
    """Return a lower bound on the distance of each claimed eigenvalue to the nearest other one; can be negative.

    The distance to a neighbour is reduced by both residuals. Without eigenvalue k + 1, the last distance is minus
    infinity. `next_value` can be a bound on all eigenvalues that are not claimed, and lie above some that are.
    """
    gaps = values[:-1] - residual[:-1] - values[1:] - residual[1:]
    last = -np.inf if next_value is None else np.inf
    nearest = np.minimum(np.append(np.inf, gaps), np.append(gaps, last))
    return np.asarray(nearest if next_value is None else np.minimum(nearest, values - residual - next_value))


def angle_bounds(values: Float64, residual: Float64, next_value: float | None) -> Float64:
    """Return each residual over the distance to the nearest other eigenvalue (`gaps_around`); NaN unless below 1."""
    nearest = gaps_around(values, residual, next_value)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((nearest > 0) & (nearest > residual), residual / nearest, np.nan)
