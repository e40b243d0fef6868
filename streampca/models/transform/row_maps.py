"""Maps of rows to images, as functions of a subspace so that `functools.partial` objects of them pickle."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...arrays import Array
from ...preprocessing import Frame
from ..subspace import Subspace, squared_lengths, working_dtype
from .finite import OfSparse, RowMap


def scores_of(subspace: Subspace, *, whiten: bool) -> RowMap:
    """Return the map of rows to scores."""
    project = partial(subspace.project, whiten=whiten)
    return OfSparse(project) if subspace.takes_sparse else project


def images_of(subspace: Subspace, scores: Array, *, frame: Frame, whiten: bool = False, start: int = 0) -> Array:
    """Return images from scores of the samples from index `start` on; scores beyond the components are ignored."""
    return frame.images(subspace.reconstruct(scores[:, : len(subspace.components)], whiten=whiten), start)


def reconstructions_of(
    subspace: Subspace,
    rows: Array,
    *,
    frame: Frame,
    residual: bool = False,
    errors: list[float] | None = None,
    start: int = 0,
) -> Array:
    """Return reconstructions, or residuals, of rows that are not normalized yet: the samples from index `start` on.

    Each row is normalized by its own mean or norm. The sum of the squared errors of features as analysed is appended to
    `errors`.
    """
    normal, numbers = frame.normalized(rows)
    reconstruction = subspace.reconstruct(subspace.project(normal))
    if errors is not None:
        if subspace.missing == "em":  # errors are over the observed features only
            normal = np.where(np.isfinite(normal), normal, reconstruction)
        lengths = squared_lengths(normal, reconstruction)
        errors.append(float(lengths.sum() if subspace.missing == "error" else lengths[np.isfinite(lengths)].sum()))
    del normal
    result = frame.denormalized(reconstruction, numbers)
    result = np.subtract(rows, result, out=result, casting="unsafe") if residual else result
    images = frame.images(result, start, differences=residual)
    # Normalized rows are float64; images get the dtype that the raw rows call for.
    return images.astype(working_dtype(rows.dtype, subspace.components.dtype), copy=False)
