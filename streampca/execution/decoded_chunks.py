"""Keep decoded chunks from one block to the next, until the end of a `keeping` block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

# By the reader, held weakly: what a file of a list has decoded goes when that file is closed.
Things = WeakKeyDictionary[object, Any]


class _Kept(threading.local):
    """Things kept by each thread; None where nothing may be."""

    things: Things | None = None


_kept = _Kept()


@contextmanager
def keeping() -> Iterator[None]:
    """Let readers that are called in this thread keep things until the end of the (outermost) block."""
    outer = _kept.things
    if outer is None:
        _kept.things = WeakKeyDictionary()
    try:
        yield
    finally:
        _kept.things = outer


def keep_in_thread() -> None:
    """Let readers keep things until this thread ends: the initializer of one that reads blocks."""
    _kept.things = WeakKeyDictionary()


def kept_here() -> Things | None:
    """Return what is kept in this thread, to be added to; None where nothing may be."""
    return _kept.things
