"""Method for any number of samples and features: block Lanczos on the scatter matrix, which is never formed.

A pass multiplies a block of vectors, X^T (X Q), in one read; the solver decides the next block, until the residuals of
all requested components are small enough. The first pass also measures the mean, and products that bound the error.
Vectors are as long as a sample; if samples are fewer than features and the plan says so, the iteration is along samples
(`streampca.fitting.methods.randomized_samples`).

Cost: 4 n p l flops a pass for a block of l vectors, and about 4 p l flops for every column of the basis.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigvalsh

from ...accumulators import ScatterBlock
from ...accumulators.centering import rounded_centre
from ...accumulators.probes import probe_directions
from ...arrays import Array, Float64
from ...eigensolvers import (
    Certificate,
    Solution,
    certificate_of,
    certify,
    count_components,
    nystrom_bounds,
    outside_bound,
    start_lanczos,
)
from ...eigensolvers.error_bounds import angle_bounds, lengths
from ...events import Listener, PassStarted, Solving
from ...execution.threads import one_blas_thread
from ...machine import hand_back
from ...planning import Plan
from ...planning.memory import PROBES_OF_PASS
from .data_checks import check_products, warn_of_wrong_products
from .job import Decomposition, Job
from .lanczos_iteration import STAGE, LanczosIteration, beginning, most_passes
from .randomized_samples import fit_along_samples
from .randomized_start import started
from .tasks import SamplesTask

OFF_CENTRE = {"single": 6e-9, "double": 1e-15}  # rounding of products, relative to the variance about the centre

# In products of fewer operations, BLAS threads gain nothing compared with reading and centring. On busy cores they spin
# while they wait for one another: a fit within 44 MiB took 50 s instead of 3 (benchmarks/busy.py).
THREADED_FLOPS = 2e8


class Certified(NamedTuple):
    """Bounds on the errors of pairs.

    Attributes
    ----------
    certificate : Certificate
        Residuals and angles.
    outside : float
        Bound on the largest eigenvalue outside the pairs.
    wrong, variance : ndarray of shape (k,)
        Bounds on the errors of the products that they are made of, and of the eigenvalues.
    """

    certificate: Certificate
    outside: float
    wrong: Float64
    variance: Float64


@dataclass(kw_only=True)
class FeatureIteration(LanczosIteration[ScatterBlock]):
    """Iteration on the scatter matrix.

    Attributes
    ----------
    centre : ndarray of shape (p,)
        Point that is subtracted from samples.
    began_anew : bool
        Whether the first block was multiplied twice, because the sample's mean was too far off.
    offset : ndarray or None
        Exact mean less the centre, (p,), from the first pass.
    weight, n_samples : float, int
        Sum of the weights, and number of samples of nonzero weight.
    drift : float
        Increase of the trace, times the scale, by the distance of the centre from the mean, if the last pass measured
        it; otherwise 0.
    """

    centre: Float64
    began_anew: bool = False
    offset: Float64 | None = None
    weight: float = 0.0
    n_samples: int = 0
    drift: float = 0.0

    def _measure(self, found: ScatterBlock, job: Job) -> None:
        """See `LanczosIteration`; from now on, whole numbers are centred on whole numbers."""
        products, rounding, collection = found.probe_products, found.probe_rounding, job.collection
        check_products(products, collection.source, job.plan)
        self.products, self.rounding = products * self.scale, rounding * self.scale
        self.weight, self.n_samples, self.drift = found.weight, found.n_samples, found.drift * self.scale
        # The centre of later passes is the measured mean, without drift.
        if collection.dtype.kind in "biu":
            mean = np.rint(found.mean)
        else:
            spread = (found.trace / (found.weight * len(found.mean))) ** 0.5
            mean = rounded_centre(found.mean, spread, self.precision)
        if not job.plan.sparse:  # whose centre leaves most features as they are
            self.centre = mean
        self.offset = found.offset_from(self.centre)

    def step(self, product: Float64, listener: Listener, *, may_continue: bool) -> None:
        """See `LanczosIteration.step`; if the sample's mean was far off, the same block is multiplied again."""
        drift, self.drift = self.drift, 0.0
        if may_continue and not self.began_anew and self._is_off(product, drift):
            self.began_anew, self.products = True, None
        else:
            super().step(product, listener, may_continue=may_continue)

    def so_far(self) -> Solution:
        """See `LanczosIteration`; the last products still hold a half step more."""
        return self.solver.nystrom()

    def asked_bounds(self, solution: Solution, plan: Plan) -> Float64:
        """See `LanczosIteration`."""
        components = np.asarray(solution.vectors.T, dtype=self.dtype_of(solution.values, plan))
        found = self.certified(solution, components, plan.request.seed)
        return found.certificate.relative if plan.request.tol_variance is None else found.variance / solution.values

    def certified(self, solution: Solution, components: Array, seed: int) -> Certified:
        """Bound the errors of pairs whose components are given as they are stored, (k, p), once after each pass."""
        return self.once(len(solution.values), lambda: self._certified(solution, components, seed))

    def _certified(self, solution: Solution, components: Array, seed: int) -> Certified:
        if self.products is None:
            raise AssertionError("no pass has found the mean")
        values, directions = solution.values, probe_directions(len(self.centre), seed, PROBES_OF_PASS)
        probes: dict[str, Any] = {"directions": directions, "products": self.products, "rounding": self.rounding}
        rounding = lengths(components.T - solution.vectors)
        stored = certify(values, components.T, **probes).residual
        if self.solver.solution is not None:
            outside, wrong, unrounded, pairs = self.beyond(values, directions)
            # The largest eigenvalue is at most that of the two blocks, plus the norm of what couples them.
            largest = max(float(values[0]), outside) + float(np.linalg.norm(unrounded))
            stored = np.minimum(stored, unrounded + largest * rounding)
            value, quotient = np.minimum(pairs.value, unrounded), angle_bounds(values, unrounded, outside)
        else:
            rest, count = self.rest(directions).outside, len(values)
            found = nystrom_bounds(self.solver.krylov, self.solver.nystrom_pairs, count, rest=rest, **probes)
            left = self.total - float(values.sum())
            outside = min(found.outside, outside_bound(components.T, residual=stored, left=left, **probes))
            wrong, pairs = found.wrong, found.pairs
            value, quotient = np.minimum(pairs.value, stored), angle_bounds(values, stored, outside)
        angle = np.fmin(pairs.angle, quotient)
        certificate = Certificate(stored, certificate_of(values, stored).relative, angle)
        certificate = replace(certificate, angle=certificate.of_stored(rounding))
        return Certified(certificate, outside, wrong, value)

    def _is_off(self, product: Float64, drift: float) -> bool:
        """Return whether the sample's mean is so far off that rounding about it exceeds the tolerance."""
        if drift == 0:
            return False
        solver = self.solver
        # Ritz values of the first block show the scale of the requested pairs.
        values = np.asarray(eigvalsh(solver.wants.T @ product)[::-1], np.float64)
        k = count_components(values, solver.total, solver.wanted) or len(values)
        rounding, allowed = OFF_CENTRE[self.precision] * (values[0] + drift), solver.tol * max(values[k - 1], 0.0)
        return bool(drift > values[0] and rounding > allowed)


