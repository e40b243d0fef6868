"""Method 'probabilistic': method 'covariance', and noise of the variance that its components leave."""

from __future__ import annotations

from dataclasses import replace

from ...errors import RequestError
from .covariance import fit_covariance
from .job import Decomposition, Job


def fit_probabilistic(job: Job) -> Decomposition:
    """Carry out a plan of method 'probabilistic'."""
    decomposition = fit_covariance(job)
    n_other = job.plan.problem.n_features - len(decomposition.explained_variance)
    variance = decomposition.total_variance - float(decomposition.explained_variance.sum())
    if n_other == 0 or variance <= 0:
        raise RequestError("probabilistic PCA needs variance that the components leave out; ask for fewer components.")
    return replace(decomposition, kind="probabilistic-pca", own_fields={"noise": variance / n_other})
