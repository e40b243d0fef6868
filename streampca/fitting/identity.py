"""The identity of a fit: everything that must be equal for an unfinished fit to be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_type_hints

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..errors import ModelError
from ..kinds.run import Part
from ..kinds.values import Count, accepted_entries
from ..models.model import Model
from ..models.pca import PCAModel
from ..planning import Plan
from ..planning.integer_units import bytes_a_number
from ..planning.request import RUN_FIELDS, Machine, Problem, Request
from ..preprocessing import Preparation, Prepared
from ..readers.collection import State, digest, states_by_name
from ..storage.integrity import naming_damage

# Fields of a plan that decide the bits of the answer, and the places at which blocks begin.
DECISIVE = (
    "method", "precision", "solver", "schedule", "block_rows", "product_rows", "spans", "block_features",
    "product_features", "stored", "threads", "ahead", "width", "columns",
)  # fmt: skip


def identity_of(
    collection: Prepared,
    request: Request,
    digest_of_weights: str | None,
    part: Part | None,
    states: Sequence[State],
    digest_of_target: str | None = None,
) -> dict[str, Any]:
    """Return the identity of a fit as plain data: the request, and the states of the data."""
    requested = {
        name: value for name, value in request.given.items() if name not in RUN_FIELDS or name in ("memory", "device")
    }
    return {
        **described(collection.source, requested, collection.asked, collection.mask, part, digest_of_weights),
        **({} if digest_of_target is None else {"target": digest_of_target}),
        "version of streampca": __version__,
        "number of samples": collection.n_samples,
        **states_by_name(states),
    }


def described(
    source: str | None,
    requested: Mapping[str, Any],
    preparation: Preparation,
    mask: npt.NDArray[np.bool_] | None,
    part: Sequence[int] | None,
    digest_of_weights: str | None,
) -> dict[str, Any]:
    """Return the request of a fit as plain data, with the source, preparation and weights; arrays by their digests."""
    scale = preparation.scale
    return {
        **requested,
        **preparation.to_json(),
        "mask": None if mask is None else digest(mask.tobytes()),
        "scale": digest(scale.tobytes()) if isinstance(scale, np.ndarray) else scale,
        **({} if preparation.learned is None else {"means": preparation.learned.digest}),
        **({} if preparation.mapped is None else {"feature map": preparation.mapped.digest}),
        "part": part and list(part),
        "source": source,
        "sample_weight": digest_of_weights,
    }


def decisive_fields(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan that must be equal for a fit to be resumed."""
    # Sums of 8-bit values are exact with and without integer units; sums of 16-bit values only with them.
    names = {*DECISIVE, "integer_units"} if bytes_a_number(plan.problem) > 1 else DECISIVE
    return {name: value for name, value in plan.to_json().items() if name in names}


def check_adds(model: Model, name: str) -> PCAModel:
    """Return a model that can be updated and merged; refuse a kind that keeps no statistic.

    Raises
    ------
    ModelError
        If it is of another kind than "pca", has no components, or its record of the fit's plan is damaged.
    """
    if not isinstance(model, PCAModel):
        raise ModelError(
            f"{name} is of kind {model.kind!r}, and only models of kind {PCAModel.kind!r} can be updated and merged; "
            "fit all samples together."
        )
    model.count_of(None)
    if "plan" in model.provenance:
        with naming_damage(name, "its record of the fit"):
            _check_plan(model.provenance["plan"])
    return model


def _check_plan(plan: Mapping[str, Any]) -> None:
    """Refuse a recorded plan without what updates and merges go on from."""
    accepted_entries({"precision": Literal["single", "double"]}, {"precision": plan["precision"]})
    accepted_entries(get_type_hints(Problem) | {"sample_shape": list[Count]}, plan["problem"])
    Problem.from_json(plan["problem"], Machine())  # refuses one that lacks a field
    Request.from_given(plan["request"])
