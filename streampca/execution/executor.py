"""Executors: this process, with spans one after another or in threads, or a cluster that is found or started."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any

from ..errors import ClusterError, RequestError, Stopped
from ..events import Listener, silent
from ..kinds.run import Run
from ..machine import limit_cores
from ..planning.blocks import Span
from ..signals import stops_delayed
from ..units import parse_bytes
from .cluster_options import LOCAL, ClusterOptions, checked_options, kind_of, with_address
from .compute import leave_thread, leave_thread_if_waiting
from .decoded_chunks import keeping
from .fold import STALLED, Merged, Partial, fold_partial, partials_of, warning_of_stalls
from .task import A, Checkpointer, Executor, Task
from .threads import share_blas_threads


@contextmanager
def executing(cluster: Any, budget: int | None = None, *, listener: Listener = silent) -> Iterator[Executor]:
    """Open an executor, and close a cluster that was started for it.

    Parameters
    ----------
    cluster : None, int, str, ClusterOptions, distributed.Client, one of dask's clusters, or Executor
        None for this process; a number of other processes of this machine; a scheduler's address, or "configured" for
        that of dask's configuration; or an existing cluster or executor.
    budget : int, optional
        Bytes that a plan can use of each worker.
    listener : callable
        Receiver of messages while the run waits.

    Raises
    ------
    ClusterError, RequestError
        If it cannot be reached, has no workers, or is not a cluster.
    """
    if cluster is None or hasattr(cluster, "fold"):
        yield cluster or LocalExecutor()
        return
    leave_thread()  # inside a task, this run waits for other tasks from here on
    try:
        from .connect import client_of, connected, joined
    except ImportError as error:
        raise ClusterError(f"a cluster needs {error.name}; pip install 'streampca[cluster]'.") from None
    # Clients and clusters are recognized by their methods, so that a run without them does not import dask.
    if hasattr(cluster, "wait_for_workers") and hasattr(cluster, "submit"):
        with joined(cluster, ClusterOptions(cluster.scheduler.address), listener=listener) as executor:
            yield executor
        return
    if hasattr(cluster, "scheduler_address"):  # one of dask's clusters, with its own credentials
        options = ClusterOptions(cluster.scheduler_address)
        with client_of(cluster, options) as client, joined(client, options, listener=listener) as executor:
            yield executor
        return
    with connected(with_address(_options_of(cluster)), budget, listener=listener) as executor:
        yield executor


def _options_of(cluster: Any) -> ClusterOptions:
    match cluster:
        case ClusterOptions():
            return cluster
        case str(address):
            return ClusterOptions(address)
        case int(workers) if workers >= 1 and not isinstance(workers, bool):
            return ClusterOptions(workers=workers)
    raise RequestError(
        f"cluster = {cluster!r}: give a kind of cluster such as 'slurm', a scheduler's address, a distributed.Client "
        "or a cluster of dask's; workers=N starts processes of this machine."
    )


def cluster_of(run: Run) -> Any:
    """Return the argument of `executing`: None for this process, an existing cluster or client, or a description.

    Raises
    ------
    RequestError
        If options of the run conflict.
    """
    options_of_start = [name for name in ("cluster_options", "worker_memory", "dashboard") if getattr(run, name)]
    if run.cluster is None and run.workers is None:
        options_of_start += ["network"] if run.network is not None else []
        if options_of_start:
            raise RequestError(
                f"{options_of_start[0]} is an option of clusters; give workers or cluster with it, or leave it out."
            )
        return None
    if run.cluster is not None and not isinstance(run.cluster, str):
        if run.workers is not None or options_of_start:
            name = options_of_start[0] if options_of_start else "workers"
            raise RequestError(f"{name} is given, and the cluster is there already, with its own; leave it out.")
        return run.cluster
    options = ClusterOptions(
        kind_of(run.cluster or LOCAL),
        checked_options(run.cluster_options or {}),
        run.workers,
        parse_bytes(run.worker_memory),
        float(run.cluster_timeout),
        run.dashboard,
    )
    if problem := _conflict(options, has_memory=run.worker_memory is not None):
        raise RequestError(f"{problem}.")
    return options


def _conflict(options: ClusterOptions, *, has_memory: bool) -> str:
    """Return a conflict in the description of a cluster, as the start of a message; empty if there is none."""
    options = with_address(options)
    if options.is_submitted and options.workers is None:
        return f"{options.cluster} starts the workers that it is asked for; give their number, --workers (workers)"
    if options.options and not options.is_submitted:
        return "cluster_options are passed to the jobs of a cluster; give cluster with them (slurm, pbs, ...)"
    if has_memory and options.is_address:
        return "--worker-memory (worker_memory) is for workers that are started; set it where this cluster is started"
    if has_memory and "memory" in options.options:
        return (
            "--worker-memory (worker_memory) and memory in --cluster-option (cluster_options) are given; leave one out"
        )
    return ""


def planning_for(executor: Executor) -> AbstractContextManager[None]:
    """Let plans made inside use the number of cores of the executor's workers."""
    return nullcontext() if executor.cores is None else limit_cores(executor.cores)


