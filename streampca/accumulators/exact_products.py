"""Samples of whole numbers: piece lengths at which their float32 products, and so all sums, are exact; and their check.

Every block is judged by its own values. Samples of a floating-point dtype that hold whole numbers of up to 16 bits, as
converted images do, are multiplied as exactly as integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64, is_sparse
from .blas import times
from .products import Block

Int64 = npt.NDArray[np.int64]

EXACT_BELOW = 2.0**24  # float32 holds every whole number up to here
EXACT_SUMS_BELOW = 2.0**51  # float64 holds every whole number up to 4 times that, which moving a centre can need
FIRST_LENGTH = 256  # 256 uint8 differences stay exact whatever they are: 256 * 255^2 < 2^24
LEAST_LENGTH = 64  # shorter pieces cost more (adding the product to its sum) than exactness is worth
LARGEST_WHOLE = 2**16 - 1  # largest whole number of a floating-point dtype that counts as one: int16 and uint16
TESTED = 2**16  # values tested for whole numbers at a time, in the cache: 0.5 ns each, of 12 with 784 features
UNITS = 4.0  # units per deviation of V: more would miss fewer errors, but overflow float32 with many features
ALONG_BELOW = 2.0**22  # largest float32 product with V, whose partial sums stay below 2^24; beyond, float64 is used
FLOAT64_BELOW = 2.0**53  # float64 holds every whole number up to here
WIDENED = 2**17  # values converted to float64 at a time
COLUMNS = 64  # columns of S converted to int64 at a time


def holds_whole_numbers(block: npt.NDArray[Any]) -> bool:
    """Return whether all values of a block are whole numbers; of a floating-point dtype, of up to 16 bits."""
    if block.dtype.kind != "f":
        return block.dtype.kind in "biu"
    block = block.data[:, None] if is_sparse(block) else block
    step = max(1, TESTED // max(1, block.shape[1]))
    for start in range(0, len(block), step):
        rows = block[start : start + step]
        with np.errstate(invalid="ignore"):  # NaN and infinity are refused by the products
            if not (np.array_equal(np.rint(rows), rows) and float(np.abs(rows).max(initial=0)) <= LARGEST_WHOLE):
                return False
    return True


class ExactProducts:
    """Lengths of pieces whose products stay exact as long as the range of the data allows.

    Parameters
    ----------
    precision : {"single", "double"}
        Precision of products.
    most : int
        Longest piece: rows, or features.

    Attributes
    ----------
    exact : bool
        Whether every product so far was exact.
    steepest : float
        Largest value on the diagonal of a product of whole numbers, divided by the length of the piece.
    """

    def __init__(self, precision: str, most: int) -> None:
        self.precision, self.most, self.exact, self.steepest = precision, most, True, 0.0

    def length(self, whole: bool) -> int:
        """Return the length of the next piece: the longest that stays exact, or `most` if no useful length does."""
        if self.precision == "double" or not whole:
            return self.most
        # Nothing is known of the data yet.
        if self.steepest == 0.0:
            return min(FIRST_LENGTH, self.most)
        # The diagonal of the next product can grow by a quarter before that piece has to be halved.
        length = int(0.8 * EXACT_BELOW / self.steepest) // LEAST_LENGTH * LEAST_LENGTH
        return min(length or self.most, self.most)

    def must_halve(self, largest: float, length: int, whole: bool) -> bool:
        """Record the largest value on a product's diagonal; return whether halves of the piece would be exact."""
        if self.precision == "single" and whole:
            self.steepest = max(self.steepest, largest / length)
            if largest >= EXACT_BELOW and self.length(whole) < length:
                return True
        self.exact = self.exact and self.is_exact(largest, whole)
        return False

    def is_exact(self, largest: float, whole: bool) -> bool:
        """Return whether a product is exact, given the largest value on its diagonal, which no partial sum exceeds."""
        return whole and (self.precision == "double" or largest < EXACT_BELOW)

    def absorb(self, other: ExactProducts) -> None:
        """Record the products of another."""
        self.exact, self.steepest = self.exact and other.exact, max(self.steepest, other.steepest)


class SumCheck:
    """Sum of (V^T x)(V^T x)^T over centred samples x of whole numbers, modulo 2^64.

    V holds random whole numbers in a few columns. Products of V with samples of whole numbers are whole numbers, which
    float32 holds exactly if it holds the products that form S, so sums of their squares and products must equal V^T S V
    in every bit. Both are added up modulo 2^64, as int64, so that every sum can be compared. If they are equal, S is
    right unless V misses an error of S. Each column misses it with a probability below 0.1, and all of them with about
    1e-8. The check costs a quarter of the probes (`probes`), whose rounding hides errors of up to 1e-6 of S.

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
        self._directions.flags.writeable = False  # a device keeps them
        self._one_thread = one_thread
        self.sums: Int64 = np.zeros((directions.shape[1], directions.shape[1]), np.int64)
        self.known = True

    def products(self, samples: Block, *, small: bool = True) -> Int64:
        """Return the sums over centred samples, (rows, p); `small` means that all their values are below 2^12."""
        along: Array | None = None
        rows, p = samples.shape
        if small or samples.dtype == np.float64:
            along = samples.times(self._directions)
        if along is None or (samples.dtype == np.float32 and not np.abs(along).max(initial=0.0) < ALONG_BELOW):
            # Too large for exact float32 products: repeat them in float64, a part of the samples at a time.
            directions, step = self._directions.astype(np.float64), max(1, WIDENED // max(1, p))
            along = np.empty((rows, directions.shape[1]))
            for start in range(0, rows, step):
                along[start : start + step] = samples[start : start + step].astype(np.float64).times(directions)
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
