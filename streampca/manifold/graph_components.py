"""Connected components of a graph of nearest neighbours, and the number of neighbours that would connect them.

Two samples are joined if either is a neighbour of the other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from ..arrays import Array
from .neighbor_graph import NeighborGraph

Ints = npt.NDArray[np.intp]

MOST_PAIRS = 4  # pairs held per component before they are thinned out


def component_labels(graph: NeighborGraph) -> tuple[Ints, Ints]:
    """Return the component of every sample, (n,), numbered from 0 by descending size, and the sizes.

    Cost: linear in the edges; holds the transpose of the graph as well.
    """
    return labels_by_size(graph.to_csr())


def labels_by_size(edges: sp.csr_array) -> tuple[Ints, Ints]:
    """Return the components of a sparse matrix of edges, (n, n), as `component_labels` does of a graph."""
    count, labels = connected_components(edges, directed=False)
    sizes = np.bincount(labels, minlength=count)
    order = np.argsort(-sizes, kind="stable")
    rank = np.empty(count, np.intp)
    rank[order] = np.arange(count)
    return rank[labels], sizes[order]


def largest_component(graph: NeighborGraph) -> tuple[Ints, NeighborGraph]:
    """Restrict a graph to the samples of its largest component.

    Returns
    -------
    kept : ndarray of shape (m,)
        Numbers of these samples in the graph, ascending.
    graph : NeighborGraph
        Graph of these samples, in which sample i is sample ``kept[i]``. Each keeps all its neighbours, which are in the
        same component. The provenance holds the original number of samples.
    """
    labels, sizes = component_labels(graph)
    if len(sizes) == 1:
        return np.arange(graph.n_samples), graph
    kept = np.flatnonzero(labels == 0)
    # Numbers of samples in the restricted graph.
    numbers = np.zeros(graph.n_samples, graph.indices.dtype)
    numbers[kept] = np.arange(len(kept))
    about = {**graph.provenance, "largest_component": {"samples": len(kept), "of": graph.n_samples}}
    about.pop("facts", None)  # facts are about all samples
    return kept, replace(graph, indices=numbers[graph.indices[kept]], distances=graph.distances[kept], provenance=about)


class Crossings:
    """Pairs of components that more neighbours would join, with the smallest number of neighbours that does.

    Parameters
    ----------
    labels : ndarray of shape (n,)
        Component of every sample.

    Attributes
    ----------
    pairs : ndarray of shape (m, 2)
        Labels of two components, the smaller first.
    ranks : ndarray of shape (m,)
        Smallest k for which a sample of one has a sample of the other among its k nearest.
    """

    def __init__(self, labels: Ints) -> None:
        self._labels = labels
        self.pairs, self.ranks = np.empty((0, 2), np.int64), np.empty(0, np.int64)

    def update(self, start: int, indices: Ints, distances: Array) -> None:
        """Absorb the neighbours of samples `start` onwards, (b, k), nearest first."""
        labels, others = self._labels[start : start + len(indices)], self._labels[indices]
        row, column = np.nonzero(others != labels[:, None])
        self._add(np.sort(np.column_stack([labels[row], others[row, column]]), axis=1), column + 1)

    def absorb(self, other: Crossings) -> None:
        """Absorb the crossings that another search has found."""
        self._add(np.asarray(other.pairs), np.asarray(other.ranks))

    def _add(self, pairs: Ints, ranks: Ints) -> None:
        pairs, ranks = np.concatenate([self.pairs, pairs]), np.concatenate([self.ranks, ranks])
        # Sorted by pair and rank, the first of each run is the pair's smallest rank.
        order = np.lexsort((ranks, pairs[:, 1], pairs[:, 0]))
        pairs, ranks = pairs[order], ranks[order]
        first = np.ones(len(pairs), bool)
        first[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
        self.pairs, self.ranks = pairs[first], ranks[first]
        if len(self.pairs) > MOST_PAIRS * (int(self._labels.max()) + 1):
            self._thin()

    def _thin(self) -> None:
        """Keep the pairs of a minimum spanning forest, which decide alone what connects all components."""
        tree = self._forest().tocoo()
        joined = np.sort(np.column_stack([tree.row, tree.col]), axis=1).astype(np.int64)
        order = np.lexsort((joined[:, 1], joined[:, 0]))
        self.pairs, self.ranks = joined[order], tree.data[order].astype(np.int64)

    def _forest(self) -> sp.csr_array:
        """Return the minimum spanning forest of components, with ranks as weights of edges."""
        count = int(self._labels.max()) + 1
        row, column = self.pairs.astype(np.int32).T  # scipy 1.16 takes no others
        edges = sp.csr_array((self.ranks.astype(np.float64), (row, column)), (count, count))
        return sp.csr_array(minimum_spanning_tree(edges))

    def connecting(self) -> int | None:
        """Return the smallest number of neighbours that connects all components; None if the search found none.

        It is the largest rank in the minimum spanning tree.
        """
        tree = self._forest()
        return int(tree.data.max()) if tree.nnz == int(self._labels.max()) else None

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything except the labels as plain arrays."""
        arrays = {"pairs": self.pairs, "ranks": self.ranks}
        return {name: array.copy() for name, array in arrays.items()} if copy else arrays

    @classmethod
    def from_state(cls, labels: Ints, state: dict[str, Array]) -> Crossings:
        """Return the crossings whose state this is."""
        new = cls(labels)
        new.pairs, new.ranks = np.array(state["pairs"]), np.array(state["ranks"])
        return new
