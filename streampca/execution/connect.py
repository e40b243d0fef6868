"""Connection to clusters: processes of this machine, jobs of a batch system, Kubernetes, or a running scheduler."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import re
import shlex
import signal
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, Security, Status
from distributed.versions import VersionMismatchWarning

from .. import machine
from ..errors import ClusterError, RequestError, first_line
from ..events import Listener, Warned, silent
from ..signals import safe_point
from ..storage.disk import expanded
from ..units import format_seconds
from .cluster import DaskExecutor
from .cluster_options import CLUSTERS, FOLDERS, KUBERNETES, LISTS, LOCAL, ClusterOptions, kind_of
from .demand import demand_of, largest_number
from .workers import LOOK, limit_around

ENVIRONMENT = "distributed.nanny.pre-spawn-environ"  # key of dask's configuration
REACH = 10.0  # most seconds to reach a scheduler
CLOSING = 10.0  # most seconds for a batch system to cancel jobs
ROUNDING = 1.01  # factor on a job's memory, which dask writes with two decimals
ANY_PORT = "127.0.0.1:0"  # a free port: dask warns if a fixed one is in use


@contextmanager
def connected(
    options: ClusterOptions, budget: int | None = None, *, listener: Listener = silent
) -> Iterator[DaskExecutor]:
    """Start or find a cluster, and wait for its first worker; a cluster that was started is stopped at the end.

    Schedulers and workers that are started communicate by TLS, with credentials created for this run.

    Parameters
    ----------
    options : ClusterOptions
        Description of the cluster.
    budget : int, optional
        Bytes that a plan can use of each worker; by default processes of this machine share half of its memory.
    listener : callable
        Receiver of messages while the run waits.

    Raises
    ------
    ClusterError
        If it is not reached, jobs cannot be submitted, or no worker joins within the timeout.
    RequestError
        If the package that starts it is missing, or refuses its options.
    """
    with ExitStack() as stack:
        client = stack.enter_context(client_of(_address_or_cluster(options, budget, stack), options))
        if options.dashboard and not options.is_address:
            listener(Warned(f"anybody on this machine can read the dashboard at {client.dashboard_link}."))
        with joined(client, options, listener=listener) as executor:
            yield executor


def client_of(cluster: Any, options: ClusterOptions) -> Client:
    """Return a client of one of dask's clusters, or of a scheduler at an address.

    Raises
    ------
    ClusterError
        If it is not reached, or credentials are missing.
    """
    takes_credentials = isinstance(cluster, str) and cluster.startswith("tls://")
    if takes_credentials and Security().get_connection_args("client").get("ssl_context") is None:
        raise ClusterError(  # here, as dask would fail halfway through creating the client
            f"{cluster} takes credentials, and dask's configuration names none (distributed.comm.tls); name them "
            "there, or give a client that has them (cluster=distributed.Client(...))."
        )
    try:
        with warnings.catch_warnings():  # a table of several lines; `check_versions` compares those that matter
            warnings.simplefilter("ignore", VersionMismatchWarning)
            return Client(cluster, timeout=min(options.timeout, REACH), set_as_default=False)
    except (OSError, ValueError) as error:
        problem = f"cannot reach {options.cluster}: {first_line(error)}"
        raise ClusterError(f"{problem}; check the address, and that it runs.") from None


@contextmanager
def joined(client: Client, options: ClusterOptions, *, listener: Listener = silent) -> Iterator[DaskExecutor]:
    """Wait for the first worker of a cluster that a client is connected to; see `connected`.

    An adaptive cluster keeps at least one worker inside the block, also while this process computes.
    """
    if options.is_submitted:
        listener(Warned(f"waiting up to {format_seconds(options.timeout)} for the first worker of {options.cluster}."))
    group = f"wait-for-workers-{uuid.uuid4().hex}"
    # Jobs of a batch system can start hours apart: work begins with the first. Local processes start together.
    starts_together = not (options.is_submitted or options.is_address)
    with demand_of(client, partial(next, ((group, number) for number in count()))) as demand:
        demand.ask(1)
        try:
            _wait_for_workers(client, options.workers or 1 if starts_together else 1, options.timeout)
        except TimeoutError:
            problem = f"{options.cluster} had no worker within {format_seconds(options.timeout)}"
            jobs = f"; see what jobs {', '.join(_jobs(client))} wait for" if _jobs(client) else "; start workers"
            raise ClusterError(f"{problem}{jobs}, or wait longer (--cluster-timeout, cluster_timeout).") from None
        workers = options.workers or largest_number(client)
        executor = DaskExecutor(client, workers=workers, timeout=options.timeout, demand=demand)
        executor.check_versions()
        yield executor


def _wait_for_workers(client: Client, count: int, seconds: float) -> None:
    """Wait for `count` workers, or raise TimeoutError; a safe point every second."""
    until = time.monotonic() + seconds
    while True:
        safe_point()
        remaining = until - time.monotonic()
        try:
            client.wait_for_workers(count, timeout=min(LOOK, remaining))
        except TimeoutError:
            if remaining <= LOOK:
                raise
        else:
            return


def _jobs(client: Client) -> list[str]:
    """Return the numbers of the jobs of a batch system that a client's cluster has submitted."""
    jobs = getattr(client.cluster, "workers", None) or {}
    return sorted(str(job.job_id) for job in jobs.values() if getattr(job, "job_id", None))


