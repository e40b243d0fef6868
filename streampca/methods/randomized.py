"""The method for any number of samples and features: block Lanczos on the scatter matrix, which is never formed.

A pass multiplies a block of vectors, X^T (X Q), in one read; the solver says which block comes next, until the
residuals of all wanted components are small enough. The first pass finds the mean, too, and what bounds the error.

Cost: 4 n p l flops a pass for a block of l vectors, and about 4 p l flops for every column of the basis.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import eigvalsh

from ..accumulate import PROBES, Applied
from ..accumulate.probes import probe_directions
from ..events import Converging, Listener, PassFinished, PassStarted, Solving, Warned
from ..execute import Executor
from ..machine import hand_back
from ..planning import Plan
from ..readers import Collection
from ..solve import (
    Lanczos,
    Solution,
    certify,
    count_components,
    outside_bound_of_basis,
    product_bounds,
    resume_lanczos,
    ritz_pairs,
    start_lanczos,
    value_bounds,
)
from .faults import check_products, check_variance
from .leading import chosen_of, wanted_of
from .pairs import RANK, ROUGH_RANK
from .passes import AppliedTask, OfPass
from .protocol import Array, Decomposition, Float64, Keep, stored_dtype
from .samples import of_samples
from .starting import started

MOST_PASSES = 30  # where nobody says; spectra that need more are as good as flat
MOST_SCALE = 1000  # of exponents of two: those of float64 end at 1023
TRACE = {"single": 1e-6, "double": 1e-12}  # rounding of the trace, of itself
OFF_CENTRE = {"single": 6e-9, "double": 1e-15}  # rounding of products, of the variance about the centre


@dataclass
class Course:
    """How far the iteration has come: the solver, and what the first pass found.

    Attributes
    ----------
    solver : Lanczos
        Its next block is multiplied next.
    centre : ndarray of shape (p,)
        What samples are centred on.
    passes : int
        Reads of the collection so far.
    precision : {"single", "double"}
        Of products; double once single ones are in the way of what is asked for.
    began_anew : bool
        Whether the first block was multiplied twice, the sample's mean having been too far off.
    settles : int
        Components that a full basis is to settle, which holds fewer than are wanted; 0 where it holds them all.
    mean, products, rounding : ndarray or None
        The exact mean, (p,); S W and the error of it, (p, 16) each; from the first pass.
    trace, weight, n_samples : float, float, int
        Of S; sum of the weights; samples that count.
    scale : float
        A power of two that S is multiplied by, its trace being about 1 then: squares fit float64 whatever the data.
    """

    solver: Lanczos
    centre: Float64
    precision: str
    passes: int = 0
    began_anew: bool = False
    settles: int = 0
    mean: Float64 | None = None
    products: Float64 | None = None
    rounding: Float64 | None = None
    trace: float = 0.0
    weight: float = 0.0
    n_samples: int = 0
    scale: float = 0.0

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Everything as plain arrays; without `copy` those that are worked on."""
        found = {f"solver.{name}": value for name, value in self.solver.state().items()}
        mine = {name: np.asarray(value) for name, value in vars(self).items() if name != "solver" and value is not None}
        mine["precision"] = np.array(self.precision == "double")
        return {name: value.copy() if copy else value for name, value in {**found, **mine}.items()}

    @classmethod
    def from_state(cls, state: dict[str, Array], **begin: Any) -> Course:
        """Inverse of `state`, for a solver that began in this way."""
        solver = {name.removeprefix("solver."): value for name, value in state.items() if name.startswith("solver.")}
        mine: dict[str, Any] = {
            name: value if value.ndim else value.item()
            for name, value in state.items()
            if not name.startswith("solver.")
        }
        mine["precision"] = "double" if mine["precision"] else "single"
        begin["total"], begin["wanted"] = mine["trace"] or begin["total"], mine["settles"] or begin["wanted"]
        return cls(resume_lanczos(len(mine["centre"]), solver, **begin), **mine)


def fit_randomized(
    collection: Collection,
    plan: Plan,
    executor: Executor,
    *,
    weights: Float64 | None = None,
    listener: Listener,
    keep: Keep | None = None,
    scratch: str | None = None,
) -> Decomposition:
    """Carry out a plan of method 'randomized', which makes no scratch copy.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, or all samples are equal.
    """
    most = most_passes(plan)
    course = _begun(collection, plan, weights, listener, keep)
    while course.solver.solution is None and course.passes < most:
        # Nothing here holds what a pass found: the next one needs the room.
        _learn(course, _pass(course, collection, plan, executor, weights, listener, keep), collection, plan, listener)
        if keep is not None and course.solver.solution is None:
            keep("lanczos").offer(0, 0, course.passes, course)
    solution = course.solver.solution or course.solver.so_far(np.inf)
    solution = _with_direction(solution.first(plan.room), course, collection, plan, listener)
    chosen = chosen_of(solution, course.trace, plan, listener, full=course.settles > 0)
    found = _decomposed(course, chosen, plan)
    if course.solver.solution is None or np.any(chosen.residuals > plan.request.tol * chosen.values):
        listener(Warned(_unsettled(found, course, plan)))
    return found


