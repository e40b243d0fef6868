"""The scatter matrix S = sum of (x - m)(x - m)^T, p x p, of a stream of samples, with its probes.

Rows are centred on a provisional mean before they are multiplied (never E[xx^T] - mm^T) and the centre is moved by a
rank-two update when the data leave it (Chan, Golub and LeVeque, 1983). In single precision the products of a piece
are float32 and are added up in float64. Data of whole numbers are centred on whole numbers, and a piece is kept so
short that its float32 product is exact, where the range of the data allows: then every sum is exact, whatever the
order, and all cuttings give the same bits.
"""

from __future__ import annotations

from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from ..planning.sizes import CENTRE_ROWS
from .blas import symmetric_product, times
from .centering import centre_samples, split, sum_of_squares, weighted_sum
from .finite import NotFiniteError, check_finite, not_finite
from .moments import EXACT_SUMS_BELOW, Sums
from .probes import Probes

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

EXACT_BELOW = 2.0**24  # float32 holds every whole number up to here
FIRST_ROWS = 256  # 256 rows of uint8 differences stay exact whatever they are: 256 * 255^2 < 2^24
LEAST_EXACT_ROWS = 64  # shorter pieces cost more (adding p x p) than exactness is worth
FAR = 4.0  # squared distance from the centre, in variances of the block, beyond which the centre is moved


