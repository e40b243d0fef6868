"""Inputs of an embedding other than samples: a graph of neighbours and labels of actions, with their checks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import RequestError
from ..manifold.neighbor_graph import NeighborGraph
from ..manifold.stored_graph import load_graph
from ..planning.request import Request
from ..preprocessing import Prepared
from ..readers import open_column
from ..readers.collection import data_difference, digest


def with_inputs(request: Request, graph: NeighborGraph | None) -> Request:
    """Return a request with the digest of a graph, and with its number of neighbours."""
    if graph is None:
        return request
    name = digest(graph.indices.tobytes(), graph.distances.tobytes())
    return request.asking(n_neighbors=graph.n_neighbors, graph=name)


def given_graph(source: NeighborGraph | str | os.PathLike[str] | None, collection: Prepared) -> NeighborGraph | None:
    """Return a graph, or load one from a path; None without.

    Raises
    ------
    RequestError
        If it is the graph of other samples.
    """
    if source is None:
        return None
    graph = source if isinstance(source, NeighborGraph) else load_graph(source)
    if graph.n_samples != collection.n_samples:
        raise RequestError(
            f"the graph is of {graph.n_samples} samples, and {collection.source} has {collection.n_samples}; give the "
            "samples that it was made of."
        )
    if graph.provenance and (difference := data_difference(graph.provenance, collection)):
        raise RequestError(f"the graph is of other samples than {collection.source} has: {difference}; make it anew.")
    return graph


def actions_of(labels: Any, collection: Prepared) -> Array | None:
    """Return the labels of actions between consecutive samples, (n - 1,); None without.

    Raises
    ------
    RequestError
        If samples are left out, or the number of labels is neither n - 1 nor n.
    """
    if labels is None:
        return None
    n = collection.n_samples
    if collection.n_dropped:
        raise RequestError(
            f"{collection.n_dropped} of the samples of {collection.source} have missing values and are left out, and "
            "actions lead from each sample to the next one; embed a run of samples without any (--samples, samples=)."
        )
    if isinstance(labels, (np.ndarray, list, tuple)) and len(labels) == n - 1:
        return np.asarray(labels)
    # A column has a label for every sample; the last one leads to no sample.
    return np.asarray(open_column(labels, collection.raw))[: n - 1]