def most_passes(plan: Plan) -> int:
    """Passes that are made at most."""
    return plan.request.max_passes or MOST_PASSES


def _begun(
    collection: Collection, plan: Plan, weights: Float64 | None, listener: Listener, keep: Keep | None
) -> Course:
    """Where the iteration starts, or where it was when it was kept."""
    begin: dict[str, Any] = {
        "wanted": wanted_of(plan), "total": np.inf, "tol": plan.request.tol, "width": plan.width, "limit": plan.columns,
    }  # fmt: skip
    saved = keep("lanczos").saved(0) if keep else None
    if saved is not None:
        return Course.from_state(saved.state, **begin)
    listener(Solving(f"where to start, from a sample of {collection.source}"))
    start = started(collection, plan, weights)
    solver = start_lanczos(collection.n_features, start=start.block, **begin)
    hand_back()
    return Course(solver, start.centre, plan.precision)


def _pass(
    course: Course,
    collection: Collection,
    plan: Plan,
    executor: Executor,
    weights: Float64 | None,
    listener: Listener,
    keep: Keep | None,
) -> Applied:
    """Read everything, and multiply what the solver wants."""
    began, number = time.perf_counter(), course.passes + 1
    width = course.solver.wants.shape[1]
    task = AppliedTask(
        vectors=course.solver.wants.astype(np.float64 if course.precision == "double" else np.float32),
        centre=course.centre,
        mean=course.mean,
        precision=course.precision,
        product_rows=plan.product_rows,
        seed=plan.request.seed,
        **of_samples(collection, plan, weights),
    )
    listener(PassStarted(f"products with {width} vectors", number, None, plan.problem.n_samples, collection.nbytes))
    keeper = None
    if keep is not None:
        keeper = OfPass(keep("product"), number)
        keeper.keeper.rest_on("lanczos", course.passes, course)
    how: dict[str, Any] = {"lanes": plan.lanes, "ahead": plan.ahead, "listener": listener, "keeper": keeper}
    applied = executor.fold(task, plan.spans, Applied.absorb, **how)
    task.release()
    applied.release()
    hand_back()
    listener(PassFinished(time.perf_counter() - began))
    return applied


def _learn(course: Course, applied: Applied, collection: Collection, plan: Plan, listener: Listener) -> None:
    """Take over what a pass found, and have the solver say what comes next."""
    course.passes += 1
    measured, drift = applied.probes(), applied.drift
    if measured is not None:
        check_variance(applied.trace, collection.source, plan)
        check_products(measured[0], collection.source, plan)
        _measure(course, applied, *measured, is_whole=collection.dtype.kind in "biu")
    product = applied.take()
    product *= course.scale
    goes_on = course.passes < most_passes(plan)
    if goes_on and measured is not None and _is_off(course, product, drift * course.scale):
        course.began_anew, course.mean = True, None  # the same block again, about the mean
        return
    listener(Solving(f"what is left of {product.shape[1]} products"))
    _step(course, product, goes_on=goes_on)
    hand_back()
    listener(Converging(course.passes, course.solver.worst, course.solver.tol))


def _measure(course: Course, applied: Applied, products: Float64, rounding: Float64, *, is_whole: bool) -> None:
    """Take over what a pass found beside its products; whole numbers are centred on whole numbers from then on."""
    course.scale = course.scale or 2.0 ** min(MOST_SCALE, -round(np.log2(applied.trace)))
    course.trace, course.weight, course.n_samples = applied.trace * course.scale, applied.weight, applied.n_samples
    course.products, course.rounding = products * course.scale, rounding * course.scale
    course.mean = applied.mean
    course.centre = np.rint(applied.mean) if is_whole else applied.mean
    course.solver = replace(course.solver, total=course.trace)


