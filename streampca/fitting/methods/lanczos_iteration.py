"""`LanczosIteration`, the loop of method 'randomized' over passes, along features or along samples."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np

from ...accumulators import GramBlock, ScatterBlock, SymmetricBlock
from ...accumulators.plain_state import as_arrays, as_values
from ...eigensolvers import Lanczos, Solution, outside_bound_of_basis, product_bounds, ritz_pairs, start_lanczos
from ...events import Converging, Listener, Solving
from ...execution.checkpoint import StageCheckpoint
from ...machine import hand_back
from ...planning import Plan
from ...signals import safe_point
from .data_checks import check_variance
from .gram_pairs import RANKS
from .job import Array, Float64, Job, stored_dtype
from .leading_pairs import chosen_of, scale_of, wanted_of

MOST_PASSES = 30  # by default; spectra that need more are as good as flat
TRACE = {"single": 1e-6, "double": 1e-12}  # rounding of the trace, of itself
STAGE = "lanczos"  # name of the checkpoint between passes


A = TypeVar("A", ScatterBlock, GramBlock, SymmetricBlock)


@dataclass(kw_only=True)
class LanczosIteration(abc.ABC, Generic[A]):
    """The state of the iteration: the solver, and the measurements of the passes.

    Attributes
    ----------
    solver : Lanczos
        Its next block is multiplied next.
    precision : {"single", "double"}
        Of products; double once single ones are in the way of what is asked for.
    passes : int
        Products with a block so far, each of a read of the collection.
    settles : int
        Components that a full basis is to settle, which holds fewer than are wanted; 0 where it holds them all.
    products, rounding : ndarray of shape (size, 16) or None
        Of the operator with random directions, and the error of that; None before they are measured.
    trace, scale : float
        Of the operator; a power of two that it is multiplied by, the trace being about 1 then: squares fit float64
        whatever the data.
    """

    solver: Lanczos
    precision: str
    passes: int = 0
    settles: int = 0
    products: Float64 | None = None
    rounding: Float64 | None = None
    trace: float = 0.0
    scale: float = 0.0

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Everything as plain arrays; without `copy` those that are worked on."""
        mine = {name: value for name, value in vars(self).items() if name != "solver"}
        found = {**as_arrays(mine, "iteration."), **as_arrays(self.solver.state(), "solver.")}
        return {name: array.copy() if copy else array for name, array in found.items()}

    @classmethod
    def from_state(cls, state: dict[str, Array], begin: dict[str, Any]) -> Self:
        """Inverse of `state`, for a solver that began in this way (`beginning`)."""
        mine, solver = as_values(state, "iteration."), as_values(state, "solver.")
        how = {**begin, "total": mine["trace"] or begin["total"], "wanted": mine["settles"] or begin["wanted"]}
        return cls(solver=start_lanczos(solver["columns"].shape[1], state=solver, **how), **mine)

    @property
    def block(self) -> Array:
        """The block to multiply next, in the precision of products."""
        return self.solver.wants.astype(np.float64 if self.precision == "double" else np.float32)

    @property
    def ranks(self) -> dict[str, float]:
        """Share of the first eigenvalue below which a pair has no direction, by precision."""
        return RANKS

    def checkpoint(self, job: Job) -> StageCheckpoint | None:
        """Return the checkpoint of the next pass, which is saved with the iteration it belongs to."""
        checkpoint = job.checkpoint("product")
        if checkpoint is not None:
            checkpoint.number = self.passes + 1
            checkpoint.save_first(STAGE, self.passes, self)
        return checkpoint

    def iterate(self, job: Job, most: int, multiply: Callable[[], A]) -> Solution:
        """Make passes until the solver has what is wanted, at most so many; what was found by then.

        `multiply` makes one: it reads everything, and multiplies `block`.
        """
        while self.solver.solution is None and self.passes < most:
            safe_point()
            # Nothing here holds what a pass found: the next one needs the memory.
            self._learn(multiply(), job, may_continue=self.passes + 1 < most)
            checkpoint = job.checkpoint(STAGE)
            if checkpoint is not None and self.solver.solution is None:
                checkpoint.save_if_due(0, 0, self.passes, self)
        return self.solver.solution or self.solver.so_far(np.inf)

    def _learn(self, found: A, job: Job, *, may_continue: bool) -> None:
        """Take over what a pass found, and have the solver say what comes next."""
        self.passes += 1
        if found.probes() is not None:
            check_variance(found.trace, job.collection.source, job.plan)
            self._scale_by(found.trace)
            self._measure(found, job)
        product = found.take()
        product *= self.scale
        self.step(product, job.listener, may_continue=may_continue)

    @abc.abstractmethod
    def _measure(self, found: A, job: Job) -> None:
        """Store the measurements of a pass that has any."""

    def _scale_by(self, trace: float) -> None:
        """Take over the trace, and the scale where there is none yet."""
        self.scale = self.scale or scale_of(trace)
        self.trace = trace * self.scale
        self.solver = replace(self.solver, total=self.trace)

    def step(self, product: Float64, listener: Listener, *, may_continue: bool) -> None:
        """Have the solver make a step; where single products are in the way, the next are double, if there are any."""
        listener(Solving(f"extending the basis by {product.shape[1]} vectors"))
        before = self.solver
        solver = before.step(product)
        if _is_full(before, solver):
            self.settles = max(1, solver.limit - solver.width - solver.width // 2)
            solver = replace(solver, wanted=self.settles)
        if self.passes == 1 and solver.solution is not None and solver.asked:
            solver = replace(solver, solution=None)  # what is rare has had no chance to be found
        found = solver.solution
        is_rough = solver.is_rough if found is None else self._directions(found, solver) < len(found.values)
        if is_rough and self.precision == "single" and may_continue:
            solver, self.precision = solver.refined(), "double"
            self.products = self.rounding = None  # measured again: the bounds are to be as good
        self.solver = solver
        hand_back()
        listener(Converging(self.passes, solver.worst, solver.tol))

    def chosen(self, solution: Solution, job: Job) -> Solution:
        """Return those pairs that fit the budget, have a direction, and were requested."""
        full = self.settles > 0 or len(solution.values) > job.plan.room
        found = self._with_direction(solution.first(job.plan.room), job)
        return chosen_of(found, self.trace, job.plan, job.listener, full=full, total_weight=job.total_weight)

    def is_settled(self, chosen: Solution) -> bool:
        """Return whether the iteration ended because it converged."""
        return self.solver.solution is not None and not np.any(chosen.residuals > self.solver.tol * chosen.values)

    def dtype_of(self, values: Float64, plan: Plan) -> np.dtype[Any]:
        """Return the dtype to store components in: double where float32 would not keep residuals below the tolerance.

        Double is taken where products had to become double, and where they are double by plan and rounding components
        to float32 would leave residuals above the tolerance.
        """
        rounded = np.finfo(np.float32).eps * values[0] > self.solver.tol * values[-1]
        if self.precision == "double" and (rounded or plan.precision != "double"):
            return np.dtype(np.float64)
        return stored_dtype(values, plan)

    def beyond(self, values: Float64, directions: Float64) -> tuple[float, Float64]:
        """Bounds on what so many leading pairs leave of the operator, and on how wrong the products were they are of.

        By the whole basis, given the random directions that `products` are of, (size, 16).
        """
        if self.products is None:
            raise AssertionError("no pass has measured anything")
        solver, rounding, count = self.solver, self.rounding, len(values)
        basis, block, coupling = solver.basis, solver.wants, solver.coupling
        _, ritz = ritz_pairs(solver.projected)
        outside = outside_bound_of_basis(
            basis, solver.projected, block, coupling, count,
            directions=directions, products=self.products, rounding=rounding,
            total=self.trace * (1 + TRACE[self.precision]),
        )  # fmt: skip
        found = ((basis.T @ self.products).T @ ritz[:, :count], (basis.T @ directions).T @ ritz[:, :count] * values)
        beside = (directions.T @ block) @ (coupling @ ritz[:, :count])
        off = None if rounding is None else (basis.T @ rounding).T @ ritz[:, :count]
        return outside, product_bounds(found[0], found[1] + beside, rounding=off)

    def unsettled(self, error_bound: Float64, plan: Plan) -> str:
        """Say that components are not what was asked for, given the bounds of their errors."""
        most, tol = float(np.max(error_bound, initial=0.0)), plan.request.tol
        count = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        rank = "Each is right within its error bound, but components with larger variances may have been missed."
        remedy = "Allow more passes by --max-passes (max_passes)."
        if self.solver.solution is not None:
            remedy = "The rest is rounding error: ask for fewer components, or for a larger --tol (tol)."
        elif self.solver.worst <= tol:
            return f"components of a single pass may not be the leading ones. {rank} {remedy}"
        return (
            f"components have not converged to tol={tol:g} after {count}: their errors are at most {most:.1e} of their "
            f"variances. {rank} {remedy}"
        )

    def _directions(self, solution: Solution, solver: Lanczos) -> int:
        """Count the leading pairs that have a direction: rounding has none."""
        least = self.ranks[self.precision] * solution.values[0]
        return int(np.count_nonzero(solution.values > max(least, solver.rounding)))

    def _with_direction(self, solution: Solution, job: Job) -> Solution:
        """Return the pairs that have a direction; say what became of the others."""
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


def beginning(job: Job) -> dict[str, Any]:
    """Return the arguments that the solver starts with."""
    plan = job.plan
    return {
        "wanted": wanted_of(plan, job.total_weight), "total": np.inf, "tol": plan.request.tol, "width": plan.width,
        "limit": plan.columns,
    }  # fmt: skip


def _is_full(before: Lanczos, after: Lanczos) -> bool:
    """Return whether the basis was restarted before it held all wanted pairs, as it would be forever."""
    return after.solution is None and np.isinf(after.worst) and after.known < before.known + before.asked
