"""Tasks that fold a collection into an accumulator: blocks of samples, or ranges of features with all samples."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np

from ...accumulators import Accumulator, NotFiniteError, not_finite
from ...accumulators.sparse_rows import HeldRows
from ...arrays import Array, Float64
from ...events import BlockDone
from ...execution.checkpoint import StageCheckpoint
from ...execution.task import SampleBlocks
from ...machine import hand_back
from ...planning.blocks import Span, blocks_of
from ...readers import Collection
from .data_checks import bad_sample
from .job import Job
from .scratch_copy import ScratchCopy

A = TypeVar("A", bound=Accumulator)


@dataclass(frozen=True)
class AccumulatorTask(abc.ABC, Generic[A]):
    """Fold spans of a collection into an accumulator; see `streampca.execution.Task`.

    Attributes
    ----------
    new, restored : callable
        ``new()`` returns an empty accumulator, ``restored(state)`` the accumulator of a state; both picklable.
    """

    new: Callable[[], A]
    restored: Callable[[dict[str, Array]], A]

    def start(self) -> A:
        """Return an empty accumulator."""
        self._allocate_buffers()
        return self.new()

    def restore(self, state: dict[str, Array]) -> A:
        """Return the accumulator whose state this is."""
        self._allocate_buffers()
        return self.restored(state)

    def fold(self, job: Job, checkpoint: StageCheckpoint | None) -> A:
        """Fold the spans of a job's plan, and free all working memory."""
        plan = job.plan
        options: dict[str, Any] = {"threads": plan.threads, "ahead": plan.ahead, "listener": job.listener}
        accumulator = job.executor.fold(self, plan.spans, _absorb, checkpoint=checkpoint, **options)
        # The eigensolver that follows needs the memory of reading.
        self._release_buffers()
        accumulator.release()
        hand_back()
        return accumulator

    @abc.abstractmethod
    def blocks(self, span: Span) -> Iterable[Span]:
        """See `streampca.execution.Task.blocks`."""

    @abc.abstractmethod
    def counts(self, block: Span) -> BlockDone:
        """See `streampca.execution.Task.counts`."""

    @abc.abstractmethod
    def fetch(self, block: Span) -> Any:
        """See `streampca.execution.Task.fetch`."""

    @abc.abstractmethod
    def feed(self, accumulator: A, block: Span, fetched: Any) -> None:
        """See `streampca.execution.Task.feed`."""

    def _allocate_buffers(self) -> None:
        """Allocate memory to read into, if the task has any of its own."""

    def _release_buffers(self) -> None:
        """Free this memory."""


def _absorb(left: Accumulator, right: Accumulator) -> None:
    left.absorb(right)


@dataclass(frozen=True)
class SamplesTask(SampleBlocks, AccumulatorTask[A]):
    """Fold spans of samples, a block of rows at a time.

    Attributes
    ----------
    collection : Collection
        Collection to read.
    block_rows : int
        Number of samples read at a time.
    weights : ndarray of shape (n,) or None
        Weight of each sample.
    buffers : int
        Number of blocks in memory at once.
    remedy : str
        See `Job`.
    sparse : bool
        Whether blocks are sparse rows.
    held : list of HeldRows
        See `Job`.
    """

    collection: Collection
    block_rows: int
    weights: Float64 | None = None
    buffers: int = 1
    remedy: str = ""
    sparse: bool = False
    held: list[HeldRows] = field(default_factory=list, repr=False)
    _buffers: list[Array] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, job: Job, new: Callable[[], A], restored: Callable[[dict[str, Array]], A]) -> Self:
        """Return the task of a job: its collection and weights, in the blocks of its plan."""
        plan = job.plan
        buffers = plan.threads * (1 + plan.ahead)
        how = (plan.block_rows, job.weights, buffers, job.remedy, plan.sparse, job.held)
        return cls(new, restored, job.collection, *how)

    def _allocate_buffers(self) -> None:
        """Allocate the memory that blocks are read into, once and in this thread.

        Memory that a reading thread allocates and frees stays in a pool of that thread (`machine.share_pools`).
        """
        count = min(self.block_rows, self.collection.n_samples) * self.collection.n_features
        while self.collection.storage.fills and not self.sparse and len(self._buffers) < self.buffers:
            self._buffers.append(np.empty(count, self.collection.dtype))

    def _release_buffers(self) -> None:
        self._buffers.clear()

    def fetch(self, block: Span) -> tuple[Array, Array | None]:
        """Read a block; return it, and the memory it was read into."""
        if self.sparse:
            read = self.collection.read_sparse(slice(*block))
            rows = HeldRows.of(read, self.held[0] if self.held else None)
            self.held[:] = [rows]
            return cast("Array", rows), None
        if not self._buffers:
            return self.collection.read(slice(*block)), None
        # Threads take buffers in turn; `feed` returns them.
        buffer = self._buffers.pop()
        values = buffer[: block.size * self.collection.n_features].reshape(block.size, -1)
        self.collection.read_into(slice(*block), None, values)
        return values, buffer

    def feed(self, accumulator: A, block: Span, fetched: tuple[Array, Array | None]) -> None:
        """Absorb a block; an error names the sample that is not finite, and its file."""
        rows, buffer = fetched
        weights = None if self.weights is None else self.weights[slice(*block)]
        try:
            accumulator.update(rows, at=block.start, weights=weights)
        except NotFiniteError as error:
            raise bad_sample(error, self.collection, self.remedy) from None
        if buffer is not None:
            self._buffers.append(buffer)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffers": []}


