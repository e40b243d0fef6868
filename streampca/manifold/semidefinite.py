"""Kernel matrices of largest trace under linear constraints on squared distances, by an interior-point method.

Maximum variance unfolding and its relatives are such problems: maximise tr K over positive semi-definite matrices K
with sum K = 0, whose squared distances D_ij = K_ii - 2 K_ij + K_jj obey linear equalities and inequalities.

References
----------
Helmberg, Rendl, Vanderbei and Wolkowicz (1996), "An interior-point method for semidefinite programming".
Mehrotra (1992), "On the implementation of a primal-dual interior point method".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import cho_solve, lapack

from ..arrays import Float64
from ..signals import safe_point

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Share of the largest step to the boundary of the cone that is used, as in other interior-point codes.
_TO_BOUNDARY = 0.95
# Relative increase of the diagonal of the equations, tried in order, if rounding makes them indefinite near the
# solution. Without it, action respecting embeddings stopped at gaps of 1e-5.
_ROUNDINGS = (0.0, 1e-13, 1e-11)


@dataclass(frozen=True, eq=False)
class DistanceConstraints:
    """Linear constraints on the squared distances of chosen pairs of n samples.

    Attributes
    ----------
    n_samples : int
        Number of samples, n.
    pairs : ndarray of shape (e, 2)
        Pairs of samples whose squared distances appear, each once.
    matrix : csr_array of shape (m, e)
        Coefficients: constraint c is on the sum over pairs of `matrix[c, e]` times squared distance e.
    limits : ndarray of shape (m,)
        Values of these sums, or upper bounds on them.
    at_most : ndarray of bool of shape (m,)
        Constraints that are inequalities.
    softness : ndarray of shape (m,)
        Excess of a sum over its limit for a multiplier of 1, in units of squared distance. Exact equalities leave no
        interior if samples with all their neighbours span fewer dimensions than there are neighbours.
    """

    n_samples: int
    pairs: Integers
    matrix: sp.csr_array
    limits: Float64
    at_most: Flags
    softness: Float64

    def values(self, kernel: Float64) -> Float64:
        """Return the constrained sums of a kernel's squared distances, (m,)."""
        sums: Float64 = self.matrix @ squared_distances(kernel, self.pairs)
        return sums

    def laplacian(self, multipliers: Float64) -> Float64:
        """Return the adjoint: the graph Laplacian (n, n) with weights of pairs given by multipliers."""
        n, weights = self.n_samples, self.matrix.T @ multipliers
        upper = sp.coo_array((weights, (self.pairs[:, 0], self.pairs[:, 1])), shape=(n, n)).toarray()
        adjacency = upper + upper.T
        laplacian: Float64 = np.diag(adjacency.sum(axis=0)) - adjacency
        return laplacian


@dataclass(frozen=True, eq=False)
class SemidefiniteSolution:
    """Kernel of largest trace, with a bound on its gap.

    Attributes
    ----------
    kernel : ndarray of shape (n, n)
        Positive semi-definite, centred.
    multipliers : ndarray of shape (m,)
        Derivative of the trace with respect to each limit.
    gap : float
        Duality gap: the trace is short of its maximum by at most this fraction of itself.
    iterations : int
        Number of Newton steps.
    converged : bool
        True if gap and constraints reached the tolerance before steps became too short or inaccurate.
    """

    kernel: Float64
    multipliers: Float64
    gap: float
    iterations: int
    converged: bool


@dataclass(eq=False)
class _Iterate:
    """Strictly feasible dual point and an interior primal one."""

    kernel: Float64  # on the complement of the constant vector, like all matrices here
    slack: Float64  # of inequalities; 0 for equalities
    multipliers: Float64
    dual: Float64  # laplacian(multipliers) less the identity

    def moved(self, other: _Iterate, primal: float, dual: float) -> _Iterate:
        return _Iterate(
            self.kernel + primal * other.kernel,
            self.slack + primal * other.slack,
            self.multipliers + dual * other.multipliers,
            self.dual + dual * other.dual,
        )

    def complementarity(self) -> float:
        """Return the duality gap, which holds if all constraints are satisfied."""
        return float(np.vdot(self.kernel, self.dual) + self.slack @ self.multipliers)


