"""Maps of rows as lazy dask arrays; nothing is read or computed before it is asked for."""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from ...preprocessing import Frame
from ...readers import Collection
from ...readers.collection import unmasked
from ...readers.dask import lazy_rows
from ...storage.components import StoredComponents
from .finite import Named, OfNumbered, RowMap, applied

if TYPE_CHECKING:  # dask.array takes half of the time of importing this package (with xarray, which it imports): on use
    import dask.array as da

Array = npt.NDArray[Any]

NOW_BLOCK_BYTES = 8 * 2**20  # read at a time where the result is not lazy


def is_dask_array(value: object) -> TypeGuard[da.Array]:
    """Return whether a value is a dask array; none is before `dask.array` is imported."""
    loaded = sys.modules.get("dask.array")
    return loaded is not None and isinstance(value, loaded.Array)


def map_collection(
    collection: Collection,
    function: RowMap | OfNumbered,
    *,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    missing: str = "error",
) -> da.Array:
    """Apply a map of rows, (m, p) to (m, *shape), to a collection: a lazy array, chunked by samples; see `applied`."""
    return lazy_rows(collection, partial(_applied_to_block, function, collection.named, missing), shape, dtype)


def _applied_to_block(function: RowMap | OfNumbered, named: Named, missing: str, rows: Array, start: int) -> Array:
    return applied(function, rows, named, start, missing=missing)


def map_now(
    collection: Collection,
    function: RowMap | OfNumbered,
    *,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    missing: str = "error",
) -> Array:
    """Apply a map of rows to a collection at once, a small block after another: an array in memory."""
    found = np.empty((collection.n_samples, *shape), dtype)
    rows = max(1, NOW_BLOCK_BYTES // max(1, collection.n_features * collection.dtype.itemsize))
    for start in range(0, collection.n_samples, rows):
        some = slice(start, min(start + rows, collection.n_samples))
        found[some] = applied(function, collection.read(some), collection.named, start, missing=missing)
    return found


def lazy_components(components: StoredComponents) -> da.Array:
    """Components on disk as a lazy dask array, (k, *sample_shape), in the pieces in which they are read."""
    import dask.array as da

    with components.reading() as array:
        chunks = array.shards or array.chunks
    return da.from_array(components, chunks=chunks, name=False, meta=np.empty((0,) * components.ndim, components.dtype))


def map_array(
    samples: Any,
    function: RowMap | OfNumbered,
    *,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    named: Named,
    frame: Frame | None = None,
    missing: str = "error",
) -> Any:
    """Apply a map of rows, (m, p) to (m, *shape), to an array of samples: at once to numpy's, lazily to dask's.

    Parameters
    ----------
    samples : ndarray or dask array of shape (n, *sample_shape)
        Features, or raw samples if there is a `frame`.
    function : callable
        The map of rows of features.
    shape, dtype
        Of what it makes of one row, and of its result.
    named : callable
        Gives the name of a sample that is refused, by its number.
    frame : Frame, optional
        Prepares raw rows first.
    missing : str
        See `applied`.
    """
    if isinstance(samples, np.ndarray):
        rows = unmasked(samples).reshape(len(samples), math.prod(samples.shape[1:]))
        return applied(function, rows, named, frame=frame, missing=missing)
    samples, dtype = samples.rechunk(dict.fromkeys(range(1, samples.ndim), -1)), np.dtype(dtype)
    rows = samples if samples.ndim == 2 else samples.reshape(samples.shape[0], -1).rechunk({1: -1})
    return rows.map_blocks(
        partial(_applied_to_chunk, function=function, named=named, frame=frame, missing=missing),
        dtype=dtype,
        chunks=(rows.chunks[0], *((length,) for length in shape)),
        drop_axis=1 if not shape else None,
        new_axis=list(range(2, 1 + len(shape))) if len(shape) > 1 else None,
        meta=np.empty((0,) * (1 + len(shape)), dtype),
    )


def _applied_to_chunk(
    rows: Array,
    *,
    function: RowMap | OfNumbered,
    named: Named,
    frame: Frame | None,
    missing: str,
    block_info: Any = None,
) -> Array:
    """Apply a map to a chunk of rows, of which dask says where in the whole array it lies."""
    start = block_info[0]["array-location"][0][0]
    return applied(function, unmasked(rows), named, start, frame=frame, missing=missing)
