"""`GroupMoments`: means of samples by group, and variance and regression on time of features within groups.

Sums of squares and of products are about the means of the groups, so that a cycle larger than everything else costs no
digits of the rest; parts are combined by the formulas of Chan, Golub and LeVeque (1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..planning.memory import GROUP_PIECE
from .finite import has_safe_squares, not_finite
from .plain_state import as_arrays, restore_sums, sums_of
from .protocol import Accumulator
from .weighted_pieces import weighted_pieces

SUMS = ("n_samples", "weights", "means", "fine", "mean_times", "squares", "products")


class GroupMoments(Accumulator):
    """Accumulate the moments of groups of samples, in float64 whatever the samples' dtype.

    Parameters
    ----------
    n_features : int
        p.
    groups : ndarray of int, shape (n,), optional
        Group of each sample of the collection, 0 to `count` - 1; all are of one group by default.
    count : int, default=1
        Number of groups, g.
    times : ndarray of shape (n,), optional
        Time of each sample, or another number on which features can depend; 0 by default.
    apart : bool, default=False
        Keep the squares and products of each group separately.

    Attributes
    ----------
    n_samples : int
        Number of samples absorbed, except those of weight 0.
    weights : ndarray of shape (g,)
        Sum of the weights of each group's samples: their number if none were given.
    means : ndarray of shape (g, p)
        Mean of each group.
    fine : ndarray of shape (1, p), or (0, p) where there are groups
        Rounding of the mean, which affects the squares of samples with a large offset.
    mean_times : ndarray of shape (g,)
        Mean time of each group.
    squares : ndarray of shape (p,), or (g, p) if `apart`
        Sum over all groups, or one, of squared distances from the mean of the group.
    products : ndarray of shape (p,), or (g, p) if `apart`
        Sum over all groups, or one, of (time - mean time) (sample - mean).

    Notes
    -----
    Cost: about 8 n p flops. Memory: 8 p (g + 2) bytes, 24 p g if `apart`, and up to 4 MiB or 6 rows of p while samples
    are added.
    """

    kind = "group_moments"
    axis: Literal["samples", "features"] = "samples"
    precision = "double"

    def __init__(
        self,
        n_features: int,
        groups: npt.NDArray[np.integer[Any]] | None = None,
        count: int = 1,
        times: Float64 | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self.n_features, self.n_samples = n_features, 0
        self._groups, self._times = groups, times
        self.weights, self.mean_times = np.zeros(count), np.zeros(count)
        shape = (count, n_features) if apart else (n_features,)
        self.means, self.squares, self.products = np.zeros((count, n_features)), np.zeros(shape), np.zeros(shape)
        self.fine = np.zeros((int(count == 1 and not apart), n_features))

    @property
    def weight(self) -> float:
        """Sum of all weights."""
        return float(self.weights.sum())

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb samples, shape (m, p), any real dtype, the first of them sample `at` of the collection.

        Parameters
        ----------
        block : ndarray of shape (m, p)
            Samples.
        at : int
            Position of the first.
        weights : ndarray of shape (m,), optional
            Weight of each sample, at least 0; samples of weight 0 can hold anything.

        Raises
        ------
        NotFiniteError
            If a sample holds NaN or infinity, or squares overflow. The accumulator must then be discarded.
        """
        for places, piece in weighted_pieces(block, weights, max(1, GROUP_PIECE // max(1, self.n_features))):
            if not has_safe_squares(piece, "double"):
                raise not_finite(piece, at + places, "double")
            groups = np.zeros(len(places), np.intp) if self._groups is None else self._groups[at + places]
            times = np.zeros(len(places)) if self._times is None else self._times[at + places]
            counts = np.ones(len(places)) if weights is None else weights[places]
            for group in np.unique(groups):
                rows = np.flatnonzero(groups == group)
                self._add(int(group), piece[rows].astype(np.float64), times[rows], counts[rows])
            self.n_samples += len(places)

    def _add(self, group: int, rows: Float64, times: Float64, counts: Float64) -> None:
        """Add rows of one group; they are overwritten."""
        weight = float(counts.sum())
        mean, mean_time = rows[0].copy(), float(counts @ times) / weight
        squares = products = fine = None
        # A single row is its own mean, and its sums are 0.
        if len(rows) > 1:
            rows -= mean  # less the first row, the mean of equal rows is exact
            shift = (counts / weight) @ rows
            rows -= shift
            mean, fine = _added(mean, shift)
            squares, products = np.einsum("i,ij,ij->j", counts, rows, rows), (counts * (times - mean_time)) @ rows
        self._combine(group, weight, mean, mean_time, squares, products, fine)

    def _combine(
        self,
        group: int,
        weight: float,
        mean: Float64,
        mean_time: float,
        squares: Float64 | None = None,
        products: Float64 | None = None,
        fine: Float64 | None = None,
    ) -> None:
        """Add the moments of further samples of a group; sums about the mean of these samples are 0 if None."""
        total = self.weights[group] + weight
        later = mean_time - self.mean_times[group]
        # A single group keeps the rounding of its mean as well: subtract both parts.
        apart, is_split = mean - self.means[group], len(self.fine) > 0
        if is_split:
            apart += (0.0 if fine is None else fine) - self.fine[0]
        share = weight / total
        between = self.weights[group] * share
        index = group if self.squares.ndim == 2 else slice(None)
        all_squares, all_products = self.squares[index], self.products[index]
        for whole, part in ((all_squares, squares), (all_products, products)):
            if part is not None:
                whole += part
        # Terms for the distance of the two means; a group without samples just receives the new means.
        if between:
            all_products += between * later * apart
            if is_split:
                self.means[0], self.fine[0] = _added(self.means[0], self.fine[0] + share * apart)
            else:
                self.means[group] += share * apart
            all_squares += between * np.square(apart, out=apart)
            self.mean_times[group] += share * later
        else:
            self.means[group], self.mean_times[group] = mean, mean_time
            if is_split:
                self.fine[0] = 0.0 if fine is None else fine
        self.weights[group] = total

    def absorb(self, other: Self) -> None:
        """Add the samples of another; see `Accumulator.absorb`."""
        for group in np.flatnonzero(other.weights).tolist():
            fine = other.fine[0] if len(other.fine) else None
            about = float(other.weights[group]), other.means[group], float(other.mean_times[group])
            # Squares and products of all groups are added at once below; here only the terms between means.
            self._combine(group, *about, fine=fine)
        self.squares += other.squares
        self.products += other.products
        self.n_samples += other.n_samples

    def joined(self, groups: Sequence[int]) -> GroupMoments:
        """Return the joint moments of these groups, which are kept apart, as one group."""
        new = GroupMoments(self.n_features, apart=True)
        for group in groups:
            if self.weights[group]:
                about = float(self.weights[group]), self.means[group], float(self.mean_times[group])
                new._combine(0, *about, self.squares[group], self.products[group])
        return new

    def of_features(self, features: npt.NDArray[np.intp]) -> GroupMoments:
        """Return the moments of these features, of groups kept apart; no further samples can be added."""
        new = GroupMoments(len(features), count=len(self.weights), apart=True)
        new.n_samples, new.weights, new.mean_times = self.n_samples, self.weights.copy(), self.mean_times.copy()
        new.means, new.squares = self.means[:, features], self.squares[:, features]
        new.products = self.products[:, features]
        return new

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return groups, times and sums as plain arrays."""
        labels = {"groups": self._groups, "times": self._times}
        return sums_of(self, SUMS, copy=copy) | as_arrays(labels, copy=copy)

    @classmethod
    def from_state(cls, state: dict[str, Array], *, copy: bool = True) -> Self:
        """Return the accumulator whose `state` this is; without `copy` its arrays are taken over."""
        count, p = state["means"].shape
        arrays = {name: array.copy() for name, array in state.items()} if copy else state
        new = cls(p, arrays.get("groups"), count, arrays.get("times"), apart=arrays["squares"].ndim == 2)
        restore_sums(new, arrays, SUMS, copy=False)
        return new


def _added(coarse: Float64, fine: Float64) -> tuple[Float64, Float64]:
    """Return the sum of two arrays and its rounding, which is exact where the first is the larger one."""
    whole = coarse + fine
    return whole, (coarse - whole) + fine
