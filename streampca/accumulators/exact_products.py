"""Lengths of pieces of whole numbers whose float32 products are exact: then all sums are, whatever their order."""

from __future__ import annotations

EXACT_BELOW = 2.0**24  # float32 holds every whole number up to here
EXACT_SUMS_BELOW = 2.0**51  # float64 holds every whole number up to 4 times that, which moving a centre may take
FIRST_LENGTH = 256  # 256 uint8 differences stay exact whatever they are: 256 * 255^2 < 2^24
LEAST_LENGTH = 64  # shorter pieces cost more (adding the product to its sum) than exactness is worth


class ExactProducts:
    """Products of pieces, kept exact as long as the range of the data allows.

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
        Largest value on the diagonal of a product, divided by the length of the piece.
    """

    def __init__(self, precision: str, most: int) -> None:
        self.precision, self.most, self.exact, self.steepest = precision, most, True, 0.0

    def length(self, whole: bool) -> int:
        """Return how long the next piece is: as long as it stays exact, or the longest where that is out of reach."""
        if self.precision == "double" or not (whole and self.exact):
            return self.most
        if self.steepest == 0.0:
            return min(FIRST_LENGTH, self.most)
        length = int(0.8 * EXACT_BELOW / self.steepest) // LEAST_LENGTH * LEAST_LENGTH
        if length < LEAST_LENGTH:
            self.exact = False
            return self.most
        return min(length, self.most)

    def must_halve(self, largest: float, length: int, whole: bool) -> bool:
        """Take note of the largest value on a product's diagonal; return whether halves of the piece would be exact."""
        if self.precision == "double" or not (whole and self.exact):
            return False
        self.steepest = max(self.steepest, largest / length)
        if largest < EXACT_BELOW:
            return False
        if self.length(whole) < length:
            return True
        self.exact = False
        return False

    def absorb(self, other: ExactProducts) -> None:
        """Take note of the products of another."""
        self.exact, self.steepest = self.exact and other.exact, max(self.steepest, other.steepest)
