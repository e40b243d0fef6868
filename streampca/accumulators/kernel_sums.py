"""`KernelSums`: sums over tiles of two kernel matrices that give the Hilbert-Schmidt independence criterion.

References
----------
Gretton, Bousquet, Smola and Schölkopf (2005), Measuring statistical dependence with Hilbert-Schmidt norms.
Song, Smola, Gretton, Bedo and Borgwardt (2012), Feature selection via dependence maximization.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from ..arrays import Array, Float64
from ..planning.blocks import Span
from .plain_state import add_sums, restore_sums, sums_of

SUMS = ("product", "rows", "diagonals")


class Estimates(NamedTuple):
    """The biased estimate of the criterion, tr(K H L H) / (n - 1)^2, and the unbiased one."""

    biased: float
    unbiased: float


class KernelSums:
    """Accumulate sums over tiles of the upper triangles of two symmetric matrices K and L, both n x n.

    Parameters
    ----------
    n_samples : int
        n.

    Attributes
    ----------
    product : float
        Sum of K_ij L_ij.
    rows : ndarray of shape (2, n)
        Sums of the rows of K and of L.
    diagonals : ndarray of shape (2, n)
        Diagonals of both.

    Notes
    -----
    Adding a number to all entries of a matrix does not change the estimates. Subtract the approximate mean of the
    entries first, so that no digits are lost where entries are nearly equal.
    """

    def __init__(self, n_samples: int) -> None:
        self.n_samples, self.product = n_samples, 0.0
        self.rows, self.diagonals = np.zeros((2, n_samples)), np.zeros((2, n_samples))

    def update(self, first: Span, second: Span, tiles: tuple[Float64, Float64]) -> None:
        """Absorb the tiles of K and L between samples `first` and `second`, which are equal or come later."""
        same = first == second
        # A tile off the diagonal stands for its transpose too, whose row sums are its column sums.
        self.product += (1 if same else 2) * float(np.vdot(*tiles))
        for sums, diagonal, tile in zip(self.rows, self.diagonals, tiles, strict=True):
            sums[slice(*first)] += tile.sum(axis=1)
            if same:
                diagonal[slice(*first)] = tile.diagonal()
            else:
                sums[slice(*second)] += tile.sum(axis=0)

    def absorb(self, other: Self) -> None:
        """Add the tiles of another."""
        add_sums(self, other, SUMS)

    def estimates(self) -> Estimates:
        """Return both estimates, once all tiles are absorbed."""
        n, (k, m) = self.n_samples, self.rows
        biased = self.product - 2 / n * float(k @ m) + float(k.sum()) * float(m.sum()) / n**2
        # The unbiased estimate is over pairs of different samples: leave out the diagonals.
        product = self.product - float(np.vdot(*self.diagonals))
        k, m = self.rows - self.diagonals
        apart = float(k.sum()) * float(m.sum()) / ((n - 1) * (n - 2)) - 2 / (n - 2) * float(k @ m)
        return Estimates(biased / (n - 1) ** 2, (product + apart) / (n * (n - 3)))

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return the sums as plain arrays."""
        return sums_of(self, SUMS, copy=copy)

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> Self:
        """Return the sums whose `state` this is."""
        new = cls(state["rows"].shape[1])
        restore_sums(new, state, SUMS)
        return new
