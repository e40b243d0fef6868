"""`KernelResidual`: residuals of components of mapped samples in the kernel that the map approximates.

Let K~ be the centred kernel matrix of all n samples, u the unit vector of the samples' scores along a component, and l
the squared length of the scores. The residual of the component is |K~ u - l u| / l. Random rows of K~ give some entries
of K~ u - l u, whose mean square estimates the mean square of all entries. This needs the kernel between the chosen rows
and all samples, which are read once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from ..arrays import Array, Float64
from ..preprocessing.feature_map import FeatureMap, KernelMap
from ..preprocessing.kernels import Compared
from .finite import not_finite
from .plain_state import add_sums, restore_sums, sums_of
from .protocol import Accumulator
from .weighted_pieces import weighted_pieces

SUMS = ("weight", "products", "squares", "left", "kept")


@dataclass(frozen=True, eq=False)
class Checked:
    """Components of mapped samples, and the samples whose rows of the kernel matrix are checked.

    Attributes
    ----------
    mapping : KernelMap or FourierMap
    mean : ndarray of shape (q,)
        Mean of mapped samples.
    components : ndarray of shape (k, q)
    rows : ndarray of shape (s, p)
        Samples chosen at random, before they are mapped.
    weights : ndarray of shape (s,) or None
        Weights of these samples.
    """

    mapping: FeatureMap
    mean: Float64
    components: Array
    rows: Array
    weights: Float64 | None = None

    def scores(self, mapped: Float64) -> Float64:
        """Return scores of mapped rows, (m, k)."""
        scores: Float64 = (mapped - self.mean) @ self.components.T.astype(np.float64)
        return scores


class KernelResidual(Accumulator):
    """Accumulate products of rows of a kernel matrix with scores, and the squared lengths that a map leaves out.

    Parameters
    ----------
    checked : Checked
        Components and chosen rows.
    piece_rows : int
        Samples compared at a time.

    Attributes
    ----------
    weight : float
        Sum of the samples' weights: their number if none were given.
    products : ndarray of shape (s, k)
        Sums over all samples of the kernel with each chosen row times the scores.
    squares : ndarray of shape (k,)
        Sums of squared scores.
    left, kept : float
        Sums of the squared lengths that a Nystroem map leaves out of samples, and of the squared distances of mapped
        samples from their mean.

    Notes
    -----
    Cost: 2 n s (p + k) flops, and mapping each sample.
    """

    kind = "kernel_residual"
    axis: Literal["samples", "features"] = "samples"

    def __init__(self, checked: Checked, piece_rows: int = 256) -> None:
        self._checked, self._rows = checked, piece_rows
        kernel, s, k = checked.mapping.kernel, len(checked.rows), len(checked.components)
        rows, new = kernel.compared(checked.rows, checked.mapping.origin), checked.mapping.products
        self._compared = Compared(kernel, rows, None if new is None else new())
        self.weight, self.left, self.kept = 0.0, 0.0, 0.0
        self.products, self.squares = np.zeros((s, k)), np.zeros(k)

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb samples before they are mapped, (rows, p).

        Raises
        ------
        NotFiniteError
            If a sample holds NaN or infinity.
        """
        for places, rows in weighted_pieces(block, weights, self._rows):
            mapped = self._checked.mapping(rows)
            if not np.isfinite(mapped).all():
                raise not_finite(rows, at + places, "double")
            self._add(rows, mapped, np.ones(len(rows)) if weights is None else weights[places])

    def _add(self, rows: Array, mapped: Float64, counts: Float64) -> None:
        mapping, scores = self._checked.mapping, self._checked.scores(mapped)
        compared = mapping.kernel.compared(rows, mapping.origin)
        self.products += self._compared.kernel_with(compared).T @ (scores * counts[:, None])
        self.squares += counts @ np.square(scores)
        self.weight += float(counts.sum())
        if isinstance(mapping, KernelMap):
            # The landmarks miss the part of a sample's feature vector outside their span.
            lengths = np.square(mapped).sum(axis=1)
            self.left += float(counts @ np.maximum(mapping.squared_norms(rows) - lengths, 0))
            self.kept += float(counts @ np.square(mapped - self._checked.mean).sum(axis=1))

    def relative(self) -> Float64:
        """Estimate the residual of each component relative to its eigenvalue, (k,)."""
        checked, values = self._checked, self.squares
        scores = checked.scores(checked.mapping(checked.rows))
        counts = np.ones(len(scores)) if checked.weights is None else checked.weights
        shares = counts / counts.sum()
        # K~ is centred, so the entries of all samples have mean 0, and the mean of the chosen ones estimates what
        # centring subtracts. Dividing by 1 - sum of squared shares makes the variance about this mean unbiased.
        entries = self.products - values * scores
        entries -= shares @ entries
        squares = shares @ np.square(entries) / max(1 - float(shares @ shares), np.finfo(float).tiny)
        positive = values > 0
        residuals: Float64 = np.zeros(len(values))
        # |K~ u - l u| / l, with the scores divided by their length, the root of l, to give u.
        np.divide(np.sqrt(self.weight * squares), values**1.5, out=residuals, where=positive)
        return residuals

    @property
    def left_out(self) -> float:
        """Largest share of the variance of the kernel's features that landmarks leave out; NaN for random features."""
        if not isinstance(self._checked.mapping, KernelMap):
            return float("nan")
        whole = self.left + self.kept
        return self.left / whole if whole > 0 else 0.0

    def absorb(self, other: Self) -> None:
        """Add the samples of another; see `Accumulator.absorb`."""
        add_sums(self, other, SUMS)

    def merge(self, other: Self) -> Self:
        """Return the sums of both as a new value."""
        both = self.restored(self.state(), self._checked, self._rows)
        both.absorb(other)
        return both

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return the sums as plain arrays."""
        return sums_of(self, SUMS, copy=copy)

    @classmethod
    def restored(cls, state: dict[str, Array], checked: Checked, piece_rows: int = 256) -> Self:
        """Return the sums whose `state` this is, given their components and rows."""
        new = cls(checked, piece_rows)
        restore_sums(new, state, SUMS)
        return new

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> Self:
        """Raise: a state lacks the components and rows that the sums belong to; use `restored`."""
        raise NotImplementedError("use restored(state, checked)")