def maximize_trace(constraints: DistanceConstraints, *, tol: float = 1e-5, max_iter: int = 60) -> SemidefiniteSolution:
    """Compute the centred positive semi-definite matrix of largest trace under constraints on squared distances.

    Parameters
    ----------
    constraints : DistanceConstraints
        Constraints whose pairs with a positive coefficient connect all samples: otherwise the trace is unbounded.
    tol : float, default=1e-5
        Duality gap and largest violation of a softened constraint, relative, at which to stop.
    max_iter : int, default=60
        Largest number of Newton steps.

    Returns
    -------
    SemidefiniteSolution
        The last iterate, even if it has not converged.

    Notes
    -----
    A step costs two products of pairs with the kernel, e^2 n multiplications at most, a Cholesky factorisation of
    m x m numbers and about 20 of n x n. Memory: about three matrices e x e and ten n x n.
    """
    # In these units, the projection on the constant vector is of the same size as the matrices it is added to.
    unit = float(constraints.limits[constraints.limits > 0].mean())
    scaled = replace(constraints, limits=constraints.limits / unit, softness=constraints.softness / unit)
    problem = _Problem(scaled)
    now, iterations, converged = problem.start(), 0, False
    while not converged and iterations < max_iter:
        safe_point()
        step = problem.step(now)
        if step is None:
            break
        now, iterations = step, iterations + 1
        converged = max(problem.gap(now), problem.violation(now)) < tol
    return SemidefiniteSolution(unit * now.kernel, now.multipliers, problem.gap(now), iterations, converged)


class _Problem:
    """Problem whose mean limit is 1, and the steps of its solution.

    A multiple of the projection on the constant vector is added before a factorisation and subtracted from the inverse:
    distances do not depend on this vector, and the cone has an interior on its complement.
    """

    def __init__(self, constraints: DistanceConstraints) -> None:
        self.constraints = constraints
        self.at_most = constraints.at_most
        n = constraints.n_samples
        self.constant = np.full((n, n), 1.0 / n)
        self.degree = n - 1 + int(self.at_most.sum())

    def start(self) -> _Iterate:
        """Return a strictly dual feasible point: equal weights on edges that make the dual matrix definite."""
        n = self.constraints.n_samples
        edges = (self.constraints.matrix.sum(axis=1) > 0).astype(np.float64)  # 0 for differences of two distances
        laplacian = self.constraints.laplacian(edges)
        identity = np.eye(n) - 2 * self.constant
        weight = next((2.0**k for k in range(100) if _definite(2.0**k * laplacian - identity)), 2.0**100)
        multipliers = np.where(self.at_most & (edges == 0), 1.0, 2 * weight * edges)
        dual = self.constraints.laplacian(multipliers) - np.eye(n) + self.constant
        kernel = n / 10 * (np.eye(n) - self.constant)
        return _Iterate(kernel, np.where(self.at_most, 1.0, 0.0), multipliers, dual)

    def residual(self, now: _Iterate) -> Float64:
        """Return the violations of softened constraints, (m,), in units of squared distance."""
        c = self.constraints
        return c.limits + c.softness * now.multipliers - now.slack - c.values(now.kernel)

    def violation(self, now: _Iterate) -> float:
        """Return the largest violation, relative to the mean limit."""
        return float(np.abs(self.residual(now)).max())

    def gap(self, now: _Iterate) -> float:
        """Return the duality gap relative to the trace."""
        return now.complementarity() / float(np.trace(now.kernel))

    def step(self, now: _Iterate) -> _Iterate | None:
        """Return the next iterate by Mehrotra's predictor and corrector; None if rounding prevents progress."""
        inverse = _inverse(now.dual + self.constant)
        if inverse is None:
            return None
        inverse -= self.constant
        factor = self.schur(now, inverse)
        if factor is None:
            return None
        residual, mean = self.residual(now), now.complementarity() / self.degree
        predicted = self.direction(now, inverse, factor, residual, 0.0, None)
        primal, dual = self.lengths(now, predicted)
        reached = now.moved(predicted, primal, dual).complementarity() / self.degree
        # The better the predicted step, the closer the corrector aims at the boundary (Mehrotra).
        target = mean * min(1.0, max(reached / mean, 0.0)) ** 2
        corrected = self.direction(now, inverse, factor, residual, max(target, 1e-3 * mean), predicted)
        primal, dual = self.lengths(now, corrected)
        if max(primal, dual) < 1e-6:
            return None
        return now.moved(corrected, primal, dual)

    def schur(self, now: _Iterate, inverse: Float64) -> tuple[Float64, bool] | None:
        """Return the Cholesky factor of the equations for multipliers, m x m."""
        c = self.constraints
        # Entries tr(A_e K A_f Z^-1) of the Schur complement, with A_e = b_e b_e^T, are products of two numbers.
        product = _between_pairs(now.kernel, c.pairs)
        product *= _between_pairs(inverse, c.pairs)
        matrix = _sandwiched(c.matrix, product)
        ratio = np.divide(now.slack, now.multipliers, out=np.zeros_like(now.slack), where=self.at_most)
        diagonal = np.diagonal(matrix) + c.softness + ratio
        for rounding in _ROUNDINGS:
            matrix[np.diag_indices_from(matrix)] = diagonal * (1 + rounding)
            factor, info = lapack.dpotrf(matrix, lower=True)
            if not info:
                return factor, True
        return None

    def direction(
        self,
        now: _Iterate,
        inverse: Float64,
        factor: tuple[Float64, bool],
        residual: Float64,
        target: float,
        predicted: _Iterate | None,
    ) -> _Iterate:
        """Return the Newton step to complementarity `target`, with the predicted step's second-order term."""
        c = self.constraints
        kernel = target * inverse - now.kernel
        # Equalities have no slack.
        slack = np.zeros_like(now.slack)
        at_most = self.at_most
        slack[at_most] = target / now.multipliers[at_most] - now.slack[at_most]
        if predicted is not None:
            # Mehrotra's correction: the product of the predicted changes, which a Newton step neglects.
            kernel -= _symmetric(predicted.kernel @ predicted.dual @ inverse)
            bent = predicted.slack[at_most] * predicted.multipliers[at_most]
            slack[at_most] -= bent / now.multipliers[at_most]
        # Eliminating kernel and slack leaves one symmetric system for the multipliers.
        multipliers = cho_solve(factor, c.values(kernel) + slack - residual, check_finite=False)
        dual = c.laplacian(multipliers)
        kernel -= _symmetric(now.kernel @ dual @ inverse)
        slack[at_most] -= now.slack[at_most] / now.multipliers[at_most] * multipliers[at_most]
        return _Iterate(kernel, slack, multipliers, dual)

    def lengths(self, now: _Iterate, step: _Iterate) -> tuple[float, float]:
        """Return the lengths of primal and dual along a step that stay inside their cones."""
        at_most = self.at_most
        primal = _inside(now.kernel + self.constant, step.kernel, now.slack[at_most], step.slack[at_most])
        dual = _inside(now.dual + self.constant, step.dual, now.multipliers[at_most], step.multipliers[at_most])
        return primal, dual


