"""The Gram matrix applied to a block, G U = X (X^T U), n x l, of a stream of features; G, n x n, is not formed.

Cut along features: what is absorbed is every sample of some features. A tile of them is centred on its own mean and
multiplied twice while it is in memory, in one read. What centring leaves of the mean, samples times a vector of equal
numbers (the roots of the weights), is orthogonal to U and is taken off the sum: so the mean need not be known, and
nothing of it is left. In single precision the products of a tile are float32 and are added up in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from ..execution.threads import map_in_threads
from ..planning.sizes import CHECK_FEATURES
from .block_product import block_product
from .centering import subtract_mean, sum_of_squares, weighted_sum
from .finite import not_finite
from .gram_probes import GramProbes, sample_directions, without
from .probes import CHECK_EVERY, Directions
from .protocol import Accumulator
from .tile_product import FeatureTile

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

# Share of the squares about the centre: where variance is less of them, centring leaves rounding only.
NO_VARIANCE = {"single": 1e-6, "double": 64 * float(np.finfo(np.float64).eps)}


class Buffers:
    """Working memory for one tile at a time: its centred values, its product, and directions as they are drawn."""

    def __init__(self, vectors: Array, values: int, seed: int) -> None:
        self.product = np.empty(vectors.T.shape, vectors.dtype)
        self.values = np.empty(values, vectors.dtype)
        self.directions = Directions(seed)


class GramBlock(Accumulator):
    """Accumulates G U over the features, one range of them after another.

    Parameters
    ----------
    vectors : ndarray of shape (n, l)
        U, orthogonal to the roots; it is rounded to the precision of products.
    roots : ndarray of shape (n,), optional
        Square roots of the samples' weights, which each row of X is multiplied by; ones by default.
    measures : bool
        Whether the trace is found, and products with random probes that bound errors.
    precision : {"single", "double"}
        Precision of products; sums are always float64.
    product_features : int
        Largest number of features multiplied at a time.
    threads : int
        Tiles multiplied at a time.
    seed : int
        Seed of the probe directions.

    Attributes
    ----------
    vectors : ndarray of shape (n, l)
        U as it is multiplied.
    n_features : int
        Features absorbed.

    Notes
    -----
    Cost: 4 n p l flops.
    """

    kind = "gram_block"
    axis: Literal["samples", "features"] = "features"

    def __init__(
        self,
        vectors: Array,
        *,
        roots: Float64 | None = None,
        measures: bool = True,
        precision: str = "single",
        product_features: int = 1024,
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        self.n_features, self.precision, self.product_features = 0, precision, product_features
        self.threads, self.seed = threads, seed
        self.vectors = vectors.astype(np.float64 if precision == "double" else np.float32, order="C")
        n, width = vectors.shape
        self._roots: Float64 = np.ones(n) if roots is None else roots
        self._is_weighted = roots is not None
        self._product: Float64 = np.zeros((width, n))
        self._measured = GramProbes.nothing(n) if measures else None
        self._directions = sample_directions(self._roots, seed) if measures else np.zeros((n, 0))
        self._free: list[Buffers] = []

    # -- absorbing

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb features of every sample, shape (n, width), any real dtype; `at` is the position of the first.

        Samples are weighted by `roots`; `weights` are not used here.

        Raises
        ------
        NotFiniteError
            If a sample holds NaN or infinity, or products overflow. The accumulator is then of no more use.
        """
        most = len(block) * min(self.product_features, block.shape[1])
        if self._free and self._free[0].values.size < most:
            self._free.clear()
        while len(self._free) < self.threads:  # here, not in threads, each of which would keep what it has freed
            self._free.append(Buffers(self.vectors, most, self.seed))

        def multiplied(tile: FeatureTile) -> tuple[Buffers, GramProbes | None]:
            buffers = self._free.pop()
            return buffers, self._multiplied(tile, buffers)

        for buffers, found in map_in_threads(multiplied, self._tiles(block, at), self.threads):
            self._product += buffers.product
            if self._measured is not None and found is not None:
                self._measured.add(found)
            self._free.append(buffers)
        self.n_features += block.shape[1]

    def _tiles(self, block: Array, at: int) -> Iterator[FeatureTile]:
        first = 0 if self._measured is None else self._measured.tiles
        narrow = self._measured is not None and self.precision == "single"
        for number, start in enumerate(range(0, block.shape[1], self.product_features), first):
            values = block[:, start : start + self.product_features]
            yield FeatureTile(values, at + start, checked=narrow and number % CHECK_EVERY == 0)

    def _multiplied(self, tile: FeatureTile, buffers: Buffers) -> GramProbes | None:
        """Multiply a tile, the product in its buffers; return what is measured beside."""
        centred = self._centred(tile, buffers)
        if not block_product(centred.T, self.vectors, buffers.product):
            raise not_finite(tile.values, 0, self.precision)
        if self._measured is None:
            return None
        directions = buffers.directions.rows(tile.at, tile.at + centred.shape[1])
        return self._measure(tile, centred, directions)

    def _centred(self, tile: FeatureTile, buffers: Buffers) -> Array:
        """Values less about their mean, each row times its root, (n, width)."""
        values = tile.values
        centred = buffers.values[: values.size].reshape(values.shape)
        with np.errstate(over="ignore", invalid="ignore"):  # the products will say so
            subtract_mean(values, centred)
            if self._is_weighted:
                squares = self._roots**2
                centred -= weighted_sum(centred, squares / squares.sum()).astype(centred.dtype)
                centred *= self._roots[:, None].astype(centred.dtype)
        return centred

    def _measure(self, tile: FeatureTile, centred: Array, directions: Array) -> GramProbes:
        """Return the share of a tile in the squares, and in products with directions of samples and of features."""
        found = GramProbes.nothing(len(centred))
        with np.errstate(over="ignore", invalid="ignore"):
            total = weighted_sum(centred, self._roots if self._is_weighted else None)
            found.products += self._probed(centred, total)
            found.along += centred @ directions.astype(centred.dtype, copy=False)
            found.whole, found.tiles = sum_of_squares(centred), 1
            found.squares = found.whole - float(total @ total) / float(self._roots @ self._roots)
            if tile.checked:
                few = slice(0, CHECK_FEATURES)
                self._check(tile.values[:, few], centred[:, few], total[few], directions[few], found)
        return found

    def _probed(self, centred: Array, total: Float64) -> Array:
        """Products with directions of samples, less what rounding these let in of the sums `total` of the features."""
        along = centred.T @ self._directions.astype(centred.dtype, copy=False)
        along -= np.outer(total, self._roots @ self._directions / float(self._roots @ self._roots)).astype(along.dtype)
        return centred @ along  # type: ignore[no-any-return]

    def _check(self, stored: Array, centred: Array, total: Float64, directions: Array, found: GramProbes) -> None:
        """Measure the rounding of the probes' products in float64, on a few features that stand for many."""
        exact = stored.astype(np.float64)
        exact -= (self._roots**2 / float(self._roots @ self._roots)) @ exact
        exact *= self._roots[:, None]
        rounded = without(self._probed(centred, total).astype(np.float64), self._roots)
        found.products_rounding += rounded - exact @ (exact.T @ self._directions)
        along = without((centred @ directions).astype(np.float64), self._roots)
        found.along_rounding += along - exact @ directions.astype(np.float64)
        found.checked = centred.shape[1]

    # -- as a value

    def absorb(self, other: Self) -> None:
        """Add the features of another accumulator of the same U to this one; the other is left as it was.

        Raises
        ------
        ValueError
            If the two multiply other blocks, or weight samples otherwise.
        """
        same = self.seed == other.seed and np.array_equal(self.vectors, other.vectors)
        if not same or not np.array_equal(self._roots, other._roots):
            raise ValueError("products with other blocks, or of samples weighted otherwise, cannot be added")
        if (self._measured is None) != (other._measured is None):
            raise ValueError("what was measured and what was not cannot be added")
        self._product += other._product
        if self._measured is not None and other._measured is not None:
            self._measured.add(other._measured)
        self.n_features += other.n_features

    def release(self) -> None:
        """Give back the working memory; it is taken again when more features come."""
        self._free = []

    def take(self) -> Float64:
        """Return G U of samples about the mean, (n, l) in Fortran order; the accumulator is then of no more use."""
        self.release()
        for row in self._product:
            row -= (row @ self._roots) / float(self._roots @ self._roots) * self._roots
        return self._product.T

    @property
    def trace(self) -> float:
        """Sum of squared distances from the mean, where it is measured; 0 where all samples are equal."""
        if self._measured is None:
            raise ValueError("the trace was not measured")
        squares, whole = self._measured.squares, self._measured.whole
        return squares if not squares <= NO_VARIANCE[self.precision] * whole else 0.0

    def probes(self) -> GramProbes | None:
        """G W and X W about the mean, and the rounding of both scaled to all features, where they are measured."""
        if self._measured is None:
            return None
        found = self._measured
        # Errors of one feature and another are independent: those not measured add to the others as squares do.
        scale = (self.n_features / (found.checked or 1)) ** 0.5
        return replace(
            found,
            products=without(found.products, self._roots),
            along=without(found.along, self._roots),
            products_rounding=found.products_rounding * scale,
            along_rounding=found.along_rounding * scale,
        )

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Everything as plain arrays; without `copy` the sum itself, to be written down and not to."""
        found = {
            "n_features": np.array(self.n_features),
            "product_features": np.array(self.product_features),
            "seed": np.array(self.seed),
            "double": np.array(self.precision == "double"),
            "vectors": self.vectors.copy(),
            "product": self._product.copy() if copy else self._product,
        }
        if self._is_weighted:
            found["roots"] = self._roots.copy()
        return found if self._measured is None else {**found, **self._measured.state()}

    @classmethod
    def from_state(cls, state: dict[str, Array], *, copy: bool = True, threads: int = 1) -> Self:
        """Exact inverse of `state`; without `copy` its sum is taken over."""
        new = cls(
            state["vectors"],
            roots=np.array(state["roots"]) if "roots" in state else None,
            measures="measured_squares" in state,
            precision="double" if state["double"] else "single",
            product_features=int(state["product_features"]),
            threads=threads,
            seed=int(state["seed"]),
        )
        new.n_features = int(state["n_features"])
        new._product = np.array(state["product"], copy=copy or None)
        if new._measured is not None:
            new._measured = GramProbes.from_state(state)
        return new
