"""Residuals of computed eigenpairs of a matrix that was summed exactly, nearly without rounding; bounds from them.

A residual S v - theta v is the small difference of large numbers: computed in float64 it is mostly rounding. So S, v
and theta are split into leading parts, multiples of powers of two whose products and sums float64 holds without any
rounding, whatever their order, and small rests, whose products round relatively as before. A rank-one term that is to
be subtracted from S, for the mean, is multiplied apart.

What rounding remains is bounded by gamma = 3 (p + 8) u for sums of the 2 p products of rests (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, section 3.1), which holds for any order of the sums.

With G = V^T V = I + D, D small, V G^-1/2 is orthonormal. For R = S V - V Theta its projected matrix is Theta + F with
F_ij = D_ij (theta_j - theta_i) / 2 + v_i^T R_j, but for |D| |R| and |D|^2 theta_1: the input of `pair_bounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import blas

from ...arrays import Float64
from ...eigensolvers.error_bounds import lengths
from ...eigensolvers.pair_bounds import EPS, PairBounds, pair_bounds

UNIT = EPS / 2  # largest relative rounding of one operation
DIGITS = 26  # binary digits of leading parts: twice as many, and a sum's growth by one, are those of float64
PANEL = 64  # columns of the matrix split at a time, and of the vectors
ORTHONORMAL = 1e-6  # largest norm of D


class ExactSums(Protocol):
    """Symmetric, semi-definite matrix ``upper - outer(total, total) / weight`` of whole numbers, without rounding."""

    @property
    def upper(self) -> Float64:
        """Matrix about the centre, (p, p) in Fortran order, upper triangle."""

    @property
    def total(self) -> Float64:
        """Sum of the rows less the centre, (p,)."""

    @property
    def weight(self) -> float:
        """Number of rows."""


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


def exact_bounds(matrix: ExactSums, values: Float64, vectors: Float64, next_value: float | None) -> ExactBounds:
    """Bound the errors of claimed eigenpairs by their exact residuals.

    Parameters
    ----------
    matrix : ExactSums
        S.
    values : ndarray of shape (k,)
        Claimed eigenvalues, descending.
    vectors : ndarray of shape (p, k)
        Claimed unit vectors.
    next_value : float or None
        Eigenvalue k + 1, if known, to the rounding of a dense solver: p eps of the first.

    Notes
    -----
    Cost: 6 p^2 k + 8 p k^2 flops. Memory: 64 columns of S and of the vectors, a few times, and 4 k^2 numbers.
    """
    (p, k), first = vectors.shape, float(values.max(initial=0.0))
    along, residual, rounding = np.empty((k, k)), np.empty(k), np.empty(k)
    for start in range(0, k, PANEL):
        chunk = slice(start, start + PANEL)
        rest, rounding[chunk] = _residuals(matrix, values[chunk], vectors[:, chunk], first)
        residual[chunk], along[:, chunk] = lengths(rest), vectors.T @ rest
    gamma = 3 * (p + 8) * UNIT
    residual *= 1 + gamma
    rounding += gamma * residual  # of v^T R
    deviation = _deviation(vectors)
    rounding += gamma * (p * k) ** 0.5 * 2.0**-DIGITS * first  # of D, times differences of values
    return _bounds(values, deviation, along, residual, rounding, _following(values, residual + rounding, next_value, p))


def _following(values: Float64, residual: Float64, next_value: float | None, p: int) -> Float64:
    """Return bounds on the eigenvalue after each one, (k,), to the rounding of a dense solver."""
    rounding = p * EPS * float(values.max(initial=0.0))
    after = np.inf if next_value is None else max(next_value, 0.0)
    return np.append(values[1:] + residual[1:], after) + rounding


def _bounds(
    values: Float64, deviation: Float64, along: Float64, residual: Float64, rounding: Float64, following: Float64
) -> ExactBounds:
    """Return bounds, given D, V^T R, the lengths of R, their rounding, and the next eigenvalues."""
    size, norm = float(np.linalg.norm(deviation)), float(np.linalg.norm(residual + rounding))
    bound = residual + rounding
    turned = deviation * (values - values[:, None]) / 2 + along
    second = 1.1 * size * norm + size**2 * float(values.max(initial=0.0))
    within = np.abs(turned + turned.T) / 2 + (rounding + rounding[:, None]) / 2 + second
    across = bound + 1.1 * size * norm
    value, angle = bound.copy(), np.full(len(values), np.nan)
    spread, coupling = float(np.linalg.norm(within)), float(np.linalg.norm(across))
    gaps = values - spread - following
    separate = np.flatnonzero(gaps > 8 * coupling)
    if size < ORTHONORMAL and len(separate):
        count = int(separate[-1]) + 1
        first = slice(count)
        # Without an eigenvalue above `following` outside, Schur's complement bounds the rest of S (see `pair_bounds`).
        outside = float(following[count - 1] + coupling**2 / gaps[count - 1])
        found: PairBounds = pair_bounds(values[first], within[first, first], across[first], outside, count=count)
        value[first] = np.minimum(value[first], found.value)
        tilt = 0.51 * lengths(deviation - np.diag(deviation.diagonal())) + size**2
        angle[first] = found.angle + tilt[first]
    return ExactBounds(bound, value, angle)


def _split(values: Float64, size: float) -> _Split:
    """Split numbers; leading parts are multiples of 2^-26 times a power of two from `size` on."""
    unit = _unit(size)
    lead = np.rint(values / unit) * unit
    return _Split(lead, values - lead)


def _unit(size: float) -> float:
    """Return 2^-26 times the smallest power of two that is not below a size."""
    return float(np.ldexp(1.0, int(np.frexp(size)[1]) - DIGITS))


def _residuals(matrix: ExactSums, values: Float64, vectors: Float64, first: float) -> tuple[Float64, Float64]:
    """Return S v - theta v of some pairs, (p, l), and bounds on their rounding, (l,), given the first eigenvalue."""
    upper, total, diagonal = matrix.upper, matrix.total, matrix.upper.diagonal()
    p, trace = len(upper), float(diagonal.sum())
    # S is semi-definite: the length of a row is at most the root of its diagonal entry times the trace.
    size = max((float(diagonal.max(initial=0.0)) * trace) ** 0.5, first)
    columns, theta = _split(vectors, 1.0), _split(values, size)
    head, tail, is_whole = _products(upper, columns, size)
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


def _products(upper: Float64, columns: _Split, size: float) -> tuple[Float64, Float64, bool]:
    """Return the product of the leading parts, the sum of the others, and whether S has no rests.

    The first is a sum of multiples of 2^-52 times a power of two, whose absolute values add up to at most twice that
    power by Cauchy's inequality, as the lengths of rows are at most `size`: it is not rounded.
    """
    unit, count = _unit(size), columns.lead.shape[1]
    if unit <= 1:  # entries are whole numbers, without rests
        both = blas.dsymm(1.0, upper, np.concatenate(columns, axis=1))
        return both[:, :count], both[:, count:], True
    whole, rests = np.zeros(columns.lead.shape), np.zeros(columns.lead.shape)
    for start in range(0, len(upper), PANEL):
        stop = min(start + PANEL, len(upper))
        panel = upper[:stop, start:stop].copy(order="F")
        corner = np.triu(panel[start:])
        panel[start:] = corner + np.triu(corner, 1).T
        lead = np.rint(panel / unit) * unit
        _add_product(whole, lead, columns.lead, start, stop)
        _add_product(rests, panel, columns.rest, start, stop)
        _add_product(rests, panel - lead, columns.lead, start, stop)
    return whole, rests, False


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