def _step(course: Course, product: Float64, *, goes_on: bool) -> None:
    """Have the solver make a step; where single products are in the way, the next ones are double, if there are any."""
    before = course.solver
    solver = before.step(product)
    if _is_full(before, solver):
        course.settles = max(1, solver.limit - solver.width - solver.width // 2)
        solver = replace(solver, wanted=course.settles)
    if course.passes == 1 and solver.solution is not None and solver.asked:
        solver = replace(solver, solution=None)  # what is rare has had no chance to be found
    found = solver.solution
    is_rough = solver.is_rough if found is None else _directions(found, solver, course.precision) < len(found.values)
    if is_rough and course.precision == "single" and goes_on:
        solver, course.precision = solver.refined(), "double"
        course.began_anew, course.mean = True, None  # measured again: the bounds are to be as good
    course.solver = solver


def _is_off(course: Course, product: Float64, drift: float) -> bool:
    """Whether the sample's mean lay so far from the mean that rounding about it is in the way of what is wanted."""
    solver = course.solver
    if course.began_anew:
        return False
    values = np.asarray(eigvalsh(solver.wants.T @ product)[::-1], np.float64)
    k = count_components(values, solver.total, solver.wanted) or len(values)
    rounding, allowed = OFF_CENTRE[course.precision] * (values[0] + drift), solver.tol * max(values[k - 1], 0.0)
    return bool(drift > values[0] and rounding > allowed)


def _is_full(before: Lanczos, after: Lanczos) -> bool:
    """Whether the basis had to begin again before it held what is wanted, as it would again and again."""
    return after.solution is None and np.isinf(after.worst) and after.known < before.known + before.asked


def _directions(solution: Solution, solver: Lanczos, precision: str) -> int:
    """How many of the leading pairs have a direction: rounding has none."""
    least = (RANK if precision == "double" else ROUGH_RANK) * solution.values[0]
    return int(np.count_nonzero(solution.values > max(least, solver.rounding)))


def _with_direction(
    solution: Solution, course: Course, collection: Collection, plan: Plan, listener: Listener
) -> Solution:
    """Those pairs that have a direction; say what became of the others."""
    values, asked = solution.values, plan.request.n_components
    count = _directions(solution, course.solver, course.precision)
    if count == len(values):
        return solution
    if course.solver.solution is None:
        listener(Warned(f"{len(values) - count} components of the {len(values)} found are no more than rounding."))
        return solution.first(count)
    if isinstance(asked, int):
        dimensions = "1 dimension" if count == 1 else f"{count} dimensions"
        listener(Warned(f"{collection.source} spans {dimensions}; there are no more components."))
    return replace(solution.first(count), next_value=0.0)


def _decomposed(course: Course, solution: Solution, plan: Plan) -> Decomposition:
    divisor, p = (course.weight - 1) * course.scale, len(course.centre)
    values = solution.values
    components = np.ascontiguousarray(
        solution.vectors.T, dtype=np.float64 if course.precision == "double" else stored_dtype(values, plan)
    )
    if course.products is None or course.mean is None:
        raise AssertionError("no pass has found the mean")
    probes: dict[str, Any] = {"directions": probe_directions(p, plan.request.seed, PROBES), "products": course.products}
    total = course.trace * (1 + TRACE[course.precision])
    outside, wrong = _beyond(course.solver, values, rounding=course.rounding, total=total, **probes)
    certificate = certify(values, components.T, rounding=course.rounding, next_value=outside, **probes)
    return Decomposition(
        mean=course.mean,
        components=components,
        explained_variance=values / divisor,
        error_bound=certificate.relative,
        angle_bound=certificate.angle,
        eigenvalues=None,
        total_variance=course.trace / divisor,
        n_samples=course.n_samples,
        total_weight=course.weight,
        exact=False,
        statistic=None,
        passes=course.passes,
        outside=outside / divisor,
        variance_bound=value_bounds(values, certificate.residual, outside, wrong) / values,
    )


def _beyond(
    solver: Lanczos, values: Float64, *, directions: Float64, products: Float64, rounding: Float64 | None, total: float
) -> tuple[float, Float64 | None]:
    """Bounds on what pairs leave of S, and on how wrong the products were they come from: by the whole basis."""
    basis, block, coupling, count = solver.basis, solver.wants, solver.coupling, len(values)
    _, ritz = ritz_pairs(solver.projected)
    outside = outside_bound_of_basis(
        basis, solver.projected, block, coupling, count,
        directions=directions, products=products, rounding=rounding, total=total,
    )  # fmt: skip
    found = ((basis.T @ products).T @ ritz[:, :count], (basis.T @ directions).T @ ritz[:, :count] * values)
    beside = (directions.T @ block) @ (coupling @ ritz[:, :count])
    off = None if rounding is None else (basis.T @ rounding).T @ ritz[:, :count]
    return outside, product_bounds(found[0], found[1] + beside, rounding=off)


def _unsettled(found: Decomposition, course: Course, plan: Plan) -> str:
    most, tol = float(np.max(found.error_bound, initial=0.0)), plan.request.tol
    count = "1 pass" if course.passes == 1 else f"{course.passes} passes"
    remedy = "Allow more by --max-passes (max_passes)."
    if course.solver.solution is not None:
        remedy = "What is left is rounding: ask for fewer components, or for a larger tol."
    elif course.solver.worst <= tol:
        return f"1 pass does not tell whether something larger was missed, which others would find. {remedy}"
    return (
        f"components are not settled to tol={tol:g} after {count}: their errors are at most {most:.1e} of their "
        f"variances. {remedy}"
    )
