"""Resuming an output: the identity of its run, the plan of one that was begun, and its partial file.

Rows are on disk before a checkpoint says so, and rows that are written again after a kill are written in the same
place: the output is bit for bit that of an unbroken run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import __version__
from ...events import Listener
from ...execution.checkpoint import CheckpointFolder, StageCheckpoint
from ...planning import Application
from ...planning.memory import MemoryEstimate, Phase
from ...planning.transform_pieces import Piecewise
from ...preprocessing import Frame
from ...readers.collection import states_by_name
from ...storage.components import StoredRows
from ...storage.outputs import open_writer
from ...storage.writers import OutputArray, UnfinishedOutput, Writer
from ..subspace import Subspace
from .projection import Projection

Array = npt.NDArray[Any]
TOKEN = re.compile(r"[0-9a-f]{8}")
Resumable = tuple[Writer, StageCheckpoint | None]


def identity_of(work: Projection, table: OutputArray, path: str, budget: int | None) -> dict[str, Any]:
    """Return what must be the same for an unfinished output to be resumed."""
    raw = getattr(work.collection, "raw", work.collection)
    return {
        "output": os.path.abspath(path),
        "source": work.collection.source,
        "digest of the model": digest_of(work.subspace, work.frame),
        "n_components": len(work.subspace.components),
        "whiten": work.whiten,
        "residual": work.residual,
        "missing": work.subspace.missing,
        "shape": table.shape,
        "dtype": table.dtype.str,
        "memory": budget,
        "version of streampca": __version__,
        "number of samples": raw.n_samples,
        **states_by_name(raw.states()),
    }


def saved_plan(saved: CheckpointFolder | None) -> Application | Piecewise | None:
    """Return the plan of a run that is resumed, whatever memory there is now: it was checked when that run began."""
    numbers = None if saved is None else saved.record.get("plan")
    if numbers is None:
        return None
    if "scored_rows" in numbers:
        return Piecewise(**numbers, memory_estimate=MemoryEstimate((Phase("apply", ()),)))
    return Application(**numbers, memory_estimate=Phase("apply", ()))


@contextmanager
def resumable(
    saved: CheckpointFolder | None,
    plan: Application | Piecewise,
    path: str,
    table: OutputArray,
    *,
    overwrite: bool,
    listener: Listener,
) -> Iterator[Resumable]:
    """Open an output to write or to resume, and the checkpoint of its fold, which is removed when it is complete."""
    if saved is None:
        with open_writer(path, table, overwrite=overwrite, listener=listener) as writer:
            yield writer, None
        return
    checkpoint, unfinished = saved.stage(table.name), UnfinishedOutput()
    token = str(saved.record.get("partial"))
    if TOKEN.fullmatch(token) and (found := checkpoint.load_any()):  # no path: anybody may have written the record
        unfinished = UnfinishedOutput(token, int(found.state["size"]))
        del found  # its arrays may be large
    how: dict[str, Any] = {"overwrite": overwrite, "unfinished": unfinished, "listener": listener}
    with saved.running(), open_writer(path, table, **how) as writer:
        numbers = {each.name: getattr(plan, each.name) for each in fields(plan) if each.name != "memory_estimate"}
        saved.begin(numbers, resumes=unfinished.is_resumable, partial=unfinished.token)
        try:
            yield writer, checkpoint
        except BaseException:
            if not saved.is_recorded:  # nobody would find what was written again
                unfinished.size = None
            raise


def digest_of(subspace: Subspace, frame: Frame) -> str:
    """Return a digest of a model's numbers; reads components where they are in memory."""
    found = hashlib.sha256(repr((frame.raw_shape, frame.sample_shape, frame.preparation.to_json())).encode())
    arrays: list[Any] = [subspace.mean, subspace.variance, frame.mask, frame.preparation.scale, frame.preparation.mask]
    for each in (frame.preparation.learned, frame.preparation.mapped):
        if each is not None:
            found.update(each.digest.encode())
    arrays += [*(frame.keys or ())]
    components = subspace.components
    if isinstance(components, StoredRows):
        stored = components.components
        found.update(repr((stored.identity or stored.path, components.shape, str(components.dtype))).encode())
    else:
        arrays += [*np.asarray(components)]  # a row at a time: the digest copies what is not contiguous
    for array in arrays:
        if isinstance(array, np.ndarray):
            found.update(repr((array.shape, array.dtype.str)).encode())
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()[:16]
