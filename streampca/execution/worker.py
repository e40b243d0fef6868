"""Functions that run on a worker of a cluster: folding a span with its threads, and reports of progress."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Worker, get_worker
from threadpoolctl import ThreadpoolController

from .. import __version__
from ..errors import Door, first_line, messages_at
from ..events import silent
from ..machine import hand_back, limit_cores
from ..planning.blocks import Span
from .checkpoint import RemoteSave
from .checkpoint_file import CheckpointFile
from .compute import held, leave_thread
from .fold import Partial, fold_partial
from .packing import Packed, unpacked
from .peer_sums import GoneError, PeerReader, PeerSum, is_by_panels
from .task_keys import Key

State = dict[str, npt.NDArray[Any]]

INTERVAL = 0.2  # seconds between messages of a span

_ONE_UNPACKED = threading.Lock()  # threads that import the same modules at once can see them half made
_ONE_SPAN = threading.Lock()  # a job that was cancelled can run until its next block; memory is for one
_ONE_WRITTEN = threading.Lock()  # a job waits until the sums that it is going to change are written


class _CancelledError(Exception):
    """The job was cancelled."""


def dask_setup(worker: Worker) -> None:
    """Ignore Ctrl-C, which the process that started this one handles; called by dask in workers that preload this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def identity(value: Packed) -> Packed:
    """Return the value: as a task, so that the scheduler computes it again when the worker that holds it dies."""
    return value


class UsedError(Exception):
    """An input of a job, "left" or "right", or both, is gone, or was absorbed by a job that was cancelled too late."""


@messages_at(Door.UNKNOWN)
def fold_span(
    work: Packed, left: State | None, saved: Packed | None, span: tuple[int, int], ahead: int, address: tuple[str, int]
) -> State:
    """Fold a span, or the rest of one, absorb it into the sum on its left, and return the state of the result.

    Parameters
    ----------
    work : Packed
        The task, and the function that merges.
    left : dict of arrays or None
        State of the sum of the spans before, which is used up.
    saved : Packed or None
        State of the accumulator of the span so far.
    span : (int, int)
        Start and stop.
    ahead : int
        Blocks read ahead.
    address : (str, int)
        Topic and number of the messages of progress, which are (number, position).
    """
    worker = get_worker()
    with _working(worker, work) as (task, merge):
        # Copied, as dask holds the state and can pass it to other workers.
        copied = None if saved is None else {name: array.copy(order="A") for name, array in unpacked(saved).items()}
        rest = Span(*span)
        partial = Partial(0, 0, rest.start, task.start() if copied is None else task.restore(copied))
        del copied
        report = _progress_report(worker, partial, address)
        fold_partial(task, partial, [rest], ahead=ahead, listener=silent, checkpoint=None, after_block=report)
        accumulator = partial.accumulator
        if left is not None:
            accumulator = task.restore(_taken(left, "left"))
            merge(accumulator, partial.accumulator)
        return _state_of(accumulator)


@messages_at(Door.UNKNOWN)
def merge_states(work: Packed, left: State | PeerSum, right: State | PeerSum | None = None) -> State:
    """Absorb the right sum into the left one, one of which may be another worker's, and return the state of the result.

    Without a right sum, the left one is another worker's, of which the state is returned. Sums of this worker are used
    up.
    """
    worker = get_worker()
    inputs = {"left": left} if right is None else {"left": left, "right": right}
    cancelled = _cancellation_check(worker)
    readers = {name: PeerReader(worker, part, cancelled) for name, part in inputs.items() if isinstance(part, PeerSum)}
    with _working(worker, work) as (task, merge):
        states: dict[str, State] = {}
        for name, reader in readers.items():  # first, so that nothing has changed if another worker is gone
            with _used_if_gone(name):
                states[name] = reader.state()
        unread = [readers[name] for name, state in states.items() if is_by_panels(state)]
        for name, state in inputs.items():
            if not isinstance(state, PeerSum):
                states[name] = _taken(state, name)
        with _used_if_gone(*inputs):
            if right is None:
                whole = {name: np.asarray(array) for name, array in states["left"].items()}
                readers["left"].check_whole()
                return whole
            accumulator = task.restore(states.pop("left"))
            merge(accumulator, task.restore(states.pop("right")))
            for reader in unread:
                reader.check_whole()
        return _state_of(accumulator)


