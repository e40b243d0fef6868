"""Laplacian eigenmaps and spectral clustering: eigenvectors of the graph Laplacian of neighbours.

References
----------
Belkin and Niyogi (2003), Laplacian eigenmaps for dimensionality reduction and data representation.
Ng, Jordan and Weiss (2001), On spectral clustering: analysis and an algorithm.
Von Luxburg (2007), A tutorial on spectral clustering.
Bengio et al. (2003), Out-of-sample extensions for LLE, Isomap, MDS, eigenmaps, and spectral clustering (Nystroem).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ..arrays import Array, Float64
from ..eigensolvers.sparse import SparsePairs, largest_pairs, smallest_pairs
from ..errors import DataError, RequestError
from .graph_components import labels_by_size
from .neighbor_graph import NeighborGraph

SHOWN = 12  # eigenvalues that are computed at least, to show the gap
SYMMETRIC = 1e-5  # asymmetry, relative to the largest affinity, up to which it is rounding of float32


def edge_weights(distances: Array, gamma: float | None) -> Float64:
    """Return the weights of edges by their lengths: 1, or exp(-gamma d^2)."""
    if gamma is None:
        return np.ones(distances.shape)
    return np.exp(-gamma * np.square(distances, dtype=np.float64))


def affinity(graph: NeighborGraph, gamma: float | None) -> sp.csr_array:
    """Return the symmetric matrix of affinities, (n, n): the mean of both directions of each edge.

    Raises
    ------
    RequestError
        If all edges of a sample have weight 0.
    """
    directed = graph.to_csr()
    directed.data = edge_weights(directed.data, gamma)
    symmetric: sp.csr_array = ((directed + directed.T) * 0.5).tocsr()
    if not ((degree := symmetric.sum(axis=1)) > 0).all():
        raise RequestError(
            f"sample {int(np.argmin(degree))} has edges of weight 0 only: gamma is too large for their lengths; give "
            "about 1 over the squared distance of neighbours, or none."
        )
    return symmetric


def given_affinities(matrix: Any, most_components: int) -> sp.csr_array:
    """Return a given matrix of affinities, (n, n), without its diagonal, which does not affect the Laplacian.

    Parameters
    ----------
    matrix : array or sparse array of shape (n, n)
    most_components : int
        Largest number of connected components of its graph.

    Raises
    ------
    RequestError
        If it is not symmetric, or an entry is negative.
    DataError
        If it holds NaN or infinity, or its graph has more components.
    """
    weights = sp.csr_array(matrix).astype(np.float64)
    if not np.isfinite(weights.data).all():
        raise DataError("the matrix of affinities holds NaN or infinity; give finite numbers, 0 for pairs without one.")
    turned = weights.T.tocsr()
    if weights.nnz and abs(weights - turned).max() > SYMMETRIC * abs(weights).max():
        raise RequestError("the matrix of affinities is not symmetric; give the mean of it and its transpose.")
    # Small asymmetries are rounding, and are averaged out.
    weights = (weights + turned) * 0.5
    weights = (weights - sp.diags_array(weights.diagonal())).tocsr()
    weights.eliminate_zeros()
    if weights.nnz and weights.data.min() < 0:
        raise RequestError(f"an affinity is {weights.data.min():.3g}, below 0; give exp(-d^2) of distances d, say.")
    _components(weights, most_components, "add a small number to all affinities")
    return weights


def _components(weights: sp.csr_array, most: int, remedy: str) -> list[npt.NDArray[np.intp]]:
    """Return the samples of each connected component, the largest first; refuse more than `most` components."""
    labels, sizes = labels_by_size(weights)
    if (count := len(sizes)) > most:
        listed = ", ".join(map(str, sizes[:SHOWN])) + (f" and {count - SHOWN} more" if count > SHOWN else "")
        instead = f"ask for {count} clusters (n_clusters)" if most > 1 else "give each part by itself"
        raise DataError(
            f"affinities are 0 between {count} parts of the samples, of {listed}"
            f"{f', and n_clusters is {most}' if most > 1 else ''}; {instead}, or {remedy}."
        )
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])


@dataclass(frozen=True, eq=False)
class Eigenmap:
    """Eigenvectors of a graph's Laplacian.

    Attributes
    ----------
    coordinates : ndarray of shape (n, d)
        Eigenvectors, divided by the roots of degrees if the Laplacian is normalized, as in scikit-learn.
    eigenvalues : ndarray of shape (d,)
        Eigenvalues of the Laplacian, ascending: I - D^-1/2 W D^-1/2, or D - W.
    residuals : ndarray of shape (d,)
        Norms of L v - value v.
    smallest : ndarray of shape (m,)
        Smallest eigenvalues, 0 first: at least 12 if possible. Their gaps show the number of clusters.
    solver : str
        See `SparsePairs`.
    """

    coordinates: Float64
    eigenvalues: Float64
    residuals: Float64
    smallest: Float64
    solver: str


def eigenmap(weights: sp.csr_array, count: int, *, laplacian: str, drop_first: bool, seed: int, room: int) -> Eigenmap:
    """Return the eigenvectors of the smallest eigenvalues of a graph's Laplacian.

    Those of eigenvalue 0 are the indicator vectors of the connected components, the largest first, followed by vectors
    that are 0 outside one component.

    Parameters
    ----------
    weights : sparse array of shape (n, n)
        Symmetric affinities.
    count : int
        Number of eigenvectors.
    laplacian : {"normalized", "unnormalized"}
        The first relaxes the normalised cut, the second the ratio cut.
    drop_first : bool
        Omit the eigenvector of eigenvalue 0, of a graph that is connected; others have up to `count` components.
    seed, room
        See `largest_pairs`.

    Raises
    ------
    DataError
        If edges of weight 0 split the graph into more components.
    FactorsTooLargeError
        See `largest_pairs`.
    """
    n_pairs = max(count + drop_first, min(SHOWN, weights.shape[0] // 2))
    components = _components(weights, 1 if drop_first else count, "give a smaller gamma, or none")
    options: dict[str, Any] = {"laplacian": laplacian, "seed": seed, "room": room}
    if len(components) == 1:
        pairs = _component_pairs(weights, n_pairs, **options)
    else:
        solved = [
            _component_pairs(weights[samples][:, samples], min(n_pairs, len(samples)), **options)
            for samples in components
        ]
        pairs = _joined(components, solved, n_pairs)
    # The constant vector of eigenvalue 0 comes first.
    kept = slice(int(drop_first), int(drop_first) + count)
    coordinates = pairs.vectors[:, kept].copy()
    return Eigenmap(coordinates, pairs.values[kept], pairs.residuals[kept], pairs.values, pairs.solver)


def _component_pairs(weights: sp.csr_array, count: int, *, laplacian: str, seed: int, room: int) -> SparsePairs:
    """Return the smallest pairs of the Laplacian of a connected graph, with coordinates in place of unit vectors."""
    degree = weights.sum(axis=1)
    if len(degree) == 1:  # a sample without edges, whose degree would be divided by
        return SparsePairs(np.zeros(1), np.ones((1, 1)), np.zeros(1), "dense")
    if laplacian != "normalized":
        return smallest_pairs((sp.diags_array(degree) - weights).tocsr(), count, seed=seed, room=room)
    scale = 1 / np.sqrt(degree)
    rows = np.repeat(np.arange(len(scale), dtype=weights.indices.dtype), np.diff(weights.indptr))
    # Largest pairs of D^-1/2 W D^-1/2 in place of smallest pairs of the Laplacian: products alone often suffice.
    data = weights.data * (scale[rows] * scale[weights.indices])  # in this order, symmetric to the last bit
    normal = sp.csr_array((data, weights.indices, weights.indptr), shape=weights.shape)
    del rows, data
    pairs = largest_pairs(normal, count, seed=seed, bound=1.0, room=room)
    return replace(pairs, values=1 - pairs.values, vectors=pairs.vectors * scale[:, None])


def _joined(components: list[npt.NDArray[np.intp]], solved: list[SparsePairs], count: int) -> SparsePairs:
    """Return the smallest pairs of a graph from those of its components, whose first are those of eigenvalue 0."""
    values = np.concatenate([pairs.values for pairs in solved])
    zeros = np.cumsum([0, *(len(pairs.values) for pairs in solved[:-1])])
    keys = values.copy()
    keys[zeros] = -1  # first, the largest component before the others, whatever their rounding
    order = np.argsort(keys, kind="stable")[:count]
    stacked = sp.block_diag([pairs.vectors for pairs in solved], format="csc")[:, order].toarray()
    vectors = np.empty_like(stacked)
    vectors[np.concatenate(components)] = stacked
    residuals = np.concatenate([pairs.residuals for pairs in solved])
    return SparsePairs(
        values[order], vectors, residuals[order], " and ".join(sorted({pairs.solver for pairs in solved}))
    )


def clustered(coordinates: Float64, count: int, seed: int) -> tuple[npt.NDArray[np.int64], Float64]:
    """Cluster rows by k-means, with the best of ten starts; return labels, (n,), and centres, (count, d)."""
    from sklearn.cluster import KMeans

    clusters = KMeans(count, n_init=10, random_state=seed).fit(coordinates)
    return clusters.labels_.astype(np.int64), clusters.cluster_centers_


def cut_values(weights: sp.csr_array, labels: npt.NDArray[np.integer[Any]]) -> dict[str, float]:
    """Return the ratio cut and the normalised cut of a partition.

    Both add up, over the clusters, the weight of the edges that leave a cluster, divided by its number of samples or by
    its sum of degrees.
    """
    count = int(labels.max()) + 1
    members = sp.csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))), shape=(count, len(labels)))
    # Weight of edges between every two clusters.
    between = (members @ weights @ members.T).toarray()
    volume, inside = between.sum(axis=1), np.diag(between)
    sizes = np.bincount(labels, minlength=count)
    leaving = volume - inside
    normalized = np.divide(leaving, volume, out=np.zeros(count), where=volume > 0)  # 0 of a sample without edges
    return {"ratio_cut": float((leaving / sizes).sum()), "normalized_cut": float(normalized.sum())}
