"""Leading eigenpairs that a plan requests of a symmetric matrix in memory: the last step of exact methods."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...arrays import Float64
from ...eigensolvers import Rule, Solution, Wanted, elbow, noise_edge, solve_dense, start_lanczos
from ...eigensolvers.error_bounds import lengths
from ...events import Listener, Solving, Warned
from ...machine import hand_back
from ...planning import Plan
from ...planning.memory import basis_bytes, block_width, dense_bytes, dense_flops, step_bytes
from ...planning.rates import solve_work
from ...signals import safe_point

# Rounding of S v in float64, relative to sqrt(p) times the first eigenvalue: at most a quarter of it was observed, with
# flat, steep, positive and rank-one spectra of 20 to 1000 features.
ROUNDING = 2 * float(np.finfo(np.float64).eps)
RESIDUAL_COLUMNS = 64  # columns multiplied at a time
MOST_SCALE = 1000  # largest exponent of a scale; those of float64 end at 1023
# Blocks of the basis where there is memory for a dense solve: of 2304 features with k = 50 and slow decay 25 steps take
# 1.2 s where 4 blocks take 37 and 1.5 s, and a dense solve 1.05 s.
MORE_BLOCKS = (8, 6)
TELLING = 5  # latest steps whose residuals tell how many more there are
PATIENCE = 3  # largest cost of Lanczos, in dense solves
NOT_CONVERGED = (
    "the eigensolver that fits the budget did not converge for all components, as their variances are close together; "
    "the others were left out. Set more memory, or ask for fewer components."
)


class Symmetric(Protocol):
    """Positive semi-definite matrix: the scatter of features, or the Gram matrix of samples."""

    @property
    def size(self) -> int:
        """Order of the matrix."""

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues."""

    def matrix(self) -> Float64:
        """Return a new copy, Fortran order, upper triangle."""

    def multiply(self, block: Float64) -> Float64:
        """Return the product with a block of columns."""


class SummedExactly(Symmetric, Protocol):
    """Matrix that was summed exactly, and then centred in float64."""

    @property
    def mean_rounding(self) -> float:
        """Bound on the norm of the rounding that subtracting the mean adds to the matrix."""


def leading_pairs(
    matrix: Symmetric,
    plan: Plan,
    listener: Listener,
    total_weight: float | None = None,
    *,
    signed: bool = False,
) -> Solution:
    """Return the pairs that the plan requests, by the plan's solver; warn if the budget holds fewer.

    Parameters
    ----------
    matrix : Symmetric
        Matrix of features or of samples, with a trace above 0.
    plan : Plan
        Solver, room for components, and request.
    listener : callable
        Receives the start of the solve, and warnings.
    total_weight : float, optional
        Sum of the samples' weights, if any.
    signed : bool, default=False
        If true, eigenvalues can be negative; see `solve_dense`.
    """
    wanted, trace = wanted_of(plan, total_weight), matrix.trace
    seconds = solve_work(matrix.size, plan.solver).seconds(plan.cores, rates=plan.rates)
    listener(Solving(f"eigenvectors of a {matrix.size} x {matrix.size} matrix", seconds))
    solution = _lanczos(matrix, wanted, plan, listener) if plan.solver == "lanczos" else None
    if solution is None:
        hand_back()
        most, room = plan.problem.most_components, plan.dense_room
        solution = solve_dense(matrix.matrix, wanted, most=most, room=room, signed=signed)
    return chosen_of(solution, trace, plan, listener, total_weight=total_weight)


def chosen_of(
    solution: Solution,
    trace: float,
    plan: Plan,
    listener: Listener,
    *,
    full: bool = True,
    total_weight: float | None = None,
) -> Solution:
    """Return the pairs of a solution that the plan requests; warn if the budget holds fewer.

    Parameters
    ----------
    solution : Solution
        All computed pairs.
    trace : float
        Trace of the matrix.
    plan, listener, total_weight
        See `leading_pairs`.
    full : bool
        Whether lack of memory is the reason if there are fewer pairs than requested.
    """
    wanted = wanted_of(plan, total_weight)
    if plan.request.n_components == "elbow":
        # All shown values have been computed: cut them at the elbow.
        rule = _rule_of(plan, "elbow", total_weight)
        return solution.first(rule.count(solution.values, trace, False) or elbow(solution.values))
    if full and isinstance(wanted, Rule):
        _warn_of_rule(wanted, solution, trace, plan, listener)
    if full and isinstance(wanted, float) and np.sum(solution.values) < wanted * trace * (1 - 1e-12):
        reached, share = len(solution.values), float(np.sum(solution.values)) / trace
        text = (
            f"memory allows {reached} components, which hold {share:.2%} of the variance, and {wanted:.2%} was asked "
            f"for; these {reached} were kept. Set more memory for the rest."
        )
        listener(Warned(text))
    return solution


def wanted_of(plan: Plan, total_weight: float | None = None) -> Wanted:
    """Return the number or rule for a solver; for an elbow, the number of pairs whose values show it."""
    wanted, problem = plan.request.n_components, plan.problem
    if wanted == "elbow":
        return plan.request.counted_on(problem.most_components)
    if isinstance(wanted, int):
        return min(wanted, problem.most_components)  # a part of a collection can have fewer components
    return _rule_of(plan, wanted, total_weight) if isinstance(wanted, str) else wanted


