"""`GroupScatter`: the scatter matrix of each group of samples, over selected features, in one pass.

The scatter matrix of several groups together is the sum of theirs about the common mean, so that a model is fitted to
each training set of a cross-validation without reading it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from .plain_state import as_arrays
from .protocol import Accumulator
from .scatter import Scatter

Places = npt.NDArray[np.integer[Any]]


class GroupScatter(Accumulator):
    """Accumulate a `Scatter` for each group of samples.

    Parameters
    ----------
    features : ndarray of int, shape (m,), or int
        Positions of the features to use, ascending; or the number of features, to use all.
    count : int
        Number of groups, g.
    groups : ndarray of int, shape (n,), optional
        Group of each sample of the collection, 0 to `count` - 1; all are of one group by default.
    **options
        Options of `Scatter`.

    Attributes
    ----------
    scatters : list of Scatter
        One for each group.

    Notes
    -----
    Cost: n m^2 flops. Memory: that of g matrices of m features, and twice a block of m features.
    """

    kind = "group_scatter"
    axis: Literal["samples", "features"] = "samples"

    def __init__(self, features: Places | int, count: int = 1, groups: Places | None = None, **options: Any) -> None:
        self._features, self._groups = (None if isinstance(features, int) else features), groups
        m = features if isinstance(features, int) else len(features)
        self.scatters = [Scatter(m, **options) for _ in range(count)]

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb rows, the first of them sample `at` of the collection; see `Scatter.update`."""
        rows = block if self._features is None else block[:, self._features]
        if self._groups is None:
            return self.scatters[0].update(rows, at=at, weights=weights)
        groups = self._groups[at : at + len(block)]
        for group, scatter in enumerate(self.scatters):
            scatter.update(rows, at=at, weights=np.where(groups == group, 1.0 if weights is None else weights, 0.0))
        return None

    @property
    def n_features(self) -> int:
        """Number of features used, m."""
        return self.scatters[0].n_features

    @property
    def n_samples(self) -> int:
        """Number of samples absorbed, except those of weight 0."""
        return sum(scatter.n_samples for scatter in self.scatters)

    @property
    def weight(self) -> float:
        """Sum of the weights of these samples."""
        return sum(scatter.weight for scatter in self.scatters)

    @property
    def precision(self) -> str:
        """Precision of products."""
        return self.scatters[0].precision

    def joined(self, groups: Sequence[int]) -> Scatter:
        """Return the scatter of the samples of these groups, at least one, as a new value."""
        first, *others = (self.scatters[group] for group in groups)
        joined = type(first).from_state(first.state(copy=False))
        for other in others:
            joined.absorb(other)
        return joined

    def absorb(self, other: Self) -> None:
        """Add the samples of another; see `Accumulator.absorb`."""
        for scatter, added in zip(self.scatters, other.scatters, strict=True):
            scatter.absorb(added)

    def release(self) -> None:
        """Free the working memory."""
        for scatter in self.scatters:
            scatter.release()

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return the states of the groups under their numbers, and features and groups, as plain arrays."""
        # Copied in any case: other accumulators share these two arrays.
        arrays = as_arrays({"features": self._features, "groups": self._groups}, copy=True)
        for group, scatter in enumerate(self.scatters):
            arrays |= as_arrays(scatter.state(copy=copy), f"{group}_")
        return arrays

    @classmethod
    def from_state(cls, state: dict[str, Array], *, copy: bool = True, **where: Any) -> Self:
        """Return the accumulator whose `state` this is; see `Scatter.from_state`."""
        new = cls(np.array(state["features"]) if "features" in state else 0, count=0)
        new._groups = np.array(state["groups"]) if "groups" in state else None
        for group in range(sum(name.endswith("_centre") for name in state)):
            prefix = f"{group}_"
            arrays = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
            new.scatters.append(Scatter.from_state(arrays, copy=copy, **where))
        return new
