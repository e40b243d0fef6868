"""`Storage`: how the samples of a collection are stored and what reading them takes, in one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Chunks(NamedTuple):
    """Samples and features of a storage chunk. A read that touches a chunk decodes all of it."""

    samples: int
    features: int


class SparseStorage(NamedTuple):
    """Number of values that sparse samples store, and bytes held from the first read of sparse rows on."""

    values: int
    held_bytes: int = 0


@dataclass(frozen=True)
class Storage:
    """Storage of a collection's samples, and what reads of them hold in memory besides their result.

    Attributes
    ----------
    chunks : Chunks
        Largest storage chunk in samples and features.
    decode_bytes : int
        Largest number of bytes that `read` holds besides its result: chunks being decoded, scratch buffers.
    converted_bytes : int
        Bytes held from the first `read` on, besides the source and the memory of a single read.
    encoded : bool
        Whether `read` decodes, as with compressed chunks and picture files, rather than copies bytes.
    keeps : bool
        Whether a chunk decoded for some of its samples is cached for reads of the samples after them.
    fills : bool
        Whether `read_into` fills its target directly, except parts of lines, which are read whole first.
    sparse : SparseStorage or None
        Of samples that can be read as sparse rows (`Collection.read_sparse`); None for others.
    """

    chunks: Chunks
    decode_bytes: int = 0
    converted_bytes: int = 0
    encoded: bool = False
    keeps: bool = False
    fills: bool = False
    sparse: SparseStorage | None = None
