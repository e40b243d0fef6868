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
from scipy.linalg import blas

from .probes import COUNT, Probes
from .protocol import NotFiniteError

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

EXACT_BELOW = 2.0**24  # float32 holds every whole number up to here
FIRST_ROWS = 256  # 256 rows of uint8 differences stay exact whatever they are: 256 * 255^2 < 2^24
LEAST_EXACT_ROWS = 64  # shorter pieces cost more (adding p x p) than exactness is worth
TILE_ROWS = 64  # rows converted and then centred while they are in the cache: a third faster than all at once
SUM_ROWS = 32  # rows summed in float32 before the sum is added in float64; costs 2 % of the product at 784 features
SQUARES = 32  # squares added in float32 before the sum is added in float64; 4 % of the product at 784 features
CENTRE_ROWS = 64  # rows of a block that tell whether it lies far from the centre
MOST_DOUBLE = 1e70  # fourth powers of values up to here, of which a solver takes norms, fit float64
FAR = 4.0  # squared distance from the centre, in variances of the block, beyond which the centre is moved


class Scatter:
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

    Attributes
    ----------
    n_samples : int
        Rows absorbed.
    exact : bool
        Whether every product so far was exact (whole numbers within range).

    Notes
    -----
    Cost: n p^2 flops (symmetric rank-k updates). Memory: see `bill`.
    """

    kind = "scatter"
    axis: Literal["samples", "features"] = "samples"

    def __init__(self, n_features: int, *, precision: str = "single", product_rows: int = 2048, seed: int = 0) -> None:
        self.n_features, self.precision, self.product_rows, self.seed = n_features, precision, product_rows, seed
        self.n_samples = 0
        self.exact = True
        self._dtype = np.dtype(np.float64 if precision == "double" else np.float32)
        self._centre: Float64 = np.zeros(n_features)
        self._total: Float64 = np.zeros(n_features)
        self._squares = 0.0
        self._scatter: Float64 = np.zeros((n_features, n_features), order="F")  # upper triangle
        self._probes = Probes(n_features, seed, precision)
        self._steepest = 0.0  # largest second moment of a feature about the centre, per row, in any product so far
        self._product: Array | None = None
        self._work: Array | None = None

    def update(self, block: Array, *, at: int = 0) -> None:
        """Absorb rows, shape (rows, p), any real dtype; `at` is the position of the first, for error messages.

        Raises
        ------
        NotFiniteError
            If a row holds NaN or infinity, or the products overflow float32. The accumulator is then of no more use.
        """
        if len(block) == 0:
            return
        whole = block.dtype.kind in "biu"
        self._settle(block, whole, at)
        rows = self._piece_rows(whole)
        start = 0
        while start < len(block):
            piece = block[start : start + rows]
            self._absorb_piece(piece, whole, at + start)
            start += len(piece)
            rows = self._piece_rows(whole)
        self.n_samples += len(block)

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
            raise _not_finite(block, at, self.precision)
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

    def _absorb_piece(self, piece: Array, whole: bool, at: int) -> None:
        centred = self._centred(piece)
        diagonal = self._multiply(centred)
        if not np.isfinite(diagonal).all():
            raise _not_finite(piece, at, self.precision)
        if self.precision == "single":
            if whole and self.exact:
                self._steepest = max(self._steepest, float(diagonal.max()) / len(piece))
                if diagonal.max() >= EXACT_BELOW and self._piece_rows(whole) < len(piece):
                    half = len(piece) // 2
                    self._absorb_piece(piece[:half], whole, at)
                    self._absorb_piece(piece[half:], whole, at + half)
                    return
                self.exact = self.exact and bool(diagonal.max() < EXACT_BELOW)
            self._scatter += cast("Array", self._product)
        self.exact = self.exact and whole
        self._total += self._sums(centred)
        self._squares += float(diagonal.sum(dtype=np.float64)) if self._sums_exactly else _sum_of_squares(centred)
        self._probes.update(centred, piece, self._centre)

    def _centred(self, piece: Array) -> Array:
        if self._work is None or len(self._work) < len(piece):
            self._work = np.empty((min(self.product_rows, max(len(piece), FIRST_ROWS)), self.n_features), self._dtype)
        centred = self._work[: len(piece)]
        coarse, fine = _split(self._centre, self._dtype)
        shifts = [part for part in (coarse, fine) if part.any()]
        with np.errstate(over="ignore", invalid="ignore"):  # the product's diagonal will say so
            for start in range(0, len(piece), TILE_ROWS):
                tile = centred[start : start + TILE_ROWS]
                np.copyto(tile, piece[start : start + TILE_ROWS], casting="unsafe")
                for part in shifts:
                    tile -= part
        return centred

    def _sums(self, centred: Array) -> Array:
        """Sum over the rows of a piece: float32 for a few rows at a time, unless every partial sum is exact.

        What the sum lacks is multiplied by the distance of centre and mean, and is alike in all features: with sums
        of 2048 rows it was the largest error of all, 1e-5 of the scatter's norm for data that drift by a deviation.
        """
        if self._sums_exactly:
            gemv = blas.dgemv if self.precision == "double" else blas.sgemv
            return gemv(1.0, centred.T, np.ones(len(centred), self._dtype))  # type: ignore[no-any-return]
        total = np.zeros(self.n_features)
        for start in range(0, len(centred), SUM_ROWS):
            total += centred[start : start + SUM_ROWS].sum(axis=0)
        return total

    @property
    def _sums_exactly(self) -> bool:
        """Whether sums over a whole piece are as good as short ones."""
        return self.exact or self.precision == "double"

    def _multiply(self, centred: Array) -> Array:
        """Form the product of a piece with itself; return its diagonal. In double it is added to S at once."""
        if self.precision == "double":
            before = self._scatter.diagonal().copy()
            blas.dsyrk(1.0, centred.T, beta=1.0, c=self._scatter, overwrite_c=1)
            return self._scatter.diagonal() - before
        if self._product is None:
            self._product = np.zeros((self.n_features, self.n_features), np.float32, order="F")
        blas.ssyrk(1.0, centred.T, beta=0.0, c=self._product, overwrite_c=1)
        return self._product.diagonal()

    def _recentre(self, centre: Float64) -> None:
        """Move the centre: S' = S - t d^T - d t^T + n d d^T for the sum t of the centred rows and the shift d."""
        coarse, fine = _split(centre, self._dtype)
        with np.errstate(invalid="ignore"):  # a mean beyond float32: the product's diagonal will say so
            centre = coarse.astype(np.float64) + fine
        shift = centre - self._centre
        if self.n_samples and shift.any():
            blas.dsyr2(-1.0, self._total - self.n_samples * shift / 2, shift, a=self._scatter, overwrite_a=1)
            self._probes.recentre(self.n_samples, self._total, shift)
            self._squares += float(shift @ (self.n_samples * shift - 2 * self._total))
            self._total -= self.n_samples * shift
        self._centre = centre

    def absorb(self, other: Self) -> None:
        """Add the samples of another accumulator to this one; the other is left as it was.

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
        if not np.array_equal(other._centre, self._centre):
            other = other._copy()
            other._recentre(self._centre)
        self._scatter += other._scatter
        self._total += other._total
        self._squares += other._squares
        self._probes.absorb(other._probes)
        self.n_samples += other.n_samples
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
        """Move the centre to the mean, rounded for whole numbers, so that equal sums have equal bits.

        A remaining offset of under half a unit (or of rounding) is left to `mean` and `offset`.
        """
        if self.n_samples:
            mean = self.mean
            self._recentre(np.rint(mean) if self.exact else mean)

    @property
    def mean(self) -> Float64:
        """Mean of the samples, shape (p,)."""
        return self._centre + self._total / max(1, self.n_samples)

    @property
    def offset(self) -> Float64:
        """Mean less centre, d, shape (p,): the scatter about the mean is ``upper`` - n d d^T."""
        return self._total / max(1, self.n_samples)

    @property
    def upper(self) -> Float64:
        """Scatter about the centre, (p, p) in Fortran order, upper triangle; read-only and not a copy."""
        view = self._scatter.view()
        view.flags.writeable = False
        return view

    @property
    def trace(self) -> float:
        """Sum of squared distances from the mean: n - 1 times the total variance.

        From sums of its own: in the float32 product of a piece, small squares are lost beside the large ones added
        before them, always downwards (1e-6 of the trace for a recording of rare bright events).
        """
        return max(0.0, self._squares - self.n_samples * float(self.offset @ self.offset))

    @property
    def probe_directions(self) -> Float64:
        """W, shape (p, 8)."""
        return self._probes.directions.copy()

    @property
    def probe_products(self) -> Float64:
        """Y = S W about the mean, shape (p, 8)."""
        offset = self.offset
        return self._probes.products - self.n_samples * np.outer(offset, offset @ self._probes.directions)

    @property
    def probe_rounding(self) -> Float64:
        """Rounding error of `probe_products` as measured on a sample of rows, scaled to all, shape (p, 8)."""
        return self._probes.rounding * (self.n_samples / max(1, self._probes.checked))

    def matrix(self) -> Float64:
        """Return the scatter about the mean as a new matrix, (p, p) in Fortran order, upper triangle."""
        return blas.dsyr(-float(self.n_samples), self.offset, a=self._scatter.copy(order="F"), overwrite_a=1)  # type: ignore[no-any-return]

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Everything as plain arrays; without `copy` the scatter itself, to be written down and not to."""
        return {
            "n_samples": np.array(self.n_samples),
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
    def from_state(cls, state: dict[str, Array]) -> Self:
        """Exact inverse of `state`."""
        precision = "double" if state["double"] else "single"
        product_rows, seed = int(state["product_rows"]), int(state["seed"])
        new = cls(len(state["centre"]), precision=precision, product_rows=product_rows, seed=seed)
        new.n_samples, new.exact = int(state["n_samples"]), bool(state["exact"])
        new._steepest, new._squares = float(state["steepest"]), float(state["squares"])
        new._centre = np.array(state["centre"], dtype=np.float64)
        new._total = np.array(state["total"], dtype=np.float64)
        new._scatter = np.array(state["scatter"], dtype=np.float64, order="F")
        new._probes.restore(state)
        return new

    @staticmethod
    def bill(n_features: int, precision: str, product_rows: int) -> dict[str, int]:
        """Bytes by name while samples are absorbed."""
        p, item = n_features, 8 if precision == "double" else 4
        shape = f"{p} x {p}"
        items = {f"scatter matrix, {shape} float64": 8 * p * p}
        if precision == "single":
            items[f"product of a piece, {shape} float32"] = 4 * p * p
        items[f"centred piece, {product_rows} samples"] = product_rows * p * item
        items["probes and means"] = (4 * 8 + item) * COUNT * p + CENTRE_ROWS * p * 8 * 3
        return items


def _split(centre: Float64, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Write a centre as the sum of two vectors of `dtype`, the second the rounding of the first.

    Subtracting the coarse part from float32 data near it is exact; but data with a large offset then lie on a coarse
    grid, where the squares round to one side: 1.4e-6 of the scatter's norm for a mean of 30000 and a deviation of 1.
    Subtracting the fine part as well takes them off the grid: 3e-8.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        coarse = centre.astype(dtype)
        return coarse, (centre - coarse).astype(dtype)


def _sum_of_squares(centred: Array) -> float:
    """Sum of the squares of all values, a few at a time in float32, those sums in float64.

    Right to 1e-10 of itself, 2e-8 for rare bright events; in float64 throughout it would take 4 times as long.
    """
    values = centred.reshape(-1)
    few = values[: len(values) // SQUARES * SQUARES].reshape(-1, SQUARES)
    rest = values[few.size :].astype(np.float64)
    return float(np.einsum("ij,ij->i", few, few).sum(dtype=np.float64) + rest @ rest)


def _not_finite(block: Array, at: int, precision: str) -> NotFiniteError:
    """Name the first row to blame and what is wrong with it."""
    finite = np.isfinite(block) if block.dtype.kind == "f" else np.ones(block.shape, bool)
    bad_rows = np.flatnonzero(~finite.all(axis=1))
    if len(bad_rows):
        row = int(bad_rows[0])
        missing = int(np.count_nonzero(~finite[row]))
        return NotFiniteError(at + row, f"holds NaN or infinity in {missing} of its {block.shape[1]} features")
    row = int(np.argmax(np.abs(block.astype(np.float64)).max(axis=1)))
    value = float(np.abs(block[row]).max())
    remedy = "use precision='double'" if precision == "single" and value < MOST_DOUBLE else "divide all samples by that"
    return NotFiniteError(at + row, f"holds values up to {value:.3g}, whose squares overflow; {remedy}")
