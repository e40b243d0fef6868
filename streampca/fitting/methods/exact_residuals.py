"""Residuals of computed eigenpairs of a matrix in memory, nearly without rounding, and bounds from them.

A residual S v - theta v is the small difference of large numbers: computed in float64 it is mostly rounding. So S, v
and theta are split into leading parts, multiples of powers of two whose products and sums float64 holds without any
rounding, whatever their order, and small rests, whose products round relatively as before. A rank-one term that is to
be subtracted from S, for the mean, is multiplied apart.

What rounding remains is bounded by gamma = 3 (p + 8) u for sums of the 2 p products of rests (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, section 3.1), which holds for any order of the sums.

With G = V^T V = I + D, D small, V G^-1/2 is orthonormal. For R = S V - V Theta its projected matrix is Theta + F with
F_ij = D_ij (theta_j - theta_i) / 2 + v_i^T R_j, but for |D| |R| and |D|^2 theta_1: the input of `pair_bounds`.

*Sums that round.* The matrix in memory is S - E, E its errors. Then R is its own residual, which is known with its
direction, plus E V, of which only lengths are: solvers err by a few eps of the first eigenvalue, sums that are added up
in pieces by a tenth of it, so that bounds are near the truth where E is bounded well. `sum_errors` does so from
probes, Y = S W: T = Y - (S - E) W is E W plus the rounding of Y, T^T v is Gaussian with standard deviation |E v|, as in
`error_bounds`, and |T|_F^2 is a sum of squares of which that along the leading direction of E alone is |E|^2 times
chi-square, which bounds |E|. E is symmetric, so |v_i^T E v_j| is at most the lesser of |E v_i| and |E v_j|.

What S and Y share does not show in T: rows x are centred with a rounding of at most u |x - c| an entry. For
the matrix D of these errors, |D|_F is at most u times the root of the sum of the squares that may have been rounded,
and v_i^T (X^T D + D^T X) v_j is at most |D|_F (sqrt(theta_i) + sqrt(theta_j)), as |X v_i| = sqrt(theta_i).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import blas

from ...arrays import Float64
from ...eigensolvers.error_bounds import FAILURE, angle_bounds, lengths, quantile_root
from ...eigensolvers.pair_bounds import EPS, PairBounds, pair_bounds
from .leading_pairs import scale_of

UNIT = EPS / 2  # largest relative rounding of one operation
DIGITS = 26  # binary digits of leading parts: twice as many, and a sum's growth by one, are those of float64
PANEL = 64  # columns of the matrix split at a time, and of the vectors
MOST_PAIRS = 256  # leading pairs whose errors along one another are told apart, which takes the cube of their number
ORTHONORMAL = 1e-6  # largest norm of D


class SummedMatrix(Protocol):
    """Symmetric, semi-definite matrix ``upper - outer(total, total) / weight``."""

    @property
    def upper(self) -> Float64:
        """Matrix about the centre, (p, p) in Fortran order, upper triangle."""

    @property
    def total(self) -> Float64:
        """Sum of the rows less the centre, (p,)."""

    @property
    def weight(self) -> float:
        """Number of rows."""


class ProbedMatrix(SummedMatrix, Protocol):
    """Matrix with products with random directions, and what the two share (see the module)."""

    @property
    def directions(self) -> Float64:
        """W, (p, q), Gaussian."""

    @property
    def products_about_centre(self) -> Float64:
        """Y of ``upper``, (p, q), by separate products."""

    @property
    def probe_rounding(self) -> Float64:
        """Error of Y, (p, q), as far as it was measured."""

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues."""

    @property
    def rounded(self) -> float:
        """Sum of the squares of values that centring may have rounded."""

    @property
    def slack(self) -> float:
        """Bound on the norm of errors that Y shares."""


