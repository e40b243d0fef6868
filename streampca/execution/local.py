"""One process: spans one after another, or several at a time in threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import partial

from ..errors import Stopped
from ..events import Listener
from ..planning.blocks import Span
from ..signals import stops_delayed
from .compute import leave_thread_if_waiting
from .decoded_chunks import keeping
from .fold import STALLED, Merged, Partial, fold_partial, partials_of, warning_of_stalls
from .task import A, Checkpointer, Task
from .threads import share_blas_threads


class LocalExecutor:
    """Runs as many spans at a time as the plan has threads; blocks are read ahead in further threads.

    With one thread, spans are run in order in the caller's: the specification of all executors.

    Parameters
    ----------
    stalled : float, default=60
        Seconds without a finished block after which listeners are warned.
    """

    workers = 1
    memory: int | None = None
    cores: int | None = None

    def __init__(self, *, stalled: float = STALLED) -> None:
        self._stalled = stalled

    def check(self, read: Callable[[], object], memory: int, listener: Listener) -> None:
        """Refuse nothing: what this process has, a plan knows."""

    def fold(
        self,
        task: Task[A],
        spans: Sequence[Span],
        merge: Callable[[A, A], None],
        *,
        threads: int = 1,
        ahead: int = 0,
        listener: Listener,
        checkpoint: Checkpointer | None = None,
    ) -> A:
        """See `Executor.fold`; inside a task of a cluster whose blocks depend on futures, its thread is released."""
        leave_thread_if_waiting(task)
        active: dict[int, Partial[A]] = {}
        waiting: deque[tuple[Partial[A], Future[A]]] = deque()
        merged = Merged(merge, checkpoint)
        with (
            warning_of_stalls(listener, lambda: _doing(list(active.values()), spans), self._stalled) as tell,
            nullcontext() if checkpoint is None else stops_delayed(),
            share_blas_threads(threads),
        ):
            partials = partials_of(task, spans, checkpoint, tell)
            fold = partial(fold_partial, task, spans=spans, ahead=ahead, listener=tell, checkpoint=checkpoint)
            try:
                if min(threads, len(spans)) > 1:
                    _fold_in_threads(fold, partials, merged, threads, active, waiting)
                else:
                    with keeping():  # chunks are cached across spans
                        for each in partials:
                            active[each.first] = each
                            merged.add(each, fold(each))
                            del active[each.first]
            except Stopped:
                merged.save_stopped(each for each, _ in waiting)
                raise
        return task.start() if merged.value is None else merged.value


def _fold_in_threads(
    fold: Callable[..., A],
    partials: Iterable[Partial[A]],
    merged: Merged[A],
    threads: int,
    active: dict[int, Partial[A]],
    waiting: deque[tuple[Partial[A], Future[A]]],
) -> None:
    """Fold partials, some at a time, and merge them in order; where one fails the others end at their next block.

    Those `active`, and those `waiting` to be merged, are left there where one fails.
    """
    failed = threading.Event()

    def end_if_failed() -> None:
        if failed.is_set():
            raise _EndedError

    def folded(partial: Partial[A]) -> A:
        active[partial.first] = partial
        with _setting_on_error(failed):
            accumulator = fold(partial, after_block=end_if_failed)
        del active[partial.first]
        return accumulator

    def merge_next() -> None:
        partial, future = waiting[0]
        accumulator = future.result()
        waiting.popleft()  # only now: a partial whose future was stopped is saved by the caller
        merged.add(partial, accumulator)

    try:
        with ThreadPoolExecutor(threads) as pool, _setting_on_error(failed):
            for each in partials:
                waiting.append((each, pool.submit(copy_context().run, folded, each)))
                if len(waiting) == threads:
                    merge_next()
            while waiting:
                merge_next()
    except BaseException as error:
        first = _first_error(error, [future for _, future in waiting])
        if first is error:
            raise
        raise first from None


def _doing(partials: Sequence[Partial[A]], spans: Sequence[Span]) -> str:
    """Say what partials that are folded now wait for."""
    doing = [f"the block from {each.at} on to be {'absorbed' if each.is_fed else 'read'}" for each in partials]
    return f"{' and '.join(doing)} (of {spans[-1].stop})" if doing else "results to be merged or saved"


class _EndedError(Exception):
    """Another thread has failed or stopped: this one ends before its next block."""


@contextmanager
def _setting_on_error(event: threading.Event) -> Iterator[None]:
    """Set an event when anything goes wrong: other threads end at their next block."""
    try:
        yield
    except BaseException:
        event.set()
        raise


def _first_error(error: BaseException, futures: Iterable[Future[A]]) -> BaseException:
    """Return the first error by position if this one was raised in a thread, which another may have ended."""
    raised = [found for future in futures if (found := future.exception()) is not None]
    return next((found for found in raised if not isinstance(found, _EndedError)), error) if error in raised else error
