"""Trustworthiness and continuity: how far an embedding keeps neighbours, and makes no false ones.

References
----------
Venna and Kaski (2001), Neighborhood preservation in nonlinear projection methods.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NEIGHBORS = 12  # neighbours that both compare, or fewer where there are few samples


def quality(scores: Array, coordinates: Array, most: int, seed: int) -> dict[str, float]:
    """Return the trustworthiness and continuity of an embedding, measured on a random sample.

    Trustworthiness falls where neighbours in the embedding are none among the scores, continuity where neighbours among
    the scores are torn apart; both are at most 1, and about 0.5 for coordinates at random.

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
    Cost: m^2 (s + log m) operations and three m x m arrays for m samples.
    """
    from sklearn.manifold import trustworthiness

    n = len(scores)
    some = np.arange(n) if n <= most else np.sort(np.random.default_rng([seed, 23]).choice(n, most, replace=False))
    near = min(NEIGHBORS, (len(some) - 1) // 2)
    first, second = scores[some].astype(np.float64), coordinates[some]
    return {
        "trustworthiness": float(trustworthiness(first, second, n_neighbors=near)),
        "continuity": float(trustworthiness(second, first, n_neighbors=near)),
        "compared_neighbors": near,
        "compared_samples": len(some),
    }
