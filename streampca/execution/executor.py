"""Choose who runs a task: this process, or a cluster that is found or started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..errors import ClusterError, RequestError
from ..events import Listener, silent
from ..machine import limit_cores
from .cluster_options import ClusterOptions, with_address
from .compute import leave_thread
from .local import LocalExecutor
from .task import Executor


@contextmanager
def executing(cluster: Any, budget: int | None = None, *, listener: Listener = silent) -> Iterator[Executor]:
    """Open an executor, and close what was started for it.

    Parameters
    ----------
    cluster : None, int, str, ClusterOptions, distributed.Client, a cluster of dask's, or Executor
        This process; so many other processes of this machine; a scheduler's address, or "configured" for that of dask's
        configuration; or a cluster or an executor that is there already.
    budget : int, optional
        Bytes that a plan may use of each worker.
    listener : callable
        Told what is waited for.

    Raises
    ------
    ClusterError, RequestError
        If it cannot be reached, has no workers, or is none.
    """
    if cluster is None or hasattr(cluster, "fold"):
        yield cluster or LocalExecutor()
        return
    leave_thread()  # of a task, which waits for others from here on
    try:
        from .connect import client_of, connected, joined
    except ImportError as error:
        raise ClusterError(f"a cluster needs {error.name}; pip install 'streampca[cluster]'.") from None
    if hasattr(cluster, "wait_for_workers") and hasattr(cluster, "submit"):
        yield joined(cluster, ClusterOptions(cluster.scheduler.address), listener=listener)
        return
    if hasattr(cluster, "scheduler_address"):  # one of dask's, which has its own credentials
        options = ClusterOptions(cluster.scheduler_address)
        with client_of(cluster, options) as client:
            yield joined(client, options, listener=listener)
        return
    with connected(with_address(_wanted(cluster)), budget, listener=listener) as executor:
        yield executor


def _wanted(cluster: Any) -> ClusterOptions:
    match cluster:
        case ClusterOptions() as wanted:
            return wanted
        case str(address):
            return ClusterOptions(address)
        case int(workers) if workers >= 1 and not isinstance(workers, bool):
            return ClusterOptions(workers=workers)
    raise RequestError(
        f"cluster={cluster!r} is not a number of processes, a scheduler's address or a distributed.Client; give one."
    )


def as_of(executor: Executor) -> AbstractContextManager[None]:
    """Plan for the cores of those who run it."""
    return nullcontext() if executor.cores is None else limit_cores(executor.cores)
