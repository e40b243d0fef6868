"""Reading ahead: the next blocks of a span are read in a thread while one is worked on."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import chain, islice, repeat
from typing import Any

from ..planning.blocks import Span
from .decoded_chunks import keep_in_thread
from .task import A, Task


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