class Scatter(Sums):
    """Accumulates S over the samples, one block of rows after another.

    Parameters
    ----------
    n_features : int
        p.
    precision : {"single", "double"}
        Of the products; sums are float64 always.
    product_rows : int
        Most rows multiplied at a time.
    seed : int
        Of the probe directions; accumulators to be merged must share it.
    one_thread : bool, default=False
        Whether others are at work at the same time, each in a thread of its own (`streampca.execution.threads`).

    Attributes
    ----------
    n_samples : int
        Rows absorbed, but for those of weight 0.
    weight : float
        Sum of their weights; n_samples where none were given.
    exact : bool
        Whether every product so far was exact (whole numbers within range); see `sums_exactly` for their sums.

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
    ) -> None:
        super().__init__(n_features, Probes(n_features, seed, precision, one_thread=one_thread))
        self.precision, self.product_rows, self.seed = precision, product_rows, seed
        self.one_thread = one_thread
        self.exact = True
        self._dtype = np.dtype(np.float64 if precision == "double" else np.float32)
        self._steepest = 0.0  # largest second moment of a feature about the centre, per row, in any product so far
        self._product: Array | None = None
        self._work: Array | None = None

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb rows, shape (rows, p), any real dtype.

        Parameters
        ----------
        block : ndarray of shape (rows, p)
            Samples.
        at : int
            Position of the first, for error messages.
        weights : ndarray of shape (rows,), optional
            How often each counts, at least 0: weight 2 is the row given twice, weight 0 a row not given.

        Raises
        ------
        NotFiniteError
            If a row holds NaN or infinity, or the products overflow float32. The accumulator is then of no more use.
        """
        if weights is not None and not weights.all():
            kept = np.flatnonzero(weights)
            try:
                self.update(block[kept], weights=weights[kept])
            except NotFiniteError as error:
                raise NotFiniteError(at + int(kept[error.sample]), error.problem) from None
            return
        if len(block) == 0:
            return
        whole = block.dtype.kind in "biu"
        roots = None if weights is None or (weights == 1).all() else np.sqrt(weights)
        self.exact = self.exact and roots is None
        self._settle(block, whole, at)
        rows = self._piece_rows(whole)
        start = 0
        while start < len(block):
            piece = slice(start, start + rows)
            self._absorb_piece(block[piece], None if roots is None else roots[piece], whole, at + start)
            start += rows
            rows = self._piece_rows(whole)
        self.n_samples += len(block)
        self.weight += len(block) if weights is None else float(np.sum(weights))

    def _settle(self, block: Array, whole: bool, at: int) -> None:
        """Place the centre by the first block, and move it when a block lies far from it.

        By the mean of all its rows: a centre known from 64 rows lies an eighth of a deviation off in every feature,
        and the correction for that multiplied the rounding of float32 data by 6 to 30 (400 features).
        """
        if self.n_samples and not self._is_far(block):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            mean = block.mean(axis=0, dtype=np.float64)
        if not np.isfinite(mean).all():
            raise not_finite(block, at, self.precision)
        self._recentre(np.rint(mean) if whole else mean)

    def _is_far(self, block: Array) -> bool:
        """Whether a sample of a block's rows lies further from the centre than its own spread accounts for."""
        sample = block[:: max(1, len(block) // CENTRE_ROWS)].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = sample.mean(axis=0)
            away = float(np.sum((mean - self._centre) ** 2))
            return away > FAR * float(np.sum((sample - mean) ** 2)) / len(sample)

    def _piece_rows(self, whole: bool) -> int:
        """Rows to multiply next: as many as stay exact, or the most allowed where exactness is out of reach."""
        if self.precision == "double" or not (whole and self.exact):
            return self.product_rows
        if self._steepest == 0.0:
            return min(FIRST_ROWS, self.product_rows)
        rows = int(0.8 * EXACT_BELOW / self._steepest) // LEAST_EXACT_ROWS * LEAST_EXACT_ROWS
        if rows < LEAST_EXACT_ROWS:
            self.exact = False
            return self.product_rows
        return min(rows, self.product_rows)

    def _absorb_piece(self, piece: Array, roots: Float64 | None, whole: bool, at: int) -> None:
        """Absorb rows that are multiplied at once, given the square roots of their weights."""
        centred = self._centred(piece, roots)
        diagonal = self._multiply(centred)
        if not np.isfinite(diagonal).all():
            raise not_finite(piece, at, self.precision)
        if self.precision == "single":
            if whole and self.exact:
                self._steepest = max(self._steepest, float(diagonal.max()) / len(piece))
                if diagonal.max() >= EXACT_BELOW and self._piece_rows(whole) < len(piece):
                    half = len(piece) // 2
                    self._absorb_piece(piece[:half], None, whole, at)
                    self._absorb_piece(piece[half:], None, whole, at + half)
                    return
                self.exact = self.exact and bool(diagonal.max() < EXACT_BELOW)
            self._scatter += cast("Array", self._product)
        self.exact = self.exact and whole
        self._total += self._sums(centred, roots)
        self._squares += float(diagonal.sum(dtype=np.float64)) if self._sums_long else sum_of_squares(centred)
        self._probes.update(centred, piece, self._centre, roots)

    def _centred(self, piece: Array, roots: Float64 | None) -> Array:
        if self._work is None or len(self._work) < len(piece):
            self._work = np.empty((min(self.product_rows, max(len(piece), FIRST_ROWS)), self.n_features), self._dtype)
        centred = self._work[: len(piece)]
        centre_samples(piece, split(self._centre, self._dtype), centred, roots)
        return centred

    def _sums(self, centred: Array, roots: Float64 | None) -> Array:
        """Weighted sum over the rows of a piece, which have been multiplied by the roots of their weights."""
        if not self._sums_long:
            return weighted_sum(centred, roots)
        factors = np.ones((1, len(centred)), self._dtype) if roots is None else roots[None].astype(self._dtype)
        return times(factors, centred, one_thread=self.one_thread)[0]  # type: ignore[no-any-return]

    @property
    def sums_exactly(self) -> bool:
        """Whether products were exact, and their sums too: none is larger than the largest on the diagonal."""
        return self.exact and bool(self._scatter.diagonal().max(initial=0.0) < EXACT_SUMS_BELOW)

    @property
    def _sums_long(self) -> bool:
        """Whether sums over a whole piece are as good as short ones."""
        return self.exact or self.precision == "double"

    def _multiply(self, centred: Array) -> Array:
        """Form the product of a piece with itself; return its diagonal. In double it is added to S at once."""
        rows, one_thread = centred.T, self.one_thread
        self._product, diagonal = symmetric_product(rows, self._scatter, self._product, one_thread=one_thread)
        return diagonal

    def _recentre(self, centre: Float64) -> None:
        """Move the centre."""
        coarse, fine = split(centre, self._dtype)
        with np.errstate(invalid="ignore"):  # a mean beyond float32: the product's diagonal will say so
            centre = coarse.astype(np.float64) + fine
        shift = centre - self._centre
        if self.n_samples and shift.any():
            self.exact = self.sums_exactly
            self._shift(shift, self.weight, self._total)
        self._centre = centre

    def absorb(self, other: Self) -> None:
        """Add the samples of another accumulator to this one; the other is left as it was, and not copied.

        Raises
        ------
        ValueError
            If the two differ in features, precision or seed: their probes then have other directions.
        """
        for name in ("n_features", "precision", "seed"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"scatters of {name} {getattr(self, name)} and {getattr(other, name)} cannot be added")
        if other.n_samples == 0:
            return
        if self.n_samples == 0:
            self._centre = other._centre.copy()
        self._scatter += other._scatter
        self._total += other._total
        self._squares += other._squares
        self._probes.absorb(other._probes)
        shift = self._centre - other._centre
        if shift.any():
            self.exact = self.sums_exactly
            self._shift(shift, other.weight, other._total)
        self.n_samples += other.n_samples
        self.weight += other.weight
        self.exact = self.exact and other.exact
        self._steepest = max(self._steepest, other._steepest)

    def merge(self, other: Self) -> Self:
        """Return the accumulator of both sets of samples."""
        both = self._copy()
        both.absorb(other)
        return both

    def _copy(self) -> Self:
        return type(self).from_state(self.state())

    def release(self) -> None:
        """Give back the working memory; it is taken again when more samples come."""
        self._product = self._work = None

    def settle(self) -> None:
        """Move the centre to the mean, rounded for whole numbers: equal sums then have equal bits.

        A remaining offset of under half a unit (or of rounding) is left to `mean` and `offset`.

        Raises
        ------
        StreampcaError
            If a product of finite samples came out infinite or NaN.
        """
        if self.n_samples:
            check_finite(self._scatter)
            mean = self.mean
            self._recentre(np.rint(mean) if self.exact else mean)

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Everything as plain arrays; without `copy` the scatter itself, to be written down and not to."""
        return {
            "n_samples": np.array(self.n_samples),
            "weight": np.array(self.weight),
            "product_rows": np.array(self.product_rows),
            "seed": np.array(self.seed),
            "double": np.array(self.precision == "double"),
            "exact": np.array(self.exact),
            "steepest": np.array(self._steepest),
            "squares": np.array(self._squares),
            "centre": self._centre.copy(),
            "total": self._total.copy(),
            "scatter": self._scatter.copy(order="F") if copy else self.upper,
            **self._probes.state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Array], *, copy: bool = True, one_thread: bool = False) -> Self:
        """Exact inverse of `state`; without `copy` a scatter in Fortran order is taken over, not to be used again."""
        precision = "double" if state["double"] else "single"
        product_rows, seed = int(state["product_rows"]), int(state["seed"])
        how: dict[str, Any] = {
            "precision": precision,
            "product_rows": product_rows,
            "seed": seed,
            "one_thread": one_thread,
        }
        new = cls(len(state["centre"]), **how)
        new.n_samples, new.exact = int(state["n_samples"]), bool(state["exact"])
        new.weight = float(state.get("weight", new.n_samples))  # states without weights have none
        new._steepest, new._squares = float(state["steepest"]), float(state["squares"])
        new._centre = np.array(state["centre"], dtype=np.float64)
        new._total = np.array(state["total"], dtype=np.float64)
        new._scatter = np.array(state["scatter"], dtype=np.float64, order="F", copy=copy or None)
        new._probes.restore(state)
        return new
