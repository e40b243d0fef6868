"""Sums over samples (number, mean, scatter about a centre, probes), and the statistics computed from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from .probes import Probes

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

EXACT_SUMS_BELOW = 2.0**51  # float64 holds every whole number up to 4 times that, which moving a centre may take


class Sums:
    """Of rows x less a centre c: the sum of (x - c), of (x - c)(x - c)^T, and of (x - c)(x - c)^T W.

    Parameters
    ----------
    n_features : int
        p.
    probes : Probes
        W, and what is added up of it.

    Attributes
    ----------
    n_samples : int
        Rows added.
    weight : float
        Sum of their weights.
    """

    def __init__(self, n_features: int, probes: Probes) -> None:
        self.n_features, self.n_samples, self.weight = n_features, 0, 0.0
        self._centre: Float64 = np.zeros(n_features)
        self._total: Float64 = np.zeros(n_features)
        self._squares = 0.0
        self._scatter: Float64 = np.zeros((n_features, n_features), order="F")  # upper triangle
        self._probes = probes

    def _shift(self, shift: Float64, weight: float, total: Float64) -> None:
        """Count rows of weight w and sum t about a centre moved by d: S' = S - t d^T - d t^T + w d d^T."""
        blas.dsyr2(-1.0, total - weight * shift / 2, shift, a=self._scatter, overwrite_a=1)
        self._probes.recentre(weight, total, shift)
        self._squares += float(shift @ (weight * shift - 2 * total))
        self._total -= weight * shift

    @property
    def mean(self) -> Float64:
        """Mean of the samples, shape (p,)."""
        return self._centre + self.offset

    @property
    def offset(self) -> Float64:
        """Mean less centre, d, shape (p,): the scatter about the mean is ``upper`` - w d d^T for the weight w."""
        return self._total / (self.weight or 1.0)

    @property
    def upper(self) -> Float64:
        """Scatter about the centre, (p, p) in Fortran order, upper triangle; read-only and not a copy."""
        view = self._scatter.view()
        view.flags.writeable = False
        return view

    @property
    def trace(self) -> float:
        """Sum of squared distances from the mean: n - 1 times the total variance.

        From sums of its own: in the float32 product of a piece, small squares are lost beside the large ones added
        before them, always downwards (1e-6 of the trace for a recording of rare bright events).
        """
        return max(0.0, self._squares - self.weight * float(self.offset @ self.offset))

    @property
    def probe_directions(self) -> Float64:
        """W, shape (p, 8)."""
        return self._probes.directions.copy()

    @property
    def probe_products(self) -> Float64:
        """Y = S W about the mean, shape (p, 8)."""
        offset = self.offset
        return self._probes.products - self.weight * np.outer(offset, offset @ self._probes.directions)

    @property
    def probe_rounding(self) -> Float64:
        """Rounding error of `probe_products` as measured on a sample of rows, scaled to all, shape (p, 8)."""
        return self._probes.rounding * (self.weight / (self._probes.checked or 1.0))

    @property
    def size(self) -> int:
        """Order of the matrix, p."""
        return self.n_features

    def multiply(self, block: Float64) -> Float64:
        """The scatter about the mean times a block of columns, (p, l)."""
        product = blas.dsymm(1.0, self._scatter, block)
        along = blas.dgemv(1.0, block, self.offset, trans=1)
        return blas.dger(-self.weight, self.offset, along, a=product, overwrite_a=1)  # type: ignore[no-any-return]

    def matrix(self) -> Float64:
        """Return the scatter about the mean as a new matrix, (p, p) in Fortran order, upper triangle."""
        return blas.dsyr(-self.weight, self.offset, a=self._scatter.copy(order="F"), overwrite_a=1)  # type: ignore[no-any-return]
