"""Products of a tile: some features of samples, centred, with themselves or with those of other samples.

What `Gram` adds up, computed apart from it, so that several tiles can be worked on at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..planning.blocks import Span
from ..planning.sizes import CHECK_FEATURES
from .blas import among, times, update_among
from .centering import split, subtract, subtract_mean
from .probes import Directions
from .protocol import is_finite

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


class Tile(NamedTuple):
    """Some features of samples, to be multiplied with one another, or with those of other samples.

    Attributes
    ----------
    rows, values : Span, ndarray of shape (rows, width)
        Which samples, as stored.
    others, beside : Span, ndarray of shape (others, width)
        Those they meet; the same for products among themselves.
    centre : ndarray of shape (width,) or None
        Subtracted first; None for their own mean.
    probed : int or None
        Position of the first feature, which says what rows of W they meet; None where the tile is not probed.
    checked : bool
        Whether the rounding of the probes is measured.
    """

    rows: Span
    values: Array
    others: Span
    beside: Array
    centre: Array | None
    probed: int | None
    checked: bool

    @property
    def width(self) -> int:
        """Features."""
        return int(self.values.shape[1])

    def halves(self) -> Iterator[Tile]:
        """The tile's features in two parts."""
        middle = self.width // 2
        for part in (slice(0, middle), slice(middle, None)):
            yield self._replace(
                values=self.values[:, part],
                beside=self.beside[:, part],
                centre=None if self.centre is None else self.centre[part],
                probed=None if self.probed is None else self.probed + (part.start or 0),
            )


class Multiplied(NamedTuple):
    """What a tile's products are.

    Attributes
    ----------
    tile : Tile
    product : ndarray or None
        (rows, others), among themselves the upper triangle; None where it was added at once.
    largest : float
        Square of the longest centred row of whole numbers, which no partial sum exceeds; infinite or NaN where a
        product is.
    along, rounding : ndarray of shape (rows, 8) or None
        Of probes, and their error where it was measured.
    """

    tile: Tile
    product: Array | None
    largest: float
    along: Array | None
    rounding: Array | None


class Workspace:
    """Working memory for one tile at a time.

    Parameters
    ----------
    dtype : dtype
        Of products.
    most_features : int
        Of a tile.
    seed : int
        Of the probe directions.
    one_thread : bool
        Whether others are at work at the same time (`streampca.execution.threads`).
    """

    def __init__(self, dtype: np.dtype[Any], most_features: int, *, seed: int, one_thread: bool = False) -> None:
        self._dtype, self._most, self._one_thread = dtype, most_features, one_thread
        self._directions = Directions(seed)
        self._work: dict[str, Array] = {}
        self._product: Array | None = None

    def make_ready(self, rows: int, others: int, width: int, *, among: bool) -> None:
        """Take the memory that tiles of so many samples and features need.

        Here, not where it is used: what one of several threads has taken and given back stays in a pool of that
        thread's, and counts against the budget.
        """
        width = min(self._most, width)
        for name, count in (("rows", rows), ("others", 0 if among else others)):
            if name not in self._work or self._work[name].size < count * width:
                self._work[name] = np.empty(count * width, self._dtype)
        if among and self._dtype == np.float32 and (self._product is None or len(self._product) != rows):
            self._product = np.zeros((rows, rows), np.float32, order="F")

    def multiply(self, tile: Tile, total: Array | None = None) -> Multiplied:
        """Centre and multiply a tile; what is returned holds until the next.

        Parameters
        ----------
        tile : Tile
            What to multiply.
        total : ndarray of shape (rows, rows), optional
            Double precision: products of samples among themselves are added to this at once.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # the products will say so
            one = self._centred("rows", tile.values, tile.centre)
            if tile.rows != tile.others:
                other = self._centred("others", tile.beside, tile.centre)
                product = times(one, other.T, one_thread=self._one_thread)
                if tile.values.dtype.kind in "biu":
                    largest = float(max(_squares(one).max(), _squares(other).max()))
                else:
                    largest = 0.0 if is_finite(product) else np.inf
                return Multiplied(tile, product, largest, None, None)
            among, squares = self._among_themselves(one, total)
            return Multiplied(tile, among, float(squares.max()), *self._probed(tile, one))

    def _centred(self, name: str, values: Array, centre: Array | None) -> Array:
        """Values less their centre, or less their own mean, in the precision of products."""
        centred = self._work[name][: values.size].reshape(values.shape)
        if centre is None:
            subtract_mean(values, centred)
        else:
            subtract(values, split(centre, self._dtype), centred)
        return centred

    def _among_themselves(self, centred: Array, total: Array | None) -> tuple[Array | None, Array]:
        """The product of rows with one another, or None where it went to the total; and its diagonal."""
        if total is not None:
            before = total.diagonal().copy()
            if total.flags.f_contiguous:
                update_among(centred, total)
            else:
                product = np.zeros(total.shape, order="F")
                update_among(centred, product)
                total += product
            return None, total.diagonal() - before
        self._product = among(centred, self._product, one_thread=self._one_thread)
        return self._product, self._product.diagonal()

    def _probed(self, tile: Tile, centred: Array) -> tuple[Array | None, Array | None]:
        """Rows times W, and the error of that on some features."""
        if tile.probed is None:
            return None, None
        directions = self._directions.rows(tile.probed, tile.probed + tile.width)
        along = times(centred, directions.astype(self._dtype, copy=False), one_thread=self._one_thread)
        if not tile.checked or self._dtype == np.float64:
            return along, None
        exact = tile.values[:, :CHECK_FEATURES].astype(np.float64)
        exact -= exact.mean(axis=0)  # what that differs from the centre by is the same in every row: no rounding
        few = directions[:CHECK_FEATURES]
        off = times(centred[:, :CHECK_FEATURES], few, one_thread=self._one_thread).astype(np.float64)
        off -= times(exact, few.astype(np.float64), one_thread=self._one_thread)
        return along, off - off.mean(axis=0)


def _squares(centred: Array) -> Array:
    """Squares of the lengths of rows, (rows,)."""
    return np.einsum("ij,ij->i", centred, centred)  # type: ignore[no-any-return]
