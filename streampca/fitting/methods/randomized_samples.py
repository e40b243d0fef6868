"""Method 'randomized' for fewer samples than features: block Lanczos on the Gram matrix, which is never formed.

G = X X^T of centred samples has the nonzero eigenvalues of S, and vectors have one entry for each sample: a million
features need no more memory than reading them. A pass multiplies a block, X (X^T U), range by range of features with
all samples in memory, as the dual method reads (*sweep*, or sweeps of a *scratch* copy). As in that method, a last pass
computes components from the eigenvectors, X^T u / sqrt(mu), corrects them by their products with one another, and
bounds the errors of the stored components.

Blocks are orthogonal to the roots of the weights (to ones, if all are equal), as are all eigenvectors of G with a
nonzero eigenvalue: so the mean need not be known. For vectors U, the part of S outside the components is no larger than
the part of G outside U: with Theta = U^T G U the former is G - G U Theta^-1 U^T G, whose quadratic form is at most that
of (I - U U^T) G (I - U U^T). So one bound on the eigenvalues outside holds for both.

Cost: 4 n p l flops a pass for a block of l vectors, 2 n p k for the components, and about 4 n l flops for every column
of the basis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...accumulators import GramBlock, sample_directions
from ...accumulators.gram_probes import remove_mean_part
from ...arrays import Float64
from ...eigensolvers import Certificate, Solution, certificate_of, certify, start_lanczos
from ...events import Listener
from ...execution.threads import one_blas_thread
from ...machine import hand_back
from ...planning import Plan, passes_beside
from ...planning.memory import in_double, thread_count
from .data_checks import check_products
from .dual import Reads, decomposed, with_components
from .gram_pairs import RANKS, STORED_RANKS, Pairs
from .job import Decomposition, Job
from .lanczos_iteration import STAGE, LanczosIteration, beginning, most_passes
from .tasks import FeaturesTask

_STREAM = 3  # separates these draws from the start blocks of solvers, and from those along features


@dataclass(kw_only=True)
class SampleIteration(LanczosIteration[GramBlock]):
    """Iteration on the Gram matrix.

    Attributes
    ----------
    roots : ndarray of shape (n,)
        Square roots of the samples' weights.
    stored : bool
        Whether components are written as they are computed.
    along, along_rounding : ndarray of shape (n, 8) or None
        X W for random directions of features, and its error; None before they are measured.
    """

    roots: Float64
    stored: bool = False
    along: Float64 | None = None
    along_rounding: Float64 | None = None

    @property
    def ranks(self) -> dict[str, float]:
        """See `LanczosIteration.ranks`."""
        return STORED_RANKS if self.stored else RANKS

    def _measure(self, found: GramBlock, job: Job) -> None:
        """See `LanczosIteration`."""
        measured = found.probes()
        assert measured is not None  # noqa: S101 - called for measured passes only
        for products in (measured.products, measured.along):
            check_products(products, job.collection.source, job.plan)
        self.products, self.rounding = measured.products * self.scale, measured.products_rounding * self.scale
        self.along, self.along_rounding = measured.along, measured.along_rounding

    def step(self, product: Float64, listener: Listener, *, may_continue: bool) -> None:
        """See `LanczosIteration.step`; the next block is made orthogonal to the roots.

        Products do not remove a part along the roots that is due to rounding, and each step would magnify it by the
        factor that normalises the rest of the product: twentyfold if components settle slowly.
        """
        super().step(product, listener, may_continue=may_continue)
        block = self.solver.wants
        block[...] = remove_mean_part(block, self.roots)

    def certified(self, solution: Solution, seed: int) -> tuple[Certificate, float, Float64]:
        """Return residuals, a bound on the largest eigenvalue outside, and bounds on the eigenvalues' errors."""
        return self.once(len(solution.values), lambda: self._certified(solution, seed))

    def _certified(self, solution: Solution, seed: int) -> tuple[Certificate, float, Float64]:
        if self.products is None:
            raise AssertionError("no pass has measured anything")
        values, directions = solution.values, sample_directions(self.roots, seed)
        found = self.beyond(values, directions)
        how: dict[str, Any] = {"directions": directions, "products": self.products, "rounding": self.rounding}
        residual = np.minimum(found.residual, certify(values, solution.vectors, **how).residual)
        certificate = certificate_of(values, residual, next_value=found.outside)
        return certificate, found.outside, np.minimum(found.pairs.value, residual)

    def asked_bounds(self, solution: Solution, plan: Plan) -> Float64:
        """See `LanczosIteration`; for values twice, as the last pass corrects them by at most what they are off."""
        certificate, _, bounds = self.certified(solution, plan.request.seed)
        return certificate.relative if plan.request.tol_variance is None else 2 * bounds / solution.values


