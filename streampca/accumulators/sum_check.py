"""Check of exact sums against the samples that were read: V^T S V, computed by separate products.

V holds random whole numbers in a few columns. Products of V with samples of whole numbers are whole numbers, which
float32 holds exactly if it holds the products that form S, so sums of their squares and products must equal V^T S V in
every bit. Both are added up modulo 2^64, as int64, so that every sum can be compared. If they are equal, S is right
unless V misses an error of S. Each column misses it with a probability below 0.1, and all of them with about 1e-8. The
check costs a quarter of the probes (`probes`), whose rounding hides errors of up to 1e-6 of S.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .blas import times

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

UNITS = 4.0  # units per deviation of V: more would miss fewer errors, but overflow float32 with many features
ALONG_BELOW = 2.0**22  # largest float32 product with V, whose partial sums stay below 2^24; beyond, float64 is used
FLOAT64_BELOW = 2.0**53  # float64 holds every whole number up to here
WIDENED = 2**17  # values converted to float64 at a time
COLUMNS = 64  # columns of S converted to int64 at a time


class SumCheck:
    """Sum of (V^T x)(V^T x)^T over centred samples x of whole numbers, modulo 2^64.

    Parameters
    ----------
    directions : ndarray of shape (p, 8)
        Gaussian directions, from which V is rounded.
    dtype : dtype
        Dtype of products, float32 or float64.

    Attributes
    ----------
    sums : ndarray of int64, shape (8, 8)
        Sums about the centre of the samples.
    known : bool
        False after resuming from a state without sums.
    """

    def __init__(self, directions: Array, dtype: np.dtype[Any], *, one_thread: bool = False) -> None:
        self._directions: Array = np.asfortranarray(np.rint(UNITS * directions), dtype)
        self._one_thread = one_thread
        self.sums: Int64 = np.zeros((directions.shape[1], directions.shape[1]), np.int64)
        self.known = True

    def products(self, samples: Array, *, small: bool = True) -> Int64:
        """Return the sums over centred samples, (rows, p); `small` means that all their values are below 2^12."""
        along: Array | None = None
        if small or samples.dtype == np.float64:
            along = times(samples, self._directions, one_thread=self._one_thread)
        if along is None or (samples.dtype == np.float32 and not np.abs(along).max(initial=0.0) < ALONG_BELOW):
            # Too large for exact float32 products: repeat them in float64, a part of the samples at a time.
            directions, step = self._directions.astype(np.float64), max(1, WIDENED // max(1, samples.shape[1]))
            along = np.empty((len(samples), directions.shape[1]))
            for start in range(0, len(samples), step):
                wide = samples[start : start + step].astype(np.float64)
                along[start : start + step] = times(wide, directions, one_thread=self._one_thread)
        along = along.astype(np.float64, copy=False)
        if len(along) * float(np.abs(along).max(initial=0.0)) ** 2 < FLOAT64_BELOW:
            # Exact in float64, and 10 times as fast as a product of int64.
            return _whole(times(along.T, along, one_thread=self._one_thread))
        numbers = _whole(along)
        return numbers.T @ numbers

    def recentre(self, weight: float, total: Float64, shift: Float64) -> None:
        """Move the centre by `shift`, given the weight and the sum of the centred samples."""
        directions = _whole(self._directions)
        # All in int64, so that the moved sums stay exact modulo 2^64.
        along, moved = _whole(total) @ directions, _whole(shift) @ directions
        self.sums -= np.outer(along, moved) + np.outer(moved, along) - np.outer(moved, moved) * _whole(weight)

    def agrees(self, upper: Float64) -> bool | None:
        """Return whether V^T S V of a matrix, (p, p) in Fortran order, upper triangle, equals these sums, if known."""
        if not self.known:
            return None
        directions = _whole(self._directions)
        products = np.zeros_like(self.sums)
        for start in range(0, len(upper), COLUMNS):
            stop = min(start + COLUMNS, len(upper))
            columns = _whole(np.triu(upper[:stop, start:stop], -start))
            products += (directions[:stop].T @ columns) @ directions[start:stop]
        # The upper triangle and its transpose count the diagonal twice.
        products += products.T - (directions.T * _whole(upper.diagonal())) @ directions
        return bool(np.array_equal(products, self.sums))

    def absorb(self, other: SumCheck) -> None:
        """Add the sums of other samples, about the same centre."""
        self.sums += other.sums
        self.known = self.known and other.known

    def restore(self, state: dict[str, Array]) -> None:
        """Restore the sums from a state."""
        self.known = "check" in state
        if self.known:
            self.sums = np.array(state["check"])


def _whole(numbers: npt.ArrayLike) -> Int64:
    """Return whole numbers as int64; inexact sums, which are never compared, can become any number."""
    with np.errstate(invalid="ignore"):
        return np.asarray(numbers).astype(np.int64)
