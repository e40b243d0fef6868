"""States of arrays in the caller's memory: digests of some of their values, as nothing else reveals a change."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from ...arrays import Array
from ...errors import SourceError, StreampcaError, first_line
from ...units import KIB, MIB
from ..collection import State, digest, file_state

# Rows that are digested. If 1 % of the rows changed, anywhere, all digested rows miss them with probability
# 0.99^2048 = 1e-9. One row is drawn from each of as many equal runs: a changed run of 0.1 % is always found.
_ROWS = 2048
# Bytes that are digested: 10 ms, less than 2 % of the fastest pass over 1 GB; of smaller arrays a part, as the passes
# over them are as much faster: all of 1797 digits, 0.9 MB, took a seventh of their fit. Of long rows, values at
# equal distances, other ones of the next row, so that a changed column is found.
_BYTES, _LEAST_BYTES, _PART = 16 * MIB, 256 * KIB, 64
# Groups of rows with a state, and digested bytes of one in memory: each costs 15 us, twice in a fit.
_GROUPS, _GROUP_BYTES = 16, 128 * KIB
_AT_ONCE = 2 * MIB  # bytes of rows that are held at once, else those of a group
# One in this many chunks is read of an object whose slices can need decoding.
_CHUNKS = 128


def sampled_states(array: Any, source: str, *, chunk_rows: int = 0) -> list[State]:
    """Return states of an array's rows, its entries along axis 0: digests of some values of some rows.

    The choice of values depends on the shape alone.
    """
    n = int(array.shape[0])
    rows = spread_rows(n, max(16, n // chunk_rows // _CHUNKS) if chunk_rows else _ROWS)
    item = np.dtype(array.dtype).itemsize
    most = min(_BYTES, max(_LEAST_BYTES, math.prod(array.shape) * item // _PART))
    steps = _steps_of(tuple(array.shape[1:]), max(1, most // len(rows) // item))
    count = min(_GROUPS, len(rows))
    if not chunk_rows:  # of small arrays in memory, most of which are small
        count = min(count, 1 + most // _GROUP_BYTES, 1 + math.prod(array.shape) * item // _GROUP_BYTES)
    size = -(-n // count)
    starts = range(0, n, size)
    edges = [*np.searchsorted(rows, starts).tolist(), len(rows)]
    chosen = [(start, rows[first:last]) for start, (first, last) in zip(starts, pairwise(edges), strict=True)]
    chosen = [(start, group) for start, group in chosen if len(group)]
    groups = [group for _, group in chosen]
    return [
        State(start, named_rows(start, min(start + size, n), source), state)
        for (start, _), state in zip(chosen, _digests(array, groups, steps), strict=True)
    ]


def object_states(array: Any, source: str) -> list[State]:
    """Return states of an object in the caller's memory, by its values or, if xarray has not read them, by its file."""
    if np.ma.is_masked(array):
        pairs = (sampled_states(part, source) for part in (array.data, np.ma.getmaskarray(array)))
        return [values._replace(state=digest(values.state, mask.state)) for values, mask in zip(*pairs, strict=True)]
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
    except Exception as error:  # the library behind the array can raise any error
        raise SourceError(
            f"{source} cannot be read ({type(error).__name__}: {first_line(error)}); check what lies behind it."
        ) from error


@lru_cache(maxsize=16)
def spread_rows(n: int, most: int) -> Array:
    """Return a pseudo-random row from each of at most `most` equal runs, so that no periodic change is missed."""
    edges = np.linspace(0, n, min(n, most) + 1).astype(np.uint64)
    mixed = np.arange(1, len(edges), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # SplitMix64, equal in every numpy
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    rows: Array = (edges[:-1] + (mixed >> np.uint64(31)) % np.diff(edges)).astype(np.int64)
    rows.flags.writeable = False
    return rows


def _steps_of(shape: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return the distances of about `most` values of a row along each axis, largest along its longest axes."""
    steps = [1] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -shape[axis]):
        values = math.prod(-(-length // step) for length, step in zip(shape, steps, strict=True))
        steps[axis] = min(shape[axis], -(-values // most))
    return tuple(steps)


def _digests(array: Any, groups: list[Array], steps: tuple[int, ...]) -> Iterator[str]:
    """Yield a digest of each group of rows, whose values begin at another place in each row of the array."""
    start, places = 0, math.prod(steps)
    item = np.dtype(array.dtype).itemsize * math.prod(
        -(-length // step) for length, step in zip(array.shape[1:], steps, strict=True)
    )
    # Rows of several groups that begin at the same place are gathered at once: 150 small reads took 6 ms of a pass.
    few = sum(map(len, groups)) * item <= _AT_ONCE
    for batch in [groups] if few else [[rows] for rows in groups]:
        together, first, read = np.concatenate(batch), 0, []
        for place in range(min(places, len(together))):
            begins = np.unravel_index((start + place) % places, steps)
            part = tuple(slice(int(begin), None, step) for begin, step in zip(begins, steps, strict=True))
            values = _values(array, together[place::places], part)
            read.append(values.reshape(len(values), -1).view(np.uint8))
        for rows in batch:
            hashed = hashlib.sha256()
            for place in range(first, first + min(places, len(rows))):
                count = -(-(first + len(rows) - place) // places)
                hashed.update(read[place % places][place // places :][:count].data)
            yield hashed.hexdigest()[:16]
            first += len(rows)
        start += len(together)


def _values(array: Any, rows: Array, part: tuple[slice, ...]) -> Array:
    """Return values of some rows, contiguous, in native byte order, as numpy changes to it when it unpickles arrays."""
    if isinstance(array, np.ndarray):
        first, last = int(rows[0]), int(rows[-1])
        # Consecutive rows need no copy.
        chosen: Any = slice(first, last + 1) if last - first == len(rows) - 1 else rows
        values = array[(chosen, *part)]
    else:
        values = np.concatenate([np.asarray(array[(slice(int(row), int(row) + 1), *part)]) for row in rows])
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))


def named_rows(start: int, stop: int, source: str) -> str:
    """Return a name of rows for messages."""
    return f"{source} (row {start})" if stop - start == 1 else f"{source} (rows {start} to {stop - 1})"
