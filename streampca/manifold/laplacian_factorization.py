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

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse.linalg import ArpackError, eigsh, splu

from ..arrays import Float64
from ..eigensolvers import fix_signs, solve_dense
from ..eigensolvers.sparse import pairs_above
from ..signals import safe_point
from .augmented_lagrangian import AugmentedLagrangian, incidence, laplacian

Integers = npt.NDArray[np.int64]

N_VECTORS = 40
SHIFT = 1e-3  # subtracted from the smallest eigenvalue, 0, of the Laplacian of weights 1, so that it can be factored
# Relative violation of an edge for a multiplier of 1 with smooth vectors alone, which cannot satisfy all edges.
_PENALTY = 1e-3
_NEWTON_STEPS = 60
# Last barrier as a share of the trace: Cholesky factorisation fails at about 1e-6, and this is only a start.
_LAST_BARRIER = 1e-3
# Rounds of the augmented Lagrangian, first stiffness of springs in mean tensions, and its growth per round. Springs of
# 30000 mean tensions are as stiff as the exact method's SOFTNESS.
_ROUNDS, _STIFFNESS, _GROWTH = 10, 30.0, 4.0
_STEADY = 0.01  # relative change of the trace in the last round
# Stiffness and largest number of rounds that bound the variance, and the relative gap that is close enough. On a roll
# of 800 random points, three rounds lower the gap to 11, 9 and 5 %; multipliers of the last stiffness leave 1700 %.
_SOFT, _BOUND_ROUNDS, _CLOSE = 60.0, 3, 0.02
# Least number of coordinates, and their number per edge of a sample. With 10, a roll of 400 random points keeps 95 % of
# the edges to 2e-3, with 20 to 5e-4; more edges than unknowns cannot all be kept.
_LEAST_RANK, _RANK_PER_EDGE = 20, 2.0
# Smallest squared length of an edge that is kept, in mean ones: duplicates have none.
_LEAST_LENGTH, _LEAST_SMOOTH_LENGTH = 1e-6, 1e-3
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
    n_components: int = 2,
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
    n_components : int, default=2
        Number of coordinates that are needed. More are computed, r: the iteration reaches the best ones through the
        others, and lengths of edges are not right in few of them.
    n_vectors : int, default=40
        Number of eigenvectors of the graph's Laplacian, v, in which the search starts; at least r and at most n - 2 are
        used.
    tol : float, default=1e-3
        Relative violation, of 95 per cent of the edges, at which to stop.
    seed : int, default=0
        Seed of the starting vector of the eigensolver.

    Returns
    -------
    FactorizedSolution

    Notes
    -----
    Cost: about 12 Cholesky factorisations of v^2 / 2 unknowns, and 1500 products of e x r numbers and solutions with
    sparse factors of n x n; memory: e v^2 / 2 numbers.
    """
    unit = float(squared_lengths.mean())
    lengths = np.maximum(squared_lengths / unit, _LEAST_LENGTH)
    per_edge = int(np.ceil(_RANK_PER_EDGE * len(edges) / n_samples))
    rank = max(_LEAST_RANK, n_components + 8, min(per_edge, n_vectors))
    n_vectors = min(max(n_vectors, rank), n_samples - 2)
    start = _smooth_start(edges, np.maximum(lengths, _LEAST_SMOOTH_LENGTH), n_samples, n_vectors, seed)[:, :rank]
    # The mean multiplier, as multipliers times lengths add up to the trace.
    tension = float(np.square(start).sum() / lengths.sum())
    problem = AugmentedLagrangian(edges, lengths, n_samples, tension)
    coordinates, multipliers, steps, converged = _with_lengths(problem, start, tol)
    bound, multipliers, more = _bounded(problem, coordinates, multipliers, seed)
    gap = float(np.maximum(0.0, bound / np.square(coordinates).sum() - 1))  # NaN without a bound
    signed = fix_signs(coordinates)
    return FactorizedSolution(np.sqrt(unit) * signed, multipliers, gap, steps + more, converged)


def _smooth_start(edges: Integers, lengths: Float64, n_samples: int, n_vectors: int, seed: int) -> Float64:
    """Return coordinates (n, v) that are smooth on the graph and have approximate lengths of edges."""
    along = incidence(edges, n_samples)
    smooth = pairs_above(laplacian(along, np.ones(len(edges))), n_vectors + 1, -SHIFT, seed=seed)[1][:, 1:]
    kernel = _smooth_kernel(smooth, edges, lengths)
    pairs = solve_dense(lambda: np.asfortranarray(kernel), n_vectors, most=n_vectors)
    start: Float64 = smooth @ (pairs.vectors * np.sqrt(pairs.values))
    return start


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


def _with_lengths(problem: AugmentedLagrangian, coordinates: Float64, tol: float) -> tuple[Float64, Float64, int, bool]:
    """Return coordinates that keep the lengths of edges, early multipliers, the number of steps, and if all is right.

    The first multipliers are the smoothest, and bound the variance best; see `_bounded`.
    """
    multipliers, first = np.full(len(problem.lengths), problem.tension), None
    stiffness, iterations, trace = _STIFFNESS * problem.tension, 0, np.inf
    for _ in range(_ROUNDS):
        springs = stiffness / problem.lengths
        coordinates, steps = problem.minimize(coordinates, multipliers, springs)
        excess = problem.excess(coordinates)
        multipliers = multipliers + springs * excess
        first = multipliers if first is None else first
        iterations, last, trace = iterations + steps, trace, float(np.square(coordinates).sum())
        off = float(np.quantile(np.abs(excess / problem.lengths), 0.95))
        if off < tol and abs(trace - last) < _STEADY * trace:
            return coordinates, first, iterations, True
        stiffness *= _GROWTH
    assert first is not None  # noqa: S101 - there are rounds
    return coordinates, first, iterations, False


def _bounded(
    problem: AugmentedLagrangian, coordinates: Float64, multipliers: Float64, seed: int
) -> tuple[float, Float64, int]:
    """Return an upper bound on all traces, its multipliers, and the number of steps.

    Multipliers at great stiffness are violations magnified: they hold the errors of the minimisation, which make the
    bound useless. Soft springs from the final coordinates give smooth multipliers.
    """
    trace = float(np.square(coordinates).sum())
    springs, best, bound, iterations = _SOFT * problem.tension / problem.lengths, multipliers, np.nan, 0
    for _ in range(_BOUND_ROUNDS):
        coordinates, steps = problem.minimize(coordinates, multipliers, springs)
        multipliers = multipliers + springs * problem.excess(coordinates)
        iterations += steps
        found = _bound(problem, multipliers, seed)
        if np.isnan(bound) or found < bound:  # NaN if none was found
            bound, best = found, multipliers
        if bound < (1 + _CLOSE) * trace:
            break
    return bound, best, iterations


def _bound(problem: AugmentedLagrangian, multipliers: Float64, seed: int) -> float:
    """Return an upper bound on the trace of all kernels with these lengths of edges; NaN if none is found.

    For any multipliers y with Laplacian L the trace is y^T lengths - tr K (L - 1). In the last term only eigenvectors u
    of L - 1 with negative eigenvalues can raise the bound, each by |eigenvalue| u^T K u. With u = sum of f_e
    (difference along edge e), |K^(1/2) u| is at most the sum of |f_e| lengths_e^(1/2), for every K.
    """
    matrix = laplacian(problem.along, multipliers)
    start = np.random.default_rng(seed).standard_normal(problem.n_samples)
    try:
        lowest = float(eigsh(matrix, k=1, which="SA", tol=1e-2, v0=start, return_eigenvectors=False)[0])
        values, vectors = _below_one(matrix, max(1e-3, 1e-3 - 1.1 * lowest), seed)
    except ArpackError:
        return np.nan
    bound = float(multipliers @ problem.lengths)
    resistance = 1 / problem.lengths
    grounded = laplacian(problem.along, resistance)[1:, 1:]
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
