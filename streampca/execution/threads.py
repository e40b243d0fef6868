"""Runs several items at a time in threads, each with its share of BLAS's threads; results come in order.

Between BLAS calls of many threads one thread prepares the next piece while the others wait, spinning; with a piece a
thread all cores are busy. Results come in the order of their items, so what is made of them does not depend on timing.
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
_limits: list[int] = []  # of all that are at work now, in any thread
_before: dict[str, int] = {}  # threads of each library, by its file, before the first of them


@contextmanager
def limited_blas(most: int) -> Iterator[None]:
    """Leave each BLAS no more threads than it has, and the fewest that anyone asks for meanwhile.

    The number belongs to the process: of two threads that each restored what they had found, the one that ends last
    would leave the limit of the other for good.
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


# A single BLAS thread; BLAS may have more than this process has cores, where a quota limits these.
one_blas_thread = partial(limited_blas, 1)


def share_blas_threads(count: int) -> AbstractContextManager[None]:
    """Divide BLAS's threads among several threads; a single one has them all."""
    return nullcontext() if count < 2 else limited_blas(max(1, machine.cores() // count))


def blas_threads_for(order: int) -> AbstractContextManager[None]:
    """Leave BLAS one thread for matrices of a small order, and all it has for larger ones."""
    return one_blas_thread() if order <= ONE_THREAD_ORDER else nullcontext()


def _set_threads() -> None:
    """Have all libraries, those loaded meanwhile too, follow the limits, or restore them where none is left."""
    for library in _libraries(len(sys.modules)).select(user_api="blas").lib_controllers:
        own = _before.setdefault(library.filepath, library.num_threads)
        library.set_num_threads(min([own, *_limits]))
    if not _limits:
        _before.clear()


def blas_in_use() -> str:
    """Return the BLAS libraries of this process by version, kernel and threads, on which the last bits depend."""
    import scipy.linalg  # noqa: F401 - loads the one that scipy has, beside numpy's

    found = {
        f"{each['internal_api']} {each.get('version')} ({each.get('architecture') or 'unknown kernel'}), "
        f"{each['num_threads']} thread{'s' if each['num_threads'] != 1 else ''}"
        for each in _libraries(len(sys.modules)).select(user_api="blas").info()
    }
    return " and ".join(sorted(found))


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Return the controller of all BLAS libraries, which takes 4 ms to find; found anew when modules were imported."""
    return ThreadpoolController()


def map_in_threads(function: Callable[[Item], Result], items: Iterable[Item], count: int) -> Iterator[Result]:
    """Call a function for every item as `ordered_in_threads` does, each thread with its share of BLAS's threads."""
    with share_blas_threads(count):
        yield from ordered_in_threads(function, items, count)


def ordered_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], count: int, *, taken: int | None = None
) -> Iterator[Result]:
    """Call a function for every item, `count` at a time, and yield the results in order.

    An item is taken when fewer than `taken` (by default `count`) have been whose results were not yielded and dealt
    with yet. So items may depend on results that lie `count` back, and any number of them may come; where they do not,
    with more of them taken no thread waits for a slow one that is first. The first error, in order, is raised.
    """
    if count < 2:
        for item in items:
            safe_point()
            yield function(item)
        return
    left, pending = iter(items), deque[Future[Result]]()
    with ThreadPoolExecutor(count) as pool:
        try:
            while True:
                while len(pending) < (taken or count) and (each := next(left, None)) is not None:
                    pending.append(pool.submit(copy_context().run, function, each))
                if not pending:
                    return
                safe_point()
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
