"""Reading ahead: the next blocks of a span are read in a thread while one is worked on."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from ..planning.blocks import Span
from .decoded_chunks import keep_in_thread
from .task import A, Task


def prefetched(task: Task[A], span: Span, ahead: int) -> Generator[tuple[Span, Any]]:
    """Yield the blocks of a span with what was read for them, up to `ahead` further ones being read meanwhile."""
    if not ahead:
        for block in task.blocks(span):
            yield block, task.fetch(block)
        return
    with ThreadPoolExecutor(1, initializer=keep_in_thread) as reader:
        waiting: deque[tuple[Span, Future[Any]]] = deque()
        for block in task.blocks(span):
            # In the caller's context, by which dask knows on whose behalf it computes.
            waiting.append((block, reader.submit(copy_context().run, task.fetch, block)))
            if len(waiting) > ahead:
                yield _taken(waiting)
        while waiting:
            yield _taken(waiting)


def _taken(waiting: deque[tuple[Span, Future[Any]]]) -> tuple[Span, Any]:
    block, future = waiting.popleft()
    return block, future.result()
