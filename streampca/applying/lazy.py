"""Maps of rows as lazy dask arrays; nothing is read or computed before it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from ..collection import unmasked
from ..components import StoredComponents
from ..prepare import Frame
from ..readers import Collection
from .maps import prepared_first

Array = npt.NDArray[Any]
RowMap = Callable[[Array], Array]

LAZY_BLOCK_BYTES = 64 * 2**20  # stored bytes to a chunk of a lazy result


class _Rows:
    """A collection as an (n, p) array that can be sliced, for `dask.array.from_array`."""

    ndim = 2

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self.shape = (collection.n_samples, collection.n_features)
        self.dtype = collection.dtype

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        rows, features = key
        start, stop, _ = rows.indices(self.shape[0])
        left, right, _ = features.indices(self.shape[1])
        every = (left, right) == (0, self.shape[1])
        return self._collection.read(slice(start, stop), None if every else slice(left, right))


def lazy_rows(collection: Collection, block_rows: int | None = None) -> da.Array:
    """A collection as a lazy (n, p) dask array, chunked by samples."""
    row_bytes = max(1, collection.n_features * collection.dtype.itemsize)
    rows = block_rows or max(1, LAZY_BLOCK_BYTES // row_bytes)
    whole = rows // collection.chunks.samples * collection.chunks.samples
    rows = min(whole or rows, collection.n_samples)
    source, meta = _Rows(collection), np.empty((0, 0), collection.dtype)
    # A name of its own: of an array in memory a fingerprint covers some values, and dask would take one for another.
    return da.from_array(source, chunks=(rows, -1), name=False, asarray=False, meta=meta)


def lazy_components(components: StoredComponents) -> da.Array:
    """Components on disk as a lazy dask array, (k, *sample_shape), in the pieces in which they are read."""
    with components.reading() as array:
        chunks = array.shards or array.chunks
    return da.from_array(components, chunks=chunks, name=False, meta=np.empty((0,) * components.ndim, components.dtype))


def flat_rows(samples: da.Array, sample_ndim: int) -> da.Array:
    """A dask array of samples (n, *sample_shape) as (n, p) rows whose chunks hold whole samples."""
    if sample_ndim > 1:
        samples = samples.rechunk(dict.fromkeys(range(1, samples.ndim), -1))
        samples = samples.reshape(samples.shape[0], -1)
    return samples.rechunk({1: -1})


def map_rows(rows: da.Array, function: RowMap, *, shape: tuple[int, ...], dtype: npt.DTypeLike) -> da.Array:
    """Apply a map of rows, (m, p) to (m, *shape), to every chunk of a lazy array of rows."""
    dtype = np.dtype(dtype)
    return rows.map_blocks(
        function,
        dtype=dtype,
        chunks=(rows.chunks[0], *((length,) for length in shape)),
        drop_axis=1 if not shape else None,
        new_axis=list(range(2, 1 + len(shape))) if len(shape) > 1 else None,
        meta=np.empty((0,) * (1 + len(shape)), dtype),
    )


def map_array(samples: Any, frame: Frame, function: RowMap, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
    """Apply a map of rows of features to raw samples, (n, *raw_shape): at once to numpy's, lazily to dask's."""
    if isinstance(samples, np.ndarray):
        return function(frame.rows(unmasked(samples).reshape(len(samples), math.prod(samples.shape[1:]))))
    whole = partial(prepared_first, frame=frame, function=function)
    return map_rows(flat_rows(samples, samples.ndim - 1), whole, shape=shape, dtype=dtype)
