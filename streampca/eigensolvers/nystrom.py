"""Nystrom approximation of a semi-definite matrix from its products with a basis: a half step beyond Ritz pairs.

With K an orthonormal basis, S K = K T + W C. Ritz pairs use T alone. Nystrom's approximation S K T^-1 (S K)^T uses the
products whole: on the basis [K, W] it is [[T, C^T], [C, C T^-1 C^T]]. It differs from S outside of K only, where it is
smaller: so its eigenvalues are lower bounds, and the residual of v = K a + W b is at most |b| times the largest
eigenvalue of S outside of K. After one product with a block it gives what `randomized_svd` gives with ``n_iter=0``.

References
----------
A. Gittens, M. W. Mahoney, "Revisiting the Nystrom method for improved large-scale machine learning", JMLR 17, 2016.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from ..arrays import Float64
from .error_bounds import product_bounds
from .omitted_variance import KrylovBasis

NEGLIGIBLE = 1e-12  # share of the first Ritz value below which directions of the basis are left out of T^-1


def nystrom_pairs(projected: Float64, coupling: Float64, rounding: float) -> tuple[Float64, Float64]:
    """Return Nystrom's eigenvalues, descending, and eigenvectors in the basis [K, W], (m + l, m + l) columns.

    Parameters
    ----------
    projected, coupling : ndarray of shape (m, m), (l, m)
        T and C.
    rounding : float
        Error of the products, below which directions of the basis are left out of T^-1: it would be magnified.
    """
    values, vectors = eigh(np.block([[projected, coupling.T], [coupling, _corner(projected, coupling, rounding)]]))
    return values[::-1], vectors[:, ::-1]


def nystrom_error(
    krylov: KrylovBasis,
    vectors: Float64,
    *,
    directions: Float64,
    products: Float64,
    outside: float,
    rounding: Float64 | None,
    least: float,
) -> tuple[Float64, Float64]:
    """Bound the errors of the products S K that pairs are made of, and the distances of values from v^T S v, (k,) each.

    Parameters
    ----------
    krylov : KrylovBasis
        K, T, W and C.
    vectors : ndarray of shape (p, k)
        Eigenvectors.
    directions, products, rounding
        See `certify`.
    outside : float
        Bound on the largest eigenvalue of S outside of K.
    least : float
        Error of the products that `nystrom_pairs` was given.
    """
    basis, projected, block, coupling = krylov
    inside, across = basis.T @ vectors, block.T @ vectors
    claimed = (basis.T @ directions).T @ projected + (directions.T @ block) @ coupling
    errors = None if rounding is None else (basis.T @ rounding).T @ inside
    wrong = product_bounds((basis.T @ products).T @ inside, claimed @ inside, rounding=errors)
    # v^T S v takes the products twice, and of W^T S W only knows that it is between zero and the rest outside of K.
    corner = float(np.linalg.norm(_corner(projected, coupling, least), 2))
    return wrong, np.asarray(2 * wrong + max(outside, corner) * np.square(across).sum(axis=0))


def _corner(projected: Float64, coupling: Float64, rounding: float) -> Float64:
    """Return C T^-1 C^T."""
    values, turn = eigh(projected, check_finite=False)
    kept = values > max(NEGLIGIBLE * values[-1], rounding)
    half = (coupling @ turn[:, kept]) / np.sqrt(values[kept])
    return np.asarray(half @ half.T)
