"""Components of the dual method that are larger than memory: written as they are made, and gone on with later."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ...eigensolvers import Sketch
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
        Whether what was begun before is there.
    """

    identity: str
    resumed: bool

    def ranges(self, most_features: int) -> list[Span]:
        """Ranges of features to be written one by one, in order."""

    def write(self, features: Span, values: Array) -> None:
        """Write components (k, width) of one of these ranges."""

    def sync(self) -> None:
        """Put what was written on disk, to be gone on with."""


class Written(Basis):
    """Components written to a sink as they are made; their signs are those of their vectors of samples.

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
        self._sketched = Sketch(shape[0])
        self._out = InOrder(sink, most_features, shape[0], dtype)

    def state(self) -> dict[str, Array]:
        """See `Basis.state`; components that were written are on disk when this returns, and not in it."""
        sketched = {f"{_SKETCH}{name}": array for name, array in self._sketched.state().items()}
        return {**super().state(), **sketched, **self._out.state()}

    def restore(self, state: dict[str, Array]) -> None:
        """See `Basis.restore`; the sink is one that goes on."""
        super().restore(state)
        sketched = {name.removeprefix(_SKETCH): array for name, array in state.items() if name.startswith(_SKETCH)}
        self._sketched = Sketch.from_state(sketched)
        self._out.restore(state)

    def _put(self, made: Range, values: Array) -> None:
        self._out.write(values)
        self._sketched.add(values.T, self._directions.rows(*made.features), made.products)

    def _sketch(self) -> Sketch:
        return self._sketched


def unfinished_components(state: dict[str, Array]) -> UnfinishedComponents:
    """What was written when a `Written` had this state."""
    return UnfinishedComponents(state["identity"].item(), state["written"].item())


class InOrder:
    """Puts ranges of any width together into those that a sink wants."""

    def __init__(self, sink: Sink, most_features: int, count: int, dtype: np.dtype[Any]) -> None:
        self._sink, self._ranges = sink, sink.ranges(most_features)
        self._number = 0  # of ranges that were written
        self._buffer = np.empty((count, max(features.size for features in self._ranges)), dtype)
        self._filled = 0

    def write(self, values: Array) -> None:
        """Take the next features, (k, width)."""
        taken = 0
        while taken < values.shape[1] and self._number < len(self._ranges):
            now = self._ranges[self._number]
            some = min(values.shape[1] - taken, now.size - self._filled)
            self._buffer[:, self._filled : self._filled + some] = values[:, taken : taken + some]
            self._filled += some
            taken += some
            if self._filled == now.size:
                self._sink.write(now, self._buffer[:, : self._filled])
                self._number, self._filled = self._number + 1, 0

    def state(self) -> dict[str, Array]:
        """What is not written yet, and how much is, on disk by now."""
        self._sink.sync()
        written = self._ranges[self._number - 1].stop if self._number else 0
        buffered = self._buffer[:, : self._filled]
        return {"identity": np.array(self._sink.identity), "written": np.array(written), "buffer": buffered}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on as when `state` was called."""
        written, buffered = unfinished_components(state).features, state["buffer"]
        self._number = [0, *(features.stop for features in self._ranges)].index(written)
        self._filled = buffered.shape[1]
        self._buffer[:, : self._filled] = buffered
