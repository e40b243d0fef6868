"""Parallel work on several items in threads, each with its share of BLAS's threads, with results in order.

Between BLAS calls with many threads one thread prepares the next piece while the others spin; with one piece for each
thread all cores are busy. Results come in the order of their items, so sums of them do not depend on timing.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import lru_cache, partial
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from .. import machine
from ..signals import safe_point

# An eigenproblem of this order takes as long in one thread as in two (2 cores). Where other processes use the cores,
# two threads that wait for one another between its small products took 20 s in place of 0.1 s (benchmarks/busy.py).
ONE_THREAD_ORDER = 1500

Item = TypeVar("Item")
Result = TypeVar("Result")


_lock = threading.Lock()
_limits: list[int] = []  # all limits in force now, of any thread
_before: dict[str, int] = {}  # number of threads of each library, by its file, before the first limit


@contextmanager
def limited_blas(most: int) -> Iterator[None]:
    """Limit the number of threads of each BLAS library; the lowest limit in force counts.

    The number belongs to the process. If each of two overlapping threads restored the number that it saw, the last one
    would restore the limit of the other for good; so all limits are listed, and the last one to end restores.
    """
    with _lock:
        _limits.append(most)
        _set_threads()
    try:
        yield
    finally:
        with _lock:
            _limits.remove(most)
            _set_threads()


# A single BLAS thread, even where a quota gives this process fewer cores than BLAS sees.
one_blas_thread = partial(limited_blas, 1)


def share_blas_threads(count: int) -> AbstractContextManager[None]:
    """Divide BLAS's threads among `count` threads; a single one gets all."""
    return nullcontext() if count < 2 else limited_blas(max(1, machine.cores() // count))


def blas_threads_for(order: int) -> AbstractContextManager[None]:
    """Limit BLAS to one thread for matrices of a small order; larger ones use all threads."""
    return one_blas_thread() if order <= ONE_THREAD_ORDER else nullcontext()


def _set_threads() -> None:
    """Apply the limits to all libraries, also newly loaded ones, or restore the numbers if no limit is in force."""
    for library in _libraries(len(sys.modules)).select(user_api="blas").lib_controllers:
        original = _before.setdefault(library.filepath, library.num_threads)
        library.set_num_threads(min([original, *_limits]))
    if not _limits:
        _before.clear()


def blas_in_use() -> str:
    """Return version, kernel and threads of the BLAS libraries of this process, on which the last bits depend."""
    import scipy.linalg  # noqa: F401 - loads scipy's own library, beside numpy's

    descriptions = {
        f"{library['internal_api']} {library.get('version')} ({library.get('architecture') or 'unknown kernel'}), "
        f"{library['num_threads']} thread{'s' if library['num_threads'] != 1 else ''}"
        for library in _libraries(len(sys.modules)).select(user_api="blas").info()
    }
    return " and ".join(sorted(descriptions))


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Return the controller of all BLAS libraries: a search of 4 ms, repeated only if modules were imported since."""
    return ThreadpoolController()


def map_in_threads(function: Callable[[Item], Result], items: Iterable[Item], count: int) -> Iterator[Result]:
    """Call a function for every item as `ordered_in_threads` does, each thread with its share of BLAS's threads."""
    with share_blas_threads(count):
        yield from ordered_in_threads(function, items, count)


def ordered_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], count: int, *, taken: int | None = None
) -> Iterator[Result]:
    """Call a function for every item, `count` at a time, and yield the results in order.

    At most `taken` (by default `count`) items are drawn whose results the caller has not processed yet. So items can
    depend on results `count` places back, and the iterable can be endless. For independent items, a larger `taken`
    keeps threads from waiting for a slow first item. The first error, in order, is raised.
    """
    if count < 2:
        for item in items:
            safe_point()
            yield function(item)
        return
    remaining, pending = iter(items), deque[Future[Result]]()
    with ThreadPoolExecutor(count) as pool:
        try:
            while True:
                while len(pending) < (taken or count) and (following := next(remaining, None)) is not None:
                    pending.append(pool.submit(copy_context().run, function, following))
                if not pending:
                    return
                safe_point()
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
