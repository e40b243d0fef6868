"""`plan`: plan a fit without reading data, also for data that do not exist yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Unpack

import numpy as np

from ..arrays import Array
from ..errors import RequestError, SourceError
from ..events import Listener
from ..execution import ClusterOptions, Executor
from ..execution.checkpoint import CheckpointFolder
from ..execution.executor import cluster_of, executing, planning_for
from ..kinds.description import Description
from ..kinds.opening import OpeningOptions
from ..kinds.run import Part, part_of
from ..models.pca import STATE_LIMIT
from ..planning import Plan
from ..planning.embedding import EmbeddingPlan
from ..planning.request import Request
from ..preprocessing import Preparation
from ..preprocessing.run_options import FitOptions
from ..readers import Collection, open_collection
from ..readers.collection import check_dtype
from ..readers.target import check_target
from ..readers.views.view import View
from ..storage.coordinate import Coordinate
from ..storage.free_space import check_free_spaces
from ..units import parse_shape
from .arguments import DEFAULT, arguments_of
from .calibration import calibrated
from .open_fit import open_fit


class DeclaredOptions(FitOptions, total=False):
    """Options of a run and of opening, and the shape of data that do not exist yet, whose dtype that of opening is."""

    shape: Sequence[int] | str | None


class PlanOptions(DeclaredOptions, total=False):
    """Options of `plan`: those of `fit`, of data that do not exist yet, and of measuring."""

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
    """Plan what `fit` would do; reads headers only.

    Parameters
    ----------
    source : optional
        As for `fit`; or leave it out, and give `shape`.
    kind, n_components, target, sample_weight, preparation : optional
        As for `fit`.
    **options
        As for `fit`; `workers` processes share the work, each within the budget, or those of a `cluster` that is there
        (a client, or a cluster of dask's). Also ``shape`` of data that do not
        exist yet, samples first, such as ``"60000x28x28"``, and their ``dtype``, "uint8" by default. With
        ``measure=True`` the time is predicted by rates that are measured here, on a few samples; else by a table of
        rates.

    Returns
    -------
    Plan or EmbeddingPlan
        The plan; printing it shows method, passes, memory, time, and why other methods are rejected.

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
    shape, measure = options.pop("shape", None), options.pop("measure", False)
    dtype = "uint8" if shape is None else options.pop("dtype", None) or "uint8"
    arguments = arguments_of(plan, kind, n_components, preparation, options)
    run, opening, preparation, is_declared = arguments.run, arguments.opening, arguments.preparation, shape is not None
    cluster = cluster_of(run)  # refuses options that do not go together
    if source is not None and shape is not None:
        raise RequestError(f"source and shape={shape!r} are given, and one of them is planned for; leave one out.")
    check_target(target, arguments.model)
    raw = open_collection(source, **opening) if shape is None else open_declared(shape, dtype, opening, preparation)
    # No cluster is started, or reached, to plan for it.
    with executing(None if isinstance(cluster, ClusterOptions) else cluster) as executor, planning_for(executor):
        request = with_executor_limits(arguments.request(workers=run.workers or 1), executor, None)
        opened = open_fit(
            raw,
            request,
            preparation,
            sample_weight=None if is_declared else sample_weight,
            target=target,
            foreseen=True,
            listener=arguments.listener,
        )
        if is_declared and sample_weight is not None and opened.weights is None:  # each counts once
            opened = replace(opened, declared_weight=float(raw.n_samples))
        if arguments.model.uses_graph:
            return opened.plan_stages()
        made = opened.plan(part=part_of(run.part))
    if is_declared:
        return replace(made, assumed="")  # the first axis of a declared shape counts the samples: nothing is assumed
    # The feature map does not exist yet, so that reading is measured without it.
    return calibrated(made, opened.collection.unmapped or opened.collection) if measure else made


def with_executor_limits(request: Request, executor: Executor, checkpoint: CheckpointFolder | None) -> Request:
    """Return the request with the memory, also of a device, workers and network of a resumed fit, or the executor's."""
    before = {} if checkpoint is None else checkpoint.record
    return replace(
        request,
        memory=before.get("memory") or request.memory or executor.memory,
        workers=before.get("workers") or max(request.workers, executor.workers),
        device_memory=before.get("device_memory"),
        network=before.get("network", request.network),
    )


def limits_of(plan: Plan) -> dict[str, Any]:
    """Return what the checkpoint of a fit records for `with_executor_limits` of the run that is resumed."""
    return {
        "memory": plan.memory,
        "device_memory": plan.problem.machine.device_memory,
        "workers": plan.workers,
        "network": plan.request.network,
    }


def warn_of_disk(
    plan: Plan, output: str | None, checkpoint: str | None, listener: Listener, *, part: Part | None = None
) -> None:
    """Warn if the disk may lack space; no error, as models are compressed and checkpoints can be done without."""
    needed = {}
    if output is not None:
        statistic = plan.state_bytes if plan.method == "covariance" else 0
        stored = statistic if part is not None or statistic <= STATE_LIMIT else 0
        loadings = plan.fewest_components * prod(plan.problem.sample_shape)
        needed[output] = plan.component_itemsize * loadings + stored
    if checkpoint is not None:
        needed[checkpoint] = 2 * plan.state_bytes  # the last two states
    check_free_spaces(needed, at_most=listener)


def declared(shape: Sequence[int] | str, dtype: Any) -> Any:
    """Return an array of zeros that takes no memory, which stands for data that do not exist yet.

    Raises
    ------
    RequestError
        If the shape or dtype is not that of numbers in an array.
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
    """Open data that do not exist yet; raises as `declared`.

    A preparation that depends on dates is planned as if samples were of consecutive days.
    """
    raw = open_collection(declared(shape, dtype), **opening)
    return raw if preparation is None or not preparation.learns else _Daily(raw)


class _Daily(View):
    """A collection whose samples are given the dates of consecutive days."""

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        return {"time": Coordinate(np.arange(self.n_samples), {"units": "days since 2000-01-01"})}

    def read(self, rows: slice, features: slice | None = None) -> Array:
        return self.base.read(rows, features)
