"""Trustworthiness and continuity: measures of false and of lost neighbours in an embedding.

References
----------
Venna and Kaski (2001), Neighborhood preservation in nonlinear projection methods.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from ..arrays import Array, Float64
from ..eigensolvers.dense import solve_dense
from ..planning.blocks import Span, block_rows, blocks_of
from ..planning.embedding import COMPARED_BLOCK, MOST_COMPARED
from ..signals import safe_point

Ints = npt.NDArray[np.int64]

NEIGHBORS = 12  # neighbours of the two numbers that summarise an embedding; fewer if there are few samples
WIDE = 100  # coordinates beyond which distances come from products, many times faster than from differences
LEVELS = (5, 10, NEIGHBORS, 20, MOST_COMPARED)  # numbers of neighbours of the curves


def quality(scores: Array, coordinates: Array, most: int, seed: int) -> dict[str, Any]:
    """Return the trustworthiness and continuity of an embedding, measured on a random sample.

    Neighbours in the embedding that are not neighbours by the scores lower the trustworthiness, and neighbours by the
    scores that are torn apart lower the continuity; both are at most 1, and about 0.5 for random coordinates. Both are
    measured for several numbers of neighbours, and again for as many principal components as the embedding has axes.

    Parameters
    ----------
    scores : ndarray of shape (n, s)
    coordinates : ndarray of shape (n, d)
    most : int
        Largest number of samples that are compared.
    seed : int
        Seed of the sample.

    Notes
    -----
    Cost: m^2 (s + log m) operations for m samples; three arrays of a block of samples by m.
    """
    n = len(scores)
    chosen = np.arange(n) if n <= most else np.sort(np.random.default_rng([seed, 23]).choice(n, most, replace=False))
    samples = scores[chosen].astype(np.float64)
    if samples.shape[1] > WIDE:
        samples -= np.rint(samples.mean(axis=0))  # whole numbers stay whole: products of small ones are exact
    components = principal_coordinates(samples, coordinates.shape[1])
    # The measures are defined for fewer neighbours than half the samples.
    largest = max(1, (len(chosen) - 1) // 2)
    levels = sorted({min(level, largest) for level in LEVELS})
    ranks = _ranks_of_nearest(samples, [coordinates[chosen], components], levels[-1])
    curves = {name: _kept(table, levels) for name, table in ranks.items()}
    reported = levels.index(min(NEIGHBORS, largest))
    return {
        "trustworthiness": curves["trustworthiness"][reported],
        "continuity": curves["continuity"][reported],
        "compared_neighbors": levels[reported],
        "compared_samples": len(chosen),
        "neighborhoods": {"neighbors": levels, "components": components.shape[1], **curves},
    }


def principal_coordinates(samples: Float64, count: int) -> Float64:
    """Return scores of samples along leading principal components of the same samples, (m, d), d at most `count`."""
    centred = samples - samples.mean(axis=0)
    m, p = centred.shape
    # The smaller of the two products has the same nonzero eigenvalues.
    wide = p > m

    def product() -> Float64:
        return np.asfortranarray(centred @ centred.T if wide else centred.T @ centred)

    pairs = solve_dense(product, count, most=min(m - 1, p))
    scores: Float64 = pairs.vectors * np.sqrt(pairs.values) if wide else centred @ pairs.vectors
    return scores


def _ranks_of_nearest(samples: Float64, embedded: list[Array], most: int) -> dict[str, Ints]:
    """Return the ranks, from 1, of the nearest samples by one set of coordinates in the order of another set.

    Each table is (m, most). Ranks by `samples` of neighbours in an embedding give the trustworthiness, and ranks in the
    embedding of neighbours by `samples` the continuity: for both `embedded` sets, the second under "components".
    """
    m = len(samples)
    # name: points that give the ranks, points that give the neighbours; 0 is `samples`, 1 and 2 are `embedded`
    pairs = {
        "trustworthiness": (0, 1),
        "continuity": (1, 0),
        "components_trustworthiness": (0, 2),
        "components_continuity": (2, 0),
    }
    tables = {name: np.empty((m, most), np.int64) for name in pairs}
    for block in blocks_of(Span(0, m), block_rows(8 * m, 1, COMPARED_BLOCK)):
        safe_point()
        nearest, ranks = [], []
        for points in (samples, *embedded):
            distances = _distances(points[slice(*block)], points)
            distances[np.arange(block.size), np.arange(*block)] = -1  # each sample is nearest to itself, with rank 0
            order = np.argsort(distances, axis=1, kind="stable")
            rank = np.empty_like(order)
            np.put_along_axis(rank, order, np.arange(m)[None], axis=1)
            nearest.append(order[:, 1 : most + 1])
            ranks.append(rank)
        for name, (by, of) in pairs.items():
            tables[name][slice(*block)] = np.take_along_axis(ranks[by], nearest[of], axis=1)
    return tables


def _distances(rows: Float64, points: Float64) -> Float64:
    """Return the distances of rows from points, or their squares where these have many coordinates."""
    if points.shape[1] <= WIDE:
        distances: Float64 = cdist(rows, points)
        return distances
    lengths = np.einsum("ij,ij->i", points, points)
    squares: Float64 = rows @ points.T
    squares *= -2
    squares += lengths
    squares += np.einsum("ij,ij->i", rows, rows)[:, None]
    np.maximum(squares, 0, out=squares)
    return squares


def _kept(ranks: Ints, levels: list[int]) -> list[float]:
    """Return the measure for each number k of neighbours: 1 if the first k neighbours have ranks of at most k."""
    m = len(ranks)
    # The largest possible sum of excess ranks, by which Venna and Kaski normalise.
    worst = ((k, m * k * (2 * m - 3 * k - 1)) for k in levels)
    return [1 - 2 * float(np.maximum(ranks[:, :k] - k, 0).sum()) / most for k, most in worst]
