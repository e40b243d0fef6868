"""`copy_collection`: any collection as one well-chunked, sharded Zarr array, in bounded memory.

The collection is cut into tiles, each a run of samples by a box of features. A tile is read once and becomes one shard,
a file of its own, so that files are few; shards hold chunks of a few MiB, so that reading is fine-grained. Tiles follow
the source's chunks: one that is cut across features is read range of features by range of features, where reading it
block of samples by block of samples would decode all of it for every block.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import zarr

from ..errors import BudgetError, OutputError, RequestError
from ..events import BlockDone, Finished, Listener, PassFinished, PassStarted, check_listener, silent
from ..planning import boxes, budget_of
from ..planning.boxes import Box, box_of, flat_range
from ..planning.memory import RUNTIME_BYTES, Phase
from ..planning.request import Problem
from ..preprocessing import Prepared
from ..preprocessing.problem import problem_of
from ..readers import check_apart, paths_of
from ..readers.collection import Chunks, Collection, counting_dim, sample_dims, unchanged
from ..units import KIB, MIB, budget_size, format_bytes, parse_bytes
from .disk import expanded
from .outputs import check_output, staged
from .sinks import Cut, Table, ZarrSink

MOST_SHARD = 256 * MIB  # larger files gain nothing; a source's own chunks may ask for larger ones
CHUNK = 2 * MIB  # of an output: decoding is fastest at 1 to 4 MiB (benchmarks/copies.py)
LEAST_CHUNK = 64 * KIB  # below, handling a chunk costs more than decoding it
LATER_BLOCK = 16 * MIB  # whole samples that a later reader should get at by decoding each chunk once
# Of a tile while it is a shard in the making: the tile, its chunks as encoded, apart and put together, and the padded
# copy that a tile at the array's edge becomes. Measured with values that do not compress: 3.1 tiles of more than
# 32 MiB, and 4.3 of smaller ones, which glibc keeps for later in pieces that do not fit.
WRITE_COPIES = 5
WRITE_POOLS = 10 * MIB  # what the memory pools of Zarr's encoding threads keep, as measured with tiles of 4 to 60 MiB
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


@dataclass(frozen=True)
class CopyPlan:
    """How a collection is copied.

    Attributes
    ----------
    tile : tuple of int
        What is read at once and becomes one shard: samples, then lengths along the sample's axes.
    chunk : tuple of int
        What a later read decodes at least; divides the tile.
    decodings : int
        Times each of the source's chunks is decoded, at most.
    bill : Phase
        Memory.
    """

    tile: tuple[int, ...]
    chunk: tuple[int, ...]
    decodings: int
    bill: Phase


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
        sink = ZarrSink(partial, _table(source, plan))
        with unchanged(source):
            _write_tiles(source, plan, sink, listener)
        sink.close()
        _check(partial, path, source)
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
    return source, plan_copy(problem_of(source), source.chunks, None if memory is None else parse_bytes(memory))


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


def _table(source: Collection, plan: CopyPlan) -> Table:
    dims = sample_dims(source)
    return Table(
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


def _write_tiles(source: Collection, plan: CopyPlan, sink: ZarrSink, listener: Listener) -> None:
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


def _check(partial: str, path: str, source: Collection) -> None:
    """Open what was written and see that it is all there: shape, dtype and every chunk."""
    found: Any = zarr.open_group(partial, mode="r")["images"]
    # Zarr counts every chunk of a shard that is there, those past the array's end too.
    shards = math.prod(math.ceil(length / run) for length, run in zip(source.shape, found.shards, strict=True))
    chunks = shards * math.prod(run // part for run, part in zip(found.shards, found.chunks, strict=True))
    same = (found.shape, found.dtype) == (source.shape, source.dtype.newbyteorder("="))
    if not same or found.nchunks_initialized != chunks:
        raise OutputError(f"{path} is not what was written to it; check the disk, then copy again.")


def tiles_of(shape: tuple[int, ...], tile: tuple[int, ...]) -> Iterator[tuple[int, int, Box]]:
    """Cut (n, *sample_shape) into tiles, in C order: first and last sample, and the box of the sample's axes."""
    for box in boxes.tiles_of(shape, tile):
        yield box[0].start, box[0].stop, box[1:]


