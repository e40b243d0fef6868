"""Reuse of the model that an earlier run left at the output: of the same request and data only."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ModelError, OutputError
from ..execution.fingerprint import first_difference
from ..kinds.run import Part
from ..models.load import load_model
from ..models.model import Model
from ..planning.request import RUN_FIELDS
from ..preprocessing import Preparation, Prepared
from ..readers.collection import data_difference, digest
from ..readers.weights import weights_digest
from .identity import described
from .open_fit import Opened

# Fields that hold digests of arrays, which mean nothing to a reader of the message.
DIGESTED = ("mask", "scale", "sample_weight", "target", "means", "feature map", "graph", "actions")


def load_earlier(path: str, opened: Opened, part: Part | None) -> Model | None:
    """Load the complete model at a path, if there is one, and check that it is the model of this fit.

    Raises
    ------
    OutputError
        If it was fitted with another request, or to other data; the first difference is named.
    """
    try:
        model = load_model(path, memory=opened.request.memory)
    except ModelError:
        return None
    if difference := _difference(model, opened, part):
        raise OutputError(
            f"{path} was fitted with {difference}; choose another directory or output, or replace it with --overwrite "
            "(overwrite=True)."
        )
    return model


def _difference(model: Model, opened: Opened, part: Part | None) -> str | None:
    """Return the first difference between a model's fit and this one, in words."""
    collection, fitted = opened.collection, model.provenance
    preparation = _with_full_scale(_requested_preparation(collection, model), collection.sample_shape)
    of_data = (preparation, collection.mask, part, weights_digest(opened.weights))
    target = opened.target
    now = described(collection.source, opened.request.given, *of_data) | {
        "target": None if target is None else target.digest
    }
    if opened.actions is not None:
        now["actions"] = digest(opened.actions.tolist())
    requested = fitted.get("embedding") or (fitted.get("plan") or {}).get("request") or {}
    preparation = _with_full_scale(model.preparation, model.sample_shape)
    of_data = (preparation, model.mask, fitted.get("part"), fitted.get("sample_weight"))
    before = described(fitted.get("source"), requested, *of_data)
    before["target"] = (fitted.get("target") or {}).get("digest")
    decisive = [name for name in now if name not in RUN_FIELDS]
    before, now = ({name: values.get(name) for name in decisive} for values in (before, now))
    if difference := first_difference(before, now):
        if difference.name in DIGESTED:
            return f"another {difference.name}"
        return f"{difference.name} {difference.before!r} and this run has {difference.now!r}"
    changed = data_difference(fitted, collection)
    return changed and f"other data: {changed}"


def _requested_preparation(collection: Prepared, model: Model) -> Preparation:
    """Return the preparation of this fit; a gamma that only its passes would find is taken from the model."""
    pending, fitted = collection.pending, model.preparation.feature_map
    if pending is not None and fitted is not None and not pending.kernel.is_resolved:
        pending = replace(pending, kernel=replace(pending.kernel, gamma=fitted.kernel.gamma))
    return collection.preparation if pending is None else replace(collection.preparation, feature_map=pending)


def _with_full_scale(preparation: Preparation, shape: tuple[int, ...]) -> Preparation:
    """Return a preparation whose scale has a factor for every channel, as models store it."""
    full = preparation.full_scale(shape)
    return preparation if full is None else replace(preparation, scale=full)
