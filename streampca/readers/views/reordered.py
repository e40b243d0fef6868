"""`Reordered`: a collection with the entries of some axes in another order, reordered block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...arrays import Array
from ...planning.blocks import Span, blocks_of
from ...storage.coordinate import Coordinate
from ..collection import Collection, Filled, State, digest
from ..coordinates import in_orders
from ..stored.layout import covering_box
from .blocks import piece_bytes, piece_rows
from .view import View


class Reordered(Filled, View):
    """The samples of another collection, with the entries of some of their axes in another order."""

    def __init__(self, base: Collection, orders: Mapping[int, npt.NDArray[np.intp]]) -> None:
        super().__init__(base)
        self.orders = dict(orders)
        # A read holds a piece of the base, and the reordered piece.
        decode = base.storage.decode_bytes + 2 * piece_bytes(base)
        self.storage = replace(base.storage, decode_bytes=decode, fills=True)

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of the base, in the new order."""
        axes = self.base.axes
        return self.base.coordinates if axes is None else in_orders(self.base.coordinates, axes, self.orders)

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Read the shortest run of the base's features that contains `features`, a piece of samples at a time."""
        if out.size == 0:
            return
        start, stop = (0, self.n_features) if features is None else (features.start, features.stop)
        # The covering box has one entry of each leading axis, a range of one axis, and whole axes after it, so that its
        # entries lie in one run of features of the base, too.
        box, cut = covering_box(start, stop, self.sample_shape)
        cut_axis = next((axis for axis, part in enumerate(box) if part.stop - part.start > 1), len(box) - 1)
        places = [self.orders.get(axis, np.arange(length))[box[axis]] for axis, length in enumerate(self.sample_shape)]
        first, last = int(places[cut_axis].min()), int(places[cut_axis].max())
        inner = math.prod(self.sample_shape[cut_axis + 1 :])
        leading = [int(place[0]) for place in places[:cut_axis]]
        lines = int(np.ravel_multi_index([*leading, 0], self.sample_shape[: cut_axis + 1])) if leading else 0
        run = slice((lines + first) * inner, (lines + last + 1) * inner)
        orders = {axis: places[axis] for axis in self.orders if axis > cut_axis}
        orders[cut_axis] = places[cut_axis] - first
        for span in blocks_of(Span(rows.start, rows.stop), piece_rows(self.base, run)):
            piece = self.base.read(slice(*span), run)
            piece = piece.reshape(len(piece), last + 1 - first, *self.sample_shape[cut_axis + 1 :])
            for axis, order in orders.items():
                piece = np.take(piece, order, axis=1 + axis - cut_axis)
            out[span.start - rows.start : span.stop - rows.start] = piece.reshape(len(piece), -1)[:, cut]

    def each(self, rows: slice, function: Callable[[int, Array], None]) -> None:
        """Call the function for the reordered images of the base; see `Collection.each`."""

        def ordered(at: int, image: Array) -> None:
            for axis, order in self.orders.items():
                image = np.take(image, order, axis=axis)
            function(at, image)

        self.base.each(rows, ordered)

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the base, combined with the orders."""
        orders = digest([(axis, order.tobytes()) for axis, order in sorted(self.orders.items())])
        return [state._replace(state=digest(state.state, orders)) for state in self.base.states(now=now)]
