"""Choose who runs a task: this process, or a cluster that is found or started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..errors import ClusterError, RequestError
from ..events import Listener, silent
from ..kinds.run import Run
from ..machine import limit_cores
from ..units import parse_bytes
from .cluster_options import LOCAL, ClusterOptions, checked_options, kind_of, with_address
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
        f"cluster = {cluster!r}: give a kind of cluster such as 'slurm', a scheduler's address, a distributed.Client "
        "or a cluster of dask's; workers=N starts processes of this machine."
    )


def cluster_of(run: Run) -> Any:
    """Return what `executing` takes: None for this process, a cluster or client as given, or its description.

    Raises
    ------
    RequestError
        If options of the run do not go together.
    """
    starting = {name: getattr(run, name) for name in ("cluster_options", "worker_memory", "dashboard")}
    given = [name for name, value in starting.items() if value]
    if run.cluster is None and run.workers is None:
        if given:
            raise RequestError(
                f"{given[0]} is an option of clusters; give workers or cluster with it, or leave it out."
            )
        return None
    if run.cluster is not None and not isinstance(run.cluster, str):
        if run.workers is not None or given:
            name = given[0] if given else "workers"
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
    """Return what does not go together in the description of a cluster; empty if all does."""
    options = with_address(options)
    if options.is_submitted and options.workers is None:
        return f"{options.cluster} starts the workers that it is asked for; give their number, workers (--workers)"
    if options.options and not options.is_submitted:
        return "cluster_options are passed to the jobs of a cluster; give cluster with them (slurm, pbs, ...)"
    if has_memory and options.is_address:
        return "worker_memory (--worker-memory) is for workers that are started; set it where this cluster is started"
    if has_memory and "memory" in options.options:
        return "worker_memory (--worker-memory) and memory in cluster_options are given; leave one out"
    return ""


def as_of(executor: Executor) -> AbstractContextManager[None]:
    """Plan for the cores of those who run it."""
    return nullcontext() if executor.cores is None else limit_cores(executor.cores)
