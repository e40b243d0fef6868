"""`KrylovBasis`: an orthonormal basis and the products of a matrix with it, and its Ritz pairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scipy.linalg import eigh

from ..arrays import Float64


@dataclass(frozen=True)
class KrylovBasis:
    """An orthonormal basis K, and what a solver computed of S on it.

    Attributes
    ----------
    basis : ndarray of shape (p, m)
        Orthonormal K.
    projected : ndarray of shape (m, m)
        K^T S K.
    block : ndarray of shape (p, l)
        Block, orthonormal and orthogonal to the basis; l can be 0.
    coupling : ndarray of shape (l, m)
        Matrix with (I - K K^T) S K = block @ coupling.
    pairs : (ndarray, ndarray), optional
        Ritz pairs, if the solver has computed them.
    """

    basis: Float64
    projected: Float64
    block: Float64
    coupling: Float64
    pairs: tuple[Float64, Float64] | None = None

    @cached_property
    def ritz(self) -> tuple[Float64, Float64]:
        """Ritz values, descending, and vectors, (m, m) columns, computed once: a solution and its bounds share them."""
        return self.pairs or ritz_pairs(self.projected)


def ritz_pairs(projected: Float64) -> tuple[Float64, Float64]:
    """Return Ritz values, descending, and vectors, (m, m) columns, of a projected matrix."""
    values, vectors = eigh(projected, check_finite=False)
    return values[::-1], vectors[:, ::-1]
