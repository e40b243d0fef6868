"""Writing of arrays to sealed Zarr groups: each chunk has a checksum and a file; groups are complete or visibly not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from ..signals import safe_point
from ..units import MIB
from .integrity import CHECKED, seal
from .outputs import staged
from .writers import ATTRIBUTE, EVERY_CHUNK, consolidate

CHUNK_BYTES = 4 * MIB  # of a chunk: small enough to read a component alone, large enough for a disk
SHARD_BYTES = 16 * MIB  # of a file, so that large arrays do not become a million files
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
        for name, array in arrays.items():
            write_array(group, name, array)
        # Marked before sealing, as the digest covers the attribute.
        group.attrs.put({ATTRIBUTE: {**about, "complete": True}})
        consolidate(partial)
        seal(partial)


def write_array(group: zarr.Group, name: str, array: NamedArray) -> None:
    """Write an array of a group a shard at a time, without copying all of it."""
    values = array.values if hasattr(array.values, "dtype") else np.asarray(array.values)
    chunks, shards = _cut(values.shape, values.dtype.itemsize)
    is_text = values.dtype.kind == "U"  # of variable width: Zarr has no settled type for fixed widths
    values = np.asarray(values).astype(object) if is_text else values
    stored = group.create_array(
        name,
        shape=values.shape,
        dtype="string" if is_text else values.dtype,
        chunks=chunks,
        shards=shards,
        compressors=CHECKED,
        dimension_names=array.dims,
        attributes=dict(array.attributes or {}),
        fill_value=np.nan if values.dtype.kind == "f" else None,
        config=EVERY_CHUNK,
    )
    # Scalars have no rows to write one by one.
    if not values.shape:
        stored[...] = values
    # Whole shards are written once.
    rows = max(1, (shards or chunks or (1,))[0])
    for start in range(0, values.shape[0] if values.shape else 0, rows):
        safe_point()
        stored[start : start + rows] = values[start : start + rows]


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
