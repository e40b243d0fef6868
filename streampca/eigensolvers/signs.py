"""The sign rule of components, as in scikit-learn: the loading of largest magnitude is positive."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def fix_signs(vectors: Float64) -> Float64:
    """Negate columns, in place, whose entry of largest magnitude is negative; return them."""
    for column in vectors.T:  # a column at a time: no copy of what may be as large as the matrix
        if column[np.argmax(np.abs(column))] < 0:
            np.negative(column, out=column)
    return vectors


def extremes(rows: Array) -> Array:
    """Return the entry of largest magnitude of each row, (k,), the first where several are equal."""
    high, low = rows.max(axis=1), rows.min(axis=1)  # no copy of the rows, as `abs` would make
    found: Array = np.where(-low > high, low, high)
    for number in np.flatnonzero(-low == high):
        found[number] = rows[number, np.argmax(np.abs(rows[number]))]
    return found


def larger(one: Array, other: Array) -> Array:
    """Return the entries of larger magnitude, (k,), of two sets of extremes; the first where they are equal."""
    return np.where(np.abs(other) > np.abs(one), other, one)
