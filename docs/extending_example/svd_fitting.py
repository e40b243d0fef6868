"""Method 'svd': the singular value decomposition of the centred samples, all of them in memory."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ...accumulators import Accumulator, not_finite
from ...accumulators.probes import probe_directions
from ...eigensolvers import Solution, certify, count_components
from ...eigensolvers.signs import fix_signs
from ...events import PassStarted
from ...planning import Plan
from .data_checks import check_variance
from .job import Decomposition, Job, stored_dtype
from .leading_pairs import chosen_of, next_value, wanted_of
from .tasks import SamplesTask

Float64 = npt.NDArray[np.float64]


class Rows(Accumulator):
    """The samples themselves, in blocks by the position of their first."""

    def __init__(self) -> None:
        self.blocks: dict[int, Float64] = {}

    def update(self, block: npt.NDArray[Any], *, at: int = 0, weights: Any = None) -> None:
        """Absorb samples; one that is not finite is refused by its position."""
        if not np.isfinite(block).all():
            raise not_finite(block, at, "double")
        self.blocks[at] = block.astype(np.float64)

    def absorb(self, other: Self) -> None:
        """Take over the samples of another span."""
        self.blocks.update(other.blocks)

    def state(self, *, copy: bool = True) -> dict[str, npt.NDArray[Any]]:
        """Return the blocks as plain arrays: checkpoints and workers know nothing else."""
        return {str(at): block for at, block in self.blocks.items()}

    @classmethod
    def from_state(cls, state: dict[str, npt.NDArray[Any]]) -> Self:
        """Return the accumulator whose `state` this is."""
        new = cls()
        new.blocks = {int(at): block for at, block in state.items()}
        return new


def fit_svd(job: Job) -> Decomposition:
    """Carry out a plan of method 'svd'."""
    plan, weights = job.plan, job.weights
    with job.reporting_pass(PassStarted("samples", 1, 1, plan.problem.n_samples, plan.bytes_read)):
        # A task is read ahead, shared among workers, and resumed.
        samples = SamplesTask.of(job, Rows, Rows.from_state).fold(job, job.checkpoint("rows"))
    rows = np.concatenate([block for _, block in sorted(samples.blocks.items())])
    del samples
    mean = np.average(rows, axis=0, weights=weights)
    rows -= mean
    if weights is not None:
        rows *= np.sqrt(weights)[:, None]
    scatter_trace = float(np.sum(rows**2))
    check_variance(scatter_trace, job.collection.source, plan)

    solution = leading(rows, plan, job)
    divisor = (job.total_weight or len(rows)) - 1
    components = np.ascontiguousarray(solution.vectors.T, stored_dtype(solution.values, plan))
    # The bounds compare with products of their own, with random directions, and so hold whatever went wrong above.
    directions = probe_directions(rows.shape[1], plan.request.seed)
    certificate = certify(
        solution.values,
        components.T,
        directions=directions,
        products=rows.T @ (rows @ directions),
        next_value=next_value(solution, rows.shape[1]),
    )
    return Decomposition(
        mean=mean,
        components=components,
        explained_variance=solution.values / divisor,
        residual_bound=certificate.relative,
        angle_bound=certificate.angle,
        eigenvalues=solution.spectrum / divisor,
        total_variance=scatter_trace / divisor,
        n_samples=len(rows) if weights is None else int(np.count_nonzero(weights)),
        total_weight=job.total_weight or len(rows),
        exact=False,
        statistic=None,
    )


def leading(rows: Float64, plan: Plan, job: Job) -> Solution:
    """Return the leading eigenpairs of X^T X that the plan's request asks for."""
    _, singular, vectors = np.linalg.svd(rows, full_matrices=False)
    spectrum = singular[: plan.problem.most_components] ** 2
    total = float(spectrum.sum())
    k = count_components(spectrum, total, wanted_of(plan, job.total_weight), complete=True) or len(spectrum)
    rounding = np.full(k, np.finfo(np.float64).eps * spectrum[0])
    solution = Solution(spectrum[:k], fix_signs(vectors[:k].T), rounding, spectrum)
    return chosen_of(solution, total, plan, job.listener, total_weight=job.total_weight)