class SumErrors(NamedTuple):
    """Bounds on the errors E of a matrix.

    Attributes
    ----------
    along : ndarray of shape (k,)
        |E v|, but for the rounding of rows, of errors that random directions show.
    norm : float
        |E|, but for the same.
    rows : float
        Frobenius norm of the rounding of the rows of which the matrix is the scatter.
    """

    along: Float64
    norm: float
    rows: float

    def scaled(self, factor: float) -> SumErrors:
        """Return the errors of the matrix times a factor."""
        return SumErrors(self.along * factor, self.norm * factor, self.rows * factor**0.5)

    def pairs(self, values: Float64, count: int) -> Float64:
        """Return bounds on |v_i^T E v_j| of the leading pairs, (count, count)."""
        along, of_rows = self.along[:count], self.rows * np.sqrt(values[:count])
        return np.minimum(along, along[:, None]) + (of_rows + of_rows[:, None])

    def lengths(self, values: Float64) -> Float64:
        """Return bounds on |E v|, (k,)."""
        return np.asarray(self.along + self.rows * (np.sqrt(values) + float(np.sqrt(values.max(initial=0.0)))))

    def whole(self, values: Float64) -> float:
        """Return a bound on |E|."""
        return self.norm + 2 * self.rows * float(np.sqrt(values.max(initial=0.0)))


@dataclass(frozen=True)
class ExactBounds:
    """Bounds on the errors of k unit vectors and their values.

    Attributes
    ----------
    residual : ndarray of shape (k,)
        Bound on |S v - theta v|.
    value, angle : ndarray of shape (k,)
        See `PairBounds`.
    """

    residual: Float64
    value: Float64
    angle: Float64


class _Split(NamedTuple):
    """Numbers as sums of multiples of a power of two, which have 26 binary digits, and rests."""

    lead: Float64
    rest: Float64


def exact_bounds(
    matrix: SummedMatrix, values: Float64, vectors: Float64, next_value: float | None, errors: SumErrors | None = None
) -> ExactBounds:
    """Bound the errors of claimed eigenpairs by their exact residuals.

    Parameters
    ----------
    matrix : SummedMatrix
        S, of whole numbers; or S - E, if its errors are given.
    values : ndarray of shape (k,)
        Claimed eigenvalues, descending.
    vectors : ndarray of shape (p, k)
        Claimed unit vectors.
    next_value : float or None
        Eigenvalue k + 1 of the matrix, if known, to the rounding of a dense solver: p eps of the first.
    errors : SumErrors, optional
        Bounds on E.

    Notes
    -----
    Cost: 6 p^2 k + 8 p m^2 + 50 m^3 flops, with m the number of pairs, at most 256 where errors are given. Memory: 64
    columns of S and of the vectors, a few times, and 10 m^2 numbers.
    """
    (p, k), first = vectors.shape, float(values.max(initial=0.0))
    m = k if errors is None else min(k, MOST_PAIRS)
    along, residual, rounding = np.empty((m, m)), np.empty(k), np.empty(k)
    for start in range(0, k, PANEL):
        chunk = slice(start, start + PANEL)
        rest, rounding[chunk] = _residuals(matrix, values[chunk], vectors[:, chunk], first, whole=errors is None)
        residual[chunk] = lengths(rest)
        if start < m:
            along[:, chunk] = vectors[:, :m].T @ rest[:, : m - start]
    gamma = 3 * (p + 8) * UNIT
    residual *= 1 + gamma
    rounding += gamma * residual  # of v^T R
    deviation = _deviation(vectors[:, :m])
    rounding += gamma * (p * m) ** 0.5 * 2.0**-DIGITS * first  # of D, times differences of values
    # Squares of what follows must fit float64.
    scale = scale_of(first) if first > 0 else 1.0
    known = _Known(deviation, scale * along, scale * residual, scale * rounding)
    following = scale * _following(values, residual + rounding, next_value, p)
    found = _bounds(scale * values, known, following, None if errors is None else errors.scaled(scale))
    return ExactBounds(found.residual / scale, found.value / scale, found.angle)


def sum_errors(matrix: ProbedMatrix, vectors: Float64) -> SumErrors:
    """Bound the errors of a matrix along unit vectors, (p, k), by its probes; see the module.

    Notes
    -----
    Cost: 6 p^2 q + 2 p q k flops. Memory: 64 columns of S, twice, and 8 p q numbers.
    """
    directions, p = matrix.directions, len(vectors)
    scale = np.ldexp(1.0, np.frexp(lengths(directions))[1])  # of columns of length at most 1
    columns, size = _split(directions / scale, 1.0), _row_length(matrix.upper, 0.0)
    head, tail, _ = _products(matrix.upper, columns, size, whole=False)
    wrong = scale * ((matrix.products_about_centre / scale - head) - tail)
    # Rounding of products of rests, then of every other operation.
    left = 3 * (p + 8) * UNIT * (matrix.trace * lengths(columns.rest) + p * _unit(size)) + 4 * UNIT * lengths(tail)
    rounding, left = matrix.probe_rounding, (scale * left)[:, None]
    along = lengths(wrong.T @ vectors) + lengths(rounding.T @ vectors) + lengths(left)
    whole = float(lengths((lengths(wrong) + lengths(rounding))[:, None] + left)[0])
    q, slack, failure = directions.shape[1], matrix.slack, FAILURE / 2
    return SumErrors(
        along / quantile_root(q, failure / max(1, len(along))) + slack,
        whole / quantile_root(q, failure) + slack,
        UNIT * float(np.sqrt(matrix.rounded)),
    )


