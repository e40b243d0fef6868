"""Clusters, started or found: processes of this machine, jobs of a batch system, or a scheduler by its address."""

from __future__ import annotations

import importlib
import logging
import os
import re
import shlex
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
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
from .workers import LOOK, limit_around

ENVIRONMENT = "distributed.nanny.pre-spawn-environ"  # key of dask's configuration
REACH = 10.0  # seconds to reach a scheduler
CLOSING = 10.0  # seconds for a batch system to take jobs back
ROUNDING = 1.01  # more memory than a job needs: dask writes it with two decimals
ANY_PORT = "127.0.0.1:0"  # one that is taken is warned of


@contextmanager
def connected(
    options: ClusterOptions, budget: int | None = None, *, listener: Listener = silent
) -> Iterator[DaskExecutor]:
    """Start or find a cluster, and wait for its first worker; what was started is stopped afterwards.

    Schedulers and workers that are started talk by TLS, with credentials made for this run alone.

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
        If there is none, jobs cannot be submitted, or no worker comes within the time for that.
    RequestError
        If the package that starts it is missing, or refuses its options.
    """
    with ExitStack() as stack:
        client = stack.enter_context(client_of(_made(options, budget, stack), options))
        if options.dashboard and not options.is_address:
            listener(Warned(f"anybody on this machine can read the dashboard at {client.dashboard_link}."))
        yield joined(client, options, listener=listener)


def client_of(cluster: Any, options: ClusterOptions) -> Client:
    """Return a client of a cluster of dask's, or of a scheduler by its address.

    Raises
    ------
    ClusterError
        If it is not reached, or credentials are missing.
    """
    takes_credentials = isinstance(cluster, str) and cluster.startswith("tls://")
    if takes_credentials and Security().get_connection_args("client").get("ssl_context") is None:
        raise ClusterError(  # before a client is left half made
            f"{cluster} takes credentials, and dask's configuration names none (distributed.comm.tls); name them "
            "there, or give a client that has them (cluster=distributed.Client(...))."
        )
    try:
        with warnings.catch_warnings():  # a table of several lines; versions that matter are compared by `check`
            warnings.simplefilter("ignore", VersionMismatchWarning)
            return Client(cluster, timeout=min(options.timeout, REACH), set_as_default=False)
    except (OSError, ValueError) as error:
        problem = f"cannot reach {options.cluster}: {first_line(error)}"
        raise ClusterError(f"{problem}; check the address, and that it runs.") from None


def joined(client: Client, options: ClusterOptions, *, listener: Listener = silent) -> DaskExecutor:
    """Wait for the first worker of a cluster that a client is connected to; see `connected`."""
    local = not (options.is_submitted or options.is_address)
    if options.is_submitted:
        listener(Warned(f"waiting up to {format_seconds(options.timeout)} for the first worker of {options.cluster}."))
    try:
        _wait_for_workers(client, options.workers or 1 if local else 1, options.timeout)
    except TimeoutError:
        waited = f"{options.cluster} had no worker within {format_seconds(options.timeout)}"
        jobs = f"; see what jobs {', '.join(_jobs(client))} wait for" if _jobs(client) else "; start workers"
        raise ClusterError(f"{waited}{jobs}, or wait longer (--cluster-timeout).") from None
    executor = DaskExecutor(client, workers=options.workers, timeout=options.timeout)
    executor.check_versions()
    return executor


def _wait_for_workers(client: Client, count: int, seconds: float) -> None:
    """Wait until there are so many workers, or raise TimeoutError; a safe point every second."""
    until = time.monotonic() + seconds
    while True:
        safe_point()
        left = until - time.monotonic()
        try:
            client.wait_for_workers(count, timeout=min(LOOK, left))
        except TimeoutError:
            if left <= LOOK:
                raise
        else:
            return


def _jobs(client: Client) -> list[str]:
    """Return the numbers of the jobs of a batch system that a client's cluster has submitted."""
    jobs = getattr(client.cluster, "workers", None) or {}
    return sorted(str(job.job_id) for job in jobs.values() if getattr(job, "job_id", None))


def _made(options: ClusterOptions, budget: int | None, stack: ExitStack) -> Any:
    """Return the address or the cluster that a client connects to."""
    kind = kind_of(options.cluster)
    if options.is_address:
        return options.cluster
    if not options.dashboard:  # without one, schedulers and workers still answer on the web
        stack.enter_context(dask.config.set({f"distributed.{who}.http.routes": () for who in ("scheduler", "worker")}))
    options = replace(options, cluster=kind)
    if kind == LOCAL:
        return stack.enter_context(_local(options, budget))
    return stack.enter_context(_kubernetes(options, budget) if kind == KUBERNETES else _batch(options, budget))


def _security() -> Security:
    """Return credentials for this run: without them nobody can use its scheduler or its workers."""
    try:
        return Security.temporary()
    except ImportError:
        raise ClusterError("a cluster needs cryptography; pip install 'streampca[cluster]'.") from None


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
            security=_security(),
            scheduler_kwargs={"dashboard": options.dashboard},
            dashboard_address=ANY_PORT,
            preload=["streampca.execution.worker"],
            silence_logs=logging.ERROR,  # warnings are of spans that are cancelled and workers that die
        )


