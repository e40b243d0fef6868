"""The loop over spans and blocks that every executor runs: checkpoints, reading ahead, and a warning when it stalls."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, Generic

from ..errors import Stopped
from ..events import BlockDone, Event, Listener, Resumed, Warned
from ..planning.blocks import Span
from ..signals import safe_point
from ..units import format_seconds
from .decoded_chunks import keep_in_thread, keeping
from .task import A, Checkpointer, Task

STALLED = 60.0  # seconds without a finished block


@dataclass
class Partial(Generic[A]):
    """An accumulator of the spans from `first` to `last`, the last one up to position `at`.

    `is_fed` is True while it absorbs the block at `at`, and False while this block is read.
    """

    first: int
    last: int
    at: int
    accumulator: A
    is_fed: bool = False


class Merged(Generic[A]):
    """The sum of the partials merged so far, from the first span on, saved after each merge if a save is due.

    Parameters
    ----------
    merge : callable
        ``merge(left, right)`` absorbs the right into the left in place.
    checkpoint : Checkpointer or None
        Saves the sum.

    Attributes
    ----------
    value : accumulator or None
        The sum so far.
    last : int
        The last span in the sum; -1 before the first.
    """

    def __init__(self, merge: Callable[[A, A], None], checkpoint: Checkpointer | None) -> None:
        self.value: A | None = None
        self.last = self._at = -1
        self._merge, self._checkpoint = merge, checkpoint

    def add(self, partial: Partial[A], accumulator: A) -> None:
        """Add the complete accumulator of the next partial."""
        self.last, self._at = partial.last, partial.at
        if self.value is None:
            self.value = accumulator
        else:
            self._merge(self.value, accumulator)
        if self._checkpoint is not None:
            self._checkpoint.save_if_due(0, self.last, self._at, self.value)

    def save_stopped(self, others: Iterable[Partial[A]] = ()) -> None:
        """Save the sum, and partials that are not in it, of a run that was asked to stop.

        The partial that raised `Stopped` has been saved already.
        """
        if self._checkpoint is None:
            return
        sums = [] if self.value is None else [Partial(0, self.last, self._at, self.value)]
        for partial in (*sums, *others):
            with suppress(Stopped):  # raised after every save of a run that stops
                self._checkpoint.save_if_due(partial.first, partial.last, partial.at, partial.accumulator, now=True)


def partials_of(
    task: Task[A], spans: Sequence[Span], checkpoint: Checkpointer | None, listener: Listener
) -> Iterator[Partial[A]]:
    """Yield the partials to fold, in order, each from the beginning of a span or from its checkpoint.

    An event tells how many samples and bytes the checkpoints cover.
    """
    first = 0
    while first < len(spans):
        saved = checkpoint.load(first) if checkpoint else None
        if saved is None:
            partial = Partial(first, first, spans[first].start, task.start())
        else:
            partial = Partial(first, saved.last, saved.at, task.restore(saved.state))
            covered = [*spans[first : saved.last], Span(spans[saved.last].start, saved.at)]
            counts = [task.counts(block) for span in covered for block in task.blocks(span)]
            listener(Resumed(sum(count.samples for count in counts), sum(count.bytes for count in counts)))
        del saved  # arrays that the accumulator has copied
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
    after_block: Callable[[], None] | None = None,
) -> A:
    """Absorb the rest of a partial's last span; see `Executor.fold`.

    Parameters
    ----------
    task, spans, ahead, listener, checkpoint
        See `Executor.fold`.
    partial : Partial
        Partial to complete.
    after_block : callable, optional
        Called after every block; an exception ends the work.
    """
    rest = Span(partial.at, spans[partial.last].stop)
    with keeping(), closing(prefetched(task, rest, ahead)) as blocks:
        for block, fetched in blocks:
            partial.is_fed = True
            task.feed(partial.accumulator, block, fetched)
            del fetched  # before the next block is read
            partial.at, partial.is_fed = block.stop, False
            _offer(partial, checkpoint)
            safe_point()
            listener(task.counts(block))
            if after_block is not None:
                after_block()
    _offer(partial, checkpoint)  # a request to stop since the last block would else wait for the next pass
    return partial.accumulator


def _offer(partial: Partial[A], checkpoint: Checkpointer | None) -> None:
    if checkpoint is not None:
        checkpoint.save_if_due(partial.first, partial.last, partial.at, partial.accumulator)


def one_span(left: object, right: object) -> None:
    """Raise an error, as the merge of a task that is folded in one span."""
    raise AssertionError("two partials of one span")


def prefetched(task: Task[A], span: Span, ahead: int) -> Generator[tuple[Span, Any]]:
    """Yield the blocks of a span with what was read for them, up to `ahead` further ones being read meanwhile."""
    blocks = iter(task.blocks(span))
    first = list(islice(blocks, 2))
    if not ahead or len(first) < 2:  # a block alone needs no thread
        for block in chain(first, blocks):
            yield block, task.fetch(block)
        return
    with ThreadPoolExecutor(1, initializer=keep_in_thread) as reader:
        waiting: deque[tuple[Span, Future[Any]]] = deque()
        for next_block in chain(first, blocks, repeat(None, ahead)):
            if next_block is not None:
                # In the caller's context, by which dask knows on whose behalf it computes.
                waiting.append((next_block, reader.submit(copy_context().run, task.fetch, next_block)))
            if waiting and (next_block is None or len(waiting) > ahead):
                block, future = waiting.popleft()
                yield block, future.result()


@contextmanager
def warning_of_stalls(listener: Listener, waits_for: Callable[[], str], after: float) -> Iterator[Listener]:
    """Yield a listener for several threads, and warn it once of each period without a finished block.

    Parameters
    ----------
    listener : callable
        Called by one thread at a time; warnings come from a separate thread, as all others can be blocked.
    waits_for : callable
        Returns in words what the fold waits for.
    after : float
        Seconds without a `BlockDone` event before a warning.
    """
    lock, ended, last = threading.RLock(), threading.Event(), time.monotonic()

    def noting_blocks(event: Event) -> None:
        nonlocal last
        with lock:
            listener(event)
        if isinstance(event, BlockDone):
            last = time.monotonic()

    def watch() -> None:
        warned_of, wait = 0.0, after
        while not ended.wait(wait):
            since, now = last, time.monotonic()
            wait = max(since + after - now, 0.0) or after
            if now - since >= after and since != warned_of:
                warned_of = since
                try:
                    message = f"no block was finished for {format_seconds(now - since)}; waiting for {waits_for()}."
                except Exception:  # the cluster is lost, which the fold itself reports
                    return
                if not ended.is_set() and since == last:
                    noting_blocks(Warned(message))

    thread = threading.Thread(target=watch, name="streampca-stalls", daemon=True)
    thread.start()
    try:
        yield noting_blocks
    finally:
        ended.set()
        thread.join()
