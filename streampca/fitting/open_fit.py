"""`open_fit`, the front half of every fit: choice and preparation of samples, weights, target, and the plan.

Python functions, estimators, commands and run files all fit models through this function, so that equal requests give
equal results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import numpy.typing as npt

from .. import machine
from ..arrays import Float64
from ..errors import BudgetError, DataError, RequestError
from ..events import FileSkipped, Listener, silent
from ..kinds.run import Part
from ..planning import Plan, make_plan, part_plan
from ..planning.blocks import block_limit
from ..planning.embedding import EmbeddingPlan
from ..planning.landmarks import CHECKED_ROWS, residual_bytes
from ..planning.memory import thread_count
from ..planning.registry import OF_KERNEL
from ..planning.request import Problem, Request
from ..preprocessing import Preparation, Prepared, complete_samples, observed_features, resolved
from ..preprocessing.kernel_features import KernelFeatures
from ..preprocessing.sizes_for_planning import multiplied_on, problem_of, this_machine
from ..readers import Collection
from ..readers.target import Target, check_target, target_of
from ..readers.views.compose import samples_of_image
from ..readers.weights import weights_of
from ..units import format_bytes
from .landmarks import mapped_for
from .learning import learned_for


@dataclass(frozen=True, eq=False)
class Opened:
    """The inputs of a fit, complete before its first pass.

    Attributes
    ----------
    collection : Prepared
        Prepared samples.
    request : Request
        Kind of model and options of the run.
    weights : ndarray of shape (n,) or None
        Weight of each sample; None if all are 1.
    target : Target or None
        Labels or numbers that a supervised kind learns from.
    declared_weight : float or None
        Sum of the weights of samples that do not exist yet.
    graph : NeighborGraph or None
        Graph of the samples' neighbours, if it is an input of an embedding.
    actions : ndarray of shape (n - 1,) or None
        Labels of the actions between consecutive samples, for the kind that learns from them.
    """

    collection: Prepared
    request: Request
    weights: Float64 | None = None
    target: Target | None = None
    declared_weight: float | None = None
    graph: Any = None
    actions: npt.NDArray[Any] | None = None

    @property
    def total_weight(self) -> float | None:
        """Sum of the weights; None if all are 1."""
        return self.declared_weight if self.weights is None else float(self.weights.sum())

    def plan(self, *, part: Part | None = None) -> Plan:
        """Plan the fit of principal components, or that of a part of the collection."""
        return plan_collection(
            self.collection, self.request, total_weight=self.total_weight, target=self.target, part=part
        )

    def plan_stages(self) -> EmbeddingPlan:
        """Plan all stages of an embedding."""
        from .embedding_plan import plan_stages  # loads the manifold methods, which other fits do not need

        return plan_stages(self.collection, self.request, has_graph=self.graph is not None)


def open_fit(
    raw: Collection,
    request: Request,
    preparation: Preparation | None = None,
    *,
    sample_weight: Any = None,
    target: Any = None,
    shared: bool = False,
    foreseen: bool = False,
    listener: Listener = silent,
) -> Opened:
    """Complete the inputs of a fit before its first pass.

    Parameters
    ----------
    raw : Collection
        Samples as they were opened.
    request : Request
        Kind of model and options of the run; refused if it exceeds the budget, before anything is learned.
    preparation : Preparation, optional
        Steps applied to every sample, including the feature map of a kernel.
    sample_weight : optional
        Column of weights; see `streampca.fit`.
    target : optional
        Column of labels or numbers; see `streampca.fit`.
    shared : bool, default=False
        True if workers share the work; their memory is then known only if the request sets it.
    foreseen : bool, default=False
        Read headers only, for a plan; learned steps get arrays that take no memory.
    listener : callable
        Receiver of events: passes in which the preparation learns, and the assumed type of a target.

    Raises
    ------
    SourceError, DataError, RequestError, BudgetError
        As `streampca.fit`.
    """
    raw = _without_misfits(raw, preparation, listener)
    preparation = None if preparation is None else preparation.in_precision(request.precision)
    if request.model.uses_graph:
        return _open_embedding(raw, request, preparation, sample_weight, target, foreseen=foreseen, listener=listener)
    weights = weights_of(sample_weight, raw, request.half_life)
    target_column = None
    if target is not None or request.model.target_rule:
        target_column = target_of(target, raw, request, weights, listener=listener)
    # Method "kernel-matrix" is chosen while preparing, which requires a plan even if the memory is unknown.
    memory_is_known = not shared or request.memory is not None or request.method == OF_KERNEL
    collection = prepare(
        raw,
        preparation,
        request,
        weights=weights,
        target=target_column,
        is_planned=memory_is_known,
        foreseen=foreseen,
        listener=listener,
    )
    if collection.n_dropped:  # read both again for the remaining samples; the type of the target stays that of all
        weights = weights_of(sample_weight, collection.raw, request.half_life)
        if target_column is not None:
            target_column = target_of(target, collection.raw, request, weights, taken=target_column)
    return Opened(collection, request, weights, target_column)


def open_samples(
    raw: Collection,
    preparation: Preparation | None,
    *,
    memory: int | None,
    foreseen: bool = False,
    listener: Listener = silent,
) -> Prepared:
    """Prepare the samples of a graph, a measure of dependence or a copy, which fit no model; see `open_fit`."""
    raw = _without_misfits(raw, preparation, listener)
    return prepare(raw, preparation, Request(memory=memory), foreseen=foreseen, listener=listener)


def _without_misfits(raw: Collection, preparation: Preparation | None, listener: Listener) -> Collection:
    """Leave out images of another shape than the others after a preparation, with an event for each."""
    fitting, skipped = drop_misfit_images(raw, preparation), set(raw.skipped)
    for item in fitting.skipped:
        if item not in skipped:
            listener(FileSkipped(*item))
    return fitting


def _open_embedding(
    raw: Collection,
    request: Request,
    preparation: Preparation | None,
    sample_weight: Any,
    target: Any,
    *,
    foreseen: bool,
    listener: Listener,
) -> Opened:
    """Complete the inputs of an embedding by the graph of its samples' neighbours; see `open_fit`."""
    # Imported here: it loads the manifold methods, which other fits do not need.
    from .embedding_inputs import actions_of, given_graph, with_inputs

    if sample_weight is not None:
        raise RequestError(f"kind {request.kind!r} counts every sample once; leave sample_weight out.")
    check_target(target, request.model)
    collection = prepare(raw, preparation, request, foreseen=foreseen, listener=listener)
    graph, actions = given_graph(request.options.graph, collection), actions_of(target, collection)
    return Opened(collection, with_inputs(request, graph), graph=graph, actions=actions)


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
            f"{collection.source} has one sample, and variance needs at least two; give more images"
            f"{samples_of_image(collection.raw)}."
        )
    problem = replace(problem_of(collection), total_weight=total_weight)
    if request.device:
        problem = multiplied_on(request.device, problem, request.device_memory, collection.frame.device_bytes)
    if collection.pending is not None:
        problem = replace(problem, kernel_rank=collection.n_samples - 1)  # centring takes one direction
        if collection.holds_landmarks:
            held = collection.n_samples * collection.n_features * collection.dtype.itemsize
            problem = replace(problem, held_bytes=problem.held_bytes + held)
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
    plan = make_plan(problem, request) if part is None else part_plan(problem, request, part)
    if request.device and plan.device_bytes > (free := _free_memory(request.device, collection)):
        raise BudgetError(
            f"the fit to resume was planned with {format_bytes(plan.device_bytes)} of the memory of device "
            f"{request.device!r}, and {format_bytes(free)} are free now; resume it when other work there has ended, or "
            "remove its checkpoint to start again."
        )
    guessed = collection.raw.guessed_axes
    return plan if guessed is None else replace(plan, assumed=guessed.line())


