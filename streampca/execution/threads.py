"""Runs several items at a time in threads, each with its share of BLAS's threads; results come in order.

Between BLAS calls of many threads one thread prepares the next piece while the others wait, spinning; with a piece a
thread all cores are busy. Results come in the order of their items, so what is made of them does not depend on timing.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from .. import machine
from ..signals import safe_point

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def share_blas_threads(count: int) -> Iterator[None]:
    """Divide BLAS's threads among several threads; a single one has them all."""
    if count < 2:
        yield
        return
    with _libraries(len(sys.modules)).limit(limits=max(1, machine.cores() // count), user_api="blas"):
        yield


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Leave BLAS one thread; it may have more than this process has cores, where a quota limits these."""
    with _libraries(len(sys.modules)).limit(limits=1, user_api="blas"):
        yield


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
                    pending.append(pool.submit(function, each))
                if not pending:
                    return
                safe_point()
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
