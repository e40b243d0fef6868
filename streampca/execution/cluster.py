"""`DaskExecutor`: workers of a dask cluster fold one span at a time each; this process merges them from left to right.

A worker holds at most one partial that waits to be merged, besides the span that it folds. All inputs of a span are
results of tasks, so the scheduler computes them again when a worker dies. The number of tasks grows with spans, never
with blocks or chunks.
"""

from __future__ import annotations

import asyncio
import queue
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic

import dask
from distributed import Client, Future, KilledWorker

from ..errors import ClusterError, ClusterLostError
from ..events import Listener
from ..planning.blocks import Span
from ..signals import safe_point, stop_asked
from ..units import counted, format_seconds
from .cluster_options import TIMEOUT
from .fold import STALLED, Merged, Partial, partials_of, warning_of_stalls
from .packing import Packed, packed
from .task import A, Checkpointer, Task
from .worker import fold_span, identity
from .workers import Workers, budget_within

LISTEN = 0.5  # most seconds to wait for a message before workers are looked up again
LEAST_PLANNED = 2  # workers that a plan is made for at least, as others can join


class DaskExecutor:
    """Executor that runs spans on the workers of a dask cluster.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    workers : int, optional
        Number of workers to plan for; by default the present ones.
    timeout : float, default=600
        Seconds that a run waits for a worker after all have gone.
    stalled : float, default=60
        Seconds without a finished block after which listeners are warned.
    """

    def __init__(
        self, client: Client, *, workers: int | None = None, timeout: float = TIMEOUT, stalled: float = STALLED
    ) -> None:
        self._client, self._planned_workers, self._timeout, self._stalled = client, workers, timeout, stalled
        self._workers = Workers(client)

    @property
    def workers(self) -> int:
        """Number of workers to plan for, at least `LEAST_PLANNED`."""
        return max(LEAST_PLANNED, self._planned_workers or self._workers.size)

    @property
    def memory(self) -> int | None:
        """Bytes that a plan can use of every worker; None if no worker has a limit."""
        limit = self._workers.memory
        return None if limit is None else budget_within(limit)

    @property
    def cores(self) -> int:
        """Smallest number of threads of a worker."""
        return self._workers.cores

    def check_versions(self) -> None:
        """Refuse workers that have other versions of this package or of numpy, or lack a package that it needs.

        Raises
        ------
        ClusterError
            One line that names these workers.
        """
        self._workers.check_versions()

    def check(self, read: Callable[[], object], memory: int, listener: Listener) -> None:
        """Refuse workers that cannot do the work; unsuitable workers that join later are not used, with a warning.

        Parameters
        ----------
        read : callable
            Reads a part of the data; picklable.
        memory : int
            Bytes that a plan needs of every worker.
        listener : callable
            Receiver of the warnings.

        Raises
        ------
        ClusterError
            If a worker lacks a package, the data, or memory; one line that names it.
        """
        self._workers.check(read, memory, listener)

    def fold(
        self,
        task: Task[A],
        spans: Sequence[Span],
        merge: Callable[[A, A], None],
        *,
        threads: int = 1,
        ahead: int = 0,
        listener: Listener,
        checkpoint: Checkpointer | None = None,
    ) -> A:
        """See `Executor.fold`; a worker folds one span at a time, with all its threads."""
        merged = Merged(merge, checkpoint)
        with warning_of_stalls(listener, lambda: fold.waits_for(), self._stalled) as tell:
            fold = _Fold(self._client, self._workers, task, spans, ahead, tell, checkpoint, self._timeout)
            try:
                with fold.listening(), self._workers.watched():
                    fold.run(merged)
            except ClusterError:  # with more memory, or on another cluster, the run can resume from here
                fold.save_if_due(merged, now=True)
                raise
        return task.start() if merged.value is None else merged.value


@dataclass
class _Sent(Generic[A]):
    """A partial that a worker folds, or a complete one; `reported` is the position up to which events were sent."""

    partial: Partial[A]
    future: Future | None
    worker: str
    reported: int

    @property
    def status(self) -> str:
        """Status of the future in dask: pending, finished, error, cancelled or lost (and being computed again)."""
        return "finished" if self.future is None else str(self.future.status)


