"""Writing of arrays to sealed Zarr groups: each chunk has a checksum and a file; groups are complete or visibly not."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import zarr
from zarr.core.sync import sync
from zarr.dtype import parse_dtype

from ..signals import safe_point
from ..units import MIB
from .integrity import CHECKED, seal
from .outputs import staged
from .writers import ATTRIBUTE, EVERY_CHUNK, compact_metadata, consolidate

CHUNK_BYTES = 4 * MIB  # of a chunk: small enough to read a component alone, large enough for a disk
SHARD_BYTES = 16 * MIB  # of a file, so that large arrays do not become a million files
BATCHED = 64 * 1024  # bytes of an array that is written together with others
FILES = 16  # least number of files of an array of several MiB, as writing holds three copies of a file


@dataclass(frozen=True)
class NamedArray:
    """Array, possibly computed when it is sliced, with the names of its dimensions."""

    dims: tuple[str, ...]
    values: Any
    attributes: Mapping[str, Any] | None = None


def write_group(path: str, arrays: Mapping[str, NamedArray], about: Mapping[str, Any]) -> None:
    """Write arrays as a sealed group, which gets its name when it is complete.

    Parameters
    ----------
    path : str
        Folder to create, which must not exist unless it can be replaced.
    arrays : mapping of str to NamedArray
        Arrays by name.
    about : mapping
        Format, kind and provenance, stored as the root's attribute.
    """
    with staged(path) as partial:
        group = zarr.create_group(partial, zarr_format=3, attributes={ATTRIBUTE: {**about, "complete": False}})
        write_arrays(group, arrays)
        # Marked before sealing, as the digest covers the attribute.
        group.attrs.put({ATTRIBUTE: {**about, "complete": True}})
        consolidate(partial)
        seal(partial)


def write_arrays(group: zarr.Group, arrays: Mapping[str, NamedArray]) -> None:
    """Write arrays of a group: small ones together, larger ones a shard at a time, without copying all of one."""
    values = {name: _values(array) for name, array in arrays.items()}
    large = [name for name, entry in values.items() if math.prod(entry.shape) * entry.dtype.itemsize > BATCHED]
    members = zarr.AsyncGroup(metadata=group.metadata, store_path=group.store_path)

    async def create(name: str) -> Any:
        return await members.create_array(name, **_storage(values[name], arrays[name]))

    async def write(name: str) -> None:
        await (await create(name)).setitem(..., _decoded(np.asarray(values[name])))

    async def write_small() -> None:
        await asyncio.gather(*(write(name) for name in values if name not in large))

    with compact_metadata():
        # Each call into Zarr's event loop costs as much as a small array, and there are twenty of these in a model.
        sync(write_small())
        safe_point()
        for name in large:
            stored: Any = zarr.Array(sync(create(name)))
            rows = max(1, (stored.shards or stored.chunks)[0])  # whole shards are written once
            for start in range(0, stored.shape[0], rows):
                safe_point()
                stored[start : start + rows] = _decoded(values[name][start : start + rows])


def _values(array: NamedArray) -> Any:
    return array.values if hasattr(array.values, "dtype") else np.asarray(array.values)


def _decoded(values: Any) -> Any:
    """Return values as Zarr takes them: text as objects, as it has no settled type for fixed widths."""
    return values.astype(object) if values.dtype.kind == "U" else values


def _storage(values: Any, array: NamedArray) -> dict[str, Any]:
    """Return the options with which Zarr creates an array for some values."""
    chunks, shards = _cut(values.shape, values.dtype.itemsize)
    return {
        "shape": values.shape,
        "dtype": _data_type("string" if values.dtype.kind == "U" else values.dtype),
        "chunks": chunks,
        "shards": shards,
        "compressors": CHECKED,
        "dimension_names": array.dims,
        "attributes": dict(array.attributes or {}),
        "fill_value": np.nan if values.dtype.kind == "f" else None,
        "config": EVERY_CHUNK,
    }


@cache
def _data_type(dtype: Any) -> Any:
    """Return Zarr's data type, for which Zarr goes through all that it knows."""
    return parse_dtype(dtype, zarr_format=3)


def _cut(shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return chunks of about `CHUNK_BYTES` along the first axis, and shards if there are many chunks."""
    if not shape or 0 in shape:
        return tuple(max(1, length) for length in shape), None
    row = max(1, itemsize * int(np.prod(shape[1:], dtype=np.int64)))
    # A sixteenth of the array, so that writing a shard adds little memory, within the limits of files.
    file = min(SHARD_BYTES, max(MIB, row * shape[0] // FILES))
    rows = min(shape[0], max(1, min(CHUNK_BYTES, file) // row))
    many = min(-(-shape[0] // rows), max(1, file // (rows * row)))
    return (rows, *shape[1:]), ((many * rows, *shape[1:]) if many > 1 else None)
