"""`CrossScatter`: sum of products of paired rows about their means, such as samples and their targets.

Parts are combined by the formulas of Chan, Golub and LeVeque (1983), so that no product is about a point far from the
rows.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np

from ..arrays import Array, Float64
from ..planning.memory import paired_rows
from .finite import has_safe_squares, not_finite
from .plain_state import as_arrays, restore_sums, sums_of
from .products import Products, products_on
from .protocol import Accumulator
from .weighted_pieces import weighted_pieces

SUMS = ("n_samples", "weight", "mean", "other_mean", "products")


class CrossScatter(Accumulator):
    """Accumulate sum_i w_i (x_i - mean x) (y_i - mean y)^T of pairs of rows, in float64 whatever their dtype.

    Parameters
    ----------
    n_features : int
        p, length of a row x.
    n_targets : int
        l, length of the row y that belongs to it.
    targets : ndarray of shape (n, l), or (n,) of int, optional
        Rows y of the whole collection, for blocks given without them; or the class of each sample, from 0, which
        stands for a row with a 1 at its place and 0 elsewhere.
    device : str, default=""
        Device that multiplies (`streampca.accumulators.products`), by default the processor.

    Attributes
    ----------
    n_samples : int
        Number of pairs absorbed, except those of weight 0.
    weight : float
        Sum of their weights: their number where none were given.
    mean : ndarray of shape (p,)
    other_mean : ndarray of shape (l,)
    products : ndarray of shape (p, l)
        Sum of products about both means.

    Notes
    -----
    Cost: 2 n p l flops. Memory: 8 p l bytes, up to three times as much while a block is added, and 4 MiB.
    """

    kind = "cross_scatter"
    axis: Literal["samples", "features"] = "samples"
    precision = "double"

    def __init__(self, n_features: int, n_targets: int, targets: Array | None = None, *, device: str = "") -> None:
        self._multiplier: Products[Any, Any] = products_on(device, np.dtype(np.float64), one_thread=True)
        self._rows = paired_rows(n_features, n_targets, device)
        self.n_features, self.n_targets = n_features, n_targets
        self.n_samples, self.weight, self._targets = 0, 0.0, targets
        self.mean, self.other_mean = np.zeros(n_features), np.zeros(n_targets)
        self.products: Float64 = np.zeros((n_features, n_targets))

    def update(self, block: Array, other: Array | None = None, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb rows x, shape (rows, p), and the rows y that belong to them, (rows, l), any real dtypes.

        Parameters
        ----------
        block, other : ndarray
            Rows x and as many rows y. Without `other`, rows y are the targets of samples `at` and on.
        at : int
            Position of the first row in the collection.
        weights : ndarray of shape (rows,), optional
            Weight of each pair, at least 0.

        Raises
        ------
        NotFiniteError
            If a row x holds NaN or infinity, or squares overflow. Rows y are taken to be finite.
        """
        if other is None:
            other = self._rows_at(at, len(block))
        for places, piece in weighted_pieces(block, weights, self._rows):
            if not has_safe_squares(piece, "double"):
                raise not_finite(piece, at + places, "double")
            counts = None if weights is None else weights[places]
            self._add(piece, other[places].astype(np.float64), counts)
            self.n_samples += len(places)

    def _rows_at(self, at: int, count: int) -> Array:
        """Return the targets of `count` samples, the first at position `at`, as rows (count, l)."""
        assert self._targets is not None  # noqa: S101 - blocks without rows y need targets
        targets = self._targets[at : at + count]
        if targets.ndim == 2:
            return targets
        indicators = np.zeros((len(targets), self.n_targets))
        indicators[np.arange(len(targets)), targets] = 1.0
        return indicators

    def _add(self, rows: Array, others: Float64, counts: Float64 | None) -> None:
        """Add pairs of rows; the second are overwritten."""
        shares = np.full(len(rows), 1 / len(rows)) if counts is None else counts / counts.sum()
        mean, other_mean = rows[0].astype(np.float64), others[0].copy()
        block = self._multiplier.centre(rows, (mean,))  # less the first row, the mean of equal rows is exact
        others -= other_mean
        shift, other_shift = block.T.times(shares[:, None])[:, 0], shares @ others
        block.less(shift)
        others -= other_shift
        if counts is not None:
            # Weights on one side only: products then have them once.
            others *= counts[:, None]
        weight = float(len(rows) if counts is None else counts.sum())
        self._combine(weight, mean + shift, other_mean + other_shift, block.T.times(others))

    def _combine(self, weight: float, mean: Float64, other_mean: Float64, products: Float64) -> None:
        """Add sums of further pairs about the means of these pairs."""
        if not weight:
            return
        if not self.weight:
            self.weight, self.mean, self.other_mean = weight, mean.copy(), other_mean.copy()
            self.products += products
            return
        total = self.weight + weight
        share = weight / total
        # Chan, Golub and LeVeque: a rank-one term accounts for the distance of the two pairs of means.
        apart, other_apart = mean - self.mean, other_mean - self.other_mean
        self.products += products
        self.products += (self.weight * share * apart)[:, None] * other_apart
        self.mean += share * apart
        self.other_mean += share * other_apart
        self.weight = total

    def absorb(self, other: Self) -> None:
        """Add the pairs of another; see `Accumulator.absorb`."""
        self._combine(other.weight, other.mean, other.other_mean, other.products)
        self.n_samples += other.n_samples

    def release(self) -> None:
        """Free the working memory; `update` allocates it again."""
        self._multiplier.release()

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return sums and means as plain arrays."""
        targets = None if self._targets is None else self._targets.copy()  # shared with other accumulators
        return sums_of(self, SUMS, copy=copy) | as_arrays({"targets": targets})

    @classmethod
    def from_state(cls, state: dict[str, Array], *, copy: bool = True, device: str = "") -> Self:
        """Return the accumulator whose `state` this is; without `copy` its arrays are taken over."""
        targets = np.array(state["targets"], copy=copy or None) if "targets" in state else None
        p, width = state["products"].shape
        new = cls(p, width, targets, device=device)
        restore_sums(new, state, SUMS, copy=copy)
        return new
