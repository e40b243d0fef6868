"""Product of the Gram matrix with a block, G U = X (X^T U), n x l, of a stream of features; G is not formed.

Data are cut along features: a block holds all samples of some features. A tile of features is centred on its own
approximate mean and multiplied twice while it is in memory, in one read. The remaining mean is a multiple of one vector
(the roots of the weights) in every feature. This vector is orthogonal to U and is removed from the sum, so the exact
mean need not be known. In single precision the products of a tile are float32 and are added up in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np

from ..arrays import Array, Float64, is_sparse
from ..execution.panels import owned
from ..execution.threads import map_in_threads
from ..planning.memory import CHECK_FEATURES
from .centering import mean_parts
from .finite import not_finite
from .gram_probes import GramProbes, remove_mean_part, sample_directions
from .probes import CHECK_EVERY, Directions
from .products import Block, Products, products_on
from .protocol import Accumulator
from .tile_product import FeatureTile

# Share of the squares about the centre below which the variance is rounding left by centring.
NO_VARIANCE = {"single": 1e-6, "double": 64 * float(np.finfo(np.float64).eps)}


class Buffers:
    """Working memory for one tile at a time: products, and probe directions."""

    def __init__(self, products: Products[Any, Any], seed: int) -> None:
        self.products, self.directions = products, Directions(seed)


class GramBlock(Accumulator):
    """Accumulate G U over the features, one range of them after another.

    Parameters
    ----------
    vectors : ndarray of shape (n, l)
        U, orthogonal to the roots; rounded to the precision of products.
    roots : ndarray of shape (n,), optional
        Square roots of the samples' weights, which each row of X is multiplied by; ones by default.
    measures : bool
        If true, measure the trace, and products with random probes that bound errors.
    precision : {"single", "double"}
        Precision of products; sums are always float64.
    product_features : int
        Largest number of features multiplied at a time.
    threads : int
        Tiles multiplied at a time.
    seed : int
        Seed of the probe directions.
    device : str, default=""
        Device that multiplies (`streampca.accumulators.products`), by default the processor.

    Attributes
    ----------
    vectors : ndarray of shape (n, l)
        U in the precision of products.
    n_features : int
        Features absorbed.

    Notes
    -----
    Cost: 4 n p l flops.
    """

    kind = "gram_block"
    axis: Literal["samples", "features"] = "features"
    constants = ("vectors",)

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
        device: str = "",
    ) -> None:
        self._device = device
        self.n_features, self.precision, self.product_features = 0, precision, product_features
        self.threads, self.seed = threads, seed
        self.vectors = vectors.astype(np.float64 if precision == "double" else np.float32, order="C")
        self.vectors.flags.writeable = False  # a device keeps it
        n, width = vectors.shape
        self._roots: Float64 = np.ones(n) if roots is None else roots
        self._is_weighted = roots is not None
        self._sum = self._new_products().sum(np.zeros((width, n)))
        self._measured = GramProbes.empty(n) if measures else None
        self._directions = sample_directions(self._roots, seed) if measures else np.zeros((n, 0))
        self._free: list[Buffers] = []

    # -- absorbing

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb features of every sample, shape (n, width), any real dtype; `at` is the position of the first.

        Samples are weighted by `roots`; `weights` are not used here.

        Raises
        ------
        NotFiniteError
            If a sample holds NaN or infinity, or products overflow. The accumulator must then be discarded.
        """
        while len(self._free) < self.threads:
            self._free.append(Buffers(self._new_products(), self.seed))
        # Memory is allocated here: the allocator would keep what threads free in a pool for each thread.
        for buffers in self._free if not is_sparse(block) else []:
            buffers.products.reserve(len(block) * min(self.product_features, block.shape[1]), self.vectors.shape[::-1])

        def multiply_tile(tile: FeatureTile) -> tuple[Buffers, GramProbes | None]:
            buffers = self._free.pop()
            return buffers, self._multiplied(tile, buffers)

        threads = 1 if is_sparse(block) else self.threads  # which is one tile
        for buffers, measured in map_in_threads(multiply_tile, self._tiles(block, at), threads):
            buffers.products.add(self._sum)
            if self._measured is not None and measured is not None:
                self._measured.add(measured)
            self._free.append(buffers)
        self.n_features += block.shape[1]

    def _new_products(self) -> Products[Any, Any]:
        return products_on(self._device, self.vectors.dtype, one_thread=True)

    def _tiles(self, block: Array, at: int) -> Iterator[FeatureTile]:
        first = 0 if self._measured is None else self._measured.tiles
        narrow = self._measured is not None and self.precision == "single"
        if is_sparse(block):  # cut by features it would be copied
            yield FeatureTile(block, at, checked=False)
            return
        for number, start in enumerate(range(0, block.shape[1], self.product_features), first):
            values = block[:, start : start + self.product_features]
            yield FeatureTile(values, at + start, checked=narrow and number % CHECK_EVERY == 0)

    def _multiplied(self, tile: FeatureTile, buffers: Buffers) -> GramProbes | None:
        """Write the product of a tile to its buffers; return the measured sums, if any."""
        centred = self._centred(tile, buffers)
        if not buffers.products.twice(centred.T, self.vectors):
            raise not_finite(tile.values, 0, self.precision)
        if self._measured is None:
            return None
        directions = buffers.directions.rows(tile.at, tile.at + centred.shape[1])
        return self._measure(tile, centred, directions)

    def _centred(self, tile: FeatureTile, buffers: Buffers) -> Block:
        """Return values less their approximate mean, each row times its root, (n, width)."""
        products = buffers.products
        with np.errstate(over="ignore", invalid="ignore"):  # products are checked for NaN and infinity
            parts = mean_parts(tile.values, self.vectors.dtype)
            if is_sparse(tile.values):  # what is left of the mean is along the roots, and removed from the sum
                return products.centre(tile.values, parts, self._roots if self._is_weighted else None)  # type: ignore[no-any-return]
            centred: Block = products.centre(tile.values, parts)
            if not self._is_weighted:
                return centred
            # The plain mean has been subtracted; the weighted mean differs from it.
            squares = self._roots**2
            further = centred.sum(squares / squares.sum()).astype(centred.dtype)
            return products.centre(tile.values, (*parts, further), self._roots)  # type: ignore[no-any-return]

    def _measure(self, tile: FeatureTile, centred: Block, directions: Array) -> GramProbes:
        """Return the contribution of a tile to the squares and to products with directions of samples and features."""
        probes = GramProbes.empty(centred.shape[0])
        with np.errstate(over="ignore", invalid="ignore"):
            # X^T times the roots: the part of the features that a mean contributes.
            total = centred.sum(self._roots if self._is_weighted else None)
            probes.products += self._probed(centred, total)
            probes.along += centred.times(directions.astype(centred.dtype, copy=False))
            probes.whole, probes.tiles = centred.sum_of_squares(), 1
            # Squares about the exact mean: less the square of that part.
            probes.squares = probes.whole - float(total @ total) / float(self._roots @ self._roots)
            if tile.checked:
                few = slice(0, CHECK_FEATURES)
                self._check(tile.values[:, few], centred.T[few].T, total[few], directions[few], probes)
        return probes

    def _probed(self, centred: Block, total: Float64) -> Array:
        """Return products with directions of samples, less what rounding of these adds from the sums of features."""
        along = centred.T.times(self._directions.astype(centred.dtype, copy=False))
        along -= np.outer(total, self._roots @ self._directions / float(self._roots @ self._roots)).astype(along.dtype)
        return centred.times(along)

    def _check(self, stored: Array, centred: Block, total: Float64, directions: Array, probes: GramProbes) -> None:
        """Measure the rounding of the probes' products in float64, on a few features of the tile."""
        exact = stored.astype(np.float64)
        exact -= (self._roots**2 / float(self._roots @ self._roots)) @ exact
        exact *= self._roots[:, None]
        rounded = remove_mean_part(self._probed(centred, total).astype(np.float64), self._roots)
        probes.products_rounding += rounded - exact @ (exact.T @ self._directions)
        along = remove_mean_part(centred.times(directions).astype(np.float64), self._roots)
        probes.along_rounding += along - exact @ directions.astype(np.float64)
        probes.checked = centred.shape[1]

    # -- as a value

    def absorb(self, other: Self) -> None:
        """Add the features of another accumulator of the same U to this one; the other is not changed.

        Raises
        ------
        ValueError
            If blocks or weights of the two differ.
        """
        same = self.seed == other.seed and np.array_equal(self.vectors, other.vectors)
        if not same or not np.array_equal(self._roots, other._roots):
            raise ValueError("products with other blocks, or of samples weighted otherwise, cannot be added")
        if (self._measured is None) != (other._measured is None):
            raise ValueError("what was measured and what was not cannot be added")
        self._sum.values += other._sum.values
        if self._measured is not None and other._measured is not None:
            self._measured.add(other._measured)
        self.n_features += other.n_features

    def release(self) -> None:
        """Free the working memory; `update` allocates it again."""
        self._free = []

    def take(self) -> Float64:
        """Return G U of samples about the mean, (n, l) in Fortran order; uses up the accumulator."""
        self.release()
        # Remove the part along the roots, which is all that the unknown mean has contributed.
        product: Float64 = self._sum.values
        for row in product:
            row -= (row @ self._roots) / float(self._roots @ self._roots) * self._roots
        return product.T

    @property
    def trace(self) -> float:
        """Sum of squared distances from the mean, if measured; 0 where all samples are equal."""
        if self._measured is None:
            raise ValueError("the trace was not measured")
        squares, whole = self._measured.squares, self._measured.whole
        return squares if not squares <= NO_VARIANCE[self.precision] * whole else 0.0

    def probes(self) -> GramProbes | None:
        """Return G W and X W about the mean, and the rounding of both scaled to all features, if measured."""
        if self._measured is None:
            return None
        measured = self._measured
        # Errors of different features are independent, so their squares add up: scale from checked to all features.
        scale = (self.n_features / (measured.checked or 1)) ** 0.5
        return replace(
            measured,
            products=remove_mean_part(measured.products, self._roots),
            along=remove_mean_part(measured.along, self._roots),
            products_rounding=measured.products_rounding * scale,
            along_rounding=measured.along_rounding * scale,
        )

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays; without `copy` the sum itself, to be stored but not written to."""
        arrays = {
            "n_features": np.array(self.n_features),
            "product_features": np.array(self.product_features),
            "seed": np.array(self.seed),
            "double": np.array(self.precision == "double"),
            "vectors": self.vectors.copy(),
            "product": self._sum.values.copy() if copy else self._sum.values,
        }
        if self._is_weighted:
            arrays["roots"] = self._roots.copy()
        return arrays if self._measured is None else {**arrays, **self._measured.state()}

    @classmethod
    def from_state(
        cls,
        state: dict[str, Array],
        *,
        vectors: Array | None = None,
        copy: bool = True,
        threads: int = 1,
        device: str = "",
    ) -> Self:
        """Return the accumulator whose `state` this is; without `copy` it takes over the sum.

        `vectors` are used instead of those of the state, which can lack them.
        """
        new = cls(
            state["vectors"] if vectors is None else vectors,
            roots=np.array(state["roots"]) if "roots" in state else None,
            measures="measured_squares" in state,
            precision="double" if state["double"] else "single",
            product_features=int(state["product_features"]),
            threads=threads,
            seed=int(state["seed"]),
            device=device,
        )
        new.n_features = int(state["n_features"])
        new._sum.values = owned(state["product"], copy=copy)
        if new._measured is not None:
            new._measured = GramProbes.from_state(state)
        return new
