"""Arrays of sealed Zarr groups: each chunk has a checksum and a file, and the group is complete or visibly not."""

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

CHUNK_BYTES = 4 * MIB  # of one chunk: small enough to read a component alone, large enough for a disk
SHARD_BYTES = 16 * MIB  # of one file, so that large arrays do not become a million of them
FILES = 16  # of an array of several MiB, at least: writing one holds three copies of a file beside the array


@dataclass(frozen=True)
class NamedArray:
    """An array, perhaps one that is made when it is sliced, and the names of its dimensions."""

    dims: tuple[str, ...]
    values: Any
    attributes: Mapping[str, Any] | None = None


def write_group(path: str, arrays: Mapping[str, NamedArray], about: Mapping[str, Any]) -> None:
    """Write arrays as a sealed group; it takes its name when it is complete.

    Parameters
    ----------
    path : str
        Folder to make, where nothing is, or what may be replaced.
    arrays : mapping of str to NamedArray
        The arrays by name.
    about : mapping
        Format, kind and provenance, stored as the root's attribute.
    """
    with staged(path) as partial:
        group = zarr.create_group(partial, zarr_format=3, attributes={ATTRIBUTE: {**about, "complete": False}})
        for name, array in arrays.items():
            write_array(group, name, array)
        group.attrs.put({ATTRIBUTE: {**about, "complete": True}})
        consolidate(partial)
        seal(partial)


def write_array(group: zarr.Group, name: str, array: NamedArray) -> None:
    """Write an array of a group a shard at a time, without a copy of the whole."""
    values = array.values if hasattr(array.values, "dtype") else np.asarray(array.values)
    chunks, shards = _cut(values.shape, values.dtype.itemsize)
    is_text = values.dtype.kind == "U"  # of no width of its own: Zarr has no settled type for fixed ones
    values = np.asarray(values).astype(object) if is_text else values
    made = group.create_array(
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
    if not values.shape:
        made[...] = values
    rows = max(1, (shards or chunks or (1,))[0])
    for start in range(0, values.shape[0] if values.shape else 0, rows):
        safe_point()
        made[start : start + rows] = values[start : start + rows]


def _cut(shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Chunks of about `CHUNK_BYTES` along the first axis, gathered in shards where there would be many."""
    if not shape or 0 in shape:
        return tuple(max(1, length) for length in shape), None
    row = max(1, itemsize * int(np.prod(shape[1:], dtype=np.int64)))
    file = min(SHARD_BYTES, max(MIB, row * shape[0] // FILES))
    rows = min(shape[0], max(1, min(CHUNK_BYTES, file) // row))
    many = min(-(-shape[0] // rows), max(1, file // (rows * row)))
    return (rows, *shape[1:]), ((many * rows, *shape[1:]) if many > 1 else None)
