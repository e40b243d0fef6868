"""Plan a copy of a collection: the tiles it is read by, and the chunks and shards it is written in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from ..units import KIB, MIB
from .boxes import box_of
from .candidate_sizes import SizesByBudget, search_or_refuse
from .memory import HELD, RUNTIME_BYTES, Phase
from .request import Problem

MOST_SHARD = 256 * MIB  # larger files gain nothing; a source's own chunks may ask for larger ones
CHUNK = 2 * MIB  # of an output: decoding is fastest at 1 to 4 MiB (benchmarks/copies.py)
LEAST_CHUNK = 64 * KIB  # below, handling a chunk costs more than decoding it
LATER_BLOCK = 16 * MIB  # whole samples that a later reader should get at by decoding each chunk once
# Of a tile while it is a shard in the making: the tile, its chunks as encoded, apart and put together, and the padded
# copy that a tile at the array's edge becomes. Measured with values that do not compress: 3.1 tiles of more than
# 32 MiB, and 4.3 of smaller ones, which glibc keeps for later in pieces that do not fit.
WRITE_COPIES = 5
WRITE_POOLS = 10 * MIB  # what the memory pools of Zarr's encoding threads keep, as measured with tiles of 4 to 60 MiB


def plan_copy(problem: Problem, memory: int | None) -> CopyPlan:
    """Choose tiles and chunks.

    Parameters
    ----------
    problem : Problem
        Of the collection.
    memory : int or None
        Budget in bytes; the default as for `Request`.

    Raises
    ------
    BudgetError
        If the smallest tile does not fit, naming the budget that would do.
    """
    return search_or_refuse("copying", [[CopyPlan(problem=problem)]], problem.machine.budget(memory))


@dataclass(frozen=True, kw_only=True)
class CopyPlan(SizesByBudget):
    """Tiles and chunks in which a collection is copied; before they are cut to a budget, a candidate.

    Attributes
    ----------
    tile : tuple of int
        Shape of a part that is read at once and becomes one shard: samples, then lengths along the sample's axes.
    chunk : tuple of int
        Shape of the least that a later read decodes; divides the tile.
    ahead : int
        Tiles read ahead, 0 or 1.
    """

    tile: tuple[int, ...] = ()
    chunk: tuple[int, ...] = ()
    ahead: int = 0

    def cut(self, memory: int) -> Self:
        """Return the largest tiles that so many bytes hold, or the smallest worth a read."""
        problem, shape = self.problem, self.problem.sample_shape
        fixed = RUNTIME_BYTES + WRITE_POOLS + problem.decode_bytes + problem.held_bytes
        rows, width = _tile(problem, max(memory - fixed, _bytes_in_memory(problem, 1, _least_width(problem))))
        box = box_of(width, shape)
        rows, chunk_rows = _whole_chunks(problem, problem.chunk_samples, rows, math.prod(box))
        # The box of a chunk is that of the tile, or a part of it where one sample alone is large.
        values = max(1, 2 * CHUNK // problem.itemsize)
        part = box if chunk_rows * math.prod(box) <= values else box_of(max(1, values // chunk_rows), box)
        tile, chunk = _whole_boxes((rows, *box), (chunk_rows, *part), shape)
        ahead = replace(self, tile=tile, chunk=chunk, ahead=1)
        is_part = ahead._samples * ahead._width < problem.n_samples * problem.n_features
        return ahead if is_part and ahead.fits(memory) else replace(ahead, ahead=0)

    # Tiles may reach past the end of an axis, which takes no memory.

    @property
    def _samples(self) -> int:
        return min(self.tile[0], self.problem.n_samples)

    @property
    def _width(self) -> int:
        return math.prod(map(min, self.tile[1:], self.problem.sample_shape))

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of the only phase."""
        problem, samples, width = self.problem, self._samples, self._width
        items = (
            (f"tile of {samples} samples, as read to as written", _bytes_in_memory(problem, samples, width)),
            (f"{self.ahead} tiles read ahead", self.ahead * _bytes_read(problem, samples, width)),
            ("storage being decoded", problem.decode_bytes),
            ("Zarr and Python", RUNTIME_BYTES + WRITE_POOLS),
        )
        yield Phase("copy", items).plus_item(HELD, problem.held_bytes)