class _Fold(Generic[A]):
    """One fold on a cluster: sends spans to idle workers, receives messages of blocks, and merges partials in order."""

    def __init__(
        self,
        client: Client,
        workers: Workers,
        task: Task[A],
        spans: Sequence[Span],
        ahead: int,
        listener: Listener,
        checkpoint: Checkpointer | None,
        timeout: float,
    ) -> None:
        self._client, self._workers, self._task, self._spans, self._ahead = client, workers, task, spans, ahead
        self._listener, self._checkpoint, self._timeout = listener, checkpoint, timeout
        self._name = f"streampca-{uuid.uuid4().hex}"
        self._partials: Iterator[Partial[A]] | None = partials_of(task, spans, checkpoint, listener)
        self._waiting: deque[_Sent[A]] = deque()
        self._messages: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._work: Future | None = None
        self._last_present, self._generation = time.monotonic(), client.generation

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receive messages of finished blocks; at the end cancel everything on the workers."""
        with self._explained():
            self._client.subscribe_topic(self._name, lambda event: self._messages.put(tuple(event[1])))
        try:
            yield
        finally:
            futures = [sent.future for sent in self._waiting if sent.future is not None]
            if self._client.status == "running":
                self._client.unsubscribe_topic(self._name)
                self._client.cancel(futures, force=True)
            self._waiting.clear()
            self._work = None

    def run(self, merged: Merged[A]) -> None:
        """Merge all partials, in order."""
        while self._send() or self._waiting:
            if stop_asked():
                self.save_if_due(merged)
            safe_point()
            if self._waiting and self._waiting[0].status == "finished":
                self._merge_first(merged)
            else:
                self._receive(merged)
                self._raise_errors()

    def _merge_first(self, merged: Merged[A]) -> None:
        """Merge the first partial, which is complete, and release it here and on its worker."""
        sent = self._waiting[0]
        if sent.future is None:
            accumulator = sent.partial.accumulator
        else:
            with self._explained():
                accumulator = self._task.restore(self._client.gather(sent.future, direct=self._workers.near))
        self._waiting.popleft()
        sent.partial.at = self._spans[sent.partial.last].stop
        self._report(sent, sent.partial.at)
        merged.add(sent.partial, accumulator)

    def waits_for(self) -> str:
        """Describe the unfinished spans, their workers and the other tasks of these; callable from any thread."""
        spans = {str(sent.future.key): sent for sent in list(self._waiting) if sent.future is not None}
        keys = [key for key, sent in spans.items() if sent.status != "finished"]
        if not keys:
            results = [f"the result of span {sent.partial.last + 1} on worker {sent.worker}" for sent in spans.values()]
            return results[0] if results else "a worker"
        tasks = {worker: {str(key) for key in running} for worker, running in self._client.processing().items()}
        by_span = [(spans[key].partial.last + 1, next((w for w in tasks if key in tasks[w]), "")) for key in keys]
        texts = [f"span {number} ({f'worker {worker}' if worker else 'on no worker'})" for number, worker in by_span]
        others = sum(len(tasks[worker] - spans.keys()) for worker in {worker for _, worker in by_span} & tasks.keys())
        more = f", which have {counted(others, 'other task')} to do" if others else ""
        return f"{', '.join(texts)} of {len(self._spans)}{more}"

    # -- sending

    def _send(self) -> bool:
        """Send spans to idle workers; return whether there are more spans."""
        if self._client.generation != self._generation:
            raise self._ended()
        with self._explained():
            while self._partials is not None and (worker := self._idle()) is not None:
                partial = next(self._partials, None)
                if partial is None:
                    self._partials = None
                    return False
                self._waiting.append(self._submit(partial, worker))
        return self._partials is not None

    def _idle(self) -> str | None:
        """Return a worker that folds no span and holds at most one partial, preferably none; None if there is none."""
        running = {sent.worker for sent in self._waiting if sent.status != "finished"}
        holding = Counter(sent.worker for sent in self._waiting if sent.status == "finished")
        idle = [worker for worker in self._workers.present() if worker not in running and holding[worker] < 2]
        return min(idle, key=lambda worker: holding[worker], default=None)

    def _submit(self, partial: Partial[A], worker: str) -> _Sent[A]:
        """Have a worker fold the rest of a partial's last span, preferably this one."""
        span = self._spans[partial.last]
        if partial.at == span.stop:
            return _Sent(partial, None, "", partial.at)
        state = None if partial.at == span.start else self._send_value(packed(partial.accumulator.state(copy=False)))
        partial.accumulator = None  # type: ignore[assignment]  # memory allows one here; the worker has its own
        if self._work is None:
            self._work = self._send_value(packed(self._task))
        future = self._client.submit(
            fold_span,
            self._work,
            state,
            (partial.at, span.stop),
            self._ahead,
            (self._name, partial.last),
            key=f"{self._name}-span-{partial.last}",
            workers=[worker],
            allow_other_workers=True,  # if this one dies
            pure=False,
        )
        future.add_done_callback(lambda _: self._messages.put(None))
        return _Sent(partial, future, worker, partial.at)

    def _send_value(self, value: Packed) -> Future:
        """Send a value to workers as a task that the scheduler keeps: scattered data would be lost with a worker."""
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            return self._client.submit(identity, value, key=f"{self._name}-given-{uuid.uuid4().hex}", pure=False)

    # -- messages

    def _receive(self, merged: Merged[A]) -> None:
        """Wait for a message, and report the progress in all that have come."""
        try:
            message = self._messages.get(timeout=LISTEN)
            while True:
                if message is not None:
                    self.save_if_due(merged)  # first: a listener can end the run
                    number, at = message
                    for sent in self._waiting:
                        if sent.partial.last == number:
                            self._report(sent, at)
                message = self._messages.get_nowait()
        except queue.Empty:
            return

    def _report(self, sent: _Sent[A], at: int) -> None:
        """Send an event for each block up to a position; only once for a block that is folded again."""
        for block in self._task.blocks(Span(sent.reported, at)) if at > sent.reported else ():
            self._listener(self._task.counts(block))
        sent.reported = max(sent.reported, at)

    def save_if_due(self, merged: Merged[A], *, now: bool = False) -> None:
        """Save the merged partials if a save is due, or the run was asked to stop."""
        if self._checkpoint is not None and merged.value is not None:
            self._checkpoint.save_if_due(0, merged.last, self._spans[merged.last].stop, merged.value, now=now)

    # -- errors

    def _raise_errors(self) -> None:
        """Raise the error of the first span that failed, or of the cluster."""
        if self._client.status != "running":
            raise self._ended()
        with self._explained():
            for sent in self._waiting:
                if sent.future is not None and sent.status in ("error", "cancelled"):
                    sent.future.result()
            has_workers = bool(self._workers.present())
        now = time.monotonic()
        self._last_present = now if has_workers else self._last_present
        alone = now - self._last_present
        if problem := self._workers.exhausted(alone):
            raise ClusterError(problem)
        if alone > self._timeout:
            raise ClusterLostError(
                f"no worker has been there for {format_seconds(alone)}; start some, and give the same command again."
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of dask into one line with a remedy."""
        try:
            yield
        except KilledWorker as error:
            raise ClusterError(
                f"{error.allowed_failures + 1} workers died over the same span, the last {error.last_worker.address}; "
                "mostly that is for want of memory: give workers more (--worker-memory, worker_memory), or the fit "
                "less (--memory, memory)."
            ) from None
        except (asyncio.CancelledError, CancelledError) as error:
            raise self._ended() from error
        except OSError as error:
            if self._client.status == "running":
                raise
            raise self._ended() from error

    def _ended(self) -> ClusterLostError:
        """Return the error that says why futures were cancelled: dask raises the same for each of these reasons."""
        if self._client.status != "running":
            reason = "the connection to the cluster's scheduler was lost; when it is there again, give"
        elif self._client.generation != self._generation:
            reason = (
                "the cluster was restarted, which drops what workers had and were doing; persist arrays again, and give"
            )
        else:
            reason = "somebody cancelled what workers were doing; give"
        return ClusterLostError(f"{reason} the same command again.")
