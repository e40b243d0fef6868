"""Threads for many small independent decodings, on the cores that this process can use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from .. import machine
from ..execution.threads import ordered_in_threads

# Decoded bytes from which threads pay off: passing the interpreter's lock around made 32 x 32 PNG and TIFF images 2 to
# 3 times slower, and costs a few per cent at 256 x 256 (two threads on one core).
_WORTH_A_THREAD = 2**16

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_decoding(function: Callable[[Item], Result], items: Sequence[Item], each_bytes: int) -> Iterator[Result]:
    """Call a function for every item, several at a time, and yield results in order; a call decodes `each_bytes`.

    Threads are started for each call (0.1 ms), so that nothing has to be closed and nothing is inherited by a fork.
    """
    count = min(machine.cores(), len(items)) if each_bytes >= _WORTH_A_THREAD else 1
    return ordered_in_threads(function, items, count, taken=4 * count)


def for_each(work: Callable[[int], None], count: int, each_bytes: int) -> None:
    """Call ``work(0)`` to ``work(count - 1)`` as `map_decoding` does; the first error in that order is raised."""
    deque(map_decoding(work, range(count), each_bytes), maxlen=0)
