"""`RowBuffer`: rows that wait until there are enough of them to be multiplied at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64


class RowBuffer:
    """Rows of one dtype, in the order of arrival, with their weights if any were given.

    Adding a single row to a scatter matrix costs a pass over p x p numbers; buffering it costs a copy of p.

    Parameters
    ----------
    n_features : int
        p.
    dtype : dtype
        Dtype of the rows.
    most : int
        Largest number of rows.

    Attributes
    ----------
    count : int
        Number of rows that wait.
    """

    def __init__(self, n_features: int, dtype: npt.DTypeLike, most: int) -> None:
        self.most, self.dtype, self.count = most, np.dtype(dtype), 0
        self._n_features = n_features
        self._rows: Array | None = None
        self._weights: Float64 | None = None

    def add(self, rows: Array, weights: Float64 | None) -> None:
        """Copy rows, (m, p), which must fit, and their weights, (m,)."""
        start, stop = self.count, self.count + len(rows)
        if self._rows is None:
            self._rows = np.empty((self.most, self._n_features), self.dtype)
        self._rows[start:stop] = rows
        if weights is not None and self._weights is None:
            # Rows before the first weighted ones have weight 1.
            self._weights = np.ones(self.most)
        if self._weights is not None:
            self._weights[start:stop] = 1.0 if weights is None else weights
        self.count = stop

    @property
    def rows(self) -> Array:
        """Rows that wait, (count, p); not a copy."""
        return np.empty((0, self._n_features), self.dtype) if self._rows is None else self._rows[: self.count]

    @property
    def weights(self) -> Float64 | None:
        """Weights of these rows, (count,), not a copy; None if no weights were given."""
        return None if self._weights is None else self._weights[: self.count]

    def clear(self) -> None:
        """Remove the rows; their memory is kept for others."""
        self.count, self._weights = 0, None

    def __getstate__(self) -> dict[str, Any]:
        # Pickle the rows that wait, not the whole buffer.
        return {**self.__dict__, "_rows": self.rows.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _rows=None, count=0)
        self.add(state["_rows"], self.weights)