def fit_randomized(job: Job) -> Decomposition:
    """Carry out a plan of method 'randomized'; along features, no scratch copy and no components are written.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, or all samples are equal.
    OutputError
        If a scratch copy cannot be written.
    """
    if job.plan.side == "samples":
        return fit_along_samples(job)
    iteration = _initial(job)
    most = job.plan.request.max_passes or most_passes(job.plan)
    chosen = iteration.chosen(iteration.iterate(job, most, lambda: _pass(iteration, job)), job)
    decomposition = _decomposed(iteration, chosen, job.plan, job.listener)
    bound = decomposition.error_bound
    if bound is None:
        raise AssertionError("errors of variances are not bounded")
    if not iteration.is_settled(decomposition.residual_bound, bound, job.plan):
        job.warn(iteration.unsettled(decomposition.residual_bound, bound, job.plan))
    return decomposition


def _initial(job: Job) -> FeatureIteration:
    """Return the iteration from its start or its checkpoint."""
    begin, state = beginning(job), job.saved(STAGE)
    if state is not None:
        return FeatureIteration.from_state(state, begin)
    job.listener(Solving(f"start vectors, from a sample of {job.collection.source}"))
    start = started(job)
    solver = start_lanczos(job.collection.n_features, start=start.block, **begin)
    hand_back()
    return FeatureIteration(solver=solver, centre=start.centre, precision=job.plan.precision)


def _pass(iteration: FeatureIteration, job: Job) -> ScatterBlock:
    """Read all samples, and multiply the solver's block."""
    plan, number = job.plan, iteration.passes + 1
    block = iteration.block
    how: dict[str, Any] = {"precision": iteration.precision, "product_rows": plan.product_rows}
    # Without an offset, the pass measures mean, trace and probes.
    offset = None if iteration.products is None else iteration.offset
    device = plan.request.device
    new = partial(ScatterBlock, block, iteration.centre, offset=offset, seed=plan.request.seed, device=device, **how)
    restored = partial(ScatterBlock.from_state, vectors=block, copy=False, device=device)
    task = SamplesTask.of(job, new, restored)
    label = f"products with {block.shape[1]} vectors"
    is_small = 2 * plan.product_rows * block.size < THREADED_FLOPS
    with (
        job.reporting_pass(PassStarted(label, number, None, plan.problem.n_samples, job.collection.nbytes)),
        one_blas_thread() if is_small else nullcontext(),
    ):
        return task.fold(job, iteration.checkpoint(job))


@one_blas_thread()
def _decomposed(iteration: FeatureIteration, solution: Solution, plan: Plan, listener: Listener) -> Decomposition:
    divisor, values = (iteration.weight - 1) * iteration.scale, solution.values
    components = np.ascontiguousarray(solution.vectors.T, dtype=iteration.dtype_of(values, plan))
    if iteration.offset is None:
        raise AssertionError("no pass has found the mean")
    found = iteration.certified(solution, components, plan.request.seed)
    coarsest = np.float64 if iteration.precision == "double" else np.float32
    warn_of_wrong_products(found.wrong, iteration.trace, coarsest, listener)
    return Decomposition(
        mean=iteration.centre + iteration.offset,
        components=components,
        explained_variance=values / divisor,
        residual_bound=found.certificate.relative,
        angle_bound=found.certificate.angle,
        total_variance=iteration.trace / divisor,
        n_samples=iteration.n_samples,
        total_weight=iteration.weight,
        passes=iteration.passes,
        outside=found.outside / divisor,
        error_bound=found.variance / values,
    )
