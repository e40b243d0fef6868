"""The pass after a fit of mapped samples that estimates the residuals of its components under the exact kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..accumulators.kernel_residual import Checked, KernelResidual
from ..events import PassStarted
from ..planning.landmarks import CHECKED_ROWS, MOST_PIECE
from ..preprocessing import Prepared
from ..preprocessing.feature_map import FourierMap
from .landmarks import sampled
from .methods import Decomposition, Job
from .methods.tasks import SamplesTask

LABEL = "kernel residuals"
_STREAM = 7  # distinguishes these random numbers from those that choose landmarks


def with_residuals(job: Job, decomposition: Decomposition) -> Decomposition:
    """Return a decomposition as that of a model of kind "kernel-pca", with estimates of its residuals.

    Parameters
    ----------
    job : Job
        Fit of a collection behind a feature map, which is read once more.
    decomposition : Decomposition
        Decomposition of the mapped samples, with components in memory.
    """
    collection, plan = job.collection, job.plan
    assert isinstance(collection, Prepared)  # noqa: S101 - a kernel's map is a step of preparation
    before, mapping = collection.unmapped, collection.preparation.mapped
    assert before is not None and mapping is not None and decomposition.components is not None  # noqa: S101,PT018 - as above
    rows, places = sampled(before, job.weights, CHECKED_ROWS, (_STREAM, plan.request.seed))
    weights = None if job.weights is None else job.weights[places]
    # The kernel between the sampled rows and all others, which no map approximates, tells what the map loses.
    checked = Checked(mapping, decomposition.mean, decomposition.components, rows, weights)
    options: dict[str, Any] = {"checked": checked, "piece_rows": min(collection.frame.map_rows, MOST_PIECE)}
    task = SamplesTask.of(
        replace(job, collection=before), partial(KernelResidual, **options), partial(KernelResidual.restored, **options)
    )
    with job.reporting_pass(PassStarted(LABEL, 1, 1, before.n_samples, plan.problem.n_samples * before.row_bytes)):
        sums = task.fold(job, job.checkpoint("residuals"))
    is_fourier = isinstance(mapping, FourierMap)  # which has no landmarks that stand for the samples
    own_fields = {
        "residual_estimate": sums.relative(),
        "left_out": sums.left_out,
        "checked_rows": len(rows),
        "references": rows if is_fourier else np.empty((0, before.n_features), before.dtype),
    }
    passes = 1 + round(plan.passes if decomposition.passes is None else decomposition.passes)
    return replace(decomposition, kind="kernel-pca", own_fields=own_fields, statistic=None, passes=passes)
