"""Components of the dual method, V = X^T U, made range by range of features and put where there is room for them.

The reads that give the components give the mean too, and what bounds the error of both: beside V the products
X^T (X W) with the probe directions, from the values as stored.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from ...accumulators import Directions
from ...accumulators.blas import times
from ...accumulators.centering import subtract_mean, weighted_sum
from ...accumulators.probes import CHECK_EVERY
from ...eigensolvers import Certificate, Sketch, extremes, larger
from ...planning.blocks import Span, blocks_of
from ...planning.sizes import CHECK_FEATURES, PROBES

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

PART_BYTES = 4 * 2**20  # of kept components worked on at a time ...
LEAST_PART = 64  # ... or so many features of them


@dataclass(frozen=True)
class Factors:
    """What samples are multiplied with to make components of them.

    Attributes
    ----------
    vectors : ndarray of shape (n, k)
        Eigenvectors of the Gram matrix, scaled, each row times the root of its sample's weight.
    along : ndarray of shape (n, 8)
        X W, each row times that root: X^T of it is S W.
    share : ndarray of shape (n,) or None
        Weights, adding up to 1; None where all are equal.
    precision : {"single", "double"}
        Of products.
    tile : int
        Features multiplied at a time.
    one_thread : bool
        Whether several ranges are made at the same time (`streampca.execution.threads`).
    """

    vectors: Float64
    along: Float64
    share: Float64 | None
    precision: str
    tile: int
    one_thread: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of products."""
        return np.dtype(np.float64 if self.precision == "double" else np.float32)

    def mean_of(self, values: Array) -> Float64:
        """Mean of samples, (n, width)."""
        return weighted_sum(values, self.share) / (len(self.vectors) if self.share is None else 1.0)

    @cached_property
    def working(self) -> Array:
        """Vectors and ``along`` side by side, (k + 8, n) in the precision of products: one product instead of two."""
        return np.concatenate([self.vectors, self.along], axis=1, dtype=self.dtype).T


@dataclass(frozen=True)
class Range:
    """A tile of features projected on the vectors.

    Attributes
    ----------
    features : Span
        The features.
    values : ndarray of shape (k, width)
        Components, in the precision of products.
    products, rounding : ndarray of shape (width, 8)
        S W, and its rounding error on the features where it was measured; 0 on the others.
    mean : ndarray of shape (width,)
        Mean of the samples, float64.
    seen, checked : int
        Values multiplied, and those of them that `rounding` was measured with.
    """

    features: Span
    values: Array
    products: Float64
    rounding: Float64
    mean: Float64
    seen: int
    checked: int


def project(factors: Factors, features: Span, stored: Array, workspace: Array) -> Range:
    """Project features of all samples, (n, width) as stored; the workspace holds them centred."""
    centred = workspace[: stored.size].reshape(stored.shape)
    mean = subtract_mean(stored, centred) + factors.mean_of(centred)
    product = times(factors.working, centred, one_thread=factors.one_thread)
    values, products = product[:-PROBES], product[-PROBES:].T
    rounding: Float64 = np.zeros(products.shape)
    checked = 0
    if centred.dtype == np.float32 and features.start // factors.tile % CHECK_EVERY == 0:
        few = stored[:, :CHECK_FEATURES].astype(np.float64)
        few -= few[0]  # X^T (X W) is the same about any centre, as the rows of X W add up to zero
        exact = times(few.T, factors.along, one_thread=factors.one_thread)
        rounding[:CHECK_FEATURES] = products[:CHECK_FEATURES] - exact
        checked = few.size
    return Range(features, values, products.astype(np.float64), rounding, mean, stored.size, checked)


