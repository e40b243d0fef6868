"""Maximum variance unfolding of thousands of samples: a kernel of few smooth vectors, refined at low rank.

The kernel is first approximated by Q Y Q^T, with the smoothest eigenvectors of the graph's Laplacian in Q and a small
matrix Y. Its leading eigenvectors are then refined as free coordinates by an augmented Lagrangian, because smooth
vectors alone leave lengths of edges wrong by tens of per cent.

References
----------
Weinberger, Sha, Zhu and Saul (2007), "Graph Laplacian regularization for large-scale semidefinite programming".
Burer and Monteiro (2003), "A nonlinear programming algorithm for solving semidefinite programs via low-rank
factorization".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.sparse.linalg import ArpackError, eigsh, splu

from ..arrays import Float64
from ..eigensolvers import fix_signs, solve_dense
from ..eigensolvers.sparse import pairs_above
from ..signals import safe_point

Integers = npt.NDArray[np.int64]

N_VECTORS = 40
SHIFT = 1e-3  # subtracted from the smallest eigenvalue, 0, of the Laplacian of weights 1, so that it can be factored
# Relative violation of an edge for a multiplier of 1 with smooth vectors alone, which cannot satisfy all edges.
_PENALTY = 1e-3
_NEWTON_STEPS = 60
# Last barrier as a share of the trace: Cholesky factorisation fails at about 1e-6, and this is only a start.
_LAST_BARRIER = 1e-3
# Rounds of the augmented Lagrangian, steps of L-BFGS in each, first stiffness in mean tensions, and its growth per
# round.
_ROUNDS, _STEPS, _STIFFNESS, _GROWTH = 10, 200, 10.0, 1.7
# Largest number of directions of negative curvature for a bound on the gap: rolls of 2000 samples have about 90.
_MOST_NEGATIVE = 400


@dataclass(frozen=True, eq=False)
class FactorizedSolution:
    """Coordinates whose inner products form a kernel of large trace.

    Attributes
    ----------
    coordinates : ndarray of shape (n, r)
        Centred, along principal axes, by descending variance.
    multipliers : ndarray of shape (e,)
        Derivative of the variance with respect to each squared length.
    gap : float
        Bound on the difference to the trace of the best kernel of any rank, relative to the trace; NaN if unknown.
    iterations : int
        Steps of L-BFGS.
    converged : bool
        True if 95 per cent of the edges are within the tolerance.
    """

    coordinates: Float64
    multipliers: Float64
    gap: float
    iterations: int
    converged: bool


def maximize_trace_factorized(
    edges: Integers,
    squared_lengths: Float64,
    n_samples: int,
    *,
    rank: int = 10,
    n_vectors: int = N_VECTORS,
    tol: float = 1e-3,
    seed: int = 0,
) -> FactorizedSolution:
    """Find coordinates of large variance that keep the lengths of edges.

    Parameters
    ----------
    edges : ndarray of shape (e, 2)
        Pairs of samples, each once, of a connected graph.
    squared_lengths : ndarray of shape (e,)
        Squared lengths to keep.
    n_samples : int
        Number of samples, n.
    rank : int, default=10
        Number of coordinates, r: more than needed, so that the iteration can reach the best ones through the others.
    n_vectors : int, default=40
        Number of eigenvectors of the graph's Laplacian, v, in which the search starts; at least `rank` and at most n -
        2 are used.
    tol : float, default=1e-3
        Relative violation, of 95 per cent of the edges, and change of the trace, at which to stop.
    seed : int, default=0
        Seed of the starting vector of the eigensolver.

    Returns
    -------
    FactorizedSolution

    Notes
    -----
    Cost: about 12 Cholesky factorisations of v^2 / 2 unknowns, and 2000 products of e x r numbers; memory: e v^2 / 2
    numbers.
    """
    # Relative violations need positive lengths.
    unit = float(squared_lengths.mean())  # L-BFGS stops by absolute tolerances
    lengths = np.maximum(squared_lengths / unit, 1e-3)
    weights = 1.0 / lengths
    n_vectors = min(max(n_vectors, rank), n_samples - 2)
    smooth = pairs_above(laplacian(edges, np.ones(len(edges)), n_samples), n_vectors + 1, -SHIFT, seed=seed)[1][:, 1:]
    kernel = _smooth_kernel(smooth, edges, lengths)
    pairs = solve_dense(lambda: np.asfortranarray(kernel), min(rank, n_vectors), most=n_vectors)
    start = smooth @ (pairs.vectors * np.sqrt(pairs.values))
    # The mean multiplier, as multipliers times lengths add up to the trace.
    tension = float(np.trace(kernel) / lengths.sum())
    # At the maximum of the penalised problem, multipliers are violations over the penalty.
    multipliers = (_squared(smooth @ np.linalg.cholesky(kernel), edges) - lengths) * weights / _PENALTY
    refined = _refined(_Lagrangian(edges, lengths, n_samples), start, multipliers, tension, tol, seed)
    return replace(refined, coordinates=np.sqrt(unit) * refined.coordinates)


def laplacian(edges: Integers, weights: Float64, n_samples: int) -> sp.csc_array:
    """Return the Laplacian (n, n) of a graph of weighted edges."""
    incidence = _incidence(edges, n_samples)
    return (incidence.T @ (weights[:, None] * incidence)).tocsc()


def _incidence(edges: Integers, n_samples: int) -> sp.csr_array:
    """Return the matrix (e, n) whose product with coordinates gives the differences along edges."""
    e = len(edges)
    values = np.tile([1.0, -1.0], e)
    return sp.csr_array((values, edges.reshape(-1), 2 * np.arange(e + 1)), shape=(e, n_samples))


def _squared(coordinates: Float64, edges: Integers) -> Float64:
    """Return the squared lengths of edges, (e,)."""
    squares: Float64 = np.square(coordinates[edges[:, 0]] - coordinates[edges[:, 1]]).sum(axis=1)
    return squares


def _smooth_kernel(smooth: Float64, edges: Integers, lengths: Float64) -> Float64:
    """Return Y, (v, v), for which smooth Y smooth^T has a large trace and approximates the lengths of edges.

    Newton steps maximise tr Y - sum of (relative violation)^2 lengths / (2 penalty) + barrier log det Y for a
    decreasing barrier. The unknowns are the upper triangle of Y, with off-diagonal entries times the root of 2.
    """
    v = smooth.shape[1]
    rows, columns = np.triu_indices(v)
    diagonal = rows == columns
    unit = np.where(diagonal, 1.0, np.sqrt(2.0))
    along = smooth[edges[:, 0]] - smooth[edges[:, 1]]
    terms = along[:, rows] * along[:, columns] * unit
    linear = terms.sum(axis=0) / _PENALTY + diagonal
    terms *= np.sqrt(1 / (lengths[:, None] * _PENALTY))
    quadratic = terms.T @ terms
    del terms
    # Start from a diagonal Y, scaled to maximise the quadratic part along it.
    unknowns = np.where(diagonal, 1 / np.square(along).sum(axis=0)[rows], 0.0)
    unknowns *= (linear @ unknowns) / (unknowns @ quadratic @ unknowns)
    kernel = _matrix_of(unknowns / unit, v)
    barrier = float(np.trace(kernel)) / v
    for _ in range(_NEWTON_STEPS):
        safe_point()
        inverse = np.linalg.inv(kernel)
        gradient = linear - quadratic @ unknowns + barrier * inverse[rows, columns] * unit
        curvature = inverse[np.ix_(rows, rows)] * inverse[np.ix_(columns, columns)]
        curvature += inverse[np.ix_(rows, columns)] * inverse[np.ix_(columns, rows)]
        curvature *= barrier / 2 * np.outer(unit, unit)
        curvature += quadratic
        try:
            step = cho_solve(cho_factor(curvature, overwrite_a=True), gradient)
        except LinAlgError:
            break
        share = _share_inside(kernel, _matrix_of(step / unit, v))
        unknowns = unknowns + share * step
        kernel = _matrix_of(unknowns / unit, v)
        # Lower the barrier once Newton's decrement is small for the present one.
        if gradient @ step < barrier * v:
            if barrier * v < _LAST_BARRIER * np.trace(kernel):
                break
            barrier /= 10
    return kernel


def _matrix_of(upper: Float64, size: int) -> Float64:
    """Return the symmetric matrix whose upper triangle is given row by row."""
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = upper
    symmetric: Float64 = matrix + np.triu(matrix, 1).T
    return symmetric


def _share_inside(matrix: Float64, step: Float64) -> float:
    """Return a share of a step that leaves a matrix positive definite."""
    share = 1.0
    while True:
        try:
            np.linalg.cholesky(matrix + share * step)
        except np.linalg.LinAlgError:
            share *= 0.7
        else:
            return share if share == 1 else 0.9 * share


@dataclass(eq=False)
class _Lagrangian:
    """Problem of free coordinates."""

    edges: Integers
    lengths: Float64
    n_samples: int

    def __post_init__(self) -> None:
        self.along = _incidence(self.edges, self.n_samples)
        self.onto = self.along.T.tocsr()

    def minimize(self, start: Float64, multipliers: Float64, stiffness: float) -> tuple[Float64, int]:
        """Return coordinates that minimise the augmented Lagrangian, and the number of steps."""
        weights = stiffness / self.lengths

        def value(flat: Float64) -> tuple[float, Float64]:
            safe_point()
            coordinates = flat.reshape(start.shape)
            differences = self.along @ coordinates
            excess = np.square(differences).sum(axis=1) - self.lengths
            # Gradient of -tr K + y^T excess + weights excess^2 / 2: Laplacian of the pulls times coordinates.
            pull = multipliers + weights * excess
            gradient = 2 * (self.onto @ (pull[:, None] * differences) - coordinates)
            return float((multipliers + weights * excess / 2) @ excess - flat @ flat), gradient.reshape(-1)

        options = {"maxiter": _STEPS, "maxfun": 2 * _STEPS, "maxcor": 20}
        result = minimize(value, start.reshape(-1), jac=True, method="L-BFGS-B", options=options)
        coordinates = result.x.reshape(start.shape)
        # The Lagrangian does not depend on a shift of all coordinates.
        return coordinates - coordinates.mean(axis=0), int(result.nit)


def _refined(
    problem: _Lagrangian, coordinates: Float64, multipliers: Float64, tension: float, tol: float, seed: int
) -> FactorizedSolution:
    """Return coordinates that satisfy the lengths of edges, from approximate ones."""
    stiffness, iterations, converged, trace = _STIFFNESS * tension, 0, False, np.inf
    for _ in range(_ROUNDS):
        coordinates, steps = problem.minimize(coordinates, multipliers, stiffness)
        relative = _squared(coordinates, problem.edges) / problem.lengths - 1
        multipliers = multipliers + stiffness * relative
        iterations, last, trace = iterations + steps, trace, float(np.square(coordinates).sum())
        converged = bool(np.quantile(np.abs(relative), 0.95) < tol and abs(trace - last) < tol * trace)
        if converged:
            break
        stiffness *= _GROWTH
    left, scales, _ = np.linalg.svd(coordinates, full_matrices=False)
    gap = float(np.maximum(0.0, _bound(problem, multipliers, seed) / trace - 1))  # NaN without a bound
    return FactorizedSolution(fix_signs(left) * scales, multipliers, gap, iterations, converged)


def _bound(problem: _Lagrangian, multipliers: Float64, seed: int) -> float:
    """Return an upper bound on the trace of all kernels with these lengths of edges; NaN if none is found.

    For any multipliers y with Laplacian L the trace is y^T lengths - tr K (L - 1). In the last term only eigenvectors u
    of L - 1 with negative eigenvalues can raise the bound, each by |eigenvalue| u^T K u. With u = sum of f_e
    (difference along edge e), |K^(1/2) u| is at most the sum of |f_e| lengths_e^(1/2), for every K.
    """
    matrix = laplacian(problem.edges, multipliers, problem.n_samples)
    start = np.random.default_rng(seed).standard_normal(problem.n_samples)
    try:
        lowest = float(eigsh(matrix, k=1, which="SA", tol=1e-2, v0=start, return_eigenvectors=False)[0])
        values, vectors = _below_one(matrix, max(1e-3, 1e-3 - 1.1 * lowest), seed)
    except ArpackError:
        return np.nan
    bound = float(multipliers @ problem.lengths)
    resistance = 1 / problem.lengths
    grounded = laplacian(problem.edges, resistance, problem.n_samples)[1:, 1:]
    # Flows f along edges with divergence u: the least-squares ones, from a potential with sample 0 grounded.
    potential = np.zeros_like(vectors)
    potential[1:] = splu(grounded.tocsc()).solve(vectors[1:])
    flows = np.abs(resistance[:, None] * (problem.along @ potential))
    return bound + float((1 - values) @ (np.sqrt(problem.lengths) @ flows) ** 2)


def _below_one(matrix: sp.csc_array, below: float, seed: int) -> tuple[Float64, Float64]:
    """Return the eigenpairs of a Laplacian below 1, centred, as kernels have no constant part."""
    n, count = matrix.shape[0], 25
    while True:
        count = min(2 * count, n - 2)
        values, vectors = pairs_above(matrix, count, -below, seed=seed)
        if values[-1] >= 1:
            vectors = vectors[:, values < 1]
            return values[values < 1], vectors - vectors.mean(axis=0)
        if count >= min(_MOST_NEGATIVE, n - 2):
            return np.array([np.nan]), vectors[:, :1]
