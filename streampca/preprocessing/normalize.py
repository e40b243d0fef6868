"""Rows set against their own mean or norm, and back.

Each function maps sample by sample, and to the same bits however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..planning.blocks import Span, blocks_of
from ..readers.collection import Array
from .dtypes import SampleError

Float64 = npt.NDArray[np.float64]

NORMALIZATIONS = ("mean", "norm", "ratio")

# Values summed in float64 at a time: a copy of 1 MiB, beside which a pass over the row costs more than the call. Longer
# rows are cut, always at the same features.
_SUMMED = 2**17
# A mean of less than this share of the mean size of values is rounding left of zero.
_NO_MEAN = 1e-12


class NormalizeError(SampleError):
    """A sample that cannot be set against its mean or norm, which is 0."""


def normalized(rows: Array, how: str, dtype: np.dtype[Any], out: Array | None = None) -> tuple[Array, Float64]:
    """Set each row against its own mean or norm, in float64; the result is of a dtype.

    Returns
    -------
    rows : ndarray of shape (m, p)
        In `out` where it is given, which may be the rows that are given.
    numbers : ndarray of shape (m,)
        The means or norms, with which `denormalized` undoes it.
    """
    out = np.empty(rows.shape, dtype) if out is None else out
    numbers = np.empty(len(rows))
    step = max(1, _SUMMED // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        some, made = rows[start : start + step], out[start : start + step]
        number, size = _sums(some, how)
        undefined = np.flatnonzero(np.isfinite(size) & (np.abs(number) <= _NO_MEAN * size) & (how != "mean"))
        if undefined.size:
            what = {"norm": "has only zeros, so its norm is 0", "ratio": "has a mean of 0"}[how]
            raise NormalizeError(
                start + int(undefined[0]),
                f"{what}, and normalize {how!r} divides by it; leave the sample out, or use normalize 'mean'.",
            )
        numbers[start : start + step] = number
        for features in _ranges(rows):
            made[:, features] = against(some[:, features].astype(np.float64, copy=False), how, number)
    return out, numbers


def against(rows: Array, how: str, numbers: Array) -> Array:
    """Set rows, or some of their features, against their means or norms."""
    found: Array = rows - numbers[:, None] if how == "mean" else rows / numbers[:, None]
    return found


def _sums(rows: Array, how: str) -> tuple[Float64, Float64]:
    """Return the mean or norm of each row, and the mean size of its values."""
    number, size = np.zeros((2, len(rows)))
    for features in _ranges(rows):
        part = rows[:, features].astype(np.float64, order="C")  # summed without numpy's buffer, whose cuts vary
        size += np.abs(part).sum(axis=1)
        number += np.square(part, out=part).sum(axis=1) if how == "norm" else part.sum(axis=1)
    return np.sqrt(number) if how == "norm" else number / rows.shape[1], size / rows.shape[1]


def _ranges(rows: Array) -> Iterator[slice]:
    """Yield the ranges of features in which rows are summed."""
    return (slice(*features) for features in blocks_of(Span(0, rows.shape[1]), _SUMMED))


def denormalized(rows: Array, how: str, numbers: Float64) -> Array:
    """Undo `normalized`."""
    own = numbers[:, None].astype(rows.dtype)
    undone: Array = rows + own if how == "mean" else rows * own
    return undone


def normalizing_bytes() -> int:
    """Bytes that `normalized` holds beside what it is given and returns."""
    return 3 * 8 * _SUMMED
