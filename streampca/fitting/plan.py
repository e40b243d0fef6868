"""Everything that is settled before a fit reads data: the prepared collection, its problem, and the plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from inspect import signature
from math import prod
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt

from ..errors import BudgetError, DataError, RequestError, SourceError, nearest
from ..events import Listener, logged, silent
from ..models.pca import STATE_LIMIT
from ..planning import Plan, make_plan, part_plan
from ..planning.blocks import Part
from ..planning.budget import block_limit
from ..planning.landmarks import CHECKED_ROWS, residual_bytes
from ..planning.registry import KINDS, MAPPING_KINDS, OF_KERNEL
from ..planning.request import Problem, Request
from ..planning.sizes import thread_count
from ..preprocessing import Preparation, Prepared, complete_samples, observed_features, resolved
from ..preprocessing.kernel_features import KernelFeatures, KernelOptions
from ..preprocessing.kernels import AUTO
from ..preprocessing.preparation import with_features
from ..preprocessing.sizes_for_planning import problem_of, this_machine
from ..readers import Collection, Opening, open_collection
from ..readers.collection import Array, check_dtype
from ..readers.target import Target, check_target, target_of
from ..readers.views.view import View
from ..readers.weights import total_of, weights_of
from ..storage.coordinate import Coordinate
from ..storage.disk import expanded
from ..storage.free_space import check_free_spaces
from ..units import parse_bytes, parse_shape
from .landmarks import mapped_for
from .learning import learned_for

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
    raw = open_collection(source, **opening) if shape is None else open_declared(shape, dtype, opening, preparation)
    collection = prepared(raw, preparation, request=request, foreseen=True, missing=missing)
    samples = raw if shape else collection.raw
    weight = foreseen_weight(sample_weight, samples, request.half_life, shape)
    learned_from = target_of(target, samples, request, listener=logged)
    found = plan_collection(collection, request, total_weight=weight, target=learned_from)
    return found if shape is None else replace(found, assumed="")  # a declared shape begins with the samples


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


def _with_residuals(problem: Problem, collection: Prepared, request: Request) -> Problem:
    """Return a problem with the bytes and the work of the pass that estimates residuals of mapped samples."""
    before, mapping = collection.unmapped, collection.preparation.mapped
    if before is None or mapping is None:
        raise RequestError(f"kind {request.kind!r} is of samples that go through a feature map; give a kernel.")
    wanted = request.counted_on(problem.most_components)
    k = wanted if isinstance(wanted, int) else problem.most_components
    own = residual_bytes(before.n_features, k, collection.frame.map_rows, mapping.row_bytes)
    flops = mapping.row_flops + mapping.kernel.row_flops(before.n_features, CHECKED_ROWS)
    return replace(problem, following_bytes=thread_count(problem.machine.cores) * own, following_flops=flops)


def plan_collection(
    collection: Prepared,
    request: Request,
    *,
    total_weight: float | None = None,
    target: Target | None = None,
    part: Part | None = None,
) -> Plan:
    """Plan a request on an opened collection, or on a part of it; see `plan`."""
    if collection.n_samples < 2:
        raise DataError(
            f"{collection.source} has one sample, and variance needs at least two; give more images, cut one "
            "into windows by --patches 16x16 (patches=16), or name the axes of one by --sample-axes y,x (sample_axes)."
        )
    problem = replace(problem_of(collection), total_weight=total_weight)
    if collection.pending is not None:
        problem = replace(problem, kernel_rank=collection.n_samples - 1)
    elif request.kind in MAPPING_KINDS and request.method == OF_KERNEL:
        raise RequestError(
            f"method {OF_KERNEL!r} takes samples that are not mapped yet, and these go through a feature map that was "
            "made before; use method 'auto'."
        )
    elif request.kind in MAPPING_KINDS:
        problem = _with_residuals(problem, collection, request)
    if target is not None:
        rank = 0 if KINDS[request.kind] == "number" else target.rank
        problem = replace(problem, target_width=target.width, target_rank=rank)
    made = make_plan(problem, request) if part is None else part_plan(problem, request, part)
    guessed = collection.raw.guessed_axes
    return made if guessed is None else replace(made, assumed=guessed.line())


def foreseen_weight(
    sample_weight: Any, raw: Collection, half_life: float | None = None, shape: Any = None
) -> float | None:
    """Return the sum of the weights to plan with; samples that are only declared, by a shape, count once each."""
    if sample_weight is None and half_life is None:
        return None
    return total_of(weights_of(None if shape is not None else sample_weight, raw, half_life)) or float(raw.n_samples)


def prepared(
    raw: Collection,
    preparation: Preparation | None,
    listener: Listener = silent,
    *,
    weights: Float64 | None = None,
    request: Request | None = None,
    memory: int | None = None,
    foreseen: bool = False,
    missing: str = "error",
    target: Target | None = None,
) -> Prepared:
    """Return a raw collection seen through a preparation, or none, with what that leaves to the data found.

    Parameters
    ----------
    raw : Collection
        The samples.
    preparation : Preparation or None
        Steps applied to them.
    listener : callable
        Told of passes that find what the preparation leaves to the data.
    weights : ndarray of shape (n,), optional
        How often each sample counts in what is learned.
    request : Request, optional
        Request of the fit that follows: where that does not fit the budget, it is refused before anything is learned.
    memory : int, optional
        Budget in bytes where no fit follows; the default as for `Request`.
    foreseen : bool, default=False
        Learn nothing: the collection is for a plan only.
    missing : str, default="error"
        Rule by which features or samples with missing values are left out, before anything is learned.
    target : Target, optional
        Labels or numbers that the fit that follows learns from.

    Raises
    ------
    RequestError
        If the preparation learns from samples, and `missing` leaves samples out or fills them in.
    """
    if preparation is not None and preparation.maps and missing == "em":
        raise RequestError(
            "missing='em' estimates features that components are of, and a feature map makes others of them; leave one "
            "of the two out, or use missing='drop-samples'."
        )
    check = None
    if request is not None and isinstance(preparation, Preparation):
        preparation = preparation.in_precision(request.precision)
    if request is not None:
        memory = request.memory
        check = partial(plan_collection, request=request, total_weight=total_of(weights), target=target)
    if preparation is None or preparation.is_mapped:
        return _before_map(
            raw, preparation, listener, check, weights=weights, memory=memory, foreseen=foreseen, missing=missing
        )
    wanted = cast("KernelFeatures", preparation.feature_map)

    def mapped(before: Prepared, *, listener: Listener = silent, foreseen: bool = False) -> Prepared:
        counted, kept = weights, before.raw.kept
        if weights is not None and before.n_dropped and kept is not None:  # weights are of all samples of `raw`
            counted = weights[kept if raw.kept is None else kept[raw.kept]]
        found = partial(mapped_for, before, wanted, weights=counted, memory=memory)
        if request is not None and _is_by_matrix(partial(found, foreseen=True), wanted, request, check):
            return before.awaiting(wanted)
        return found(foreseen=foreseen, listener=listener)

    def check_map(before: Prepared) -> None:
        if check is not None:
            check(mapped(before, foreseen=True))

    before = _before_map(
        raw,
        preparation.unmapped,
        listener,
        check_map,
        weights=weights,
        memory=memory,
        foreseen=foreseen,
        missing=missing,
    )
    return _learned(partial(mapped, before), listener, check, foreseen=foreseen)


def _is_by_matrix(
    foreseen: Callable[[], Prepared],
    wanted: KernelFeatures,
    request: Request,
    check: Callable[[Prepared], object] | None,
) -> bool:
    """Return whether a fit makes the kernel between all samples of inner products: as asked, or as they do not fit.

    Raises
    ------
    RequestError
        If that is asked for, and is not possible.
    """
    asked, kernel = request.method == OF_KERNEL, wanted.kernel
    possible = wanted.is_exact and kernel.is_of_products and request.kind in MAPPING_KINDS
    if asked and not possible and request.kind in MAPPING_KINDS:
        what = f"landmarks={wanted.landmarks}" if wanted.landmarks is not None else "random features"
        what = f"kernel {kernel.name!r}" if wanted.is_exact else what
        raise RequestError(
            f"method {OF_KERNEL!r} compares all samples by their inner products, which {what} does not; use method "
            "'auto'."
        )
    if asked or not possible or request.method != "auto" or check is None:
        return asked and possible
    try:
        check(foreseen())
    except BudgetError:
        return True
    return False


def _learned(
    learn: Callable[..., Prepared], listener: Listener, check: Callable[[Prepared], object] | None, *, foreseen: bool
) -> Prepared:
    """Learn what a preparation leaves to the data, once the fit that follows is known to fit; or foresee it only."""
    if foreseen:
        return learn(foreseen=True)
    if check is not None:
        check(learn(foreseen=True))
    return learn(listener=listener)


def _before_map(
    raw: Collection,
    preparation: Preparation | None,
    listener: Listener,
    check: Callable[[Prepared], object] | None,
    *,
    weights: Float64 | None,
    memory: int | None,
    foreseen: bool,
    missing: str,
) -> Prepared:
    """Return what `prepared` does, or where a feature map is to be found, the collection before it."""
    given = narrowed(raw, preparation)
    if isinstance(given, Prepared) and missing == "error":
        return given
    raw, preparation = (given.raw, given.preparation) if isinstance(given, Prepared) else (given, preparation)
    preparation, drops = preparation or Preparation(), missing == "drop-features" and raw.dtype.kind == "f"
    _check_missing(preparation, missing)
    limit = block_limit(this_machine(raw.converted_bytes), memory)
    if not preparation.is_resolved or missing != "error":
        raw.states()  # before anything is read
        preparation = resolved(preparation, raw, listener, block_bytes=limit, drops_features=drops)
    if preparation.is_resolved:
        collection = Prepared(raw, preparation)
        if missing == "drop-samples":
            return complete_samples(collection, listener, block_bytes=limit)
        return observed_features(collection, listener, block_bytes=limit) if missing == "em" else collection
    learn = partial(learned_for, raw, preparation, weights=weights, memory=memory)
    return _learned(learn, listener, check, foreseen=foreseen)


def _check_missing(preparation: Preparation, missing: str) -> None:
    """Refuse steps that learn means together with a rule that changes their samples or pixels."""
    if missing == "error" or not preparation.learns:
        return
    steps = {"anomaly": preparation.anomaly, "detrend": preparation.detrend, "standardize": preparation.standardize}
    step = next(f"{name}={value!r}" for name, value in steps.items() if value)
    if preparation.learned is not None:
        raise RequestError(
            f"missing={missing!r} would change the samples or pixels of which {step} of this preparation was learned; "
            "leave missing out, or give a new Preparation."
        )
    if missing != "drop-features":
        raise RequestError(
            f"missing={missing!r} does not go with {step}, which is learned of samples that have all values; leave "
            "one of the two out, or use missing='drop-features'."
        )


def narrowed(raw: Collection, preparation: Preparation | None) -> Collection:
    """Return a raw collection without the images that a preparation, or none, does not make fit, if it may do so."""
    if preparation is not None and not isinstance(preparation, Preparation):
        raise RequestError(f"preparation {preparation!r} is not a Preparation; give such as Preparation(bin=2).")
    return raw.fitting((preparation or Preparation()).shape_of_image)
