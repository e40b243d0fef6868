"""Resuming an output of a model: the identity of its run, and the plan of the run that is resumed."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from ... import __version__
from ...execution.checkpoint import CheckpointFolder
from ...planning import Application
from ...planning.memory import MemoryEstimate, Phase
from ...planning.transform_pieces import Piecewise
from ...preprocessing import Frame
from ...readers.collection import states_by_name
from ...storage.components import StoredRows
from ...storage.writers import OutputArray
from ..subspace import Subspace
from .projection import Projection


def identity_of(work: Projection, table: OutputArray, path: str, budget: int | None) -> dict[str, Any]:
    """Return the facts that must be unchanged for an unfinished output to be resumed."""
    raw = getattr(work.collection, "raw", work.collection)
    return {
        "output": os.path.abspath(path),
        "source": work.collection.source,
        # By its numbers and not its path, where another model can be stored meanwhile.
        "digest of the model": digest_of(work.subspace, work.frame),
        "n_components": work.subspace.n_components,
        "whiten": work.whiten,
        "residual": work.residual,
        "missing": work.subspace.missing,
        **({"device": work.subspace.device} if work.subspace.device else {}),
        "shape": table.shape,
        "dtype": table.dtype.str,
        "memory": budget,
        "version of streampca": __version__,
        "number of samples": raw.n_samples,
        **states_by_name(raw.states()),
    }


def saved_plan(saved: CheckpointFolder | None) -> Application | Piecewise | None:
    """Return the plan of a run that is resumed, or None; its memory was checked when the run started."""
    numbers = None if saved is None else saved.record.get("plan")
    if numbers is None:
        return None
    if "scored_rows" in numbers:
        return Piecewise(**numbers, memory_estimate=MemoryEstimate((Phase("apply", ()),)))
    return Application(**numbers, memory_estimate=Phase("apply", ()))


def digest_of(subspace: Subspace, frame: Frame) -> str:
    """Return a digest of a model's numbers, with those of its components only if they are in memory."""
    digest = hashlib.sha256(repr((frame.raw_shape, frame.sample_shape, frame.preparation.to_json())).encode())
    arrays: list[Any] = [subspace.mean, subspace.variance, frame.mask, frame.preparation.scale, frame.preparation.mask]
    for step in (frame.preparation.learned, frame.preparation.mapped):
        if step is not None:
            digest.update(step.digest.encode())
    arrays += [*(frame.keys or ())]
    components = subspace.components
    if isinstance(components, StoredRows):
        stored = components.components
        digest.update(repr((stored.identity or stored.path, components.shape, str(components.dtype))).encode())
    else:
        arrays += [*np.asarray(components)]  # a row at a time: the digest copies what is not contiguous
    for array in arrays:
        if isinstance(array, np.ndarray):
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:16]