class LocalExecutor:
    """Runs as many spans at a time as the plan has threads; blocks are read ahead in further threads.

    With one thread, spans are run in order in the caller's: the specification of all executors.

    Parameters
    ----------
    stalled : float, default=60
        Seconds without a finished block after which listeners are warned.
    """

    workers = 1
    memory: int | None = None
    cores: int | None = None

    def __init__(self, *, stalled: float = STALLED) -> None:
        self._stalled = stalled

    def check(
        self, read: Callable[[], object], memory: int, listener: Listener, *, packages: Sequence[str] = ()
    ) -> None:
        """Refuse nothing: what this process has, a plan knows."""

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
        """See `Executor.fold`; inside a task of a cluster whose blocks depend on futures, its thread is released."""
        leave_thread_if_waiting(task)
        active: dict[int, Partial[A]] = {}
        waiting: deque[tuple[Partial[A], Future[A]]] = deque()
        merged = Merged(merge, checkpoint)
        with (
            warning_of_stalls(listener, lambda: _doing(list(active.values()), spans), self._stalled) as tell,
            nullcontext() if checkpoint is None else stops_delayed(),
            share_blas_threads(threads),
        ):
            partials = partials_of(task, spans, checkpoint, tell)
            fold = partial(fold_partial, task, spans=spans, ahead=ahead, listener=tell, checkpoint=checkpoint)
            try:
                if min(threads, len(spans)) > 1:
                    _fold_in_threads(fold, partials, merged, threads, active, waiting)
                else:
                    with keeping():  # chunks are cached across spans
                        for each in partials:
                            active[each.first] = each
                            merged.add(each, fold(each))
                            del active[each.first]
            except Stopped:
                merged.save_stopped(each for each, _ in waiting)
                raise
        return task.start() if merged.value is None else merged.value


def _fold_in_threads(
    fold: Callable[..., A],
    partials: Iterable[Partial[A]],
    merged: Merged[A],
    threads: int,
    active: dict[int, Partial[A]],
    waiting: deque[tuple[Partial[A], Future[A]]],
) -> None:
    """Fold partials, some at a time, and merge them in order; where one fails the others end at their next block.

    Those `active`, and those `waiting` to be merged, are left there where one fails.
    """
    failed = threading.Event()

    def end_if_failed() -> None:
        if failed.is_set():
            raise _EndedError

    def folded(partial: Partial[A]) -> A:
        active[partial.first] = partial
        with _setting_on_error(failed):
            accumulator = fold(partial, after_block=end_if_failed)
        del active[partial.first]
        return accumulator

    def merge_next() -> None:
        partial, future = waiting[0]
        accumulator = future.result()
        waiting.popleft()  # only now: a partial whose future was stopped is saved by the caller
        merged.add(partial, accumulator)

    try:
        with ThreadPoolExecutor(threads) as pool, _setting_on_error(failed):
            for each in partials:
                waiting.append((each, pool.submit(copy_context().run, folded, each)))
                if len(waiting) == threads:
                    merge_next()
            while waiting:
                merge_next()
    except BaseException as error:
        first = _first_error(error, [future for _, future in waiting])
        if first is error:
            raise
        raise first from None


def _doing(partials: Sequence[Partial[A]], spans: Sequence[Span]) -> str:
    """Say what partials that are folded now wait for."""
    doing = [f"the block from {each.at} on to be {'absorbed' if each.is_fed else 'read'}" for each in partials]
    return f"{' and '.join(doing)} (of {spans[-1].stop})" if doing else "results to be merged or saved"


class _EndedError(Exception):
    """Another thread has failed or stopped: this one ends before its next block."""


@contextmanager
def _setting_on_error(event: threading.Event) -> Iterator[None]:
    """Set an event when anything goes wrong: other threads end at their next block."""
    try:
        yield
    except BaseException:
        event.set()
        raise


def _first_error(error: BaseException, futures: Iterable[Future[A]]) -> BaseException:
    """Return the first error by position if this one was raised in a thread, which another may have ended."""
    raised = [found for future in futures if (found := future.exception()) is not None]
    return next((found for found in raised if not isinstance(found, _EndedError)), error) if error in raised else error
