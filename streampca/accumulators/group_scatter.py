"""`GroupScatter`: the scatter matrix of each of some groups of samples, over some of their features, in one pass.

Samples of several groups have the sum of these groups' matrices, about their common mean: a model is fitted to each
training set of a cross-validation without reading it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from .plain_state import as_arrays
from .protocol import Accumulator
from .scatter import Scatter

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Places = npt.NDArray[np.integer[Any]]


class GroupScatter(Accumulator):
    """Accumulates a `Scatter` for each group of samples.

    Parameters
    ----------
    features : ndarray of int, shape (m,), or int
        Places of the features that count, ascending; or the number of features, all of which count.
    count : int
        Number of groups, g.
    groups : ndarray of int, shape (n,), optional
        Group of each sample of the collection, 0 to `count` - 1; all are of one group by default.
    **options
        Options of `Scatter`.

    Attributes
    ----------
    scatters : list of Scatter
        One a group.

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
        own = self._groups[at : at + len(block)]
        for group, scatter in enumerate(self.scatters):
            scatter.update(rows, at=at, weights=np.where(own == group, 1.0 if weights is None else weights, 0.0))
        return None

    @property
    def n_features(self) -> int:
        """Number of features that count, m."""
        return self.scatters[0].n_features

    @property
    def n_samples(self) -> int:
        """Number of samples absorbed, except those of weight 0."""
        return sum(scatter.n_samples for scatter in self.scatters)

    @property
    def weight(self) -> float:
        """Sum of their weights."""
        return sum(scatter.weight for scatter in self.scatters)

    @property
    def precision(self) -> str:
        """Precision of products."""
        return self.scatters[0].precision

    def joined(self, some: Sequence[int]) -> Scatter:
        """Return the scatter of the samples of some groups, at least one, as a new value."""
        first, *others = (self.scatters[group] for group in some)
        found = type(first).from_state(first.state(copy=False))
        for other in others:
            found.absorb(other)
        return found

    def absorb(self, other: Self) -> None:
        """Add the samples of another; see `Accumulator.absorb`."""
        for own, given in zip(self.scatters, other.scatters, strict=True):
            own.absorb(given)

    def release(self) -> None:
        """Give back the working memory."""
        for scatter in self.scatters:
            scatter.release()

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return the states of the groups under their numbers, and features and groups, as plain arrays."""
        own = as_arrays({"features": self._features, "groups": self._groups}, copy=True)  # shared with others
        for group, scatter in enumerate(self.scatters):
            own |= as_arrays(scatter.state(copy=copy), f"{group}_")
        return own

    @classmethod
    def from_state(cls, state: dict[str, Array], *, copy: bool = True, one_thread: bool = False) -> Self:
        """Return the accumulator whose `state` this is; see `Scatter.from_state`."""
        new = cls(np.array(state["features"]) if "features" in state else 0, count=0)
        new._groups = np.array(state["groups"]) if "groups" in state else None
        for group in range(sum(name.endswith("_centre") for name in state)):
            own = {name.removeprefix(f"{group}_"): each for name, each in state.items() if name.startswith(f"{group}_")}
            new.scatters.append(Scatter.from_state(own, copy=copy, one_thread=one_thread))
        return new
