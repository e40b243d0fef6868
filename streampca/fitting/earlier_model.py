"""The model that an earlier run left at its output: used again for the same request, refused for another."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ModelError, OutputError
from ..execution.fingerprint import first_difference
from ..kinds.part import Part
from ..models.load import load_model
from ..models.model import Model
from ..planning.request import RUN_FIELDS
from ..preprocessing import Preparation, Prepared
from ..readers.collection import data_difference, digest
from ..readers.target import digest_of
from ..readers.weights import weights_digest
from .identity import described
from .open_fit import Opened

# Arrays, which are known by their digests.
DIGESTED = ("mask", "scale", "sample_weight", "target", "means", "feature map", "graph", "actions")


def load_earlier(path: str, opened: Opened, part: Part | None) -> Model | None:
    """Load the model at a path, if there is a complete one, and if it is that of a fit.

    Raises
    ------
    OutputError
        If it was fitted with another request, or on other data; the first difference is named.
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
    """Return the first difference between a model's fit and another, in words."""
    collection, fitted = opened.collection, model.provenance
    asked = _with_full_scale(_asked(collection, model), collection.sample_shape)
    of_data = (asked, collection.mask, part, weights_digest(opened.weights))
    now = described(collection.source, opened.request.given, *of_data) | {"target": digest_of(opened.target)}
    if opened.actions is not None:
        now["actions"] = digest(opened.actions.tolist())
    requested = fitted.get("embedding") or (fitted.get("plan") or {}).get("request") or {}
    preparation = _with_full_scale(model.preparation, model.sample_shape)
    of_data = (preparation, model.mask, fitted.get("part"), fitted.get("sample_weight"))
    before = described(fitted.get("source"), requested, *of_data)
    before["target"] = (fitted.get("target") or {}).get("digest")
    decisive = [name for name in now if name not in RUN_FIELDS]
    before, now = ({name: values.get(name) for name in decisive} for values in (before, now))
    if found := first_difference(before, now):
        if found.name in DIGESTED:
            return f"another {found.name}"
        return f"{found.name} {found.before!r} and this run has {found.now!r}"
    changed = data_difference(fitted, collection)
    return changed and f"other data: {changed}"


def _asked(collection: Prepared, model: Model) -> Preparation:
    """Return the preparation asked for; a gamma that is still to be found is that of the model."""
    pending, known = collection.pending, model.preparation.feature_map
    if pending is not None and known is not None and not pending.kernel.is_resolved:
        pending = replace(pending, kernel=replace(pending.kernel, gamma=known.kernel.gamma))
    return collection.preparation if pending is None else replace(collection.preparation, feature_map=pending)


def _with_full_scale(preparation: Preparation, shape: tuple[int, ...]) -> Preparation:
    """Return a preparation with the factors of all channels, as models store them."""
    full = preparation.full_scale(shape)
    return preparation if full is None else replace(preparation, scale=full)
