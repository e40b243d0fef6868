"""Action respecting embedding: neighbours in time, pairs of equal actions, and the motions that are learned."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from streampca.errors import DataError, RequestError
from streampca.manifold.action_respecting import (
    action_constraints,
    embed_with_actions,
    equal_action_pairs,
    fit_actions,
    play_forward,
    temporal_neighbors,
)


def walk_on_a_grid(n=45, side=4, seed=0):
    """Return samples of a random walk on a grid, seen through a curved map, with actions and places."""
    rng = np.random.default_rng(seed)
    moves = {"left": (-1, 0), "right": (1, 0), "up": (0, 1), "down": (0, -1)}
    place, places, actions = np.array([1, 1]), [(1, 1)], []
    while len(places) < n:
        action = list(moves)[rng.integers(4)]
        there = place + moves[action]
        if ((there >= 0) & (there < side)).all():
            place = there
            places.append(tuple(place))
            actions.append(action)
    places = np.array(places, dtype=float)
    u, v = 0.5 * places.T
    return np.stack([np.sin(u), 1.3 - np.cos(u), np.sin(v), 1 - np.cos(v)], axis=1), np.array(actions), places


def test_equal_actions_make_a_curved_grid_even():
    samples, actions, places = walk_on_a_grid()
    found = embed_with_actions(samples, actions)
    assert found.converged
    assert max(motion.error / motion.step for motion in found.actions.values()) < 0.02
    assert list(found.actions) == ["down", "left", "right", "up"]
    assert (found.n_pairs, found.n_pairs_used) == (found.n_pairs_used, found.n_pairs)
    assert max(found.excess, found.mismatch) < 0.01
    path = play_forward(found.actions, found.embedding[0], ["left", "up", "right", "down"])
    assert path.shape == (5, 2)
    np.testing.assert_allclose(path[4], path[0], atol=0.1 * found.actions["left"].step)
    affine = np.column_stack([places, np.ones(len(places))])
    left = found.embedding - affine @ np.linalg.lstsq(affine, found.embedding, rcond=None)[0]
    assert np.square(left).sum() < 0.001 * np.square(found.embedding).sum()


def test_fewer_pairs_than_there_are_may_be_asked_for():
    samples, actions, _ = walk_on_a_grid(n=30)
    every, count = equal_action_pairs(actions, 10**6)
    some, same = equal_action_pairs(actions, 20, seed=1)
    assert (len(every), count, len(some), same) == (count, count, 20, count)
    assert {tuple(pair) for pair in some.tolist()} <= {tuple(pair) for pair in every.tolist()}
    assert (actions[every[:, 0]] == actions[every[:, 1]]).all()
    assert embed_with_actions(samples, actions, max_pairs=20).n_pairs_used == 20


def test_neighbours_in_time_are_near_both():
    samples, actions, _ = walk_on_a_grid(n=20)
    distances = squareform(pdist(samples, "sqeuclidean"))
    radii = [2 * max(distances[i, j] for j in (i - 1, i + 1) if 0 <= j < 20) for i in range(20)]
    wanted = [[i, j] for i in range(20) for j in range(i + 1, 20) if distances[i, j] <= min(radii[i], radii[j])]
    edges = temporal_neighbors(distances)
    assert edges.tolist() == wanted
    pairs, _ = equal_action_pairs(actions, 10**6)
    constraints = action_constraints(distances, edges, pairs)
    kernel = samples @ samples.T
    later = distances[tuple((pairs + 1).T)] - distances[tuple(pairs.T)]
    np.testing.assert_allclose(
        constraints.values(kernel), np.append(constraints.limits[: len(edges)], later), atol=1e-12
    )


def test_the_way_back_covers_half_the_way_out():
    angles = np.append(np.arange(13), np.arange(11, 5, -1)) * 0.2
    samples = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = embed_with_actions(samples, np.repeat(["forward", "back"], [12, 6]), n_components=1)
    line = found.embedding[:, 0]
    assert abs(line[-1] - line[12]) == pytest.approx(abs(line[12] - line[0]) / 2, rel=0.01)
    np.testing.assert_allclose(np.diff(line[:13]), (line[12] - line[0]) / 12, rtol=0.01)


def test_planted_motions_are_recovered_and_played():
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    motions = {1: (turn, np.array([1.0, 2.0])), 2: (np.diag([1.0, -1.0]), np.array([-1.0, 0.5]))}
    actions = np.array([1, 2, 2, 1, 2, 1, 1, 2, 1, 2])
    path = [np.array([0.3, -0.2])]
    for action in actions:
        path.append(motions[action][0] @ path[-1] + motions[action][1])
    found = fit_actions(np.array(path), actions)
    for label, (rotation, shift) in motions.items():
        np.testing.assert_allclose(found[label].rotation, rotation, atol=1e-12)
        np.testing.assert_allclose(found[label].shift, shift, atol=1e-12)
        assert found[label].error < 1e-12
        assert found[label].n_samples == 5
    np.testing.assert_allclose(play_forward(found, path[0], actions.tolist()), path, atol=1e-12)
    with pytest.raises(RequestError, match=r"action 3 was not learned; give one of 1, 2\.$"):
        play_forward(found, path[0], [1, 3])


def test_actions_that_do_not_fit_are_refused_in_one_line():
    samples, actions, _ = walk_on_a_grid(n=10)
    with pytest.raises(RequestError, match=r"8 actions do not lead through 10 samples; give 9.*\.$"):
        embed_with_actions(samples, actions[:8])
    with pytest.raises(DataError, match=r"all 10 samples are equal.*\.$"):
        embed_with_actions(np.ones((10, 3)), actions)
    samples[3, 0] = np.nan
    with pytest.raises(DataError, match=r"sample 3 holds NaN.*\.$"):
        embed_with_actions(samples, actions)
