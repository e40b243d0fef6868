"""Maps of rows to images: functions of a subspace first, so that `functools.partial` of them pickles."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...preprocessing import Frame
from ..subspace import Subspace, squared_lengths, working_dtype

Array = npt.NDArray[Any]


def images_of(subspace: Subspace, scores: Array, *, frame: Frame, whiten: bool = False, start: int = 0) -> Array:
    """Return images from scores of samples from number `start` on; those beyond the components are left out."""
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
    """Return images of rows that are not normalized yet, projected and back, or of what that leaves of them.

    The rows are of samples from number `start` on.

    Each row is normalized by its own mean or norm. The sum of the squared errors of features as analysed is appended to
    `errors`.
    """
    normal, numbers = frame.normalized(rows)
    made = subspace.reconstruct(subspace.project(normal))
    if errors is not None:
        if subspace.missing == "em":
            normal = np.where(np.isfinite(normal), normal, made)
        lengths = squared_lengths(normal, made)
        errors.append(float(lengths.sum() if subspace.missing == "error" else lengths[np.isfinite(lengths)].sum()))
    del normal
    made = frame.denormalized(made, numbers)
    made = np.subtract(rows, made, out=made, casting="unsafe") if residual else made
    images = frame.images(made, start, differences=residual)
    return images.astype(working_dtype(rows.dtype, subspace.components.dtype), copy=False)  # as rows are, not as ratios
