"""Rows set against their own mean or norm, and back.

Each function maps sample by sample, and to the same bits however many there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..readers.collection import Array
from .dtypes import SampleError

Float64 = npt.NDArray[np.float64]

NORMALIZATIONS = ("mean", "norm", "ratio")

# Values summed in float64 at a time: a copy of 1 MiB, beside which a pass over the row costs more than the call.
_SUMMED = 2**17
# A mean of less than this share of the mean size of values is rounding left of zero.
_NO_MEAN = 1e-12


class NormalizeError(SampleError):
    """A sample that cannot be set against its mean or norm, which is 0."""


def normalized(rows: Array, how: str, dtype: np.dtype[Any]) -> tuple[Array, Float64]:
    """Set each row against its own mean or norm, in float64 or wider; the result is of a dtype.

    Returns
    -------
    rows : ndarray of shape (m, p)
    numbers : ndarray of shape (m,)
        The means or norms, with which `denormalized` undoes it.
    """
    out, numbers, wide = np.empty(rows.shape, dtype), np.empty(len(rows)), np.result_type(dtype, np.float64)
    step = max(1, _SUMMED // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(wide)  # summed without numpy's buffer, whose cuts vary
        number = np.sqrt(np.square(part).sum(axis=1)) if how == "norm" else part.sum(axis=1) / rows.shape[1]
        size = np.abs(part).sum(axis=1) / rows.shape[1]
        undefined = np.flatnonzero(np.isfinite(size) & (np.abs(number) <= _NO_MEAN * size) & (how != "mean"))
        if undefined.size:
            what = {"norm": "has only zeros, so its norm is 0", "ratio": "has a mean of 0"}[how]
            raise NormalizeError(
                start + int(undefined[0]),
                f"{what}, and normalize {how!r} divides by it; leave the sample out, or use normalize 'mean'.",
            )
        numbers[start : start + step] = number
        out[start : start + step] = part - number[:, None] if how == "mean" else part / number[:, None]
    return out, numbers


def denormalized(rows: Array, how: str, numbers: Float64) -> Array:
    """Undo `normalized`."""
    own = numbers[:, None].astype(rows.dtype)
    undone: Array = rows + own if how == "mean" else rows * own
    return undone


def normalizing_bytes(n_features: int) -> int:
    """Bytes that `normalized` holds beside what it is given and returns."""
    return 4 * 8 * max(_SUMMED, n_features)
