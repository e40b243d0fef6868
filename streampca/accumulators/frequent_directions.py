"""Frequent directions: a few rows B whose B^T B approximates a scatter matrix S that does not fit in memory.

Rows are appended until the buffer is full; then B is rotated onto its singular vectors, and the first discarded squared
singular value is subtracted from each (Ghashami, Liberty, Phillips and Woodruff, "Frequent directions: simple and
deterministic matrix sketching", SIAM J. Comput. 45, 2016). With Delta the sum of the subtracted values,

    0 <= x^T (S - B^T B) x <= Delta for every unit vector x,

and Delta is at most the trace of S divided by the number of rows that are kept. Both hold for merged sketches, too.
Rows that replace samples which are no longer available, such as the components of a model, have an error of their own:

    -slack <= x^T (S - B^T B) x <= Delta + slack.

Samples are centred on the mean of their block. A further row for the distance of this mean from the mean so far (Chan,
Golub and LeVeque, 1983) makes the sum exact, so centring loses nothing and B^T B stays positive semi-definite.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from ..arrays import Array, Float64
from ..execution.threads import one_blas_thread
from .blas import times, update_among
from .finite import not_finite
from .plain_state import restore_sums, sums_of
from .protocol import Accumulator
from .weighted_pieces import weighted_pieces

SUMS = ("n_samples", "weight", "rows", "shrunk", "slack", "mean")
EPS = float(np.finfo(np.float64).eps)
THREADED_ROWS = 128  # order of matrices that LAPACK shares among threads; forbidding it costs a few ms


class LeadingPairs(NamedTuple):
    """Leading eigenpairs of S, which stand for samples that are no longer available.

    Attributes
    ----------
    components : ndarray of shape (k, p)
        Orthonormal eigenvectors.
    values : ndarray of shape (k,)
        Their eigenvalues.
    trace : float
        Trace of S. Its excess over the sum of the eigenvalues is spread evenly over the features.
    outside : float
        Largest eigenvalue outside the components.
    slack : float
        Bound on the error of the pairs.
    """

    components: Float64
    values: Float64
    trace: float
    outside: float
    slack: float


class FrequentDirections(Accumulator):
    """Accumulate a sketch of S over the samples, one block of rows after another.

    Parameters
    ----------
    n_features : int
        p.
    rows : int
        Directions kept by a shrink, l. The buffer holds twice as many rows.

    Attributes
    ----------
    n_samples : int
        Number of samples absorbed, except those of weight 0.
    weight : float
        Sum of their weights; n_samples where none were given.
    mean : ndarray of shape (p,)
        Mean of the samples.
    shrunk : float
        Delta, in the units of S.
    slack : float
        Error of rows that were not samples, and of differences of rounded means, in the units of S.

    Notes
    -----
    Cost: about 8 n l p flops, all in float64, whatever the samples' dtype. Memory: 24 l p bytes while it shrinks, 16 l
    p otherwise. Unlike other statistics, the sketch depends on how the data are cut, within Delta; number, mean,
    variance of each feature and trace do not.
    """

    kind = "frequent_directions"
    axis: Literal["samples", "features"] = "samples"
    precision = "double"

    def __init__(self, n_features: int, *, rows: int) -> None:
        self.n_features, self.rows = n_features, rows
        self.n_samples, self.weight, self.shrunk, self.slack = 0, 0.0, 0.0, 0.0
        self.mean: Float64 = np.zeros(n_features)
        self._squares: Float64 = np.zeros(n_features)
        self._held: Float64 = np.empty((2 * rows, n_features))
        self._count = 0

    @classmethod
    def of_components(
        cls,
        pairs: LeadingPairs,
        mean: Float64,
        *,
        n_samples: int,
        weight: float,
        rows: int,
    ) -> Self:
        """Return the sketch of samples, given only leading eigenpairs of S.

        Parameters
        ----------
        pairs : LeadingPairs
            Leading eigenpairs, at most 2 `rows`.
        mean : ndarray of shape (p,)
            Mean of the samples.
        n_samples, weight : int, float
            Number of samples, and sum of their weights.
        rows : int
            Rows of the sketch, see the class.
        """
        components, values, trace, outside, slack = pairs
        new = cls(len(mean), rows=rows)
        new._append(components * np.sqrt(values)[:, None])
        new.n_samples, new.weight, new.mean = n_samples, weight, mean.copy()
        new.shrunk, new.slack = outside, slack
        explained = np.einsum("ij,ij,i->j", components, components, values)
        # The variance outside the components is known in total only: spread it evenly over the features.
        new._squares = explained + max(0.0, trace - float(explained.sum())) / len(mean)
        return new

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb samples, shape (m, p), any real dtype.

        Parameters
        ----------
        block : ndarray of shape (m, p)
            Samples.
        at : int
            Position of the first, for error messages.
        weights : ndarray of shape (m,), optional
            Weight of each sample, at least 0; samples of weight 0 can hold anything.

        Raises
        ------
        NotFiniteError
            If a sample holds NaN or infinity, or squares overflow. The accumulator must then be discarded.
        """
        # Weights of 0 and 1 only select rows, which saves the multiplications by weights.
        counts = None if weights is None or (weights[weights != 0] == 1).all() else weights
        for places, piece in weighted_pieces(block, weights, self.rows):
            self._absorb_piece(piece, None if counts is None else counts[places], at + places)

    def _absorb_piece(self, piece: Array, weights: Float64 | None, places: npt.NDArray[np.intp]) -> None:
        weight = float(len(piece)) if weights is None else float(np.sum(weights))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = piece.astype(np.float64)
            mean = rows.mean(axis=0) if weights is None else (weights / weight) @ rows
            rows -= mean
            if weights is not None:
                rows *= np.sqrt(weights)[:, None]
            squares = np.einsum("ij,ij->j", rows, rows)
            between = self._between(weight, mean)
            squares += between**2
        if not np.isfinite(squares.sum()):
            raise not_finite(piece, places, self.precision)
        # A single row equals its mean, so only `between` is left of it.
        if len(rows) > 1:
            self._append(rows)
        self._count_in(weight, len(piece), mean, squares, between)

    def _between(self, weight: float, mean: Float64) -> Float64:
        """Return the row that accounts for the distance of the mean so far and the mean of further samples."""
        share = self.weight * weight / (self.weight + weight)
        return np.sqrt(share) * (mean - self.mean)  # type: ignore[no-any-return]

    def _count_in(self, weight: float, n_samples: int, mean: Float64, squares: Float64, between: Float64) -> None:
        """Update mean, counts and squares by further samples; `squares` include those of `between`."""
        if self.weight:
            self._append(between[None])
            # The row is the difference of two means, each rounded once as a sum and once as it is stored.
            share = self.weight * weight / (self.weight + weight)
            off = 2 * EPS * share**0.5 * float(np.linalg.norm(self.mean) + np.linalg.norm(mean))
            self.slack += off * (2 * float(np.linalg.norm(between)) + off)
        self.weight += weight
        self.n_samples += n_samples
        self.mean += (mean - self.mean) * (weight / self.weight)
        self._squares += squares

    def _append(self, rows: Float64) -> None:
        """Add rows to the sketch, which shrinks whenever it is full."""
        while len(rows):
            if self._count == len(self._held):
                self._shrink()
            free = len(self._held) - self._count
            self._held[self._count : self._count + len(rows[:free])] = rows[:free]
            self._count += len(rows[:free])
            rows = rows[free:]

    def _shrink(self) -> None:
        """Keep at most `rows` leading directions, each reduced by the first that is not kept."""
        gram = self.gram()
        # One thread: more gain little on so small a matrix, and take 8 times as long where cores are busy.
        with one_blas_thread() if len(gram) >= THREADED_ROWS else nullcontext():
            values, vectors = eigh(gram, lower=False, overwrite_a=True, check_finite=False)
        values, vectors = values[::-1], vectors[:, ::-1]
        negligible = EPS * len(values) * max(values[0], 0.0)  # rounding leaves this in directions without variance
        subtracted = float(values[self.rows])
        subtracted = subtracted if subtracted > negligible else 0.0
        count = min(self.rows, int(np.count_nonzero(values > max(subtracted, negligible))))
        # Rows of U^T B have the squared norms `values`; scaling them subtracts `subtracted` from each.
        scales = np.sqrt(1 - subtracted / values[:count])
        self._held[:count] = times((vectors[:, :count] * scales).T, self._held)
        self._count = count
        self.shrunk += subtracted

    @property
    def sketch(self) -> Float64:
        """B, at most 2 l rows, (m, p); read-only and not a copy."""
        view = self._held[: self._count].view()
        view.flags.writeable = False
        return view

    def gram(self) -> Float64:
        """Return B B^T anew, (m, m) in Fortran order, upper triangle."""
        gram: Float64 = np.zeros((self._count, self._count), order="F")
        if self._count:
            update_among(self._held[: self._count], gram, beta=0.0)
        return gram

    @property
    def trace(self) -> float:
        """Sum of squared distances from the mean, exact: shrinks take nothing from it."""
        return float(self._squares.sum())

    @property
    def feature_variance(self) -> Float64:
        """Variance of each feature, divided by the weight, shape (p,); exact."""
        return self._squares / (self.weight or 1.0)

    def absorb(self, other: Self) -> None:
        """Add the samples of another sketch, of any number of rows; the other is not changed.

        Raises
        ------
        ValueError
            If the two differ in features.
        """
        if self.n_features != other.n_features:
            raise ValueError(f"sketches of {self.n_features} and {other.n_features} features cannot be added")
        if other.n_samples == 0:
            return
        between = self._between(other.weight, other.mean)
        self.shrunk += other.shrunk
        self.slack += other.slack
        self._append(other.sketch)
        self._count_in(other.weight, other.n_samples, other.mean, other._squares + between**2, between)

    def discount(self, factor: float) -> None:
        """Multiply the weights of all samples so far by a factor, from 0 to 1."""
        self.weight *= factor
        self.shrunk *= factor
        self.slack *= factor
        self._squares *= factor
        self._held[: self._count] *= np.sqrt(factor)

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays; without `copy` the sketch itself, to be stored but not written to."""
        return {
            **sums_of(self, SUMS, copy=True),
            "squares": self._squares.copy(),
            "sketch": self.sketch.copy() if copy else self.sketch,
        }

    @classmethod
    def from_state(cls, state: dict[str, Array], *, copy: bool = True) -> Self:
        """Return the sketch whose `state` this is; it is copied in any case, as there must be space behind it."""
        new = cls(len(state["mean"]), rows=int(state["rows"]))
        restore_sums(new, state, SUMS)
        new._squares, new._count = np.array(state["squares"], np.float64), len(state["sketch"])
        new._held[: new._count] = state["sketch"]
        return new
