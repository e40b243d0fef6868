"""Trustworthiness and continuity: how far an embedding keeps neighbours, and makes no false ones.

References
----------
Venna and Kaski (2001), Neighborhood preservation in nonlinear projection methods.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from ..eigensolvers.dense import solve_dense
from ..planning.blocks import Span, block_rows, blocks_of
from ..planning.embedding import COMPARED_BLOCK, MOST_COMPARED
from ..signals import safe_point

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NEIGHBORS = 12  # neighbours of the two numbers that stand for an embedding, or fewer where there are few samples
LEVELS = (5, 10, NEIGHBORS, 20, MOST_COMPARED)  # neighbours of the curves


def quality(scores: Array, coordinates: Array, most: int, seed: int) -> dict[str, Any]:
    """Return the trustworthiness and continuity of an embedding, measured on a random sample.

    Trustworthiness falls where neighbours in the embedding are none among the scores, continuity where neighbours among
    the scores are torn apart; both are at most 1, and about 0.5 for coordinates at random. Both are measured for
    several numbers of neighbours, and once more for as many principal components as the embedding has axes.

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
    some = np.arange(n) if n <= most else np.sort(np.random.default_rng([seed, 23]).choice(n, most, replace=False))
    samples = scores[some].astype(np.float64)
    components = principal_coordinates(samples, coordinates.shape[1])
    largest = max(1, (len(some) - 1) // 2)
    levels = sorted({min(level, largest) for level in LEVELS})
    ranks = _ranks_of_nearest(samples, [coordinates[some], components], levels[-1])
    found = {name: _kept(table, levels) for name, table in ranks.items()}
    own = levels.index(min(NEIGHBORS, largest))
    return {
        "trustworthiness": found["trustworthiness"][own],
        "continuity": found["continuity"][own],
        "compared_neighbors": levels[own],
        "compared_samples": len(some),
        "neighborhoods": {"neighbors": levels, "components": components.shape[1], **found},
    }


def principal_coordinates(samples: Float64, count: int) -> Float64:
    """Return the scores of samples along their own leading principal components, (m, d), d at most `count`."""
    centred = samples - samples.mean(axis=0)
    m, p = centred.shape
    wide = p > m

    def product() -> Float64:
        return np.asfortranarray(centred @ centred.T if wide else centred.T @ centred)

    found = solve_dense(product, count, most=min(m - 1, p))
    scores: Float64 = found.vectors * np.sqrt(found.values) if wide else centred @ found.vectors
    return scores


def _ranks_of_nearest(samples: Float64, embedded: list[Array], most: int) -> dict[str, Ints]:
    """Return the rank among all samples, from 1, that the nearest ones of each sample have by other coordinates.

    Each table is (m, most). Where the ranks are those among `samples` they decide the trustworthiness, where the
    nearest are those among `samples`, the continuity: of both `embedded` coordinates, the second under "components".
    """
    m = len(samples)
    # name -> points that give the ranks, points that give the neighbours: 0 for samples, 1 and 2 for `embedded`
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
            distances = cdist(points[slice(*block)], points)
            distances[np.arange(block.size), np.arange(*block)] = -1  # each sample is the nearest to itself, of rank 0
            order = np.argsort(distances, axis=1, kind="stable")
            rank = np.empty_like(order)
            np.put_along_axis(rank, order, np.arange(m)[None], axis=1)
            nearest.append(order[:, 1 : most + 1])
            ranks.append(rank)
        for name, (by, of) in pairs.items():
            tables[name][slice(*block)] = np.take_along_axis(ranks[by], nearest[of], axis=1)
    return tables


def _kept(ranks: Ints, levels: list[int]) -> list[float]:
    """Return how far the first k neighbours are of rank k at most, for each number k: 1 where all are."""
    m = len(ranks)
    worst = ((k, m * k * (2 * m - 3 * k - 1)) for k in levels)
    return [1 - 2 * float(np.maximum(ranks[:, :k] - k, 0).sum()) / most for k, most in worst]
