"""Clusters, started or found: processes of this machine, a scheduler by its address, or any class by its name."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
from distributed import Client, LocalCluster

from .. import machine
from ..errors import ClusterError, RequestError, first_line
from ..events import Listener, Warned, silent
from ..units import format_seconds
from .cluster import DaskExecutor
from .cluster_options import ClusterOptions
from .workers import limit_around

ENVIRONMENT = "distributed.nanny.pre-spawn-environ"  # key of dask's configuration
REACH = 30.0  # seconds to reach a scheduler


@contextmanager
def connected(
    options: ClusterOptions, budget: int | None = None, *, listener: Listener = silent
) -> Iterator[DaskExecutor]:
    """Start or find a cluster, and wait for its first worker; what was started is stopped afterwards.

    Parameters
    ----------
    options : ClusterOptions
        Which.
    budget : int, optional
        Bytes that a plan may use of each worker; of processes of this machine, half of its memory together by default.
    listener : callable
        Told what is waited for.

    Raises
    ------
    ClusterError
        If there is none, or no worker within the time for that.
    RequestError
        If a class cannot be imported, or does not take its options.
    """
    with ExitStack() as stack:
        found, name = _made(options, budget, stack), options.address or options.cluster or "a local cluster"
        try:
            client = stack.enter_context(Client(found, timeout=min(options.waits, REACH), set_as_default=False))
        except (OSError, ValueError) as error:
            problem = f"cannot reach {name}: {first_line(error)}"
            raise ClusterError(f"{problem}; check the address, and that it runs.") from None
        yield joined(client, name, options, listener=listener)


def joined(client: Client, name: str, options: ClusterOptions, *, listener: Listener = silent) -> DaskExecutor:
    """Wait for the first worker of a cluster that a client is connected to; see `connected`."""
    first = 1 if options.address or options.cluster else options.workers or 1
    if options.cluster:
        listener(Warned(f"waiting up to {format_seconds(options.waits)} for the first worker of {name}."))
    try:
        client.wait_for_workers(first, timeout=options.waits)
    except TimeoutError:
        problem = f"{name} had no worker within {format_seconds(options.waits)}"
        raise ClusterError(f"{problem}; start workers, or wait longer (execution.wait).") from None
    executor = DaskExecutor(client, workers=options.workers, timeout=options.waits)
    executor.check_versions()
    return executor


def _made(options: ClusterOptions, budget: int | None, stack: ExitStack) -> Any:
    """Return the address or the cluster that a client connects to."""
    if options.address:
        return options.address
    if options.cluster is None:
        return stack.enter_context(_local(options, budget))
    cluster = stack.enter_context(_called(options.cluster, options.options))
    if options.workers:
        cluster.scale(options.workers)
    return cluster


def _local(options: ClusterOptions, budget: int | None) -> LocalCluster:
    workers = options.workers or machine.cores()
    limit = options.memory or limit_around(budget or machine.memory_limit()[0] // 2 // workers)
    # dask has its workers return every block of more than 128 KiB to the system at once, and fetching its pages anew
    # took a third of the time of a transform. The C library is left to find its thresholds as it does in every process:
    # fixed ones as large take more memory than plans count with, and dask hands them on to all children of this one.
    environment = {name: value for name, value in dask.config.get(ENVIRONMENT).items() if "MALLOC" not in name}
    with dask.config.set({ENVIRONMENT: environment}):
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=limit,
            dashboard_address="127.0.0.1:0",  # of any port: one that is taken is warned of
            preload=["streampca.execution.worker"],
            silence_logs=logging.ERROR,  # warnings are of spans that are cancelled and workers that die
        )


def _called(name: str, options: Mapping[str, Any]) -> Any:
    """Make what a class of a dotted name makes."""
    module, _, kind = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), kind)
    except (ImportError, AttributeError, ValueError) as error:
        raise RequestError(
            f"cluster {name!r} cannot be imported ({first_line(error)}); install its package, or correct the name, "
            "such as dask_jobqueue.SLURMCluster."
        ) from None
    try:
        return found(**options)
    except (TypeError, ValueError) as error:
        problem = f"cluster {name} refuses its options: {first_line(error)}"
        raise RequestError(f"{problem}; correct execution.options.") from None
