"""Components of the dual method that are larger than memory: written as they are made, and resumable."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ...eigensolvers import Sketch, extremes, larger
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
    """Components written to a sink as they are made.

    Their signs follow from all loadings and so are known at the end only: then each tile is read again, and the rows
    to be negated are written again. That can break off anywhere. For every tile and component the sign of the largest
    loading there is part of the state, as it was first written, so a tile that is read tells which rows were negated
    before.

    Parameters
    ----------
    shape, dtype, seed
        As for `Basis`.
    sink : Sink
        Takes them.
    most_features : int
        Features to a range that is written.
    """

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any], seed: int, sink: Sink, most_features: int) -> None:
        super().__init__(shape, dtype, seed)
        self._sketched, self._sink = Sketch(shape[0]), sink
        self._ranges, self._tiles = sink.ranges(most_features), sink.ranges(1)
        self.n_tiles = len(self._tiles)
        self._largest = np.zeros(shape[0], dtype)  # loading of each component so far
        self._tile_signs = np.zeros((self.n_tiles, shape[0]), np.int8)
        self._buffer = np.empty((shape[0], max(features.size for features in self._ranges)), dtype)
        self._written = self._filled = 0  # features; the buffer holds those that follow

    def state(self) -> dict[str, Array]:
        """See `Basis.state`; components that were written are on disk when this returns, and not in it."""
        self._sink.sync()
        sketched = {f"{_SKETCH}{name}": array for name, array in self._sketched.state().items()}
        return {
            **super().state(),
            **sketched,
            "identity": np.array(self._sink.identity),
            "written": np.array(self._written),
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
        self._written, self._filled = unfinished_components(state).features, state["buffer"].shape[1]
        self._buffer[:, : self._filled] = state["buffer"]

    def _put(self, made: Range, values: Array) -> None:
        self._sketched.add(values.T, self._directions.rows(*made.features), made.products)
        taken = 0
        while taken < values.shape[1]:  # gathered into the ranges that the sink wants
            now = next(features for features in self._ranges if features.start == self._written)
            some = min(values.shape[1] - taken, now.size - self._filled)
            self._buffer[:, self._filled : self._filled + some] = values[:, taken : taken + some]
            self._filled += some
            taken += some
            if self._filled == now.size:
                self._note_signs(now, self._buffer[:, : now.size])
                self._sink.write(now, self._buffer[:, : now.size])
                self._written, self._filled = now.stop, 0

    def _note_signs(self, features: Span, values: Array) -> None:
        for number, tile in enumerate(self._tiles):
            if features.start <= tile.start < features.stop:
                found = extremes(values[:, tile.start - features.start : tile.stop - features.start])
                self._tile_signs[number] = np.sign(found)
                self._largest = larger(self._largest, found)

    def fix_tile_signs(self, number: int) -> None:
        """Write a tile again with the signs that all loadings give; what follows them already stays as it is."""
        turns = self._largest < 0
        self._buffer = self._buffer[:, :0].copy()  # the memory is for reading a tile
        if not turns.any():
            return
        tile, signs = self._tiles[number], self._tile_signs[number]
        values = self._sink.read(tile)
        wrong = np.flatnonzero(np.sign(extremes(values)) != np.where(turns, -signs, signs))
        for row in wrong:
            np.negative(values[row], out=values[row])
        if len(wrong):
            self._sink.write(tile, values)

    def _sketch(self) -> Sketch:
        return self._sketched


def unfinished_components(state: dict[str, Array]) -> UnfinishedComponents:
    """What was written when a `Written` had this state."""
    return UnfinishedComponents(state["identity"].item(), state["written"].item())
