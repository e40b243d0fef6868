"""Computation of dask collections inside tasks of a cluster, without a task that waits for another in its thread.

By default dask computes a collection that a task reads by further tasks of the same cluster. The task's own thread is
released meanwhile, but blocks are read ahead in other threads, which are not: a full cluster would deadlock.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any


def compute(collection: Any, *, client: Any = None, default: str | None = None) -> Any:
    """Return the values of a dask collection, computed in this thread if it works for a task of a cluster.

    Parameters
    ----------
    collection : dask collection
        Collection whose graph is culled before it is computed.
    client : distributed.Client, optional
        Client of its futures, see `client_of`; not used in a task, which has its worker's client.
    default : str, optional
        Name of dask's scheduler to use if neither its configuration nor a client chooses one.
    """
    import dask

    if _in_task():
        with _nested_in_thread():
            return collection.compute(scheduler=_in_thread)
    scheduler = client if client is not None or dask.base.get_scheduler() else default
    return collection.compute() if scheduler is None else collection.compute(scheduler=scheduler)


def client_of(collection: Any) -> Any:
    """Return the client whose futures a collection's graph holds, possibly not dask's default; None without futures.

    Raises
    ------
    CancelledError
        If the client has cancelled them.
    """
    future = _future_in(list(collection.__dask_graph__().values())) if "distributed" in sys.modules else None
    if future is None or future.client is None:
        return None
    if future.cancelled():
        raise CancelledError
    return future.client


def _in_task() -> bool:
    """Return whether this thread runs a task of a cluster, or reads for a thread that does."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def _in_thread(graph: Any, keys: Any, **options: Any) -> Any:
    """Compute keys of a graph in this thread, or on the cluster if it holds futures: such a task has seceded."""
    from dask.local import get_sync

    tasks = dict(graph.__dask_graph__() if hasattr(graph, "__dask_graph__") else graph)
    needed = set().union(*(getattr(task, "dependencies", ()) for task in tasks.values()))
    if needed <= tasks.keys() and _future_in(list(tasks.values())) is None:
        return get_sync(tasks, keys, **options)
    from distributed import get_client

    return get_client().get(graph, keys, **options)


def _future_in(nodes: list[Any]) -> Any:
    """Return a future in nodes of a graph, or in their tasks; None if there is none."""
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
    """Release the thread of a task to its worker if the task uses a value that holds futures.

    Blocks are read ahead in other threads, which cannot release the task's own thread. So it is released before they
    start, and not reacquired; dask's `worker_client` would reacquire it after each use.
    """
    if _in_task():
        from .packing import waits

        if waits(value):
            leave_thread()


def leave_thread() -> None:
    """Release the thread of a task to its worker, for tasks that this one is going to wait for."""
    distributed = sys.modules.get("distributed")
    # Errors: outside a task, in a thread that reads for one, or when the thread was released before.
    with suppress(ValueError, AttributeError, KeyError):
        if distributed is not None:
            distributed.secede()


@contextmanager
def held(lock: threading.Lock) -> Iterator[None]:
    """Hold a lock; a task that has to wait for it releases its thread first, as the holder can wait for other tasks."""
    if not lock.acquire(blocking=False):
        leave_thread()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _ThreadCount:
    """Number of threads that compute inside tasks now, and dask's configuration for them."""

    def __init__(self) -> None:
        self.lock, self.threads = threading.Lock(), 0
        self.config: Any = None


_nested = _ThreadCount()


@contextmanager
def _nested_in_thread() -> Iterator[None]:
    """Make computations inside the functions of a graph run in their thread as well.

    The configuration belongs to the process. If each of two overlapping threads restored the configuration that it saw,
    the last one would restore the setting of the other for good; so the first sets it and the last resets it.
    """
    import dask

    with _nested.lock:
        if not _nested.threads:
            _nested.config = dask.config.set(scheduler=_in_thread)
        _nested.threads += 1
    try:
        yield
    finally:
        with _nested.lock:
            _nested.threads -= 1
            if not _nested.threads:
                _nested.config.__exit__(None, None, None)
