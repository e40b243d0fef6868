"""A dask cluster: its workers fold spans, one at a time each, and partials are merged here, from left to right.

A worker holds one partial that waits to be merged, at most, beside the span it works on. Whatever a span needs is made
by a task, so the scheduler makes it again when a worker dies. Tasks grow with spans, never with blocks or chunks.
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
from .fold import Merged, Partial, partials_of
from .packing import Packed, packed
from .stalls import STALLED, stalls_told
from .task import A, Checkpointer, Task
from .worker import fold_span, given
from .workers import Workers, budget_within

LISTEN = 0.5  # seconds between looks at who is there, where nothing is heard
LEAST_PLANNED = 2  # workers


class DaskExecutor:
    """Runs spans on the workers of a dask cluster.

    Parameters
    ----------
    client : distributed.Client
        Connected to it.
    workers : int, optional
        How many to plan for; those there by default.
    timeout : float, default=600
        Seconds that a run waits when all workers are gone.
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
        """Workers to plan for, at least two: others may come."""
        return max(LEAST_PLANNED, self._planned_workers or self._workers.size)

    @property
    def memory(self) -> int | None:
        """Bytes that a plan may use of every worker; None where none has a limit."""
        limit = self._workers.memory
        return None if limit is None else budget_within(limit)

    @property
    def cores(self) -> int:
        """Threads that a worker has, the least of all."""
        return self._workers.cores

    def check_versions(self) -> None:
        """Refuse workers that have other versions of this package or of numpy, or lack what it needs.

        Raises
        ------
        ClusterError
            One line that names them.
        """
        self._workers.check_versions()

    def check(self, read: Callable[[], object], memory: int, listener: Listener) -> None:
        """Refuse workers that cannot do the work; those that come later are left out, with a warning.

        Parameters
        ----------
        read : callable
            Reads some of the data; picklable.
        memory : int
            Bytes that a plan needs of every worker.
        listener : callable
            Warned of workers that come too late to be refused.

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
        """See `Executor.fold`; a worker works on one span at a time, with the threads it has."""
        merged = Merged(merge, checkpoint)
        with stalls_told(listener, lambda: fold.waits_for(), self._stalled) as tell:
            fold = _Fold(self._client, self._workers, task, spans, ahead, tell, checkpoint, self._timeout)
            try:
                with fold.listening(), self._workers.watched():
                    fold.run(merged)
            except ClusterError:  # more memory or another cluster may go on from there
                fold.save_if_due(merged, now=True)
                raise
        return task.start() if merged.value is None else merged.value


@dataclass
class _Sent(Generic[A]):
    """A partial that a worker folds, or that needs none; `told` is how far the listener has been told of it."""

    partial: Partial[A]
    future: Future | None
    worker: str
    told: int

    @property
    def status(self) -> str:
        """The status of its future in dask: pending, finished, error, cancelled or lost (and being computed again)."""
        return "finished" if self.future is None else str(self.future.status)


class _Fold(Generic[A]):
    """One fold on a cluster: sends spans to idle workers, hears of blocks, and adds partials up in order."""

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
        self._heard: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._work: Future | None = None
        self._seen, self._generation = time.monotonic(), client.generation

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of blocks that workers have done; afterwards nothing is left on them."""
        with self._explained():
            self._client.subscribe_topic(self._name, lambda event: self._heard.put(tuple(event[1])))
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
        """Add up all parts, in order."""
        while self._send() or self._waiting:
            if stop_asked():
                self.save_if_due(merged)
            safe_point()
            if self._waiting and self._waiting[0].status == "finished":
                self._take(merged)
            else:
                self._listen(merged)
                self._raise_errors()

    def _take(self, merged: Merged[A]) -> None:
        """Add the first partial, which is done; afterwards neither this process nor the worker holds it."""
        sent = self._waiting[0]
        if sent.future is None:
            done = sent.partial.accumulator
        else:
            with self._explained():
                done = self._task.restore(self._client.gather(sent.future, direct=self._workers.near))
        self._waiting.popleft()
        sent.partial.at = self._spans[sent.partial.last].stop
        self._tell(sent, sent.partial.at)
        merged.add(sent.partial, done)

    def waits_for(self) -> str:
        """Say where the spans are that are not done, and what else their workers have to do; for any thread."""
        spans = {str(sent.future.key): sent for sent in list(self._waiting) if sent.future is not None}
        keys = [key for key, sent in spans.items() if sent.status != "finished"]
        if not keys:
            held = [f"the result of span {sent.partial.last + 1} on worker {sent.worker}" for sent in spans.values()]
            return held[0] if held else "a worker"
        doing = {worker: {str(key) for key in tasks} for worker, tasks in self._client.processing().items()}
        by_span = [(spans[key].partial.last + 1, next((w for w in doing if key in doing[w]), "")) for key in keys]
        named = [f"span {number} ({f'worker {worker}' if worker else 'on no worker'})" for number, worker in by_span]
        others = sum(len(doing[worker] - spans.keys()) for worker in {worker for _, worker in by_span} & doing.keys())
        more = f", which have {counted(others, 'other task')} to do" if others else ""
        return f"{', '.join(named)} of {len(self._spans)}{more}"

    # -- sending

    def _send(self) -> bool:
        """Give idle workers something to do; say whether there is more."""
        if self._client.generation != self._generation:
            raise self._ended()
        with self._explained():
            while self._partials is not None and (worker := self._idle()) is not None:
                partial = next(self._partials, None)
                if partial is None:
                    self._partials = None
                    return False
                self._waiting.append(self._sent(partial, worker))
        return self._partials is not None

    def _idle(self) -> str | None:
        """Return a worker that has nothing to do and holds at most one partial, the idlest first."""
        running = {sent.worker for sent in self._waiting if sent.status != "finished"}
        holding = Counter(sent.worker for sent in self._waiting if sent.status == "finished")
        idle = [worker for worker in self._workers.present() if worker not in running and holding[worker] < 2]
        return min(idle, key=lambda worker: holding[worker], default=None)

    def _sent(self, partial: Partial[A], worker: str) -> _Sent[A]:
        span = self._spans[partial.last]
        if partial.at == span.stop:
            return _Sent(partial, None, "", partial.at)
        kept = None if partial.at == span.start else self._given(packed(partial.accumulator.state(copy=False)))
        partial.accumulator = None  # type: ignore[assignment]  # the worker has its own; there is room for one
        if self._work is None:
            self._work = self._given(packed(self._task))
        future = self._client.submit(
            fold_span,
            self._work,
            kept,
            (partial.at, span.stop),
            self._ahead,
            (self._name, partial.last),
            key=f"{self._name}-span-{partial.last}",
            workers=[worker],
            allow_other_workers=True,  # once that one is gone
            pure=False,
        )
        future.add_done_callback(lambda _: self._heard.put(None))
        return _Sent(partial, future, worker, partial.at)

    def _given(self, value: Packed) -> Future:
        """Send a value to workers by a task that the scheduler keeps, so that it can be computed again."""
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            return self._client.submit(given, value, key=f"{self._name}-given-{uuid.uuid4().hex}", pure=False)

    # -- hearing

    def _listen(self, merged: Merged[A]) -> None:
        """Wait for something to happen, and tell what happened."""
        try:
            message = self._heard.get(timeout=LISTEN)
            while True:
                if message is not None:
                    self.save_if_due(merged)  # first: a listener may end the run
                    self._hear(*message)
                message = self._heard.get_nowait()
        except queue.Empty:
            return

    def _hear(self, number: int, at: int) -> None:
        for sent in self._waiting:
            if sent.partial.last == number:
                self._tell(sent, at)

    def _tell(self, sent: _Sent[A], at: int) -> None:
        """Tell the listener of blocks up to a position, each once, however often it was done."""
        for block in self._task.blocks(Span(sent.told, at)) if at > sent.told else ():
            self._listener(self._task.counts(block))
        sent.told = max(sent.told, at)

    def save_if_due(self, merged: Merged[A], *, now: bool = False) -> None:
        """Save the merged partials if that is due by now, or the run was told to stop."""
        if self._checkpoint is not None and merged.value is not None:
            self._checkpoint.save_if_due(0, merged.last, self._spans[merged.last].stop, merged.value, now=now)

    # -- what goes wrong

    def _raise_errors(self) -> None:
        """Raise what went wrong with a span, the first by position, or with the cluster."""
        if self._client.status != "running":
            raise self._ended()
        with self._explained():
            for sent in self._waiting:
                if sent.future is not None and sent.status in ("error", "cancelled"):
                    sent.future.result()
            someone = bool(self._workers.present())
        now = time.monotonic()
        self._seen = now if someone else self._seen
        alone = now - self._seen
        if problem := self._workers.exhausted(alone):
            raise ClusterError(problem)
        if alone > self._timeout:
            message = (
                f"no worker has been there for {format_seconds(alone)}; start some, and give the same command again."
            )
            raise ClusterLostError(message)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Put what dask raises into one line that says what to do."""
        try:
            yield
        except KilledWorker as error:
            raise ClusterError(
                f"{error.allowed_failures + 1} workers died over the same span, the last {error.last_worker.address}; "
                "mostly that is for want of memory: give workers more (--worker-memory), or the fit less (--memory)."
            ) from None
        except (asyncio.CancelledError, CancelledError) as error:
            raise self._ended() from error
        except OSError as error:
            if self._client.status == "running":
                raise
            raise self._ended() from error

    def _ended(self) -> ClusterLostError:
        """Say why spans are not folded any more: dask cancels all futures for each of these reasons."""
        if self._client.status != "running":
            what = "the connection to the cluster's scheduler was lost; when it is there again, give"
        elif self._client.generation != self._generation:
            what = (
                "the cluster was restarted, which drops what workers had and were doing; persist arrays again, and give"
            )
        else:
            what = "somebody cancelled what workers were doing; give"
        return ClusterLostError(f"{what} the same command again.")
