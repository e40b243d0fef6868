"""Components beside those that were found: where samples span fewer dimensions than were asked for.

scikit-learn counts min(n_samples, n_features) components, of which centred samples span one less, or many fewer. What
completes them is any orthonormal basis of directions without variance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..eigensolvers import fix_signs
from ..models.pca import PCAModel
from ..preprocessing import unflatten

Array = npt.NDArray[Any]

SEED = 7  # of the directions, which are the same for the same components


def with_n_components(model: PCAModel, count: int) -> PCAModel:
    """Return a model in memory with so many components: its first, or all and further ones of variance 0.

    Error bounds of further components are NaN. Cost: 4 m c p flops for c further ones beside m.
    """
    missing = count - model.n_components
    if missing == 0:
        return model
    components = model.components[:count]
    if missing > 0:
        rows = _completing(np.asarray(model.subspace.components), missing)
        further = unflatten(rows, model.sample_shape, model.mask)
        components = np.concatenate([components, further.astype(components.dtype, copy=False)])

    def counted(values: Array, fill: float) -> Array:
        return np.append(values[:count], np.full(max(0, missing), fill))

    return replace(
        model,
        components=components,
        explained_variance=counted(model.explained_variance, 0.0),
        error_bound=counted(model.error_bound, np.nan),
        angle_bound=counted(model.angle_bound, np.nan),
        variance_bound=None if model.variance_bound is None else counted(model.variance_bound, np.nan),
    )


def _completing(rows: Array, count: int) -> Array:
    """Return so many orthonormal rows that are orthogonal to given ones, which are orthonormal."""
    found = np.random.default_rng(SEED).standard_normal((rows.shape[1], count))
    for _ in range(2):  # the second time for what rounding left of the first
        found -= rows.T @ (rows @ found)
        found, _ = np.linalg.qr(found)
    return fix_signs(found).T
