"""The plan of all stages of an embedding of an opened collection, made before any stage reads a sample."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import cast

import numpy as np

from ..errors import BudgetError
from ..kinds.options import MissingRule
from ..kinds.pca import PCADescription
from ..models.store import fits_in_memory
from ..models.subspace import working_dtype
from ..models.transform import ComponentsToCome, check_foreseen
from ..planning.blocks import block_rows
from ..planning.candidate_sizes import smallest, too_small
from ..planning.component_chunks import POOLS, READ_COPIES, tile_bytes
from ..planning.embedding import (
    FEWER,
    LONG,
    CoordinatesPlan,
    EmbeddingPlan,
    check_embedding,
    component_counts,
    least_landmarks,
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
from .open_fit import plan_collection

BLOCK = 4 * MIB  # bytes of samples that are read at a time if the graph is an input


def plan_stages(collection: Prepared, request: Request, *, has_graph: bool) -> EmbeddingPlan:
    """Plan the stages of an embedding.

    Parameters
    ----------
    collection : Prepared
        Samples to embed.
    request : Request
        The request, with the number of neighbours of a graph that is an input.
    has_graph : bool
        True if the graph is an input.

    Raises
    ------
    BudgetError
        If a stage does not fit the budget; names a budget that is sufficient for all. Factors of a matrix are not
        planned, as their size depends on the graph.
    DataError, RequestError
        As the plans of the stages.
    """
    n, p = collection.n_samples, collection.n_features
    check_embedding(request, n)

    def planned(request: Request) -> EmbeddingPlan | None:
        """Return the plan with the first possible number of components that fits, or None."""
        for count in component_counts(request, n, p):
            with suppress(BudgetError):
                return _plan_with_components(collection, request, count, has_graph=has_graph)
        return None

    most = min(n - 1, p, request.options.pca_components or p)
    fewer = (planned(request.asking(pca_components=count)) for count in FEWER if count <= most)
    if (plan := planned(request)) is not None:
        is_long = request.options.pca_components is None and plan.seconds > LONG
        if not is_long:
            return plan
        # Suggest the first number of components that takes no minutes, or far fewer than all features.
        limit = max(LONG, plan.seconds / 10)
        fast = ((other.n_components, other.seconds) for other in fewer if other and other.seconds <= limit)
        return replace(plan, shorter=next(fast, None))
    more = ""
    if request.kind == "isomap":
        fewest = request.asking(landmarks=least_landmarks(request))
        if (proposed := planned(fewest)) is not None:
            needed = format_bytes(proposed.memory_estimate.total)
            more = f", or give fewer landmarks (--landmarks, landmarks), down to {fewest.landmarks} ({needed})"
    if (proposed := next(filter(None, fewer), None)) is not None:
        count, needed = proposed.n_components, format_bytes(proposed.memory_estimate.total)
        more += (
            f", or compare samples by {count} principal components (--pca-components {count}, pca_components={count}), "
        )
        more += f"which takes {needed}"
    subject = f"{request.kind} of {n} samples, with the stages before it,"
    least = smallest(lambda budget: planned(replace(request, memory=budget)) is not None)
    raise too_small(subject, least, this_machine().budget(request.memory), more=more)


def _plan_with_components(collection: Prepared, request: Request, count: int, *, has_graph: bool) -> EmbeddingPlan:
    """Plan all stages with `count` principal components, 0 for features; refuse a stage that does not fit."""
    problem = problem_of(collection)
    compared, fit, scores, stored = problem, None, None, False
    if count:
        compared = replace(problem_of_scores(collection.n_samples, count, 8), decode_bytes=reading_bytes())
    # Before the fit, whose plan takes a hundred times as long: a refusal tries dozens of budgets.
    search = None if has_graph else plan_neighbors(compared, search_request(request), collection.source)
    if count:
        fit = plan_collection(collection, components_request(request, count))
        # Components are stored as float64 if the smallest variance is tiny, which is possible for any of them.
        stored = fit.stored or not fits_in_memory(8 * count * prod(collection.sample_shape), fit.memory)
        coming = ComponentsToCome(count, np.dtype(np.float64), stored)
        scores = check_foreseen(collection, collection.frame, coming, makes_images=False, memory=request.memory)
    rows = block_rows(compared.sample_bytes, compared.chunk_samples, BLOCK) if search is None else search.read_rows
    block = {f"block of {rows} samples as read": 2 * rows * compared.sample_bytes} | decoding_items(compared, rows)
    if stored and not request.output:
        # Components are read into memory, besides the pools that Zarr's threads keep after the scores: 64 MiB measured.
        read = READ_COPIES * tile_bytes((count, *collection.sample_shape), 8)
        block["components being read, and memory pools"] = 4 * POOLS + read
    last = plan_last(collection, request, collection.n_samples, count, reading=block)
    return EmbeddingPlan(
        problem=problem,
        request=request,
        components=fit,
        scores=scores,
        read_rows=rows,
        neighbors=search,
        coordinates=last,
    )


def plan_last(
    collection: Prepared, request: Request, n_samples: int, count: int, *, reading: Mapping[str, int]
) -> CoordinatesPlan:
    """Plan the coordinates of `n_samples` samples, from the graph of neighbours by `count` principal components."""
    n, p, components = collection.n_samples, collection.n_features, 8 * count * prod(collection.sample_shape)
    # Without an output, components on disk would be removed at the end of the fit.
    held = not request.output or fits_in_memory(components, this_machine().budget(request.memory)[0])
    n_scores = count + spans_samples(count, n, p) if count else p
    itemsize = 8 if count else working_dtype(collection.dtype, np.float32).itemsize
    compared = problem_of_scores(n_samples, n_scores, itemsize)
    return plan_coordinates(compared, request, components_bytes=components if held else 0, reading=reading)


def components_request(request: Request, count: int) -> Request:
    """Return the request of `count` principal components."""
    components = PCADescription(count, random_state=request.seed, missing=cast("MissingRule", request.missing))
    return Request(components, memory=request.memory, output=True)


def search_request(request: Request) -> NeighborsRequest:
    """Return the request of the search for neighbours; approximate only with a requested number of components."""
    return NeighborsRequest(
        request.options.n_neighbors,
        method="exact" if request.options.pca_components is None else "auto",
        random_state=request.seed,
        memory=request.memory,
        workers=request.workers,
    )
