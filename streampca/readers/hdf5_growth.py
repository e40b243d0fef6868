"""HDF5 datasets that grow: the number of written entries, and the states of the first entries.

A writer that keeps a file in SWMR mode (single writer, multiple readers) lets others read it at the same time:
https://support.hdfgroup.org/documentation/hdf5/latest/_s_w_m_r___u_g.html. Flags in the first bytes of a file
tell the mode: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..storage.disk import open_regular
from ..units import MIB
from .collection import State, digest, group_size
from .stored.value_digests import named_rows, spread_rows

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_PLACES = (0, 512, 1024, 2048, 4096, 8192)  # offsets of the signature, as a file can begin with a user block
_WRITING, _SWMR = 1, 4  # bits of the flags
_LEAST_VERSION = 3  # of the superblock; files of earlier versions have no flags
# Bytes of stored chunks that are digested, which takes 10 ms, as for arrays in memory; and the least number of chunks.
_BYTES, _CHUNKS = 16 * MIB, 16
_ROWS = 16  # digested entries of a last chunk that is not full


class Mode(NamedTuple):
    """Flags of a file: it can grow while it is read, it is open for writing, and it is open in SWMR mode."""

    can_grow: bool = False
    is_written: bool = False
    is_swmr: bool = False


def mode_of(path: str) -> Mode:
    """Read the mode of a file from its first bytes: HDF5 would lock it, so that its writer could not open it."""
    try:
        with open_regular(path) as file:
            for place in _PLACES:
                file.seek(place)
                head = file.read(12)
                if head.startswith(_SIGNATURE) and len(head) == 12:
                    flags = head[11] if head[8] >= _LEAST_VERSION else 0
                    return Mode(head[8] >= _LEAST_VERSION, bool(flags & _WRITING), bool(flags & _SWMR))
    except OSError:  # opening it by HDF5 will report it
        pass
    return Mode()


def ways_to_open(mode: Mode) -> list[dict[str, Any]]:
    """Return options of `h5py.File` to try in order.

    A file that can grow is not locked, so that its writer can open it at any time. All handles of one process must be
    opened with the same options: the later ones match handles that are open already.
    """
    growing, still = {"swmr": True, "locking": False}, {"locking": False}
    if not mode.can_grow:
        return [{}]
    return [growing, {"swmr": True}] if mode.is_swmr else [still, {}, growing]


def stored_chunks(dataset: Any) -> Array:
    """Return the stored chunks in the order of their corners: corner, offset in the file, bytes, filter mask.

    One pass over the index takes 2 to 15 us a chunk; a query for one chunk takes time that grows with their number.
    """
    numbers, axes = array("q"), len(dataset.shape)

    def add(chunk: Any) -> None:
        numbers.extend((*chunk.chunk_offset, chunk.byte_offset, chunk.size, chunk.filter_mask))

    dataset.id.chunk_iter(add)
    chunks = np.array(numbers, np.int64).reshape(-1, axes + 3)
    return chunks[np.lexsort(chunks[:, axes - 1 :: -1].T)] if len(chunks) else chunks


def written_entries(dataset: Any, first: int) -> int:
    """Return the number of leading entries along axis 0 whose writing has begun; for the first `first` it is known.

    Entries count up to the first row of chunks with a missing one, without trailing entries that hold the fill value.
    """
    shape, sides = dataset.shape, dataset.chunks
    count, *others = (-(-length // side) for length, side in zip(shape, sides, strict=True))
    per_row = np.bincount(stored_chunks(dataset)[:, 0] // sides[0], minlength=count)[:count]
    lacking = np.flatnonzero(per_row[first // sides[0] :] < math.prod(others))
    end = min(shape[0], (first // sides[0] + int(lacking[0])) * sides[0]) if len(lacking) else shape[0]
    while end > first and _is_fill(dataset[end - 1], dataset.fillvalue):
        end -= 1
    return max(first, int(end))


def growing_states(dataset: Any, length: int, label: str) -> list[State]:
    """Return states of runs of chunks along axis 0 that hold the first `length` entries.

    A state covers offset and size of every chunk and the bytes of some. A last chunk that is not full is rewritten when
    entries are added, so its state covers some of its values instead.
    """
    side, chunks = dataset.chunks[0], stored_chunks(dataset)
    full, axes = length // side, len(dataset.shape)
    chunks = chunks[: np.searchsorted(chunks[:, 0], full * side)]
    mean = max(1, int(chunks[:, axes + 1].mean())) if len(chunks) else 1
    read = set(spread_rows(len(chunks), max(_CHUNKS, _BYTES // mean)).tolist()) if len(chunks) else set()
    states, size = [], group_size(-(-length // side))
    for start in range(0, full, size):
        stop = min(start + size, full)
        begin, end = np.searchsorted(chunks[:, 0], (start * side, stop * side)).tolist()
        values = hashlib.sha256(chunks[begin:end].tobytes())
        for at in range(begin, end):
            if at in read:
                values.update(dataset.id.read_direct_chunk(tuple(chunks[at, :axes].tolist()))[1])
        states.append(State(start * side, named_rows(start * side, stop * side, label), values.hexdigest()))
    if length > full * side:
        digested = spread_rows(length - full * side, _ROWS) + full * side
        digests = [hashlib.sha256(dataset[int(row)].tobytes()).hexdigest() for row in digested]
        states.append(State(full * side, named_rows(full * side, length, label), digest(digests)))
    return states


def _is_fill(values: Array, fill: Any) -> bool:
    """Return whether all values are the fill value, which can be NaN."""
    same = np.isnan(values) if np.isnan(fill) else values == fill
    return bool(np.all(same))
