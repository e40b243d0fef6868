"""Prepare a collection for a fit, and plan it: steps applied, what they learn of the samples, and the feature map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import BudgetError, DataError, RequestError
from ..events import Listener, silent
from ..kinds.part import Part
from ..planning import Plan, make_plan, part_plan
from ..planning.budget import block_limit
from ..planning.landmarks import CHECKED_ROWS, residual_bytes
from ..planning.registry import OF_KERNEL
from ..planning.request import Problem, Request
from ..planning.sizes import thread_count
from ..preprocessing import Preparation, Prepared, complete_samples, observed_features, resolved
from ..preprocessing.kernel_features import KernelFeatures
from ..preprocessing.sizes_for_planning import problem_of, this_machine
from ..readers import Collection
from ..readers.target import Target
from ..readers.weights import total_of
from .landmarks import mapped_for
from .learning import learned_for

Float64 = npt.NDArray[np.float64]


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
    elif request.model.maps_samples and request.method == OF_KERNEL:
        raise RequestError(
            f"method {OF_KERNEL!r} takes samples that are not mapped yet, and these go through a feature map that was "
            "made before; use method 'auto'."
        )
    elif request.model.maps_samples:
        problem = _with_residuals(problem, collection, request)
    if target is not None:
        rank = 0 if request.model.target_rule == "number" else target.rank
        problem = replace(problem, target_width=target.width, target_rank=rank)
    made = make_plan(problem, request) if part is None else part_plan(problem, request, part)
    guessed = collection.raw.guessed_axes
    return made if guessed is None else replace(made, assumed=guessed.line())


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


def prepare(
    raw: Collection,
    preparation: Preparation | None = None,
    request: Request | None = None,
    *,
    weights: Float64 | None = None,
    target: Target | None = None,
    is_planned: bool = False,
    foreseen: bool = False,
    listener: Listener = silent,
) -> Prepared:
    """Return a raw collection seen through a preparation, or none, with what that leaves to the data found.

    Parameters
    ----------
    raw : Collection
        The samples.
    preparation : Preparation or None
        Steps applied to them.
    request : Request, optional
        Request that has the budget, and the rule by which features or samples with missing values are left out before
        anything is learned; by default that of a fit without options.
    weights : ndarray of shape (n,), optional
        How often each sample counts in what is learned.
    target : Target, optional
        Labels or numbers that the fit that follows learns from.
    is_planned : bool, default=False
        Plan the fit of the request beforehand: where that does not fit the budget, it is refused before anything is
        learned.
    foreseen : bool, default=False
        Learn nothing: the collection is for a plan only.
    listener : callable
        Told of passes that find what the preparation leaves to the data.

    Raises
    ------
    RequestError
        If the preparation learns from samples, and `missing` leaves samples out or fills them in.
    """
    raw, request = drop_misfit_images(raw, preparation), request or Request()
    if preparation is not None and preparation.maps and request.missing == "em":
        raise RequestError(
            "missing='em' estimates features that components are of, and a feature map makes others of them; leave one "
            "of the two out, or use missing='drop-samples'."
        )
    check = None
    if is_planned:
        check = partial(plan_collection, request=request, total_weight=total_of(weights), target=target)
    learning: dict[str, Any] = {
        "weights": weights, "memory": request.memory, "foreseen": foreseen, "missing": request.missing,
    }  # fmt: skip
    if preparation is None or preparation.is_mapped:
        return _before_map(raw, preparation, listener, check, **learning)
    wanted = cast("KernelFeatures", preparation.feature_map)

    def mapped(before: Prepared, *, listener: Listener = silent, foreseen: bool = False) -> Prepared:
        counted, kept = weights, before.raw.kept
        if weights is not None and before.n_dropped and kept is not None:  # weights are of all samples of `raw`
            counted = weights[kept if raw.kept is None else kept[raw.kept]]
        found = partial(mapped_for, before, wanted, weights=counted, memory=request.memory)
        if is_planned and _is_by_matrix(partial(found, foreseen=True), wanted, request, check):
            return before.awaiting(wanted)
        return found(foreseen=foreseen, listener=listener)

    def check_map(before: Prepared) -> None:
        if check is not None:
            check(mapped(before, foreseen=True))

    before = _before_map(raw, preparation.unmapped, listener, check_map, **learning)
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
    possible = wanted.is_exact and kernel.is_of_products and request.model.maps_samples
    if asked and not possible and request.model.maps_samples:
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
    """Return what `prepare` does, or where a feature map is to be found, the collection before it."""
    if isinstance(raw, Prepared) and missing == "error":
        return raw
    raw, preparation = (raw.raw, raw.preparation) if isinstance(raw, Prepared) else (raw, preparation)
    preparation, drops = preparation or Preparation(), missing == "drop-features" and raw.dtype.kind == "f"
    _check_missing(preparation, missing)
    limit = block_limit(this_machine(raw.storage.converted_bytes), memory)
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


def drop_misfit_images(raw: Collection, preparation: Preparation | None) -> Collection:
    """Return a raw collection without the images that a preparation, or none, does not make fit, if it may do so."""
    if preparation is not None and not isinstance(preparation, Preparation):
        raise RequestError(f"preparation {preparation!r} is not a Preparation; give such as Preparation(bin=2).")
    return raw.fitting((preparation or Preparation()).shape_of_image)
