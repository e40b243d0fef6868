"""`AccumulatorTask`: the common part of tasks that fold a collection into an accumulator."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...accumulators import Accumulator
from ...events import BlockDone
from ...execution.checkpoint import StageCheckpoint
from ...machine import hand_back
from ...planning.blocks import Span
from .job import Array, Job

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
