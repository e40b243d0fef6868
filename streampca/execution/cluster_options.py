"""`ClusterOptions`, which describe a cluster in plain data; the kinds there are, and their options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import RequestError, nearest
from ..units import parse_bytes

TIMEOUT = 600.0  # seconds without any worker
LOCAL, KUBERNETES = "local", "kubernetes"
CONFIGURED = "configured"  # the scheduler that dask's own configuration names

# Kinds of cluster, and the class that starts each; that class's dotted name stands for the kind as well.
CLUSTERS = {
    LOCAL: "distributed.LocalCluster",
    "slurm": "dask_jobqueue.SLURMCluster",
    "pbs": "dask_jobqueue.PBSCluster",
    "sge": "dask_jobqueue.SGECluster",
    "lsf": "dask_jobqueue.LSFCluster",
    KUBERNETES: "dask_kubernetes.operator.KubeCluster",
}

# Options of those classes that a run file may give: numbers, names and paths.
OPTIONS = ("cores", "processes", "memory", "walltime", "queue", "account", "project", "job_cpu", "job_mem", "ncpus",
           "mem", "lsf_units", "use_stdin", "resource_spec", "interface", "local_directory", "log_directory",
           "shared_temp_directory", "name", "namespace", "resources")  # fmt: skip
# Options that choose the program or hold text for a shell or a batch system: only the command line may give them.
COMMAND_OPTIONS = ("job_script_prologue", "job_extra_directives", "worker_extra_args", "python", "image")
LISTS = COMMAND_OPTIONS[:3]
FOLDERS = ("local_directory", "log_directory", "shared_temp_directory")  # may begin with ~, which is replaced here

# Job scripts hold values unquoted: no space, quote or sign of a shell, and no further option.
_PLAIN = re.compile(r"(?!-)[\w.,:=/+@%-]*")
_FOLDER = re.compile(r"(~[\w.-]*(?![^/]))?" + _PLAIN.pattern)


@dataclass(frozen=True)
class ClusterOptions:
    """Description of a cluster to start or to connect to.

    Attributes
    ----------
    cluster : str, default="local"
        A kind that is started (a key of `CLUSTERS`), "local" being processes of this machine of one thread each; the
        address of a scheduler that runs, e.g. ``"tcp://10.0.0.1:8786"``; or "configured", for the scheduler that dask's
        configuration names (``scheduler-address``, DASK_SCHEDULER_ADDRESS).
    options : mapping
        Options of the class that starts a batch system's cluster.
    workers : int, optional
        Number of workers; of a scheduler that runs, how many to plan for, by default those there.
    memory : int, optional
        Bytes of each worker that is started; as many as the budget needs by default.
    timeout : float, default=600
        Seconds to wait for the first worker, and when all workers are gone.
    dashboard : bool, default=False
        Serve dask's dashboard on this machine, to anybody who is logged in there.
    """

    cluster: str = LOCAL
    options: Mapping[str, Any] = field(default_factory=dict)
    workers: int | None = None
    memory: int | None = None
    timeout: float = TIMEOUT
    dashboard: bool = False

    @property
    def is_address(self) -> bool:
        """True of a scheduler that runs."""
        return "://" in self.cluster

    @property
    def is_submitted(self) -> bool:
        """True of workers that another system starts for us."""
        return not self.is_address and self.cluster != LOCAL


def kind_of(cluster: str) -> str:
    """Return the kind that a name stands for; an address as it is.

    Raises
    ------
    RequestError
        If it is neither.
    """
    known = {name: kind for kind, name in CLUSTERS.items()} | {kind: kind for kind in (*CLUSTERS, CONFIGURED)}
    if "://" not in cluster and cluster not in known:
        raise RequestError(
            f"cluster {cluster!r} is not known; give one of {', '.join(CLUSTERS)}, {CONFIGURED}, or a scheduler's "
            "address such as tcp://10.0.0.1:8786. In Python, cluster= takes any cluster of dask's."
        )
    return known.get(cluster, cluster)


def with_address(options: ClusterOptions) -> ClusterOptions:
    """Return the options with the address that dask's configuration names, where they ask for that scheduler.

    Raises
    ------
    RequestError
        If the configuration names none.
    """
    if options.cluster != CONFIGURED:
        return options
    import dask.config  # of no use to runs without a cluster

    address = dask.config.get("scheduler-address", None)
    if not address:
        raise RequestError(
            "a cluster needs its kind or address (--cluster), a number of workers (--workers), or a scheduler that "
            "dask's configuration names (DASK_SCHEDULER_ADDRESS); give one."
        )
    return replace(options, cluster=address if "://" in address else f"tcp://{address}")


def checked_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options of a cluster that is started, none of which is unknown or holds more than a plain value.

    Raises
    ------
    RequestError
        Otherwise.
    """
    known = [*OPTIONS, *COMMAND_OPTIONS]
    for name, value in options.items():
        if name not in known:
            hint = nearest(name, known) or f" Known are {', '.join(known)}."
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