def _free_memory(device: str, collection: Prepared) -> int:
    """Return the bytes that are free on a device beside a feature map."""
    return machine.device_memory(device) - collection.frame.device_bytes


def _with_residuals(problem: Problem, collection: Prepared, request: Request) -> Problem:
    """Return a problem with the memory and the work of the pass that estimates residuals of mapped samples."""
    before, mapping = collection.unmapped, collection.preparation.mapped
    if before is None or mapping is None:
        raise RequestError(f"kind {request.kind!r} is of samples that go through a feature map; give a kernel.")
    requested = request.counted_on(problem.most_components)
    k = requested if isinstance(requested, int) else problem.most_components
    thread_bytes = residual_bytes(before.n_features, k, collection.frame.map_rows, mapping.row_bytes)
    flops = mapping.row_flops + mapping.kernel.row_flops(before.n_features, CHECKED_ROWS)
    return replace(problem, following_bytes=thread_count(problem.machine.cores) * thread_bytes, following_flops=flops)


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
    """Return a prepared collection, after the passes in which the preparation learns from it.

    Parameters
    ----------
    raw : Collection
        The samples.
    preparation : Preparation or None
        Steps applied to them.
    request : Request, optional
        Request with the budget, and with the rule that leaves out features or samples with missing values before
        anything is learned; by default that of a fit without options.
    weights : ndarray of shape (n,), optional
        Weights of samples for learning.
    target : Target, optional
        Labels or numbers that the following fit learns from.
    is_planned : bool, default=False
        Plan the fit of the request first, and refuse it before anything is learned if it exceeds the budget.
    foreseen : bool, default=False
        Learn nothing: the collection is for a plan only.
    listener : callable
        Receiver of events of the passes in which the preparation learns.

    Raises
    ------
    RequestError
        If the preparation learns from samples, and `missing` leaves samples out or estimates values.
    """
    raw, request = drop_misfit_images(raw, preparation), request or Request()
    if preparation is not None and preparation.maps and request.missing == "em":
        raise RequestError(
            "missing='em' estimates features that components are of, and a feature map makes others of them; leave one "
            "of the two out, or use missing='drop-samples'."
        )
    check = None
    if is_planned:
        total = None if weights is None else float(weights.sum())
        check = partial(plan_collection, request=request, total_weight=total, target=target)
    learning: dict[str, Any] = {
        "weights": weights, "memory": request.memory, "foreseen": foreseen, "missing": request.missing,
    }  # fmt: skip
    if preparation is None or preparation.is_mapped:
        return _before_map(raw, preparation, listener, check, **learning)
    features = cast("KernelFeatures", preparation.feature_map)

    def mapped(before: Prepared, *, listener: Listener = silent, foreseen: bool = False) -> Prepared:
        kept_weights, kept = weights, before.raw.kept
        if weights is not None and before.n_dropped and kept is not None:  # `weights` has all samples of `raw`
            kept_weights = weights[kept if raw.kept is None else kept[raw.kept]]
        where: dict[str, Any] = {"memory": request.memory, "device": request.device}
        add_map = partial(mapped_for, before, features, weights=kept_weights, **where)
        by_matrix = _by_matrix(partial(add_map, foreseen=True), features, request, check) if is_planned else ""
        # Fixed points take landmarks that weigh the same.
        if by_matrix == "read" or (by_matrix == "held" and weights is None):
            return before.awaiting(features, holds_landmarks=by_matrix == "held")
        return add_map(foreseen=foreseen, listener=listener)

    def check_map(before: Prepared) -> None:
        if check is not None:
            check(mapped(before, foreseen=True))

    before = _before_map(raw, preparation.unmapped, listener, check_map, **learning)
    return _learn(partial(mapped, before), listener, check, foreseen=foreseen)


