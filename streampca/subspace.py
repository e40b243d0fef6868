"""The numbers alone: a mean and components that project and reconstruct plain arrays of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def working_dtype(rows: npt.DTypeLike, components: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype in which rows and components are multiplied, which is that of the result.

    float32 when the components are and the rows are integers of up to 16 bits or floats of up to 32; else float64.
    """
    dtype = np.dtype(rows)
    narrow = dtype.itemsize <= (4 if dtype.kind == "f" else 2)
    return np.dtype(np.float32 if narrow and np.dtype(components) == np.float32 else np.float64)


@dataclass(frozen=True)
class Subspace:
    """An affine subspace of R^p with an orthonormal basis.

    Small to pickle next to the blocks it is applied to, and free of storage, units and names.

    Attributes
    ----------
    mean : ndarray of shape (p,)
        float64.
    components : ndarray of shape (k, p)
        Orthonormal rows, float32 or float64.
    variance : ndarray of shape (k,)
        Variances along the components, for whitening.
    """

    mean: Float64
    components: Array
    variance: Float64

    @property
    def n_features(self) -> int:
        """Length of a row, p."""
        return len(self.mean)

    def project(self, rows: Array, *, whiten: bool = False) -> Array:
        """Scores of rows: (m, p) to (m, k). Cost 2 m p k flops."""
        centred, left = self._centred(rows)
        scores = centred @ self.components.T.astype(centred.dtype, copy=False)
        scores -= left
        if whiten:
            scores /= self._deviations().astype(scores.dtype)
        return scores  # type: ignore[no-any-return]

    def reconstruct(self, scores: Array, *, whiten: bool = False) -> Array:
        """Rows from scores of the first components: (m, j) to (m, p), j at most k."""
        dtype = np.dtype(np.float32 if scores.dtype == np.float32 else np.float64)
        j = scores.shape[1]
        scores = scores.astype(dtype, copy=False)
        if whiten:
            scores = scores * self._deviations()[:j].astype(dtype)
        rows = scores @ self.components[:j].astype(dtype, copy=False)
        rows += self.mean.astype(dtype)
        return rows

    def squared_error(self, rows: Array) -> Array:
        """Squared distance of each row from the subspace, shape (m,), float64."""
        centred, left = self._centred(rows)
        components = self.components.astype(centred.dtype, copy=False)
        scores = centred @ components.T
        scores -= left
        centred -= scores @ components
        # What `_centred` left of the mean lies below the rounding of the rows themselves.
        return np.einsum("ij,ij->i", centred, centred, dtype=np.float64)  # type: ignore[no-any-return]

    def first(self, count: int) -> Subspace:
        """The subspace of the first `count` components."""
        return Subspace(self.mean, self.components[:count], self.variance[:count])

    def _centred(self, rows: Array) -> tuple[Array, Array]:
        """Rows less the mean in the working dtype, and the scores of what that left of the mean.

        float32 cannot hold the mean of data with a large offset; its rounding is taken off the scores instead.
        """
        dtype = working_dtype(rows.dtype, self.components.dtype)
        coarse = self.mean.astype(dtype)
        centred = np.subtract(rows, coarse, dtype=dtype, casting="unsafe")
        return centred, (self.components @ (self.mean - coarse)).astype(dtype)

    def _deviations(self) -> Float64:
        floor = np.finfo(np.float64).tiny
        return np.sqrt(np.maximum(self.variance, floor))
