"""`SumsCheckpoint`: saves sums that workers hold, while they work on.

A worker that sees the folder of the checkpoint writes its sums itself, and tries once more if that fails. Other sums
are fetched and written here, as far as that takes a small share of the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future as Call
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple

from distributed import Client, Future

from ..errors import OutputError, Stopped
from ..events import Listener, Warned
from ..planning.blocks import Span
from ..signals import stop_asked
from .checkpoint import PATIENCE, RemoteSave
from .checkpoint_file import CheckpointFile
from .packing import packed
from .peer_sums import GoneError
from .reduction import Node
from .task import A, Checkpointer, RemoteSum
from .worker import State, write_sum

FETCHING_SHARE = 0.1  # most of the time that this process fetches and saves sums, ...
LEAST_FETCHING = 1.0  # ... after so many seconds of it
ASK = 0.5  # seconds between looks whether workers have written

Note = Callable[[CheckpointFile, float], None]


class _Writing(NamedTuple):
    """A sum that its worker writes, and what is told of the result."""

    call: Call[CheckpointFile | bool]
    worker: str
    future: Future
    save: RemoteSave
    note: Note
    began: float


class _Sum(RemoteSum, Generic[A]):
    """A sum that a worker holds; it is fetched when its state is asked for, which is noted."""

    def __init__(self, fetch: Callable[[], A], begin: Callable[[RemoteSave, Note], bool]) -> None:
        self._fetch, self._begin, self.is_fetched = fetch, begin, False

    def state(self, *, copy: bool = True) -> State:
        """Fetch the sum from its worker, and return its state as it is in this process."""
        self.is_fetched = True
        return self._fetch().state(copy=False)

    def begin_save(self, save: RemoteSave, note: Note) -> bool:
        """See `RemoteSum`."""
        return self._begin(save, note)


class SumsCheckpoint(Generic[A]):
    """Checkpoint of the sums of one fold, at the nodes of its tree.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    checkpoint : Checkpointer or None
        Decides when a sum is saved; None to save nothing.
    spans : sequence of Span
        Spans of the fold.
    sums : dict of Node to Future
        Sums that workers hold now; changed by the fold.
    holder : callable
        Returns the address of the worker that holds a sum, or None if it is gone.
    fetch : callable
        Fetches a sum, or raises `GoneError`.
    listener : callable
        Receiver of a warning, once, if a worker cannot write.
    """

    def __init__(
        self,
        client: Client,
        checkpoint: Checkpointer | None,
        spans: Sequence[Span],
        sums: dict[Node, Future],
        holder: Callable[[Node], str | None],
        fetch: Callable[[Node], A],
        listener: Listener,
    ) -> None:
        self._client, self._checkpoint, self._spans, self._sums = client, checkpoint, spans, sums
        self._holder, self._fetch, self._listener = holder, fetch, listener
        self._saved: set[Node] = set()
        self._writing: dict[Node, _Writing] = {}
        self._unable: set[str] = set()  # workers that do not see the folder, or failed twice to write
        self._failed: dict[str, OutputError] = {}  # workers of which the last write failed
        self._has_warned = False
        self._began, self._fetching = time.monotonic(), 0.0

    def note_saved(self, part: Node) -> None:
        """Note that a sum was restored from the checkpoint."""
        self._saved.add(part)

    def forget(self, part: Node) -> None:
        """Note that a sum is used up or lost."""
        self._saved.discard(part)

    def save_if_due(self, parts: Iterable[Node]) -> None:
        """Begin to save the sums that are due."""
        self._note_written()
        if not stop_asked():  # all are saved at the next safe point
            for part in sorted(parts):
                self._save(part)

    def save_now(self, parts: Iterable[Node]) -> None:
        """Save sums that are not saved yet, within a time; raise the first `Stopped`."""
        until, stopped, waiting = time.monotonic() + PATIENCE, None, sorted(parts)
        while waiting and time.monotonic() < until and self._client.status == "running":
            for part in waiting:
                try:
                    if time.monotonic() < until:
                        self._note_written()
                        self._save(part, now=True)
                except Stopped as error:
                    stopped = stopped or error
            first = {part.first for part in waiting}
            calls = [writing.call for part, writing in self._writing.items() if part.first in first]
            wait(calls, timeout=min(ASK, max(0.0, until - time.monotonic())))
            waiting = waiting if calls else []
        if stopped is not None:
            raise stopped

    def finish(self) -> None:
        """Wait for workers that still write, so that nothing is written after the end of the fold."""
        wait([writing.call for writing in self._writing.values()], timeout=PATIENCE)
        self._writing.clear()

    def _save(self, part: Node, *, now: bool = False) -> None:
        """Let a worker begin to write a sum, or fetch and save it, if that is due or `now`."""
        is_written = any(part.first == other.first for other in self._writing)  # to the file of this sum
        if self._checkpoint is None or part in self._saved or part not in self._sums or is_written:
            return
        began, worker = time.monotonic(), self._holder(part)
        fetches = worker in self._unable
        if fetches and not now and self._fetching > max(LEAST_FETCHING, FETCHING_SHARE * (began - self._began)):
            return
        remote = _Sum(partial(self._fetch, part), partial(self._begin, part))
        with suppress(GoneError):
            try:
                self._checkpoint.save_if_due(*part, self._spans[part.last].stop, remote, now=now)
            finally:
                if remote.is_fetched:
                    self._saved.add(part)
                    self._fetching += time.monotonic() - began

    def _begin(self, part: Node, save: RemoteSave, note: Note) -> bool:
        """Ask the worker that holds a sum to write it; return False if it could not or is gone."""
        future, worker = self._sums[part], self._holder(part)
        if worker is None or worker in self._unable:
            return False

        async def written() -> Any:
            return (await self._client.run(write_sum, future.key, packed(save), workers=[worker]))[worker]

        call = asyncio.run_coroutine_threadsafe(written(), self._client.loop.asyncio_loop)
        self._writing[part] = _Writing(call, worker, future, save, note, time.monotonic())
        return True

    def _note_written(self) -> None:
        """Note which workers have written, and which could not."""
        for part, writing in list(self._writing.items()):
            if not writing.call.done():
                continue
            del self._writing[part]
            worker, file = writing.worker, self._result(writing)
            if isinstance(file, CheckpointFile):
                self._failed.pop(worker, None)
                if self._sums.get(part) is writing.future:
                    self._saved.add(part)
                writing.note(file, time.monotonic() - writing.began)
            elif isinstance(file, OutputError) and worker not in self._failed:  # such as a server that was busy
                self._failed[worker] = file
                if self._sums.get(part) is writing.future:
                    self._begin(part, writing.save, writing.note)
            elif file is not True:
                self._warn(worker)
                self._unable.add(worker)
                self._save(part, now=True)

    def _result(self, writing: _Writing) -> CheckpointFile | OutputError | bool:
        """Return the file or the error; True if the sum or its worker is gone, False if the folder is not seen."""
        try:
            return writing.call.result()
        except OutputError as error:
            return error
        except Exception:  # of many kinds: the worker or the scheduler is lost
            return True

    def _warn(self, worker: str) -> None:
        """Warn, once, of a worker that failed to write."""
        if (error := self._failed.get(worker)) is not None and not self._has_warned:
            self._has_warned = True
            self._listener(Warned(f"{error} Worker {worker} tried twice; this process fetches and saves its sums."))
