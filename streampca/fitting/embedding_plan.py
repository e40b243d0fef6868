"""The plan of all stages of an embedding of an opened collection, made before the first of them reads a sample."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import cast

import numpy as np

from ..errors import BudgetError
from ..kinds.options import MissingRule
from ..kinds.pca import PCADescription
from ..models.store import are_held
from ..models.subspace import working_dtype
from ..models.transform import ComponentsToCome, check_foreseen
from ..planning.budget import smallest, too_small
from ..planning.embedding import CoordinatesPlan, EmbeddingPlan, plan_coordinates, score_count
from ..planning.neighbors import NeighborsRequest, plan_neighbors
from ..planning.request import Request
from ..preprocessing import Prepared
from ..preprocessing.sizes_for_planning import problem_of, problem_of_scores, this_machine
from ..readers.stored.flat import reading_bytes
from .prepare import plan_collection


def plan_stages(collection: Prepared, request: Request, *, has_graph: bool) -> EmbeddingPlan:
    """Plan the stages of an embedding.

    Parameters
    ----------
    collection : Prepared
        Samples.
    request : Request
        What is asked for, with what a graph that is given decides.
    has_graph : bool
        Whether the graph is given.

    Raises
    ------
    BudgetError
        If a stage does not fit the budget, naming one that all of them fit. Factors of a matrix are not among what is
        planned: their size is known only once the graph is there.
    DataError, RequestError
        As the plans of the stages.
    """

    def planned(request: Request) -> EmbeddingPlan:
        return _planned(collection, request, has_graph=has_graph)

    def fits(budget: int) -> bool:
        try:
            planned(replace(request, memory=budget))
        except BudgetError:
            return False
        return True

    try:
        return planned(request)
    except BudgetError:
        what = f"{request.kind} of {collection.n_samples} samples, with the stages before it,"
        fewer = ", or give fewer landmarks (--landmarks)" if request.kind == "isomap" else ""
        raise too_small(what, smallest(fits), this_machine().budget(request.memory), more=fewer) from None


def _planned(collection: Prepared, request: Request, *, has_graph: bool) -> EmbeddingPlan:
    """Plan all stages, or refuse the first that does not fit."""
    last = plan_last(collection, request, collection.n_samples)
    problem = problem_of(collection)
    compared, fit, scores = problem, None, None
    if k := n_scores_of(collection, request):
        fit = plan_collection(collection, components_request(collection, request))
        dtype = np.dtype(np.float32 if problem.suits_single else np.float64)
        stored = fit.stored or not are_held(dtype.itemsize * k * prod(collection.sample_shape), fit.memory)
        scores = check_foreseen(
            collection, collection.frame, ComponentsToCome(k, dtype, stored), makes_images=False, memory=request.memory
        )
        compared = replace(
            problem_of_scores(collection, k, _itemsize(collection, request)), decode_bytes=reading_bytes()
        )
    search = None if has_graph else plan_neighbors(compared, search_request(request), collection.source)
    return EmbeddingPlan(problem, request, fit, scores, search, last)


def plan_last(collection: Prepared, request: Request, n_samples: int) -> CoordinatesPlan:
    """Plan the coordinates of so many samples whose neighbours are known."""
    machine, itemsize = this_machine(), _itemsize(collection, request)
    width = n_scores_of(collection, request) or collection.n_features
    components = itemsize * width * prod(collection.sample_shape)
    held = are_held(components, machine.budget(request.memory)[0]) or not n_scores_of(collection, request)
    return plan_coordinates(
        request,
        machine,
        n_samples=n_samples,
        n_scores=width,
        itemsize=itemsize,
        components_bytes=components if held else 0,
    )


def n_scores_of(collection: Prepared, request: Request) -> int:
    """Return the number of principal components; 0 where features are taken as they are."""
    return score_count(request, collection.n_samples, collection.n_features)


def components_request(collection: Prepared, request: Request) -> Request:
    """Return the request of the principal components."""
    components = PCADescription(
        n_scores_of(collection, request), random_state=request.seed, missing=cast("MissingRule", request.missing)
    )
    return Request(components, memory=request.memory, output=True)


def search_request(request: Request) -> NeighborsRequest:
    """Return the request of the search for neighbours."""
    return NeighborsRequest(request.options.n_neighbors, random_state=request.seed, memory=request.memory)


def _itemsize(collection: Prepared, request: Request) -> int:
    """Return the bytes of a score: scores are float64 where some components have little of the first variance."""
    return 8 if n_scores_of(collection, request) else working_dtype(collection.dtype, np.float32).itemsize
