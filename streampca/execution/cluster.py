"""`DaskExecutor`: workers of a dask cluster fold spans and add them up along a tree; this process fetches the total.

Sums travel from worker to worker. The number of tasks grows with spans, never with blocks or chunks.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager, nullcontext
from typing import Any, Generic

import dask.config
from distributed import Client, Future, KilledWorker

from ..errors import ClusterError, ClusterLostError
from ..events import Listener, Resumed, silent
from ..planning.blocks import Span
from ..signals import safe_point, stop_asked
from ..units import KIB, MIB, counted, format_seconds
from .cluster_options import TIMEOUT
from .demand import Demand
from .fold import STALLED, warning_of_stalls
from .packing import Packed, packed
from .peer_sums import GoneError, PeerSum
from .reduction import Addition, Node, Reduction, Tree
from .sums_checkpoint import SumsCheckpoint
from .task import A, Checkpointer, SavedPartial, Task
from .task_keys import TaskKeys
from .worker import State, UsedError, fold_span, identity, is_whole, merge_states
from .workers import Workers, budget_within

LISTEN = 0.5  # most seconds to wait for a message before workers are looked up again
MOST_BY_SCHEDULER = 64 * KIB  # larger values go to a worker, and from worker to worker
PANEL = 128 * MIB  # most bytes of another worker's array that are read at a time; two are held
TAKES = 5.0  # most seconds to wait until a worker that was there takes a value
LOST = ("lost", "cancelled")  # states of a future whose value no worker has any more
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
    demand : Demand, optional
        Workers that an adaptive cluster keeps between folds, which ask for as many as they can use.
    """

    def __init__(
        self,
        client: Client,
        *,
        workers: int | None = None,
        timeout: float = TIMEOUT,
        stalled: float = STALLED,
        demand: Demand | None = None,
    ) -> None:
        self._client, self._planned_workers, self._timeout, self._stalled = client, workers, timeout, stalled
        self._workers, self._demand = Workers(client), demand

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

    def check(
        self, read: Callable[[], object], memory: int, listener: Listener, *, packages: Sequence[str] = ()
    ) -> None:
        """Refuse workers that cannot do the work; unsuitable workers that join later are not used, with a warning.

        Parameters
        ----------
        read : callable
            Reads a part of the data; picklable.
        memory : int
            Bytes that a plan needs of every worker.
        listener : callable
            Receiver of the warnings.
        packages : sequence of str, optional
            Packages that workers need beside those that every fit needs.

        Raises
        ------
        ClusterError
            If a worker lacks a package, the data, or memory; one line that names it.
        """
        self._workers.check(read, memory, listener, packages)

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
        fold = _Fold(self._client, self._workers, task, spans, merge, ahead, checkpoint, self.workers, self._timeout)
        with (
            warning_of_stalls(listener, fold.waits_for, self._stalled) as tell,
            fold.listening(tell),
            self._workers.watched(),
            nullcontext() if self._demand is None else self._demand.withdrawn(),
        ):
            try:
                return fold.run()
            except ClusterError:  # with more memory, or on another cluster, the run can resume from here
                fold.save()
                raise


