"""`SamplesTask`: blocks, buffers and errors of tasks that read blocks of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from ...accumulators import NotFiniteError
from ...events import BlockDone
from ...planning.blocks import Span, blocks_of
from ...readers import Collection
from .accumulator_task import A, AccumulatorTask
from .data_checks import bad_sample
from .job import Array, Float64, Job


@dataclass(frozen=True)
class SamplesTask(AccumulatorTask[A]):
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
    """

    collection: Collection
    block_rows: int
    weights: Float64 | None = None
    buffers: int = 1
    remedy: str = ""
    _buffers: list[Array] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, job: Job, new: Callable[[], A], restored: Callable[[dict[str, Array]], A]) -> Self:
        """Return the task of a job: its collection and weights, in the blocks of its plan."""
        plan = job.plan
        buffers = plan.threads * (1 + plan.ahead)
        return cls(new, restored, job.collection, plan.block_rows, job.weights, buffers, job.remedy)

    def _allocate_buffers(self) -> None:
        """Allocate the memory that blocks are read into, once and in this thread.

        Memory that a reading thread allocates and frees stays in a pool of that thread (`machine.share_pools`).
        """
        count = min(self.block_rows, self.collection.n_samples) * self.collection.n_features
        while self.collection.storage.fills and len(self._buffers) < self.buffers:
            self._buffers.append(np.empty(count, self.collection.dtype))

    def _release_buffers(self) -> None:
        self._buffers.clear()

    def blocks(self, span: Span) -> Iterable[Span]:
        """Return blocks that end at multiples of the plan's block length."""
        return blocks_of(span, self.block_rows)

    def counts(self, block: Span) -> BlockDone:
        """Return the number of samples of a block, and their bytes."""
        return BlockDone(block.size, block.size * self.collection.row_bytes)

    def fetch(self, block: Span) -> tuple[Array, Array | None]:
        """Read a block; return it, and the memory it was read into."""
        if not self._buffers:
            return self.collection.read(slice(*block)), None
        # Threads take buffers in turn; `feed` returns them.
        buffer = self._buffers.pop()
        rows = buffer[: block.size * self.collection.n_features].reshape(block.size, -1)
        self.collection.read_into(slice(*block), None, rows)
        return rows, buffer

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
