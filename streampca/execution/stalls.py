"""Says so when no block of a fold is finished for a long time, and what the fold waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..events import BlockDone, Event, Listener, Warned
from ..units import format_seconds

STALLED = 60.0  # seconds without a finished block


@contextmanager
def stalls_told(listener: Listener, waits_for: Callable[[], str], after: float) -> Iterator[Listener]:
    """Yield a listener that several threads may call, and warn it once of each time without a finished block.

    Parameters
    ----------
    listener : callable
        Called by one thread at a time; the warning comes from a thread of its own, as all others may be held up.
    waits_for : callable
        Says in words what is waited for.
    after : float
        Seconds without a `BlockDone` event.
    """
    lock, over, last = threading.RLock(), threading.Event(), time.monotonic()

    def told(event: Event) -> None:
        nonlocal last
        with lock:
            listener(event)
        if isinstance(event, BlockDone):
            last = time.monotonic()

    def watch() -> None:
        warned_of, wait = 0.0, after
        while not over.wait(wait):
            since, now = last, time.monotonic()
            wait = max(since + after - now, 0.0) or after
            if now - since >= after and since != warned_of:
                warned_of = since
                try:
                    message = f"no block was finished for {format_seconds(now - since)}; waiting for {waits_for()}."
                except Exception:  # of a cluster that is lost, which the fold says itself
                    return
                if not over.is_set() and since == last:
                    told(Warned(message))

    watching = threading.Thread(target=watch, name="streampca-stalls", daemon=True)
    watching.start()
    try:
        yield told
    finally:
        over.set()
        watching.join()
