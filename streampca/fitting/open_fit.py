"""`open_fit`, the front half of every fit: samples narrowed, weighed and prepared, their target, and the plan.

Everything that fits a model comes through here, so that the same request gives the same answer from Python, an
estimator, a command and a run file.
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
    """The inputs of a fit, settled before its passes.

    Attributes
    ----------
    collection : Prepared
        Samples, with what their preparation learned of them.
    request : Request
        What is asked for.
    weights : ndarray of shape (n,) or None
        How often each sample counts; None where all count once.
    target : Target or None
        Labels or numbers that a supervised kind learns from.
    declared_weight : float or None
        Sum of the weights of samples that are not here yet.
    graph : NeighborGraph or None
        Graph of the samples' neighbours, where an embedding is given one.
    actions : ndarray of shape (n - 1,) or None
        Labels of the actions that lead from each sample to the next one, for the kind that learns from them.
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
        """Sum of the weights; None where all samples count once."""
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
    """Settle everything that a fit needs before its passes.

    Parameters
    ----------
    raw : Collection
        Samples as they were opened.
    request : Request
        What is asked for; where it does not fit the budget it is refused before anything is learned.
    preparation : Preparation, optional
        Steps applied to every sample, with the feature map of a kernel where one is asked for.
    sample_weight : optional
        Column of weights; see `streampca.fit`.
    target : optional
        Column of labels or numbers; see `streampca.fit`.
    shared : bool, default=False
        Whether workers share the work. They say how much memory there is, unless the request does.
    foreseen : bool, default=False
        Read headers only, for a plan; a preparation is foreseen with arrays that take no memory.
    listener : callable
        Told of passes that find what the preparation leaves to the data, and what a target is taken for.

    Raises
    ------
    SourceError, DataError, RequestError, BudgetError
        As `streampca.fit`.
    """
    raw = _narrowed(raw, preparation, listener)
    preparation = None if preparation is None else preparation.in_precision(request.precision)
    if request.model.uses_graph:
        return _open_embedding(raw, request, preparation, sample_weight, target, foreseen=foreseen, listener=listener)
    weights = weights_of(sample_weight, raw, request.half_life)
    learned_from = target_of(target, raw, request, weights, listener=listener)
    # Method "kernel-matrix" is chosen while preparing, so that its request is looked at in any case.
    memory_is_known = not shared or request.memory is not None or request.method == OF_KERNEL
    how: dict[str, Any] = {"is_planned": memory_is_known, "foreseen": foreseen, "listener": listener}
    collection = prepare(raw, preparation, request, weights=weights, target=learned_from, **how)
    if collection.n_dropped:  # what a target is taken for goes by all samples
        weights = weights_of(sample_weight, collection.raw, request.half_life)
        learned_from = target_of(target, collection.raw, request, weights, taken=learned_from)
    return Opened(collection, request, weights, learned_from)


def open_samples(
    raw: Collection,
    preparation: Preparation | None,
    *,
    memory: int | None,
    foreseen: bool = False,
    listener: Listener = silent,
) -> Prepared:
    """Settle the samples of what fits no model: a graph, a measure of dependence, a copy; see `open_fit`."""
    raw = _narrowed(raw, preparation, listener)
    return prepare(raw, preparation, Request(memory=memory), foreseen=foreseen, listener=listener)


def _narrowed(raw: Collection, preparation: Preparation | None, listener: Listener) -> Collection:
    """Return samples without images that a preparation does not make fit, of which the listener is told."""
    narrowed, skipped = drop_misfit_images(raw, preparation), set(raw.skipped)
    for item in narrowed.skipped:
        if item not in skipped:
            listener(FileSkipped(*item))
    return narrowed


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
    """Settle the inputs of an embedding by the graph of its samples' neighbours; see `open_fit`."""
    from .embedding_inputs import actions_of, given_graph, with_inputs  # loads the manifolds, which fits do without

    if sample_weight is not None:
        raise RequestError(f"kind {request.kind!r} counts every sample once; leave sample_weight out.")
    check_target(target, request.model)
    collection = prepare(raw, preparation, request, foreseen=foreseen, listener=listener)
    graph, actions = given_graph(request.options.graph, collection), actions_of(target, collection)
    return Opened(collection, with_inputs(request, graph), graph=graph, actions=actions)
