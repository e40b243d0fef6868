"""The model that an earlier run left in its directory: used again for the same request, refused for another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import ModelError, OutputError
from ..execution.fingerprint import first_difference
from ..fitting.identity import described
from ..fitting.open_fit import Opened
from ..models.pca import PCAModel, load_model
from ..planning.blocks import part_of
from ..planning.request import HOW, Request
from ..preprocessing import Preparation, Prepared
from ..readers.collection import data_difference
from ..readers.target import digest_of
from ..readers.weights import weights_digest
from .from_config import embedding_of
from .options import Run


def load_earlier(path: str, run: Run, opened: Opened) -> PCAModel | None:
    """Load the model at a path, if there is one, and if it is that of a run.

    Raises
    ------
    OutputError
        If it was fitted with another request, or on other data; the first difference is named.
    """
    try:
        model = load_model(path, memory=run.fit.memory)
    except ModelError:
        return None
    collection = opened.collection
    preparation = _with_full_scale(_asked(collection, model), collection.sample_shape)
    embedding = embedding_of(run)
    if embedding is None:
        requested = vars(opened.request)
    else:
        from ..fitting.embed import completed

        requested = completed(embedding, collection, run.embed.graph, run.embed.actions)[0].given
    now = (collection.source, requested, preparation, collection.mask, part_of(run.fit.part))
    described_now = {**described(*now, weights_digest(opened.weights)), "target": digest_of(opened.target)}
    if difference := _difference(model, described_now, collection):
        raise OutputError(
            f"{path} was fitted with {difference}; choose another directory, or replace it with --overwrite "
            "(output.overwrite: true)."
        )
    return model


def _asked(collection: Prepared, model: PCAModel) -> Preparation:
    """Return the preparation asked for; a gamma that is still to be found is that of the model."""
    wanted, known = collection.pending, model.preparation.feature_map
    if wanted is not None and known is not None and not wanted.kernel.is_resolved:
        wanted = replace(wanted, kernel=replace(wanted.kernel, gamma=known.kernel.gamma))
    return collection.preparation if wanted is None else replace(collection.preparation, feature_map=wanted)


def _difference(model: PCAModel, now: dict[str, Any], collection: Prepared) -> str | None:
    """Return the first difference between a model's fit and a run's, in words."""
    fitted = model.provenance
    request = (fitted.get("plan") or {}).get("request")
    requested = {} if request is None else {**vars(Request()), **request}  # options that came later had their defaults
    requested = fitted.get("embedding") or requested
    preparation = _with_full_scale(model.preparation, model.sample_shape)
    of_data = (preparation, model.mask, fitted.get("part"), fitted.get("sample_weight"))
    before = described(fitted.get("source"), requested, *of_data)
    before["target"] = (fitted.get("target") or {}).get("digest")
    before, now = ({name: each.get(name) for name in now if name not in HOW} for each in (before, now))
    if found := first_difference(before, now):
        if found.name in (
            "mask",
            "scale",
            "sample_weight",
            "target",
            "means",
            "landmarks",
        ):  # arrays, known by their digests
            return f"another {found.name}"
        return f"{found.name} {found.before!r} and this run has {found.now!r}"
    changed = data_difference(fitted, collection)
    return changed and f"other data: {changed}"


def _with_full_scale(preparation: Preparation, shape: tuple[int, ...]) -> Preparation:
    """Return a preparation with the factors of all channels, as models store them."""
    full = preparation.full_scale(shape)
    return preparation if full is None else replace(preparation, scale=full)
