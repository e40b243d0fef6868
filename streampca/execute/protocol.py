"""What a task is and what an executor does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from ..blocks import Span
from ..events import BlockDone, Listener

A = TypeVar("A")
Offer = Callable[[int, Span, Any], None]


class Task(Protocol[A]):
    """Work over a span (of samples, of features, of steps), cut into blocks. Picklable: it holds no data."""

    def start(self) -> A:
        """Return a new, empty accumulator."""

    def blocks(self, span: Span) -> Iterable[Span]:
        """Cut a span into the blocks that are in memory one at a time, in order."""

    def feed(self, accumulator: A, block: Span) -> BlockDone:
        """Read a block and absorb it; return how many samples that was, and how many bytes were read."""


class Executor(Protocol):
    """Runs a task over spans and merges the partials from left to right."""

    def fold(
        self,
        task: Task[A],
        spans: Sequence[Span],
        merge: Callable[[A, A], None],
        *,
        listener: Listener,
        offer: Offer | None = None,
    ) -> A:
        """Fold every span and merge.

        Parameters
        ----------
        task : Task
            What to do.
        spans : sequence of Span
            Where, in order; a field of the plan.
        merge : callable
            ``merge(left, right)`` absorbs the right partial into the left in place.
        listener : callable
            Told of every block done.
        offer : callable, optional
            ``offer(span number, block just done, accumulator)`` after each block, for whoever saves.
        """
