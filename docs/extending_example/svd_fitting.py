"""Method 'svd': the singular value decomposition of the centred samples, all of them in memory.

Inside the package it is streampca/fitting/methods/svd.py, with the row ``"svd": fit_svd`` in `fitting.methods.METHODS`.
"""

import numpy as np

from streampca.accumulators import Accumulator, not_finite
from streampca.accumulators.probes import probe_directions
from streampca.eigensolvers import Solution, certify, count_components
from streampca.eigensolvers.signs import fix_signs
from streampca.events import PassStarted
from streampca.fitting.methods.data_checks import check_variance
from streampca.fitting.methods.job import Decomposition, stored_dtype
from streampca.fitting.methods.leading_pairs import chosen_of, next_value, wanted_of
from streampca.fitting.methods.samples_task import SamplesTask


class Rows(Accumulator):
    """The samples themselves, in blocks by the position of their first."""

    def __init__(self):
        self.blocks = {}

    def update(self, block, *, at=0, weights=None):
        """Absorb samples; one that is not finite is refused by its position."""
        if not np.isfinite(block).all():
            raise not_finite(block, at, "double")
        self.blocks[at] = block.astype(np.float64)

    def absorb(self, other):
        """Take over the samples of another span."""
        self.blocks.update(other.blocks)

    def state(self, *, copy=True):
        """Return the blocks as plain arrays: checkpoints and workers know nothing else."""
        return {str(at): block for at, block in self.blocks.items()}

    @classmethod
    def from_state(cls, state):
        """Exact inverse of `state`."""
        new = cls()
        new.blocks = {int(at): block for at, block in state.items()}
        return new


def fit_svd(job):
    """Carry out a plan of method 'svd'."""
    plan, weights = job.plan, job.weights
    with job.reporting_pass(PassStarted("samples", 1, 1, plan.problem.n_samples, plan.bytes_read)):
        # Read ahead, in workers, and resumed, as every task is.
        kept = SamplesTask.of(job, Rows, Rows.from_state).fold(job, job.checkpoint("rows"))
    rows = np.concatenate([block for _, block in sorted(kept.blocks.items())])
    del kept
    mean = np.average(rows, axis=0, weights=weights)
    rows -= mean
    if weights is not None:
        rows *= np.sqrt(weights)[:, None]
    check_variance(float(np.sum(rows**2)), job.collection.source, plan)

    solution = leading(rows, plan, job)
    divisor = (job.total_weight or len(rows)) - 1
    components = np.ascontiguousarray(solution.vectors.T, stored_dtype(solution.values, plan))
    # Bounds hold whatever went wrong above: they compare with products of their own, with random directions.
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
        error_bound=certificate.relative,
        angle_bound=certificate.angle,
        eigenvalues=solution.spectrum / divisor,
        total_variance=float(np.sum(rows**2)) / divisor,
        n_samples=len(rows) if weights is None else int(np.count_nonzero(weights)),
        total_weight=job.total_weight or len(rows),
        exact=False,
        statistic=None,
    )


def leading(rows, plan, job):
    """Return the leading pairs that the plan's request asks for, of X^T X."""
    _, singular, vectors = np.linalg.svd(rows, full_matrices=False)
    spectrum = singular[: plan.problem.most_components] ** 2
    wanted = wanted_of(plan, job.total_weight)
    k = count_components(spectrum, float(spectrum.sum()), wanted, complete=True) or len(spectrum)
    rounding = np.full(k, np.finfo(np.float64).eps * spectrum[0])
    found = Solution(spectrum[:k], fix_signs(vectors[:k].T), rounding, spectrum)
    return chosen_of(found, float(spectrum.sum()), plan, job.listener, total_weight=job.total_weight)
