"""Action respecting embedding: samples in time, placed so that each action is one rigid motion.

Samples follow each other by labelled actions. If the same action was taken from two samples, the two samples that
follow are as far from each other as the first two, so that the action is a rotation or reflection and a shift of the
embedding. Edges between neighbours bound distances from above, and the variance is maximised.

References
----------
Bowling, Ghodsi and Wilkinson (2005), "Action respecting embedding".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.spatial.distance import pdist, squareform

from ..arrays import Array, Float64
from ..errors import BudgetError, DataError, RequestError
from ..planning.embedding import MATRICES, MOST_PAIRS
from ..units import format_bytes
from .maximum_variance import SOFTNESS, leading_coordinates, refuse_disconnected
from .semidefinite import DistanceConstraints, maximize_trace

Integers = npt.NDArray[np.int64]

# Largest squared distance of neighbours, relative to the larger squared distance to a neighbour in time. With 1,
# diagonals of a plane are missing, and two axes can coincide.
REACH = 2.0


@dataclass(frozen=True, eq=False)
class ActionMap:
    """Rigid motion of the embedding by which an action is represented.

    Attributes
    ----------
    rotation : ndarray of shape (d, d)
        Orthogonal matrix A, a rotation or a reflection.
    shift : ndarray of shape (d,)
        Shift b: a sample at y is moved to A y + b.
    error : float
        Root mean square distance of moved samples from the samples that followed, in units of the embedding.
    step : float
        Root mean square distance between samples and the samples that followed.
    n_samples : int
        Number of times that the action was taken.
    """

    rotation: Float64
    shift: Float64
    error: float
    step: float
    n_samples: int

    def __call__(self, positions: Float64) -> Float64:
        """Return positions, (d,) or (m, d), after the action."""
        moved: Float64 = positions @ self.rotation.T + self.shift
        return moved


@dataclass(frozen=True, eq=False)
class ActionEmbedding:
    """Embedding that respects actions, with measures of its accuracy.

    Attributes
    ----------
    embedding : ndarray of shape (n, d)
        Coordinates, centred; axes by descending variance, signs by `fix_signs`.
    eigenvalues : ndarray of shape (n,)
        Eigenvalues of the kernel, descending.
    actions : mapping of label to ActionMap
        Motion of each action, in the order of sorted labels.
    edges : ndarray of shape (e, 2)
        Neighbours, whose distances are bounded from above.
    excess : float
        Largest excess of a squared distance of neighbours in the kernel, relative to the mean one.
    mismatch : float
        Largest difference of squared distances in the kernel that equal actions make equal, relative to the same mean.
    n_pairs, n_pairs_used : int
        Number of pairs of samples from which the same action was taken, and of those used as constraints.
    gap : float
        Duality gap: the variance is short of its maximum by at most this fraction of itself.
    iterations : int
        Newton steps.
    converged : bool
        True if the tolerance was reached.
    """

    embedding: Float64
    eigenvalues: Float64
    actions: Mapping[Hashable, ActionMap]
    edges: Integers
    excess: float
    mismatch: float
    n_pairs: int
    n_pairs_used: int
    gap: float
    iterations: int
    converged: bool


def embed_with_actions(
    samples: Array,
    actions: Array,
    *,
    n_components: int = 2,
    max_pairs: int = MOST_PAIRS,
    tol: float = 1e-5,
    seed: int = 0,
    room: int | None = None,
) -> ActionEmbedding:
    """Embed samples that follow each other by actions.

    Parameters
    ----------
    samples : ndarray of shape (n, p)
        Samples, or their scores, in the order of time.
    actions : ndarray of shape (n - 1,)
        Labels: `actions[t]` leads from sample t to sample t + 1.
    n_components : int, default=2
        Number of coordinates, d, at most n - 1.
    max_pairs : int, default=1500
        Largest number of pairs of equal actions used as constraints; a random choice if there are more. Each adds at
        most two distances, and time grows with the third power of their number.
    tol : float, default=1e-5
        Relative duality gap at which to stop.
    seed : int, default=0
        Seed of the choice of pairs.
    room : int, optional
        Bytes available for the matrices of the solver.

    Returns
    -------
    ActionEmbedding

    Raises
    ------
    RequestError
        If there are not n - 1 actions, or n_components is out of range.
    DataError
        If all samples are equal, or some are not finite.
    BudgetError
        If the matrices need more than `room`.
    """
    n = len(samples)
    actions = np.asarray(actions)
    if len(actions) != n - 1:
        raise RequestError(f"{len(actions)} actions do not lead through {n} samples; give {n - 1}, one for each step.")
    if not 1 <= n_components < n:
        raise RequestError(
            f"n_components {n_components} is not from 1 to {n - 1}, the samples less one; give such a number."
        )
    distances = squareform(pdist(samples, "sqeuclidean"))
    if not np.isfinite(distances).all():
        worst = int(np.argmin(np.isfinite(distances).sum(axis=1)))
        raise DataError(f"sample {worst} holds NaN, infinity or values whose squares overflow; leave it out.")
    edges = temporal_neighbors(distances)
    pairs, n_pairs = equal_action_pairs(actions, max_pairs, seed)
    constraints = action_constraints(distances, edges, pairs)
    needed = MATRICES * 8 * len(constraints.pairs) ** 2
    if room is not None and needed > room:
        raise BudgetError(
            f"{len(constraints.pairs)} pairs of samples that are near in time or moved alike need matrices of "
            f"{format_bytes(needed)}, and memory leaves {format_bytes(room)}; give fewer samples, or more memory."
        )
    solution = maximize_trace(constraints, tol=tol)
    embedding, eigenvalues = leading_coordinates(solution.kernel, n_components)
    # Relative to the mean squared length of edges, as for the solver's tolerance.
    unit = float(constraints.limits[: len(edges)].mean())
    excess = constraints.values(solution.kernel) - constraints.limits
    return ActionEmbedding(
        embedding,
        eigenvalues,
        fit_actions(embedding, actions),
        edges,
        max(0.0, float(excess[: len(edges)].max()) / unit),
        float(np.abs(excess[len(edges) :]).max(initial=0.0)) / unit,
        n_pairs,
        len(pairs),
        solution.gap,
        solution.iterations,
        solution.converged,
    )


def temporal_neighbors(distances: Float64, *, reach: float = REACH) -> Integers:
    """Return the pairs of samples that are close compared with the steps in time of both.

    Parameters
    ----------
    distances : ndarray of shape (n, n)
        Squared distances between samples in the order of time.
    reach : float, default=2.0
        Samples are neighbours of i up to this multiple of the larger squared distance of i to its neighbours in time.

    Returns
    -------
    ndarray of shape (e, 2)
        Pairs of samples that are neighbours of each other, the earlier first, in ascending order; they include samples
        one step apart. If one direction sufficed, long steps would join samples that are far apart.
    """
    steps = np.diagonal(distances, 1)
    radii = reach * np.maximum(np.append(steps, 0.0), np.insert(steps, 0, 0.0))
    neighbors: Integers = np.argwhere(np.triu((distances <= radii[:, None]) & (distances <= radii), 1))
    return neighbors


def equal_action_pairs(actions: Array, most: int, seed: int = 0) -> tuple[Integers, int]:
    """Sample up to `most` pairs with equal actions, (q, 2); also return the total number."""
    labels = np.unique(actions, return_inverse=True)[1].reshape(-1)
    pairs = np.argwhere(np.triu(labels[:, None] == labels, 1))
    if len(pairs) <= most:
        return pairs, len(pairs)
    chosen = np.random.default_rng(seed).choice(len(pairs), most, replace=False)
    return pairs[np.sort(chosen)], len(pairs)


def action_constraints(distances: Float64, edges: Integers, pairs: Integers) -> DistanceConstraints:
    """Return the constraints: edges keep at most their distance, and pairs keep their distance one step later.

    Parameters
    ----------
    distances : ndarray of shape (n, n)
        Squared distances between samples.
    edges : ndarray of shape (e, 2)
        Neighbours.
    pairs : ndarray of shape (q, 2)
        Samples from which the same action was taken, none of them the last.

    Returns
    -------
    DistanceConstraints
        Constraints of edges, then of pairs.
    """
    refuse_disconnected(edges, len(distances))
    limits = distances[edges[:, 0], edges[:, 1]]
    if not limits.any():
        raise DataError(
            f"all {len(distances)} samples are equal, and no embedding tells them apart; give samples that differ."
        )
    e, q = len(edges), len(pairs)
    # Each squared distance is one unknown, however many constraints it appears in.
    involved, places = np.unique(np.concatenate([edges, pairs, pairs + 1]), axis=0, return_inverse=True)
    # Row c < e: the length of edge c; row e + i: distance of pair i one step later less its distance now.
    rows = np.concatenate([np.arange(e + q), np.arange(e, e + q)])
    values = np.concatenate([np.ones(e), np.full(q, -1.0), np.ones(q)])
    matrix = sp.csr_array((values, (rows, places.reshape(-1))), shape=(e + q, len(involved)))
    return DistanceConstraints(
        len(distances),
        involved,
        matrix,
        np.append(limits, np.zeros(q)),
        np.arange(e + q) < e,
        np.full(e + q, SOFTNESS * limits.mean()),
    )


def fit_actions(embedding: Float64, actions: Array) -> dict[Hashable, ActionMap]:
    """Return the rigid motion that is closest to each action, by Procrustes analysis.

    Parameters
    ----------
    embedding : ndarray of shape (n, d)
        Positions in the order of time.
    actions : ndarray of shape (n - 1,)
        Labels of the steps between them.

    Returns
    -------
    dict
        An `ActionMap` for each label, in the order of sorted labels.
    """
    motions: dict[Hashable, ActionMap] = {}
    for label in np.unique(actions):
        times = np.flatnonzero(actions == label)
        before, after = embedding[times], embedding[times + 1]
        # The orthogonal matrix closest to the cross-products of centred positions.
        left, _, right = np.linalg.svd((after - after.mean(axis=0)).T @ (before - before.mean(axis=0)))
        rotation = left @ right
        shift = after.mean(axis=0) - before.mean(axis=0) @ rotation.T
        error = _root_mean_square(before @ rotation.T + shift - after)
        motions[label.item()] = ActionMap(rotation, shift, error, _root_mean_square(after - before), len(times))
    return motions


def play_forward(actions: Mapping[Hashable, ActionMap], start: Float64, sequence: Sequence[Hashable]) -> Float64:
    """Return the positions along a sequence of actions.

    Parameters
    ----------
    actions : mapping of label to ActionMap
        See `fit_actions`.
    start : ndarray of shape (d,)
        Any position in the embedding, for example of a sample.
    sequence : sequence of labels
        Actions, one after the other, of length s.

    Returns
    -------
    ndarray of shape (s + 1, d)
        Start, and the position after each action.
    """
    unknown = [label for label in sequence if label not in actions]
    if unknown:
        labels = ", ".join(map(repr, actions))
        raise RequestError(f"action {unknown[0]!r} was not learned; give one of {labels}.")
    path = [np.asarray(start, dtype=np.float64)]
    for label in sequence:
        path.append(actions[label](path[-1]))
    return np.stack(path)


def _root_mean_square(vectors: Float64) -> float:
    """Return the root of the mean squared length of rows."""
    return float(np.sqrt(np.square(vectors).sum(axis=1).mean()))
