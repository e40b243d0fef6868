"""One process: spans one after another, or several at a time in threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, Self

from ..events import Listener, one_at_a_time
from ..planning.blocks import Span
from .fold import Part, Whole, fold_part, parts_of
from .task import A, Keeper, Task
from .threads import sharing_blas


class _Here:
    """What this process is to a plan: itself."""

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
        lanes: int = 1,
        ahead: int = 0,
        listener: Listener,
        keeper: Keeper | None = None,
    ) -> A:
        """See `Executor.fold`."""
        whole = Whole(merge, keeper)
        with sharing_blas(lanes):
            for part in parts_of(task, spans, keeper, listener):
                whole.add(part, fold_part(task, part, spans, ahead=ahead, listener=listener, keeper=keeper))
        return task.start() if whole.value is None else whole.value


class LocalExecutor(_Here):
    """Runs as many spans at a time as the plan has lanes, a thread each; what reads ahead has threads beside."""

    def fold(
        self,
        task: Task[A],
        spans: Sequence[Span],
        merge: Callable[[A, A], None],
        *,
        lanes: int = 1,
        ahead: int = 0,
        listener: Listener,
        keeper: Keeper | None = None,
    ) -> A:
        """See `Executor.fold`."""
        how: dict[str, Any] = {"ahead": ahead, "keeper": keeper}
        if min(lanes, len(spans)) < 2:
            return SerialExecutor().fold(task, spans, merge, lanes=lanes, listener=listener, **how)
        work = _Work(
            lambda part, tell, go_on: fold_part(task, part, spans, listener=tell, go_on=go_on, **how), listener
        )
        whole = Whole(merge, keeper)
        waiting: deque[tuple[Part[A], Future[A]]] = deque()
        with work, sharing_blas(lanes), ThreadPoolExecutor(lanes) as threads, work.ending():
            for part in parts_of(task, spans, keeper, work.tell):
                waiting.append((part, threads.submit(work.do, part)))
                if len(waiting) == lanes:
                    whole.add(*_next(waiting))
            while waiting:
                whole.add(*_next(waiting))
        return task.start() if whole.value is None else whole.value


def _next(waiting: deque[tuple[Part[A], Future[A]]]) -> tuple[Part[A], A]:
    part, future = waiting.popleft()
    return part, future.result()


class _EndedError(Exception):
    """Another thread has failed, or was told to stop: no more blocks."""


class _Work(Generic[A]):
    """Parts being folded by several threads: one tells the listener at a time, and when one fails the others end.

    Leaving it, the first error by position is raised, whoever noticed it.
    """

    def __init__(self, fold: Callable[..., A], listener: Listener) -> None:
        self._fold, self.tell, self._over = fold, one_at_a_time(listener), threading.Event()
        self._errors: dict[int, BaseException] = {}

    def do(self, part: Part[A]) -> A:
        """Fold a part, in a thread."""
        try:
            return self._fold(part, self.tell, self._go_on)
        except _EndedError:
            raise
        except BaseException as error:
            self._errors[part.first] = error
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
