"""Exact method if features outnumber samples: the n x n Gram matrix, then components in a last pass.

G = X X^T of centred samples has the nonzero eigenvalues of S = X^T X; if G u = mu u, the component is X^T u / sqrt(mu).
The plan decides whether data are read by ranges of features with all samples in memory (*sweep*), or written once to a
copy that is fast to read by features (*scratch*).

Cost: n^2 p flops for the Gram matrix, 8/3 n^3 for a dense solve, 2 n p k for the components.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np

from ...accumulators import Gram
from ...accumulators.plain_state import as_values
from ...events import PassStarted, silent
from ...execution import LocalExecutor
from ...execution.fold import one_span
from ...execution.threads import blas_threads_for
from ...machine import hand_back
from ...planning.blocks import Span, blocks_of
from ...planning.memory import gram_threads
from ...readers import Collection
from ...storage.components import UnfinishedComponents
from .data_checks import warn_of_wrong_products
from .dual_components import (
    PAIRS,
    KeptBasis,
    ProjectedRows,
    RangesTask,
    WrittenBasis,
    orthonormal,
    polished,
    unfinished_components,
)
from .gram_pairs import Factors, Pairs, solved
from .job import Decomposition, Job
from .leading_pairs import next_value
from .scratch_copy import scratch_copy
from .tasks import FeatureRanges, FeaturesTask

LOST = {
    "single": "components with less than a thousandth of the first variance were left out: computed in single "
    "precision and written at once, they are not orthogonal to the others. Use --precision double "
    "(precision='double') to keep them.",
    "double": "components with less than a billionth of the first variance were left out: written as they are "
    "computed, they are not orthogonal to the others. Set more memory, so that all fit, to keep them.",
}

GONE = "the components written before the run was stopped are missing or changed; they are computed again."

STORAGE = 0.51 * float(np.finfo(np.float32).eps)  # length of what rounding a unit vector to float32 changes, at most
COMPONENTS = "components"  # stage of the last pass, which computes components ...
PROJECTED = "projected"  # ... and of the rows of them that workers compute


def fit_dual(job: Job) -> Decomposition:
    """Carry out a plan of method 'dual'.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, or all samples are equal.
    OutputError
        If a scratch copy cannot be written.
    """
    pairs, basis = with_components(job, lambda reads: solved(reads.gram(), job))
    asked, found = job.plan.request.n_components, len(pairs.solution.values)
    if pairs.lost:
        job.warn(LOST["double" if pairs.exact else job.plan.precision])
    elif isinstance(asked, int) and found < asked:
        job.warn(f"{job.collection.source} spans {found} dimensions; there are no more components.")
    return decomposed(basis, pairs, job)


def with_components(job: Job, find: Callable[[Reads], Pairs]) -> tuple[Pairs, KeptBasis | WrittenBasis]:
    """Compute eigenpairs of the Gram matrix by `find`, reading as the plan says, and components from them."""
    with scratch_copy(job) if job.plan.schedule == "scratch" else nullcontext(job.collection) as source:
        reads, state = Reads(source, job), job.saved(COMPONENTS)
        pairs, unfinished = None, None
        if state is not None:
            # Resume the last pass: the checkpoint holds the pairs, so the Gram matrix is not needed again.
            pairs = Pairs.from_state(as_values(state, PAIRS))
            unfinished = unfinished_components(state) if job.plan.stored else None
        del state  # it holds components as well
        pairs = pairs or find(reads)
        hand_back()
        basis = reads.basis(pairs, unfinished)
        del reads
        if isinstance(basis, WrittenBasis):
            _fix_signs(basis, job)
    if isinstance(basis, KeptBasis):
        with blas_threads_for(len(pairs.solution.values)):
            # Only components in memory can be corrected by their own products.
            pairs = orthonormal(basis, polished(basis, pairs) if pairs.polishes else pairs)
            basis.fix_signs()
    return pairs, basis


def _fix_signs(basis: WrittenBasis, job: Job) -> None:
    """Fix the signs of written components; if stopped meanwhile, the fit resumes here."""
    checkpoint, n_ranges = job.checkpoint(COMPONENTS), -(-job.plan.problem.n_features // job.plan.block_features)

    def save() -> None:
        if checkpoint is not None:
            checkpoint.save_if_due(0, 0, n_ranges, basis)

    hand_back()  # memory of the last pass is still in pools of the C library
    basis.fix_signs(save)


class Reads:
    """Collection that is read by ranges of features, as a plan says.

    Attributes
    ----------
    features : FeatureRanges
        Reader of ranges.
    threads : int
        Number of tiles multiplied at a time.
    done : int
        Passes before the one for components, not counting a scratch copy.
    """

    def __init__(self, source: Collection, job: Job) -> None:
        self._source, self._job = source, job
        plan = self._plan = job.plan
        self._n, self._p = source.n_samples, source.n_features
        # A scratch copy is contiguous by ranges, and is read without further cuts.
        rows = self._n if plan.schedule == "scratch" else plan.block_rows
        self.features = FeatureRanges(source, rows, plan.block_features, sparse=plan.sparse)
        self.done = 1
        self.threads = gram_threads(self._n, plan.precision, plan.cores)
        # Passes: Gram matrix and components, unless one read serves both, and the copy.
        self._before, passes = int(plan.schedule == "scratch"), 2 - plan.reads_once + (plan.schedule == "scratch")
        self._passes = None if plan.width else passes  # a solver that requests products needs an unknown number

    def gram(self, *, about: str = "mean", centres: int = 0) -> Gram:
        """Read all samples and return their Gram matrix, not yet centred; for the options see `Gram`."""
        plan = self._plan
        how: dict[str, Any] = {"precision": plan.precision, "product_features": plan.product_features}
        how |= {"about": about, "centres": centres}
        where: dict[str, Any] = {"threads": self.threads, "integer_units": plan.integer_units}
        where["device"] = plan.request.device
        new = partial(Gram, self._n, seed=plan.request.seed, **how, **where)
        restored = partial(Gram.from_state, copy=False, **where)
        with self.reporting_pass("Gram matrix", 1):
            return FeaturesTask(new, restored, self.features, plan.precision).fold(
                self._job, self._job.checkpoint("gram")
            )

    def basis(self, pairs: Pairs, unfinished: UnfinishedComponents | None) -> KeptBasis | WrittenBasis:
        """Return components and mean, by reading again unless everything is still in memory."""
        plan, job = self._plan, self._job
        factors, checkpoint = pairs.factors(job, one_thread=self.threads > 1), job.checkpoint(COMPONENTS)
        shape, seed = (factors.vectors.shape[1], self._p), plan.request.seed
        basis: KeptBasis | WrittenBasis
        if job.sink is None or not plan.stored:
            basis = KeptBasis(shape, pairs, seed)
            if job.executor.workers > 1:
                with self.reporting_pass("components", self.done + 1):
                    self._project(factors, basis)
                return basis
        else:
            out = job.sink(shape[0], pairs.dtype, unfinished)
            basis = WrittenBasis(shape, pairs, seed, out)
            if checkpoint is not None and unfinished is not None and not out.resumed:
                job.warn(GONE)
                # The sink lacks the components that the checkpoint counts on.
                checkpoint.restart()
        order = list(blocks_of(Span(0, self._p), plan.block_features))
        if not plan.stored:  # written components must be computed in order
            order = [order[-1], *order[:-1]]  # the range read last is still in memory
        task = RangesTask(self.features, tuple(order), factors, self.threads, basis)
        run = partial(LocalExecutor().fold, task, (Span(0, len(order)),), one_span, checkpoint=checkpoint)
        # No pass to report: the only range is still in memory.
        if plan.reads_once:
            run(listener=silent)
            return basis
        with self.reporting_pass("components", self.done + 1):
            run(listener=job.listener)
        return basis

    def _project(self, factors: Factors, basis: KeptBasis) -> None:
        """Have workers project ranges of features, and add all to a basis in their order."""
        job, width, positions = self._job, self._plan.block_features, [0]
        parts = [list(blocks_of(span, width)) for span in self._plan.spans]
        for part in parts:
            positions.append(positions[-1] + len(part))
        order, longest = tuple(chain.from_iterable(parts)), max(span.size for span in self._plan.spans)
        task: Any = RangesTask(self.features, order, factors, self.threads, longest=longest)
        if (checkpoint := job.checkpoint(PROJECTED)) is not None:
            # Eigenvectors that are found again may have other signs: then what is saved is of no use.
            checkpoint.number = zlib.crc32(factors.vectors.tobytes())
        spans = [Span(*edges) for edges in pairwise(positions)]
        rows: Any = job.executor.fold(task, spans, ProjectedRows.absorb, listener=job.listener, checkpoint=checkpoint)
        for made in rows.ranges(task.tiles()):
            basis.take(made)
        hand_back()

    def reporting_pass(self, label: str, number: int) -> AbstractContextManager[None]:
        """Return a context that reports a pass; see `Job.reporting_pass`."""
        count = self._n * self._source.row_bytes
        started = PassStarted(label, self._before + number, self._passes, self._n, count)
        return self._job.reporting_pass(started, reads=self._source is self._job.collection)


def decomposed(basis: KeptBasis | WrittenBasis, pairs: Pairs, job: Job) -> Decomposition:
    """Return the decomposition, with bounds on the errors of the stored components."""
    solution, weights, n = pairs.solution, job.weights, job.plan.problem.n_samples
    weight = float(n if weights is None else weights.sum())
    spectrum = solution.spectrum
    after = next_value(solution, job.plan.problem.n_features)
    with blas_threads_for(len(solution.values)):
        certificate, unrounded = basis.certificates(solution.values, after, pairs.rounding_along)
    angle = certificate.angle if unrounded is None else unrounded.of_stored(STORAGE + basis.moved)
    # With r = G u - mu u, the component v has the residual S v - mu v = X^T r / sqrt(mu).
    residuals = solution.residuals[: len(solution.values)] * np.sqrt(solution.values[0] / solution.values)
    coarsest = pairs.dtype if job.plan.precision == "double" else np.float32
    bounds = pairs.bounds
    if bounds is None and unrounded is not None:
        bounds = unrounded.relative
    elif bounds is not None:  # a value that the last pass has corrected differed by at most that correction
        count = len(solution.values)
        bounds = (bounds[:count] + np.abs(solution.values - pairs.sizes[:count])) / solution.values
    warn_of_wrong_products(certificate.residual, pairs.trace, coarsest, job.listener, residuals=residuals)
    return Decomposition(
        mean=basis.mean,
        components=basis.components,
        explained_variance=solution.values / (weight - 1),
        residual_bound=certificate.relative,
        angle_bound=angle,
        eigenvalues=None if spectrum is None else spectrum / (weight - 1),
        total_variance=pairs.trace / (weight - 1),
        n_samples=n if weights is None else int(np.count_nonzero(weights)),
        total_weight=weight,
        exact=pairs.exact,
        error_bound=bounds,
        measured={"samples_on_integer_units": n} if pairs.on_integer_units else {},
    )
