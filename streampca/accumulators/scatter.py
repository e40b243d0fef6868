"""Scatter matrix S = sum of (x - m)(x - m)^T, p x p, of a stream of samples, with its probes.

Rows are centred on a provisional mean before they are multiplied (never E[xx^T] - mm^T) and the centre is moved by a
rank-two update when the data leave it (Chan, Golub and LeVeque, 1983). In single precision the products of a piece
are float32 and are added up in float64. Data of whole numbers are centred on whole numbers, and pieces are so short
that their float32 products are exact, if the range of the data allows: then every sum is exact, whatever the order, and
all cuttings give the same bits. A block of whole numbers among others is still multiplied exactly, about the nearest
whole numbers, and its contribution is moved to the centre of the others in float64.
"""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from scipy.linalg import blas

from ..arrays import Array, Float64, is_sparse, rows_of
from ..execution.panels import owned
from ..planning.memory import CENTRE_ROWS, PROBES
from .centering import split
from .exact_products import EXACT_BELOW, EXACT_SUMS_BELOW, ExactProducts, SumCheck, holds_whole_numbers
from .finite import check_finite, not_finite
from .integer_products import IntegerProducts, as_whole, integer_products
from .moments import Moments
from .probes import Probes
from .products import Block
from .protocol import Accumulator
from .sparse_rows import sparse_centre

MEAN_ROUNDING = 2 * float(np.finfo(np.float64).eps)  # relative rounding of n d d^T: four roundings of half a unit
ROUNDINGS = 3.0  # of a weighted value: of its difference, of the root of its weight, and of their product
NEAR_ZERO = 16.0  # a mean is left in where its square is below the variance over this
FAR = 4.0  # squared distance from the centre, in variances of the block, above which the centre is moved