class _Known(NamedTuple):
    """D and V^T R of the leading pairs, (m, m), the lengths of R, (k,), and bounds on their rounding."""

    deviation: Float64
    along: Float64
    residual: Float64
    rounding: Float64

    @property
    def rounding_of_pairs(self) -> Float64:
        """Bounds on the rounding of V^T R, (m, m)."""
        rounding = self.rounding[: len(self.along)]
        return (rounding + rounding[:, None]) / 2


def _following(values: Float64, residual: Float64, next_value: float | None, p: int) -> Float64:
    """Return bounds on the eigenvalue after each one, (k,), to the rounding of a dense solver."""
    rounding = p * EPS * float(values.max(initial=0.0))
    after = np.inf if next_value is None else max(next_value, 0.0)
    return np.append(values[1:] + residual[1:], after) + rounding


def _bounds(values: Float64, known: _Known, following: Float64, errors: SumErrors | None) -> ExactBounds:
    """Return bounds, given what is known of residuals, the next eigenvalues, and bounds on errors of the matrix."""
    m, bound, pairs = len(known.along), known.residual + known.rounding, known.rounding_of_pairs
    if errors is not None:
        bound, following = bound + errors.lengths(values), following + errors.whole(values)
        pairs = pairs + errors.pairs(values, m)
    value, angle = bound.copy(), np.full(len(values), np.nan)
    if (found := _leading(values[:m], known, bound[:m], pairs, following[:m])) is not None:
        count, tilt = len(found.value), 0.51 * lengths(known.deviation - np.diag(known.deviation.diagonal()))
        value[:count] = np.minimum(value[:count], found.value)
        angle[:count] = found.angle + (tilt + float(np.linalg.norm(known.deviation)) ** 2)[:count]
    if errors is not None:
        # Where errors are large, those along one another can be bounded better by the residuals.
        angle = np.fmin(angle, angle_bounds(values, bound, float(following[-1])))
    return ExactBounds(bound, value, angle)


def _leading(values: Float64, known: _Known, bound: Float64, pairs: Float64, following: Float64) -> PairBounds | None:
    """Bound the pairs up to the last one that is set apart from those after it; None if none is."""
    size, norm = float(np.linalg.norm(known.deviation)), float(np.linalg.norm(bound))
    turned = known.deviation * (values - values[:, None]) / 2 + known.along
    second = 1.1 * size * norm + size**2 * float(values.max(initial=0.0))
    within, across = np.abs(turned + turned.T) / 2 + pairs + second, bound + 1.1 * size * norm
    spread, coupling = float(np.linalg.norm(within)), float(np.linalg.norm(across))
    gaps = values - spread - following
    separate = np.flatnonzero(gaps > 8 * coupling)
    if not (size < ORTHONORMAL and len(separate)):
        return None
    count = int(separate[-1]) + 1
    # Without an eigenvalue above `following` outside, Schur's complement bounds the rest of S (see `pair_bounds`).
    outside = float(following[count - 1] + coupling**2 / gaps[count - 1])
    return pair_bounds(values[:count], within[:count, :count], across[:count], outside, count=count)


def _split(values: Float64, size: float) -> _Split:
    """Split numbers; leading parts are multiples of 2^-26 times a power of two from `size` on."""
    unit = _unit(size)
    lead = np.rint(values / unit) * unit
    return _Split(lead, values - lead)


def _unit(size: float) -> float:
    """Return 2^-26 times the smallest power of two that is not below a size."""
    return float(np.ldexp(1.0, int(np.frexp(size)[1]) - DIGITS))