def _address_or_cluster(options: ClusterOptions, budget: int | None, stack: ExitStack) -> Any:
    """Return the address or the started cluster that a client connects to."""
    kind = kind_of(options.cluster)
    if options.is_address:
        return options.cluster
    if not options.dashboard:  # without a dashboard, schedulers and workers would still serve HTTP routes
        stack.enter_context(
            dask.config.set({f"distributed.{role}.http.routes": () for role in ("scheduler", "worker")})
        )
    options = replace(options, cluster=kind)
    if kind == LOCAL:
        return stack.enter_context(_local_cluster(options, budget))
    return stack.enter_context(
        _kubernetes_cluster(options, budget) if kind == KUBERNETES else _batch_cluster(options, budget)
    )


def _security() -> Security:
    """Return credentials for this run, without which nobody can use its scheduler and workers."""
    try:
        return Security.temporary()
    except ImportError:
        raise ClusterError("a cluster needs cryptography; pip install 'streampca[cluster]'.") from None


def _local_cluster(options: ClusterOptions, budget: int | None) -> LocalCluster:
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker that runs its parent's script
        raise SystemExit(1)  # without a traceback, as the parent tells the reason
    workers = options.workers or machine.cores()
    limit = options.memory or limit_around(budget or machine.memory_limit()[0] // 2 // workers)
    # dask sets MALLOC_TRIM_THRESHOLD_, by which workers return every block above 128 KiB to the system at once; mapping
    # its pages again took a third of the time of a transform. The C library adapts its thresholds by itself; fixed
    # larger ones take more memory than plans count with, and dask passes them on to all children of this process.
    environment = {name: value for name, value in dask.config.get(ENVIRONMENT).items() if "MALLOC" not in name}
    with dask.config.set({ENVIRONMENT: environment}), _starting():
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=limit,
            security=_security(),
            scheduler_kwargs={"dashboard": options.dashboard},
            dashboard_address=ANY_PORT,
            preload=["streampca.execution.worker"],
            silence_logs=logging.ERROR,  # warnings are about cancelled spans and dead workers, which the fold handles
        )


@contextmanager
def _starting() -> Iterator[None]:
    """Turn the error of processes that do not start into one line."""
    try:
        yield
    except RuntimeError as error:
        raise ClusterError(
            f"processes of this machine did not start ({first_line(error)}); in a script put the call under "
            '`if __name__ == "__main__":`, as each process runs the rest of the script first.'
        ) from None


