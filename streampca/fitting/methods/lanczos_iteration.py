"""`LanczosIteration`: the loop of method 'randomized' over passes, along features or along samples."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

import numpy as np

from ...accumulators import GramBlock, ScatterBlock, SymmetricBlock
from ...accumulators.plain_state import as_arrays, as_values
from ...arrays import Array, Float64
from ...eigensolvers import (
    Lanczos,
    RestOfBasis,
    Solution,
    count_components,
    product_bounds,
    rest_of_basis,
    resume_lanczos,
    value_bounds,
)
from ...eigensolvers.error_bounds import lengths
from ...eigensolvers.pair_bounds import BEYOND, PairBounds, leading_bounds
from ...events import Converging, Listener, Solving
from ...execution.checkpoint import StageCheckpoint
from ...machine import hand_back
from ...planning import Plan
from ...signals import safe_point
from .data_checks import check_variance
from .gram_pairs import RANKS
from .job import Job, stored_dtype
from .leading_pairs import chosen_of, scale_of, wanted_of

MOST_PASSES = 30  # default limit; spectra that need more are practically flat
CERTIFIED_EVERY = 8  # narrow passes, of which one looks whether bounds meet a tolerance, which takes as long
MOST_NARROW = 100  # times the predicted passes of narrow blocks, over sparse samples in memory, that are the limit
TRACE = {"single": 1e-6, "double": 1e-12}  # relative rounding of the trace
NEAR = 0.5  # largest relative residual from which its square tells of variances
# Times what is asked for from which bounds are looked at, which takes about half a pass: the last products can still
# gain a third, but probes widen bounds as much (3000 x 2304, three spectra: of looks from 3 times on, one in ten met).
HALF_STEP = 1.5
TIGHTER = 10  # times that the residual aimed at becomes smaller where a solution is not certified as asked for
STAGE = "lanczos"  # name of the checkpoint between passes


class RitzBounds(NamedTuple):
    """Bounds on the errors of Ritz pairs.

    Attributes
    ----------
    outside : float
        Largest eigenvalue outside of them.
    wrong, residual : ndarray of shape (k,)
        Errors of the products that they are made of, and residuals.
    pairs : PairBounds
        Errors of values, and angles.
    """

    outside: float
    wrong: Float64
    residual: Float64
    pairs: PairBounds


A = TypeVar("A", ScatterBlock, GramBlock, SymmetricBlock)
T = TypeVar("T")


@dataclass(kw_only=True)
class LanczosIteration(abc.ABC, Generic[A]):
    """State of the iteration: the solver, and the measurements of the passes.

    Attributes
    ----------
    solver : Lanczos
        Solver, whose block is multiplied next.
    precision : {"single", "double"}
        Precision of products; double once rounding of single products prevents convergence.
    passes : int
        Number of products with a block so far, each by one read of the collection.
    aim : float
        Residual aimed at, if a solution was not certified as asked for and the aim became smaller; otherwise 0.
    settles : int
        Number of components to settle if the full basis cannot hold all requested ones; 0 if it can.
    products, rounding : ndarray of shape (size, 16) or None
        Products of the operator with random directions, and their error; None before they are measured.
    trace, scale : float
        Trace of the scaled operator, and the power of two that scales it to a trace of about 1, so that squares fit
        float64 for any data.
    bounded : (int, int, object) or None
        What `once` computed last: after so many passes, of so many pairs.
    """

    solver: Lanczos
    precision: str
    passes: int = 0
    aim: float = 0.0
    settles: int = 0
    products: Float64 | None = None
    rounding: Float64 | None = None
    trace: float = 0.0
    scale: float = 0.0
    bounded: tuple[int, int, Any] | None = field(default=None, repr=False)

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays; without `copy` the arrays in use."""
        values = {name: value for name, value in vars(self).items() if name not in ("solver", "bounded")}
        arrays = {**as_arrays(values, "iteration."), **as_arrays(self.solver.state(), "solver.")}
        return {name: array.copy() if copy else array for name, array in arrays.items()}

    @classmethod
    def from_state(cls, state: dict[str, Array], begin: dict[str, Any]) -> Self:
        """Return the iteration whose `state` this is, given the arguments of its solver (`beginning`)."""
        values, solver = as_values(state, "iteration."), as_values(state, "solver.")
        # A resumed solver has the measured trace, and the reduced request of a full basis.
        how = {**begin, "total": values["trace"] or begin["total"], "wanted": values["settles"] or begin["wanted"]}
        how["tol"] = values["aim"] or begin["tol"]
        return cls(solver=resume_lanczos(solver, **how), **values)

    @property
    def block(self) -> Array:
        """Block to multiply next, in the precision of products."""
        return self.solver.wants.astype(np.float64 if self.precision == "double" else np.float32)

    @property
    def total(self) -> float:
        """Upper bound on the trace of the scaled operator."""
        return self.trace * (1 + TRACE[self.precision])

    @property
    def ranks(self) -> dict[str, float]:
        """Share of the first eigenvalue below which a pair has no direction, by precision."""
        return RANKS

    def once(self, count: int, bound: Callable[[], T]) -> T:
        """Return bounds on so many pairs, computed once after each pass: a solution that met them needs them again."""
        if self.bounded is None or self.bounded[:2] != (self.passes, count):
            self.bounded = self.passes, count, bound()
        return cast("T", self.bounded[2])

    def checkpoint(self, job: Job) -> StageCheckpoint | None:
        """Return the checkpoint of the next pass, after saving the iteration that the pass belongs to."""
        checkpoint = job.checkpoint("product")
        if checkpoint is not None:
            checkpoint.number = self.passes + 1
            checkpoint.save_first(STAGE, self.passes, self)
        return checkpoint

    def iterate(self, job: Job, most: int, multiply: Callable[[], A]) -> Solution:
        """Make passes until the solver has converged, at most `most`; return the solution so far.

        `multiply` makes one pass: it reads all samples and multiplies `block`.
        """
        while self.solver.solution is None and self.passes < most:
            safe_point()
            steps = self.solver.passes
            self.solver = replace(self.solver, pairs=None)  # whose memory the pass needs
            # No reference to the result of a pass is kept, as the next pass needs the memory.
            self._learn(multiply(), job, may_continue=self.passes + 1 < most)
            if self.solver.passes > steps:
                solution = self._certified_solution(job, may_continue=self.passes < most)
                if solution is not None:
                    return solution
            checkpoint = job.checkpoint(STAGE)
            if checkpoint is not None and self.solver.solution is None:
                checkpoint.save_if_due(0, 0, self.passes, self)
        return self.solver.solution or self.so_far()

    def _certified_solution(self, job: Job, *, may_continue: bool) -> Solution | None:
        """Return the pairs if they are as certain as asked for; if a solution is not, aim at a smaller residual."""
        solver, request, reached = self.solver, job.plan.request, self.solver.worst
        solution, is_met = None, False
        if self.products is not None and self._tells_leading and self._may_be_certain(job.plan):
            solution = solver.solution or self.so_far()
            judged = solution.first(job.plan.room)
            bounds = self.asked_bounds(judged.first(self._directions(judged, solver)), job.plan)
            is_met = self._meets(bounds, job.plan)
            if is_met and request.tol_variance is None:
                reached = float(bounds.max(initial=0.0))
        job.listener(Converging(self.passes, reached, solver.tol))
        if not is_met and solver.solution is not None and may_continue:
            self._aim_lower(solver, job.plan)
        return solution if is_met else None

    def _may_be_certain(self, plan: Plan) -> bool:
        """Return whether bounds are worth looking at: for a solution always, before it if residuals are near enough."""
        solver, wanted = self.solver, plan.request.tol_variance
        if solver.solution is not None:
            return True
        if plan.sparse and self.passes % CERTIFIED_EVERY:
            return False
        if wanted is None:
            return solver.worst <= HALF_STEP * plan.request.tol
        if solver.worst <= wanted or solver.worst > NEAR:
            return solver.worst <= wanted
        values = solver.krylov.ritz[0]
        k = count_components(values, solver.total, solver.wanted) or len(values)
        after = float(values[k]) if k < len(values) else None
        bounds = value_bounds(values[:k], solver.residuals[:k], after, np.zeros(k))
        return bool(np.all(bounds <= HALF_STEP * wanted * values[:k]))

    @property
    def _tells_leading(self) -> bool:
        """True once rare directions have had the second pass that they need to be found."""
        return self.passes > 1 or not self.solver.asked

    def _aim_lower(self, solver: Lanczos, plan: Plan) -> None:
        """Go on from a solution to smaller residuals, or to double precision where these have not helped."""
        if self.precision == "single" and (self.aim or not solver.wants.shape[1]):
            self._make_double(solver)
        elif plan.request.tol_variance is not None or not self.aim:
            self.aim = solver.tol / TIGHTER
            self.solver = solver.tightened(self.aim)

    def _make_double(self, solver: Lanczos) -> None:
        """Begin again from the solver's leading pairs with products in double precision."""
        self.solver, self.precision = solver.refined(), "double"
        self.products = self.rounding = None  # measured again, for bounds in the new precision

    @staticmethod
    def _meets(bounds: Float64, plan: Plan) -> bool:
        wanted = plan.request.tol_variance
        return not np.any(bounds > (plan.request.tol if wanted is None else wanted))

    @abc.abstractmethod
    def asked_bounds(self, solution: Solution, plan: Plan) -> Float64:
        """Bound the residuals of pairs, or the errors of eigenvalues for `tol_variance`, by the eigenvalues, (k,)."""

    def so_far(self) -> Solution:
        """Return the best leading pairs that an iteration has which ends before it has converged."""
        return self.solver.so_far(np.inf)

    def _learn(self, found: A, job: Job, *, may_continue: bool) -> None:
        """Store the result of a pass, and make a step of the solver."""
        self.passes += 1
        if found.probes() is not None:
            trace = found.trace
            check_variance(trace, job.collection.source, job.plan)
            # The first measured trace decides the scale; later ones only refine the trace.
            self.scale = self.scale or scale_of(trace)
            self.trace = trace * self.scale
            self.solver = replace(self.solver, total=self.trace)
            self._measure(found, job)
        product = found.take()
        # The solver works on the scaled operator.
        product *= self.scale
        self.step(product, job.listener, may_continue=may_continue)

    @abc.abstractmethod
    def _measure(self, found: A, job: Job) -> None:
        """Store the measurements of a pass that made some."""

    def step(self, product: Float64, listener: Listener, *, may_continue: bool) -> None:
        """Make a step of the solver; if rounding of single products prevents convergence, the next ones are double."""
        listener(Solving(f"extending the basis by {product.shape[1]} vectors"))
        before = self.solver
        solver = before.step(product)
        # A restart before the basis held all requested pairs would repeat forever: settle as many as fit.
        if solver.solution is None and np.isinf(solver.worst) and solver.known < before.known + before.asked:
            self.settles = max(1, solver.limit - solver.width - solver.width // 2)
            solver = replace(solver, wanted=self.settles)
        if self.passes == 1 and solver.solution is not None and solver.asked:
            solver = replace(solver, solution=None)  # rare directions need a second pass to be found
        solution = solver.solution
        # A converged solution with pairs that rounding hides is rough as well.
        is_rough = solver.is_rough if solution is None else self._directions(solution, solver) < len(solution.values)
        self.solver = solver
        if is_rough and self.precision == "single" and may_continue:
            self._make_double(solver)
        hand_back()

    def chosen(self, solution: Solution, job: Job) -> Solution:
        """Return the requested pairs that fit the budget and are above rounding."""
        # Fewer pairs than requested are due to memory if the basis was full.
        full = self.settles > 0 or len(solution.values) > job.plan.room
        pairs = self._with_direction(solution.first(job.plan.room), job)
        return chosen_of(pairs, self.trace, job.plan, job.listener, full=full, total_weight=job.total_weight)

    def is_settled(self, residual_bound: Float64, error_bound: Float64, plan: Plan) -> bool:
        """Return whether the iteration ended because it converged, given the bounds on pairs and on variances."""
        bounds = residual_bound if plan.request.tol_variance is None else error_bound
        return self._tells_leading and self._meets(bounds, plan)

    def dtype_of(self, values: Float64, plan: Plan) -> np.dtype[Any]:
        """Return the stored dtype of components.

        It is double if products had to become double, or if they are double by plan and rounding components to float32
        would leave residuals above the tolerance.
        """
        rounded = np.finfo(np.float32).eps * values[0] > self.solver.tol * values[-1]
        if self.precision == "double" and (rounded or plan.precision != "double"):
            return np.dtype(np.float64)
        return stored_dtype(values, plan)

    def rest(self, directions: Float64) -> RestOfBasis:
        """Bound what the basis leaves, by the random directions of `products`, (size, 16)."""
        if self.products is None:
            raise AssertionError("no pass has measured anything")
        how: dict[str, Any] = {"directions": directions, "products": self.products, "rounding": self.rounding}
        return rest_of_basis(self.solver.krylov, **how, total=self.total)

    def beyond(self, values: Float64, directions: Float64) -> RitzBounds:
        """Bound the errors of the leading Ritz pairs, (k,), by the random directions of `products`, (size, 16)."""
        if self.products is None:
            raise AssertionError("no pass has measured anything")
        rounding, count = self.rounding, len(values)
        krylov, rest = self.solver.krylov, self.rest(directions)
        basis, (ritz_values, ritz) = krylov.basis, krylov.ritz
        most = min(BEYOND * count, len(ritz_values))
        ritz_values, ritz = ritz_values[:most], ritz[:, :most]
        # W^T B v by the measured products, and theta W^T v with the residual vector: see `product_bounds`.
        sketch, claimed = (basis.T @ self.products).T @ ritz, (basis.T @ directions).T @ ritz * ritz_values
        along_block = krylov.coupling @ ritz
        errors = None if rounding is None else (basis.T @ rounding).T @ ritz
        wrong = product_bounds(sketch, claimed + (directions.T @ krylov.block) @ along_block, rounding=errors)
        # B v is theta v + block @ along_block but for the error of the product, so that no probe widens the residual.
        # Along other Ritz vectors it is the error alone, by both of a pair, as the matrix is symmetric.
        residual = lengths(along_block) + wrong
        outside = {m: rest.beyond(krylov, m) for m in sorted({count, most})}
        pairs = leading_bounds(ritz_values, np.minimum(wrong, wrong[:, None]), residual, outside, count)
        return RitzBounds(outside[count], wrong[:count], residual[:count], pairs)

    def unsettled(self, residual_bound: Float64, error_bound: Float64, plan: Plan) -> str:
        """Return a warning on components that have not converged, given the bounds on their errors."""
        most, tol, wanted = float(np.max(residual_bound, initial=0.0)), plan.request.tol, plan.request.tol_variance
        count = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        rank = "Each is right within its variance bound, but components with larger variances may have been missed."
        remedy = "Allow more passes by --max-passes (max_passes=)."
        if self.solver.solution is not None:
            larger = "--tol (tol)" if wanted is None else "--tol-variance (tol_variance)"
            remedy = f"The rest is rounding error: ask for fewer components, or for a larger {larger}."
        elif wanted is None and most <= tol:
            return f"components of a single pass may not be the leading ones. {rank} {remedy}"
        if wanted is not None:
            worst = float(np.max(error_bound, initial=0.0))
            return (
                f"variances have not converged to tol_variance={wanted:g} after {count}: their errors are at most "
                f"{worst:.1e} of them. {rank} {remedy}"
            )
        return (
            f"components have not converged to tol={tol:g} after {count}: their errors are at most {most:.1e} of their "
            f"variances. {rank} {remedy}"
        )

    def _directions(self, solution: Solution, solver: Lanczos) -> int:
        """Return the number of leading pairs above rounding, which have a direction."""
        least = self.ranks[self.precision] * solution.values[0]
        return int(np.count_nonzero(solution.values > max(least, solver.rounding)))

    def _with_direction(self, solution: Solution, job: Job) -> Solution:
        """Return the pairs above rounding; warn of the others."""
        values, asked = solution.values, job.plan.request.n_components
        count = self._directions(solution, self.solver)
        if count == len(values):
            return solution
        if self.solver.solution is None:
            job.warn(
                f"{len(values) - count} of the {len(values)} components found were left out: their variances are no "
                "larger than rounding errors."
            )
            return solution.first(count)
        if isinstance(asked, int):
            dimensions = "1 dimension" if count == 1 else f"{count} dimensions"
            job.warn(f"{job.collection.source} spans {dimensions}; there are no more components.")
        return replace(solution.first(count), next_value=0.0)


def most_passes(plan: Plan) -> int:
    """Return the limit of passes where none is asked for."""
    return MOST_NARROW * math.ceil(plan.passes) if plan.sparse else MOST_PASSES


def beginning(job: Job) -> dict[str, Any]:
    """Return the arguments for the start of the solver."""
    plan = job.plan
    return {
        "wanted": wanted_of(plan, job.total_weight), "total": np.inf, "tol": plan.request.residual, "width": plan.width,
        "limit": plan.columns,
    }  # fmt: skip