def fit_along_samples(job: Job) -> Decomposition:
    """Carry out a plan of method 'randomized' along samples; see `streampca.fitting.methods.dual.fit_dual`."""
    plan = job.plan

    def find(reads: Reads) -> Pairs:
        pairs = _found(reads, job)
        hand_back()
        return pairs

    pairs, basis = with_components(job, find)
    decomposition, solution = decomposed(basis, pairs, job), pairs.solution
    outside = solution.next_value
    return replace(
        decomposition,
        passes=passes_beside(plan.schedule) + (0 if plan.reads_once else solution.passes),
        outside=None if outside is None else outside / (decomposition.total_weight - 1),
    )


def _found(reads: Reads, job: Job) -> Pairs:
    """Iterate until the requested pairs have converged."""
    iteration, most = _initial(job), job.plan.request.max_passes
    # Passes for the scratch copy and the components count against the limit too.
    most = most_passes(job.plan) if most is None else max(1, most - passes_beside(job.plan.schedule))
    chosen = iteration.chosen(iteration.iterate(job, most, lambda: _pass(iteration, reads, job)), job)
    reads.done = iteration.passes
    return _pairs(iteration, chosen, job)


def _initial(job: Job) -> SampleIteration:
    """Return the iteration from a random block, or from its checkpoint."""
    plan, begin, state = job.plan, beginning(job), job.saved(STAGE)
    if state is not None:
        return SampleIteration.from_state(state, begin)
    n = plan.problem.n_samples
    roots = np.ones(n) if job.weights is None else np.sqrt(job.weights)
    block = np.random.default_rng([_STREAM, plan.request.seed]).standard_normal((n, plan.width))
    solver = start_lanczos(n, start=remove_mean_part(block, roots), **begin)
    del block
    hand_back()
    return SampleIteration(solver=solver, roots=roots, stored=plan.stored, precision=plan.precision)


def _pass(iteration: SampleIteration, reads: Reads, job: Job) -> GramBlock:
    """Read all samples, and multiply the solver's block."""
    plan, tile, threads = job.plan, job.plan.product_features, thread_count(job.plan.cores)
    if iteration.precision != plan.precision:  # double products need twice the memory
        tile, threads = in_double(tile, threads)
    block = iteration.block
    how: dict[str, Any] = {"precision": iteration.precision, "product_features": tile, "seed": plan.request.seed}
    roots = None if job.weights is None else iteration.roots
    where: dict[str, Any] = {"threads": threads, "device": plan.request.device}
    new = partial(GramBlock, block, roots=roots, measures=iteration.products is None, **where, **how)
    restored = partial(GramBlock.from_state, vectors=block, copy=False, **where)
    with reads.reporting_pass(f"products with {block.shape[1]} vectors", iteration.passes + 1):
        task = FeaturesTask(new, restored, reads.features, iteration.precision)
        return task.fold(job, iteration.checkpoint(job))


@one_blas_thread()
def _pairs(iteration: SampleIteration, chosen: Solution, job: Job) -> Pairs:
    """Return the pairs from which components are computed; warn if they have not converged."""
    if iteration.along is None or iteration.along_rounding is None:
        raise AssertionError("no pass has measured anything")
    plan, values, scale = job.plan, chosen.values, iteration.scale
    certificate, outside, bounds = iteration.certified(chosen, plan.request.seed)
    corrected = 2 * bounds / values  # see `SampleIteration.asked_bounds`
    if not iteration.is_settled(certificate.relative, corrected, plan):
        job.warn(iteration.unsettled(certificate.relative, corrected, plan))
    rough = iteration.precision == "single"
    polishes = rough and not plan.stored
    # Undo the scale of the solver.
    sizes = values / scale
    return Pairs(
        trace=iteration.trace / scale,
        exact=False,
        products=iteration.along,
        rounding=iteration.along_rounding,
        solution=replace(chosen, values=sizes, residuals=chosen.residuals / scale, next_value=outside / scale),
        mixed=np.eye(len(values)) if polishes else np.diag(sizes**-0.5),
        vectors=chosen.vectors,
        sizes=sizes,
        dtype=iteration.dtype_of(values, plan),
        polishes=polishes,
        lost=False,
        bounds=bounds / scale,
    )
