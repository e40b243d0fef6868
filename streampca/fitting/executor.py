"""Where a fit runs: in this process, or on a cluster that is started or found for it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from ..errors import ClusterError, OutputError, RequestError
from ..events import Listener, silent
from ..execution import ClusterOptions, Executor, LocalExecutor
from ..execution.checkpoint import CheckpointFolder
from ..machine import limit_cores
from ..planning.request import Request
from ..storage.outputs import SCRATCH


@contextmanager
def executing(cluster: Any, budget: int | None = None, *, listener: Listener = silent) -> Iterator[Executor]:
    """Have somebody run the tasks of a fit.

    Parameters
    ----------
    cluster : None, int, str, ClusterOptions, distributed.Client or a cluster of dask's
        Nobody but this process; so many other processes of this machine; a scheduler's address; or a cluster that is
        there already.
    budget : int, optional
        Bytes that a plan may use of each worker.
    listener : callable
        Told what is waited for.

    Raises
    ------
    ClusterError, RequestError
        If it cannot be reached, has no workers, or is none.
    """
    if cluster is None:
        yield LocalExecutor()
        return
    try:
        from ..execution.connect import connected, joined
    except ImportError as error:
        raise ClusterError(f"a cluster needs {error.name}; pip install 'streampca[cluster]'.") from None
    if hasattr(cluster, "wait_for_workers") and hasattr(cluster, "submit"):
        yield joined(cluster, "the cluster", ClusterOptions(), listener=listener)
        return
    with connected(_wanted(cluster), budget, listener=listener) as executor:
        yield executor


def _wanted(cluster: Any) -> ClusterOptions:
    match getattr(cluster, "scheduler_address", cluster):
        case ClusterOptions() as wanted:
            return wanted
        case str(address):
            return ClusterOptions(address=address)
        case int(workers) if workers >= 1 and not isinstance(workers, bool):
            return ClusterOptions(workers=workers)
    raise RequestError(
        f"cluster {cluster!r} is none; give a number of processes, a scheduler's address, or a distributed.Client."
    )


def suited(request: Request, executor: Executor, checkpoint: CheckpointFolder | None) -> Request:
    """Return the request with the memory and workers of the fit that is resumed, or else of the executor."""
    before = {} if checkpoint is None else checkpoint.record
    return replace(
        request,
        memory=before.get("memory") or request.memory or executor.memory,
        workers=before.get("workers") or max(request.workers, executor.workers),
    )


def as_of(executor: Executor) -> AbstractContextManager[None]:
    """Plan for the cores of those who run it."""
    return nullcontext() if executor.cores is None else limit_cores(executor.cores)


def scratch_name(request: Request, place: str | None) -> str | None:
    """Return the beginning of the name of a scratch copy: beside the output, or in the folder that was given.

    Raises
    ------
    OutputError
        If that is no folder.
    """
    if request.scratch is None:
        return None if place is None else place.rstrip("/") + SCRATCH
    if not os.path.isdir(request.scratch):
        raise OutputError(
            f"scratch {request.scratch!r} is not a folder; make it, or give another by --scratch (scratch=)."
        )
    return os.path.join(request.scratch, f"streampca{SCRATCH}")


def resumable_scratch_name(request: Request, checkpoint: CheckpointFolder) -> str:
    """Return a name that no other fit has, of a scratch copy that outlives the process."""
    return os.path.join(request.scratch or checkpoint.folder, f"{uuid.uuid4().hex[:12]}{SCRATCH}")
