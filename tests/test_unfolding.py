"""Maximum variance unfolding: constraints that are met, closed forms, duality, short circuits."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.spatial import procrustes
from scipy.spatial.distance import pdist, squareform

from streampca.errors import DataError, RequestError
from streampca.manifold.laplacian_factorization import maximize_trace_factorized
from streampca.manifold.maximum_variance import edges_of, equal_lengths, unfold
from streampca.manifold.neighbor_graph import NeighborGraph
from streampca.manifold.semidefinite import DistanceConstraints, maximize_trace, squared_distances
from streampca.manifold.short_circuits import suspected_short_circuits

RNG = np.random.default_rng(3)


def graph_of(points, n_neighbors):
    """Return edges of nearest neighbours and their squared lengths."""
    distances = squareform(pdist(points))
    np.fill_diagonal(distances, np.inf)
    indices = np.argsort(distances, axis=1, kind="stable")[:, :n_neighbors]
    return edges_of(NeighborGraph(indices, np.take_along_axis(distances, indices, axis=1)))


def bent_strip(length=24, width=4, seed=0):
    """Return a jittered strip, bent in half like a U, (n, 3), and its flat coordinates, (n, 2)."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.arange(length), np.arange(width), indexing="ij"), axis=-1).reshape(-1, 2)
    flat = grid + rng.uniform(-0.2, 0.2, grid.shape)
    along = flat[:, 0] - length / 2
    radius = 1.2
    angle = np.clip(along / radius, -np.pi / 2, np.pi / 2)
    beyond = np.abs(along) - radius * np.pi / 2
    x = radius * np.cos(angle) - np.maximum(beyond, 0)
    return np.stack([x, flat[:, 1], radius * np.sin(angle)], axis=1), flat


@pytest.fixture(scope="module")
def strip():
    points, flat = bent_strip()
    edges, lengths = graph_of(points, 6)
    return points, flat, edges, lengths


def test_edges_of_a_graph_are_its_pairs_once():
    points = RNG.standard_normal((30, 3))
    edges, squared = graph_of(points, 4)
    near = np.argsort(squareform(pdist(points)), axis=1)[:, 1:5]
    assert {tuple(edge) for edge in edges.tolist()} == {
        (min(i, int(j)), max(i, int(j))) for i in range(30) for j in near[i]
    }
    np.testing.assert_allclose(squared, np.square(points[edges[:, 0]] - points[edges[:, 1]]).sum(axis=1))


def test_a_bent_chain_becomes_a_line():
    angles = np.sort(RNG.uniform(0, 4, 25))
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    edges = np.stack([np.arange(24), np.arange(1, 25)], axis=1)
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    found = unfold(edges, steps**2, 25, n_components=1)
    line = np.append(0, np.cumsum(steps))
    line -= line.mean()
    assert found.converged
    np.testing.assert_allclose(np.abs(found.embedding[:, 0]), np.abs(line), atol=1e-4 * np.ptp(line))
    assert found.eigenvalues[1] < 1e-4 * found.eigenvalues[0]


def test_a_complete_graph_gives_classical_scaling():
    points = RNG.standard_normal((15, 3)) * [3, 2, 1]
    edges = np.stack(np.triu_indices(15, 1), axis=1)
    found = unfold(edges, pdist(points, "sqeuclidean"), 15, n_components=3)
    assert procrustes(found.embedding, points)[2] < 1e-9
    np.testing.assert_allclose(found.eigenvalues[:3], np.linalg.svd(points - points.mean(0))[1] ** 2, rtol=1e-4)


def test_a_kernel_meets_its_constraints(strip):
    _, flat, edges, lengths = strip
    found = maximize_trace(equal_lengths(edges, lengths, len(flat)))
    kernel = found.kernel
    assert found.converged
    assert found.gap < 1e-5
    np.testing.assert_allclose(kernel.sum(axis=0), 0, atol=1e-9 * np.trace(kernel))
    assert np.linalg.eigvalsh(kernel)[0] > -1e-12 * np.trace(kernel)
    assert np.abs(squared_distances(kernel, edges) / lengths - 1).max() < 0.005
    # Weak duality, from nothing but the multipliers: no kernel has a larger trace in the softened problem.
    constraints = equal_lengths(edges, lengths, len(flat))
    dual = constraints.laplacian(found.multipliers) - np.eye(len(flat)) + 1 / len(flat)
    assert np.linalg.eigvalsh(dual)[0] > -1e-9
    bound = found.multipliers @ (lengths + constraints.softness * found.multipliers)
    assert bound == pytest.approx(np.trace(kernel), rel=1e-4)


def test_inequalities_that_bind_have_positive_multipliers():
    """A triangle of sides of at most 1, 1 and 5: the third is slack, and the two unfold to a line."""
    pairs = np.array([[0, 1], [1, 2], [0, 2]])
    limits = np.array([1.0, 1.0, 25.0])
    constraints = DistanceConstraints(3, pairs, sp.eye_array(3, format="csr"), limits, limits > 0, 1e-9 * limits)
    found = maximize_trace(constraints, tol=1e-8)
    np.testing.assert_allclose(squared_distances(found.kernel, pairs), [1, 1, 4], rtol=1e-6)
    np.testing.assert_allclose(found.multipliers, [1, 1, 0], atol=1e-6)  # tr K = 2 sides^2, for both sides


