"""Method 'randomized' where there are fewer samples than features: block Lanczos on the Gram matrix, never formed.

G = X X^T of centred samples has the nonzero eigenvalues of S, and vectors are only as long as there are samples: a
million features take no more room than they take to read. A pass multiplies a block, X (X^T U), range by range of
features with all samples of it in memory, as the dual method reads (*sweep*, or sweeps of a *scratch* copy); and as
that method does, a last pass makes components of the eigenvectors, X^T u / sqrt(mu), finds what is still wrong with
them by their products with one another, and bounds the errors of what is stored.

Blocks are orthogonal to the roots of the weights (to ones, where all are equal), as all eigenvectors of G with a value
are: so the mean need not be known. Of vectors U the components leave no more of S than U leaves of G: with Theta =
U^T G U that is G - G U Theta^-1 U^T G, which no quadratic form of (I - U U^T) G (I - U U^T) is less than. So one bound
of what was left outside holds for both.

Cost: 4 n p l flops a pass for a block of l vectors, 2 n p k for the components, and about 4 n l flops for every column
of the basis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..accumulate import Crossed, sample_directions
from ..accumulate.measured import without
from ..events import Listener, Warned
from ..execute import Executor
from ..lanes import lane_count
from ..machine import hand_back
from ..planning import Plan, passes_beside
from ..readers import Collection
from ..solve import Solution, certify, start_lanczos, value_bounds
from .course import MOST_PASSES, STAGE, Course, beginning
from .dual import OpenSink, Reads, decomposed, with_components
from .faults import check_products, check_variance
from .gathering import SweepTask
from .pairs import Pairs
from .passes import OfPass
from .protocol import Array, Decomposition, Float64, Keep, stored_dtype

_STREAM = 3  # apart from the start blocks of solvers, and from those along features


@dataclass(kw_only=True)
class AlongSamples(Course):
    """A course on the Gram matrix.

    Attributes
    ----------
    roots : ndarray of shape (n,)
        Of the samples' weights.
    along, along_rounding : ndarray of shape (n, 8) or None
        X W for random directions of features, and the error of it; once they are measured.
    """

    roots: Float64
    along: Float64 | None = None
    along_rounding: Float64 | None = None


@dataclass(frozen=True)
class Crossings:
    """How a `Crossed` multiplies; its own parameters."""

    vectors: Array
    roots: Float64 | None
    measures: bool
    precision: str
    product_features: int
    lanes: int
    seed: int

    def start(self) -> Crossed:
        """Return what has absorbed nothing."""
        return Crossed(**vars(self))

    def restore(self, state: dict[str, Array]) -> Crossed:
        """Return what was absorbed before."""
        return Crossed.from_state(state, copy=False, lanes=self.lanes)


def fit_along_samples(
    collection: Collection,
    plan: Plan,
    executor: Executor,
    *,
    weights: Float64 | None = None,
    listener: Listener,
    keep: Keep | None = None,
    scratch: str | None = None,
    sink: OpenSink | None = None,
) -> Decomposition:
    """Carry out a plan of method 'randomized' along samples; see `streampca.methods.dual.fit_dual`.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, or all samples are equal.
    OutputError
        If a scratch copy cannot be written.
    """

    def find(reads: Reads) -> Pairs:
        pairs = _found(reads, collection, plan, executor, weights, listener, keep)
        hand_back()
        return pairs

    how: dict[str, Any] = {"weights": weights, "listener": listener, "keep": keep, "scratch": scratch, "sink": sink}
    pairs, basis = with_components(collection, plan, find, **how)
    found, solution = decomposed(basis, pairs, weights, plan), pairs.solution
    outside, bounds = solution.next_value, pairs.bounds
    if bounds is not None:  # what the last pass mended is an error of those before, and no more
        count = len(solution.values)
        bounds = (bounds[:count] + np.abs(solution.values - pairs.sizes[:count])) / solution.values
    once = plan.block_features >= collection.n_features and plan.workers == 1
    return replace(
        found,
        passes=passes_beside(plan.schedule) + (0 if once else solution.passes),
        outside=None if outside is None else outside / (found.total_weight - 1),
        variance_bound=bounds,
    )


def _found(
    reads: Reads,
    collection: Collection,
    plan: Plan,
    executor: Executor,
    weights: Float64 | None,
    listener: Listener,
    keep: Keep | None,
) -> Pairs:
    """Iterate until the pairs are there that were asked for."""
    course, most = _begun(plan, weights, keep), MOST_PASSES
    if plan.request.max_passes is not None:
        most = max(1, plan.request.max_passes - passes_beside(plan.schedule))

    def go() -> None:
        # Nothing here holds what a pass found: the next one needs the room.
        goes_on = course.passes + 1 < most
        found = _pass(course, reads, plan, executor, weights, listener, keep)
        _learn(course, found, collection, plan, listener, goes_on=goes_on)

    chosen = course.chosen(course.iterate(most, go, keep), collection, plan, listener)
    reads.done = course.passes
    return _pairs(course, chosen, plan, listener)


def _begun(plan: Plan, weights: Float64 | None, keep: Keep | None) -> AlongSamples:
    """Where the iteration starts, from a block at random, or where it was when it was kept."""
    begin = beginning(plan)
    saved = keep(STAGE).saved(0) if keep else None
    if saved is not None:
        return AlongSamples.from_state(saved.state, begin)
    n = plan.problem.n_samples
    roots = np.ones(n) if weights is None else np.sqrt(weights)
    block = np.random.default_rng([_STREAM, plan.request.seed]).standard_normal((n, plan.width))
    solver = start_lanczos(n, start=without(block, roots), **begin)
    del block
    hand_back()
    return AlongSamples(solver=solver, roots=roots, precision=plan.precision)


def _pass(
    course: AlongSamples,
    reads: Reads,
    plan: Plan,
    executor: Executor,
    weights: Float64 | None,
    listener: Listener,
    keep: Keep | None,
) -> Crossed:
    """Read everything, and multiply what the solver wants."""
    number = course.passes + 1
    crossings = Crossings(
        vectors=course.solver.wants.astype(np.float64 if course.precision == "double" else np.float32),
        roots=None if weights is None else course.roots,
        measures=course.products is None,
        precision=course.precision,
        product_features=plan.product_features,
        lanes=lane_count(plan.cores),
        seed=plan.request.seed,
    )
    task = SweepTask(reads.features, plan.block_features, crossings)
    keeper = None
    if keep is not None:
        keeper = OfPass(keep("product"), number)
        keeper.keeper.rest_on(STAGE, course.passes, course)
    how: dict[str, Any] = {"ahead": plan.ahead, "listener": listener, "keeper": keeper}
    with reads.told(f"products with {course.solver.wants.shape[1]} vectors", number, plan.problem.n_samples):
        crossed = executor.fold(task, plan.spans, Crossed.absorb, **how)
        crossed.release()
        hand_back()
    return crossed


def _learn(
    course: AlongSamples, crossed: Crossed, collection: Collection, plan: Plan, listener: Listener, *, goes_on: bool
) -> None:
    """Take over what a pass found, and have the solver say what comes next."""
    course.passes += 1
    found = crossed.probes()
    if found is not None:
        check_variance(crossed.trace, collection.source, plan)
        for products in (found.products, found.along):
            check_products(products, collection.source, plan)
        course.scale_by(crossed.trace)
        course.products, course.rounding = found.products * course.scale, found.products_rounding * course.scale
        course.along, course.along_rounding = found.along, found.along_rounding
    product = crossed.take()
    product *= course.scale
    course.step(product, listener, goes_on=goes_on)


def _pairs(course: AlongSamples, chosen: Solution, plan: Plan, listener: Listener) -> Pairs:
    """What components are made of; say where they are not what was asked for."""
    if course.products is None or course.along is None or course.along_rounding is None:
        raise AssertionError("no pass has measured anything")
    values, scale = chosen.values, course.scale
    probes: dict[str, Any] = {
        "directions": sample_directions(course.roots, plan.request.seed), "products": course.products,
    }  # fmt: skip
    outside, wrong = course.beyond(values, probes["directions"])
    certificate = certify(values, chosen.vectors, rounding=course.rounding, next_value=outside, **probes)
    if not course.is_settled(chosen):
        listener(Warned(course.unsettled(certificate.relative, plan)))
    rough = course.precision == "single"
    polishes = rough and not plan.stored
    sizes = values / scale
    return Pairs(
        trace=course.trace / scale,
        exact=False,
        products=course.along,
        rounding=course.along_rounding,
        solution=replace(chosen, values=sizes, residuals=chosen.residuals / scale, next_value=outside / scale),
        mixed=np.eye(len(values)) if polishes else np.diag(sizes**-0.5),
        vectors=chosen.vectors,
        sizes=sizes,
        dtype=stored_dtype(values, plan) if rough else np.dtype(np.float64),
        polishes=polishes,
        lost=False,
        bounds=value_bounds(values, certificate.residual, outside, wrong) / scale,
    )