@contextmanager
def _batch(options: ClusterOptions, budget: int | None) -> Iterator[Any]:
    """Submit jobs to a batch system, each of which starts workers; they are taken back afterwards."""
    kind, started_by = options.cluster, _class_of(options.cluster)
    site = dask.config.get(f"jobqueue.{kind}")  # of its administrators, or its user's own
    given: dict[str, Any] = {"processes": 1, "cores": site["cores"] or 1, **options.options}
    memory = options.memory or (limit_around(budget) if budget else None)
    if memory and "memory" not in given:
        given["memory"] = int(memory * ROUNDING) * given["processes"]
    elif not (site["memory"] or "memory" in given):
        raise RequestError(f"jobs of {kind} must have a memory; give --worker-memory, or a budget (--memory).")
    given |= {name: [given[name]] for name in LISTS if isinstance(given.get(name), str)}
    extra = given.get("worker_extra_args") or site["worker-extra-args"]
    given["worker_extra_args"] = ["--no-dashboard", "--dashboard-address", ANY_PORT, *extra]
    given["scheduler_options"] = site["scheduler-options"] | {
        "dashboard": options.dashboard,
        "dashboard_address": ANY_PORT,
    }
    for name in FOLDERS:
        if isinstance(given.get(name), str):
            given[name] = _told(expanded(given[name]), name)
    # Variables are replaced in what the site's administrators give only.
    shared = os.path.expandvars(expanded(site["shared-temp-directory"] or os.getcwd()))
    with _credentials(given.pop("shared_temp_directory", None) or _told(shared, "shared_temp_directory")) as security:
        try:
            cluster = started_by(**given, security=security)
        except (TypeError, ValueError, OSError, RuntimeError) as error:
            problem = f"cluster {kind} refuses its options: {first_line(error)}"
            raise RequestError(f"{problem}; correct cluster_options (--cluster-option).") from None
        try:
            for _ in range(-(-(options.workers or 1) // given["processes"])):
                cluster.worker_spec.update(cluster.new_worker_spec())  # `scale` would submit them unheard
            _submit(cluster, options)
            yield cluster
        finally:
            with suppress(OSError):  # the command that takes jobs back fails; they end without a scheduler
                cluster.close(timeout=CLOSING)


def _told(path: str, option: str) -> str:
    """Return the path of a folder, or refuse one that job scripts, which name it unquoted, cannot hold."""
    if shlex.quote(path) != path:
        raise RequestError(f"jobs cannot be told of a folder called {path!r}; give another as {option}.")
    return path


@contextmanager
def _credentials(path: str) -> Iterator[Security]:
    """Write credentials for this run into a folder that only its user's processes, on all machines, can read."""
    made = _security()
    try:
        folder = tempfile.TemporaryDirectory(prefix=".streampca-", dir=path, ignore_cleanup_errors=True)
    except OSError as error:
        problem = f"credentials cannot be written into {path}: {error.strerror}"
        raise ClusterError(f"{problem}; give a folder that workers see as shared_temp_directory.") from None
    with folder:
        files = {what: os.path.join(folder.name, what) for what in ("key", "cert")}
        for what, file in files.items():
            Path(file).write_text(getattr(made, f"tls_worker_{what}"))
        roles = {f"tls_{role}_{what}": files[what] for role in ("client", "scheduler", "worker") for what in files}
        yield Security(require_encryption=True, tls_ca_file=files["cert"], **roles)


def _submit(cluster: Any, options: ClusterOptions) -> None:
    """Submit the jobs of a cluster, and wait until the batch system has taken them."""

    async def submitted() -> None:
        await cluster

    try:
        cluster.sync(submitted, callback_timeout=options.timeout)
    except (OSError, RuntimeError, ValueError) as error:
        for job in cluster._created:
            if job.job_id is None:
                job.status = Status.failed  # dask insists on it when the cluster is closed
        raise ClusterError(f"{options.cluster} took no job: {_reason(error, options)}.") from None


def _reason(error: Exception, options: ClusterOptions) -> str:
    """Say why a job was not submitted, and what to do."""
    if isinstance(error, FileNotFoundError):
        return f"there is no command {error.filename} on this machine; start this where jobs are submitted"
    if isinstance(error, TimeoutError):
        waited = format_seconds(options.timeout)
        return f"it did not answer within {waited}; try again later, or wait longer (--cluster-timeout)"
    said = re.search(r"Exit code: (.*)\nCommand:\n(\S+).*\nstderr:\n(.*)", str(error), re.DOTALL)  # by dask_jobqueue
    problem = f"{said[2]} ended with {said[1]}: {first_line(Exception(said[3]))}" if said else first_line(error)
    return f"{problem}; correct what it names in cluster_options (--cluster-option)"


@contextmanager
def _kubernetes(options: ClusterOptions, budget: int | None) -> Iterator[Any]:
    """Have the operator of Kubernetes start a scheduler and workers; it has no means to give them credentials."""
    memory = options.memory or (limit_around(budget) if budget else None)
    given: dict[str, Any] = {"n_workers": options.workers or 1, "quiet": True, **options.options}
    if memory and "resources" not in given:
        given["resources"] = {key: {"memory": str(memory)} for key in ("requests", "limits")}
    started_by = _class_of(KUBERNETES)
    try:
        cluster = started_by(**given)
    except Exception as error:  # of any of the packages below it
        started_by._instances.clear()  # at exit it would close what never started, and show a traceback
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
        if signal.getsignal(signal.SIGINT) is not handler:  # dask_jobqueue sets its own on import
            signal.signal(signal.SIGINT, handler)
