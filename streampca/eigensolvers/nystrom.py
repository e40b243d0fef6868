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
from .pair_bounds import BEYOND, EPS, PairBounds, leading_bounds

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
    wrong : ndarray of shape (k,)
        Errors of the products S K that pairs are made of.
    outside : float
        Largest eigenvalue of S outside of the eigenvectors.
    pairs : PairBounds
        Errors of values, and angles.
    """

    wrong: Float64
    outside: float
    pairs: PairBounds


def nystrom_bounds(
    krylov: KrylovBasis,
    found: tuple[Float64, Float64],
    count: int,
    *,
    directions: Float64,
    products: Float64,
    rest: float,
    rounding: Float64 | None,
) -> NystromBounds:
    """Bound the errors of the leading pairs.

    For v_j = K a_j + W b_j, and r_i the residual of v_i, v_j^T r_i is at most |b_j| |r_i| and the error of the product
    S K a_j, as on K the pairs are those of the products. As S is symmetric, the same holds with i and j exchanged.

    Parameters
    ----------
    krylov : KrylovBasis
        K, T, W and C.
    found : ndarray of shape (m + l,) and (m + l, m + l)
        What `nystrom_pairs` returned.
    count : int
        Number of leading pairs to bound, k.
    directions, products, rounding
        See `certify`.
    rest : float
        Bound on the largest eigenvalue of S outside of K.
    """
    m = krylov.basis.shape[1]
    most = max(min(BEYOND * count, m), count)
    values, vectors = found[0][:most], found[1][:, :most]
    inside, across = vectors[:m], np.linalg.norm(vectors[m:], axis=0)
    drawn, along = (np.vstack([krylov.basis.T @ x, krylov.block.T @ x]) for x in (directions, products))
    errors = None if rounding is None else np.vstack([krylov.basis.T @ rounding, krylov.block.T @ rounding])
    residual = product_bounds(
        along.T @ vectors, drawn.T @ vectors * values, rounding=None if errors is None else errors.T @ vectors
    )
    claimed = drawn[:m].T @ krylov.projected + drawn[m:].T @ krylov.coupling
    wrong = product_bounds(
        along[:m].T @ inside, claimed @ inside, rounding=None if errors is None else errors[:m].T @ inside
    )
    of_all = product_bounds(along[:m].T, claimed, rounding=None if errors is None else errors[:m].T)
    # Rows of the small eigenproblem, which LAPACK solves to the rounding of its largest eigenvalue.
    left = krylov.projected @ inside + krylov.coupling.T @ vectors[m:] - inside * values
    solved = np.linalg.norm(left, axis=0) + EPS * float(values[0])
    one_way = wrong[:, None] + solved + np.outer(across, residual)
    outside = {
        size: _outside(krylov, vectors[:, :size], rest) + 2 * float(np.linalg.norm(of_all))
        for size in sorted({count, most})
    }
    pairs = leading_bounds(values, np.minimum(one_way, one_way.T), residual, outside, count)
    return NystromBounds(wrong[:count], outside[count], pairs)


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
