"""Generalised symmetric problem S_B v = mu S v with S_B of low rank, as in Fisher's discriminant analysis."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh, lapack, solve_triangular, svd

from ..arrays import Float64
from .signs import fix_signs


class Dependent(NamedTuple):
    """Feature that the features before it determine up to rounding, so that the problem has no solution."""

    feature: int


def solve_generalized(
    matrix: Float64, factor: Float64, *, ridge: float = 0.0, tolerance: float = 1e-12
) -> tuple[Float64, Float64] | Dependent:
    """Solve (D^T D + ridge I) v = mu S v for the largest mu.

    Parameters
    ----------
    matrix : ndarray of shape (p, p)
        Positive definite matrix S: its upper triangle, in Fortran order; overwritten.
    factor : ndarray of shape (c, p)
        Factor D of the matrix on the left.
    ridge : float, default=0.0
        Multiple of the identity added on the left, at least 0.
    tolerance : float
        Share of a feature's scatter up to which the part that the features before it do not determine is rounding.

    Returns
    -------
    values : ndarray of shape (m,)
        Eigenvalues mu, descending, with m = min(c, p).
    vectors : ndarray of shape (p, m)
        Eigenvectors V, with V^T S V = I and signs by `fix_signs`. Where S is singular, `Dependent` is returned instead.

    Notes
    -----
    Cost: p^3 / 3 flops and p^2 c, or 2 p^3 more with a ridge. Memory: 16 p c bytes, and 24 p^2 with a ridge.
    """
    diagonal = matrix.diagonal().copy()
    upper, order = lapack.dpotrf(matrix, lower=False, clean=True, overwrite_a=True)
    if order:  # of the leading minor that is not positive definite
        return Dependent(order - 1)
    # Squared diagonal of the Cholesky factor: scatter that earlier features do not determine.
    remaining = np.square(upper.diagonal())
    if (remaining <= tolerance * diagonal).any():
        return Dependent(int(np.argmin(remaining - tolerance * diagonal)))
    # With S = U^T U, the problem becomes an ordinary one for U^-T (D^T D + ridge I) U^-1.
    between = solve_triangular(upper, factor.T, trans=1, check_finite=False)
    if ridge:
        inverse = solve_triangular(upper, np.eye(len(upper)), trans=1, check_finite=False)
        whole = between @ between.T
        whole += ridge * (inverse @ inverse.T)
        del inverse
        size, count = len(whole), min(factor.shape)
        values, vectors = eigh(whole, overwrite_a=True, check_finite=False, subset_by_index=(size - count, size - 1))
        values, vectors = values[::-1], vectors[:, ::-1]
    else:
        # Without a ridge the left matrix has the factor U^-T D^T, whose SVD gives the pairs.
        vectors, roots, _ = svd(between, full_matrices=False, overwrite_a=True, check_finite=False)
        values = np.square(roots)
    return values, fix_signs(np.asfortranarray(solve_triangular(upper, vectors, check_finite=False)))
