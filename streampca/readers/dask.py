"""Arrays that are computed when they are sliced (dask, and xarray over it), piece by piece: what is read is never kept.

Whoever wrote the graph says where it is computed: slices go through the array's own conversion to numpy, and so to the
scheduler that is set there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import machine
from ..errors import SourceError, StreampcaError, first_line
from ..storage.coordinate import Coordinate
from ..units import MIB
from .collection import Array, State, check_dtype, digest, unmasked, with_nan
from .stored.array import StoredArray
from .stored.axis_coordinates import object_attributes, object_coordinates
from .stored.boxes import Box, largest_piece, pieces_of

# Bytes computed at a time, a chunk at least: dask holds the slices of all its chunks, then puts them together.
_PIECE = 16 * MIB


class LazyArray(StoredArray):
    """A dask array, or an `xarray.DataArray` over one."""

    encoded = True

    def __init__(self, array: Any, source: str) -> None:
        self._array, self._source, self.attributes = array, source, object_attributes(array)
        # Only what dask keeps of an array without values, its meta, says before computing whether it may be masked.
        self._masked = isinstance(getattr(_computable(array), "_meta", None), np.ma.MaskedArray)
        self.shape, self.dtype = tuple(map(int, array.shape)), np.dtype(array.dtype)
        self.dtype = with_nan(check_dtype(self.dtype, source)) if self._masked else self.dtype
        self.chunk_shape = tuple(max(map(int, sizes), default=1) or 1 for sizes in array.chunks)
        piece = largest_piece(self.shape, self.chunk_shape, self._most()) * self.dtype.itemsize
        chunk = math.prod(self.chunk_shape) * self.dtype.itemsize
        # The piece, the slices it is made of, and for each thread a chunk and what that is computed from.
        self.decode_bytes = 2 * piece + 2 * machine.cores() * chunk

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of an `xarray.DataArray`."""
        return object_coordinates(self._array)

    def read_into(self, box: Box, out: Array) -> None:
        """Compute the box piece by piece, cut at chunk edges."""
        for piece, inside in pieces_of(box, self.chunk_shape, self._most()):
            out[inside] = self._computed(piece)

    def _computed(self, box: Box) -> Array:
        try:
            piece = self._array[box]
            lazy = _computable(piece)
            values = np.asanyarray(lazy.compute() if hasattr(lazy, "compute") else piece)
        except (StreampcaError, MemoryError):
            raise
        except Exception as error:  # whatever the graph's own functions raise
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise SourceError(f"{self._source} cannot be read ({reason}); check what it is made of.") from error
        values = self._without_mask(values)
        if values.dtype == self.dtype.newbyteorder():  # numpy unpickles arrays in the machine's own byte order
            values = values.astype(self.dtype, copy=False)
        expected = tuple(part.stop - part.start for part in box)
        if values.shape != expected or values.dtype != self.dtype:
            raise SourceError(
                f"{self._source} gave {values.dtype} values of shape {values.shape} for a slice of {self.dtype} values "
                f"of shape {expected}; give an array whose slices have its own dtype."
            )
        return values

    def _without_mask(self, values: Array) -> Array:
        """Return computed values with NaN for masked entries, in the dtype that the array was opened with."""
        found = unmasked(values)
        if found is not values and found.dtype != values.dtype and not self._masked:
            raise SourceError(
                f"{self._source} has masked values, of which its meta, an array that is not masked, says nothing; fill "
                "them with a number first (dask.array.ma.filled), or give map_blocks a masked meta."
            )
        return found.astype(self.dtype, copy=False) if self._masked else np.asarray(found)

    def _most(self) -> int:
        return _PIECE // self.dtype.itemsize

    def states(self, *, now: bool = False) -> list[State]:
        """Return the name of the graph's result, which dask derives from what it is made of when it is made."""
        return [State(0, self._source, digest(str(getattr(_computable(self._array), "name", ""))))]


def _computable(array: Any) -> Any:
    """Return the dask array that an `xarray.DataArray` holds, or a dask array itself."""
    return getattr(array, "data", array)


def is_lazy(source: Any) -> bool:
    """Return whether an object is computed when it is converted to numpy."""
    graph = getattr(source, "__dask_graph__", None)
    return callable(graph) and graph() is not None and bool(getattr(source, "chunks", None))
