"""Arrays that are computed when they are sliced (dask, and xarray over it), piece by piece: what is read is never kept.

Whoever wrote the graph says where it is computed: slices go through the array's own conversion to numpy, and so to the
scheduler that is set there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import machine
from ..units import MIB
from .collection import Array, State, digest
from .stored.array import ObjectArray
from .stored.array_boxes import Box, largest_piece, pieces_of

# Bytes computed at a time, a chunk at least: dask holds the slices of all its chunks, then puts them together.
_PIECE = 16 * MIB


class LazyArray(ObjectArray):
    """A dask array, or an `xarray.DataArray` over one."""

    def __init__(self, array: Any, source: str) -> None:
        # Only what dask keeps of an array without values, its meta, says before computing whether it may be masked.
        masked = isinstance(getattr(_computable(array), "_meta", None), np.ma.MaskedArray)
        super().__init__(array, source, masked=masked)
        self.chunk_shape = tuple(side or 1 for side in self.chunk_shape)
        self._most = _PIECE // self.dtype.itemsize
        piece = largest_piece(self.shape, self.chunk_shape, self._most) * self.dtype.itemsize
        chunk = math.prod(self.chunk_shape) * self.dtype.itemsize
        # The piece, the slices it is made of, and for each thread a chunk and what that is computed from.
        self.decode_bytes = 2 * piece + 2 * machine.cores() * chunk

    def read_into(self, box: Box, out: Array) -> None:
        """Compute the box piece by piece, cut at chunk edges."""
        for piece, inside in pieces_of(box, self.chunk_shape, self._most):
            out[inside] = self.read(piece)

    def _sliced(self, box: Box) -> Array:
        lazy = _computable(self.array[box])
        return np.asanyarray(lazy.compute() if hasattr(lazy, "compute") else lazy)

    def states(self, *, now: bool = False) -> list[State]:
        """Return the name of the graph's result, which dask derives from what it is made of when it is made."""
        return [State(0, self._source, digest(str(getattr(_computable(self.array), "name", ""))))]


def _computable(array: Any) -> Any:
    """Return the dask array that an `xarray.DataArray` holds, or a dask array itself."""
    return getattr(array, "data", array)


def is_lazy(source: Any) -> bool:
    """Return whether an object is computed when it is converted to numpy."""
    graph = getattr(source, "__dask_graph__", None)
    return callable(graph) and graph() is not None and bool(getattr(source, "chunks", None))
