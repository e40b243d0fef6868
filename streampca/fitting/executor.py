"""Limits of a request by the executor of a fit, and the path of its scratch copy."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace

from ..errors import OutputError
from ..execution import Executor
from ..execution.checkpoint import CheckpointFolder
from ..planning.request import Request
from ..storage.outputs import SCRATCH


def with_executor_limits(request: Request, executor: Executor, checkpoint: CheckpointFolder | None) -> Request:
    """Return the request with the memory and workers of a resumed fit, or else of the executor."""
    before = {} if checkpoint is None else checkpoint.record
    return replace(
        request,
        memory=before.get("memory") or request.memory or executor.memory,
        workers=before.get("workers") or max(request.workers, executor.workers),
    )


def scratch_name(request: Request, place: str | None) -> str | None:
    """Return the beginning of the name of a scratch copy: beside the output, or in the folder `scratch`.

    Raises
    ------
    OutputError
        If `scratch` is not a folder.
    """
    if request.scratch is None:
        return None if place is None else place.rstrip("/") + SCRATCH
    if not os.path.isdir(request.scratch):
        raise OutputError(
            f"scratch {request.scratch!r} is not a folder; make it, or give another by --scratch (scratch=)."
        )
    return os.path.join(request.scratch, f"streampca{SCRATCH}")


def resumable_scratch_name(request: Request, checkpoint: CheckpointFolder) -> str:
    """Return a unique path of a scratch copy that outlives the process."""
    return os.path.join(request.scratch or checkpoint.folder, f"{uuid.uuid4().hex[:12]}{SCRATCH}")