def _rule_of(plan: Plan, name: str, total_weight: float | None) -> Rule:
    return Rule(name, plan.problem.n_samples, plan.problem.n_features, total_weight)


def _warn_of_rule(rule: Rule, solution: Solution, trace: float, plan: Plan, listener: Listener) -> None:
    eigenvalues = solution.values if solution.spectrum is None else solution.spectrum
    count = rule.count(eigenvalues, trace, solution.spectrum is not None)
    reached = len(solution.values)
    if count is None or count > reached:
        text = f"the rule asks for {reached} components or more, and memory allows {reached}. Set more memory for more."
        listener(Warned(text))
    elif rule.name == "mp" and solution.values[0] <= noise_edge(eigenvalues, trace, 0, rule.copies, rule.n_features):
        listener(Warned("no component has more variance than white noise would; the first was kept."))


def _lanczos(matrix: Symmetric, wanted: Wanted, plan: Plan, listener: Listener) -> Solution | None:
    """Return leading pairs by products with the matrix in memory.

    Returns None as soon as a dense solve that fits would have cost less; if none fits, the pairs that `PATIENCE`
    reached.
    """
    scale = scale_of(matrix.trace)
    limit = _columns_within(dense_bytes(matrix.size, plan.dense_room), matrix.size, wanted) if plan.dense_room else None
    total = matrix.trace * scale
    state = start_lanczos(matrix.size, wanted=wanted, total=total, limit=limit, seed=plan.request.seed)
    spent, allowed, worst = 0.0, dense_flops(matrix.size), list[float]()
    while state.solution is None:
        safe_point()
        spent += state.flops
        left = _steps_left(worst, state.tol, wanted)
        # Clustered eigenvalues converge slowly; a dense solve is then faster than what is left.
        slow = spent if left is None else max(left * state.flops, spent / PATIENCE)
        if plan.dense_room and slow > allowed:
            return None
        if spent > PATIENCE * allowed:
            listener(Warned(NOT_CONVERGED))
            return state.so_far().first(plan.room).scaled(1 / scale)
        product = matrix.multiply(state.wants)
        product *= scale
        state = state.step(product)
        worst.append(state.worst)
    # A fraction needs more vectors than fit, but a dense solve can hold them.
    if len(state.solution.values) > plan.room and plan.dense_room > plan.room:
        return None
    return state.solution.first(plan.room).scaled(1 / scale)


def _columns_within(memory: int, size: int, wanted: Wanted) -> int | None:
    """Return the columns of a basis that takes no more than a dense solve; None for as many as there are by default."""
    width = min(block_width(wanted), size)
    fitting = (blocks * width for blocks in MORE_BLOCKS if isinstance(wanted, int))
    return next((most for most in fitting if basis_bytes(size, most) + step_bytes(size, width, most) <= memory), None)


def _steps_left(worst: list[float], tol: float, wanted: Wanted) -> float | None:
    """Predict the further steps to a tolerance by what the latest ones gained; None where these do not tell.

    That is where the number of pairs is open, and before some steps have found as many as are wanted.
    """
    # A residual below the tolerance, which can be 0, tells no more than one at it.
    reached = [max(residual, tol) for residual in worst if residual < math.inf][-TELLING:]
    if not isinstance(wanted, int) or len(reached) < TELLING:
        return None
    gained = math.log(reached[0] / reached[-1])
    return (TELLING - 1) * math.log(reached[-1] / tol) / gained if gained > 0 else math.inf


def residuals_of(matrix: Symmetric, values: Float64, vectors: npt.NDArray[Any]) -> Float64:
    """Return |S v - value v| of k claimed pairs, (k,), in float64, some columns at a time."""
    residuals = np.empty(len(values))
    for start in range(0, len(values), RESIDUAL_COLUMNS):
        chunk = slice(start, start + RESIDUAL_COLUMNS)
        columns = np.asfortranarray(vectors[:, chunk], np.float64)
        residuals[chunk] = lengths(matrix.multiply(columns) - columns * values[chunk])
    return residuals


def residual_bounds(matrix: SummedExactly, values: Float64, vectors: npt.NDArray[Any]) -> Float64:
    """Bound the residuals of k claimed pairs, (k,), by computing them, plus the rounding of this computation."""
    bounds = residuals_of(matrix, values, vectors)
    bounds += ROUNDING * matrix.size**0.5 * float(values.max(initial=0.0)) + matrix.mean_rounding
    return bounds


def scale_of(trace: float) -> float:
    """Return the power of two that scales a trace to about 1, so that squares and fourth powers fit float64."""
    return float(2.0 ** min(MOST_SCALE, -round(np.log2(trace))))


def next_value(solution: Solution, p: int) -> float | None:
    """Return an upper bound on eigenvalue k + 1, if known; minus infinity if k is p."""
    k, spectrum = len(solution.values), solution.spectrum
    if k == p:
        return -np.inf
    if spectrum is None:
        return solution.next_value
    return float(spectrum[k]) if k < len(spectrum) else 0.0
