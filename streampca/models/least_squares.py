"""Scores of rows with missing values, by least squares over the observed features.

For the observed features O of a row, the scores z minimise |y_O - m_O - V_O^T z|^2. For a complete row this is the
projection. Directions that the observed features hardly determine get the score 0, that of the mean.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh

from ..arrays import Float64

Array = npt.NDArray[np.generic]

LEAST_SEEN = 1e-4  # share of a direction's squared length that must be observed; at this share noise grows 100 times
ROWS_BYTES = 2**22  # size of the small matrices of rows that are solved together
PIECE_BYTES = 2**21  # size of the components multiplied at a time, as float64


class NormalEquations:
    """Sums V_O V_O^T and V_O (y - m)_O of a group of rows, added up over pieces of the features.

    Parameters
    ----------
    count, width : int
        Number of rows m, and of components k.
    """

    def __init__(self, count: int, width: int) -> None:
        self._matrices: Float64 = np.zeros((count, width, width))
        self._sides: Float64 = np.zeros((count, width))
        self._seen = np.zeros(count, dtype=bool)

    def add(self, rows: Array, mean: Float64, components: Array) -> None:
        """Add a range of f features: rows (m, f), their mean (f,), and components (k, f)."""
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
        gram = components @ components.T
        for row, is_observed in enumerate(observed):
            # Multiply the smaller set of features, the observed or the missing ones.
            fewer = 2 * np.count_nonzero(is_observed) <= len(is_observed)
            columns = components[:, is_observed if fewer else ~is_observed]
            product = columns @ columns.T
            self._matrices[row] += product if fewer else gram - product

    def shrunk(self, variance: Float64, noise: float) -> tuple[Float64, Float64]:
        """Return the most likely scores under a Gaussian with noise, (m, k), and terms of their density, (m,).

        Scores z minimise |y_O - m_O - V_O^T z|^2 / s2 + z^T D^-1 z, with D the variances along the components beyond
        the noise s2. The terms are the second of these, plus the logarithm of the determinant of I + V_O^T D V_O / s2.
        """
        scores, terms = np.zeros(self._sides.shape), np.zeros(len(self._sides))
        deviations = np.sqrt(variance)
        for row, (matrix, side) in enumerate(zip(self._matrices, self._sides, strict=True)):
            # Solved for D^-1/2 z, whose matrix I + D^1/2 V V^T D^1/2 / s2 is well conditioned where variances are 0.
            scaled = deviations[:, None] * matrix * deviations / noise
            scaled.ravel()[:: len(scaled) + 1] += 1
            factor = cholesky(scaled, check_finite=False)
            standardized = cho_solve((factor, False), deviations * side / noise, check_finite=False)
            scores[row] = deviations * standardized
            terms[row] = standardized @ standardized + 2 * np.log(np.diag(factor)).sum()
        return scores, terms

    def solved(self) -> Float64:
        """Return the scores, (m, k); NaN for rows without a value."""
        scores = np.full(self._sides.shape, np.nan)
        for row in np.flatnonzero(self._seen):
            scores[row] = _solved(self._matrices[row], self._sides[row])
        return scores


def _solved(matrix: Float64, side: Float64) -> Float64:
    """Solve a positive semi-definite system; if it is nearly singular, return the solution of least norm."""
    try:
        # Fails if an eigenvalue lies below LEAST_SEEN, which is far cheaper to find out than the eigenvalues.
        cholesky(matrix - LEAST_SEEN * np.eye(len(matrix)), check_finite=False)
        return np.asarray(cho_solve((cholesky(matrix, check_finite=False), False), side, check_finite=False))
    except LinAlgError:
        values, vectors = eigh(matrix, check_finite=False)
        kept = values >= LEAST_SEEN
        return np.asarray(vectors[:, kept] @ ((vectors[:, kept].T @ side) / values[kept]))


def groups(rows: npt.NDArray[np.intp], n_features: int, width: int) -> Iterator[npt.NDArray[np.intp]]:
    """Split indices of rows into groups whose equations are solved together."""
    step = _rows_in_group(n_features, width)
    yield from (rows[start : start + step] for start in range(0, len(rows), step))


def least_squares_bytes(n_features: int, width: int) -> int:
    """Return the most bytes that solving for a group of rows needs, in addition to the block of rows."""
    piece = min(n_features, max(1, PIECE_BYTES // (8 * width)))
    rows = _rows_in_group(n_features, width)
    return rows * (2 * 8 * width * width + 8 * n_features + 10 * piece) + 8 * width * (3 * piece + 4 * width)


def _rows_in_group(n_features: int, width: int) -> int:
    """Return the number of rows whose equations are solved together."""
    return max(1, ROWS_BYTES // (8 * max(width * width, n_features)))
