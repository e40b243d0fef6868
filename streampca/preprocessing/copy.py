"""`copy_collection`: any collection as one well-chunked, sharded Zarr array, in bounded memory.

The collection is cut into tiles, each a run of samples by a box of features. A tile is read once and becomes one shard,
a file of its own, so that files are few; shards hold chunks of a few MiB, so that reading is fine-grained. Tiles follow
the source's chunks: one that is cut across features is read range of features by range of features, where reading it
block of samples by block of samples would decode all of it for every block.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from ..events import BlockDone, Finished, Listener, PassFinished, PassStarted, check_listener, silent
from ..planning.boxes import flat_range
from ..planning.component_chunks import Cut
from ..planning.copy import CopyPlan, plan_copy, tiles_of
from ..readers import check_apart, paths_of
from ..readers.collection import Collection, counting_dim, sample_dims, unchanged
from ..storage.disk import expanded
from ..storage.outputs import check_output, staged
from ..storage.writers import OutputArray, ZarrWriter, check_array
from ..units import parse_bytes
from .prepared import Prepared
from .problem import problem_of

# Attributes that say how numbers are packed or which axes there are: what is written is unpacked, and says itself.
NOT_KEPT = (
    "sample_axis",
    "_ARRAY_DIMENSIONS",
    "_FillValue",
    "missing_value",
    "scale_factor",
    "add_offset",
    "coordinates",
)


def copy_collection(
    collection: Collection,
    path: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    overwrite: bool = False,
    listener: Listener = silent,
) -> None:
    """Write a collection as a Zarr v3 group holding one array, ``images``, that is quick to read by samples.

    Values and dtype stay as they are. Names of samples, coordinates and attributes come along; xarray opens the group
    as a Dataset, and `open_collection` as a collection equal to the first.

    Parameters
    ----------
    collection : Collection
        Raw, or seen through a preparation without a mask.
    path : path
        Folder to make, ending in ``.zarr``; it takes this name when it is complete.
    memory : int or str, optional
        Most bytes to use; half of what the machine allows by default.
    overwrite : bool, default=False
        Replace images written by streampca that are there already.
    listener : callable, optional
        Told of every tile.

    Raises
    ------
    RequestError
        If the output's name has another ending, a mask leaves pixels out, images differ in shape, or the output is
        the source, holds it or lies in it.
    OutputError
        If the output exists (and `overwrite` is false) or cannot be written.
    BudgetError
        If not even the smallest tile fits; before any data is read.
    SourceError
        If the collection cannot be read; as a ChangedError, if it changed since it was opened.
    """
    check_listener(listener)
    path = expanded(path)
    source, plan = foresee_copy(collection, path, memory=memory, overwrite=overwrite)
    began = time.perf_counter()
    with staged(path) as partial:
        sink = ZarrWriter(partial, _table(source, plan))
        with unchanged(source):
            _write_tiles(source, plan, sink, listener)
        sink.close()
        check_array(partial, path, "images", source.shape, source.dtype)
    listener(Finished("copy", time.perf_counter() - began))


def foresee_copy(
    collection: Collection, path: str, *, memory: int | str | None, overwrite: bool
) -> tuple[Collection, CopyPlan]:
    """Return what a copy reads and its plan, or refuse the copy; nothing is read or written.

    Raises
    ------
    RequestError, OutputError, BudgetError
        As `copy_collection`.
    """
    check_apart([path], paths_of(collection))
    source = _copied(collection)
    check_copy(path, overwrite=overwrite)
    return source, plan_copy(problem_of(source), parse_bytes(memory))


def check_copy(path: str, *, overwrite: bool) -> None:
    """Say why no copy can be made at a path; raises as `copy_collection`."""
    if os.path.splitext(path.rstrip("/"))[1].lower() != ".zarr":
        raise RequestError(f"output {path} does not end in .zarr, and copies are Zarr; choose such a name.")
    check_output(path, "images", overwrite=overwrite)


def _copied(collection: Collection) -> Collection:
    """What is read: the raw collection itself where nothing is done to it, for it may be read in parts."""
    if isinstance(collection, Prepared):
        if collection.mask is not None:
            raise RequestError(
                f"a copy of {collection.source} holds whole images, and mask leaves pixels out; leave the mask out "
                "here and give it to the fit."
            )
        if collection.preparation.is_identity:
            collection = collection.raw
    if collection.mixed:
        raise RequestError(
            f"{collection.source} holds images of several shapes, and one array holds one; resize them in preparation."
        )
    return collection


def _table(source: Collection, plan: CopyPlan) -> OutputArray:
    dims = sample_dims(source)
    return OutputArray(
        "images",
        source.shape,
        (counting_dim(source, dims), *dims),
        source.dtype,
        names=source.sample_names(),
        attributes={"source": source.source, **_plain(source.attributes)},
        coordinates=source.coordinates,
        sample_coordinates=source.sample_coordinates(),
        cut=Cut(plan.chunk, plan.tile),
    )


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON can hold of attributes, numpy's numbers and arrays included."""
    kept = {}
    for name, value in attributes.items():
        value = value.tolist() if hasattr(value, "tolist") else value
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            continue
        if name not in NOT_KEPT:
            kept[name] = value
    return kept


def _write_tiles(source: Collection, plan: CopyPlan, sink: ZarrWriter, listener: Listener) -> None:
    began = time.perf_counter()
    listener(PassStarted("copy", 1, 1, source.n_samples, source.nbytes))
    for start, stop, inside in tiles_of(source.shape, plan.tile):
        first, last = flat_range(inside, source.sample_shape)
        rows = source.read(slice(start, stop), slice(first, last) if last - first < source.n_features else None)
        sink.write(start, rows.reshape(stop - start, *(part.stop - part.start for part in inside)), inside)
        size, p = stop - start, source.n_features
        # A tile of some features counts for its share of the samples; the shares of a run of samples add up to it.
        done = size * last // p - size * first // p
        listener(BlockDone(done, size * source.row_bytes * (last - first) // p))
    listener(PassFinished(time.perf_counter() - began))
