"""The pass before a fit that learns the means, trends and deviations of the steps anomaly, detrend and standardize.

One pass serves all steps, as trend and deviation follow from sums about the means of the groups. Let C be the sum of
(date - mean date) (x - mean of the group), and T the sum of (date - mean date)^2. Then the trend is C / T, and the sum
of squares about it is the sum of squares about the means less C^2 / T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt

from ..accumulators import GroupMoments
from ..arrays import Array, Float64
from ..errors import DataError
from ..events import Listener, PassStarted, Warned, reported, silent
from ..execution import LocalExecutor
from ..execution.fold import one_span
from ..machine import hand_back
from ..planning.blocks import Span
from ..planning.learning import NAME, Learning, check_learning, plan_learning
from ..preprocessing import Preparation, Prepared
from ..preprocessing.learned import Learned
from ..preprocessing.sample_keys import SampleFacts, dated, groups_of
from ..preprocessing.sizes_for_planning import problem_of
from ..readers import Collection
from ..readers.collection import unchanged
from .methods.data_checks import place_of_feature
from .methods.tasks import SamplesTask

LISTED = 5  # constant features named by a warning
EPS = float(np.finfo(np.float64).eps)


def learned_for(
    raw: Collection,
    preparation: Preparation,
    *,
    weights: Float64 | None = None,
    memory: int | None = None,
    foreseen: bool = False,
    listener: Listener = silent,
) -> Prepared:
    """Return a collection behind a preparation that has learned its means, trends and deviations.

    Parameters
    ----------
    raw : Collection
        Collection before the preparation; read once.
    preparation : Preparation
        Preparation with a resolved mask and scale.
    weights : ndarray of shape (n,), optional
        How often each sample counts.
    memory : int, optional
        Budget in bytes; half of what the machine allows by default.
    foreseen : bool, default=False
        Read nothing, and return arrays of the final shapes that take no memory, for a plan.
    listener : callable
        Called with the events of the pass, and a warning of constant features.

    Raises
    ------
    RequestError
        If samples have no dates, or no labels.
    DataError
        If a sample holds NaN or infinity, or all dates are the same.
    BudgetError
        If the means do not fit the budget; before samples are read.
    """
    collection = Prepared(raw, preparation.unlearned)
    means = RequiredMeans.of(preparation, SampleFacts.of(raw), weights)
    problem, count = problem_of(collection), means.count
    plan = plan_learning(problem, count, memory)
    if foreseen:
        learned = means.foreseen(collection.n_features, preparation)
    else:
        check_learning(plan, memory)
        new = partial(GroupMoments, collection.n_features, means.rows, count, means.days)
        task = SamplesTask(new, GroupMoments.from_state, collection, plan.block_rows, weights, 1 + plan.ahead)
        learned = means.learned(_moments(task, plan, listener), preparation, raw.source)
        _warn_of_constant(collection, learned.deviation, listener)
    made = Prepared(raw, replace(preparation, learned=learned))
    made.learning_bytes = plan.memory_estimate.total
    return made


@dataclass(frozen=True)
class RequiredMeans:
    """Groups and dates of the samples, by which means and trends are learned.

    Attributes
    ----------
    groups : ndarray of shape (g,) or None
        Labels of the groups, ascending; None without groups.
    rows : ndarray of int, shape (n,), or None
        Group of each sample.
    days : ndarray of shape (n,) or None
        Date of each sample in days from `origin`; None unless a trend is removed.
    origin : float
        Mean date in days of the calendar.
    calendar : str
        Calendar of the dates.
    spread : float
        Sum of the squared days, each times the weight of its sample.
    """

    groups: Array | None
    rows: npt.NDArray[np.intp] | None
    days: Float64 | None
    origin: float = 0.0
    calendar: str = ""
    spread: float = 0.0

    @classmethod
    def of(cls, preparation: Preparation, facts: SampleFacts, weights: Float64 | None) -> Self:
        """Return the groups and dates of samples, from their labels and coordinates; raises as `learned_for`."""
        labels, dates = groups_of(preparation, facts), dated(preparation, facts)
        groups, rows = (None, None) if labels is None else np.unique(labels, return_inverse=True)
        if dates is None:
            return cls(groups, rows, None)
        origin = float(np.average(dates.days, weights=weights))
        days = dates.days - origin
        spread = float((np.ones(len(days)) if weights is None else weights) @ days**2)
        if spread <= 0:
            raise DataError(f"the samples of {facts.subject} are all of one date, and detrend needs two; leave it out.")
        return cls(groups, rows, days, origin, dates.calendar, spread)

    @property
    def count(self) -> int:
        """Number of groups."""
        return 1 if self.groups is None else len(self.groups)

    def foreseen(self, p: int, preparation: Preparation) -> Learned:
        """Return arrays of the final shapes that take no memory."""
        row = np.broadcast_to(0.0, p)
        return Learned(
            means=np.broadcast_to(0.0, (self.count, p)),
            weights=np.ones(self.count),
            groups=self.groups,
            trend=None if self.days is None else row,
            origin=self.origin,
            calendar=self.calendar,
            deviation=row if preparation.standardize else None,
        )

    def learned(self, moments: GroupMoments, preparation: Preparation, source: str) -> Learned:
        """Return the means, trend and deviation of samples with these moments."""
        _check_groups(moments, self.groups, preparation, source)
        return Learned(
            means=moments.means,
            weights=moments.weights,
            groups=self.groups,
            trend=None if self.days is None else moments.products / self.spread,
            origin=self.origin,
            calendar=self.calendar,
            deviation=_deviation(moments, self.spread) if preparation.standardize else None,
        )


def _moments(task: SamplesTask[GroupMoments], plan: Learning, listener: Listener) -> GroupMoments:
    """Return the moments of all samples, in one pass."""
    collection = task.collection
    started = PassStarted(NAME, 1, 1, collection.n_samples, collection.nbytes)
    with reported(listener, started), unchanged(collection):
        spans = [Span(0, collection.n_samples)]
        moments = LocalExecutor().fold(task, spans, one_span, ahead=plan.ahead, listener=listener)
    hand_back()
    return moments


def _check_groups(moments: GroupMoments, groups: Array | None, preparation: Preparation, source: str) -> None:
    """Refuse a group whose samples all have weight 0, which has no mean, and groups of one sample each."""
    empty = np.flatnonzero(moments.weights == 0)
    if groups is not None and len(groups) == moments.n_samples:
        raise DataError(
            f"each sample of {source} is the only one of its {preparation.anomaly}, and so its mean, which leaves no "
            "variance; give more samples of each, or leave anomaly out."
        )
    if groups is not None and len(empty):
        raise DataError(
            f"all samples of {source} of {preparation.anomaly} {groups[empty[0]]} have weight 0, and so no mean; leave "
            "them out with --samples (samples=) or --where (where=)."
        )


def _deviation(moments: GroupMoments, spread: float) -> Float64:
    """Return the residual standard deviation of each feature, (p,); 0 where it is rounding error.

    Rounding error is told from variance as in scikit-learn's StandardScaler: by the error of summing n squares.
    """
    total, mean = moments.weight, (moments.weights / moments.weight) @ moments.means
    about_mean = moments.squares.copy()  # sum of squares about the mean of all samples
    for weight, group_mean in zip(moments.weights, moments.means, strict=True):
        about_mean += weight * np.square(group_mean - mean)
    about_trend = moments.squares - (np.square(moments.products) / spread if spread else 0.0)
    variance, n = np.maximum(about_trend, 0.0) / total, moments.n_samples
    rounding = n * EPS * about_mean / total + np.square(n * EPS * mean)
    return np.where(variance > rounding, np.sqrt(variance), 0.0)


def _warn_of_constant(collection: Prepared, deviation: Float64 | None, listener: Listener) -> None:
    """Warn of features whose deviation is 0, which are not divided by it."""
    constant = np.flatnonzero(deviation == 0) if deviation is not None else ()
    if deviation is None or not len(constant):
        return
    named = ", ".join(str(place_of_feature(collection, int(feature))) for feature in constant[:LISTED])
    more = f" and {len(constant) - LISTED} more" if len(constant) > LISTED else ""
    listener(
        Warned(
            f"{len(constant)} of {len(deviation)} features are constant, and are not divided by standardize: "
            f"{named}{more}. model.constant_features lists them all."
        )
    )
