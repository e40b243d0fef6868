"""Sums measured once beside products with the Gram matrix: its trace, and products with probes for error bounds.

Products with directions of samples show how much of G lies outside of some vectors, and whether products with G were
right. Directions of features are multiplied once more when components are computed, and show the errors of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array, Float64
from ..planning.memory import PROBES, PROBES_OF_PASS
from .plain_state import as_arrays, as_values
from .probes import probe_directions


def remove_mean_part(columns: Float64, roots: Float64) -> Float64:
    """Return columns (n, m) less their part along the roots of the weights (n,), which a mean contributes."""
    return columns - np.outer(roots, (roots @ columns) / float(roots @ roots))


def sample_directions(roots: Float64, seed: int) -> Float64:
    """Return random directions of samples, W, (n, 16), orthogonal to the roots of the weights, (n,).

    Rounded to float32: both precisions multiply the same numbers.
    """
    directions = probe_directions(len(roots), seed, PROBES_OF_PASS)
    return remove_mean_part(directions, roots).astype(np.float32).astype(np.float64)


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
        Rounding errors of both, summed over the checked features.
    squares, whole : float
        Sums of squared distances from the mean, and from the approximate mean that was subtracted.
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
    def empty(cls, n: int, columns: int = PROBES_OF_PASS) -> GramProbes:
        """Return sums of 0 for n samples and `columns` random directions of samples."""
        products, along, products_rounding, along_rounding = (
            np.zeros((n, count)) for count in (columns, PROBES, columns, PROBES)
        )
        return cls(products, along, products_rounding, along_rounding)

    def add(self, other: GramProbes) -> None:
        """Add the sums over other features."""
        for name, value in vars(other).items():
            total = getattr(self, name)
            if isinstance(value, np.ndarray):
                total += value
            else:
                setattr(self, name, total + value)

    def state(self) -> dict[str, Array]:
        """Return the sums as plain arrays."""
        return as_arrays(vars(self), "measured_", copy=True)

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> GramProbes:
        """Return the sums whose `state` is among these arrays."""
        arrays = {name: array.copy() for name, array in state.items() if name.startswith("measured_")}
        return cls(**as_values(arrays, "measured_"))
