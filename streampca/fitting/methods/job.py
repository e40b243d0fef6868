"""`Job`, which every method is given (a collection, its plan, an executor), and `Decomposition`, which it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...accumulators import Accumulator
from ...events import Listener, PassStarted, Warned, reported, silent
from ...execution import Executor
from ...execution.checkpoint import StageCheckpoint
from ...planning import Plan
from ...preprocessing.feature_map import KernelMap
from ...readers import Collection
from ...readers.collection import State, unchanged
from ...readers.target import Target
from ...storage.components import ComponentWriter, UnfinishedComponents

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

DOUBLE_BELOW = 1e-3  # components with less of the first variance are stored as float64, whatever the products were

OpenSink = Callable[[int, np.dtype[Any], UnfinishedComponents | None], ComponentWriter]


@dataclass(frozen=True)
class Job:
    """One fit: the argument of every method.

    Attributes
    ----------
    collection : Collection
        The samples.
    plan : Plan
        How they are read, and what is computed.
    executor : Executor
        Folds tasks over the plan's spans.
    weights : ndarray of shape (n,) or None
        How often each sample counts.
    listener : callable
        Told what happens.
    stage : callable or None
        ``stage(name)`` opens the checkpoint of a stage of the method; None without checkpoints.
    scratch : str or None
        Beginning of the name of a scratch copy, for plans that make one; it is removed afterwards, whatever happens.
    sink : callable or None
        ``sink(k, dtype, unfinished)`` opens where components are written as they are computed, for plans that do so;
        unfinished ones are resumed if they are there.
    remedy : str
        Remedy of a sample with missing values; empty for that of a fit.
    target : Target or None
        Labels or numbers that supervised kinds learn from.
    states : sequence of State or None
        States of the collection that every pass must find unchanged when it ends; None where they are not compared.
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

    @property
    def total_weight(self) -> float | None:
        """Sum of the weights; None where there are none."""
        return None if self.weights is None else float(self.weights.sum())

    def checkpoint(self, stage: str) -> StageCheckpoint | None:
        """Return the checkpoint of a stage; None without checkpoints."""
        return None if self.stage is None else self.stage(stage)

    def saved(self, stage: str) -> dict[str, Array] | None:
        """Return the saved state of a stage without spans; None where there is none."""
        checkpoint = self.checkpoint(stage)
        saved = None if checkpoint is None else checkpoint.load(0)
        return None if saved is None else saved.state

    def warn(self, message: str) -> None:
        """Warn the user."""
        self.listener(Warned(message))

    @contextmanager
    def told(self, started: PassStarted, *, reads: bool = True) -> Iterator[None]:
        """Report a pass, and how long it took when it is done.

        Parameters
        ----------
        started : PassStarted
            The pass.
        reads : bool, default=True
            Whether it reads the collection, not a copy of it: the collection must then be unchanged.

        Raises
        ------
        ChangedError
            If it has changed.
        """
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
        Orthonormal rows, by descending variance; None where they were written as they were computed.
    explained_variance : ndarray of shape (k,)
        Divided by the total weight less 1, which is n - 1 without weights.
    error_bound, angle_bound : ndarray of shape (k,)
        Bound on |C v - lambda v| / lambda; bound on the direction's angle in radians, NaN where unresolved.
    total_variance : float
        Trace of the covariance.
    n_samples : int
        n, without samples of weight 0.
    total_weight : float
        Sum of the weights; n where none were given.
    eigenvalues : ndarray or None
        All variances, descending, where known.
    exact : bool
        Whether the scatter was summed without any rounding.
    statistic : Accumulator or None
        Accumulated statistic, where samples can be added to it.
    passes : int or None
        Reads of the whole collection, where their number was not known beforehand.
    outside : float or None
        Bound on the largest variance of what the components leave, where it is not known.
    variance_bound : ndarray of shape (k,) or None
        Bound on the error of each variance, relative to it, where it is known to be less than `error_bound`.
    measured : mapping
        Further measurements, as plain data for the model's provenance.
    kind : str
        Kind of model to make, a key of ``streampca.models.registry.MODEL_KINDS``.
    own_fields : mapping
        Fields of the model beside those of a `PCAModel`.
    mapped : KernelMap or None
        Feature map that the method made, whose features the components are of.
    """

    mean: Float64
    components: Array | None
    explained_variance: Float64
    error_bound: Float64
    angle_bound: Float64
    total_variance: float
    n_samples: int
    total_weight: float
    eigenvalues: Float64 | None = None
    exact: bool = False
    statistic: Accumulator | None = None
    passes: int | None = None
    outside: float | None = None
    variance_bound: Float64 | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "pca"
    own_fields: Mapping[str, Any] = field(default_factory=dict)
    mapped: KernelMap | None = None

    def of_kind(self, kind: str) -> Decomposition:
        """Return the decomposition for a kind of model without own fields; its statistic is left out then."""
        return self if self.kind == kind else replace(self, kind=kind, statistic=None)


def stored_dtype(values: Float64, plan: Plan) -> np.dtype[Any]:
    """Return the dtype that components of descending eigenvalues are stored in."""
    narrow = plan.request.precision != "double" and plan.problem.suits_single
    return np.dtype(np.float32 if narrow and values[-1] >= DOUBLE_BELOW * values[0] else np.float64)


def one_span(left: object, right: object) -> None:
    """Merge what is folded in one span: there is never anything to merge."""
    raise AssertionError("two partials of one span")
