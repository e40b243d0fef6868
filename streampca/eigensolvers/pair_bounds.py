"""Bounds on the errors of single pairs of a subspace, from what their residuals are along one another and outside.

A residual bounds the angle of a direction by its length over the distance of the nearest eigenvalue (`error_bounds`).
But a neighbour turns a direction only as far as the residual points along it, which is a small part of a residual that
is rounding, and nothing of that of a Ritz pair.

Let V be orthonormal, (p, m), with V^T S V = Theta + F, F small, and C the part of S V outside of V, with columns of
lengths c. Let sigma be at least the largest eigenvalue of S outside of V, that is of N = V'^T S V', V' the complement.

*Ranks.* Eigenvalue i of S is at least that of Theta + F (Cauchy). For mu > sigma, S has as many eigenvalues above mu as
Theta + F + C^T (mu - N)^-1 C (inertia of the Schur complement; Haynsworth, 1968), which is at most Theta + F plus
|C|^2 / (mu - sigma). So eigenvalue i is at most the mu that solves mu = theta_i + |F| + |C|^2 / (mu - sigma)
(Li and Li, Linear Algebra Appl. 395, 2005). This holds for clusters, too.

*Directions.* Let u = V x + V' y be a unit eigenvector for lambda, eigenvalue i, above sigma. Then y = (lambda - N)^-1 C
x and (lambda - theta_j) x_j = (F x)_j + (C^T y)_j. So with a_j = |x_j| for j other than i and b = |y|

    a_j <= (F_ji + sum_l F_jl a_l + c_j b) / |lambda - theta_j|,   b <= (c_i + sum_l c_l a_l) / (lambda - sigma),

that is z <= d + M z for z = (a, b), with M at least 0. Any z' > 0 with d + M z' < z' bounds z: the spectral radius of M
is below 1 (Collatz), and z - z' <= M (z - z') goes to 0. The sine of the angle of v_i and u is |z|, and row i gives

    |lambda - theta_i| <= (F_ii + sum_l F_il a_l + c_i b) / |x_i|,   |x_i|^2 = 1 - |z|^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..arrays import Float64

EPS = float(np.finfo(np.float64).eps)
GROWTH = 1.05  # factor by which d + M z' has to grow less than z', so that its strict inequality survives rounding
TINY = 1e-30  # added to every z', which must be positive
STEPS = 12  # of the iteration for z'; more are needed only where bounds are hardly below 1
ROUNDS = 2  # the second uses the first's bounds on eigenvalues
SETTLED = 1e-16  # largest squared sine with which the second round gains nothing
BEYOND = 2  # times the claimed pairs that bounds use, to set the next ones apart from the rest
FARTHEST = 0.75  # largest squared sine of an angle that is resolved
ROUNDED = 1 + 1e-9  # more than rounding changes a sum of as many terms as there are pairs


class PairBounds(NamedTuple):
    """Bounds on the errors of the values, in their units, and on the angles of the vectors, radians; see `pair_bounds`.

    Attributes
    ----------
    value : ndarray of shape (k,)
        Distance of each value from the eigenvalue of its rank.
    angle : ndarray of shape (k,)
        Angle to an eigenvector of that eigenvalue; NaN where neighbours are too close.
    """

    value: Float64
    angle: Float64


def pair_bounds(
    values: Float64, within: Float64, across: Float64, outside: float, *, count: int, near: Float64 | None = None
) -> PairBounds:
    """Bound the errors of the leading pairs of an orthonormal basis of a semi-definite matrix; see the module.

    Parameters
    ----------
    values : ndarray of shape (m,)
        theta, descending.
    within : ndarray of shape (m, m)
        Symmetric bounds on the absolute values of F.
    across : ndarray of shape (m,)
        Bounds on the lengths of the columns of C.
    outside : float
        sigma.
    count : int
        Number of leading pairs to bound, k.
    near : ndarray of shape (k,), optional
        Bounds on the errors of the values by their ranks, if known from elsewhere.

    Notes
    -----
    Cost: about 50 k m^2 flops.
    """
    rising = _rises(values, within, across, outside)[:count]
    near = rising if near is None else np.minimum(near, rising)
    angle = np.full(count, np.nan)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for _ in range(ROUNDS):
            along, beyond = _components(values, within, across, outside, near)
            squared = np.square(along).sum(axis=1) + beyond**2
            off = within.diagonal()[:count] + (within[:count] * along).sum(axis=1) + across[:count] * beyond
            resolved = squared < FARTHEST
            near = np.where(resolved, np.minimum(near, ROUNDED * off / np.sqrt(1 - squared)), near)
            angle = np.where(resolved, np.fmin(angle, ROUNDED * np.arcsin(np.sqrt(squared))), angle)
            if resolved.all() and squared.max(initial=0.0) < SETTLED:
                break
    return PairBounds(near, angle)


def leading_bounds(
    values: Float64, within: Float64, across: Float64, outside: Mapping[int, float], count: int
) -> PairBounds:
    """Bound the leading pairs of a basis by several numbers of them, m, and take the smallest bounds.

    Parameters
    ----------
    values, within, across, count
        See `pair_bounds`.
    outside : mapping
        sigma of the leading m pairs, by m. Pairs after the claimed ones, even if they are less certain, set the
        eigenvalues that follow these apart from the rest outside.
    """
    near, angle = np.full(count, np.inf), np.full(count, np.nan)
    for m, largest in outside.items():
        found = pair_bounds(values[:m], within[:m, :m], across[:m], largest, count=count, near=near)
        near, angle = found.value, np.fmin(angle, found.angle)
    # Bases are orthonormal but for rounding, and tilt directions by no more, however near neighbours are.
    return PairBounds(near, angle + EPS * len(values) ** 0.5)


def _rises(values: Float64, within: Float64, across: Float64, outside: float) -> Float64:
    """Return bounds on the errors of all values by their ranks, whatever their distances."""
    spread = min(float(np.linalg.norm(within)), float(within.sum(axis=1).max(initial=0.0)))
    coupling, half = float(np.linalg.norm(across)), _above(values, outside) / 2
    root = np.hypot(half, coupling)
    with np.errstate(invalid="ignore", divide="ignore"):
        rise = np.where(half > 0, coupling * (coupling / (root + half)), root - half)
    return np.asarray(ROUNDED * (spread + rise))


def _above(values: Float64, outside: float) -> Float64:
    """Return at most the distances of values from sigma."""
    return values - outside - 4 * EPS * (np.abs(values) + abs(outside))


def _components(
    values: Float64, within: Float64, across: Float64, outside: float, near: Float64
) -> tuple[Float64, Float64]:
    """Return bounds on a, (k, m), and b, (k,), for values within `near` of eigenvalues; infinite where unknown."""
    count = len(near)
    apart = np.abs(values[:count, None] - values) / ROUNDED - ROUNDED * near[:, None]
    np.fill_diagonal(apart, np.inf)
    gap = _above(values[:count], outside) - ROUNDED * near
    inverse, across_gap = np.where(apart > 0, 1 / apart, np.inf), np.where(gap > 0, 1 / gap, np.inf)
    along, beyond = np.zeros(apart.shape), np.zeros(count)
    own, bounded = within[:count], np.zeros(count, bool)
    for _ in range(STEPS):
        # Only z' = (along, beyond) for which the next step grows by less than the factor that it includes are bounds.
        next_along = GROWTH * ((own + along @ within + beyond[:, None] * across) * inverse + TINY)
        next_beyond = GROWTH * ((across[:count] + along @ across) * across_gap + TINY)
        np.fill_diagonal(next_along, 0.0)
        grown = GROWTH / ROUNDED
        bounded = (next_along <= grown * along).all(axis=1) & (next_beyond <= grown * beyond)
        along, beyond = np.where(bounded[:, None], along, next_along), np.where(bounded, beyond, next_beyond)
        if bounded.all():
            break
    return np.where(bounded[:, None], along, np.inf), np.where(bounded, beyond, np.inf)
