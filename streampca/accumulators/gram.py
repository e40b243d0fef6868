"""Gram matrix of samples, G = sum over features of x x^T, n x n, for p much larger than n, with its probes.

Data are cut along features: a block holds all samples of some features. Each tile of features is centred on its own
approximate mean before it is multiplied; the remaining mean is removed in float64 at the end, on both sides, at no cost
(`centred`). In single precision the products of a tile are float32 and are added up in float64; tiles of whole numbers
are so narrow that their products are exact, if the range of the data allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import numpy as np
from scipy.linalg import blas

from ..arrays import Array, Float64, is_sparse
from ..execution.panels import owned
from ..execution.threads import map_in_threads
from ..planning.memory import CHECK_FEATURES
from .exact_products import EXACT_SUMS_BELOW, ExactProducts, SumCheck, holds_whole_numbers
from .finite import check_finite, not_finite
from .gram_probes import GramProbes
from .integer_products import IntegerProducts, integer_products
from .probes import CHECK_EVERY, probe_directions
from .products import Products, products_on
from .protocol import Accumulator
from .tile_product import FeatureTile, Multiplied, TileProducts

# Rounding of m 1^T + 1 m^T and of its subtraction, relative to its norm.
MEAN_ROUNDING = 4 * float(np.finfo(np.float64).eps)
# Traces below this share of the squares about the centre are rounding.
NO_VARIANCE = 64 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class CentredGram:
    """Gram matrix of centred samples, each times the root of its weight, ready to be solved.

    Attributes
    ----------
    upper : ndarray of shape (n, n)
        float64, Fortran order, upper triangle.
    trace : float
        Its trace; 0 where all samples are equal.
    products, rounding : ndarray of shape (n, 8)
        X W of the same rows, and its measured rounding.
    mean_rounding : float
        Bound on the norm of the rounding that subtracting the mean has left in the matrix.
    """

    upper: Float64
    trace: float
    products: Float64
    rounding: Float64
    mean_rounding: float = 0.0

    @property
    def size(self) -> int:
        """Order of the matrix, n."""
        return len(self.upper)

    def matrix(self) -> Float64:
        """Return the matrix anew, (n, n) in Fortran order, upper triangle."""
        return self.upper.copy(order="F")

    def multiply(self, block: Float64) -> Float64:
        """Return the matrix times a block of columns, (n, l)."""
        return blas.dsymm(1.0, self.upper, block)  # type: ignore[no-any-return]


class Gram(Accumulator):
    """Accumulate G over the features, one range of them after another.

    Parameters
    ----------
    n_samples : int
        n.
    precision : {"single", "double"}
        Precision of products; sums are always float64.
    product_features : int
        Largest number of features multiplied at a time.
    threads : int
        Tiles multiplied at a time, in single precision.
    seed : int
        Seed of the probe directions; accumulators to be merged must share it.
    about : {"mean", "zero"}
        Point that products are about: near the mean of the samples, or zero, for inner products of samples as they are.
    centres : int
        Number of all features, p, to keep that point for `products`; 0 by default, not to keep it.
    integer_units : str
        Class of integer units that blocks of whole numbers are multiplied on, about their mean, e.g. ``"amx"``.
    device : str, default=""
        Device that multiplies in floating point (`streampca.accumulators.products`), by default the processor.

    Attributes
    ----------
    n_features : int
        Features absorbed.
    n_on_integer_units : int
        Number of these that were multiplied on integer units.

    Notes
    -----
    Cost: n^2 p flops (symmetric rank-k updates).
    """

    kind = "gram"
    axis: Literal["samples", "features"] = "features"

    def __init__(
        self,
        n_samples: int,
        *,
        precision: str = "single",
        product_features: int = 4096,
        threads: int = 1,
        seed: int = 0,
        about: str = "mean",
        centres: int = 0,
        integer_units: str = "none",
        device: str = "",
    ) -> None:
        self._device = device
        self.about, self._centres = about, np.zeros(centres)
        self.n_samples, self.precision, self.product_features, self.seed = n_samples, precision, product_features, seed
        self.threads, self.n_features, self.n_on_integer_units = threads, 0, 0
        self.integer_units = integer_units if about == "mean" and precision == "single" else "none"
        self._integers: IntegerProducts | None = None
        self._pieces = ExactProducts(precision, product_features)
        self._dtype = np.dtype(np.float64 if precision == "double" else np.float32)
        self._sum = self._products_for(1).sum(np.zeros((n_samples, n_samples), order="F"))  # upper triangle
        self._probes = GramProbes.empty(n_samples, columns=0)
        self._free: list[TileProducts] = []
        self._check = SumCheck(probe_directions(n_samples, seed), self._dtype, one_thread=threads > 1)

    # -- absorbing

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb features of every sample, shape (n, width), any real dtype.

        Parameters
        ----------
        block : ndarray of shape (n, width)
            A range of features; centred on its own mean.
        at : int
            Position of the first feature, which decides the rows of W that multiply it.
        weights : optional
            Samples are weighted at the end, by `centred`; not used here.

        Raises
        ------
        NotFiniteError
            If a sample holds NaN or infinity, or products overflow. The accumulator must then be discarded.
        """
        threads = 1 if self.precision == "double" else self.threads
        if self._integers is None and self.integer_units != "none" and block.dtype.kind != "f":
            # One sample more: the centre is multiplied with the samples.
            self._integers = integer_products(self.integer_units, self.n_samples + 1)
            self.integer_units = "none" if self._integers is None else self.integer_units
        new = partial(TileProducts, most_features=self.product_features, seed=self.seed, integers=self._integers)
        while len(self._free) < threads:
            self._free.append(new(self._products_for(threads), centres=self.about == "mean"))
        for products in self._free if not is_sparse(block) else []:
            products.make_ready(*block.shape)

        def multiply_tile(tile: FeatureTile) -> tuple[TileProducts, Multiplied]:
            products = self._free.pop()
            return products, products.multiply(tile, self._sum, self._check if self.exact else None)

        # Results are added by one thread and in the order of the tiles, whatever the number of threads.
        for products, result in map_in_threads(multiply_tile, self._tiles(block, at), threads):
            self._add(result, products)
            self._free.append(products)
        self.n_features += block.shape[1]

    def _products_for(self, threads: int) -> Products[Any, Any]:
        return products_on(self._device, self._dtype, one_thread=threads > 1)

    @property
    def _gram(self) -> Float64:
        """G about the approximate means, (n, n) in Fortran order, upper triangle, to be written to."""
        return self._sum.values  # type: ignore[no-any-return]

    @_gram.setter
    def _gram(self, values: Float64) -> None:
        self._sum.values = values

    @property
    def exact(self) -> bool:
        """True if every product so far was exact (whole numbers within range); see `sums_exactly` for their sums."""
        return self._pieces.exact

    @property
    def sums_exactly(self) -> bool:
        """True if products and their sums were exact: no entry is larger than the largest on the diagonal."""
        return self.exact and bool(self._gram.diagonal().max(initial=0.0) < EXACT_SUMS_BELOW)

    @property
    def agrees(self) -> bool | None:
        """True if exact sums match those along random directions; None if sums are not exact."""
        return self._check.agrees(self._gram) if self.sums_exactly else None

    def _tiles(self, block: Array, at: int) -> Iterator[FeatureTile]:
        """Yield tiles of features; the width of each is decided when its turn comes."""
        start, whole = 0, holds_whole_numbers(block)
        if is_sparse(block):  # cut by features it would be copied
            yield FeatureTile(block, at, checked=False, whole=whole)
            return
        while start < block.shape[1]:
            width = self.product_features if self._integers else self._pieces.length(whole)
            stop = min(start + width, block.shape[1])
            yield FeatureTile(block[:, start:stop], at + start, self._probes.tiles % CHECK_EVERY == 0, whole)
            self._probes.tiles += 1
            start = stop

    def _add(self, result: Multiplied, products: TileProducts) -> None:
        """Add a tile's products; multiply the tile in halves if that makes inexact products exact."""
        tile = result.tile
        if not np.isfinite(result.largest):
            raise not_finite(tile.values, 0, self.precision)
        if result.on_integer_units:
            self.n_on_integer_units += tile.width
        # Nothing of the inexact product has been added: float32 products are added below.
        elif is_sparse(tile.values):
            self._pieces.exact &= tile.whole
        elif self._pieces.must_halve(result.largest, tile.width, tile.whole):
            for half in tile.halves():
                self._add(products.multiply(half, self._sum, self._check if self.exact else None), products)
            return
        if not result.on_integer_units:
            products.add(self._sum)
        if result.check is not None:
            self._check.sums += result.check
        if len(self._centres):
            # The kernel of differences is about this point, which new samples need too.
            self._centres[tile.at : tile.at + tile.width] = result.centre
        self._probes.along += result.along
        if result.rounding is not None:
            self._probes.along_rounding += result.rounding
            self._probes.checked += min(tile.width, CHECK_FEATURES)

    # -- as a value

    def absorb(self, other: Self) -> None:
        """Add the features of another accumulator to this one; the other is not changed.

        Raises
        ------
        ValueError
            If the two differ in samples, precision, seed or the point that products are about.
        """
        for name in ("n_samples", "precision", "seed", "about"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"Grams of {name} {getattr(self, name)} and {getattr(other, name)} cannot be added")
        self._gram += other._gram
        self._check.absorb(other._check)
        self._centres += other._centres  # of other features, and 0 for these
        self._probes.add(other._probes)
        self.n_features += other.n_features
        self.n_on_integer_units += other.n_on_integer_units
        self._pieces.absorb(other._pieces)

    def release(self) -> None:
        """Free the working memory; `update` allocates it again."""
        self._free = []

    def products(self) -> tuple[Float64, Float64]:
        """Return the sums, (n, n) in Fortran order, upper triangle, and the point they are about, (p,), if kept.

        The accumulator must not be used afterwards.

        Raises
        ------
        StreampcaError
            If a product of finite samples came out infinite or NaN.
        """
        self.release()
        check_finite(self._gram)
        # The matrix is handed over and not copied: it can take most of the budget.
        gram, self._gram = self._gram, np.zeros((0, 0))
        return gram, self._centres

    def centred(self, weights: Float64 | None = None) -> CentredGram:
        """Return the Gram matrix of samples less their mean, times the roots of their weights; uses up the accumulator.

        Parameters
        ----------
        weights : ndarray of shape (n,), optional
            Weight of each sample, at least 0; the mean is weighted too.

        Raises
        ------
        StreampcaError
            If a product of finite samples came out infinite or NaN.

        Notes
        -----
        G' = R (I - 1 w^T) G (I - w 1^T) R in float64, for w adding up to 1: the result does not depend on the centre
        that was subtracted before multiplying, even if that was off by a standard deviation.
        """
        gram, _ = self.products()
        share = np.full(len(gram), 1 / len(gram)) if weights is None else weights / weights.sum()
        roots = None if weights is None else np.sqrt(weights)
        squares = float(np.sum(gram.diagonal() if weights is None else gram.diagonal() * weights))
        means, _ = centre_products(gram, weights)
        trace = float(gram.trace())
        # Errors of different features are independent, so their squares add up: scale from checked to all features.
        scale = (self.n_features / (self._probes.checked or 1)) ** 0.5
        products, rounding = (
            (sums - share @ sums) * (1.0 if roots is None else roots[:, None])
            for sums in (self._probes.along, self._probes.along_rounding * scale)
        )
        trace = trace if trace > NO_VARIANCE * squares else 0.0
        off = MEAN_ROUNDING * len(gram) * float(np.abs(means).max(initial=0.0))
        return CentredGram(gram, trace, products, rounding, mean_rounding=off)

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays; without `copy` the matrix itself, to be stored but not written to."""
        gram = self._gram.copy(order="F") if copy else self._gram.view()
        gram.flags.writeable = copy
        return {
            "n_features": np.array(self.n_features),
            "n_on_integer_units": np.array(self.n_on_integer_units),
            "product_features": np.array(self.product_features),
            "seed": np.array(self.seed),
            "double": np.array(self.precision == "double"),
            "exact": np.array(self.exact),
            "steepest": np.array(self._pieces.steepest),
            **({"check": self._check.sums.copy()} if self._check.known else {}),
            "gram": gram,
            "about_zero": np.array(self.about == "zero"),
            "centres": self._centres.copy() if copy else self._centres,
            **self._probes.state(),
        }

    @classmethod
    def from_state(
        cls,
        state: dict[str, Array],
        *,
        copy: bool = True,
        threads: int = 1,
        integer_units: str = "none",
        device: str = "",
    ) -> Self:
        """Return the accumulator whose `state` this is; without `copy` it takes over a matrix in Fortran order."""
        new = cls(
            len(state["gram"]),
            precision="double" if state["double"] else "single",
            product_features=int(state["product_features"]),
            threads=threads,
            seed=int(state["seed"]),
            about="zero" if state["about_zero"] else "mean",
            integer_units=integer_units,
            device=device,
        )
        new.n_on_integer_units = int(state["n_on_integer_units"])
        new._centres = np.array(state["centres"], dtype=np.float64)
        new._pieces.exact, new._pieces.steepest = bool(state["exact"]), float(state["steepest"])
        new._check.restore(state)
        new.n_features, new._probes = int(state["n_features"]), GramProbes.from_state(state)
        new._gram = owned(state["gram"], copy=copy, dtype=np.float64, order="F")
        return new


def centre_products(products: Float64, weights: Float64 | None = None) -> tuple[Float64, float]:
    """Centre inner products of samples, (n, n) in Fortran order, upper triangle, in place, and weight them.

    Returns
    -------
    means : ndarray of shape (n,)
        Inner products of each sample with the mean, before centring.
    level : float
        Inner product of the mean with itself.

    Notes
    -----
    Computes R (I - 1 w^T) G (I - w 1^T) R in float64, with w the weights' shares and R the weights' roots.
    """
    share = np.full(len(products), 1 / len(products)) if weights is None else weights / weights.sum()
    means: Float64 = blas.dsymv(1.0, products, share)
    level = float(share @ means)
    # G - m 1^T - 1 m^T + level, as one symmetric rank-two update of the upper triangle.
    blas.dsyr2(-1.0, means - level / 2, np.ones(len(products)), a=products, overwrite_a=1)
    if weights is not None:
        roots = np.sqrt(weights)
        products *= roots[:, None]
        products *= roots
    return means, level
