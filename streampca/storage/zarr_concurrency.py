"""`chunks_at_once`, which limits how many chunks Zarr works on at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import zarr

from ..machine import cores

_KEY = "async.concurrency"

_lock = threading.Lock()
_limits: list[int] = []
_outside = 0


@contextmanager
def chunks_at_once(most: int | None = None) -> Iterator[None]:
    """Have Zarr work on at most so many chunks at a time, in every thread: the least of what threads inside ask for.

    One a core by default: no slower than Zarr's own default of ten, and less memory. Counted, not nested: Zarr's
    configuration is of the process, and two threads that restored it in the wrong order would lift each other's limit,
    and leave it changed for good.
    """
    global _outside
    most = most or cores()
    with _lock:
        if not _limits:
            _outside = zarr.config.get(_KEY)
        _limits.append(most)
        zarr.config.set({_KEY: min(_limits)})
    try:
        yield
    finally:
        with _lock:
            _limits.remove(most)
            zarr.config.set({_KEY: min(_limits, default=_outside)})
