"""Maximum variance unfolding: the embedding of largest variance that keeps the lengths of a graph's edges.

References
----------
Weinberger and Saul (2006), "Unsupervised learning of image manifolds by semidefinite programming".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from ..arrays import Float64
from ..eigensolvers import solve_dense
from ..errors import DataError, RequestError, worded
from ..planning.embedding import EXACT_EDGES, unfolded_exactly
from .laplacian_factorization import maximize_trace_factorized
from .neighbor_graph import NeighborGraph
from .semidefinite import DistanceConstraints, maximize_trace, squared_distances
from .short_circuits import DETOUR, graph_of, suspected_short_circuits

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

Method = Literal["auto", "interior-point", "factorized"]

# Relative excess of a squared distance for a multiplier of 1. On rolls of 400 samples, whose multipliers reach 3000,
# errors of edges are then at most 3e-4; a tenth of this softness leaves 1e-4, which shows in no embedding.
SOFTNESS = 1e-7
# Relative differences of squared lengths: that of 95 % of the edges up to which an unfolding has converged, and that of
# the median edge from which it is not an unfolding. See benchmarks/unfolding_sets.py.
KEPT, USABLE = 1e-3, 0.02
GAIN = 1.25  # growth of the variance without suspected edges from which they are short circuits


@dataclass(frozen=True)
class Violations:
    """Differences of squared edge lengths in a kernel from the given ones, relative to the latter.

    Attributes
    ----------
    largest, percentile_95, median : float
        Statistics over all edges.
    """

    largest: float
    percentile_95: float
    median: float

    def __str__(self) -> str:
        return (
            f"squared lengths of edges are off by {self.median:.1e} of themselves (median), {self.percentile_95:.1e} "
            f"(95 %) and {self.largest:.1e} (largest)"
        )

    @property
    def are_usable(self) -> bool:
        """False if the median edge has another length than the given one."""
        return self.median <= USABLE


@dataclass(frozen=True, eq=False)
class Unfolding:
    """Embedding by maximum variance unfolding, with measures of its accuracy.

    Attributes
    ----------
    embedding : ndarray of shape (n, d)
        Coordinates, centred; axes by descending variance, signs by `fix_signs`.
    eigenvalues : ndarray
        Eigenvalues of the kernel, descending: all n by the interior-point method, otherwise the nonzero ones.
    violations : Violations
        Differences of the kernel from the lengths of edges.
    gap : float
        Duality gap: the variance is short of its maximum by at most this fraction of itself. NaN if no bound was found.
    short_circuits : ndarray of shape (s, 2)
        Edges that prevent unfolding: `suspected_short_circuits` without which the embedding has a quarter more
        variance, and their ends are more than three times as far apart. Leave them out to unfold.
    stretches : ndarray of shape (s,)
        Ratio of these distances.
    method : {"interior-point", "factorized"}
        Method that computed the embedding.
    iterations : int
        Newton steps, or steps of L-BFGS.
    converged : bool
        True if the solver reached its tolerances, and 95 per cent of the edges are right to `KEPT`.
    """

    embedding: Float64
    eigenvalues: Float64
    violations: Violations
    gap: float
    short_circuits: Integers
    stretches: Float64
    method: str
    iterations: int
    converged: bool


def edges_of(graph: NeighborGraph) -> tuple[Integers, Float64]:
    """Return the pairs of samples one of which is a neighbour of the other, and their squared distances.

    Parameters
    ----------
    graph : NeighborGraph
        Graph of n samples and k neighbours.

    Returns
    -------
    edges : ndarray of shape (e, 2)
        Each pair once, the lower number first, in ascending order; e is at most n k.
    squared_lengths : ndarray of shape (e,)
        Squared distances, in the order of edges.
    """
    n, k = graph.indices.shape
    pairs = np.stack([np.repeat(np.arange(n), k), graph.indices.reshape(-1).astype(np.int64)], axis=1)
    # Each pair once, whichever of the two is the neighbour.
    pairs.sort(axis=1)
    edges, first = np.unique(pairs, axis=0, return_index=True)
    return edges, graph.distances.reshape(-1)[first].astype(np.float64) ** 2


def unfold(
    edges: Integers,
    squared_lengths: Float64,
    n_samples: int,
    *,
    n_components: int = 2,
    method: Method = "auto",
    tol: float = 1e-5,
    seed: int = 0,
) -> Unfolding:
    """Unfold samples that are joined by edges of given length.

    Parameters
    ----------
    edges : ndarray of shape (e, 2)
        Pairs of different samples, each once; see `edges_of`. They must connect all samples.
    squared_lengths : ndarray of shape (e,)
        Squared distances that the embedding keeps.
    n_samples : int
        Number of samples, n.
    n_components : int, default=2
        Number of coordinates, d, at most n - 1.
    method : {"auto", "interior-point", "factorized"}, default="auto"
        "interior-point" computes the kernel matrix of largest trace to a known accuracy; "factorized" one of low rank
        for thousands of samples, see `maximize_trace_factorized`. "auto" uses the first for up to 600 samples
        and 1800 edges.
    tol : float, default=1e-5
        Relative duality gap at which the interior-point method stops.
    seed : int, default=0
        Seed of the starting vector of the eigensolver of "factorized".

    Returns
    -------
    Unfolding

    Raises
    ------
    DataError
        If edges do not connect all samples: the variance is then unbounded.
    """
    if not 1 <= n_components < n_samples:
        raise RequestError(
            f"n_components {n_components} is not from 1 to {n_samples - 1}, the samples less one; give such a number."
        )
    refuse_disconnected(edges, n_samples)
    if not squared_lengths.any():
        raise DataError(
            f"all {len(edges)} edges of the graph have length 0, as their samples are equal; leave out duplicates."
        )
    if method == "auto":
        method = "interior-point" if unfolded_exactly(len(edges), n_samples) else "factorized"
    if method == "factorized" and n_components > n_samples - 2:
        raise RequestError(
            f"n_components {n_components} is more than the {n_samples - 2} that method 'factorized' finds of "
            f"{n_samples} samples; give fewer, or method 'interior-point'."
        )
    graph = _Edges(edges, squared_lengths, n_samples)
    solved = _solve(graph, graph, n_components, method, tol, seed)
    # Unfold once more without suspected edges, to see whether they prevented it.
    bridges, stretches = _short_circuits(
        graph, solved, lambda part: _solve(part, graph, n_components, method, tol, seed)
    )
    off = violations(solved.reached, squared_lengths)
    return Unfolding(
        solved.embedding,
        solved.eigenvalues,
        off,
        solved.gap,
        bridges,
        stretches,
        method,
        solved.iterations,
        solved.converged and off.percentile_95 <= KEPT,
    )


class _Edges(NamedTuple):
    """Graph of edges of given lengths."""

    pairs: Integers
    squared_lengths: Float64
    n_samples: int

    def only(self, kept: Flags) -> _Edges:
        return _Edges(self.pairs[kept], self.squared_lengths[kept], self.n_samples)


class _Solved(NamedTuple):
    """Solution, with the squared lengths that it gives to edges, (e,), including edges that were not constraints."""

    embedding: Float64
    eigenvalues: Float64
    reached: Float64
    gap: float
    iterations: int
    converged: bool


def _solve(graph: _Edges, looked_at: _Edges, n_components: int, method: Method, tol: float, seed: int) -> _Solved:
    """Unfold a graph, and measure the lengths of the edges `looked_at`, the same or more."""
    if method == "interior-point":
        exact = maximize_trace(equal_lengths(*graph), tol=tol)
        embedding, eigenvalues = leading_coordinates(exact.kernel, n_components)
        reached = squared_distances(exact.kernel, looked_at.pairs)
        return _Solved(embedding, eigenvalues, reached, exact.gap, exact.iterations, exact.converged)
    factor = maximize_trace_factorized(*graph, n_components=n_components, seed=seed)
    one, other = looked_at.pairs.T
    reached = np.square(factor.coordinates[one] - factor.coordinates[other]).sum(axis=1)
    embedding, eigenvalues = factor.coordinates[:, :n_components], np.square(factor.coordinates).sum(axis=0)
    return _Solved(embedding, eigenvalues, reached, factor.gap, factor.iterations, factor.converged)


def _short_circuits(graph: _Edges, solved: _Solved, solve: Callable[[_Edges], _Solved]) -> tuple[Integers, Float64]:
    """Return the edges that prevent a graph from unfolding, and their stretches without them."""
    none = np.zeros((0, 2), dtype=np.int64), np.zeros(0)
    lengths = np.sqrt(graph.squared_lengths)
    lengths = np.maximum(lengths, lengths.mean() / 10)  # compared with an edge between duplicates, every detour is long
    suspected = suspected_short_circuits(graph.pairs, lengths, graph.n_samples)
    if not suspected.any() or _parts(graph.only(~suspected).pairs, graph.n_samples)[0] > 1:
        return none
    without = solve(graph.only(~suspected))
    if without.eigenvalues.sum() < GAIN * solved.eigenvalues.sum():
        return none
    stretches = np.sqrt(without.reached[suspected]) / lengths[suspected]
    far = stretches > DETOUR
    return graph.pairs[suspected][far], stretches[far]


def exact_remedy(n_neighbors: int, n_components: int) -> str:
    """Say how many landmarks are unfolded by the interior-point method, which converges on any graph."""
    count = max(EXACT_EDGES // n_neighbors, n_neighbors + 1, n_components + 2)
    remedy = f"{count} landmarks (--landmarks {count}, landmarks={count})"
    return worded(f"{remedy} are unfolded by a method that always converges")


def equal_lengths(edges: Integers, squared_lengths: Float64, n_samples: int) -> DistanceConstraints:
    """Return the constraints that keep the squared length of every edge."""
    e = len(edges)
    softness = SOFTNESS * np.where(squared_lengths > 0, squared_lengths, squared_lengths.mean())
    identity = sp.eye_array(e, format="csr")
    return DistanceConstraints(n_samples, edges, identity, squared_lengths, np.zeros(e, dtype=bool), softness)


def leading_coordinates(kernel: Float64, n_components: int) -> tuple[Float64, Float64]:
    """Return the leading eigenvectors of a kernel times the roots of their eigenvalues, (n, d), and all eigenvalues.

    The kernel is centred first: the solver meets the constraint on its sum to a tolerance only.
    """
    centred = kernel - kernel.mean(axis=0)
    centred -= centred.mean(axis=1)[:, None]
    pairs = solve_dense(lambda: np.asfortranarray(centred), n_components, most=len(kernel) - 1)
    assert pairs.spectrum is not None  # noqa: S101 - a dense solution has all eigenvalues
    return pairs.vectors * np.sqrt(pairs.values), pairs.spectrum


def violations(reached: Float64, lengths: Float64) -> Violations:
    """Return statistics of the relative differences of squared lengths; a length of 0 is replaced by the mean."""
    off = np.abs(reached - lengths) / np.where(lengths > 0, lengths, lengths.mean())
    return Violations(float(off.max()), float(np.quantile(off, 0.95)), float(np.median(off)))


def refuse_disconnected(edges: Integers, n_samples: int) -> None:
    """Raise if edges do not connect all samples."""
    parts, labels = _parts(edges, n_samples)
    if parts > 1:
        sizes = ", ".join(map(str, np.sort(np.bincount(labels))[:-6:-1])) + (", ..." if parts > 5 else "")
        raise DataError(
            f"the graph of neighbours has {parts} parts ({sizes} samples) that no edge joins, and their distance would "
            "grow without end; give more neighbours, or the samples of one part."
        )


def _parts(edges: Integers, n_samples: int) -> tuple[int, Integers]:
    """Return the number of connected parts of a graph, and the part of each sample, (n,)."""
    parts: tuple[int, Integers] = connected_components(graph_of(edges, np.ones(len(edges)), n_samples), directed=False)
    return parts
