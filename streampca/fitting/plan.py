"""`plan`: the plan of a fit, made without reading data, also of data that are not here yet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from inspect import signature
from math import prod
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..errors import RequestError, SourceError, nearest
from ..events import Listener, logged
from ..models.pca import STATE_LIMIT
from ..planning import Plan
from ..planning.blocks import Part
from ..planning.request import Request
from ..preprocessing import Preparation
from ..preprocessing.kernel_features import KernelOptions
from ..preprocessing.kernels import AUTO
from ..preprocessing.preparation import with_features
from ..readers import Collection, Opening, open_collection
from ..readers.collection import Array, check_dtype
from ..readers.target import check_target
from ..readers.views.view import View
from ..storage.coordinate import Coordinate
from ..storage.disk import expanded
from ..storage.free_space import check_free_spaces
from ..units import parse_bytes, parse_shape
from .open_fit import open_fit

Float64 = npt.NDArray[np.float64]


def plan(
    source: Any = None,
    *,
    kind: str = "pca",
    target: Any = None,
    target_type: str = "auto",
    shrinkage: float | None = None,
    n_slices: int = 10,
    threshold: float | str = "auto",
    n_folds: int = 5,
    metric: str = "euclidean",
    n_components: int | float | str | None = 0.95,
    method: str = "auto",
    memory: int | str | None = None,
    precision: str = "auto",
    tol: float = 1e-4,
    max_passes: int | None = None,
    half_life: float | None = None,
    preparation: Preparation | None = None,
    missing: str = "error",
    sample_weight: Any = None,
    kernel: str | Callable[[Any, Any], float] | None = None,
    gamma: float | str | None = AUTO,
    degree: int = 3,
    coef0: float = 1.0,
    landmarks: int | str | None = None,
    random_features: int | None = None,
    landmark_choice: str = "uniform",
    shape: Sequence[int] | str | None = None,
    dtype: Any = "uint8",
    workers: int = 1,
    output: str | os.PathLike[str] | None = None,
    scratch: str | os.PathLike[str] | None = None,
    **opening: Unpack[Opening],
) -> Plan:
    """Say what `fit` would do, without reading more than headers.

    Parameters
    ----------
    source : optional
        As for `fit`; or leave it out and give `shape`.
    shape : sequence of int or str, optional
        (n, *sample_shape) of data that are not here yet, e.g. ``"60000x28x28"``.
    dtype : dtype, default="uint8"
        Dtype of data declared by `shape`.
    workers : int, default=1
        Processes that would share the work, each within the budget.
    kind, target, target_type, shrinkage, n_slices, threshold, n_folds, metric, n_components, method : optional
    memory, precision : optional
    tol, max_passes, half_life, preparation, missing, sample_weight, kernel, gamma, degree, coef0 : optional
    landmarks, random_features, landmark_choice, output, scratch, **opening
        As for `fit`.

    Returns
    -------
    Plan
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
    request = Request(
        n_components=n_components,
        method=method,
        memory=parse_bytes(memory),
        precision=precision,
        workers=workers,
        scratch=None if scratch is None else expanded(scratch),
        output=output is not None,
        tol=tol,
        max_passes=max_passes,
        half_life=half_life,
        missing=missing,
        kind=kind,
        target_type=target_type,
        shrinkage=shrinkage,
        n_slices=n_slices,
        threshold=threshold,
        n_folds=n_folds,
        metric=metric,
    )
    check_options(plan, opening)
    check_target(target, kind)
    options = KernelOptions(kernel, gamma, degree, coef0, landmarks, random_features, landmark_choice)
    preparation = with_features(preparation, kind, options)
    if shape is not None:
        raw = open_declared(shape, dtype, opening, preparation)
        return plan_declared(raw, request, preparation, weighted=sample_weight is not None, target=target)
    raw = open_collection(source, **opening)
    columns: dict[str, Any] = {"sample_weight": sample_weight, "target": target}
    return open_fit(raw, request, preparation, **columns, foreseen=True, listener=logged).plan()


def plan_declared(
    raw: Collection, request: Request, preparation: Preparation | None, *, weighted: bool, target: Any = None
) -> Plan:
    """Plan a fit of samples that are not here yet, each of which counts once where they have weights."""
    opened = open_fit(raw, request, preparation, target=target, foreseen=True, listener=logged)
    if weighted and opened.weights is None:
        opened = replace(opened, declared_weight=float(raw.n_samples))
    return replace(opened.plan(), assumed="")  # a declared shape begins with the samples


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


def check_options(function: Callable[..., Any], opening: Mapping[str, Any]) -> None:
    """Refuse keywords that are no options of opening, naming the nearest option of `function`."""
    prepares, opens = [field.name for field in fields(Preparation)], list(Opening.__annotations__)
    for name in opening:
        if name in prepares:
            raise TypeError(f"{name!r} is a step of preparation; give preparation=Preparation({name}=...).")
        if name not in opens:
            known = [*list(signature(function).parameters)[1:], *opens]
            raise TypeError(f"{name!r} is not an option.{nearest(name, known)}")


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
    shape: Sequence[int] | str, dtype: Any, opening: Opening, preparation: Preparation | None
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
