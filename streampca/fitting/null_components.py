"""Components without variance, for samples that span fewer dimensions than the number of components requested.

scikit-learn gives min(n_samples, n_features) components, and centred samples span one dimension less, or many less. Any
orthonormal basis of the directions without variance completes them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..arrays import Array
from ..eigensolvers import fix_signs
from ..models.pca import PCAModel
from ..preprocessing import unflatten

SEED = 7  # equal models are completed by equal directions


def with_n_components(model: PCAModel, count: int) -> PCAModel:
    """Return a model in memory with `count` components: its first ones, or all and further ones of variance 0.

    Error bounds of further components are NaN. Cost: 4 m c p flops for c further ones beside m.
    """
    missing = count - model.n_components
    if missing == 0:
        return model
    components = model.components[:count]
    if missing > 0:
        rows = _orthonormal_complement(np.asarray(model.subspace.components), missing)
        further = unflatten(rows, model.sample_shape, model.mask)
        components = np.concatenate([components, further.astype(components.dtype, copy=False)])

    def resized(values: Array, fill: float) -> Array:
        return np.append(values[:count], np.full(max(0, missing), fill))

    return replace(
        model,
        components=components,
        explained_variance=resized(model.explained_variance, 0.0),
        residual_bound=resized(model.residual_bound, np.nan),
        angle_bound=resized(model.angle_bound, np.nan),
        error_bound=resized(model.error_bound, np.nan),
    )


def _orthonormal_complement(rows: Array, count: int) -> Array:
    """Return `count` orthonormal rows that are orthogonal to the given orthonormal rows."""
    columns = np.random.default_rng(SEED).standard_normal((rows.shape[1], count))
    for _ in range(2):  # one projection leaves rounding errors along the rows, a second one removes them
        columns -= rows.T @ (rows @ columns)
        columns, _ = np.linalg.qr(columns)
    return fix_signs(columns).T
