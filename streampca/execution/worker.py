"""Functions that run on a worker of a cluster: fold a span within its threads, and report progress."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Worker, get_worker
from threadpoolctl import ThreadpoolController

from .. import __version__
from ..errors import first_line
from ..events import silent
from ..machine import hand_back, limit_cores
from ..planning.blocks import Span
from .compute import held, leave_thread
from .fold import Partial, fold_partial
from .packing import Packed, unpacked

State = dict[str, npt.NDArray[Any]]

TELL = 0.2  # seconds between messages of a span

_ALONE = threading.Lock()  # after another worker died, this one may be given its span besides; memory is for one


class _UnwantedError(Exception):
    """Nobody waits for this span any more."""


def dask_setup(worker: Worker) -> None:
    """Leave Ctrl-C to the process that started this one; dask calls it in workers that preload this module."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def given(value: Packed) -> Packed:
    """Return what was sent: a task that makes it again when the worker that holds it dies."""
    return value


def fold_span(work: Packed, kept: Packed | None, span: tuple[int, int], ahead: int, address: tuple[str, int]) -> State:
    """Fold a span, or the rest of one, and return the state of its accumulator.

    Parameters
    ----------
    work : Packed
        The task.
    kept : Packed or None
        State of the accumulator so far.
    span : (int, int)
        Where it starts and stops.
    ahead : int
        Blocks read ahead.
    address : (str, int)
        Topic and number under which progress is told, as (number, position).
    """
    worker = get_worker()
    threads, left = worker.state.nthreads, Span(*span)
    with held(_ALONE), limit_cores(threads), ThreadpoolController().limit(limits=threads, user_api="blas"):
        task = _opened(work)
        # A state that dask holds, and may give to others, is copied.
        copied = None if kept is None else {name: array.copy(order="A") for name, array in unpacked(kept).items()}
        partial = Partial(0, 0, left.start, task.start() if copied is None else task.restore(copied))
        del copied
        try:
            tell = _teller(worker, partial, address)
            fold_partial(task, partial, [left], ahead=ahead, listener=silent, checkpoint=None, go_on=tell)
            state: State = partial.accumulator.state(copy=False)
            for array in state.values():  # may be written to, as the accumulator is not used any more
                array.flags.writeable = True
            return state
        finally:
            del partial, task, tell
            hand_back()


def _opened(work: Packed) -> Any:
    """Unpack what this task uses; what holds futures waits for other tasks, to which this one leaves its thread."""
    if work.waits:
        leave_thread()
    return unpacked(work)


def _teller(worker: Worker, partial: Partial[Any], address: tuple[str, int]) -> Callable[[], None]:
    """Return a function, called after every block, that reports progress and ends a span that was cancelled."""
    (topic, number), key = address, worker.get_current_task()
    last = time.monotonic()

    def tell() -> None:
        nonlocal last
        if time.monotonic() - last < TELL:
            return
        last = time.monotonic()
        worker.log_event(topic, [number, partial.at])
        known = worker.state.tasks.get(key)
        if known is None or known.state == "cancelled":
            raise _UnwantedError

    return tell


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages that must be the same everywhere, and which of others are there."""
    versions = {"streampca": __version__, "numpy": np.__version__}
    return {name: versions.get(name, "there") if find_spec(name) else "" for name in packages}


def try_to_read(read: Packed) -> str:
    """Read some of the data; return what is wrong, or nothing."""
    try:
        _opened(read)()
    except Exception as error:  # whatever it is, the one line that names the worker says it
        return f"{type(error).__name__}: {first_line(error)}"
    return ""
