"""`copy_collection`: any collection as one well-chunked, sharded Zarr array, in bounded memory.

The collection is cut into tiles, each a run of samples by a box of features. A tile is read once and written as one
shard, a file of its own, so that files are few; shards hold chunks of a few MiB, so that small parts can be read. Tiles
follow the source's chunks: a source with chunks that span many samples and few features is read by ranges of features,
as reading it by blocks of samples would decode every chunk for every block.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ..errors import RequestError
from ..events import BlockDone, Listener, PassStarted, reported, silent
from ..execution import Executor
from ..execution.session import session
from ..planning.blocks import Span, blocks_of, spans_of
from ..planning.boxes import Box, flat_range, tiles_of
from ..planning.budget import SPANS_A_WORKER
from ..planning.component_chunks import Cut
from ..planning.copy_plan import CopyPlan, plan_copy
from ..readers import check_apart, paths_of
from ..readers.collection import Collection, counting_dim, sample_dims, unchanged
from ..storage.disk import expanded
from ..storage.free_space import check_free_space
from ..storage.outputs import check_output, staged
from ..storage.writers import OutputArray, Writer, ZarrWriter, check_array
from ..units import parse_bytes
from .prepared import Prepared
from .sizes_for_planning import problem_of

# Attributes of axes, which the copy has its own for.
NOT_KEPT = {"sample_axis", "_ARRAY_DIMENSIONS", "coordinates", "axistags"}


def copy_collection(
    collection: Collection,
    path: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    overwrite: bool = False,
    executor: Executor | None = None,
    listener: Listener = silent,
) -> None:
    """Write a collection as a Zarr v3 group with one array, ``images``, that is fast to read by samples.

    Values and dtype are kept, and so are names of samples, coordinates and attributes; xarray opens the group as a
    Dataset, and `open_collection` as a collection equal to the original.

    Parameters
    ----------
    collection : Collection
        Raw collection, or one prepared without a mask.
    path : path
        Folder to create, ending in ``.zarr``; it appears under this name when it is complete.
    memory : int or str, optional
        Most bytes to use; half of the machine's limit by default.
    overwrite : bool, default=False
        Replace existing images that were written by streampca.
    executor : Executor, optional
        Executor that distributes the tiles; by default this process copies all of them.
    listener : callable, optional
        Function that receives an event for every tile.

    Raises
    ------
    RequestError
        If the output's name has another ending, a mask leaves pixels out, images differ in shape, or the output is
        the source, contains it or lies in it.
    OutputError
        If the output exists (and `overwrite` is false) or cannot be written.
    BudgetError
        If not even the smallest tile fits; raised before any data is read.
    SourceError
        If the collection cannot be read; a ChangedError if it changed since it was opened.
    """
    path = expanded(path)
    with session("copy", output=path, overwrite=overwrite, executor=executor, listener=listener) as current:
        budget = memory or current.executor.memory
        source, plan = foresee_copy(collection, path, memory=budget, overwrite=overwrite)
        _copy_to(path, source, plan, current.executor, current.listener)


def _copy_to(path: str, source: Collection, plan: CopyPlan, runner: Executor, listener: Listener) -> None:
    """Write the tiles of a collection to its copy."""
    table = _table(source, plan)
    check_free_space(path, table.most_bytes(".zarr"), path, at_most=listener)
    with staged(path) as partial:
        writer = ZarrWriter(partial, table)
        task = _Tiles(source, tuple(tiles_of(source.shape, plan.tile)), writer)
        with reported(listener, PassStarted("copy", 1, 1, source.n_samples, source.nbytes)), unchanged(source):
            runner.check(task.first, plan.memory_estimate.total, listener)
            spans = spans_of(len(task.tiles), SPANS_A_WORKER * runner.workers if runner.workers > 1 else 1, 1)
            runner.fold(task, spans, _EmptyAccumulator.absorb, ahead=plan.ahead, listener=listener)
        writer.close()
        check_array(partial, path, "images", source.shape, source.dtype)


def foresee_copy(
    collection: Collection, path: str, *, memory: int | str | None, overwrite: bool
) -> tuple[Collection, CopyPlan]:
    """Return the collection that a copy reads, and the plan of the copy, or refuse it; nothing is read or written.

    Raises
    ------
    RequestError, OutputError, BudgetError
        In the cases of `copy_collection`.
    """
    check_apart([path], paths_of(collection))
    source = _source_of_copy(collection)
    check_copy(path, overwrite=overwrite)
    return source, plan_copy(problem_of(source), parse_bytes(memory))


def check_copy(path: str, *, overwrite: bool) -> None:
    """Refuse a path for a copy; raises the errors of `copy_collection`."""
    if os.path.splitext(path.rstrip("/"))[1].lower() != ".zarr":
        raise RequestError(f"output {path} does not end in .zarr, and copies are Zarr; choose such a name.")
    check_output(path, "images", overwrite=overwrite)


def _source_of_copy(collection: Collection) -> Collection:
    """Return the collection to read: the raw one if nothing is prepared, as it can be read by ranges of features."""
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


def _table(source: Collection, plan: CopyPlan) -> OutputArray:
    dims = sample_dims(source)
    return OutputArray(
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
    """Return the attributes that JSON can hold, numpy's numbers and arrays included."""
    plain = {}
    for name, value in attributes.items():
        value = value.tolist() if hasattr(value, "tolist") else value
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            continue
        if name not in NOT_KEPT:
            plain[name] = value
    return plain


class _EmptyAccumulator:
    """Empty accumulator of a copy, whose tiles are in the output."""

    def absorb(self, other: _EmptyAccumulator) -> None:
        """Add nothing."""

    def state(self, *, copy: bool = True) -> dict[str, npt.NDArray[Any]]:
        """Return no arrays."""
        return {}


@dataclass(frozen=True)
class _Tiles:
    """Copy tiles of a collection to an output; see `streampca.execution.Task`. Spans count tiles."""

    source: Collection
    tiles: tuple[Box, ...]
    writer: Writer

    def start(self) -> _EmptyAccumulator:
        return _EmptyAccumulator()

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> _EmptyAccumulator:
        return _EmptyAccumulator()

    def blocks(self, span: Span) -> Iterable[Span]:
        return blocks_of(span, 1)

    def counts(self, block: Span) -> BlockDone:
        """Return a tile's share of its samples, in whole numbers that add up to the run of samples."""
        (samples, *box), p = self.tiles[block.start], self.source.n_features
        size, (first, last) = samples.stop - samples.start, flat_range(tuple(box), self.source.sample_shape)
        return BlockDone(size * last // p - size * first // p, size * self.source.row_bytes * (last - first) // p)

    def fetch(self, block: Span) -> npt.NDArray[Any]:
        samples, *box = self.tiles[block.start]
        first, last = flat_range(tuple(box), self.source.sample_shape)
        rows = self.source.read(samples, slice(first, last) if last - first < self.source.n_features else None)
        return rows.reshape(-1, *(part.stop - part.start for part in box))

    def feed(self, accumulator: _EmptyAccumulator, block: Span, fetched: npt.NDArray[Any]) -> None:
        samples, *box = self.tiles[block.start]
        self.writer.write(samples.start, fetched, tuple(box))

    def first(self) -> None:
        """Read a sample, to check that a worker can; its access to the output shows when it receives the task."""
        self.source.read(slice(0, 1))
