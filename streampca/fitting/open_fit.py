"""`open_fit`, the front half of every fit: choice and preparation of samples, weights, target, and the plan.

Python functions, estimators, commands and run files all fit models through this function, so that equal requests give
equal results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RequestError
from ..events import FileSkipped, Listener, silent
from ..kinds.part import Part
from ..planning import Plan
from ..planning.embedding import EmbeddingPlan
from ..planning.registry import OF_KERNEL
from ..planning.request import Request
from ..preprocessing import Preparation, Prepared
from ..readers import Collection
from ..readers.target import Target, check_target, target_of
from ..readers.weights import total_of, weights_of
from .embedding_plan import plan_stages
from .prepare import drop_misfit_images, plan_collection, prepare

Float64 = npt.NDArray[np.float64]


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
        return self.declared_weight if self.weights is None else total_of(self.weights)

    def plan(self, *, part: Part | None = None) -> Plan:
        """Plan the fit of principal components, or that of a part of the collection."""
        return plan_collection(
            self.collection, self.request, total_weight=self.total_weight, target=self.target, part=part
        )

    def plan_stages(self) -> EmbeddingPlan:
        """Plan all stages of an embedding."""
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
