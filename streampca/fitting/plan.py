"""`plan`: the plan of a fit, made without reading data, also of data that are not here yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..errors import RequestError, SourceError
from ..events import Listener
from ..execution.executor import cluster_of
from ..kinds.description import Description
from ..kinds.opening import OpeningOptions
from ..kinds.part import Part, part_of
from ..models.pca import STATE_LIMIT
from ..planning import Plan
from ..planning.embedding import EmbeddingPlan
from ..preprocessing import Preparation
from ..preprocessing.run_options import FitOptions
from ..readers import Collection, open_collection
from ..readers.collection import Array, check_dtype
from ..readers.target import check_target
from ..readers.views.view import View
from ..storage.coordinate import Coordinate
from ..storage.free_space import check_free_spaces
from ..units import parse_shape
from .arguments import DEFAULT, arguments_of
from .calibration import calibrated
from .open_fit import open_fit

Float64 = npt.NDArray[np.float64]


class DeclaredOptions(FitOptions, total=False):
    """Options of a run and of opening, and the shape and dtype of data that are not here yet."""

    shape: Sequence[int] | str | None
    dtype: Any


class PlanOptions(DeclaredOptions, total=False):
    """Options of `plan`: those of `fit`, data that are not here yet, and measuring."""

    measure: bool


def plan(
    source: Any = None,
    kind: Description | None = None,
    *,
    n_components: int | float | str | None = DEFAULT,
    target: Any = None,
    sample_weight: Any = None,
    preparation: Preparation | None = None,
    **options: Unpack[PlanOptions],
) -> Plan | EmbeddingPlan:
    """Plan what `fit` would do, without reading more than headers.

    Parameters
    ----------
    source : optional
        As for `fit`; or leave it out and give `shape`.
    kind, n_components, target, sample_weight, preparation : optional
        As for `fit`.
    **options
        As for `fit`; `workers` processes share the work, each within the budget. Also ``shape`` of data that are not
        here yet, samples first, such as ``"60000x28x28"``, and their ``dtype``, "uint8" by default. With
        ``measure=True`` a few samples are read, whose time predicts that of the fit; else it is that of a table of
        rates.

    Returns
    -------
    Plan or EmbeddingPlan
        Print it.

    Raises
    ------
    BudgetError, RequestError, SourceError
        As `fit`.

    Examples
    --------
    >>> import streampca
    >>> plan = streampca.plan(shape=(10**6, 256, 256), dtype="uint8", n_components=50, memory="8 GiB")
    >>> plan.method
    'randomized'
    >>> plan.passes
    5
    """
    shape, dtype, measure = options.pop("shape", None), options.pop("dtype", "uint8"), options.pop("measure", False)
    given = arguments_of(plan, kind, n_components, preparation, options)
    cluster_of(given.run)  # refuses options that do not go together
    if source is not None and shape is not None:
        raise RequestError(f"source and shape={shape!r} are given, and one of them is planned for; leave one out.")
    check_target(target, given.model)
    request = given.request(workers=given.run.workers or 1)
    how: dict[str, Any] = {"target": target, "foreseen": True, "listener": given.listener}
    if shape is not None:
        raw = open_declared(shape, dtype, given.opening, given.preparation)
        opened = open_fit(raw, request, given.preparation, **how)
        if sample_weight is not None and opened.weights is None:  # each sample counts once
            opened = replace(opened, declared_weight=float(raw.n_samples))
        if given.model.uses_graph:
            return opened.plan_stages()
        made = opened.plan(part=part_of(given.run.part))
        return replace(made, assumed="")  # a declared shape begins with the samples
    raw = open_collection(source, **given.opening)
    opened = open_fit(raw, request, given.preparation, sample_weight=sample_weight, **how)
    if given.model.uses_graph:
        return opened.plan_stages()
    made = opened.plan(part=part_of(given.run.part))
    # The feature map does not exist yet, so that reading is measured without it.
    return calibrated(made, opened.collection.unmapped or opened.collection) if measure else made


def warn_of_disk(
    plan: Plan, output: str | None, checkpoint: str | None, listener: Listener, *, part: Part | None = None
) -> None:
    """Warn where a model, which is compressed, and checkpoints, which are no condition, may not fit the disk."""
    needed = {}
    if output is not None:
        statistic = plan.state_bytes if plan.method == "covariance" else 0
        kept = statistic if part is not None or statistic <= STATE_LIMIT else 0
        loadings = plan.fewest_components * prod(plan.problem.sample_shape)
        needed[output] = plan.component_itemsize * loadings + kept
    if checkpoint is not None:
        needed[checkpoint] = 2 * plan.state_bytes  # the last two states
    check_free_spaces(needed, at_most=listener)


def declared(shape: Sequence[int] | str, dtype: Any) -> Any:
    """Return an array of zeros that takes no memory, for planning for data that are not here yet.

    Raises
    ------
    RequestError
        If the shape or dtype makes no sense.
    """
    lengths = parse_shape(shape if isinstance(shape, str) else "x".join(str(length) for length in shape))
    try:
        return np.broadcast_to(np.zeros((), check_dtype(np.dtype(dtype), "the declared collection")), lengths)
    except (TypeError, SourceError):
        raise RequestError(f"dtype {dtype!r} is not a real number's; give one such as uint8 or float32.") from None
    except ValueError:
        raise RequestError(f"shape {shape!r} is more than 2^63 bytes; give the shape of a part.") from None


def open_declared(
    shape: Sequence[int] | str, dtype: Any, opening: OpeningOptions, preparation: Preparation | None
) -> Collection:
    """Open data that are not here yet; raises as `declared`.

    Where a preparation depends on dates, samples are taken to be of consecutive days.
    """
    raw = open_collection(declared(shape, dtype), **opening)
    return raw if preparation is None or not preparation.learns else _Daily(raw)


class _Daily(View):
    """The samples of another collection, with a date each."""

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        return {"time": Coordinate(np.arange(self.n_samples), {"units": "days since 2000-01-01"})}

    def read(self, rows: slice, features: slice | None = None) -> Array:
        return self.base.read(rows, features)
