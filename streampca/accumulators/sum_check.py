"""A check that exact sums are those of the samples that were read: V^T S V by products of their own.

V holds a few random whole numbers. Along them, samples of whole numbers are whole numbers, too, which float32 holds
wherever it holds the products that S is made of, so that sums of their squares and products must equal V^T S V in every
bit. Where they do, S is right unless V missed the difference, E, which for each column has a probability below 0.1; all
miss it with one of about 1e-8. It costs a quarter of the probes (`probes`), whose rounding hides differences of up to
1e-6 of S.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from .blas import times

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

UNITS = 4.0  # to a deviation: more would be missed less often, and overflow float32 in samples of many features
ALONG_BELOW = 2.0**22  # of sums along V in float32, parts of which stay below 2^24: beyond, they are made in float64
EXACT_BELOW = 2.0**53  # float64 holds every whole number up to here
ROUNDING = 1e-12  # of the largest sum, where sums are beyond


class SumCheck:
    """The sum of (V^T x)(V^T x)^T over centred samples x of whole numbers.

    Parameters
    ----------
    directions : ndarray of shape (p, 8)
        Gaussian; V is made of them.
    dtype : dtype
        Of products, float32 or float64.

    Attributes
    ----------
    sums : ndarray of shape (8, 8)
        About the centre that samples were given with; NaN where that is not known.
    """

    def __init__(self, directions: Array, dtype: np.dtype[Any], *, one_thread: bool = False) -> None:
        self._directions: Array = np.asfortranarray(np.rint(UNITS * directions), dtype)
        self._one_thread = one_thread
        self.sums: Float64 = np.zeros((directions.shape[1], directions.shape[1]))

    def products(self, samples: Array, *, small: bool = True) -> Float64:
        """Return the sums over centred samples, (rows, p); `small` says that all their values are below 2^12."""
        if small or samples.dtype == np.float64:
            along = times(samples, self._directions, one_thread=self._one_thread).astype(np.float64, copy=False)
        if samples.dtype == np.float32 and not (small and np.abs(along).max(initial=0.0) < ALONG_BELOW):
            along = times(samples.astype(np.float64), self._directions.astype(np.float64), one_thread=self._one_thread)
        return times(along.T, along, one_thread=self._one_thread)

    def recentre(self, weight: float, total: Float64, shift: Float64) -> None:
        """Move the centre by `shift`, given the weight and the sum of the centred samples."""
        along, moved = total @ self._directions, shift @ self._directions
        self.sums -= np.outer(along, moved) + np.outer(moved, along) - weight * np.outer(moved, moved)

    def agrees(self, upper: Float64) -> bool | None:
        """Return whether V^T S V of a matrix, (p, p) in Fortran order, upper triangle, are these sums, if known."""
        if not np.isfinite(self.sums).all():
            return None
        directions = self._directions.astype(np.float64)
        found = directions.T @ blas.dsymm(1.0, upper, directions)
        # No sum of products that is made on the way exceeds this: |S_ij|^2 <= S_ii S_jj.
        most = float(np.max(np.sqrt(upper.diagonal().clip(min=0.0)) @ np.abs(directions))) ** 2
        allowed = 0.0 if most < EXACT_BELOW else ROUNDING * float(np.abs(self.sums).max())
        return bool(np.abs(found - self.sums).max() <= allowed)
