"""One process: spans one after another, or several at a time in threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, Self

from ..errors import Stopped
from ..events import Listener, one_at_a_time
from ..planning.blocks import Span
from .fold import Merged, Partial, fold_partial, partials_of
from .task import A, Checkpointer, Task
from .threads import share_blas_threads


class _Here:
    """The resources of this process."""

    workers = 1
    memory: int | None = None
    cores: int | None = None

    def check(self, read: Callable[[], object], memory: int, listener: Listener) -> None:
        """Refuse nothing: what this process has, a plan knows."""


class SerialExecutor(_Here):
    """Runs spans in order in this thread: the specification of the other executors."""

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
        """See `Executor.fold`."""
        merged = Merged(merge, checkpoint)
        how: dict[str, Any] = {"ahead": ahead, "listener": listener, "checkpoint": checkpoint}
        try:
            with share_blas_threads(threads):
                for partial in partials_of(task, spans, checkpoint, listener):
                    merged.add(partial, fold_partial(task, partial, spans, **how))
        except Stopped:
            merged.save_stopped()
            raise
        return task.start() if merged.value is None else merged.value


class LocalExecutor(_Here):
    """Runs as many spans at a time as the plan has threads; blocks are read ahead in further threads."""

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
        """See `Executor.fold`."""
        how: dict[str, Any] = {"ahead": ahead, "checkpoint": checkpoint}
        if min(threads, len(spans)) < 2:
            return SerialExecutor().fold(task, spans, merge, threads=threads, listener=listener, **how)
        work = _Work(
            lambda partial, tell, go_on: fold_partial(task, partial, spans, listener=tell, go_on=go_on, **how), listener
        )
        merged = Merged(merge, checkpoint)
        waiting: deque[tuple[Partial[A], Future[A]]] = deque()
        try:
            with work, share_blas_threads(threads), ThreadPoolExecutor(threads) as pool, work.ending():
                for partial in partials_of(task, spans, checkpoint, work.tell):
                    waiting.append((partial, pool.submit(work.do, partial)))
                    if len(waiting) == threads:
                        _add_next(merged, waiting)
                while waiting:
                    _add_next(merged, waiting)
        except Stopped:
            merged.save_stopped(partial for partial, _ in waiting)
            raise
        return task.start() if merged.value is None else merged.value


def _add_next(merged: Merged[A], waiting: deque[tuple[Partial[A], Future[A]]]) -> None:
    """Add the first of those that are folded; one that ended before its time stays among them."""
    partial, future = waiting[0]
    done = future.result()
    waiting.popleft()
    merged.add(partial, done)


class _EndedError(Exception):
    """Another thread has failed, or was told to stop: no more blocks."""


class _Work(Generic[A]):
    """Parts being folded by several threads: one tells the listener at a time, and when one fails the others end.

    Leaving it, the first error by position is raised, whoever noticed it.
    """

    def __init__(self, fold: Callable[..., A], listener: Listener) -> None:
        self._fold, self.tell, self._over = fold, one_at_a_time(listener), threading.Event()
        self._errors: dict[int, BaseException] = {}

    def do(self, partial: Partial[A]) -> A:
        """Fold a partial, in a thread."""
        try:
            return self._fold(partial, self.tell, self._go_on)
        except _EndedError:
            raise
        except BaseException as error:
            self._errors[partial.first] = error
            self._over.set()
            raise

    def _go_on(self) -> None:
        if self._over.is_set():
            raise _EndedError

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Have threads end at their next block when something goes wrong here, too."""
        try:
            yield
        except BaseException:
            self._over.set()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, _EndedError) or any(error is found for found in self._errors.values()):
            raise self._errors[min(self._errors)] from None
