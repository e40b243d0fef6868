"""Arrays that are computed when they are sliced (dask, and xarray over it), piece by piece: what is read is never kept.

And the other way round: collections as arrays that are computed when they are asked for.

Whoever wrote the graph says where it is computed: slices go through the array's own conversion to numpy, and so to the
scheduler that is set there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import machine
from ..errors import RequestError
from ..units import MIB
from .collection import Array, Collection, State, digest
from .stored.array import ObjectArray
from .stored.array_boxes import Box, largest_piece, pieces_of

if TYPE_CHECKING:  # dask.array takes half of the time of importing this package (with xarray, which it imports): on use
    import dask.array as da

LAZY_BLOCK_BYTES = 64 * MIB  # stored bytes to a chunk of a lazy array of a collection

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


def lazy_samples(collection: Collection) -> da.Array:
    """Return the samples of a collection as a lazy array of its shape; see `Collection.to_dask`."""
    if collection.mixed:
        raise RequestError(
            f"{collection.source} holds images of several sizes, which make no array; take them one by one, as "
            "collection[0], or prepare them, as by Preparation(resize=(64, 64))."
        )
    meta = collection.as_images(np.empty((0, collection.n_features), collection.dtype))
    return lazy_rows(collection, _Samples(collection), meta.shape[1:], meta.dtype)


class _Samples:
    """Rows of a collection in the shape of its samples."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection

    def __call__(self, rows: Array, start: int) -> Array:
        rows = rows if rows.flags.owndata else rows.copy()  # of an array in memory: results are their owner's
        return self._collection.as_images(rows)


def lazy_rows(
    collection: Collection,
    function: Callable[[Array, int], Array],
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
) -> da.Array:
    """Apply a function of blocks of samples to a collection: a lazy array of shape (n, *shape), chunked by samples.

    Parameters
    ----------
    collection : Collection
        It is in the graph once, and each chunk reads its own samples.
    function : callable
        ``function(rows, start)`` makes (m, *shape) of m rows of features, those of samples from number `start` on.
    shape, dtype
        Of what it makes of one row, and of its result.
    """
    import dask.array as da

    row_bytes = max(1, collection.n_features * collection.dtype.itemsize)
    rows = max(1, LAZY_BLOCK_BYTES // row_bytes)
    whole = rows // collection.chunks.samples * collection.chunks.samples
    rows, dtype = min(whole or rows, collection.n_samples), np.dtype(dtype)
    return da.from_array(
        _Mapped(collection, function, shape, dtype),
        chunks=(rows, *shape),
        # A name of its own: of an array in memory a fingerprint covers some values, and dask would take one for
        # another.
        name=False,
        asarray=False,
        getitem=_Mapped.rows,  # none of dask's own, into which it would fuse slices of the result
        meta=np.empty((0,) * (1 + len(shape)), dtype),
    )


class _Mapped:
    """A collection mapped row by row, as what `dask.array.from_array` slices."""

    def __init__(
        self,
        collection: Collection,
        function: Callable[[Array, int], Array],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._collection, self._function = collection, function
        self.shape, self.dtype = (collection.n_samples, *shape), dtype
        self.ndim = len(self.shape)

    def rows(self, key: tuple[slice, ...]) -> Array:
        """Map the samples of a chunk, whose other slices are whole axes."""
        start = key[0].start
        return self._function(self._collection.read(slice(start, key[0].stop)), start)


def _computable(array: Any) -> Any:
    """Return the dask array that an `xarray.DataArray` holds, or a dask array itself."""
    return getattr(array, "data", array)


def is_lazy(source: Any) -> bool:
    """Return whether an object is computed when it is converted to numpy."""
    graph = getattr(source, "__dask_graph__", None)
    return callable(graph) and graph() is not None and bool(getattr(source, "chunks", None))