def _by_matrix(
    foreseen: Callable[[], Prepared],
    features: KernelFeatures,
    request: Request,
    check: Callable[[Prepared], object] | None,
) -> Literal["held", "read", ""]:
    """Return how a fit by method "kernel-matrix" has all samples, as landmarks: held, or read; "" for other methods.

    Where it is possible, it takes a fourth of the time of mapping all samples, and less memory.

    Raises
    ------
    RequestError
        If it is requested, and is not possible.
    """
    is_requested, kernel = request.method == OF_KERNEL, features.kernel
    possible = features.is_exact and kernel.is_of_products and request.model.maps_samples
    if is_requested and not possible and request.model.maps_samples:
        option = f"landmarks={features.landmarks}" if features.landmarks is not None else "random features"
        option = f"kernel {kernel.name!r}" if features.is_exact else option
        raise RequestError(
            f"method {OF_KERNEL!r} compares all samples by their inner products, which {option} does not; use method "
            "'auto'."
        )
    if is_requested or not possible or request.method != "auto" or check is None:
        return "read" if is_requested and possible else ""
    try:
        check(foreseen())
    except BudgetError:  # mapped samples, n x n for all landmarks, do not fit: the kernel matrix goes by tiles
        return "read"
    is_counted = request.n_components is None or isinstance(request.n_components, int | float)
    return "held" if is_counted and request.workers == 1 else ""


def _learn(
    learn: Callable[..., Prepared], listener: Listener, check: Callable[[Prepared], object] | None, *, foreseen: bool
) -> Prepared:
    """Carry out a learning step after checking that the following fit is within the budget; or foresee it only."""
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
    """Return the prepared collection of `prepare`, without a feature map that is still to be learned."""
    if isinstance(raw, Prepared) and missing == "error":
        return raw
    raw, preparation = (raw.raw, raw.preparation) if isinstance(raw, Prepared) else (raw, preparation)
    preparation = preparation or Preparation()
    if preparation.is_resolved and missing == "error":
        return Prepared(raw, preparation)
    _check_missing(preparation, missing)
    limit = block_limit(this_machine(raw.storage.converted_bytes), memory)
    drops = missing == "drop-features" and raw.dtype.kind == "f"
    raw.states()  # before the first read, so that changes during it are noticed
    preparation = resolved(preparation, raw, listener, block_bytes=limit, drops_features=drops)
    if preparation.is_resolved:
        collection = Prepared(raw, preparation)
        if missing == "drop-samples":
            return complete_samples(collection, listener, block_bytes=limit)
        return observed_features(collection, listener, block_bytes=limit) if missing == "em" else collection
    learn = partial(learned_for, raw, preparation, weights=weights, memory=memory)
    return _learn(learn, listener, check, foreseen=foreseen)


def _check_missing(preparation: Preparation, missing: str) -> None:
    """Refuse steps that learn means with a rule that changes the samples or pixels they learn from."""
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
    """Leave out images whose shape differs from the others after a preparation, if the collection allows it."""
    if preparation is not None and not isinstance(preparation, Preparation):
        raise RequestError(f"preparation {preparation!r} is not a Preparation; give such as Preparation(bin=2).")
    return raw.fitting((preparation or Preparation()).shape_of_image)
