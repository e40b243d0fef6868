"""`Solution`: the leading eigenpairs that every solver returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..arrays import Float64


@dataclass(frozen=True)
class Solution:
    """Leading eigenpairs of a symmetric matrix.

    Attributes
    ----------
    values : ndarray of shape (k,)
        Eigenvalues, descending.
    vectors : ndarray of shape (p, k)
        Orthonormal eigenvectors as columns; signs by `fix_signs`.
    residuals : ndarray of shape (k,)
        The solver's own estimate of |S v - value v|.
    spectrum : ndarray of shape (p,) or None
        All eigenvalues, descending, if the solver computes them.
    passes : int
        Number of products with the matrix; 0 for a factorization.
    next_value : float or None
        Upper bound on the first eigenvalue that is not returned, as far as the solver can tell.
    """

    values: Float64
    vectors: Float64
    residuals: Float64
    spectrum: Float64 | None = None
    passes: int = 0
    next_value: float | None = None

    def scaled(self, factor: float) -> Solution:
        """Return the pairs of the matrix multiplied by a positive factor."""
        return replace(
            self,
            values=self.values * factor,
            residuals=self.residuals * factor,
            spectrum=None if self.spectrum is None else self.spectrum * factor,
            next_value=None if self.next_value is None else self.next_value * factor,
        )

    def first(self, count: int) -> Solution:
        """Return the leading `count` pairs, or all if there are fewer."""
        if count >= len(self.values):
            return self
        return replace(
            self,
            values=self.values[:count],
            vectors=self.vectors[:, :count],
            residuals=self.residuals[:count],
            next_value=float(self.values[count] + self.residuals[count]),
        )
