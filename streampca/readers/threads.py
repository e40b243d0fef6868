"""Does many small independent decodings on the cores this process may use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .. import machine

# Decoded bytes from which threads pay: below, handing the interpreter's lock about made 32 x 32 PNG and TIFF images
# 2 to 3 times slower, at 256 x 256 it costs a few per cent (two threads on one core).
_WORTH_A_THREAD = 2**16


def for_each(work: Callable[[int], None], count: int, each_bytes: int) -> None:
    """Call ``work(0)`` to ``work(count - 1)``, some at a time; the first error in that order is raised.

    `each_bytes` is what one call decodes.

    The threads are made for the call and gone after it (0.1 ms), so that nothing needs closing or survives a fork.
    """
    workers = min(machine.cores(), count) if each_bytes >= _WORTH_A_THREAD else 1
    if workers < 2:
        for index in range(count):
            work(index)
        return
    with ThreadPoolExecutor(workers) as pool:
        tasks = [pool.submit(work, index) for index in range(count)]
        try:
            for task in tasks:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
