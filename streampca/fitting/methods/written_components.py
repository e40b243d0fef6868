"""Components of the dual method that are larger than memory: written as they are made, and resumable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ...eigensolvers import Sketch, extremes, larger
from ...machine import hand_back
from ...planning.blocks import Span
from ...storage.components import UnfinishedComponents
from .dual_components import Array, Basis, Range

_SKETCH = "sketch_"  # what names of its arrays begin with


class Sink(Protocol):
    """Where components go that are larger than memory.

    Attributes
    ----------
    identity : str
        Of the components.
    resumed : bool
        Whether what was written before is there.
    """

    identity: str
    resumed: bool

    def ranges(self, most_features: int) -> list[Span]:
        """Ranges of features to be written one by one, in order."""

    def write(self, features: Span, values: Array) -> None:
        """Write components (k, width) of one of these ranges."""

    def read(self, features: Span) -> Array:
        """Return the components (k, width) of one of the shortest ranges, as they were written."""

    def sync(self) -> None:
        """Put what was written on disk, to be resumed from."""


class Written(Basis):
    """Components written to a sink as they are made, a tile of the storage at a time.

    Signs follow from all loadings and so are known at the end only: then each tile is read again, and rows to be
    negated are written again. That can break off anywhere. The state holds the sign of the largest loading of every
    tile and component as it was first written, so that a tile tells which of its rows were negated before.
    """

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any], seed: int, sink: Sink) -> None:
        super().__init__(shape, dtype, seed)
        self._sketched, self._sink, self._tiles = Sketch(shape[0]), sink, sink.ranges(1)
        self._largest = np.zeros(shape[0], dtype)  # loading of each component so far
        self._tile_signs = np.zeros((len(self._tiles), shape[0]), np.int8)
        self._buffer = np.empty((shape[0], max(features.size for features in self._tiles)), dtype)
        self._written = self._filled = 0  # tiles; features in the buffer, which are of the next tile

    def state(self) -> dict[str, Array]:
        """See `Basis.state`; components that were written are on disk when this returns, and not in it."""
        self._sink.sync()
        sketched = {f"{_SKETCH}{name}": array for name, array in self._sketched.state().items()}
        return {
            **super().state(),
            **sketched,
            "identity": np.array(self._sink.identity),
            "written": np.array(self._tiles[self._written - 1].stop if self._written else 0),
            "buffer": self._buffer[:, : self._filled],
            "largest": self._largest,
            "tile_signs": self._tile_signs,
        }

    def restore(self, state: dict[str, Array]) -> None:
        """See `Basis.restore`; the sink holds what was written."""
        super().restore(state)
        sketched = {name.removeprefix(_SKETCH): array for name, array in state.items() if name.startswith(_SKETCH)}
        self._sketched = Sketch.from_state(sketched)
        self._largest, self._tile_signs = state["largest"], state["tile_signs"]
        features = unfinished_components(state).features
        self._written, self._filled = sum(tile.stop <= features for tile in self._tiles), state["buffer"].shape[1]
        self._buffer[:, : self._filled] = state["buffer"]

    def _put(self, made: Range, values: Array) -> None:
        self._sketched.add(values.T, self._directions.rows(*made.features), made.products)
        taken = 0
        while taken < values.shape[1]:
            tile = self._tiles[self._written]
            some = min(values.shape[1] - taken, tile.size - self._filled)
            self._buffer[:, self._filled : self._filled + some] = values[:, taken : taken + some]
            self._filled += some
            taken += some
            if self._filled == tile.size:
                full = self._buffer[:, : tile.size]
                largest = extremes(full)
                self._tile_signs[self._written] = np.sign(largest)
                self._largest = larger(self._largest, largest)
                self._sink.write(tile, full)
                self._written, self._filled = self._written + 1, 0

    def fix_signs(self, after_tile: Callable[[], None]) -> None:
        """Negate components whose loading of largest magnitude is negative, a tile of the storage at a time."""
        self._buffer = self._buffer[:, :0].copy()  # the memory is for reading a tile
        negated = self._largest < 0
        for tile, signs in zip(self._tiles if negated.any() else [], self._tile_signs, strict=False):
            values = self._sink.read(tile)
            hand_back()  # what Zarr's threads decoded with stays in their pools, beside those of writing
            wrong = np.flatnonzero(np.sign(extremes(values)) != np.where(negated, -signs, signs))
            for row in wrong:
                np.negative(values[row], out=values[row])
            if len(wrong):
                self._sink.write(tile, values)
            del values
            hand_back()
            after_tile()

    def _sketch(self) -> Sketch:
        return self._sketched


def unfinished_components(state: dict[str, Array]) -> UnfinishedComponents:
    """Return what was written when a `Written` had this state."""
    return UnfinishedComponents(state["identity"].item(), state["written"].item())
