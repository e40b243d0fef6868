"""Normalization of rows by their own mean or norm, and its inverse.

Each function maps samples one by one, so that the bits of a sample do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..arrays import Array, Float64
from ..planning.blocks import Span, blocks_of
from .dtypes import SampleError

NORMALIZATIONS = ("mean", "norm", "ratio")

# Values summed in float64 at a time: a copy of 1 MiB, beside which a pass over the row costs more than the call. Longer
# rows are cut, always at the same features.
_SUMMED = 2**17
# Means below this share of the mean absolute value are rounding errors of 0.
_NO_MEAN = 1e-12


class NormalizeError(SampleError):
    """A sample that cannot be normalized because its mean or norm is 0."""


def normalized(rows: Array, how: str, dtype: np.dtype[Any], out: Array | None = None) -> tuple[Array, Float64]:
    """Set each row against its own mean or norm, in float64; the result is of a dtype.

    Returns
    -------
    rows : ndarray of shape (m, p)
        In `out` where it is given, which may be the rows that are given.
    numbers : ndarray of shape (m,)
        The means or norms, from which `denormalized` restores the rows.
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
    column = numbers[:, None].astype(rows.dtype)
    undone: Array = rows + column if how == "mean" else rows * column
    return undone


def normalizing_bytes() -> int:
    """Bytes that `normalized` holds beside what it is given and returns."""
    return 3 * 8 * _SUMMED
