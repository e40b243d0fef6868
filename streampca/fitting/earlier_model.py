"""Reuse of the model that an earlier run left at the output: of the same request and data only."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, cast

from ..errors import ModelError, OutputError
from ..events import Kept, Listener, Warned
from ..execution.fingerprint import first_difference
from ..kinds.run import Part
from ..models.load import load_model
from ..models.model import Model
from ..models.pca import PCAModel
from ..models.store import check_model_output
from ..planning.request import RUN_FIELDS
from ..preprocessing import Preparation, Prepared
from ..readers.collection import data_difference, digest
from ..readers.weights import weights_digest
from ..units import counted
from .identity import described
from .null_components import with_n_components
from .open_fit import Opened
from .seen import files_inserted, samples_added

# Fields that hold digests of arrays, which mean nothing to a reader of the message.
DIGESTED = ("mask", "scale", "sample_weight", "target", "means", "feature map", "graph", "actions")

DERIVED = ("rotated-pca", "bootstrap")  # kinds of models that are made from fitted ones, with the provenance of these


class Fate(NamedTuple):
    """Use of the model that exists at the output of a fit.

    Attributes
    ----------
    model : Model or None
        The model, if it is used again; None if it is to be fitted.
    n_components : int or None
        Number of its first components to keep, if the fit asks for fewer but is the same otherwise.
    why : str
        Reason why the model at the path is replaced, if it is, as a clause.
    """

    model: Model | None
    n_components: int | None
    why: str


def fate_of(path: str, opened: Opened, part: Part | None, *, overwrite: bool) -> Fate:
    """Return the use of the model at the output of a fit, comparing its request and data; reads no samples.

    Raises
    ------
    OutputError
        If it was fitted with another request, or to other data, and may not be replaced; names the first difference.
    """
    try:
        model = load_model(path, memory=opened.request.memory)
    except ModelError:
        return Fate(None, None, "it is not complete")
    difference = _difference(model, opened, part)
    if difference is None:
        return Fate(model, None, "")
    if not overwrite:
        remedy = "choose another directory or output, or replace it with --overwrite (overwrite=True)"
        if added := samples_added(model.provenance, opened.collection.raw, path):
            raise OutputError(
                f"{path} was fitted before {counted(added, 'sample')} were added to {opened.collection.source}; add "
                f"them by update: true in a run file (streampca.update), or {remedy}."
            )
        if inserted := files_inserted(model.provenance, opened.collection.raw, path):
            raise OutputError(
                f"{path} was fitted before {inserted[0]} was added, which does not come after the files of the fit, so "
                f"that the model cannot be updated by it; {remedy}."
            )
        raise OutputError(f"{path} was fitted with {difference}; {remedy}.")
    count = opened.request.n_components
    has_more = isinstance(model, PCAModel) and type(count) is int and count < model.n_components
    if has_more and _difference(model, opened, part, but="n_components") is None:
        why = f"the first {count} of its {model.basis.n_components} components are kept"
        return Fate(model, cast("int", count), why)
    return Fate(None, None, f"it was fitted with {difference}")


def load_earlier(path: str, opened: Opened, part: Part | None, *, overwrite: bool, listener: Listener) -> Model | None:
    """Return the model of this fit that an earlier run left at a path; None if it is to be fitted.

    Raises
    ------
    OutputError
        As `fate_of`, or if it is not a model.
    """
    model, count, why = fate_of(path, opened, part, overwrite=overwrite)
    if model is not None and count is None:
        listener(Kept(path, "was fitted by an earlier run with the same options; it is used again"))
        return model
    check_model_output(path, overwrite=overwrite)
    listener(Warned(f"{path} is replaced: {why}."))
    return None if count is None else _first_components(path, count, opened.request.memory)


def _first_components(path: str, count: int, memory: int | None) -> Model:
    """Replace a stored model by one of its first components, and return it."""
    model = cast("PCAModel", load_model(path, memory=memory, statistic=True))
    plan = model.provenance["plan"]
    provenance = {**model.provenance, "plan": {**plan, "request": {**plan["request"], "n_components": count}}}
    replace(with_n_components(model, count), provenance=provenance).save(path, overwrite=True)
    return load_model(path, memory=memory)


def _difference(model: Model, opened: Opened, part: Part | None, but: str = "") -> str | None:
    """Return the first difference between a model's fit and this one, in words, but that of one parameter."""
    if model.kind in DERIVED:
        return f"other components: it is a model of kind {model.kind!r}"
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
    decisive = [name for name in now if name not in RUN_FIELDS and name != but]
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