@contextmanager
def _batch_cluster(options: ClusterOptions, budget: int | None) -> Iterator[Any]:
    """Submit jobs to a batch system, each of which starts workers; cancel them at the end."""
    kind, cluster_class = options.cluster, _class_of(options.cluster)
    site = dask.config.get(f"jobqueue.{kind}")  # configuration by administrators or the user
    arguments: dict[str, Any] = {"processes": 1, "cores": site["cores"] or 1, **options.options}
    memory = options.memory or (limit_around(budget) if budget else None)
    if memory and "memory" not in arguments:
        arguments["memory"] = int(memory * ROUNDING) * arguments["processes"]
    elif not (site["memory"] or "memory" in arguments):
        raise RequestError(
            f"jobs of {kind} must have a memory; give --worker-memory (worker_memory), or --memory (memory)."
        )
    arguments |= {name: [arguments[name]] for name in LISTS if isinstance(arguments.get(name), str)}
    extra = arguments.get("worker_extra_args") or site["worker-extra-args"]
    arguments["worker_extra_args"] = ["--no-dashboard", "--dashboard-address", ANY_PORT, *extra]
    arguments["scheduler_options"] = site["scheduler-options"] | {
        "dashboard": options.dashboard,
        "dashboard_address": ANY_PORT,
    }
    for name in FOLDERS:
        if isinstance(arguments.get(name), str):
            arguments[name] = _unquoted_folder(expanded(arguments[name]), name)
    # Environment variables are expanded in the site's configuration only, not in options.
    shared = os.path.expandvars(expanded(site["shared-temp-directory"] or os.getcwd()))
    with _credentials(
        arguments.pop("shared_temp_directory", None) or _unquoted_folder(shared, "shared_temp_directory")
    ) as security:
        try:
            cluster = cluster_class(**arguments, security=security)
        except (TypeError, ValueError, OSError, RuntimeError) as error:
            problem = f"cluster {kind} refuses its options: {first_line(error)}"
            raise RequestError(f"{problem}; correct --cluster-option (cluster_options).") from None
        try:
            for _ in range(-(-(options.workers or 1) // arguments["processes"])):
                cluster.worker_spec.update(cluster.new_worker_spec())  # `scale` would submit them and hide errors
            _submit(cluster, options)
            yield cluster
        finally:
            with suppress(OSError):  # if jobs cannot be cancelled, they end without a scheduler
                cluster.close(timeout=CLOSING)


def _unquoted_folder(path: str, option: str) -> str:
    """Return the path of a folder; refuse one that needs quotes, as job scripts contain it unquoted."""
    if shlex.quote(path) != path:
        raise RequestError(f"jobs cannot be told of a folder called {path!r}; give another as {option}.")
    return path


@contextmanager
def _credentials(path: str) -> Iterator[Security]:
    """Write credentials for this run into a folder that only processes of this user can read, on all machines."""
    credentials = _security()
    try:
        folder = tempfile.TemporaryDirectory(prefix=".streampca-", dir=path, ignore_cleanup_errors=True)
    except OSError as error:
        problem = f"credentials cannot be written into {path}: {error.strerror}"
        raise ClusterError(f"{problem}; give a folder that workers see as shared_temp_directory.") from None
    with folder:
        files = {part: os.path.join(folder.name, part) for part in ("key", "cert")}
        for part, file in files.items():
            Path(file).write_text(getattr(credentials, f"tls_worker_{part}"))
        roles = {f"tls_{role}_{part}": files[part] for role in ("client", "scheduler", "worker") for part in files}
        yield Security(require_encryption=True, tls_ca_file=files["cert"], **roles)


def _submit(cluster: Any, options: ClusterOptions) -> None:
    """Submit the jobs of a cluster, and wait until the batch system has accepted them."""

    async def submitted() -> None:
        await cluster

    try:
        cluster.sync(submitted, callback_timeout=options.timeout)
    except (OSError, RuntimeError, ValueError) as error:
        for job in cluster._created:
            if job.job_id is None:
                job.status = Status.failed  # else dask waits for it when the cluster is closed
        raise ClusterError(f"{options.cluster} took no job: {_reason(error, options)}.") from None


def _reason(error: Exception, options: ClusterOptions) -> str:
    """Return the reason why a job was not submitted, and a remedy."""
    if isinstance(error, FileNotFoundError):
        return f"there is no command {error.filename} on this machine; start this where jobs are submitted"
    if isinstance(error, TimeoutError):
        waited = format_seconds(options.timeout)
        return (
            f"it did not answer within {waited}; try again later, or wait longer (--cluster-timeout, cluster_timeout)"
        )
    # The message of dask_jobqueue.
    parts = re.search(r"Exit code: (.*)\nCommand:\n(\S+).*\nstderr:\n(.*)", str(error), re.DOTALL)
    problem = f"{parts[2]} ended with {parts[1]}: {first_line(Exception(parts[3]))}" if parts else first_line(error)
    return f"{problem}; correct what it names in --cluster-option (cluster_options)"


@contextmanager
def _kubernetes_cluster(options: ClusterOptions, budget: int | None) -> Iterator[Any]:
    """Start a scheduler and workers by dask's Kubernetes operator, which cannot pass credentials to them."""
    memory = options.memory or (limit_around(budget) if budget else None)
    arguments: dict[str, Any] = {"n_workers": options.workers or 1, "quiet": True, **options.options}
    if memory and "resources" not in arguments:
        arguments["resources"] = {key: {"memory": str(memory)} for key in ("requests", "limits")}
    cluster_class = _class_of(KUBERNETES)
    try:
        cluster = cluster_class(**arguments)
    except Exception as error:  # raised by any of several packages
        cluster_class._instances.clear()  # at exit it would close a cluster that never started, and print a traceback
        remedy = "check that kubectl reaches it, and that dask's operator runs there"
        raise ClusterError(f"kubernetes starts no cluster: {first_line(error)}; {remedy}.") from None
    with cluster:
        yield cluster


def _class_of(kind: str) -> Any:
    """Return the class that starts a kind of cluster."""
    module, _, name = CLUSTERS[kind].rpartition(".")
    handler = signal.getsignal(signal.SIGINT)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, ValueError) as error:
        package = module.partition(".")[0].replace("_", "-")
        raise RequestError(f"cluster {kind} needs {package} ({first_line(error)}); pip install {package}.") from None
    finally:
        if signal.getsignal(signal.SIGINT) is not handler:  # dask_jobqueue installs its own on import
            signal.signal(signal.SIGINT, handler)
