"""Short circuits of a graph of neighbours: edges between samples that are far apart along all other edges.

A few of them, due to noise between two sheets of one surface, prevent every method that follows the graph from
unfolding it. To find them, the edges of one sample at a time are ignored: in a graph that follows a surface, the
neighbours of the sample are still close to each other along other samples; they are far apart if the sample alone joins
them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, dijkstra

from ..arrays import Float64
from ..signals import safe_point

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Ratio of the way round a sample to the way through it, from which an edge is suspected. On 20 rolls of 400 samples
# with 6 neighbours it is at most 2.4 without a short circuit, at least 6.1 with one.
DETOUR = 3.0
_MOST_ROUNDS = 5


def suspected_short_circuits(edges: Integers, lengths: Float64, n_samples: int) -> Flags:
    """Return which edges join samples that are far apart without them.

    Parameters
    ----------
    edges : ndarray of shape (e, 2)
        Pairs of samples, each once, of a connected graph.
    lengths : ndarray of shape (e,)
        Distances of these pairs, positive.
    n_samples : int
        Number of samples, n.

    Returns
    -------
    ndarray of bool of shape (e,)
        Edges from a sample to all but the largest group of its neighbours, if the way between groups that avoids the
        sample is over three times as long as the way through it, and twice as long as the median over samples: if all
        ways are similar, as on a ring of samples, there is no short circuit. The graph without these edges is searched
        again, as adjacent short circuits hide each other. A part joined to the rest by a single sample is not counted.

    Notes
    -----
    Cost: a search of close samples from both ends of each edge, 2 e in all. Edges across a hole of the surface are
    suspected as well. Short circuits that are several samples wide are not found.
    """
    kept = np.ones(len(edges), dtype=bool)
    for _ in range(_MOST_ROUNDS):
        bridging = _bridging(edges[kept], lengths[kept], n_samples)
        if not bridging.any():
            break
        kept[np.flatnonzero(kept)[bridging]] = False
    return ~kept


def graph_of(edges: Integers, values: Float64, n_samples: int) -> sp.csr_array:
    """Return the symmetric sparse matrix (n, n) with a value for each edge, zeros among them."""
    first, second = edges.T
    rows, columns = np.concatenate([first, second]), np.concatenate([second, first])
    return sp.csr_array((np.tile(values, 2), (rows, columns)), shape=(n_samples, n_samples))


def _bridging(edges: Integers, lengths: Float64, n: int) -> Flags:
    """Return which edges, (e,), lead from a sample to a group of neighbours that only this sample joins to others."""
    graph = graph_of(edges, lengths, n)
    # The same sparsity pattern with the number of each edge in place of its length.
    numbers = graph_of(edges, np.arange(len(edges), dtype=np.float64), n).data.astype(np.int64)
    around = [_ways_round(graph, sample) for sample in range(n)]
    largest = np.array([ways[np.isfinite(ways)].max(initial=0.0) for ways in around])
    limit = max(DETOUR, 2 * float(np.median(largest)))
    bridging = np.zeros(len(edges), dtype=bool)
    for sample in np.flatnonzero(largest > limit):
        ways = around[sample]
        groups = connected_components(ways <= limit, directed=False)[1]
        main = groups == np.argmax(np.bincount(groups))
        apart = ~main & np.isfinite(ways[:, main]).any(axis=1)
        bridging[numbers[graph.indptr[sample] : graph.indptr[sample + 1]][apart]] = True
    return bridging


def _ways_round(graph: sp.csr_array, sample: int) -> Float64:
    """Return ways between the neighbours of a sample that avoid it, relative to those through it, (k, k)."""
    safe_point()
    edges = slice(graph.indptr[sample], graph.indptr[sample + 1])
    neighbours, lengths = graph.indices[edges], graph.data[edges].copy()
    if not len(neighbours):  # all edges of the sample were suspected in an earlier round
        return np.zeros((0, 0))
    through = lengths[:, None] + lengths
    graph.data[edges] = np.inf  # paths cannot continue from the sample
    ways = dijkstra(graph, indices=neighbours, limit=DETOUR * through.max())[:, neighbours]
    # The limit saves time where ways are short, but long ways must be known as well.
    if np.isinf(ways).any():
        ways = dijkstra(graph, indices=neighbours)[:, neighbours]
    graph.data[edges] = lengths
    ratios: Float64 = ways / through
    return ratios
