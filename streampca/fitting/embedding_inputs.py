"""A graph of neighbours and labels of actions that an embedding is given, checked against its samples."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RequestError
from ..manifold.neighbor_graph import NeighborGraph
from ..manifold.stored_graph import load_graph
from ..planning.request import Request
from ..preprocessing import Prepared
from ..readers import open_column
from ..readers.collection import data_difference, digest

Array = npt.NDArray[Any]


def with_inputs(request: Request, graph: NeighborGraph | None) -> Request:
    """Return a request that names a graph by its digest, and takes from it what it decides."""
    if graph is None:
        return request
    name = digest(graph.indices.tobytes(), graph.distances.tobytes())
    return request.asking(n_neighbors=graph.n_neighbors, graph=name)


def given_graph(given: NeighborGraph | str | os.PathLike[str] | None, collection: Prepared) -> NeighborGraph | None:
    """Return the graph that is given, if one is.

    Raises
    ------
    RequestError
        If it is of other samples.
    """
    if given is None:
        return None
    graph = given if isinstance(given, NeighborGraph) else load_graph(given)
    if graph.n_samples != collection.n_samples:
        raise RequestError(
            f"the graph is of {graph.n_samples} samples, and {collection.source} has {collection.n_samples}; give the "
            "samples that it was made of."
        )
    if graph.provenance and (difference := data_difference(graph.provenance, collection)):
        raise RequestError(f"the graph is of other samples than {collection.source} has: {difference}; make it anew.")
    return graph


def actions_of(given: Any, collection: Prepared) -> Array | None:
    """Return the labels of actions between samples, (n - 1,), if they are given.

    Raises
    ------
    RequestError
        If samples are left out, or there are not as many labels as samples, or one less.
    """
    if given is None:
        return None
    n = collection.n_samples
    if collection.n_dropped:
        raise RequestError(
            f"{collection.n_dropped} of the samples of {collection.source} have missing values and are left out, and "
            "actions lead from each sample to the next one; embed a run of samples without any (--samples, samples=)."
        )
    if isinstance(given, (np.ndarray, list, tuple)) and len(given) == n - 1:
        return np.asarray(given)
    return np.asarray(open_column(given, collection.raw))[: n - 1]
