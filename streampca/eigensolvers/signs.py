"""Signs of eigenvectors, which are defined up to them only: scikit-learn's rule."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


def fix_signs(vectors: Float64) -> Float64:
    """Turn columns, in place, so that the entry of largest magnitude is positive (scikit-learn's rule); return them."""
    for column in vectors.T:  # a column at a time: no copy of what may be as large as the matrix
        if column[np.argmax(np.abs(column))] < 0:
            np.negative(column, out=column)
    return vectors
