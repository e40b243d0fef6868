"""Geodesic distances: shortest paths along the edges of a graph of neighbours, from some samples to all.

References
----------
Tenenbaum, de Silva and Langford (2000), A global geometric framework for nonlinear dimensionality reduction (Isomap).
De Silva and Tenenbaum (2004), Sparse multidimensional scaling using landmark points.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra

from ..arrays import Float64
from ..signals import safe_point


def landmarks_of(graph: sp.csr_array, count: int, choice: str, seed: int) -> npt.NDArray[np.intp]:
    """Choose the samples from which distances are measured, ascending.

    Parameters
    ----------
    graph : sparse array of shape (n, n)
        Distances of neighbours.
    count : int
        Number of landmarks, up to n.
    choice : {"uniform", "farthest"}
        "farthest" takes, one after another, the sample whose nearest landmark is farthest along the graph: outliers
        first, so "uniform" makes a better embedding of most data.
    seed : int
        Seed of the random choice, or of the first landmark.
    """
    n = graph.shape[0]
    if count >= n:
        return np.arange(n)
    random = np.random.default_rng([seed, 21])
    if choice == "uniform":
        return np.sort(random.choice(n, count, replace=False))
    # Distances to the nearest landmark so far; each step needs one search from the last landmark.
    chosen = [int(random.integers(n))]
    nearest = np.full(n, np.inf)
    for _ in range(count - 1):
        safe_point()
        np.minimum(nearest, dijkstra(graph, directed=False, indices=chosen[-1]), out=nearest)
        chosen.append(int(np.argmax(nearest)))
    return np.sort(np.array(chosen))


def geodesic_distances(graph: sp.csr_array, sources: npt.NDArray[np.intp]) -> Float64:
    """Return the lengths of the shortest paths from sources to all samples, (sources, n), by Dijkstra's algorithm.

    Edges have no direction: i and j are joined if either is a neighbour of the other.

    Parameters
    ----------
    graph : sparse array of shape (n, n)
        Distances of neighbours; entries of 0 are edges too.
    sources : ndarray of shape (m,)
        Numbers of samples.

    Notes
    -----
    Cost: about n k log n operations for each source, 40 ms for 60000 samples with 15 neighbours, in one thread, as
    scipy holds the interpreter's lock.
    """
    distances: Float64 = dijkstra(graph, directed=False, indices=sources)
    return distances