def squared_distances(kernel: Float64, pairs: Integers) -> Float64:
    """Return the squared distances of pairs of samples, (e,), from a kernel matrix (n, n)."""
    first, second = pairs.T
    diagonal = np.diagonal(kernel)
    squares: Float64 = diagonal[first] - 2 * kernel[first, second] + diagonal[second]
    return squares


def _between_pairs(matrix: Float64, pairs: Integers) -> Float64:
    """Return b_e^T matrix b_f for all pairs e, f, where b_e is 1 at one sample of a pair and -1 at the other."""
    first, second = pairs.T
    half = np.ascontiguousarray((matrix[first] - matrix[second]).T)
    products: Float64 = half[first]
    products -= half[second]
    return products


def _sandwiched(outer: sp.csr_array, matrix: Float64) -> Float64:
    """Return outer @ matrix @ outer.T for a symmetric matrix."""
    # Unfolding constrains each distance by itself: skip two products with the identity.
    if (outer - sp.eye_array(*outer.shape)).nnz == 0:
        return matrix
    product: Float64 = outer @ np.ascontiguousarray((outer @ matrix).T)
    return product


def _symmetric(matrix: Float64) -> Float64:
    return (matrix + matrix.T) / 2


def _definite(matrix: Float64) -> bool:
    """Return whether a symmetric matrix is positive definite."""
    return bool(lapack.dpotrf(matrix, lower=True)[1] == 0)


def _inverse(matrix: Float64) -> Float64 | None:
    """Return the inverse of a symmetric matrix; None if it is not positive definite."""
    factor, info = lapack.dpotrf(matrix, lower=True)
    if info:
        return None
    lower = lapack.dpotri(factor, lower=True)[0]
    inverse: Float64 = np.tril(lower) + np.tril(lower, -1).T
    return inverse


def _inside(matrix: Float64, step: Float64, numbers: Float64, change: Float64) -> float:
    """Return a step length, at most 1, that keeps a matrix definite and numbers positive."""
    falling = change < 0
    longest = min(1.0, float((-numbers[falling] / change[falling]).min(initial=np.inf)) * _TO_BOUNDARY)
    if _definite(matrix + longest * step):
        return longest
    low, high = 0.0, longest
    # Bisection: the step is cut to the boundary of the cone, up to 1/256 of its length.
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if _definite(matrix + middle * step) else (low, middle)
    return _TO_BOUNDARY * low
