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

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from ..arrays import Float64
from .error_bounds import product_bounds
from .krylov_basis import KrylovBasis

NEGLIGIBLE = 1e-12  # share of the first Ritz value below which directions of the basis are left out of T^-1


def nystrom_pairs(krylov: KrylovBasis, rounding: float) -> tuple[Float64, Float64]:
    """Return Nystrom's eigenvalues, descending, and eigenvectors in the basis [K, W], (m + l, m + l) columns.

    Parameters
    ----------
    krylov : KrylovBasis
        K, T, W and C.
    rounding : float
        Error of the products, below which directions of the basis are left out of T^-1: it would be magnified.
    """
    coupling = krylov.coupling
    values, vectors = eigh(np.block([[krylov.projected, coupling.T], [coupling, _corner(krylov, rounding)]]))
    return values[::-1], vectors[:, ::-1]


class NystromBounds(NamedTuple):
    """Bounds on the errors of Nystrom's pairs.

    Attributes
    ----------
    wrong, value : ndarray of shape (k,)
        Errors of the products S K that pairs are made of, and distances of values from v^T S v.
    outside : float
        Largest eigenvalue of S outside of the eigenvectors.
    """

    wrong: Float64
    value: Float64
    outside: float


def nystrom_bounds(
    krylov: KrylovBasis,
    vectors: Float64,
    *,
    directions: Float64,
    products: Float64,
    rest: float,
    rounding: Float64 | None,
    least: float,
) -> NystromBounds:
    """Bound the errors of pairs.

    Parameters
    ----------
    krylov : KrylovBasis
        K, T, W and C.
    vectors : ndarray of shape (p, k)
        Eigenvectors.
    directions, products, rounding
        See `certify`.
    rest : float
        Bound on the largest eigenvalue of S outside of K.
    least : float
        Error of the products that `nystrom_pairs` was given.
    """
    basis, block = krylov.basis, krylov.block
    inside, across = basis.T @ vectors, block.T @ vectors
    claimed = (basis.T @ directions).T @ krylov.projected + (directions.T @ block) @ krylov.coupling
    along = (basis.T @ products).T
    errors = None if rounding is None else (basis.T @ rounding).T
    wrong = product_bounds(along @ inside, claimed @ inside, rounding=None if errors is None else errors @ inside)
    # v^T S v takes the products twice, and of W^T S W only knows that it is between zero and the rest outside of K.
    corner = float(np.linalg.norm(_corner(krylov, least), 2))
    error = 2 * wrong + max(rest, corner) * np.square(across).sum(axis=0)
    wrong_of_all = 2 * float(np.linalg.norm(product_bounds(along, claimed, rounding=errors)))
    outside = _outside(krylov, np.vstack([inside, across]), rest)
    return NystromBounds(wrong, np.asarray(error), outside + wrong_of_all)


def _outside(krylov: KrylovBasis, vectors: Float64, rest: float) -> float:
    """Bound the largest eigenvalue of S outside of vectors in the basis [K, W], (m + l, k), by that outside of K.

    For x = K a + W b + c, with c outside of both, x^T S x is at most a^T T a + 2 b^T C a + rest (|b|^2 + |c|^2).
    """
    coupling = krylov.coupling
    form = np.block([[krylov.projected, coupling.T], [coupling, rest * np.eye(len(coupling))]])
    form -= vectors @ (vectors.T @ form)
    form -= (form @ vectors) @ vectors.T
    largest = eigh(form, eigvals_only=True, subset_by_index=(len(form) - 1, len(form) - 1))[0]
    return max(rest, float(largest))


def _corner(krylov: KrylovBasis, rounding: float) -> Float64:
    """Return C T^-1 C^T."""
    values, turn = krylov.ritz
    kept = values > max(NEGLIGIBLE * values[0], rounding)
    half = (krylov.coupling @ turn[:, kept]) / np.sqrt(values[kept])
    return np.asarray(half @ half.T)