@contextmanager
def _used_if_gone(*names: str) -> Iterator[None]:
    try:
        yield
    except GoneError:
        raise UsedError(" ".join(names)) from None


async def write_sum(key: Key, save: Packed, dask_worker: Worker) -> CheckpointFile | bool:
    """Save a sum that a worker holds, while its threads work; dask passes the worker.

    Returns
    -------
    CheckpointFile or bool
        The file as it is then; True if a job has taken the sum, False if the folder is not seen here.

    Raises
    ------
    OutputError
        If the sum cannot be written.
    """
    return await asyncio.to_thread(_written, dask_worker.data.get(key), save, lambda: key in dask_worker.data)


def _written(state: State | None, save: Packed, is_wanted: Callable[[], bool]) -> CheckpointFile | bool:
    with _ONE_WRITTEN:  # which other writes can have held until the fold, which drops its sums, was over
        remote: RemoteSave = unpacked(save)
        return (remote.write(state) or False) if state and is_wanted() else True


def is_whole(key: Key, dask_worker: Worker) -> bool:
    """Return whether a worker has a sum, and no job has begun to change it; dask passes the worker."""
    return bool(dask_worker.data.get(key))


@contextmanager
def _working(worker: Worker, work: Packed) -> Iterator[tuple[Any, Callable[[Any, Any], None]]]:
    """Yield a task and its function that merges, with all threads of a worker; free the memory at the end."""
    threads = worker.state.nthreads
    with held(_ONE_SPAN), limit_cores(threads), ThreadpoolController().limit(limits=threads, user_api="blas"):
        try:
            yield _opened(work)
        finally:
            hand_back()


def _taken(state: State, name: str) -> State:
    """Take the arrays of a state out of what dask holds, so that a sum grows in place; they are writable."""
    with _ONE_WRITTEN:
        if not state:
            raise UsedError(name)
        taken = {key: array if array.flags.writeable else array.copy(order="A") for key, array in state.items()}
        state.clear()
    return taken


def _state_of(accumulator: Any) -> State:
    """Return the state of an accumulator that is not used any more, without what its task gives every accumulator."""
    constants = getattr(accumulator, "constants", ())
    state: State = {name: array for name, array in accumulator.state(copy=False).items() if name not in constants}
    for array in state.values():
        array.flags.writeable = True
    return state


def _opened(work: Packed) -> Any:
    """Unpack a value for this task, which releases its thread if the value holds futures of other tasks."""
    if work.waits:
        leave_thread()
    with held(_ONE_UNPACKED):
        return unpacked(work)


def _progress_report(worker: Worker, partial: Partial[Any], address: tuple[str, int]) -> Callable[[], None]:
    """Return a function to call after every block, which reports progress and ends a cancelled span."""
    (topic, number), cancelled = address, _cancellation_check(worker)
    last = time.monotonic()

    def report() -> None:
        nonlocal last
        if time.monotonic() - last < INTERVAL:
            return
        last = time.monotonic()
        worker.log_event(topic, [number, partial.at])
        cancelled()

    return report


def _cancellation_check(worker: Worker) -> Callable[[], None]:
    """Return a function that ends the current job of this thread if it was cancelled."""
    key = worker.get_current_task()

    def check() -> None:
        task = worker.state.tasks.get(key)
        if task is None or task.state == "cancelled":
            raise _CancelledError

    return check


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages that must agree everywhere, "there" for other packages, "" for missing ones."""
    versions = {"streampca": __version__, "numpy": np.__version__}
    return {name: versions.get(name, "there") if find_spec(name) else "" for name in packages}


@messages_at(Door.UNKNOWN)
def try_to_read(read: Packed) -> str:
    """Read a part of the data; return the error as text, or an empty text."""
    try:
        _opened(read)()
    except Exception as error:  # of any kind: the client puts it into one line that names the worker
        return f"{type(error).__name__}: {first_line(error)}"
    return ""
