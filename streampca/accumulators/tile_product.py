"""Products of a centred tile, some features of every sample: apart from `Gram`, so that threads can compute them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, Float64, is_sparse
from ..planning.memory import CHECK_FEATURES
from .blas import symmetric_product, times
from .centering import subtract_mean
from .exact_products import EXACT_BELOW, Int64, SumCheck
from .integer_products import IntegerProducts, as_whole
from .probes import Directions
from .sparse_rows import centred_rows, sparse_centre


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
    product : ndarray or None
        (n, n), upper triangle; None if it was added to the total.
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
    product: Array | None
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
    dtype : dtype
        Dtype of products.
    most_features : int
        Largest number of features of a tile.
    seed : int
        Seed of the probe directions.
    one_thread : bool
        Use one BLAS thread, because other threads compute at the same time (`streampca.execution.threads`).
    centres : bool
        If true, tiles are centred before they are multiplied.
    integers : IntegerProducts, optional
        Multiplies tiles of whole numbers in place of BLAS.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        most_features: int,
        *,
        seed: int,
        one_thread: bool = False,
        centres: bool = True,
        integers: IntegerProducts | None = None,
    ) -> None:
        self._centres, self._integers = centres, integers
        self._dtype, self._most, self._one_thread = dtype, most_features, one_thread
        self._directions = Directions(seed)
        self._work: Array = np.empty(0, dtype)
        self._product: Array | None = None

    def make_ready(self, n_samples: int, width: int) -> None:
        """Allocate the memory that tiles of these numbers of samples and features need.

        Called from the main thread: memory that one of several threads allocates and frees stays in a pool of that
        thread, and counts against the budget.
        """
        width = min(self._most, width)
        if self._work.size < n_samples * width:
            self._work = np.empty(n_samples * width, self._dtype)
        if self._dtype == np.float32 and self._product is None and self._integers is None:
            self._product = np.zeros((n_samples, n_samples), np.float32, order="F")

    def multiply(self, tile: FeatureTile, total: Array, check: SumCheck | None) -> Multiplied:
        """Centre a tile if required, and multiply it; the result is valid until the next call.

        Parameters
        ----------
        tile : FeatureTile
            Tile to multiply.
        total : ndarray of shape (n, n)
            Total, to which products in double precision or on integer units are added at once.
        check : SumCheck or None
            Also multiplies whole numbers, as long as all products were exact.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # products are checked for NaN and infinity
            centred, centre = self._centred(tile)
            numbers = as_whole(tile.values) if self._integers and tile.whole and not is_sparse(tile.values) else None
            if self._integers and numbers:
                squares = self._integers.add_among(numbers, centre, total)
            else:
                self._product, squares = symmetric_product(centred, total, self._product, one_thread=self._one_thread)
            largest = float(squares.max())
            small = numbers is None or numbers.words.itemsize == 1 or largest < EXACT_BELOW
            checked = check.products(centred.T, small=small) if check and tile.whole else None
            product = self._product if numbers is None else None
            return Multiplied(tile, product, largest, centre, *self._probed(tile, centred), checked, bool(numbers))

    def _centred(self, tile: FeatureTile) -> tuple[Array, Float64]:
        """Return rows less their centre, in working memory or sparse, and the centre."""
        if is_sparse(tile.values):
            centre = sparse_centre(tile.values) if self._centres else np.zeros(tile.width)
            centre = np.rint(centre) if tile.whole else centre
            return centred_rows(tile.values, centre), centre
        centred = self._work[: tile.values.size].reshape(tile.values.shape)
        if self._centres:
            return centred, subtract_mean(tile.values, centred, whole=tile.whole)
        np.copyto(centred, tile.values, casting="unsafe")
        return centred, np.zeros(tile.width)

    def _probed(self, tile: FeatureTile, centred: Array) -> tuple[Array, Array | None]:
        """Return rows times W, and the rounding of this product on some features, if measured."""
        directions = self._directions.rows(tile.at, tile.at + tile.width)
        along = times(centred, directions.astype(centred.dtype, copy=False), one_thread=self._one_thread)
        if not tile.checked or centred.dtype == np.float64:
            return along, None
        exact = tile.values[:, :CHECK_FEATURES].astype(np.float64)
        # This mean differs from the centre by the same amount in every row; the last line removes that part.
        exact -= exact.mean(axis=0)
        few = directions[:CHECK_FEATURES]
        off = times(centred[:, :CHECK_FEATURES], few, one_thread=self._one_thread).astype(np.float64)
        off -= times(exact, few.astype(np.float64), one_thread=self._one_thread)
        return along, off - off.mean(axis=0)
