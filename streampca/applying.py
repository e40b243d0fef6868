"""A model's numbers applied to a collection: as a lazy dask array, or block by block into an output.

The graph of a lazy result is small and holds the collection's path, not its data; each chunk reads its own samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from .blocks import Span, blocks_of
from .collection import Coordinate
from .errors import DataError
from .events import BlockDone, Listener, PassFinished, PassStarted
from .outputs import Table, open_sink
from .planning import plan_application, problem_of
from .prepare import Frame, NormalizeError
from .readers import Collection
from .subspace import Subspace, working_dtype
from .units import parse_bytes

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
    # A name of its own: by fingerprint, of which an array in memory has a rough one, dask would take one for another.
    return da.from_array(source, chunks=(rows, -1), name=False, asarray=False, meta=meta)


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
        return function(frame.rows(samples.reshape(len(samples), math.prod(samples.shape[1:]))))
    whole = partial(prepared_first, frame=frame, function=function)
    return map_rows(flat_rows(samples, samples.ndim - 1), whole, shape=shape, dtype=dtype)


def mapped_blocks(collection: Collection, function: RowMap, block_rows: int) -> Iterator[tuple[Span, Array, int]]:
    """Read a collection block by block and map each; yields (which samples, result, bytes read).

    Raises
    ------
    DataError
        If a result is not finite because a sample is not, or a sample cannot be normalized; names the sample.
    """
    for block in blocks_of(Span(0, collection.n_samples), block_rows):
        rows = collection.read(slice(*block))
        with np.errstate(invalid="ignore"):  # infinity less infinity; the sample is named instead
            try:
                result = function(rows)
            except NormalizeError as error:
                raise error.of(collection.named, block.start) from None
            if rows.dtype.kind == "f":
                _check_finite(collection, rows, result, block)
        yield block, result, block.size * collection.row_bytes


def _check_finite(collection: Collection, rows: Array, result: Array, block: Span) -> None:
    if np.isfinite(np.sum(result, dtype=np.float64)):
        return
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        index = block.start + int(bad[0])
        raise DataError(
            f"{collection.named(index)} holds NaN or infinity, which has no scores; leave the sample "
            "out or fill the values in."
        )


# What is done to rows of features; plain functions of a subspace first, so that `functools.partial` of them pickles.


def scores_of(subspace: Subspace, rows: Array, *, whiten: bool = False) -> Array:
    """Scores, (m, k)."""
    return subspace.project(rows, whiten=whiten)


def images_of(subspace: Subspace, scores: Array, *, frame: Frame, whiten: bool = False) -> Array:
    """Images from scores; scores beyond the subspace's components are left out."""
    return frame.images(subspace.reconstruct(scores[:, : len(subspace.components)], whiten=whiten))


def reconstructions_of(subspace: Subspace, rows: Array, *, frame: Frame) -> Array:
    """Images from rows that are not normalized yet: normalized, projected and back, each by its own mean or norm."""
    rows, numbers = frame.normalized(rows)
    return frame.images(frame.denormalized(subspace.reconstruct(subspace.project(rows)), numbers))


def errors_of(subspace: Subspace, rows: Array) -> Array:
    """Squared distance of each row from the subspace, (m,)."""
    return subspace.squared_error(rows)


def prepared_first(raw: Array, *, frame: Frame, function: RowMap) -> Array:
    """Apply a map of features to raw rows."""
    return function(frame.rows(raw))


def write_scores(
    subspace: Subspace, collection: Collection, path: str, *, model: str, whiten: bool, **how: Any
) -> None:
    """Write the scores of a prepared collection; see `PCAModel.write_scores`."""
    k = len(subspace.components)
    table = Table(
        "scores",
        (collection.n_samples, k),
        ("sample", "component"),
        working_dtype(collection.dtype, subspace.components.dtype),
        names=collection.sample_names(),
        attributes={"source": collection.source, "model": model, "whiten": whiten},
        coordinates={"component": Coordinate(np.arange(1, k + 1))},
        sample_coordinates=collection.sample_coordinates(),
    )
    _write_mapped(subspace, collection, partial(scores_of, subspace, whiten=whiten), path, table, **how)


def write_images(
    subspace: Subspace,
    frame: Frame,
    function: Callable[..., Array],
    collection: Collection,
    path: str,
    *,
    model: str,
    dims: tuple[str, ...],
    coordinates: Mapping[str, Coordinate],
    normalized: str | None = None,
    **how: Any,
) -> None:
    """Write the images that a function makes of a collection's rows; see `PCAModel.write_reconstruction`.

    `normalized` says how they still are normalized, where that cannot be undone.
    """
    about = {"source": collection.source, "model": model, "n_components": len(subspace.components)}
    table = Table(
        "images",
        (collection.n_samples, *frame.sample_shape),
        ("sample", *dims),
        working_dtype(collection.dtype, subspace.components.dtype),
        names=collection.sample_names(),
        attributes=about if normalized is None else {**about, "normalized": normalized},
        coordinates=coordinates,
        sample_coordinates=collection.sample_coordinates(),
    )
    _write_mapped(subspace, collection, partial(function, subspace, frame=frame), path, table, **how)


def _write_mapped(
    subspace: Subspace,
    collection: Collection,
    function: RowMap,
    path: str,
    table: Table,
    *,
    memory: int | str | None,
    overwrite: bool,
    listener: Listener,
) -> None:
    """Map a collection block by block into an output, in memory for one block at a time."""
    plan = plan_application(
        problem=problem_of(collection),
        n_components=len(subspace.components),
        n_features=subspace.n_features,
        component_itemsize=subspace.components.dtype.itemsize,
        out_bytes=math.prod(table.shape[1:]) * table.dtype.itemsize,
        memory=None if memory is None else parse_bytes(memory),
    )
    began = time.perf_counter()
    with open_sink(path, replace(table, chunk_rows=plan.chunk_rows), overwrite=overwrite) as sink:
        listener(PassStarted(table.name, 1, 1, collection.n_samples, collection.nbytes))
        for block, result, read in mapped_blocks(collection, function, plan.block_rows):
            sink.write(block.start, result)
            listener(BlockDone(block.size, read))
    listener(PassFinished(time.perf_counter() - began))
