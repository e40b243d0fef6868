"""Short circuits of a graph of neighbours: edges between samples that are far apart along all other edges.

A few of them, made by noise between two sheets of one surface, keep every method that follows the graph from unfolding
it. A sample is looked at without its edges: its neighbours are still close to each other in a graph that follows a
surface, by way of other samples, and are far apart where the sample alone joins them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, dijkstra

from ..signals import safe_point

Float64 = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Ways round a sample to the way through it, on 20 rolls of 400 samples with 6 neighbours: at most 2.4 without a short
# circuit, at least 6.1 with one.
DETOUR = 3.0
_MOST_ROUNDS = 5


def suspected_short_circuits(edges: Integers, lengths: Float64, n_samples: int) -> Flags:
    """Return which edges join samples that are far apart without them.

    Parameters
    ----------
    edges : ndarray of shape (e, 2)
        Pairs of samples, each once, of a connected graph.
    lengths : ndarray of shape (e,)
        Their distances, positive.
    n_samples : int
        Number of samples, n.

    Returns
    -------
    ndarray of bool of shape (e,)
        Edges from a sample to all but the largest group of its neighbours, where the way from group to group that
        avoids the sample is over three times as long as that through it, and twice as long as the median over samples:
        where all are alike, as on a ring of samples, none is a short circuit. The graph without them is searched
        again, as adjacent short circuits hide each other. A part that only one sample joins to the rest is none.

    Notes
    -----
    Cost: a search of close samples from each end of each edge, 2 e in all. Edges across a hole of the surface are
    suspected too. Short circuits several samples wide, which no single sample makes, are not found.
    """
    left = np.ones(len(edges), dtype=bool)
    for _ in range(_MOST_ROUNDS):
        found = _bridging(edges[left], lengths[left], n_samples)
        if not found.any():
            break
        left[np.flatnonzero(left)[found]] = False
    return ~left


def graph_of(edges: Integers, values: Float64, n_samples: int) -> sp.csr_array:
    """Return the symmetric sparse matrix (n, n) with a value for each edge, zeros among them."""
    one, other = edges.T
    rows, columns = np.concatenate([one, other]), np.concatenate([other, one])
    return sp.csr_array((np.tile(values, 2), (rows, columns)), shape=(n_samples, n_samples))


def _bridging(edges: Integers, lengths: Float64, n: int) -> Flags:
    """Return which edges, (e,), lead from a sample to a group of neighbours that it alone joins to the largest one."""
    graph = graph_of(edges, lengths, n)
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
    own = slice(graph.indptr[sample], graph.indptr[sample + 1])
    neighbours, lengths = graph.indices[own], graph.data[own].copy()
    through = lengths[:, None] + lengths
    graph.data[own] = np.inf  # no way leads on from the sample
    ways = dijkstra(graph, indices=neighbours, limit=DETOUR * through.max())[:, neighbours]
    if np.isinf(ways).any():
        ways = dijkstra(graph, indices=neighbours)[:, neighbours]
    graph.data[own] = lengths
    found: Float64 = ways / through
    return found
