"""Build a model from a decomposition: its arrays, and its provenance."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..arrays import Array, Float64
from ..eigensolvers import FAILURE
from ..eigensolvers.signs import extremes, larger
from ..kinds.run import Part
from ..models.components import ComponentsModel
from ..models.compression import original_bytes
from ..models.pca import PCAModel
from ..models.registry import model_class
from ..models.store import SAMPLE, kept_coordinates
from ..planning import Plan
from ..planning.blocks import Span, blocks_of
from ..preprocessing import Prepared, unflatten
from ..preprocessing.coordinates import axes_record
from ..preprocessing.feature_map import KernelMap
from ..readers.collection import State, encoded_states, fingerprint_of, growth_states, place_of, sample_dims
from ..readers.target import Target
from ..readers.weights import weights_digest
from .methods import Decomposition
from .seen import noted

# Fields that a model copies from its decomposition.
SHARED = (
    "explained_variance", "residual_bound", "angle_bound", "outside", "total_variance", "n_samples",
    "eigenvalues",
)  # fmt: skip
SIGNED_ROWS = 256  # landmarks whose scores are computed at a time
VERSIONS = ("numpy", "scipy", "dask", "zarr")


def numbers_of(
    decomposition: Decomposition, shape: tuple[int, ...], mask: npt.NDArray[np.bool_] | None, components: Any
) -> dict[str, Any]:
    """Return the fields of a `PCAModel` that follow from a decomposition; the others describe the collection.

    Parameters
    ----------
    decomposition : Decomposition
        Decomposition of rows of p features.
    shape, mask
        Shape of a prepared sample, and the mask of its pixels that are features.
    components : ndarray of shape (k, p) or StoredComponents
        Components of the decomposition, in memory or on disk.
    """
    total_weight, own_fields = decomposition.total_weight, dict(decomposition.own_fields)
    residual_bound, sharper = decomposition.residual_bound, decomposition.error_bound
    for name, axes in model_class(decomposition.kind).own_arrays().items():
        if axes == SAMPLE:  # one value for each feature becomes one for each pixel: NaN outside the mask, or False
            values = unflatten(own_fields[name][None], shape, mask)[0]
            own_fields[name] = values & mask if mask is not None and values.dtype == bool else values
    return {
        "components": unflatten(components, shape, mask) if isinstance(components, np.ndarray) else components,
        "mean": unflatten(decomposition.mean[None], shape, mask)[0],
        "total_weight": None if total_weight == decomposition.n_samples else total_weight,
        "error_bound": residual_bound if sharper is None else np.fmin(residual_bound, sharper),
        **{name: getattr(decomposition, name) for name in SHARED},
        **({"statistic": decomposition.statistic} if decomposition.kind == PCAModel.kind else {}),
        **own_fields,
    }


@cache  # `version` reads a file for each package, which small fits would notice
def versions() -> Mapping[str, str]:
    """Return the versions of Python and of the packages that the numbers depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}}


def provenance_of(
    data: Mapping[str, Any], plan: Plan, decomposition: Decomposition, *, seconds: float, peak: int | None
) -> dict[str, Any]:
    """Return the provenance of a model as plain data.

    Parameters
    ----------
    data : mapping
        Description of the data, see `data_of`.
    plan : Plan
        Plan that was carried out.
    decomposition : Decomposition
        Result.
    seconds, peak
        Duration, and peak memory in bytes.
    """
    return {
        "streampca": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **data,
        "plan": plan.to_json(),
        "passes": plan.passes if decomposition.passes is None else decomposition.passes,
        "exact_sums": decomposition.exact,
        **decomposition.measured,
        "bound_failure_probability": FAILURE,
        "seconds": round(seconds, 3),
        "peak_bytes": peak,
        "versions": dict(versions()),
    }


def data_of(
    collection: Prepared,
    states: Sequence[State],
    weights: Float64 | None,
    part: Part | None,
    target: Target | None = None,
) -> dict[str, Any]:
    """Return the description of the data in the provenance of a model."""
    units = collection.raw.attributes.get("units")
    dropped = [list(item) for item in collection.dropped]  # samples left out for missing values
    data = {
        "source": collection.source,
        "place": place_of(collection.raw),
        "fingerprint": fingerprint_of(collection, states),
        "states": encoded_states(states),
        **noted(collection.raw),
        "dtype": collection.raw.dtype.str,
        "nbytes": original_bytes(collection.raw),
        "units": units if isinstance(units, str) else None,
        "opened": None if collection.raw.opened is None else collection.raw.opened.to_json(),
        **axes_record(collection.raw),
        "skipped": [list(item) for item in collection.skipped],
        **({"dropped": {"samples": collection.n_dropped, "listed": dropped}} if collection.n_dropped else {}),
        "reading": collection.raw.reading,
        "sample_weight": weights_digest(weights),
        **({} if target is None else {"target": target.to_json()}),
    }
    parts = growth_states(collection, states)
    if parts is not states and (encoded := encoded_states(parts)) != data["states"]:
        data["states_of_parts"] = encoded
    return data if part is None else {**data, "part": list(part), "n_samples": collection.n_samples}


def _signed_by_scores(components: Array, mean: Float64, mapping: KernelMap, landmarks: Array) -> Array:
    """Return components of mapped features, (k, q), with signs that make the largest score of a landmark positive.

    As in scikit-learn. Loadings do not decide: the features are another basis for other weights or landmarks.
    """
    largest = np.zeros(len(components))
    for block in blocks_of(Span(0, len(landmarks)), SIGNED_ROWS):
        scores = (mapping(landmarks[slice(*block)]) - mean) @ components.T
        largest = larger(largest, extremes(scores.T))
    signs: Array = np.where(largest < 0, -1, 1).astype(components.dtype)
    return signs[:, None] * components


def model_of(
    collection: Prepared, decomposition: Decomposition, provenance: dict[str, Any], components: Any
) -> ComponentsModel:
    """Return the model of a decomposition of a collection; its components are given, as they may be on disk."""
    kind, mapped = decomposition.kind, decomposition.mapped
    if mapped is not None and collection.pending is not None:  # a kernel matrix gave the map, which the model applies
        feature_map = replace(collection.pending, kernel=mapped.kernel)
        collection = collection.with_steps(replace(collection.preparation, feature_map=feature_map, mapped=mapped))
    elif collection.preparation.mapped is not None:  # a model is applied anywhere, whatever mapped the samples here
        collection = collection.with_steps(collection.preparation.multiplying(None))
    cls, dims = cast("type[ComponentsModel]", model_class(kind)), sample_dims(collection)
    mapping = collection.preparation.mapped if mapped is None else None  # which scores gave the signs already
    landmarks = mapping.landmarks if isinstance(mapping, KernelMap) else None
    if isinstance(mapping, KernelMap) and isinstance(landmarks, np.ndarray) and isinstance(components, np.ndarray):
        components = _signed_by_scores(components, decomposition.mean, mapping, landmarks)
    return cls(
        **numbers_of(decomposition, collection.sample_shape, collection.mask, components),
        sample_dims=dims,
        coordinates=kept_coordinates(collection.coordinates, dims),
        raw_shape=collection.raw.sample_shape,
        raw_kind=collection.raw.dtype.kind,
        mask=collection.mask,
        preparation=collection.preparation,
        provenance=provenance,
    )