class _Fold(Generic[A]):
    """One fold on a cluster: gives workers their jobs, receives messages of blocks, and fetches the sum of all spans.

    Each job is for one worker. When a worker is gone, the spans in the sums that it held are folded again by others. So
    none holds more sums than it should, as it could if dask chose who computes them again.
    """

    def __init__(
        self,
        client: Client,
        workers: Workers,
        task: Task[A],
        spans: Sequence[Span],
        merge: Callable[[A, A], None],
        ahead: int,
        checkpoint: Checkpointer | None,
        planned_workers: int,
        timeout: float,
    ) -> None:
        self._client, self._workers, self._task, self._spans, self._merge = client, workers, task, spans, merge
        self._ahead, self._checkpoint, self._timeout = ahead, checkpoint, timeout
        self._keys, self._planned_workers = TaskKeys(), planned_workers
        self._demand = Demand(client, lambda: self._keys.fold(len(spans)))
        self._listener: Listener = silent
        self._messages: queue.SimpleQueue[tuple[int, int] | str] = queue.SimpleQueue()
        self._work: Future | None = None  # the task and its merge, until workers have copies of their own
        self._is_copied = False  # whether it is large
        self._copies: dict[str, Future] = {}  # by worker
        self._reduction = Reduction(Tree(0, len(spans)))
        self._to_restore: list[Node] = []  # spans whose sums may be saved
        self._running: dict[str, Future] = {}  # by worker
        self._sums: dict[Node, Future] = {}
        self._folders: dict[str, str] = {}  # of workers that were given work: a restarted one has another
        self._checkpointed = SumsCheckpoint(
            client, checkpoint, spans, self._sums, self._holder, self._fetched, lambda event: self._listener(event)
        )
        self._reported = [span.start for span in spans]
        self._resumed: set[int] = set()  # spans whose samples were reported as resumed
        self._deaths = Counter[int]()  # of workers that folded a span
        self._looked = 0.0
        self._last_present, self._generation = time.monotonic(), client.generation

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Receive messages of finished blocks; at the end cancel everything on the workers."""
        self._listener = listener
        with self._explained():
            self._client.subscribe_topic(self._keys.topic, lambda event: self._messages.put(tuple(event[1])))
        try:
            yield
        finally:
            if self._client.status == "running":
                self._checkpointed.finish()
                self._demand.ask(0)
                self._client.unsubscribe_topic(self._keys.topic)
                self._client.cancel([*self._running.values(), *self._sums.values()], force=True)
            self._running.clear()
            self._sums.clear()
            self._copies.clear()
            self._work = None

    def run(self) -> A:
        """Return the sum of all spans."""
        with self._explained():
            before = self._restored_before()
            root = self._reduction.tree.root
            self._to_restore = [root]
            while True:
                while not self._reduction.is_complete:
                    self._stop_if_asked()
                    self._look_at_workers()
                    self._restore()
                    self._receive()
                try:
                    total = self._fetched(root)
                except GoneError:
                    self._forget([root])
                else:
                    break
        if before is None:
            return total
        self._merge(before, total)
        return before

    def waits_for(self) -> str:
        """Describe the running jobs and the other tasks of their workers; callable from any thread."""
        jobs = dict(self._reduction.jobs)
        if not jobs:
            return "a worker"
        tasks = self._client.processing()
        texts = []
        for worker, job in sorted(jobs.items(), key=lambda item: item[1].result):
            work = f"the sum of spans {job.result.first + 1} to {job.result.last + 1}"
            work = work if job.span is None else f"span {job.span + 1}"
            texts.append(f"{work} (worker {worker})")
        others = sum(not self._keys.has(key) for worker in jobs for key in tasks.get(worker, ()))
        more = f", which have {counted(others, 'other task')} to do" if others else ""
        return f"{', '.join(texts)} of {len(self._spans)}{more}"

    # -- jobs

    def _assign(self, workers: Iterable[str]) -> None:
        """Give idle workers their next jobs."""
        if self._client.generation != self._generation:
            raise self._ended()
        suitable, folders = set(self._workers.present()), self._workers.folders()
        paused = {*self._reduction.held.values()} - suitable
        for worker in sorted({*workers} & suitable, key=self._held_count):
            is_idle = (
                worker not in self._running and self._folders.setdefault(worker, folders[worker]) == folders[worker]
            )
            if is_idle and (job := self._reduction.start(worker, paused)) is not None:
                if job.span is not None and self._deaths[job.span]:  # it may die as well
                    self._checkpointed.save_now(self._reduction.held_by(worker))
                try:
                    future = self._running[worker] = self._submitted(job, worker)
                except GoneError:  # workers are looked up again before the next try
                    self._reduction.give_back(worker)
                    return
                future.add_done_callback(lambda _, worker=worker: self._messages.put(worker))

    def _held_count(self, worker: str) -> int:
        return len(self._reduction.held_by(worker))

    def _submitted(self, job: Addition, worker: str) -> Future:
        """Send a job to its worker, and to no other one."""
        work, options = self._work_on(worker), self._only_on(worker)
        if job.span is None:
            sums = [
                self._sums[part] if self._reduction.held[part] == worker else PeerSum(self._sums[part].key, PANEL)
                for part in job.inputs
            ]
            return self._client.submit(merge_states, work, *sums, key=self._keys.merge(job.result), **options)
        before = None if job.left is None else self._sums[job.left]
        span, saved = self._spans[job.span], self._saved_within(job.span)
        start, state = (span.start, None) if saved is None else (saved.at, self._sent(packed(saved.state)))
        where, address, key = (start, span.stop), (self._keys.topic, job.span), self._keys.fold(job.span)
        return self._client.submit(fold_span, work, before, state, where, self._ahead, address, key=key, **options)

    def _only_on(self, worker: str) -> dict[str, Any]:
        return {"workers": [worker], "allow_other_workers": False, "pure": False}

    def _work_on(self, worker: str) -> Future:
        """Return the task and its merge for the jobs of a worker, as the worker's own copy if they are large.

        A scheduler's active memory manager drops replicas between jobs, of which there is a moment after each. A copy
        by a name of its own is not a replica; it shares the memory of the one that was received.
        """
        if not self._copies or self._is_work_lost():
            self._copies.clear()
            if self._work is None or self._work.status in LOST:
                work = packed((self._task, self._merge))
                self._work, self._is_copied = self._sent(work), work.nbytes > MOST_BY_SCHEDULER
        if not self._is_copied and self._work is not None:
            return self._work
        copy = self._copies.get(worker)
        if copy is None or copy.status in LOST:
            key = self._keys.send()
            copy = self._client.submit(identity, self._source(), key=key, **self._only_on(worker))
            self._copies[worker] = copy
        return copy

    def _source(self) -> Future:
        """Return a future of the task and its merge that a worker has."""
        finished = (copy for copy in self._copies.values() if copy.status == "finished")
        source = self._work if self._work is not None and self._work.status not in LOST else next(finished, None)
        if source is None:
            raise GoneError
        return source

    def _sent(self, value: Packed) -> Future:
        """Send a value to workers: a small one by the scheduler, which sends it again when a worker is lost."""
        if value.nbytes <= MOST_BY_SCHEDULER:
            return self._client.submit(identity, value, key=self._keys.send(), pure=False)
        return self._scattered(value, broadcast=True)

    def _scattered(self, value: State | Packed, **where: Any) -> Future:
        """Send a value to workers; raise `GoneError` if they are gone since they were last looked up."""
        key = str(self._keys.send())  # which dask reads as the tuple
        try:
            future = self._client.scatter({key: value}, direct=self._workers.near, timeout=TAKES, **where)[key]
        except (OSError, KeyError) as error:  # a scheduler looks a worker up by its address
            raise GoneError from error
        return future

    def _receive(self) -> None:
        """Wait for a message, note the progress and the results in all that have come, and give out more jobs."""
        idle = set[str]()
        try:
            message = self._messages.get(timeout=LISTEN)
            while True:
                if isinstance(message, str):
                    idle |= self._end(message)
                else:
                    self._report(*message)
                if stop_asked():  # sums are saved at once: a second signal ends the process
                    return
                message = self._messages.get_nowait()
        except queue.Empty:
            self._assign(idle)

    def _end(self, worker: str) -> set[str]:
        """Note the end of a worker's job; return the workers that may have something to do now."""
        future = self._running.get(worker)
        if future is None or not future.done():  # of an earlier job, which was cancelled
            return set()
        if future.status != "finished":
            return self._end_failed(worker, future)
        del self._running[worker]
        job = self._reduction.jobs[worker]
        idle = {worker, *(self._reduction.held[part] for part in job.inputs)}
        self._reduction.finish(worker)
        for part in job.inputs:
            del self._sums[part]
            self._checkpointed.forget(part)
        self._sums[job.result] = future
        self._checkpointed.save_if_due([job.result])  # first: a listener can end the run
        if job.span is not None:
            self._report(job.span, self._spans[job.span].stop)
        partner = self._reduction.tree.partner(job.result)
        return idle | ({self._reduction.held[partner[0]]} if partner and partner[0] in self._reduction.held else set())

    def _end_failed(self, worker: str, future: Future) -> set[str]:
        """Raise the error of a job, unless another worker can do it again."""
        if future.status == "cancelled" and self._is_work_lost():
            return self._send_work_again()
        if future.status == "cancelled" and worker in self._copies and self._copies[worker].status in LOST:
            del self._running[worker], self._copies[worker]  # the worker that it was copied from was lost
            self._reduction.give_back(worker)
            return {*self._workers.present()}
        error = future.exception() if future.status == "error" else None
        if not isinstance(error, UsedError):
            future.result()
        # A worker was lost while this job, or one that was cancelled too late, used its sum or another one.
        del self._running[worker]
        job, used = self._reduction.give_back(worker), str(error).split()
        self._forget([part for part, name in ((job.left, "left"), (job.right, "right")) if part and name in used])
        return {*self._workers.present()}

    def _is_work_lost(self) -> bool:
        """Return whether the last worker that had the task is gone."""
        if self._work is None and not self._copies:
            return False
        is_held = self._work is not None and self._work.status not in LOST
        return not is_held and all(copy.status != "finished" for copy in self._copies.values())

    def _send_work_again(self) -> set[str]:
        """Take all jobs back, which depend on the lost task; return the workers that can do them."""
        self._work = None
        self._client.cancel([*self._copies.values()], force=True)
        self._copies.clear()
        for worker in [*self._running]:
            self._take_back(worker)
        return {*self._workers.present()}

    def _report(self, number: int, at: int) -> None:
        """Send an event for each block of a span up to a position; only once for a block that is folded again."""
        since = self._reported[number]
        for block in self._task.blocks(Span(since, at)) if at > since else ():
            self._listener(self._task.counts(block))
        self._reported[number] = max(since, at)

    # -- saved sums

    def save(self) -> None:
        """Save what workers hold, within a time."""
        self._checkpointed.save_now(self._sums)

    def _stop_if_asked(self) -> None:
        if stop_asked():
            self.save()
        safe_point()

    def _holder(self, part: Node) -> str | None:
        """Return the worker that holds a sum; None if it is gone."""
        worker = self._reduction.held[part]
        return worker if self._is_there(worker) and self._sums[part].status == "finished" else None

    def _fetched(self, part: Node) -> A:
        """Fetch a sum from its worker.

        Raises
        ------
        GoneError
            If the worker is gone, or has begun to add to the sum.
        """
        future, worker = self._sums[part], self._holder(part)
        is_used = any(part in job.inputs for job in self._reduction.jobs.values())
        is_near = self._workers.near  # not in the thread of the client, which asks the scheduler for the workers

        async def gathered() -> State:
            state: State = await self._client.gather(future, direct=is_near, asynchronous=True)
            # A job takes what it uses before it changes it; so a sum that is still there was sent as it was.
            if is_used and not all((await self._client.run(is_whole, future.key, workers=[worker])).values()):
                raise GoneError
            return state

        if worker is None:
            raise GoneError
        call = asyncio.run_coroutine_threadsafe(gathered(), self._client.loop.asyncio_loop)
        while not wait([call], timeout=LISTEN).done:
            if self._holder(part) is None:
                call.cancel()
                raise GoneError
        return self._task.restore(call.result())

    def _restored_before(self) -> A | None:
        """Return the saved sum of the first spans that is no sum of the tree, and cut the tree to the rest.

        A process that added up all spans from left to right has saved it, for instance.
        """
        saved = self._checkpoint.load(0) if self._checkpoint is not None else None
        if saved is None or not self._is_whole(saved) or self._reduction.tree.has(Node(0, saved.last)):
            return None
        self._reduction = Reduction(Tree(saved.last + 1, len(self._spans)))
        self._report_resumed(Node(0, saved.last), saved.at)
        return self._task.restore(saved.state)

    def _restore(self) -> None:
        """Send saved sums to workers; the spans that are in none are to be folded."""
        while self._to_restore and (workers := self._workers.present()):
            first, last = self._to_restore.pop()
            saved = self._checkpoint.load(first) if self._checkpoint is not None else None
            part = Node(first, first if saved is None else saved.last)
            if saved is None or part.last > last or not self._is_whole(saved) or not self._reduction.tree.has(part):
                part = Node(first, first)
                self._reduction.fold([first])
            else:
                worker = min(workers, key=self._held_count)
                try:
                    self._sums[part] = self._scattered(saved.state, workers=[worker])
                except GoneError:
                    self._to_restore.append(Node(first, last))
                    return
                self._folders.setdefault(worker, self._workers.folders()[worker])
                self._reduction.hold(part, worker)
                self._checkpointed.note_saved(part)
                self._report_resumed(part, saved.at)
            del saved
            if part.last < last:
                self._to_restore.append(Node(part.last + 1, last))
            else:
                self._assign(workers)

    def _is_whole(self, saved: SavedPartial) -> bool:
        return saved.at == self._spans[saved.last].stop

    def _saved_within(self, number: int) -> SavedPartial | None:
        """Return the saved accumulator of a part of a span, as a stopped process leaves it."""
        saved = self._checkpoint.load(number) if self._checkpoint is not None else None
        if saved is None or saved.last != number or self._is_whole(saved):
            return None
        self._report_resumed(Node(number, number), saved.at)
        return saved

    def _report_resumed(self, part: Node, at: int) -> None:
        """Report the samples that a saved sum covers, once, and not as done."""
        spans = [number for number in range(part.first, part.last + 1) if number not in self._resumed]
        ends = {number: at if number == part.last else self._spans[number].stop for number in spans}
        counts = [
            self._task.counts(block)
            for number, end in ends.items()
            for block in self._task.blocks(Span(self._reported[number], end))
        ]
        self._reported = [max(ends.get(number, 0), position) for number, position in enumerate(self._reported)]
        self._resumed.update(spans)
        if counts:
            self._listener(Resumed(sum(count.samples for count in counts), sum(count.bytes for count in counts)))

    # -- workers that come and go

    def _look_at_workers(self) -> None:
        """Find workers that are gone, and new ones; raise the error of the cluster if no work is possible."""
        if self._client.status != "running" or self._client.generation != self._generation:
            raise self._ended()
        now = time.monotonic()
        if now - self._looked < LISTEN:
            return
        self._looked = now
        for worker in {*self._running, *self._reduction.held.values()}:
            if not self._is_there(worker):
                self._lose(worker)
        self._forget([part for part, future in self._sums.items() if future.status == "lost"])
        for worker in self._running.keys() & self._workers.paused_idle():
            self._take_back(worker)
        if self._is_work_lost():
            self._send_work_again()
        if self._copies and all(copy.status == "finished" for copy in self._copies.values()):
            self._work = None  # else dask would count its memory twice
        self._checkpointed.save_if_due(self._sums)
        present = self._workers.present()
        self._assign(present)
        # Until they have work: else a cluster that adapts stops new workers while they are being checked.
        waiting = self._reduction.waiting if present else len(self._spans)
        self._demand.ask(min(waiting, self._planned_workers - len(self._running)))
        self._last_present = now if present else self._last_present
        if problem := self._workers.exhausted(now - self._last_present):
            raise ClusterError(problem)
        if now - self._last_present > self._timeout:
            raise ClusterLostError(
                f"no worker has been there for {format_seconds(now - self._last_present)}; start some, and give the "
                "same command again."
            )

    def _is_there(self, worker: str) -> bool:
        """Return whether a worker still has what it was given; a paused one has."""
        return self._client.status == "running" and self._workers.folders().get(worker) == self._folders[worker]

    def _lose(self, worker: str) -> None:
        """Note that a worker is gone: its job, and the sums that it held and no other worker has, are lost."""
        self._copies.pop(worker, None)
        if (future := self._running.pop(worker, None)) is not None:
            self._client.cancel(future, force=True)
            job = self._reduction.give_back(worker)
            if job.span is not None:
                self._deaths[job.span] += 1
                if self._deaths[job.span] > dask.config.get("distributed.scheduler.allowed-failures"):
                    raise self._killing(self._deaths[job.span], worker)
        parts = self._reduction.held_by(worker)
        holders = self._client.who_has([self._sums[part] for part in parts]) if parts else {}
        for part in parts:  # a worker that is retired hands over what it holds
            others = [other for other in holders.get(self._sums[part].key, ()) if other in self._workers.folders()]
            if others:
                self._folders.setdefault(others[0], self._workers.folders()[others[0]])
                self._reduction.move(part, others[0])
            else:
                self._forget([part])
        del self._folders[worker]

    def _take_back(self, worker: str) -> None:
        """Take back the job of a worker."""
        self._client.cancel(self._running.pop(worker), force=True)
        self._reduction.give_back(worker)

    def _forget(self, parts: Iterable[Node]) -> None:
        """Take back the jobs that use lost sums; what these cover is restored or folded again."""
        for part in parts:
            for worker, job in list(self._reduction.jobs.items()):
                if part in job.inputs:
                    self._take_back(worker)
            self._reduction.lose(part)
            self._sums.pop(part)
            self._checkpointed.forget(part)
            self._to_restore.append(part)

    # -- errors

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of dask into one line with a remedy."""
        try:
            yield
        except KilledWorker as error:
            raise self._killing(error.allowed_failures + 1, error.last_worker.address) from None
        except (asyncio.CancelledError, CancelledError) as error:
            raise self._ended() from error
        except OSError as error:
            if self._client.status == "running":
                raise
            raise self._ended() from error

    def _killing(self, deaths: int, worker: str) -> ClusterError:
        return ClusterError(
            self._workers.last_exhausted()
            or f"{deaths} workers died over the same span, the last {worker}; mostly that is for want of memory: give "
            "workers more (--worker-memory, worker_memory), or the fit less (--memory, memory)."
        )

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
