"""Cache of decoded chunks, kept from one block to the next until the end of a `keeping` context."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

# Keyed by reader with weak references: the chunks of a file are freed when it is closed.
Chunks = WeakKeyDictionary[object, Any]


class _Cache(threading.local):
    """Decoded chunks of each thread; None where caching is off."""

    chunks: Chunks | None = None


_cache = _Cache()


@contextmanager
def keeping() -> Iterator[None]:
    """Let readers cache decoded chunks in this thread until the end of the outermost such context."""
    outer = _cache.chunks
    if outer is None:
        _cache.chunks = WeakKeyDictionary()
    try:
        yield
    finally:
        _cache.chunks = outer


def keep_in_thread() -> None:
    """Let readers cache decoded chunks until this thread ends: the initializer of threads that read blocks."""
    _cache.chunks = WeakKeyDictionary()


def thread_cache() -> Chunks | None:
    """Return this thread's cache of decoded chunks, or None where caching is off."""
    return _cache.chunks
