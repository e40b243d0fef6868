"""The plan of all stages of an embedding of an opened collection, made before the first of them reads a sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
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
from ..planning.blocks import block_rows
from ..planning.budget import smallest, too_small
from ..planning.component_chunks import POOLS, READ_COPIES, tile_bytes
from ..planning.embedding import (
    FEWER,
    LONG,
    CoordinatesPlan,
    EmbeddingPlan,
    check_embedding,
    component_counts,
    plan_coordinates,
    spans_samples,
)
from ..planning.memory import decoding_items
from ..planning.neighbors import NeighborsRequest, plan_neighbors
from ..planning.request import Request
from ..preprocessing import Prepared
from ..preprocessing.sizes_for_planning import problem_of, problem_of_scores, this_machine
from ..readers.stored.flat import reading_bytes
from ..units import MIB, format_bytes
from .prepare import plan_collection

BLOCK = 4 * MIB  # samples that are read at a time where a graph is given


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
    n, p = collection.n_samples, collection.n_features
    check_embedding(request, n)

    def planned(request: Request) -> EmbeddingPlan | None:
        """Return the plan by the first of the possible numbers of components that fits, if one does."""
        for count in component_counts(request, n, p):
            with suppress(BudgetError):
                return _planned(collection, request, count, has_graph=has_graph)
        return None

    most = min(n - 1, p, request.options.pca_components or p)
    fewer = (planned(request.asking(pca_components=count)) for count in FEWER if count <= most)
    if (plan := planned(request)) is not None:
        is_long = request.options.pca_components is None and plan.seconds > LONG
        return replace(plan, shorter=_shorter(plan, fewer)) if is_long else plan
    more = ", or give fewer landmarks (--landmarks)" if request.kind == "isomap" else ""
    if (proposed := next(filter(None, fewer), None)) is not None:
        count, needed = proposed.n_components, format_bytes(proposed.memory_estimate.total)
        more += f", or compare samples by {count} principal components (--pca-components {count}; {needed})"
    what = f"{request.kind} of {n} samples, with the stages before it,"
    least = smallest(lambda budget: planned(replace(request, memory=budget)) is not None)
    raise too_small(what, least, this_machine().budget(request.memory), more=more)


def _shorter(plan: EmbeddingPlan, others: Iterable[EmbeddingPlan | None]) -> tuple[int, float] | None:
    """Return the first number of components that takes no minutes, or far fewer than all features, and its seconds."""
    most = max(LONG, plan.seconds / 10)
    return next(((other.n_components, other.seconds) for other in others if other and other.seconds <= most), None)


def _planned(collection: Prepared, request: Request, count: int, *, has_graph: bool) -> EmbeddingPlan:
    """Plan all stages by so many principal components, or refuse the first that does not fit."""
    problem = problem_of(collection)
    compared, fit, scores, stored = problem, None, None, False
    if count:
        fit = plan_collection(collection, components_request(request, count))
        # Components are float64 where some have little of the first variance, as all of them together do.
        stored = fit.stored or not are_held(8 * count * prod(collection.sample_shape), fit.memory)
        coming = ComponentsToCome(count, np.dtype(np.float64), stored)
        scores = check_foreseen(collection, collection.frame, coming, makes_images=False, memory=request.memory)
        compared = replace(problem_of_scores(collection, count, 8), decode_bytes=reading_bytes())
    search = None if has_graph else plan_neighbors(compared, search_request(request), collection.source)
    rows = block_rows(compared.sample_bytes, compared.chunk_samples, BLOCK) if search is None else search.read_rows
    block = {f"block of {rows} samples as read": 2 * rows * compared.sample_bytes} | decoding_items(compared, rows)
    if stored and not request.output:
        # Components are read into memory, beside what threads of Zarr keep after the scores: 64 MiB measured.
        read = READ_COPIES * tile_bytes((count, *collection.sample_shape), 8)
        block["components being read, and memory pools"] = 4 * POOLS + read
    last = plan_last(collection, request, collection.n_samples, count, reading=block)
    return EmbeddingPlan(problem, request, fit, scores, rows, search, last)


def plan_last(
    collection: Prepared, request: Request, n_samples: int, count: int, *, reading: Mapping[str, int]
) -> CoordinatesPlan:
    """Plan the coordinates of so many samples whose neighbours by so many principal components are known."""
    machine, n, p = this_machine(), collection.n_samples, collection.n_features
    components = 8 * count * prod(collection.sample_shape)
    # Without an output there is no place for components on disk once the fit has ended.
    held = not request.output or are_held(components, machine.budget(request.memory)[0])
    return plan_coordinates(
        request,
        machine,
        n_samples=n_samples,
        n_scores=count + spans_samples(count, n, p) if count else p,
        itemsize=8 if count else working_dtype(collection.dtype, np.float32).itemsize,
        components_bytes=components if held else 0,
        reading=reading,
    )


def components_request(request: Request, count: int) -> Request:
    """Return the request of so many principal components."""
    components = PCADescription(count, random_state=request.seed, missing=cast("MissingRule", request.missing))
    return Request(components, memory=request.memory, output=True)


def search_request(request: Request) -> NeighborsRequest:
    """Return the request of the search for neighbours, which is exact unless a number of components is given."""
    return NeighborsRequest(
        request.options.n_neighbors,
        method="exact" if request.options.pca_components is None else "auto",
        random_state=request.seed,
        memory=request.memory,
    )