# -- the plan: integers only


def plan_copy(problem: Problem, chunks: Chunks, memory: int | None) -> CopyPlan:
    """Choose tiles and chunks.

    Parameters
    ----------
    problem : Problem
        Of the collection.
    chunks : Chunks
        How its storage cuts it.
    memory : int or None
        Budget in bytes; the default as for `Request`.

    Raises
    ------
    BudgetError
        If the smallest tile does not fit, naming the budget that would do.
    """
    budget, origin = budget_of(memory)
    fixed = RUNTIME_BYTES + WRITE_POOLS + problem.decode_bytes
    least = _bytes_in_memory(problem, 1, _least_width(problem))
    if fixed + least > budget:
        raise BudgetError(
            f"copying needs {format_bytes(fixed + least)} and memory allows {format_bytes(budget)} ({origin}); "
            f"decoding takes {format_bytes(problem.decode_bytes)} of it. Set memory to at least "
            f"{budget_size(fixed + least)}."
        )
    rows, width = _tile(problem, chunks, budget - fixed)
    box = box_of(width, problem.sample_shape)
    rows, chunk_rows = _whole_chunks(problem, chunks.samples, rows, math.prod(box))
    tile, chunk = _whole_boxes((rows, *box), (chunk_rows, *_chunk_box(problem, box, chunk_rows)), problem.sample_shape)
    again = _decodings(chunks.samples, rows, problem.n_samples)
    again *= _decodings(chunks.features, math.prod(box), problem.n_features)
    held = _bytes_in_memory(problem, min(rows, problem.n_samples), math.prod(box))
    items = (
        (f"tile of {min(rows, problem.n_samples)} samples, as read to as written", held),
        ("storage being decoded", problem.decode_bytes),
        ("Zarr and Python", RUNTIME_BYTES + WRITE_POOLS),
    )
    return CopyPlan(tile, chunk, again, Phase("copy", items))


def _bytes_in_memory(problem: Problem, rows: int, width: int) -> int:
    """Of a tile, from reading it to having written it; a preparation holds raw samples and its own copies."""
    tile = rows * width * problem.itemsize
    reading = rows * (problem.row_bytes + problem.prepared_bytes) if problem.prepared_bytes else tile
    return max(reading, WRITE_COPIES * tile)


def _least_width(problem: Problem) -> int:
    """Fewest features of one sample worth a read: what makes a chunk, or all that a preparation reads anyway."""
    if problem.prepared_bytes:
        return problem.n_features
    return min(problem.n_features, max(1, CHUNK // problem.itemsize))


def _tile(problem: Problem, chunks: Chunks, room: int) -> tuple[int, int]:
    """Samples and features to a tile, about: as large as fits, by whole storage chunks where one fits.

    Whole samples where storage has whole samples; otherwise all samples of a storage chunk, and as many features.
    """
    n, p = problem.n_samples, problem.n_features
    deep, wide = min(chunks.samples, n), min(chunks.features, p)
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
    wanted = CHUNK // (width * problem.itemsize)
    later = max(LATER_BLOCK // (problem.n_features * problem.itemsize), LEAST_CHUNK // (width * problem.itemsize))
    wanted = max(1, min(wanted, later, rows))
    if rows >= n:
        count = math.ceil(n / wanted)
        chunk = math.ceil(n / count)
        return chunk * count, chunk
    if deep <= wanted:
        chunk = wanted // deep * deep
    else:
        aligned = _divisor(deep, wanted) if rows % deep == 0 else 0
        chunk = aligned if 4 * aligned > wanted else wanted
    return rows // chunk * chunk, chunk


def _chunk_box(problem: Problem, box: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """The box of features to a chunk: the tile's, or a part of it where one sample alone is large."""
    values = max(1, 2 * CHUNK // problem.itemsize)
    return box if rows * math.prod(box) <= values else box_of(max(1, values // rows), box)


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


def _decodings(chunk: int, run: int, length: int) -> int:
    """Most runs of a length that one chunk has a part in."""
    if run % chunk == 0:
        return 1
    return min(math.ceil(length / run), math.ceil(chunk / run) + (chunk % run > 0))


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number up to `most`."""
    return next(part for part in range(min(number, most), 0, -1) if number % part == 0)
