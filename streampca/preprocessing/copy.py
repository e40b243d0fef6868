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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..errors import RequestError
from ..events import BlockDone, Listener, PassStarted, reported, silent
from ..execution import Executor
from ..execution.checkpoint import Checkpointing
from ..execution.resumable_output import resumable_output
from ..execution.session import Session, session
from ..planning.blocks import SPANS_A_WORKER, Span, blocks_of, spans_of
from ..planning.boxes import Box, flat_range, tiles_of
from ..planning.component_chunks import Cut
from ..planning.copy_plan import CopyPlan, plan_copy
from ..readers import check_apart, paths_of
from ..readers.collection import COPIED_KEY, Collection, counting_dim, sample_dims, states_by_name, unchanged
from ..storage.disk import expanded
from ..storage.outputs import check_output
from ..storage.writers import OutputArray, Writer
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
    checkpointing: Checkpointing | None = None,
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
    checkpointing : Checkpointing, optional
        Folder and interval of checkpoints, from which the same copy resumes; by default none are saved.
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
    how: dict[str, Any] = {"executor": executor, "checkpointing": checkpointing, "listener": listener}
    with session("copy", output=path, overwrite=overwrite, **how) as current:
        budget = memory or current.executor.memory
        source, plan = foresee_copy(collection, path, memory=budget, overwrite=overwrite)
        _copy_to(current, path, source, plan, parse_bytes(memory))


def _copy_to(current: Session, path: str, source: Collection, plan: CopyPlan, budget: int | None) -> None:
    """Write the tiles of a collection to its copy, or those that an unfinished copy lacks."""
    runner, listener, n_tiles = current.executor, current.listener, sum(1 for _ in tiles_of(source.shape, plan.tile))
    spans = spans_of(n_tiles, SPANS_A_WORKER * runner.workers if runner.workers > 1 else 1, 1)
    saved = None if current.checkpointing is None else current.checkpoint(_identity_of(source, path, budget))
    if saved is not None and (begun := saved.record.get("plan")):  # it was checked against the memory there was then
        cut: Any = {name: tuple(begun[name]) for name in ("tile", "chunk")}
        plan, spans = replace(plan, **cut, ahead=begun["ahead"]), tuple(Span(*span) for span in begun["spans"])
    numbers = {
        "tile": [*plan.tile],
        "chunk": [*plan.chunk],
        "ahead": plan.ahead,
        "spans": [[*span] for span in spans],
    }
    with (
        reported(listener, PassStarted("copy", 1, 1, source.n_samples, source.nbytes)),
        resumable_output(current, saved, numbers, path, _table(source, plan)) as (writer, checkpoint),
        unchanged(source),
    ):
        task = _Tiles(source, tuple(tiles_of(source.shape, plan.tile)), writer)
        runner.check(task.first, plan.memory_estimate.total, listener)
        how: dict[str, Any] = {"ahead": plan.ahead, "listener": listener, "checkpoint": checkpoint}
        runner.fold(task, spans, TilesWritten.absorb, **how)


def _identity_of(source: Collection, path: str, budget: int | None) -> dict[str, Any]:
    """Return what must be the same for an unfinished copy to be resumed."""
    return {
        "work": "copy",
        "output": os.path.abspath(path),
        "source": source.source,
        **(source.preparation.to_json() if isinstance(source, Prepared) else {}),
        "shape": list(source.shape),
        "dtype": source.dtype.str,
        "memory": budget,
        "version of streampca": __version__,
        **states_by_name(source.states()),
    }


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
                f"a copy of {collection.source} holds whole images, and mask leaves pixels out; leave --mask (mask) "
                "out here and give it to the fit."
            )
        if collection.preparation.is_identity:
            collection = collection.raw
    if collection.mixed:
        raise RequestError(
            f"{collection.source} holds images of several shapes, and one array holds one; bring them to one size with "
            "--resize (resize)."
        )
    return collection


def _table(source: Collection, plan: CopyPlan) -> OutputArray:
    dims = sample_dims(source)
    return OutputArray(
        "images",
        source.shape,
        (counting_dim(source), *dims),
        source.dtype,
        names=source.sample_names(),
        attributes={"source": source.source, **_key_of(source), **_plain(source.attributes)},
        coordinates=source.coordinates,
        sample_coordinates=source.sample_coordinates(),
        cut=Cut(plan.chunk, plan.tile),
    )


def _key_of(source: Collection) -> dict[str, Any]:
    """Return the name of the array or variables that is copied, which models of others refuse; none if not named."""
    opened = getattr(source, "raw", source).opened
    return {} if opened is None or "key" not in opened.options else {COPIED_KEY: opened.options["key"]}


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


class TilesWritten:
    """Accumulator of a copy, whose tiles are in the output."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def absorb(self, other: TilesWritten) -> None:
        """Add nothing."""

    def state(self, *, copy: bool = True) -> dict[str, npt.NDArray[Any]]:
        """Put the tiles on disk, and return the `size` of the output's file."""
        return {"size": np.array(self._writer.sync())}


@dataclass(frozen=True)
class _Tiles:
    """Copy tiles of a collection to an output; see `streampca.execution.Task`. Spans count tiles."""

    source: Collection
    tiles: tuple[Box, ...]
    writer: Writer

    def start(self) -> TilesWritten:
        return TilesWritten(self.writer)

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> TilesWritten:
        return TilesWritten(self.writer)

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

    def feed(self, accumulator: TilesWritten, block: Span, fetched: npt.NDArray[Any]) -> None:
        samples, *box = self.tiles[block.start]
        self.writer.write(samples.start, fetched, tuple(box))

    def first(self) -> None:
        """Read a sample, to check that a worker can; its access to the output shows when it receives the task."""
        self.source.read(slice(0, 1))
