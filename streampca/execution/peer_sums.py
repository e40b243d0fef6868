"""`PeerSum`: a sum that another worker holds, read by the worker that adds it to its own.

Small arrays are read at once and large ones by panels. Workers ask each other by dask's own means, but not by tasks,
whose inputs dask reads before they begin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from distributed import Worker
from distributed.protocol import pickle

from ..arrays import Array
from ..errors import ClusterError, first_line
from ..units import KIB
from .panels import ArrayForm, Index, PanelArray
from .task_keys import Key

CHECK = 0.5  # seconds between looks whether a job was cancelled
PATIENCE = 60.0  # most seconds of failures to reach a worker that the scheduler reaches
PAUSE = 0.5  # seconds between attempts
TOGETHER = 64 * KIB  # most bytes of an array that is sent together with others


class GoneError(Exception):
    """The worker that held a sum is gone, or has begun to add to the sum."""


@dataclass(frozen=True)
class PeerSum:
    """Description of a sum, for the job that reads it.

    Attributes
    ----------
    key : tuple
        Its key on the workers.
    panel : int
        Bytes of a panel of a large array.
    """

    key: Key
    panel: int


@dataclass(frozen=True)
class PeerReader:
    """Reader of a sum, in a thread of a worker.

    Attributes
    ----------
    worker : distributed.Worker
        The reading worker.
    sum : PeerSum
        The sum to read.
    check : callable
        Called while the reader waits; raises an error if the job was cancelled.
    """

    worker: Worker
    sum: PeerSum
    check: Callable[[], None]

    def state(self) -> dict[str, Any]:
        """Return the state of the sum, read as a whole but for arrays larger than a panel, which are `PanelArray`.

        Raises
        ------
        GoneError
            If no worker has it any more.
        """
        state = self._begin(_described, min(TOGETHER, self.sum.panel))()
        state = {
            name: self._large(name, array) if isinstance(array, ArrayForm) else _writable(array)
            for name, array in state.items()
        }
        if not is_by_panels(state):
            self.check_whole()
        return state

    def _large(self, name: str, form: ArrayForm) -> Any:
        """Return an array of one panel, or one that is read by panels."""
        array = PanelArray(form, self.sum.panel, partial(self._begin, _panel, name))
        return array if len(form.panels(self.sum.panel)) > 1 else np.asarray(array)

    def check_whole(self) -> None:
        """Raise GoneError if a job, which was cancelled too late, has begun to change the sum while it was read."""
        self._begin(_is_whole)()

    def _begin(self, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Begin to ask the worker that holds the sum; return a function that waits for the answer."""
        call = asyncio.run_coroutine_threadsafe(self._asked(function, arguments), self.worker.loop.asyncio_loop)

        def result() -> Any:
            try:
                while True:
                    try:
                        answer = call.result(CHECK)
                    except NotYetError:
                        self.check()
                    else:
                        break
            finally:
                call.cancel()
            if answer is None:
                raise GoneError
            return answer

        return result

    async def _asked(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return a worker's answer; None if none has the sum. A worker that is not reached is asked again."""
        until = time.monotonic() + PATIENCE
        message = {"function": pickle.dumps(function), "args": pickle.dumps((self.sum.key, *arguments))}
        while holders := (await self.worker.scheduler.who_has(keys=[self.sum.key]))[self.sum.key]:
            try:
                answer = await self.worker.rpc(holders[0]).run(**message)
            except OSError as error:
                if time.monotonic() > until:
                    reason = f"{self.worker.address} does not reach {holders[0]} ({first_line(error)})"
                    raise ClusterError(f"worker {reason}; open their ports to each other.") from None
                await asyncio.sleep(PAUSE)
                continue
            if answer["status"] != "OK":
                raise RuntimeError(answer["exception_text"])
            return answer["result"]
        return None


def is_by_panels(state: dict[str, Any]) -> bool:
    """Return whether arrays of a state are still to be read."""
    return any(isinstance(array, PanelArray) for array in state.values())


def _writable(array: Array) -> Array:
    return array if array.flags.writeable else array.copy(order="A")


def _described(key: Key, most: int, dask_worker: Worker) -> dict[str, Array | ArrayForm] | None:
    """Return the small arrays of a sum, and the forms of large ones; dask passes the worker that holds it."""
    state = dask_worker.data.get(key)
    if not state:
        return None
    return {name: array if array.nbytes <= most else ArrayForm.of(array) for name, array in state.items()}


def _panel(key: Key, name: str, index: Index, dask_worker: Worker) -> Array | None:
    state = dask_worker.data.get(key)
    return state[name][index] if state else None


def _is_whole(key: Key, dask_worker: Worker) -> bool | None:
    return bool(dask_worker.data.get(key)) or None
