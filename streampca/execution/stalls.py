"""Warning when no block of a fold is finished for a long time, with what the fold waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..events import BlockDone, Event, Listener, Warned
from ..units import format_seconds

STALLED = 60.0  # seconds without a finished block


@contextmanager
def warning_of_stalls(listener: Listener, waits_for: Callable[[], str], after: float) -> Iterator[Listener]:
    """Yield a listener for several threads, and warn it once of each period without a finished block.

    Parameters
    ----------
    listener : callable
        Called by one thread at a time; warnings come from a separate thread, as all others can be blocked.
    waits_for : callable
        Returns in words what the fold waits for.
    after : float
        Seconds without a `BlockDone` event before a warning.
    """
    lock, ended, last = threading.RLock(), threading.Event(), time.monotonic()

    def noting_blocks(event: Event) -> None:
        nonlocal last
        with lock:
            listener(event)
        if isinstance(event, BlockDone):
            last = time.monotonic()

    def watch() -> None:
        warned_of, wait = 0.0, after
        while not ended.wait(wait):
            since, now = last, time.monotonic()
            wait = max(since + after - now, 0.0) or after
            if now - since >= after and since != warned_of:
                warned_of = since
                try:
                    message = f"no block was finished for {format_seconds(now - since)}; waiting for {waits_for()}."
                except Exception:  # the cluster is lost, which the fold itself reports
                    return
                if not ended.is_set() and since == last:
                    noting_blocks(Warned(message))

    thread = threading.Thread(target=watch, name="streampca-stalls", daemon=True)
    thread.start()
    try:
        yield noting_blocks
    finally:
        ended.set()
        thread.join()
