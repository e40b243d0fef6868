"""`Converted`: a collection whose values are converted to another dtype as they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...arrays import Array
from ...planning.blocks import Span, blocks_of
from ..collection import Collection, Filled, State, digest
from ..common_dtype import WORKSPACE, convert
from .blocks import piece_bytes, piece_rows
from .view import View


def as_dtype(collection: Collection, dtype: np.dtype[Any]) -> Collection:
    """Return a collection with values of a dtype: itself, or a view that converts them."""
    return collection if collection.dtype == dtype else Converted(collection, dtype)


def conversion_bytes(base: Collection) -> int:
    """Return the bytes that a read holds to convert the values of a collection."""
    return piece_bytes(base) + WORKSPACE


class Converted(Filled, View):
    """The samples of another collection, with values of another dtype; see `convert` for what is refused."""

    def __init__(self, base: Collection, dtype: np.dtype[Any]) -> None:
        super().__init__(base)
        self.dtype, self.grows = dtype, base.grows
        decode = base.storage.decode_bytes + conversion_bytes(base)
        self.storage = replace(base.storage, decode_bytes=decode, fills=True)

    def of_base(self, change: Callable[[Collection], Collection]) -> Converted:
        """Return the samples of the base after a change, with values of the same dtype."""
        return Converted(change(self.base), self.dtype)

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Read and convert a piece of samples at a time; see `Collection.read_into`."""
        for span in blocks_of(Span(rows.start, rows.stop), piece_rows(self.base, features)):
            values = self.base.read(slice(*span), features)
            self._convert(values, out[span.start - rows.start : span.stop - rows.start], span.start)

    def each(self, rows: slice, function: Callable[[int, Array], None]) -> None:
        """Call the function for the converted images of the base; see `Collection.each`."""

        def convert_one(at: int, image: Array) -> None:
            out = np.empty((1, *image.shape), self.dtype)
            self._convert(np.ascontiguousarray(image)[None], out, rows.start + at)
            function(at, out[0])

        self.base.each(rows, convert_one)

    def _convert(self, values: Array, out: Array, first: int) -> None:
        convert(values, out, lambda at: self.base.named(first + at))

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the base, combined with the dtype."""
        return self._with_dtype(self.base.states(now=now))

    def states_of_first(self, n: int, *, now: bool = False) -> list[State] | None:
        """Return the states of the base's first samples, combined with the dtype."""
        states = self.base.states_of_first(n, now=now)
        return None if states is None else self._with_dtype(states)

    def begun(self, first: int = 0) -> int:
        """Delegate to the base."""
        return self.base.begun(first)

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Delegate to the base."""
        return self.base.settled(seconds, first, before)

    def _with_dtype(self, states: list[State]) -> list[State]:
        return [state._replace(state=digest(state.state, self.dtype.str)) for state in states]
