"""`ClassScatter`: the scatter matrix of samples, and the means of their classes, in one pass.

The scatter within classes is the total scatter less that between the class means, which has low rank.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from .centering import split
from .products import Block
from .scatter import Scatter

FEW_ROWS = 64  # rows summed by class in the precision of products, before the sums are added in float64


class ClassScatter(Scatter):
    """Accumulate S, and sums by class, over samples of known classes.

    Parameters
    ----------
    n_features : int
        p.
    n_classes : int
        c.
    codes : ndarray of int, shape (n,), optional
        Class of each sample of the collection, from 0.
    **options
        Options of `Scatter`.

    Attributes
    ----------
    class_weights : ndarray of shape (c,)
        Sum of the weights of each class.

    Notes
    -----
    Cost: n p (p + 2 c) flops. Memory: that of a `Scatter`, and 8 c p bytes.
    """

    kind = "class_scatter"

    def __init__(
        self, n_features: int, n_classes: int, codes: npt.NDArray[np.integer[Any]] | None = None, **options: Any
    ) -> None:
        super().__init__(n_features, **options)
        self._codes, self._of_block = codes, np.empty(0, np.intp)
        self.class_weights: Float64 = np.zeros(n_classes)
        self._class_totals: Float64 = np.zeros((n_classes, n_features))  # about the centre

    _of_block: npt.NDArray[np.integer[Any]]  # classes of the rows of a block that have a weight

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb rows, the first of them sample `at` of the collection; see `Scatter.update`."""
        assert self._codes is not None  # noqa: S101 - samples can only be added where classes are given
        codes = self._codes[at : at + len(block)]
        self._of_block = codes if weights is None else codes[weights != 0]
        super().update(block, at=at, weights=weights)

    def _absorb_block(self, block: Array, roots: Float64 | None, at: int) -> None:
        super()._absorb_block(block, roots, at)
        # Class sums are about the centre that `Scatter` has just chosen for this block.
        parts = split(self._centre, self._dtype)
        for start in range(0, len(block), self.product_rows):
            rows = slice(start, start + self.product_rows)
            self._sum_by_class(self._centred(block[rows], parts, None), self._of_block[rows], roots, start)

    def _sum_by_class(self, centred: Block, codes: Array, roots: Float64 | None, at: int) -> None:
        """Add centred rows, from row `at` of a block, to the sums of their classes; `roots` are those of the block."""
        weights = np.ones(len(codes)) if roots is None else roots[at : at + len(codes)] ** 2
        self.class_weights += np.bincount(codes, weights, len(self.class_weights))
        for start in range(0, len(codes), FEW_ROWS):
            few = codes[start : start + FEW_ROWS]
            # One product with an indicator matrix sums the rows of all classes at once.
            factors = np.zeros((len(self.class_weights), len(few)), self._dtype)
            factors[few, np.arange(len(few))] = weights[start : start + FEW_ROWS]
            self._class_totals += centred[start : start + FEW_ROWS].combined(factors)

    def _recentre(self, centre: Float64) -> None:
        before = self._centre
        super()._recentre(centre)
        self._class_totals -= self.class_weights[:, None] * (self._centre - before)

    def absorb(self, other: Self) -> None:
        """Add the samples of another; see `Scatter.absorb`."""
        super().absorb(other)
        if other.n_samples:
            # `super().absorb` has chosen the common centre: move the other's class sums to it.
            shift = self._centre - other._centre
            self._class_totals += other._class_totals - other.class_weights[:, None] * shift
            self.class_weights += other.class_weights

    def discount(self, factor: float) -> None:
        """Multiply the weights of all samples so far by a factor, from 0 to 1."""
        super().discount(factor)
        self._class_totals *= factor
        self.class_weights *= factor

    @property
    def between(self) -> Float64:
        """D, shape (c, p), with rows sqrt(w_c) (mean of class c - mean): D^T D is the scatter between classes."""
        # A class without samples has the row 0.
        weights = np.maximum(self.class_weights, np.finfo(np.float64).tiny)[:, None]
        deviations: Float64 = (self._class_totals / weights - self.offset) * np.sqrt(self.class_weights)[:, None]
        return deviations

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays; see `Scatter.state`."""
        return {
            **super().state(copy=copy),
            **({} if self._codes is None else {"codes": self._codes.copy()}),
            "class_weights": self.class_weights.copy(),
            "class_totals": self._class_totals.copy(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Array], **options: Any) -> Self:
        """Return the accumulator whose `state` this is; see `Scatter.from_state` for the options."""
        like = Scatter.from_state(state, **options)
        new = cls.__new__(cls)
        new.__dict__.update(like.__dict__)
        new._codes, new._of_block = np.array(state["codes"]) if "codes" in state else None, np.empty(0, np.intp)
        new.class_weights = np.array(state["class_weights"], dtype=np.float64)
        new._class_totals = np.array(state["class_totals"], dtype=np.float64)
        return new
