"""`ClusterOptions`: description of a cluster in plain data; the kinds of cluster, and their options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import RequestError, nearest
from ..units import parse_bytes

TIMEOUT = 600.0  # seconds to wait for a worker
LOCAL, KUBERNETES = "local", "kubernetes"
CONFIGURED = "configured"  # the scheduler that dask's own configuration names

# Kinds of cluster, and the class that starts each; the class's dotted name is another name of the kind.
CLUSTERS = {
    LOCAL: "distributed.LocalCluster",
    "slurm": "dask_jobqueue.SLURMCluster",
    "pbs": "dask_jobqueue.PBSCluster",
    "sge": "dask_jobqueue.SGECluster",
    "lsf": "dask_jobqueue.LSFCluster",
    KUBERNETES: "dask_kubernetes.operator.KubeCluster",
}

# Options of these classes that a run file can set: numbers, names and paths.
OPTIONS = ("cores", "processes", "memory", "walltime", "queue", "account", "project", "job_cpu", "job_mem", "ncpus",
           "mem", "lsf_units", "use_stdin", "resource_spec", "interface", "local_directory", "log_directory",
           "shared_temp_directory", "name", "namespace", "resources")  # fmt: skip
# Options that choose the program or hold text for a shell or a batch system: only the command line can set them, as a
# run file from somebody else could run any command.
COMMAND_OPTIONS = ("job_script_prologue", "job_extra_directives", "worker_extra_args", "python", "image")
LISTS = COMMAND_OPTIONS[:3]
FOLDERS = ("local_directory", "log_directory", "shared_temp_directory")  # can begin with ~, which is expanded here

# Job scripts contain values unquoted: spaces, quotes, signs of a shell and a leading hyphen are refused.
_PLAIN = re.compile(r"(?!-)[\w.,:=/+@%-]*")
_FOLDER = re.compile(r"(~[\w.-]*(?![^/]))?" + _PLAIN.pattern)


@dataclass(frozen=True)
class ClusterOptions:
    """Description of a cluster to start or to connect to.

    Attributes
    ----------
    cluster : str, default="local"
        A kind of cluster to start (a key of `CLUSTERS`): "local" starts processes of one thread each on this machine.
        Or the address of a running scheduler, e.g. ``"tcp://10.0.0.1:8786"``; or "configured", for the scheduler in
        dask's configuration (``scheduler-address``, DASK_SCHEDULER_ADDRESS).
    options : mapping
        Options of the class that starts a batch system's cluster.
    workers : int, optional
        Number of workers to start; for a running scheduler, the number to plan for, by default the present ones.
    memory : int, optional
        Bytes of each worker that is started; by default as many as the budget needs.
    timeout : float, default=600
        Seconds to wait for the first worker, and for another one after all have gone.
    dashboard : bool, default=False
        Serve dask's dashboard on this machine, where anybody who is logged in can read it.
    """

    cluster: str = LOCAL
    options: Mapping[str, Any] = field(default_factory=dict)
    workers: int | None = None
    memory: int | None = None
    timeout: float = TIMEOUT
    dashboard: bool = False

    @property
    def is_address(self) -> bool:
        """True for the address of a running scheduler."""
        return "://" in self.cluster

    @property
    def is_submitted(self) -> bool:
        """True if another system starts the workers."""
        return not self.is_address and self.cluster != LOCAL


def kind_of(cluster: str) -> str:
    """Return the kind of cluster for a name; an address as it is.

    Raises
    ------
    RequestError
        If it is neither.
    """
    kinds = {name: kind for kind, name in CLUSTERS.items()} | {kind: kind for kind in (*CLUSTERS, CONFIGURED)}
    if "://" not in cluster and cluster not in kinds:
        raise RequestError(
            f"cluster {cluster!r} is not known; give one of {', '.join(CLUSTERS)}, {CONFIGURED}, or a scheduler's "
            "address such as tcp://10.0.0.1:8786. In Python, cluster= takes any cluster of dask's."
        )
    return kinds.get(cluster, cluster)


def with_address(options: ClusterOptions) -> ClusterOptions:
    """Return the options with the address in dask's configuration in place of "configured".

    Raises
    ------
    RequestError
        If the configuration has no address.
    """
    if options.cluster != CONFIGURED:
        return options
    import dask.config  # here, as runs without a cluster do not need it

    address = dask.config.get("scheduler-address", None)
    if not address:
        raise RequestError(
            "a cluster needs its kind or address (--cluster, cluster), a number of workers (--workers, workers), or a "
            "scheduler that dask's configuration names (DASK_SCHEDULER_ADDRESS); give one."
        )
    return replace(options, cluster=address if "://" in address else f"tcp://{address}")


def checked_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a cluster to start; refuse unknown ones, and values that are unsafe in a job script.

    Raises
    ------
    RequestError
        Names the option.
    """
    names = [*OPTIONS, *COMMAND_OPTIONS]
    for name, value in options.items():
        if name not in names:
            hint = nearest(name, names) or f" Known are {', '.join(names)}."
            raise RequestError(f"option {name!r} of a cluster is not known.{hint}")
        if name in ("cores", "processes") and not (type(value) is int and value > 0):
            raise RequestError(f"{name} = {value!r} is not a number of at least 1")
        if name == "memory":
            parse_bytes(value)
        elif name in OPTIONS and not _is_plain(value, _FOLDER if name in FOLDERS else _PLAIN):
            raise RequestError(f"{name} = {value!r} may hold letters, digits and .,:=/+@%- only, as it goes to a shell")
    return options


def _is_plain(value: Any, allowed: re.Pattern[str]) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(part, allowed) for pair in value.items() for part in pair)
    return isinstance(value, int | float) or (isinstance(value, str) and allowed.fullmatch(value) is not None)