def test_a_strip_is_unfolded_by_both_methods(strip):
    points, flat, edges, lengths = strip
    exact = unfold(edges, lengths, len(flat), method="interior-point")
    smooth = unfold(edges, lengths, len(flat), method="factorized")
    assert procrustes(points[:, :2], flat)[2] > 0.1
    for found in (exact, smooth):
        assert procrustes(found.embedding, flat)[2] < 0.002
        assert len(found.short_circuits) == 0
        assert found.violations.median <= found.violations.percentile_95 <= found.violations.largest < 0.02
        np.testing.assert_allclose(found.embedding.mean(axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(np.square(found.embedding).sum(axis=0), found.eigenvalues[:2])
    # The bound holds: not even the best kernel has more. Its edges are a little longer than asked for, all as much.
    assert smooth.eigenvalues.sum() * (1 + smooth.gap) >= exact.eigenvalues.sum() * (1 - 3e-3)
    assert smooth.eigenvalues.sum() == pytest.approx(exact.eigenvalues.sum(), rel=0.01)


def test_the_factorised_route_repeats_itself():
    points, _ = bent_strip(length=6)
    edges, lengths = graph_of(points, 6)
    one, other = (maximize_trace_factorized(edges, lengths, len(points), n_vectors=12) for _ in range(2))
    np.testing.assert_array_equal(one.coordinates, other.coordinates)
    assert one.gap == other.gap


@pytest.mark.parametrize("planted", ["edge", "sample"])
def test_a_planted_short_circuit_is_reported(planted):
    points, flat = bent_strip(seed=1)
    one, other = 9, len(points) - 7  # opposite each other, near the ends
    if planted == "sample":
        points[one] = (points[one] + points[other]) / 2
    edges, lengths = graph_of(points, 6)
    if planted == "edge":
        edges = np.vstack([edges, [one, other]])
        lengths = np.append(lengths, np.square(points[one] - points[other]).sum())
    found = unfold(edges, lengths, len(points))
    assert len(found.short_circuits) > 0
    assert (found.short_circuits == one).any(axis=1).all()
    assert found.stretches.min() > 3
    assert procrustes(found.embedding, flat)[2] > 0.02
    without = ~(edges[:, None] == found.short_circuits).all(axis=2).any(axis=1)
    again = unfold(edges[without], lengths[without], len(points))
    others = np.arange(len(points)) != one
    assert procrustes(again.embedding[others], flat[others])[2] < 0.005
    assert len(again.short_circuits) == 0


def test_samples_may_lose_all_their_edges():
    """All edges of five samples are suspected; the next round searches a graph without them."""
    points = np.random.default_rng(7).random((30, 2))
    edges, lengths = graph_of(points, 2)
    kept = ~suspected_short_circuits(edges, np.sqrt(lengths), 30)
    assert (np.bincount(edges[kept].reshape(-1), minlength=30) == 0).sum() == 5


def test_a_ring_and_a_bridge_are_no_short_circuits():
    ring = np.stack([np.arange(40), (np.arange(40) + 1) % 40], axis=1)
    assert not suspected_short_circuits(ring, np.ones(40), 40).any()
    sides = np.stack(np.triu_indices(6, 1), axis=1)
    bridged = np.vstack([sides, sides + 6, [[0, 6]]])
    assert not suspected_short_circuits(bridged, np.ones(len(bridged)), 12).any()


def test_units_of_length_do_not_matter(strip):
    _, flat, edges, lengths = strip
    one, other = (unfold(edges, lengths * scale**2, len(flat)) for scale in (1.0, 1e-9))
    assert other.converged
    np.testing.assert_allclose(other.embedding * 1e9, one.embedding, atol=1e-3 * np.ptp(one.embedding))


def test_duplicates_stay_together():
    points, _ = bent_strip(length=12)
    points[5], points[20] = points[4], points[24]
    edges, lengths = graph_of(points, 6)
    assert (lengths == 0).sum() == 2
    for method in ("interior-point", "factorized"):
        found = unfold(edges, lengths, len(points), method=method)
        spread = np.ptp(found.embedding[:, 0])
        assert np.linalg.norm(found.embedding[5] - found.embedding[4]) < 0.01 * spread
        assert len(found.short_circuits) == 0


def test_what_cannot_be_unfolded_is_refused_in_one_line():
    apart = np.array([[0, 1], [1, 2], [3, 4]])
    with pytest.raises(DataError, match=r"^the graph of neighbours has 2 parts \(3, 2 samples\).*more neighbours.*\.$"):
        unfold(apart, np.ones(3), 5)
    with pytest.raises(DataError, match=r"all 2 edges of the graph have length 0.*\.$"):
        unfold(np.array([[0, 1], [1, 2]]), np.zeros(2), 3)
    with pytest.raises(RequestError, match=r"n_components 3 is not from 1 to 2.*\.$"):
        unfold(np.array([[0, 1], [1, 2]]), np.ones(2), 3, n_components=3)
    with pytest.raises(RequestError, match=r"more than the 1 that method 'factorized' finds.*\.$"):
        unfold(np.array([[0, 1], [1, 2]]), np.ones(2), 3, n_components=2, method="factorized")
