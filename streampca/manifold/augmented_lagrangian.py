"""Coordinates of largest variance at fixed lengths of edges, by an augmented Lagrangian.

Tensions (multipliers) and springs of growing stiffness pull lengths towards their values. Stiff springs make plain
gradient methods slow, so that L-BFGS is preconditioned by a sparse Gauss-Newton matrix. The line search is exact, as
the function is a polynomial of degree 4 along a line.

References
----------
Burer and Monteiro (2003), "A nonlinear programming algorithm for solving semidefinite programs via low-rank
factorization".
Nocedal and Wright (2006), "Numerical Optimization", algorithms 7.4 (L-BFGS) and 17.4 (augmented Lagrangian).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ..arrays import Float64
from ..eigensolvers.sparse import factors_of_definite
from ..signals import safe_point

Integers = npt.NDArray[np.int64]

_PAIRS = 20  # pairs of steps and changes of the gradient that L-BFGS remembers
_RESTARTS, _STEPS = 3, 40  # preconditioners of a minimisation, and steps with each
_LEAST_DECREASE = 1e-8  # of the function in a step, relative to the variance, to go on
# Smallest tension of an edge in the preconditioner, in mean tensions: it stays definite where edges are compressed.
_LEAST_TENSION = 0.1
# Largest number of coordinates whose coupling by springs is preconditioned, and of entries of these factors. With 6, a
# helix of 1000 noisy points keeps 95 % of its edges to 3e-3 after all rounds, with 12 to 1e-3.
_COUPLED, _MOST_ENTRIES = 12, 3_000_000


class AugmentedLagrangian:
    """Lagrangian of the problem of largest variance at fixed lengths of edges.

    Parameters
    ----------
    edges : ndarray of shape (e, 2)
        Pairs of samples, each once, of a connected graph.
    lengths : ndarray of shape (e,)
        Squared lengths to keep, positive, about 1.
    n_samples : int
        Number of samples, n.
    tension : float
        Typical multiplier of an edge.
    """

    def __init__(self, edges: Integers, lengths: Float64, n_samples: int, tension: float) -> None:
        self.edges, self.lengths, self.n_samples, self.tension = edges, lengths, n_samples, tension
        self.along = incidence(edges, n_samples)
        self._onto = self.along.T.tocsr()

    def excess(self, coordinates: Float64) -> Float64:
        """Return the differences of squared lengths from the given ones, (e,)."""
        excess: Float64 = np.square(self.along @ coordinates).sum(axis=1) - self.lengths
        return excess

    def minimize(self, coordinates: Float64, multipliers: Float64, springs: Float64) -> tuple[Float64, int]:
        """Return coordinates that minimise the Lagrangian, (n, r), along principal axes, and the number of steps.

        Parameters
        ----------
        coordinates : ndarray of shape (n, r)
            Start.
        multipliers, springs : ndarray of shape (e,)
            Coefficients of the excess and of half its square.
        """
        taken = 0
        for _ in range(_RESTARTS):
            coordinates = along_axes(coordinates)
            inverse = _GaussNewtonInverse(self, coordinates, multipliers, springs)
            coordinates, steps = self._descend(coordinates, multipliers, springs, inverse)
            taken += steps
            if steps < _STEPS:
                break
        return along_axes(coordinates), taken

    def _descend(
        self, coordinates: Float64, multipliers: Float64, springs: Float64, inverse: _GaussNewtonInverse
    ) -> tuple[Float64, int]:
        """Return coordinates after steps of L-BFGS with one preconditioner, and the number of steps."""
        memory = _Memory(inverse)
        differences = self.along @ coordinates
        gradient = self._gradient(coordinates, differences, multipliers, springs)
        taken, decrease = 0, np.inf
        while taken < _STEPS and decrease > _LEAST_DECREASE * np.vdot(coordinates, coordinates):
            safe_point()
            taken += 1
            direction = -memory.times(gradient)
            change = self.along @ direction
            polynomial = self._along_line(coordinates, differences, direction, change, multipliers, springs)
            share, decrease = _lowest(polynomial)
            coordinates = coordinates + share * direction
            differences += share * change
            gradient, last = self._gradient(coordinates, differences, multipliers, springs), gradient
            memory.add(share * direction, gradient - last)
        return coordinates, taken

    def _gradient(self, coordinates: Float64, differences: Float64, multipliers: Float64, springs: Float64) -> Float64:
        """Return the gradient of -tr K + y^T excess + springs^T excess^2 / 2: Laplacian of pulls times coordinates."""
        pull = multipliers + springs * (np.square(differences).sum(axis=1) - self.lengths)
        gradient: Float64 = 2 * (self._onto @ (pull[:, None] * differences) - coordinates)
        return gradient

    def _along_line(
        self,
        coordinates: Float64,
        differences: Float64,
        direction: Float64,
        change: Float64,
        multipliers: Float64,
        springs: Float64,
    ) -> Float64:
        """Return the coefficients of the function along a line, of the powers 4 to 1 of the step."""
        excess = np.square(differences).sum(axis=1) - self.lengths
        linear = 2 * np.einsum("ij,ij->i", differences, change)
        square = np.square(change).sum(axis=1)
        pull = multipliers + springs * excess
        return np.array(
            [
                springs @ np.square(square) / 2,
                springs @ (linear * square),
                pull @ square + springs @ np.square(linear) / 2 - np.vdot(direction, direction),
                pull @ linear - 2 * np.vdot(coordinates, direction),
            ]
        )


def incidence(edges: Integers, n_samples: int) -> sp.csr_array:
    """Return the matrix (e, n) whose product with coordinates gives the differences along edges."""
    e = len(edges)
    values = np.tile([1.0, -1.0], e)
    return sp.csr_array((values, edges.reshape(-1), 2 * np.arange(e + 1)), shape=(e, n_samples))


def laplacian(along: sp.csr_array, weights: Float64) -> sp.csc_array:
    """Return the Laplacian (n, n) of a graph of weighted edges, from its incidence matrix (e, n)."""
    return (along.T @ (weights[:, None] * along)).tocsc()


def along_axes(coordinates: Float64) -> Float64:
    """Return centred coordinates (n, r) along their principal axes, by descending variance."""
    left, scales, _ = np.linalg.svd(coordinates - coordinates.mean(axis=0), full_matrices=False)
    turned: Float64 = left * scales
    return turned


class _GaussNewtonInverse:
    """Inverse of the positive part of the Lagrangian's second derivatives, by sparse factors.

    Tensions act on each coordinate by itself, springs couple the coordinates along which their edges lie. The coupling
    of the leading coordinates is included as far as factors stay small: where many coordinates matter, as for graphs in
    high dimensions, factors fill, but the problem is well conditioned without it.
    """

    def __init__(
        self, problem: AugmentedLagrangian, coordinates: Float64, multipliers: Float64, springs: Float64
    ) -> None:
        # Without the pull of springs, which from a rough start would stiffen the coordinates that have to unfold.
        tensions = np.maximum(multipliers, _LEAST_TENSION * problem.tension)
        # Shifts of all samples, which do not matter, make the Laplacian singular.
        shift = 1e-6 * problem.tension * sp.eye_array(problem.n_samples)
        single = (laplacian(problem.along, 2 * tensions) + shift).tocsc()
        self._single = factors_of_definite(single)
        coupled = min(_COUPLED, coordinates.shape[1], int(np.sqrt(_MOST_ENTRIES / self._single.nnz)))
        self._coupled, self._leading = coupled, None
        if coupled > 1:
            # Entries 2 sqrt(spring) (difference) of both ends of an edge, whose squares are the second derivatives.
            slopes = 2 * np.sqrt(springs)[:, None] * (problem.along @ coordinates[:, :coupled])
            columns = (problem.edges[:, :, None] * coupled + np.arange(coupled)).reshape(-1)
            starts = 2 * coupled * np.arange(len(slopes) + 1)
            shape = (len(slopes), coupled * problem.n_samples)
            slope = sp.csr_array((np.hstack([slopes, -slopes]).reshape(-1), columns, starts), shape=shape)
            self._leading = factors_of_definite((slope.T @ slope + sp.kron(single, sp.eye_array(coupled))).tocsc())

    def __call__(self, gradient: Float64) -> Float64:
        """Return the inverse times a gradient, (n, r), centred: the variance grows without end along a shift."""
        result, coupled = np.empty_like(gradient), self._coupled if self._leading is not None else 0
        if self._leading is not None:
            flat = np.ascontiguousarray(gradient[:, :coupled]).reshape(-1)
            result[:, :coupled] = self._leading.solve(flat).reshape(-1, coupled)
        if coupled < gradient.shape[1]:
            result[:, coupled:] = self._single.solve(np.ascontiguousarray(gradient[:, coupled:]))
        result -= result.mean(axis=0)
        return result


class _Pair(NamedTuple):
    """Step, change of the gradient, and the reciprocal of their inner product."""

    step: Float64
    change: Float64
    reciprocal: float


class _Memory:
    """Inverse Hessian of L-BFGS: a preconditioner, corrected by the last steps."""

    def __init__(self, inverse: _GaussNewtonInverse) -> None:
        self._inverse, self._scale = inverse, 1.0
        self._pairs: deque[_Pair] = deque(maxlen=_PAIRS)

    def add(self, step: Float64, change: Float64) -> None:
        """Remember a step, unless the curvature along it is negative."""
        inner = float(np.vdot(step, change))
        if inner > 0:
            self._pairs.append(_Pair(step, change, 1 / inner))
            self._scale = inner / float(np.vdot(change, self._inverse(change)))

    def times(self, gradient: Float64) -> Float64:
        """Return the inverse Hessian times a gradient."""
        rest, shares = gradient.copy(), []
        for pair in reversed(self._pairs):
            shares.append(pair.reciprocal * float(np.vdot(pair.step, rest)))
            rest -= shares[-1] * pair.change
        result = self._scale * self._inverse(rest)
        for pair, share in zip(self._pairs, reversed(shares), strict=True):
            result += (share - pair.reciprocal * float(np.vdot(pair.change, result))) * pair.step
        return result


def _lowest(polynomial: Float64) -> tuple[float, float]:
    """Return the step to the lowest value of a polynomial without constant term, and the decrease."""
    roots = np.roots(polynomial * [4, 3, 2, 1])
    steps = np.append(roots.real[np.abs(roots.imag) <= 1e-9 * np.abs(roots)], 0.0)
    values = np.polyval(np.append(polynomial, 0.0), steps)
    return float(steps[values.argmin()]), -float(values.min())