class FeatureRanges:
    """Collection that is read by ranges of features, all samples of a range at once, into the same memory.

    Parameters
    ----------
    collection : Collection
        Collection to read.
    block_rows : int
        Number of samples read at a time.
    width : int
        Largest number of features of a range. The last range is kept, and not read again immediately.
    sparse : bool, default=False
        Whether ranges, of all features then, are sparse rows.
    """

    def __init__(self, collection: Collection, block_rows: int, width: int, *, sparse: bool = False) -> None:
        self.collection, self._sparse = collection, sparse
        self.width, self._block_rows = min(width, collection.n_features), block_rows
        self._buffer: Array | None = None
        self._held: tuple[Span, Array] | None = None

    def __getstate__(self) -> dict[str, Any]:  # without the values that were read
        return {**vars(self), "_buffer": None, "_held": None}

    def read(self, features: Span) -> Array:
        """Return all samples of a range of features, (n, width), as stored; valid until the next read."""
        if self._held is not None and self._held[0] == features:
            return self._held[1]
        self._held = None  # there is memory for one range
        block = self._read(features)
        self._held = features, block
        return block

    def _read(self, features: Span) -> Array:
        n, whole = self.collection.n_samples, features.size == self.collection.n_features
        if self._sparse:
            return cast("Array", HeldRows(self.collection.read_sparse(slice(0, n))))
        columns = None if whole else slice(*features)
        # One read of the reader's own array needs no copy into the buffer.
        if self._block_rows >= n and (whole or not self.collection.storage.fills):
            return self.collection.read(slice(0, n), columns)
        if self._buffer is None:  # allocated once: fresh pages of the system are no faster than reading
            self._buffer = np.empty(n * self.width, self.collection.dtype)
        block = self._buffer[: n * features.size].reshape(n, features.size)
        for rows in blocks_of(Span(0, n), self._block_rows):
            self.collection.read_into(slice(*rows), columns, block[slice(*rows)])
        return block

    def done(self, features: Span) -> BlockDone:
        """Return the share of all samples, and of all bytes, that a range amounts to."""
        n, p = self.collection.n_samples, self.collection.n_features
        # Differences of rounded cumulative shares add up to exactly n.
        shares = (n * features.stop // p - n * features.start // p, self.collection.nbytes * features.size // p)
        return BlockDone(*shares)


@dataclass(frozen=True)
class FeaturesTask(AccumulatorTask[A]):
    """Fold spans of features into an accumulator along features, a range with all samples at a time.

    Attributes
    ----------
    source : FeatureRanges
        Ranges to read.
    precision : {"single", "double"}
        Precision of products, for the remedy in messages.
    """

    source: FeatureRanges
    precision: str

    def blocks(self, span: Span) -> Iterable[Span]:
        """Return ranges that end at multiples of the plan's width."""
        return blocks_of(span, self.source.width)

    def counts(self, block: Span) -> BlockDone:
        """Return the share of all samples that a range amounts to."""
        return self.source.done(block)

    def fetch(self, block: Span) -> Array:
        """Read a range."""
        return self.source.read(block)

    def feed(self, accumulator: A, block: Span, fetched: Array) -> None:
        """Absorb a range; an error names the sample that is not finite, and its file."""
        try:
            accumulator.update(fetched, at=block.start)
        except NotFiniteError as error:  # describes a range only: describe the whole sample
            number, collection = error.sample, self.source.collection
            if isinstance(collection, ScratchCopy):
                collection = collection.copied
            row = collection.read(slice(number, number + 1))
            raise bad_sample(not_finite(row, number, self.precision), collection) from None
