"""A check that exact sums are those of the samples that were read: V^T S V by products of their own.

V holds a few random whole numbers. Along them, samples of whole numbers are whole numbers, too, which float32 holds
wherever it holds the products that S is made of, so that sums of their squares and products must equal V^T S V in every
bit. Both are added up modulo 2^64, by int64, so that no sum is too large to be compared. Where they are equal, S is
right unless V missed the difference, E, which for each column has a probability below 0.1; all miss it with one of
about 1e-8. It costs a quarter of the probes (`probes`), whose rounding hides differences of up to 1e-6 of S.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .blas import times

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

UNITS = 4.0  # to a deviation: more would be missed less often, and overflow float32 in samples of many features
ALONG_BELOW = 2.0**22  # of sums along V in float32, parts of which stay below 2^24: beyond, they are made in float64
FLOAT64_BELOW = 2.0**53  # float64 holds every whole number up to here
WIDENED = 2**17  # values that are turned into float64 at a time
COLUMNS = 64  # of S that are turned into int64 at a time


class SumCheck:
    """The sum of (V^T x)(V^T x)^T over centred samples x of whole numbers, modulo 2^64.

    Parameters
    ----------
    directions : ndarray of shape (p, 8)
        Gaussian; V is made of them.
    dtype : dtype
        Of products, float32 or float64.

    Attributes
    ----------
    sums : ndarray of int64, shape (8, 8)
        About the centre that samples were given with.
    known : bool
        False where a state of an earlier version went on, which has no sums.
    """

    def __init__(self, directions: Array, dtype: np.dtype[Any], *, one_thread: bool = False) -> None:
        self._directions: Array = np.asfortranarray(np.rint(UNITS * directions), dtype)
        self._one_thread = one_thread
        self.sums: Int64 = np.zeros((directions.shape[1], directions.shape[1]), np.int64)
        self.known = True

    def products(self, samples: Array, *, small: bool = True) -> Int64:
        """Return the sums over centred samples, (rows, p); `small` says that all their values are below 2^12."""
        along: Array | None = None
        if small or samples.dtype == np.float64:
            along = times(samples, self._directions, one_thread=self._one_thread)
        if along is None or (samples.dtype == np.float32 and not np.abs(along).max(initial=0.0) < ALONG_BELOW):
            directions, step = self._directions.astype(np.float64), max(1, WIDENED // max(1, samples.shape[1]))
            along = np.empty((len(samples), directions.shape[1]))
            for start in range(0, len(samples), step):
                some = samples[start : start + step].astype(np.float64)
                along[start : start + step] = times(some, directions, one_thread=self._one_thread)
        along = along.astype(np.float64, copy=False)
        if len(along) * float(np.abs(along).max(initial=0.0)) ** 2 < FLOAT64_BELOW:  # 10 times as fast
            return _whole(times(along.T, along, one_thread=self._one_thread))
        numbers = _whole(along)
        return numbers.T @ numbers

    def recentre(self, weight: float, total: Float64, shift: Float64) -> None:
        """Move the centre by `shift`, given the weight and the sum of the centred samples."""
        directions = _whole(self._directions)
        along, moved = _whole(total) @ directions, _whole(shift) @ directions
        self.sums -= np.outer(along, moved) + np.outer(moved, along) - np.outer(moved, moved) * _whole(weight)

    def agrees(self, upper: Float64) -> bool | None:
        """Return whether V^T S V of a matrix, (p, p) in Fortran order, upper triangle, are these sums, if known."""
        if not self.known:
            return None
        directions = _whole(self._directions)
        found = np.zeros_like(self.sums)
        for start in range(0, len(upper), COLUMNS):
            stop = min(start + COLUMNS, len(upper))
            some = _whole(np.triu(upper[:stop, start:stop], -start))
            found += (directions[:stop].T @ some) @ directions[start:stop]
        found += found.T - (directions.T * _whole(upper.diagonal())) @ directions
        return bool(np.array_equal(found, self.sums))

    def absorb(self, other: SumCheck) -> None:
        """Add the sums of other samples, about the same centre."""
        self.sums += other.sums
        self.known = self.known and other.known

    def restore(self, state: dict[str, Array]) -> None:
        """Take over the sums of a state."""
        self.known = "check" in state
        if self.known:
            self.sums = np.array(state["check"])


def _whole(numbers: npt.ArrayLike) -> Int64:
    """Return whole numbers as int64; those of sums that are not exact, which are never compared, become any."""
    with np.errstate(invalid="ignore"):
        return np.asarray(numbers).astype(np.int64)
