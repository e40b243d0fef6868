"""Computes dask collections where they are read, so that no task of a cluster waits for another in a worker's thread.

By default dask computes what a task reads by further tasks of the same cluster. The task's own thread leaves its place
to them meanwhile, but blocks are read ahead in other threads: on a full cluster everything would wait for everything.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any


def compute(collection: Any, *, client: Any = None, default: str | None = None) -> Any:
    """Return the values of a dask collection, computed in this thread where it works for a task of a cluster.

    Parameters
    ----------
    collection : dask collection
        Of a graph that is culled before it is computed.
    client : distributed.Client, optional
        That holds its futures, as `client_of` finds it; not used in a task, which asks its worker's own client.
    default : str, optional
        Scheduler of dask's to use where neither its configuration nor a client chooses one.
    """
    import dask

    if _in_task():
        with _nested_in_thread():
            return collection.compute(scheduler=_in_thread)
    chosen = client if client is not None or dask.base.get_scheduler() else default
    return collection.compute() if chosen is None else collection.compute(scheduler=chosen)


def client_of(collection: Any) -> Any:
    """Return the client whose futures a collection's graph holds, which need not be dask's default; None without.

    Raises
    ------
    CancelledError
        If it has forgotten them.
    """
    future = _future_in(list(collection.__dask_graph__().values())) if "distributed" in sys.modules else None
    if future is None or future.client is None:
        return None
    if future.cancelled():
        raise CancelledError
    return future.client


def _in_task() -> bool:
    """Return whether this thread, or the one that it works for, runs a task of a cluster."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def _in_thread(graph: Any, keys: Any, **options: Any) -> Any:
    """Compute keys of a graph in this thread; a graph that holds futures needs the cluster: its task has seceded."""
    from dask.local import get_sync

    tasks = dict(graph.__dask_graph__() if hasattr(graph, "__dask_graph__") else graph)
    needed = set().union(*(getattr(task, "dependencies", ()) for task in tasks.values()))
    if needed <= tasks.keys() and _future_in(list(tasks.values())) is None:
        return get_sync(tasks, keys, **options)
    from distributed import get_client

    return get_client().get(graph, keys, **options)


def _future_in(nodes: list[Any]) -> Any:
    """Return a future that nodes of a graph hold, inside tasks too, or None."""
    from distributed import Future

    while nodes:
        node = nodes.pop()
        if isinstance(node, Future):
            return node
        if isinstance(node, tuple | list | set):
            nodes.extend(node)
        elif isinstance(node, dict):
            nodes.extend(node.values())
        elif hasattr(node, "dependencies"):  # a task of dask's
            nodes.extend((getattr(node, "args", ()), getattr(node, "kwargs", {})))
    return None


def leave_thread_if_waiting(value: Any) -> None:
    """Give the thread of a task that uses a value back to its worker, where the value is made of futures.

    Reading ahead is done by other threads, which cannot leave for the task's own one: it leaves before they start, and
    does not come back, as dask's `worker_client` has it do after each use.
    """
    if _in_task():
        from .packing import waits

        if waits(value):
            leave_thread()


def leave_thread() -> None:
    """Give the thread that a task holds back to its worker, for tasks that this one is going to wait for."""
    distributed = sys.modules.get("distributed")
    # In no task, in a thread that reads for one, or after it has left before.
    with suppress(ValueError, AttributeError, KeyError):
        if distributed is not None:
            distributed.secede()


@contextmanager
def held(lock: threading.Lock) -> Iterator[None]:
    """Hold a lock; a task that has to wait for it, perhaps for one that waits for tasks, leaves its thread first."""
    if not lock.acquire(blocking=False):
        leave_thread()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Setting:
    """The number of threads that compute in tasks now, and dask's configuration for them."""

    def __init__(self) -> None:
        self.lock, self.threads = threading.Lock(), 0
        self.config: Any = None


_setting = _Setting()


@contextmanager
def _nested_in_thread() -> Iterator[None]:
    """Have what functions of a graph compute themselves computed in their thread as well.

    The configuration belongs to the process: of two threads that each restored what they had found, the one that ends
    last would leave the setting of the other for good.
    """
    import dask

    with _setting.lock:
        if not _setting.threads:
            _setting.config = dask.config.set(scheduler=_in_thread)
        _setting.threads += 1
    try:
        yield
    finally:
        with _setting.lock:
            _setting.threads -= 1
            if not _setting.threads:
                _setting.config.__exit__(None, None, None)
