"""Sample weights: how often each sample counts, read from a column and checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Float64
from ..errors import DataError, RequestError
from . import open_column
from .collection import Collection, digest


def weights_of(column: Any, collection: Collection, half_life: float | None = None) -> Float64 | None:
    """Return the weight of each sample of a whole collection, shape (n,); None for equal weights.

    Parameters
    ----------
    column
        Weights in any form that `open_column` accepts; None if all samples count once.
    collection : Collection
        The samples.
    half_life : float, optional
        Number of samples after which a sample counts half as much.
    """
    if column is None and half_life is None:
        return None
    weights = faded(weights_of_batch(column, collection), collection.n_samples, half_life)
    assert weights is not None  # noqa: S101 - samples that fade have weights
    if not weights.any():
        raise DataError(f"the sample weights of {collection.source} are all zero; give some sample a weight above 0.")
    if np.count_nonzero(weights) == 1:
        raise DataError(
            f"only {collection.named(int(weights.argmax()))} has a weight above 0, and variance needs at least two "
            "samples; give another one a weight above 0."
        )
    if weights.sum() <= 1:
        raise RequestError(
            f"the sample weights of {collection.source} add up to {weights.sum():.6g}, and as numbers of copies they "
            "must exceed 1; multiply them, so that for example their mean is 1."
        )
    return weights


def weights_of_batch(column: Any, collection: Collection) -> Float64 | None:
    """Return the weight of each sample of one batch among others, shape (n,); None for equal weights.

    A batch alone can have weights that are all zero.
    """
    if column is None:
        return None
    values = open_column(column, collection)
    if values.dtype.kind not in "biuf":
        raise RequestError(f"sample_weight of {collection.source} holds {values[0]!r}; give numbers of at least 0.")
    weights: Float64 = values.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise RequestError(
            f"sample_weight of {collection.named(int(bad[0]))} is {weights[bad[0]]}; give numbers of at least 0."
        )
    return weights


def faded(weights: Float64 | None, n: int, half_life: float | None) -> Float64 | None:
    """Return the weights of n samples, each multiplied by 2^(-m / half_life) for the m samples after it."""
    if half_life is None:
        return weights
    after = np.exp2(-np.arange(n - 1, -1, -1) / half_life)
    return after if weights is None else weights * after


def weights_digest(weights: Float64 | None) -> str | None:
    """Return a short digest of the weights, None without weights."""
    return None if weights is None else digest(weights.tobytes())
