"""Choice of the executor: this process, or a cluster that is found or started."""

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
        yield joined(cluster, ClusterOptions(cluster.scheduler.address), listener=listener)
        return
    if hasattr(cluster, "scheduler_address"):  # one of dask's clusters, with its own credentials
        options = ClusterOptions(cluster.scheduler_address)
        with client_of(cluster, options) as client:
            yield joined(client, options, listener=listener)
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
        return f"{options.cluster} starts the workers that it is asked for; give their number, workers (--workers)"
    if options.options and not options.is_submitted:
        return "cluster_options are passed to the jobs of a cluster; give cluster with them (slurm, pbs, ...)"
    if has_memory and options.is_address:
        return "worker_memory (--worker-memory) is for workers that are started; set it where this cluster is started"
    if has_memory and "memory" in options.options:
        return "worker_memory (--worker-memory) and memory in cluster_options are given; leave one out"
    return ""


def as_of(executor: Executor) -> AbstractContextManager[None]:
    """Let plans made inside use the number of cores of the executor's workers."""
    return nullcontext() if executor.cores is None else limit_cores(executor.cores)