def _bytes_in_memory(problem: Problem, rows: int, width: int) -> int:
    """Bytes of a tile, from reading it to having written it."""
    return max(_bytes_read(problem, rows, width), WRITE_COPIES * rows * width * problem.itemsize)


def _bytes_read(problem: Problem, rows: int, width: int) -> int:
    """Bytes of a tile while it is read; a preparation holds raw samples and its own copies."""
    if problem.prepared_bytes:
        return rows * (problem.row_bytes + problem.prepared_bytes)
    return rows * width * problem.itemsize


def _least_width(problem: Problem) -> int:
    """Return the fewest features of a sample worth a read: a chunk of them, or all that a preparation reads anyway."""
    if problem.prepared_bytes:
        return problem.n_features
    return min(problem.n_features, max(1, CHUNK // problem.itemsize))


def _tile(problem: Problem, room: int) -> tuple[int, int]:
    """Samples and features to a tile, about: as large as fits, by whole storage chunks where one fits.

    Whole samples where storage has whole samples; otherwise all samples of a storage chunk, and as many features.
    """
    n, p = problem.n_samples, problem.n_features
    deep, wide = min(problem.chunk_samples, n), min(problem.chunk_features, p)
    values = _most_values(problem, deep * wide, room)
    if p <= values and (wide == p or deep * p <= values):
        rows = min(n, values // p)
        return (rows if rows == n else rows // deep * deep or rows), p
    if deep * wide <= values:
        return deep, min(p, values // deep // wide * wide)
    width = min(wide, values)
    return max(1, values // width), width


def _most_values(problem: Problem, chunk: int, room: int) -> int:
    """Values to a tile: what there is room for, no more than make a good file, unless a storage chunk has more."""
    most = max(MOST_SHARD // problem.itemsize, chunk)
    rows = room // _bytes_in_memory(problem, 1, problem.n_features) if problem.prepared_bytes else 0
    fits = rows * problem.n_features or room // (WRITE_COPIES * problem.itemsize)
    return max(1, min(fits, most))


def _whole_chunks(problem: Problem, deep: int, rows: int, width: int) -> tuple[int, int]:
    """Samples to a tile and to a chunk, the tile a whole number of chunks and, where it can be, of storage chunks."""
    n = problem.n_samples
    most_rows = CHUNK // (width * problem.itemsize)
    later = max(LATER_BLOCK // (problem.n_features * problem.itemsize), LEAST_CHUNK // (width * problem.itemsize))
    most_rows = max(1, min(most_rows, later, rows))
    if rows >= n:
        count = math.ceil(n / most_rows)
        chunk = math.ceil(n / count)
        return chunk * count, chunk
    if deep <= most_rows:
        chunk = most_rows // deep * deep
    else:
        aligned = _divisor(deep, most_rows) if rows % deep == 0 else 0
        chunk = aligned if 4 * aligned > most_rows else most_rows
    return rows // chunk * chunk, chunk


def _whole_boxes(
    tile: tuple[int, ...], chunk: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tile and chunk, the one a whole number of the other along every axis.

    An axis that a tile covers is cut evenly, its last chunk reaching past the end; of another, chunks divide the run.
    """
    tiles, parts = [tile[0]], [chunk[0]]
    for run, part, length in zip(tile[1:], chunk[1:], shape, strict=True):
        count = math.ceil(run / part)
        part = math.ceil(run / count) if run == length else _divisor(run, part)
        parts.append(part)
        tiles.append(math.ceil(run / part) * part)
    return tuple(tiles), tuple(parts)


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number up to `most`."""
    return next(part for part in range(min(number, most), 0, -1) if number % part == 0)