def _row_length(upper: Float64, least: float) -> float:
    """Return at least the length of every row of a semi-definite matrix, and `least`."""
    diagonal = upper.diagonal()
    # The length of a row is at most the root of its diagonal entry times the trace.
    return max(float(np.sqrt(diagonal.max(initial=0.0)) * np.sqrt(diagonal.sum())), least)


def _residuals(
    matrix: SummedMatrix, values: Float64, vectors: Float64, first: float, *, whole: bool
) -> tuple[Float64, Float64]:
    """Return S v - theta v of some pairs, (p, l), and bounds on their rounding, (l,), given the first eigenvalue."""
    upper, total = matrix.upper, matrix.total
    p, trace, size = len(upper), float(upper.diagonal().sum()), _row_length(upper, first)
    columns, theta = _split(vectors, 1.0), _split(values, size)
    head, tail, is_whole = _products(upper, columns, size, whole=whole)
    sums = _split(total, float(np.linalg.norm(total)))
    along = sums.lead @ columns.lead + (sums.lead @ columns.rest + sums.rest @ vectors)
    outer = np.outer(total, along / matrix.weight)
    small = tail - columns.lead * theta.rest - columns.rest * values
    rest = (head - columns.lead * theta.lead) + (small - outer)
    # Products of rests, of which those with S are the largest, and then every other operation once.
    gamma, shorter = 3 * (p + 8) * UNIT, lengths(columns.rest)
    rounding = gamma * (trace * shorter + (0.0 if is_whole else p * _unit(size)))
    length = float(np.linalg.norm(total))
    rounding += (
        length / matrix.weight * (gamma * (length * shorter + p**0.5 * _unit(length)) + 4 * UNIT * np.abs(along))
    )
    rounding += 8 * UNIT * (lengths(tail) + min(_unit(size), size) + first * shorter + lengths(outer) + lengths(rest))
    return rest, rounding


def _products(upper: Float64, columns: _Split, size: float, *, whole: bool) -> tuple[Float64, Float64, bool]:
    """Return the product of the leading parts, the sum of the others, and whether S has no rests; if `whole`, S can.

    The first is a sum of multiples of 2^-52 times a power of two, whose absolute values add up to at most twice that
    power by Cauchy's inequality, as the lengths of rows are at most `size`: it is not rounded.
    """
    unit, count = _unit(size), columns.lead.shape[1]
    if whole and unit <= 1:  # entries are whole numbers, without rests
        both = blas.dsymm(1.0, upper, np.concatenate(columns, axis=1))
        return both[:, :count], both[:, count:], True
    leads, rests = np.zeros(columns.lead.shape), np.zeros(columns.lead.shape)
    below = np.tri(min(PANEL, len(upper)), k=-1, dtype=bool)
    for start in range(0, len(upper), PANEL):
        stop = min(start + PANEL, len(upper))
        panel, corner = upper[:stop, start:stop].copy(order="F"), upper[start:stop, start:stop]
        panel[start:] = np.where(below[: stop - start, : stop - start], corner.T, corner)
        lead = np.rint(panel / unit) * unit
        _add_product(leads, lead, columns.lead, start, stop)
        _add_product(rests, panel, columns.rest, start, stop)
        _add_product(rests, panel - lead, columns.lead, start, stop)
    return leads, rests, False


def _add_product(target: Float64, panel: Float64, vectors: Float64, start: int, stop: int) -> None:
    """Add the product of columns ``start:stop`` of a symmetric matrix, down to the diagonal, and of the same rows."""
    target[start:stop] += panel.T @ vectors[:stop]
    target[:start] += panel[:start] @ vectors[start:stop]


def _deviation(vectors: Float64) -> Float64:
    """Return V^T V - I, (k, k); products of leading parts are not rounded."""
    k = vectors.shape[1]
    deviation = np.empty((k, k))
    for start in range(0, k, PANEL):
        columns = _split(vectors[:, start : start + PANEL], 1.0)
        for other in range(0, start + 1, PANEL):
            others = vectors[:, other : other + PANEL]
            split = _split(others, 1.0)
            whole = split.lead.T @ columns.lead
            if other == start:
                whole.flat[:: len(whole) + 1] -= 1.0
            block = whole + (split.lead.T @ columns.rest + split.rest.T @ vectors[:, start : start + PANEL])
            deviation[other : other + PANEL, start : start + PANEL] = block
            deviation[start : start + PANEL, other : other + PANEL] = block.T
    return deviation
