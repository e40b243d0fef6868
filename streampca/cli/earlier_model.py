"""The model that an earlier run left in its directory: used again for the same request, refused for another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError, OutputError
from ..execution.fingerprint import first_difference
from ..models.pca import PCAModel, load_model
from ..planning.blocks import part_of
from ..planning.request import HOW, Request
from ..preprocessing import Prepared
from ..readers.collection import fingerprint_of, first_change
from ..readers.weights import weights_digest
from .from_config import request_of
from .options import Run


def load_earlier(path: str, run: Run, collection: Prepared, weights: npt.NDArray[np.float64] | None) -> PCAModel | None:
    """Load the model at a path, if there is one.

    Raises
    ------
    OutputError
        If it was fitted with another request, or on other data; the first difference is named.
    """
    try:
        model = load_model(path, memory=run.fit.memory)
    except ModelError:
        return None
    difference = _first_difference(model, run, collection, weights)
    if difference:
        raise OutputError(
            f"{path} was fitted with {difference}; choose another directory, or replace it with --overwrite "
            "(output.overwrite: true)."
        )
    return model


def _first_difference(
    model: PCAModel, run: Run, collection: Prepared, weights: npt.NDArray[np.float64] | None
) -> str | None:
    """Return the first difference between a model's fit and a run's, in words."""
    fitted, source, preparation = model.provenance, collection.raw.source, collection.preparation
    request = (fitted.get("plan") or {}).get("request")
    before = {} if request is None else {**vars(Request()), **request}  # options that came later had their defaults
    now = {**vars(request_of(run)), **preparation.to_json()}
    now = {name: value for name, value in now.items() if name not in HOW}
    before = {**before, **model.preparation.to_json()}
    if difference := first_difference({name: before.get(name) for name in now}, now):
        return f"{difference.name} {difference.before!r} and this run has {difference.now!r}"
    if not _equal(model.mask, collection.mask):
        return "another mask"
    if not _equal(model.preparation.scale, preparation.scale):
        return "another scale"
    part = part_of(run.fit.part)
    if fitted.get("part") != (part and list(part)):
        return f"part {fitted.get('part')} and this run has {part and list(part)}"
    if fitted.get("source") != source:
        return f"source {fitted.get('source')!r} and this run has {source!r}"
    if fitted.get("sample_weight") != weights_digest(weights):
        return "other sample weights"
    if "states" not in fitted:
        return "an earlier version, which noted too little of the data to tell whether they have changed"
    states = collection.states()
    if fitted.get("fingerprint") != fingerprint_of(collection, states):
        changed = first_change(fitted["states"], states) or source
        return f"other data: {changed} has changed since, or is opened with other options (key, select, samples ...)"
    return None


def _equal(one: Any, other: Any) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)
