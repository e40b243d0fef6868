"""Does many small independent decodings on the cores this process may use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .. import machine

# Decoded bytes from which threads pay: below, handing the interpreter's lock about made 32 x 32 PNG and TIFF images
# 2 to 3 times slower, at 256 x 256 it costs a few per cent (two threads on one core).
_WORTH_A_THREAD = 2**16


def for_each(work: Callable[[int], None], count: int, each_bytes: int) -> None:
    """Call ``work(0)`` to ``work(count - 1)``, some at a time; the first error in that order is raised.

    `each_bytes` is what one call decodes. Nothing is kept for a call, so that `count` may be any number.

    The threads are made for the call and gone after it (0.1 ms), so that nothing needs closing or survives a fork.
    """
    workers = min(machine.cores(), count) if each_bytes >= _WORTH_A_THREAD else 1
    if workers < 2:
        for index in range(count):
            work(index)
        return
    # Handed out in order, so that at the first error every call before it has been handed out too.
    turns, errors, over = iter(range(count)), dict[int, Exception](), threading.Event()

    def take() -> None:
        for index in turns:
            if over.is_set():
                return
            try:
                work(index)
            except Exception as error:  # raised by the caller's thread, in order
                errors[index] = error
                over.set()

    with ThreadPoolExecutor(workers) as pool:
        tasks = [pool.submit(take) for _ in range(workers)]
        try:
            for task in tasks:
                task.result()
        finally:
            over.set()  # also when this thread is interrupted while it waits
    if errors:
        raise errors[min(errors)]
