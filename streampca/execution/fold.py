"""Folding: the loop over spans and blocks that every executor runs, from the beginning or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Generic

from ..errors import Stopped
from ..events import Listener, Resumed
from ..planning.blocks import Span
from ..signals import safe_point
from .decoded_chunks import keeping
from .prefetch import prefetched
from .task import A, Checkpointer, Task


@dataclass
class Partial(Generic[A]):
    """An accumulator of the spans from `first` up to `last`, and of that one up to `at`.

    `is_fed` is True while it absorbs the block from `at` on, and False while that is read.
    """

    first: int
    last: int
    at: int
    accumulator: A
    is_fed: bool = False


class Merged(Generic[A]):
    """The partials merged so far, from the first span on, saved after each.

    Parameters
    ----------
    merge : callable
        ``merge(left, right)`` absorbs the right into the left in place.
    checkpoint : Checkpointer or None
        Offered the sum.

    Attributes
    ----------
    value : accumulator or None
        The sum so far.
    last : int
        The last span that is in it; -1 where none is.
    """

    def __init__(self, merge: Callable[[A, A], None], checkpoint: Checkpointer | None) -> None:
        self.value: A | None = None
        self.last = self._at = -1
        self._merge, self._checkpoint = merge, checkpoint

    def add(self, partial: Partial[A], done: A) -> None:
        """Add the next partial, which is done."""
        self.last, self._at = partial.last, partial.at
        if self.value is None:
            self.value = done
        else:
            self._merge(self.value, done)
        if self._checkpoint is not None:
            self._checkpoint.save_if_due(0, self.last, self._at, self.value)

    def save_stopped(self, others: Iterable[Partial[A]] = ()) -> None:
        """Save the sum, and partials that are not in it, where the run was told to stop.

        The one that noticed has saved its own.
        """
        if self._checkpoint is None:
            return
        sums = [] if self.value is None else [Partial(0, self.last, self._at, self.value)]
        for each in (*sums, *others):
            with suppress(Stopped):  # which it ends with
                self._checkpoint.save_if_due(each.first, each.last, each.at, each.accumulator, now=True)


def partials_of(
    task: Task[A], spans: Sequence[Span], checkpoint: Checkpointer | None, listener: Listener
) -> Iterator[Partial[A]]:
    """Yield the partials to fold, in order, each of a span from its beginning or from its checkpoint.

    The listener is told what need not be done again.
    """
    first = 0
    while first < len(spans):
        saved = checkpoint.load(first) if checkpoint else None
        if saved is None:
            partial = Partial(first, first, spans[first].start, task.start())
        else:
            partial = Partial(first, saved.last, saved.at, task.restore(saved.state))
            kept = [*spans[first : saved.last], Span(spans[saved.last].start, saved.at)]
            counts = [task.counts(block) for span in kept for block in task.blocks(span)]
            listener(Resumed(sum(count.samples for count in counts), sum(count.bytes for count in counts)))
        del saved  # what the accumulator did not take over of it
        yield partial
        first = partial.last + 1


def fold_partial(
    task: Task[A],
    partial: Partial[A],
    spans: Sequence[Span],
    *,
    ahead: int,
    listener: Listener,
    checkpoint: Checkpointer | None,
    go_on: Callable[[], None] | None = None,
) -> A:
    """Absorb what is left of a partial's last span; see `Executor.fold`.

    Parameters
    ----------
    task, spans, ahead, listener, checkpoint
        See `Executor.fold`.
    partial : Partial
        Brought up to the end of its last span.
    go_on : callable, optional
        Called after every block; what it raises ends the work.
    """
    left = Span(partial.at, spans[partial.last].stop)
    with keeping(), closing(prefetched(task, left, ahead)) as blocks:
        for block, fetched in blocks:
            partial.is_fed = True
            task.feed(partial.accumulator, block, fetched)
            del fetched  # before the next is taken
            partial.at, partial.is_fed = block.stop, False
            _offer(partial, checkpoint)
            safe_point()
            listener(task.counts(block))
            if go_on is not None:
                go_on()
    _offer(partial, checkpoint)  # told to stop meanwhile, it would do so after the next pass only
    return partial.accumulator


def _offer(partial: Partial[A], checkpoint: Checkpointer | None) -> None:
    if checkpoint is not None:
        checkpoint.save_if_due(partial.first, partial.last, partial.at, partial.accumulator)


def one_span(left: object, right: object) -> None:
    """Raise: a task folded in one span has nothing to merge."""
    raise AssertionError("two partials of one span")
