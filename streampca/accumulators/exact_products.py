"""Samples of whole numbers, and piece lengths at which their float32 products, and so all sums, are exact.

Every block is judged by its own values. Samples of a floating-point dtype that hold whole numbers of up to 16 bits, as
converted images do, are multiplied as exactly as integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

EXACT_BELOW = 2.0**24  # float32 holds every whole number up to here
EXACT_SUMS_BELOW = 2.0**51  # float64 holds every whole number up to 4 times that, which moving a centre can need
FIRST_LENGTH = 256  # 256 uint8 differences stay exact whatever they are: 256 * 255^2 < 2^24
LEAST_LENGTH = 64  # shorter pieces cost more (adding the product to its sum) than exactness is worth
LARGEST_WHOLE = 2**16 - 1  # largest whole number of a floating-point dtype that counts as one: int16 and uint16
TESTED = 2**16  # values tested for whole numbers at a time, in the cache: 0.5 ns each, of 12 with 784 features


def holds_whole_numbers(block: npt.NDArray[Any]) -> bool:
    """Return whether all values of a block are whole numbers; of a floating-point dtype, of up to 16 bits."""
    if block.dtype.kind != "f":
        return block.dtype.kind in "biu"
    step = max(1, TESTED // max(1, block.shape[1]))
    for start in range(0, len(block), step):
        rows = block[start : start + step]
        with np.errstate(invalid="ignore"):  # NaN and infinity are refused by the products
            if not (np.array_equal(np.rint(rows), rows) and np.abs(rows).max(initial=0) <= LARGEST_WHOLE):
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
