"""`ClusterOptions`, which describe a cluster in plain data and need no dask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TIMEOUT = 60.0  # seconds without any worker
QUEUED = 3600.0  # ... where they may wait in the queue of a batch system


@dataclass(frozen=True)
class ClusterOptions:
    """Description of a cluster to start or to connect to.

    Attributes
    ----------
    address : str, optional
        Of a scheduler that runs, e.g. ``"tcp://10.0.0.1:8786"``.
    cluster : str, optional
        Dotted name of a class to make one, e.g. ``"dask_jobqueue.SLURMCluster"``; where neither this nor an address is
        given, processes of this machine, of one thread each.
    options : mapping
        That the class is called with.
    workers : int, optional
        How many; of a scheduler that runs, how many to plan for, which are those there by default.
    memory : int, optional
        Bytes of each of the processes of this machine; as many as the budget needs by default.
    patience : float, optional
        Seconds to wait for the first worker; a minute by default, an hour for a class.
    """

    address: str | None = None
    cluster: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    workers: int | None = None
    memory: int | None = None
    patience: float | None = None

    @property
    def waits(self) -> float:
        """Seconds to wait for the first worker."""
        return self.patience or (QUEUED if self.cluster else TIMEOUT)
