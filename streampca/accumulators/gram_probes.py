"""Sums beside products with the Gram matrix, measured once: its trace, and products with probes for error bounds.

Directions of samples tell what is left of G outside of some vectors, and whether products with it were right; those of
features, multiplied once more when components are made, tell the errors of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..planning.sizes import PROBES, PROBES_OF_PASS
from .plain_state import as_arrays, as_values
from .probes import probe_directions

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def without(columns: Float64, roots: Float64) -> Float64:
    """Return columns (n, some) less their part along the roots of the weights (n,), which is that of the mean."""
    return columns - np.outer(roots, (roots @ columns) / float(roots @ roots))


def sample_directions(roots: Float64, seed: int) -> Float64:
    """Return random directions of samples without a part of the mean, W, (n, 16), given roots of the weights (n,).

    Rounded to float32: both precisions multiply the same numbers.
    """
    return without(probe_directions(len(roots), seed, PROBES_OF_PASS), roots).astype(np.float32).astype(np.float64)


@dataclass
class GramProbes:
    """Sums of squares and of products with probes, added up once in a fit.

    Attributes
    ----------
    products : ndarray of shape (n, 16)
        G W, for W random directions of samples.
    along : ndarray of shape (n, 8)
        X W, for W random directions of features.
    products_rounding, along_rounding : ndarray
        Rounding errors of both, over the features that were checked.
    squares, whole : float
        Sums of squared distances from the mean, and from what was subtracted for it.
    checked : int
        Number of features whose rounding was measured.
    tiles : int
        Number of tiles absorbed.
    """

    products: Float64
    along: Float64
    products_rounding: Float64
    along_rounding: Float64
    squares: float = 0.0
    whole: float = 0.0
    checked: int = 0
    tiles: int = 0

    @classmethod
    def nothing(cls, n: int, columns: int = PROBES_OF_PASS) -> GramProbes:
        """Return the sums over no features of n samples, for so many random directions of samples."""
        products, along, products_rounding, along_rounding = (
            np.zeros((n, count)) for count in (columns, PROBES, columns, PROBES)
        )
        return cls(products, along, products_rounding, along_rounding)

    def add(self, other: GramProbes) -> None:
        """Add the sums over other features."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(value, np.ndarray):
                mine += value
            else:
                setattr(self, name, mine + value)

    def state(self) -> dict[str, Array]:
        """Return the sums as plain arrays."""
        return as_arrays(vars(self), "measured_", copy=True)

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> GramProbes:
        """Return the sums whose `state` is among these arrays."""
        own = {name: array.copy() for name, array in state.items() if name.startswith("measured_")}
        return cls(**as_values(own, "measured_"))
