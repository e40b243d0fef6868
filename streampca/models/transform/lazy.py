"""Maps of rows as lazy dask arrays: chunks are read and mapped when they are computed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from ...arrays import Array, is_sparse
from ...planning.sparse import ENTRY_BYTES, has_few
from ...preprocessing import Frame
from ...preprocessing.dtypes import has_float_digits
from ...readers import Collection
from ...readers.collection import unmasked
from ...readers.dask import dense, lazy_rows, with_csr_chunks, with_dense_chunks
from ...storage.components import StoredComponents
from .finite import Named, OfNumbered, OfSparse, RowMap, applied

if TYPE_CHECKING:  # imported on use: dask.array, with xarray, takes half of the time of importing this package
    import dask.array as da


NOW_BLOCK_BYTES = 8 * 2**20  # bytes read at a time for results in memory


def is_dask_array(value: object) -> TypeGuard[da.Array]:
    """Return whether a value is a dask array, without importing dask: no such array exists before that."""
    loaded = sys.modules.get("dask.array")
    return loaded is not None and isinstance(value, loaded.Array)


def map_collection(
    collection: Collection,
    function: RowMap | OfNumbered,
    *,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    missing: str = "error",
    fills_in: bool = False,
) -> da.Array:
    """Apply a map of rows, (m, p) to (m, *shape), to a collection: a lazy array, chunked by samples; see `applied`."""
    mapped = partial(_apply_to_block, function, collection.named, missing, fills_in)
    read, _ = reading(collection, takes_sparse=isinstance(function, OfSparse))
    return lazy_rows(collection, mapped, shape, dtype, read)


def reading(collection: Collection, *, takes_sparse: bool) -> tuple[Callable[[slice], Any], int]:
    """Return what reads samples, sparse rows where a map takes them and few values are stored, and the bytes of one."""
    stored, n, p = collection.storage.sparse, collection.n_samples, collection.n_features
    if takes_sparse and stored is not None and has_few(stored.values, n, p):
        return collection.read_sparse, ENTRY_BYTES * stored.values // n
    return collection.read, p * collection.dtype.itemsize


def _apply_to_block(
    function: RowMap | OfNumbered, named: Named, missing: str, fills_in: bool, rows: Array, start: int
) -> Array:
    return applied(function, rows, named, start, missing=missing, fills_in=fills_in)


def map_now(
    collection: Collection,
    function: RowMap | OfNumbered,
    *,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    missing: str = "error",
    fills_in: bool = False,
) -> Array:
    """Apply a map of rows to a collection by small blocks: an array in memory."""
    result = np.empty((collection.n_samples, *shape), dtype)
    read, row_bytes = reading(collection, takes_sparse=isinstance(function, OfSparse))
    rows = max(1, NOW_BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, collection.n_samples, rows):
        block = slice(start, min(start + rows, collection.n_samples))
        result[block] = applied(function, read(block), collection.named, start, missing=missing, fills_in=fills_in)
    return result


def lazy_components(components: StoredComponents) -> da.Array:
    """Return components on disk as a lazy dask array, (k, *sample_shape), chunked as they are stored."""
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
    fills_in: bool = False,
) -> Any:
    """Apply a map of rows, (m, p) to (m, *shape), to samples: at once for a numpy array, lazily for a dask array.

    Parameters
    ----------
    samples : ndarray or dask array of shape (n, *sample_shape)
        Features, or raw samples if there is a `frame`.
    function : callable
        Map of rows of features.
    shape, dtype
        Shape of the result for one row, and dtype of the result.
    named : callable
        Returns the name of a sample by its number, for errors.
    frame : Frame, optional
        Preparation of raw rows.
    missing, fills_in
        See `applied`.
    """
    if isinstance(samples, np.ndarray):
        rows = unmasked(samples).reshape(len(samples), math.prod(samples.shape[1:]))
        return applied(function, rows, named, frame=frame, missing=missing, fills_in=fills_in)
    takes_sparse = isinstance(function, OfSparse) and (frame is None or frame.preparation.is_identity)
    samples, dtype = with_csr_chunks(samples) if takes_sparse else with_dense_chunks(samples), np.dtype(dtype)
    # A map needs whole samples: chunks along the other axes are joined.
    samples = samples.rechunk(dict.fromkeys(range(1, samples.ndim), -1))
    rows = samples if samples.ndim == 2 else samples.reshape(samples.shape[0], -1).rechunk({1: -1})
    return rows.map_blocks(
        partial(_apply_to_chunk, function=function, named=named, frame=frame, missing=missing, fills_in=fills_in),
        dtype=dtype,
        chunks=(rows.chunks[0], *((length,) for length in shape)),
        drop_axis=1 if not shape else None,
        new_axis=list(range(2, 1 + len(shape))) if len(shape) > 1 else None,
        meta=np.empty((0,) * (1 + len(shape)), dtype),
    )


def _apply_to_chunk(
    rows: Array,
    *,
    function: RowMap | OfNumbered,
    named: Named,
    frame: Frame | None,
    missing: str,
    fills_in: bool,
    block_info: Any = None,
) -> Array:
    """Apply a map to a chunk of rows; dask passes the position of the chunk by the name `block_info`."""
    start = block_info[0]["array-location"][0][0]
    if not (is_sparse(rows) and has_few(rows.nnz, *rows.shape) and has_float_digits(rows.data, rows.dtype)):
        rows = unmasked(dense(rows))
    return applied(function, rows, named, start, frame=frame, missing=missing, fills_in=fills_in)
