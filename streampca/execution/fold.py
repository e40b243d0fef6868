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
from ..events import BlockDone, Event, Listener, Resumed, Warned, silent
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
    fold = _Watched(listener, waits_for, after)
    _WATCH.add(fold)
    try:
        yield fold.noting_blocks
    finally:
        _WATCH.remove(fold)


class _Watched:
    """A fold that is waited for."""

    def __init__(self, listener: Listener, waits_for: Callable[[], str], after: float) -> None:
        self._listener, self._waits_for, self._after, self._lock = listener, waits_for, after, threading.RLock()
        self._last, self._warned_of, self._ended = time.monotonic(), 0.0, False
        self.due = self._last + after  # when it is looked at

    def noting_blocks(self, event: Event) -> None:
        """Pass an event on, one at a time."""
        with self._lock:
            self._listener(event)
        if isinstance(event, BlockDone):
            self._last = time.monotonic()

    def warn_if_due(self) -> None:
        """Warn once of each period without a finished block."""
        since, now = self._last, time.monotonic()
        self.due = (since if now - since < self._after else now) + self._after
        if now - since < self._after or since == self._warned_of:
            return
        self._warned_of = since
        try:
            message = f"no block was finished for {format_seconds(now - since)}; waiting for {self._waits_for()}."
        except Exception:  # the cluster is lost, which the fold itself reports
            return
        with self._lock:
            if not self._ended and since == self._last:
                self._listener(Warned(message))

    def end(self) -> None:
        """Warn no more, and hold nothing of the fold."""
        with self._lock:
            self._ended, self._listener, self._waits_for = True, silent, str


class _Watch:
    """The thread that looks at all folds of this process; it ends when there are none at the time of its next look.

    Starting a thread for each fold took a tenth of the processor time of a small fit.
    """

    def __init__(self) -> None:
        self._folds: list[_Watched] = []
        self._sooner = threading.Condition()
        self._thread: threading.Thread | None = None
        self._looks_at = 0.0

    def add(self, fold: _Watched) -> None:
        """Look at a fold from now on."""
        with self._sooner:
            self._folds.append(fold)
            if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
                self._looks_at = fold.due
                self._thread = threading.Thread(target=self._look, name="streampca-stalls", daemon=True)
                self._thread.start()
            elif fold.due < self._looks_at:
                self._sooner.notify()

    def remove(self, fold: _Watched) -> None:
        """Look at a fold no more."""
        fold.end()
        with self._sooner:
            self._folds.remove(fold)

    def _look(self) -> None:
        while True:
            with self._sooner:
                if not self._folds:
                    self._thread = None
                    return
                self._looks_at = min(fold.due for fold in self._folds)
                self._sooner.wait(max(0.0, self._looks_at - time.monotonic()))
            self._warn()

    def _warn(self) -> None:
        """Warn of the folds that are due; a function, so that no variable of the thread holds a fold while it waits."""
        with self._sooner:
            folds = list(self._folds)
        for fold in folds:
            try:
                fold.warn_if_due()
            except Exception as error:  # of its listener: the others are still looked at
                fold.end()
                details = (type(error), error, error.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(details))


_WATCH = _Watch()
