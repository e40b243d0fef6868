"""States of arrays that the caller holds, whose values alone can tell a change: digests of some of them."""

from __future__ import annotations

import hashlib
import math
import os
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import SourceError, StreampcaError, first_line
from ...units import MIB
from ..collection import Array, State, digest, file_state

# Rows that are digested. Where 1 % of the rows were changed, wherever these lie, all of the chosen ones miss them with
# probability 0.99^2048 = 1e-9. One lies in each of so many equal runs: a changed run of 0.1 % is always found.
_ROWS = 2048
# Bytes that are digested, of longer rows values evenly apart: 10 ms, less than 2 % of the fastest pass over 1 GB.
_BYTES = 16 * MIB
# Groups of rows that a change is told of: each costs 15 us, twice in a fit, and most arrays in memory are small.
_GROUPS = 16
# One in so many chunks is read of an object whose slices may have to be decoded.
_CHUNKS = 128


def sampled_states(array: Any, source: str, *, chunk_rows: int = 0) -> list[State]:
    """Return states of an array's rows, its entries along axis 0, that are digests of some values of some rows.

    Which ones depends on the shape alone.
    """
    n = int(array.shape[0])
    rows = spread_rows(n, max(16, n // chunk_rows // _CHUNKS) if chunk_rows else _ROWS)
    part = _part_of(tuple(array.shape[1:]), max(1, _BYTES // len(rows) // np.dtype(array.dtype).itemsize))
    size = -(-n // min(_GROUPS, len(rows)))
    starts = range(0, n, size)
    edges = [*np.searchsorted(rows, starts).tolist(), len(rows)]
    return [
        State(start, named_rows(start, min(start + size, n), source), _digest(array, rows[first:last], part))
        for start, (first, last) in zip(starts, pairwise(edges), strict=True)
        if first < last
    ]


def object_states(array: Any, source: str) -> list[State]:
    """Return states of an object the caller holds: by its values where they are in memory, else as far as it says."""
    if np.ma.is_masked(array):
        pairs = (sampled_states(each, source) for each in (array.data, np.ma.getmaskarray(array)))
        return [one._replace(state=digest(one.state, other.state)) for one, other in zip(*pairs, strict=True)]
    if isinstance(array, np.ndarray):
        return sampled_states(np.asarray(array), source)
    if hasattr(array, "variable") and hasattr(array, "encoding"):  # an xarray.DataArray
        if array._in_memory:
            return sampled_states(array.values, source)
        path = str(array.encoding.get("source", ""))
        return [State(0, path or source, digest(file_state(path) if os.path.isfile(path) else str(array.name)))]
    chunks = getattr(array, "chunks", None)
    try:
        return sampled_states(array, source, chunk_rows=int(chunks[0]) if chunks and np.ndim(chunks) == 1 else 1)
    except (StreampcaError, MemoryError):
        raise
    except Exception as error:  # whatever the library behind the array raises
        raise SourceError(
            f"{source} cannot be read ({type(error).__name__}: {first_line(error)}); check what lies behind it."
        ) from error


def spread_rows(n: int, most: int) -> Array:
    """Return a pseudo-random row of each of at most so many equal runs, so that nothing periodic lies between them."""
    edges = np.linspace(0, n, min(n, most) + 1).astype(np.uint64)
    mixed = np.arange(1, len(edges), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # SplitMix64, the same on any numpy
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (edges[:-1] + (mixed >> np.uint64(31)) % np.diff(edges)).astype(np.int64)


def _part_of(shape: tuple[int, ...], most: int) -> tuple[slice, ...]:
    """Return slices that take at most about so many values of a row, evenly apart along its longest axes."""
    steps = [1] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -shape[axis]):
        left = math.prod(-(-length // step) for length, step in zip(shape, steps, strict=True))
        steps[axis] = min(shape[axis], -(-left // most))
    return tuple(slice(step // 2, None, step) for step in steps)


def _digest(array: Any, rows: Array, part: tuple[slice, ...]) -> str:
    if isinstance(array, np.ndarray):
        key: tuple[Any, ...] = (rows, *part)
        values = array[key]
    else:
        values = np.concatenate([np.asarray(array[(slice(int(row), int(row) + 1), *part)]) for row in rows])
    # In the machine's own byte order, in which numpy unpickles arrays.
    plain = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    return hashlib.sha256(plain.reshape(-1).view(np.uint8).data).hexdigest()[:16]


def named_rows(start: int, stop: int, source: str) -> str:
    """Name rows for messages."""
    return f"{source} (row {start})" if stop - start == 1 else f"{source} (rows {start} to {stop - 1})"
