"""Products of a centred tile, some features of every sample: apart from `Gram`, so that threads can compute them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, Float64, is_sparse
from ..planning.memory import CHECK_FEATURES
from .blas import times
from .centering import mean_parts, sum_of_parts
from .exact_products import EXACT_BELOW, Int64, SumCheck
from .integer_products import IntegerProducts, as_whole
from .probes import Directions
from .products import Block, Products, Sum


class FeatureTile(NamedTuple):
    """Tile: some features of every sample.

    Attributes
    ----------
    values : ndarray of shape (n, width)
        Values as stored.
    at : int
        Position of the first feature, which decides the rows of W.
    checked : bool
        If true, measure the rounding of the probes.
    whole : bool
        If true, all values are known to be whole numbers.
    """

    values: Array
    at: int
    checked: bool
    whole: bool = False

    @property
    def width(self) -> int:
        """Number of features."""
        return int(self.values.shape[1])

    def halves(self) -> Iterator[FeatureTile]:
        """Yield the tile's features in two parts."""
        middle = self.width // 2
        yield self._replace(values=self.values[:, :middle])
        yield self._replace(values=self.values[:, middle:], at=self.at + middle)


class Multiplied(NamedTuple):
    """Products of a tile.

    Attributes
    ----------
    tile : FeatureTile
    largest : float
        Square of the longest centred row, which no partial sum exceeds; infinite or NaN if a product is.
    centre : ndarray of shape (width,)
        Point that was subtracted from all samples.
    along, rounding : ndarray of shape (n, 8)
        Products with the probes, and their error, None if not measured.
    check : ndarray of shape (8, 8) or None
        Sums that verify those of whole numbers, see `SumCheck`.
    on_integer_units : bool
        If true, the product is exact, however large its diagonal is.
    """

    tile: FeatureTile
    largest: float
    centre: Float64
    along: Array
    rounding: Array | None
    check: Int64 | None
    on_integer_units: bool = False


class TileProducts:
    """Multiplies one tile at a time, in its own working memory.

    Parameters
    ----------
    products : Products
        Centres and multiplies tiles.
    most_features : int
        Largest number of features of a tile.
    seed : int
        Seed of the probe directions.
    centres : bool
        If true, tiles are centred before they are multiplied.
    integers : IntegerProducts, optional
        Multiplies tiles of whole numbers in place of `products`.
    """

    def __init__(
        self,
        products: Products[Any, Any],
        *,
        most_features: int,
        seed: int,
        centres: bool = True,
        integers: IntegerProducts | None = None,
    ) -> None:
        self._products, self._centres, self._integers = products, centres, integers
        self._most, self._directions = most_features, Directions(seed)

    def make_ready(self, n_samples: int, width: int) -> None:
        """Allocate the memory that tiles of these numbers of samples and features need.

        Called from the main thread: memory that one of several threads allocates and frees stays in a pool of that
        thread, and counts against the budget.
        """
        floating = (n_samples, n_samples) if self._integers is None else (0, 0)
        self._products.reserve(n_samples * min(self._most, width), floating)

    def add(self, total: Sum) -> None:
        """Add the latest product, which was not on integer units."""
        self._products.add(total)

    def multiply(self, tile: FeatureTile, total: Sum, check: SumCheck | None) -> Multiplied:
        """Centre a tile if required, and multiply it; the product is pending (`add`) until the next call.

        Parameters
        ----------
        tile : FeatureTile
            Tile to multiply.
        total : Sum
            Total, (n, n), to which products in double precision or on integer units are added at once.
        check : SumCheck or None
            Also multiplies whole numbers, as long as all products were exact.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # products are checked for NaN and infinity
            parts = mean_parts(tile.values, self._products.dtype, whole=tile.whole) if self._centres else ()
            centred, centre = self._products.centre(tile.values, parts), sum_of_parts(parts, tile.width)
            numbers = as_whole(tile.values) if self._integers and tile.whole and not is_sparse(tile.values) else None
            if self._integers and numbers:
                squares = self._integers.add_among(numbers, centre, total.values)
            else:
                squares = self._products.symmetric(centred, total)
            largest = float(squares.max())
            small = numbers is None or numbers.words.itemsize == 1 or largest < EXACT_BELOW
            checked = check.products(centred.T, small=small) if check and tile.whole else None
            return Multiplied(tile, largest, centre, *self._probed(tile, centred), checked, bool(numbers))

    def _probed(self, tile: FeatureTile, centred: Block) -> tuple[Array, Array | None]:
        """Return rows times W, and the rounding of this product on some features, if measured."""
        directions = self._directions.rows(tile.at, tile.at + tile.width)
        along = centred.times(directions.astype(centred.dtype, copy=False))
        if not tile.checked or centred.dtype == np.float64:
            return along, None
        exact = tile.values[:, :CHECK_FEATURES].astype(np.float64)
        # This mean differs from the centre by the same amount in every row; the last line removes that part.
        exact -= exact.mean(axis=0)
        few = directions[:CHECK_FEATURES]
        off = centred.T[:CHECK_FEATURES].T.times(few).astype(np.float64)
        off -= times(exact, few.astype(np.float64), one_thread=self._products.one_thread)
        return along, off - off.mean(axis=0)