class Scatter(Moments, Accumulator):
    """Accumulate S over the samples, one block of rows after another.

    Parameters
    ----------
    n_features : int
        p.
    precision : {"single", "double"}
        Precision of products; sums are always float64.
    product_rows : int
        Largest number of rows multiplied at a time.
    seed : int
        Seed of the probe directions; accumulators to be merged must share it.
    one_thread : bool, default=False
        Use one BLAS thread, because other threads compute at the same time (`streampca.execution.threads`).
    integer_units : str, default="none"
        Kernel class that multiplies whole numbers, see `streampca.accumulators.integer_products`. If these units are
        missing or inexact, floating point is used instead, with the same bits where that is exact.
    device : str, default=""
        Device that multiplies in floating point (`streampca.accumulators.products`), by default the processor.
    probes : int, default=8
        Number of random directions, q, by multiples of 8. The sum of two accumulators has the fewer of theirs.

    Attributes
    ----------
    size : int
        Order of the matrix, p.
    n_samples : int
        Number of rows absorbed, except those of weight 0.
    weight : float
        Sum of the weights of these rows; n_samples if none were given.
    n_on_integer_units : int
        Number of rows that were multiplied on integer units.
    slack : float
        Bound on the norm of the error in S due to rounding of the given rows; 0 if not measured.
    rounded : float
        Sum of the squares of centred values that float64 may have rounded, when the centre was subtracted.

    Notes
    -----
    Cost: n p^2 flops (symmetric rank-k updates).
    """

    kind = "scatter"
    axis: Literal["samples", "features"] = "samples"

    def __init__(
        self,
        n_features: int,
        *,
        precision: str = "single",
        product_rows: int = 2048,
        seed: int = 0,
        one_thread: bool = False,
        integer_units: str = "none",
        device: str = "",
        probes: int = PROBES,
    ) -> None:
        measured = Probes(n_features, seed, precision, one_thread=one_thread, columns=probes)
        super().__init__(n_features, precision, product_rows, measured, one_thread=one_thread, device=device)
        self.size, self.seed, self.one_thread = n_features, seed, one_thread
        self._pieces = ExactProducts(precision, product_rows)
        self._check = SumCheck(measured.directions[:, :PROBES], self._dtype, one_thread=one_thread)
        self._sum = self._products.sum(np.zeros((n_features, n_features), order="F"))  # upper triangle
        self.integer_units = integer_units
        self._integers: IntegerProducts | None = None
        self.n_on_integer_units, self.slack, self.rounded = 0, 0.0, 0.0
        self._unprobed = False  # true while S holds exact sums whose products with probes were not computed

    def _absorb_block(self, block: Array, roots: Float64 | None, at: int) -> None:
        whole = holds_whole_numbers(block)
        if not whole:
            self._make_probes()  # sums are still about whole numbers
        self._settle(block, whole, at)
        whole = whole and roots is None  # weights turn whole numbers into fractions
        start = self._absorb_whole(block) if whole and not is_sparse(block) else 0
        while start < block.shape[0]:
            piece = slice(start, start + self._pieces.length(whole))
            if not self._absorb_piece(rows_of(block, piece), None if roots is None else roots[piece], whole):
                # A large value moves the centre, and then products of any piece can overflow: search the whole block.
                raise not_finite(block, at, self.precision)
            start = piece.stop

    def _absorb_whole(self, block: Array) -> int:
        """Absorb leading rows of whole numbers on integer units; return their number."""
        if self._integers is None and self.integer_units != "none":
            self._integers = integer_products(self.integer_units, self.n_features)
            self.integer_units = "none" if self._integers is None else self.integer_units
        done = 0
        while self._integers is not None and done < len(block):
            piece = block[done : done + self._integers.piece_rows(block.itemsize * self.n_features)]
            if (numbers := as_whole(piece)) is None:
                break
            # Whole numbers less a whole centre stay whole numbers, whose float32 product can be exact.
            centre = np.rint(self._centre)
            if not self.sums_exactly:
                self._make_probes()
            total, squares = self._integers.add(numbers, centre, self._scatter)
            # From here on probes of these rows are pending, as long as products stay exact.
            self._unprobed = self._unprobed or self.exact
            self._total += total
            self._squares += float(squares.sum())
            for start in range(0, len(piece), self.product_rows):
                rows = piece[start : start + self.product_rows]
                centred = self._centred(rows, split(centre, self._dtype), None)
                small = numbers.words.itemsize == 1 or float(squares.max()) < EXACT_BELOW
                self._measure(centred, rows, centre, None, small=small)
            if (shift := self._centre - centre).any():  # to the common centre
                self._shift(shift, float(len(piece)), total)
            done += len(piece)
        self.n_on_integer_units += done
        return done

    def _settle(self, block: Array, whole: bool, at: int) -> None:
        """Set the centre from the first block, and move it when a block lies far from it.

        The centre is the mean of all rows: estimated from 64 rows it is an eighth of a deviation off in every feature,
        and the correction for that multiplied the rounding of float32 data by 6 to 30 (400 features).
        """
        is_first_fraction = self.exact and not whole  # fractions need a centre off the grid of the whole numbers
        if self.n_samples and not is_first_fraction and (is_sparse(block) or not self._is_far(block)):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            mean = sparse_centre(block) if is_sparse(block) else block.mean(axis=0, dtype=np.float64)
        if not np.isfinite(mean).all():
            raise not_finite(block, at, self.precision)
        if not whole and self.precision == "double" and not is_sparse(block):
            # Nothing is rounded where zero is subtracted.
            with np.errstate(over="ignore", invalid="ignore"):
                spread = block[:: max(1, len(block) // CENTRE_ROWS)].astype(np.float64).var(axis=0)
                mean = np.where(NEAR_ZERO * mean**2 < spread, 0.0, mean)
        self._recentre(np.rint(mean) if whole else mean)

    def _is_far(self, block: Array) -> bool:
        """Return whether sampled rows of a block lie further from the centre than their own spread explains."""
        sample = block[:: max(1, len(block) // CENTRE_ROWS)].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = sample.mean(axis=0)
            away = float(np.sum((mean - self._centre) ** 2))
            return away > FAR * float(np.sum((sample - mean) ** 2)) / len(sample)

    def _absorb_piece(self, piece: Array, roots: Float64 | None, whole: bool) -> bool:
        """Absorb rows that are multiplied at once; return whether their products are finite."""
        self._make_probes()
        centre = np.rint(self._centre) if whole else self._centre
        centred = self._centred(piece, split(centre, self._dtype), roots)
        diagonal = self._products.symmetric(centred.T, self._sum)
        if not np.isfinite(diagonal).all():
            return False
        largest, length = float(diagonal.max()), piece.shape[0]
        if centred.dtype == np.float64:  # as sparse rows are, in any precision
            self._pieces.exact &= whole
            if roots is not None or piece.dtype.itemsize > centred.dtype.itemsize:
                self.rounded += ROUNDINGS**2 * float(diagonal.sum())
            elif not whole:
                self.rounded += _rounded_squares(diagonal, centre)
        elif self._pieces.must_halve(largest, length, whole):
            # The product so far is discarded: two halves are multiplied exactly instead.
            half = length // 2
            return self._absorb_piece(piece[:half], None, whole) and self._absorb_piece(piece[half:], None, whole)
        self._products.add(self._sum)
        # Exact or float64 sums can run over the whole piece; float32 sums must be short.
        long = centred.dtype == np.float64 or self._pieces.is_exact(largest, whole)
        if long:
            factors = np.ones((1, length), centred.dtype) if roots is None else roots[None].astype(centred.dtype)
            total = centred.combined(factors)[0]
        else:
            total = centred.sum(roots)
        self._total += total
        self._squares += float(diagonal.sum(dtype=np.float64)) if long else centred.sum_of_squares()
        self._measure(centred, piece, centre, roots)
        if (shift := self._centre - centre).any():  # to the common centre
            self._shift(shift, float(length), total)
        return True

    def _measure(
        self, centred: Block, stored: Array, centre: Float64, roots: Float64 | None, *, small: bool = True
    ) -> None:
        """Multiply rows with the probes, and with the directions that check exact sums."""
        if not self._unprobed:
            self.measured.update(centred, stored, centre, roots)
        if self.exact:
            self._check.sums += self._check.products(centred, small=small)

    def _make_probes(self) -> None:
        """Multiply exact sums with the probes, before sums that are not exact are added.

        `SumCheck` verifies exact sums bit by bit, so their probes need not be independent of them: these would take a
        quarter of the time of products on integer units. If the sums are wrong, the probes become NaN.
        """
        if self._unprobed:
            wrong = self.agrees is False
            self.measured.products = blas.dsymm(1.0, self._scatter, self.measured.directions * (np.nan if wrong else 1))
            self._unprobed = False

    @property
    def _scatter(self) -> Float64:
        """Scatter about the centre, (p, p) in Fortran order, upper triangle, to be written to."""
        return self._sum.values  # type: ignore[no-any-return]

    @_scatter.setter
    def _scatter(self, values: Float64) -> None:
        self._sum.values = values

    @property
    def exact(self) -> bool:
        """True if every product so far was exact (whole numbers within range); see `sums_exactly` for their sums."""
        return self._pieces.exact

    @property
    def sums_exactly(self) -> bool:
        """True if products and their sums were exact: no entry is larger than the largest on the diagonal."""
        return self.exact and bool(self._scatter.diagonal().max(initial=0.0) < EXACT_SUMS_BELOW)

    @property
    def agrees(self) -> bool | None:
        """True if exact sums match those along random directions; None if sums are not exact."""
        return self._check.agrees(self._scatter) if self.sums_exactly else None

    @property
    def mean_rounding(self) -> float:
        """Bound on the norm of the rounding that subtracting the mean adds to S."""
        return MEAN_ROUNDING * self.weight * float(self.offset @ self.offset)

    @property
    def upper(self) -> Float64:
        """Scatter about the centre, (p, p) in Fortran order, upper triangle; read-only and not a copy."""
        view = self._scatter.view()
        view.flags.writeable = False
        return view

    @property
    def total(self) -> Float64:
        """Sum of the samples less the centre that `upper` is about, (p,): exact if the sums are."""
        return self._total.copy()

    @property
    def directions(self) -> Float64:
        """W, shape (p, q); read-only."""
        return self.measured.directions

    @property
    def products_about_centre(self) -> Float64:
        """Y of `upper`, shape (p, q), about its centre and so without rounding of the mean."""
        self._make_probes()
        return self.measured.products.copy()

    @property
    def probe_products(self) -> Float64:
        """Y = S W about the mean, shape (p, q)."""
        self._make_probes()
        return super().probe_products

    def multiply(self, block: Float64) -> Float64:
        """Return the scatter about the mean times a block of columns, (p, l)."""
        product = blas.dsymm(1.0, self._scatter, block)
        along = blas.dgemv(1.0, block, self.offset, trans=1)
        return blas.dger(-self.weight, self.offset, along, a=product, overwrite_a=1)  # type: ignore[no-any-return]

    def matrix(self) -> Float64:
        """Return the scatter about the mean as a new matrix, (p, p) in Fortran order, upper triangle."""
        return blas.dsyr(-self.weight, self.offset, a=self._scatter.copy(order="F"), overwrite_a=1)  # type: ignore[no-any-return]

    def _shift(self, shift: Float64, weight: float, total: Float64) -> None:
        """Move the centre of rows of weight w and sum t by d: S' = S - t d^T - d t^T + w d d^T."""
        # Sums have outgrown exactness: their probes must be computed before the shift rounds them.
        if self.exact and not self.sums_exactly:
            self._make_probes()
            self._pieces.exact = False
        if not self.exact:
            self.slack += MEAN_ROUNDING * weight * float(shift @ shift)
        blas.dsyr2(-1.0, total - weight * shift / 2, shift, a=self._scatter, overwrite_a=1)
        self.measured.recentre(weight, total, shift)
        self._check.recentre(weight, total, shift)
        self._squares += float(shift @ (weight * shift - 2 * total))
        self._total -= weight * shift

    def _recentre(self, centre: Float64) -> None:
        """Move the centre."""
        coarse, fine = split(centre, self._dtype)
        with np.errstate(invalid="ignore"):  # a mean beyond float32 shows in the product's diagonal
            centre = coarse.astype(np.float64) + fine
        shift = centre - self._centre
        if self.n_samples and shift.any():
            self._shift(shift, self.weight, self._total)
        self._centre = centre

    def absorb(self, other: Self) -> None:
        """Add the samples of another accumulator to this one; the other is neither changed nor copied.

        Raises
        ------
        ValueError
            If the two differ in features, or in the seed and so in the directions of their probes.
        """
        for name in ("n_features", "seed"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"scatters of {name} {getattr(self, name)} and {getattr(other, name)} cannot be added")
        if other.n_samples == 0:
            return
        if self.n_samples == 0:
            self._recentre(other._centre)  # rounded to this precision
            if (columns := other.directions.shape[1]) != self.directions.shape[1]:
                how = {"one_thread": self.one_thread, "columns": columns}
                self._probes = self.measured = Probes(self.n_features, self.seed, self.precision, **how)
            self._unprobed = other._unprobed
        # Two sums that are both exact stay one exact sum, whose probes can wait.
        if not (self._unprobed and other._unprobed):
            self._make_probes()
            other._make_probes()
        self._scatter += other._scatter
        self._check.absorb(other._check)
        self._absorb_moments(other)
        shift = self._centre - other._centre
        if shift.any():
            self._shift(shift, other.weight, other._total)
        self._pieces.absorb(other._pieces)
        self.n_on_integer_units += other.n_on_integer_units
        self.slack += other.slack
        self.rounded += other.rounded

    def discount(self, factor: float) -> None:
        """Multiply the weights of all samples so far by a factor, from 0 to 1."""
        if factor < 1:
            self._make_probes()
            self._scatter *= factor
            self.slack *= factor
            self.rounded *= factor
            self._discount_moments(factor)
            self._pieces.exact = False

    def release(self) -> None:
        """Free the working memory; `update` allocates it again."""
        self._products.release()
        self._integers = None

    def settle(self) -> None:
        """Move the centre to the mean, rounded for whole numbers: equal sums then have equal bits.

        `mean` and `offset` account for a remaining offset of less than half a unit (or of rounding).

        Raises
        ------
        StreampcaError
            If a product of finite samples came out infinite or NaN.
        """
        if self.n_samples:
            check_finite(self._scatter)
            mean = self.mean
            self._recentre(np.rint(mean) if self.exact else mean)

    @property
    def feature_variance(self) -> Float64:
        """Variance of each feature, divided by the weight, shape (p,)."""
        return np.maximum(self._scatter.diagonal() / (self.weight or 1.0) - self.offset**2, 0.0)

    def in_precision(self, precision: str) -> Self:
        """Return a copy that multiplies further samples in another precision; sums are float64 in both."""
        double = np.array(precision == "double")
        new = type(self).from_state({**self.state(copy=False), "double": double}, one_thread=self.one_thread)
        new._recentre(new._centre)  # rounded to the new precision
        return new

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays; without `copy` the scatter itself, to be stored but not written to.

        Pending probes are not computed here: bits would depend on when a run was saved.
        """
        return {
            **self._moments_state(),
            "seed": np.array(self.seed),
            "exact": np.array(self.exact),
            "steepest": np.array(self._pieces.steepest),
            **({"check": self._check.sums.copy()} if self._check.known else {}),
            "n_on_integer_units": np.array(self.n_on_integer_units),
            **({"unprobed": np.array(True)} if self._unprobed else {}),
            "slack": np.array(self.slack),
            "rounded": np.array(self.rounded),
            "scatter": self._scatter.copy(order="F") if copy else self.upper,
        }

    @classmethod
    def from_state(
        cls,
        state: dict[str, Array],
        *,
        copy: bool = True,
        one_thread: bool = False,
        integer_units: str = "none",
        device: str = "",
    ) -> Self:
        """Return the accumulator whose `state` this is; without `copy` it takes over a scatter in Fortran order."""
        new = cls(
            len(state["centre"]),
            precision="double" if state["double"] else "single",
            product_rows=int(state["product_rows"]),
            seed=int(state["seed"]),
            one_thread=one_thread,
            integer_units=integer_units,
            device=device,
            probes=state["probe_products"].shape[1],
        )
        new._restore_moments(state)
        new._pieces.exact, new._pieces.steepest = bool(state["exact"]), float(state["steepest"])
        new._check.restore(state)
        new.n_on_integer_units = int(state["n_on_integer_units"])
        new._unprobed, new.slack = "unprobed" in state, float(state["slack"])
        new.rounded = float(state["rounded"])
        new._centre = np.array(state["centre"], dtype=np.float64)
        new._scatter = owned(state["scatter"], copy=copy, dtype=np.float64, order="F")
        return new


def _rounded_squares(squares: Array, centre: Float64) -> float:
    """Add up the squares of centred values, (p,), but of features from which subtracting the centre is exact."""
    # No value is farther from the centre than the root of the sum of squares, and differences of numbers between half
    # the centre and twice the centre are exact (Sterbenz, Floating-Point Computation, 1974).
    return float(squares[(centre != 0) & (2 * np.sqrt(squares) > np.abs(centre))].sum())
