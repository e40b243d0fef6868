"""`Job`, the argument of every method (a collection, its plan, an executor), and `Decomposition`, its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...accumulators import Accumulator
from ...accumulators.sparse_rows import HeldRows
from ...arrays import Array, Float64
from ...events import Listener, PassStarted, Warned, reported, silent
from ...execution import Executor
from ...execution.checkpoint import StageCheckpoint
from ...planning import Plan
from ...preprocessing.feature_map import KernelMap
from ...readers import Collection
from ...readers.collection import State, unchanged
from ...readers.target import Target
from ...storage.components import ComponentWriter, UnfinishedComponents

CHECKED_EVERY = 16  # passes over sparse samples in memory, of which one looks for changes, which takes as long
DOUBLE_BELOW = 1e-3  # share of the first variance below which components are stored as float64, for any precision

OpenSink = Callable[[int, np.dtype[Any], UnfinishedComponents | None], ComponentWriter]


@dataclass(frozen=True)
class Job:
    """One fit: the argument of every method.

    Attributes
    ----------
    collection : Collection
        Samples.
    plan : Plan
        Plan of reading and computation.
    executor : Executor
        Executor of tasks over the plan's spans.
    weights : ndarray of shape (n,) or None
        Weight of each sample.
    listener : callable
        Receives events.
    stage : callable or None
        ``stage(name)`` opens the checkpoint of a stage of the method; None without checkpoints.
    scratch : str or None
        Beginning of the name of a scratch copy, for plans with one; the file is removed afterwards in any case.
    sink : callable or None
        ``sink(k, dtype, unfinished)`` opens the writer of components, for plans that write them as they are computed;
        unfinished ones are resumed if they exist.
    remedy : str
        Remedy for a sample with missing values; empty for the one of a fit.
    held : list of HeldRows
        Sparse samples of the last pass, if there are any.
    target : Target or None
        Labels or numbers for supervised kinds.
    states : sequence of State or None
        States of the collection, which must be unchanged at the end of every pass; None to skip the check.
    """

    collection: Collection
    plan: Plan
    executor: Executor
    weights: Float64 | None = None
    listener: Listener = silent
    stage: Callable[[str], StageCheckpoint] | None = None
    scratch: str | None = None
    sink: OpenSink | None = None
    states: Sequence[State] | None = None
    target: Target | None = None
    remedy: str = ""
    held: list[HeldRows] = field(default_factory=list)

    @property
    def total_weight(self) -> float | None:
        """Sum of the weights; None without weights."""
        return None if self.weights is None else float(self.weights.sum())

    def checkpoint(self, stage: str) -> StageCheckpoint | None:
        """Return the checkpoint of a stage; None without checkpoints."""
        return None if self.stage is None else self.stage(stage)

    def saved(self, stage: str) -> dict[str, Array] | None:
        """Return the saved state of a stage without spans, if any."""
        checkpoint = self.checkpoint(stage)
        saved = None if checkpoint is None else checkpoint.load(0)
        return None if saved is None else saved.state

    def warn(self, message: str) -> None:
        """Warn the user."""
        self.listener(Warned(message))

    @contextmanager
    def reporting_pass(self, started: PassStarted, *, reads: bool = True) -> Iterator[None]:
        """Report a pass for the block, and its duration at the end.

        Parameters
        ----------
        started : PassStarted
            Description of the pass.
        reads : bool, default=True
            Whether the pass reads the collection itself, which must then be unchanged, and not a copy.

        Raises
        ------
        ChangedError
            If the collection has changed.
        """
        reads = reads and not (self.plan.sparse and (started.number - 1) % CHECKED_EVERY)
        checked = unchanged(self.collection, self.states) if reads and self.states is not None else nullcontext()
        with reported(self.listener, started), checked:
            yield


@dataclass(frozen=True)
class Decomposition:
    r"""Components of a collection, in the features the analysis saw.

    Attributes
    ----------
    mean : ndarray of shape (p,)
    components : ndarray of shape (k, p) or None
        Orthonormal rows, by descending variance; None if they were written as they were computed.
    explained_variance : ndarray of shape (k,)
        Variances: sums of squares over the total weight less 1, which is n - 1 without weights.
    residual_bound, angle_bound : ndarray of shape (k,)
        Bound on |C v - lambda v| / lambda; bound on the direction's angle in radians, NaN where unresolved.
    total_variance : float
        Trace of the covariance.
    n_samples : int
        Number of samples, without those of weight 0.
    total_weight : float
        Sum of the weights; n without weights.
    eigenvalues : ndarray or None
        All variances, descending, if known.
    exact : bool
        Whether the scatter was summed without any rounding.
    statistic : Accumulator or None
        Accumulated statistic, if samples can be added to it.
    passes : int or None
        Number of reads of the whole collection, if it was not known beforehand.
    outside : float or None
        Bound on the largest variance outside the components, if that is not known.
    error_bound : ndarray of shape (k,) or None
        Bound on the relative error of each variance, if it is known to be less than `residual_bound`.
    measured : mapping
        Further measurements, as plain data for the model's provenance.
    kind : str
        Kind of the resulting model, a key of ``streampca.models.registry.MODEL_KINDS``.
    own_fields : mapping
        Fields of the model in addition to those of a `PCAModel`.
    mapped : KernelMap or None
        Feature map that the method computed, in whose features the components are.
    """

    mean: Float64
    components: Array | None
    explained_variance: Float64
    residual_bound: Float64
    angle_bound: Float64
    total_variance: float
    n_samples: int
    total_weight: float
    eigenvalues: Float64 | None = None
    exact: bool = False
    statistic: Accumulator | None = None
    passes: int | None = None
    outside: float | None = None
    error_bound: Float64 | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "pca"
    own_fields: Mapping[str, Any] = field(default_factory=dict)
    mapped: KernelMap | None = None

    def of_kind(self, kind: str) -> Decomposition:
        """Return principal components for another kind of model, without their statistic; other kinds as they are."""
        return replace(self, kind=kind, statistic=None) if self.kind == "pca" != kind else self


def stored_dtype(values: Float64, plan: Plan) -> np.dtype[Any]:
    """Return the stored dtype of components with descending eigenvalues."""
    # Rounding to float32 leaves residuals relative to the first variance, which are large for a small one.
    narrow = plan.request.precision != "double" and plan.problem.suits_single
    return np.dtype(np.float32 if narrow and values[-1] >= DOUBLE_BELOW * values[0] else np.float64)
