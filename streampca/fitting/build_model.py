"""Builds models of decompositions: their numbers, and the provenance that says where they come from."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..eigensolvers import FAILURE
from ..kinds.part import Part
from ..models.components import ComponentsModel
from ..models.compression import original_bytes
from ..models.pca import PCAModel
from ..models.registry import model_class
from ..models.store import SAMPLE, kept_coordinates, names_of_arrays
from ..planning import Plan
from ..preprocessing import Prepared, unflatten
from ..preprocessing.coordinates import axes_record
from ..readers import Collection
from ..readers.collection import State, encoded_states, fingerprint_of, growth_states, place_of, sample_dims
from ..readers.target import Target
from ..readers.weights import weights_digest
from ..storage.coordinate import Coordinate
from .methods import Decomposition
from .seen import noted

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

# Fields of a model that are those of its decomposition as they are.
SHARED = (
    "explained_variance", "error_bound", "angle_bound", "outside", "variance_bound", "total_variance", "n_samples",
    "eigenvalues",
)  # fmt: skip
VERSIONS = ("numpy", "scipy", "dask", "zarr")


def numbers_of(
    found: Decomposition, shape: tuple[int, ...], mask: npt.NDArray[np.bool_] | None, components: Any
) -> dict[str, Any]:
    """Return the fields of a `PCAModel` that follow from a decomposition; the others are the collection's.

    Parameters
    ----------
    found : Decomposition
        Decomposition of rows of p features.
    shape, mask
        Shape of a prepared sample, and which of its pixels are features.
    components : ndarray of shape (k, p) or StoredComponents
        Components of `found`, or those that were written to disk.
    """
    return {
        "components": unflatten(components, shape, mask) if isinstance(components, np.ndarray) else components,
        "mean": unflatten(found.mean[None], shape, mask)[0],
        "total_weight": None if found.total_weight == found.n_samples else found.total_weight,
        **{name: getattr(found, name) for name in SHARED},
        **({"statistic": found.statistic} if found.kind == PCAModel.kind else {}),
        **found.own_fields,
        **{name: _over_pixels(found.own_fields[name], shape, mask) for name in _of_features(found.kind)},
    }


def _of_features(kind: str) -> Iterator[str]:
    """Yield the names of the fields of a kind of model that have one value for each feature."""
    return (name for name, axes in model_class(kind).own_arrays().items() if axes == SAMPLE)


def _over_pixels(values: Array, shape: tuple[int, ...], mask: npt.NDArray[np.bool_] | None) -> Array:
    """Shape a value for each feature as a sample: NaN outside the mask, or False."""
    found: Array = unflatten(values[None], shape, mask)[0]
    return found & mask if mask is not None and found.dtype == bool else found


@cache  # each is looked up in a file
def versions() -> Mapping[str, str]:
    """Return the versions of Python and of the packages that numbers depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}}


def provenance_of(
    data: Mapping[str, Any], chosen: Plan, found: Decomposition, *, seconds: float, peak: int | None
) -> dict[str, Any]:
    """Return the provenance of a model as plain data.

    Parameters
    ----------
    data : mapping
        Description of the data: source, fingerprint ...
    chosen : Plan
        Plan that was carried out.
    found : Decomposition
        Result.
    seconds, peak
        Time and memory that it took.
    """
    return {
        "streampca": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **data,
        "plan": chosen.to_json(),
        "passes": chosen.passes if found.passes is None else found.passes,
        "exact_sums": found.exact,
        **found.measured,
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
    """Return what the provenance of a model says of the data."""
    units = collection.raw.attributes.get("units")
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
        **_dropped(collection),
        "reading": collection.raw.reading,
        "sample_weight": weights_digest(weights),
        **({} if target is None else {"target": target.to_json()}),
    }
    parts = growth_states(collection, states)
    if parts is not states and (encoded := encoded_states(parts)) != data["states"]:
        data["states_of_parts"] = encoded
    return data if part is None else {**data, "part": list(part), "n_samples": collection.n_samples}


def _dropped(collection: Prepared) -> dict[str, Any]:
    """Return what the provenance says of samples left out for missing values, where there are any."""
    listed = [list(item) for item in collection.dropped]
    return {"dropped": {"samples": collection.n_dropped, "listed": listed}} if collection.n_dropped else {}


def dims_of(collection: Collection, kind: str) -> tuple[str, ...]:
    """Return the names of a sample's axes in a model of a kind, none of which an array of the model has."""
    return sample_dims(collection, names_of_arrays(model_class(kind)))


def coordinates_of(collection: Collection, kind: str) -> dict[str, Coordinate]:
    """Return the coordinates that a model of a kind has of a collection."""
    return kept_coordinates(collection.coordinates, dims_of(collection, kind), model_class(kind))


def model_of(
    collection: Prepared, found: Decomposition, provenance: dict[str, Any], components: Any
) -> ComponentsModel:
    """Return the model of a decomposition of a collection, whose components are `components`."""
    if found.mapped is not None and collection.pending is not None:
        wanted = replace(collection.pending, kernel=found.mapped.kernel)
        collection = collection.with_steps(replace(collection.preparation, feature_map=wanted, mapped=found.mapped))
    cls = cast("type[ComponentsModel]", model_class(found.kind))
    return cls(
        **numbers_of(found, collection.sample_shape, collection.mask, components),
        sample_dims=dims_of(collection, found.kind),
        coordinates=coordinates_of(collection, found.kind),
        raw_shape=collection.raw.sample_shape,
        raw_kind=collection.raw.dtype.kind,
        mask=collection.mask,
        preparation=collection.preparation,
        provenance=provenance,
    )
