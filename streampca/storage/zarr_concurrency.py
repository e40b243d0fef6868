"""`chunks_at_once`: a limit on the number of chunks that Zarr processes at a time."""

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
    """Limit the number of chunks that Zarr processes at a time, in all threads, to the smallest active limit.

    By default it is the number of cores: no slower than Zarr's own default of ten, and less memory. Limits are counted,
    not nested: Zarr's configuration belongs to the process, and two threads that restored it in the wrong order would
    lift each other's limit, and leave it changed for good.
    """
    global _outside
    most = most or cores()
    with _lock:
        if not _limits:
            # The limit outside all blocks, to be restored by the last one that ends.
            _outside = zarr.config.get(_KEY)
        _limits.append(most)
        zarr.config.set({_KEY: min(_limits)})
    try:
        yield
    finally:
        with _lock:
            _limits.remove(most)
            zarr.config.set({_KEY: min(_limits, default=_outside)})
