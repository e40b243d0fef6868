"""Chunks and shards of stored components, and the memory that writing and reading them takes."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ..units import KIB, MIB
from .boxes import box_of

# Bytes of a tile, which is what writing or reading holds several copies of: files stay few (600 for 4.8 GB), and
# larger ones were read 1.5 times as fast for twice the memory.
TILE = 8 * MIB
CHUNK = 256 * KIB  # at least; below, handling a chunk costs more than decoding it
TOGETHER = 16  # components to a chunk, at least
LEAST_RUN = 16 * KIB  # of one component in a tile
# Of a tile while it is written: itself with NaN outside the mask, its chunks as encoded, and these put together.
WRITE_COPIES = 4
READ_COPIES = 5  # of a tile while it is read: as stored, its chunks as decoded, put together, and inside the mask
POOLS = 18 * MIB  # what the memory pools of Zarr's threads keep at most; tests/test_memory_stored.py
DECODE_COPIES = 4  # of a shard of whole components while it is decoded, on every core
PIECE = 64 * MIB  # components in memory at a time where nobody says how much there may be


class Cut(NamedTuple):
    """Shapes of what Zarr decodes at least, and of the files it gathers that in."""

    chunk: tuple[int, ...]
    shard: tuple[int, ...]


def component_cut(shape: tuple[int, ...], itemsize: int) -> Cut:
    """Return the chunks in which components of a shape (k, *sample_shape) are stored.

    Returns
    -------
    Cut
        Chunks and shards; a shard is a tile, and no larger than `TILE` unless one run of all components is.
    """
    k = max(1, shape[0])
    width = max(TILE // (k * itemsize), LEAST_RUN // itemsize)
    box = box_of(width, shape[1:])
    run = prod(box) * itemsize
    chunks = -(-k // max(TOGETHER, CHUNK // run))
    together = -(-k // chunks)
    gathered = max(1, min(chunks, -(-TILE // (together * run))))
    return Cut((together, *box), (gathered * together, *box))


def tile_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """Bytes of what is written or read at least: one tile of all components of a shape (k, *sample_shape)."""
    return shape[0] * prod(component_cut(shape, itemsize).chunk[1:]) * itemsize