class Basis(abc.ABC):
    """Components being made, the mean, and what bounds their error.

    Parameters
    ----------
    shape : (int, int)
        Components and features, k x p.
    dtype : dtype
        Of components as stored.
    seed : int
        Of the probe directions.

    Attributes
    ----------
    mean : ndarray of shape (p,)
        Of the samples.
    components : ndarray of shape (k, p) or None
        Those in memory.
    """

    components: Array | None = None

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any], seed: int) -> None:
        self.mean: Float64 = np.zeros(shape[1])
        self._shape, self._dtype, self._directions = shape, dtype, Directions(seed)
        self._rounding: Float64 = np.zeros((PROBES, shape[0]))
        self._seen = self._checked = 0

    def take(self, made: Range) -> None:
        """Take a finished range."""
        values = made.values.astype(self._dtype, copy=False)
        self.mean[slice(*made.features)] = made.mean
        if made.checked:
            self._rounding += times(made.rounding.T, values.T.astype(np.float64, copy=False))
        self._checked += made.checked
        self._seen += made.seen
        self._put(made, values)

    def state(self) -> dict[str, Array]:
        """Return the state as plain arrays, without copying them."""
        return {"mean": self.mean, "rounding": self._rounding, "counts": np.array([self._seen, self._checked])}

    def restore(self, state: dict[str, Array]) -> None:
        """Take over what `state` gave."""
        self.mean, self._rounding = state["mean"], state["rounding"]
        self._seen, self._checked = state["counts"].tolist()

    @abc.abstractmethod
    def _put(self, made: Range, values: Array) -> None:
        """Keep a range's components, as stored; to be written, they come in order."""

    @abc.abstractmethod
    def _sketch(self) -> Sketch:
        """Of all components as they are stored."""

    def certificate(self, values: Float64, next_value: float | None, rounding: Float64) -> Certificate:
        """Bound the errors of the components as they are stored, for these eigenvalues.

        Parameters
        ----------
        values : ndarray of shape (k,)
            Of X^T X.
        next_value : float or None
            See `certify`.
        rounding : ndarray of shape (8, k)
            What the error of X W amounts to along the components.
        """
        sketch = self._sketch()
        # Errors of one feature and another are independent: those not measured add to the others as squares do.
        scale = (self._seen / max(1, self._checked)) ** 0.5
        sketch.add_rounding(rounding + scale * self._rounding)
        return sketch.certificate(values, next_value=next_value)


class Kept(Basis):
    """Components in memory, with the probes' products beside them."""

    components: Array

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any], seed: int) -> None:
        super().__init__(shape, dtype, seed)
        self.components = np.empty(shape, dtype)
        self._products = np.empty((shape[1], PROBES), dtype)

    def state(self) -> dict[str, Array]:
        """See `Basis.state`."""
        return {**super().state(), "components": self.components, "products": self._products}

    def restore(self, state: dict[str, Array]) -> None:
        """See `Basis.restore`."""
        super().restore(state)
        self.components, self._products = state["components"], state["products"]

    def _put(self, made: Range, values: Array) -> None:
        self.components[:, slice(*made.features)] = values
        self._products[slice(*made.features)] = made.products

    def _sketch(self) -> Sketch:
        sketch = Sketch(len(self.components))
        for part in self._parts():
            directions = self._directions.rows(*part)
            sketch.add(self.components[:, slice(*part)].T, directions, self._products[slice(*part)])
        return sketch

    def gram(self) -> Float64:
        """V V^T, (k, k)."""
        total: Float64 = np.zeros((len(self.components), len(self.components)))
        for part in self._parts():
            values = np.ascontiguousarray(self.components[:, slice(*part)])
            syrk = blas.ssyrk if values.dtype == np.float32 else blas.dsyrk
            total += syrk(1.0, values.T, trans=1)
        for row in range(1, len(total)):  # BLAS fills the upper triangle
            total[row, :row] = total[:row, row]
        return total

    def turn(self, matrix: Float64) -> None:
        """Replace the components by combinations of them: ``matrix @ components``, the matrix (fewer, k)."""
        working = matrix.astype(self._dtype, copy=False)
        for part in self._parts():
            values = self.components[:, slice(*part)]
            values[: len(matrix)] = times(working, np.ascontiguousarray(values))
        self.components = self.components[: len(matrix)]
        self._rounding = self._rounding @ matrix.T

    def fix_signs(self) -> None:
        """Negate components whose loading of largest magnitude is negative (`streampca.eigensolvers.signs`)."""
        largest = np.zeros(len(self.components))
        for part in self._parts():
            largest = larger(largest, extremes(self.components[:, slice(*part)]))
        for number in np.flatnonzero(largest < 0):
            np.negative(self.components[number], out=self.components[number])

    def _parts(self) -> Iterable[Span]:
        """Features worked on at a time."""
        return blocks_of(Span(0, self._shape[1]), max(LEAST_PART, PART_BYTES // (8 * self._shape[0])))
