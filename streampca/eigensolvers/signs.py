"""Sign rule of components, as in scikit-learn: the loading of largest magnitude is positive.

Columns are multiplied by a row of signs, never negated one by one: numpy 2.4 with AVX2 negates strided views of rows of
16 or 64 bytes wrongly (`numpy.negative` with ``out=``), which C-ordered vectors with 8 float64 columns are.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array, Float64


def fix_signs(vectors: Float64, *, by: Float64 | None = None) -> Float64:
    """Negate columns, in place, whose entry of largest magnitude, or that of `by`, is negative; return them."""
    deciding = extremes((vectors if by is None else by).T)
    vectors *= np.where(deciding < 0, vectors.dtype.type(-1), vectors.dtype.type(1))
    return vectors


def extremes(rows: Array) -> Array:
    """Return the entry of largest magnitude of each row, (k,); the first one if several are equal."""
    high, low = rows.max(axis=1), rows.min(axis=1)  # `abs` would copy the rows
    entries: Array = np.where(-low > high, low, high)
    for number in np.flatnonzero(-low == high):
        entries[number] = rows[number, np.argmax(np.abs(rows[number]))]
    return entries


def larger(one: Array, other: Array) -> Array:
    """Return the entries of larger magnitude, (k,), of two sets of extremes; those of the first if equal."""
    return np.where(np.abs(other) > np.abs(one), other, one)
