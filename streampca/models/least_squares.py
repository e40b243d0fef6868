"""Scores of rows in which values are missing, by least squares over the features that are observed.

For the observed features O of a row, the scores z minimise |y_O - m_O - V_O^T z|^2. For a complete row they are the
projection. Directions that the observed features hardly determine keep a score of 0, that of the mean.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh

Float64 = npt.NDArray[np.float64]
Array = npt.NDArray[np.generic]

LEAST_SEEN = 1e-4  # share of a direction's squared length that must be observed; at this share noise grows 100 times
ROWS_BYTES = 2**22  # size of the small matrices of rows that are solved together
PIECE_BYTES = 2**21  # size of the components multiplied at a time, as float64


class NormalEquations:
    """Sums V_O V_O^T and V_O (y - m)_O of some rows, over one piece of the features after another.

    Parameters
    ----------
    count, width : int
        Rows m, and components k.
    """

    def __init__(self, count: int, width: int) -> None:
        self._matrices: Float64 = np.zeros((count, width, width))
        self._sides: Float64 = np.zeros((count, width))
        self._seen = np.zeros(count, dtype=bool)

    def add(self, rows: Array, mean: Float64, components: Array) -> None:
        """Add some features: rows (m, f), their mean (f,), and components (k, f)."""
        step = max(1, PIECE_BYTES // (8 * max(1, len(components))))
        for start in range(0, rows.shape[1], step):
            cut = slice(start, start + step)
            self._add_piece(rows[:, cut], mean[cut], components[:, cut].astype(np.float64))

    def _add_piece(self, rows: Array, mean: Float64, components: Float64) -> None:
        observed = np.isfinite(rows)
        centred = np.zeros(rows.shape)
        np.subtract(rows, mean, out=centred, where=observed)
        self._sides += centred @ components.T
        self._seen |= observed.any(axis=1)
        whole = components @ components.T
        for row, there in enumerate(observed):
            fewer = 2 * np.count_nonzero(there) <= len(there)
            some = components[:, there if fewer else ~there]
            product = some @ some.T
            self._matrices[row] += product if fewer else whole - product

    def shrunk(self, variance: Float64, noise: float) -> tuple[Float64, Float64]:
        """Return the most likely scores under a Gaussian with noise, (m, k), and terms of their density, (m,).

        Scores z minimise |y_O - m_O - V_O^T z|^2 / s2 + z^T D^-1 z, with D the variances along the components beyond
        the noise s2. The terms are the second of these, plus the logarithm of the determinant of I + V_O^T D V_O / s2.
        """
        scores, added = np.zeros(self._sides.shape), np.zeros(len(self._sides))
        deviations = np.sqrt(variance)
        for row, (matrix, side) in enumerate(zip(self._matrices, self._sides, strict=True)):
            scaled = deviations[:, None] * matrix * deviations / noise
            scaled.ravel()[:: len(scaled) + 1] += 1
            factor = cholesky(scaled, check_finite=False)
            found = cho_solve((factor, False), deviations * side / noise, check_finite=False)
            scores[row] = deviations * found
            added[row] = found @ found + 2 * np.log(np.diag(factor)).sum()
        return scores, added

    def solved(self) -> Float64:
        """Return the scores, (m, k); NaN for rows without a value."""
        scores = np.full(self._sides.shape, np.nan)
        for row in np.flatnonzero(self._seen):
            scores[row] = _solved(self._matrices[row], self._sides[row])
        return scores


def _solved(matrix: Float64, side: Float64) -> Float64:
    """Solve a positive semi-definite system; where it is nearly singular, return the solution of least norm."""
    try:
        cholesky(matrix - LEAST_SEEN * np.eye(len(matrix)), check_finite=False)
        return np.asarray(cho_solve((cholesky(matrix, check_finite=False), False), side, check_finite=False))
    except LinAlgError:
        values, vectors = eigh(matrix, check_finite=False)
        kept = values >= LEAST_SEEN
        return np.asarray(vectors[:, kept] @ ((vectors[:, kept].T @ side) / values[kept]))


def groups(rows: npt.NDArray[np.intp], n_features: int, width: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the numbers of rows in groups that are solved together."""
    step = _together(n_features, width)
    yield from (rows[start : start + step] for start in range(0, len(rows), step))


def least_squares_bytes(n_features: int, width: int) -> int:
    """Return the largest number of bytes that the scores of a group of rows take, beside the block they are in."""
    piece = min(n_features, max(1, PIECE_BYTES // (8 * width)))
    rows = _together(n_features, width)
    return rows * (2 * 8 * width * width + 8 * n_features + 10 * piece) + 8 * width * (3 * piece + 4 * width)


def _together(n_features: int, width: int) -> int:
    """Return the number of rows whose scores are solved for together."""
    return max(1, ROWS_BYTES // (8 * max(width * width, n_features)))
