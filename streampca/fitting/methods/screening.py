"""Supervised principal components: of features that correlate with a target number, which is regressed on them.

The score of a feature is s_j = x_j^T y / sqrt(x_j^T x_j) for centred samples and target; divided by |y| it is their
correlation. Features with |correlation| of at least a threshold are kept, and the target is regressed on their leading
components. The threshold corresponds to the number of features that predicts left-out samples best. Each training set
scores and selects its own features, because features selected by all samples would depend on the left-out ones (Hastie,
Tibshirani and Friedman, 7.10.2).

References
----------
E. Bair, T. Hastie, D. Paul, R. Tibshirani, "Prediction by supervised principal components", Journal of the American
Statistical Association 101, 2006.
T. Hastie, R. Tibshirani, J. Friedman, "The Elements of Statistical Learning", 2nd edition, Springer, 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from ...accumulators import GroupMoments, GroupScatter
from ...arrays import Float64
from ...errors import BudgetError, DataError
from ...events import PassStarted, Solving, silent
from ...machine import hand_back
from ...planning import Plan
from ...planning.screening import STEP, solver_of
from .data_checks import check_variance
from .job import Decomposition, Job, stored_dtype
from .leading_pairs import leading_pairs
from .tasks import SamplesTask

Places = npt.NDArray[np.intp]


def fit_screening(job: Job) -> Decomposition:
    """Carry out a plan of method 'screening'.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, all samples are equal, or no feature reaches the threshold.
    BudgetError
        If more features reach a given threshold than memory allows.
    """
    plan, source = job.plan, job.collection.source
    folds = Folds.of(job)
    moments = _moments(job, folds)
    whole = moments.joined(folds.used)
    check_variance(float(whole.squares.sum()), source, plan)
    correlation = correlations(whole, folds.squares(folds.used))
    if not correlation.any():
        raise DataError(f"no feature of {source} correlates with the target at all; give another target.")
    if folds.count == 1:
        orders = [_over_threshold(job, np.abs(correlation))]
    else:
        orders = _ranked(moments, folds, plan.product_features)
    # Scatter matrices are computed of features that any training set keeps.
    features = np.unique(np.concatenate(orders))
    moments = moments.of_features(features)
    hand_back()
    screen = Screen(moments, _scatters(job, folds, features), folds)
    *training, order = (np.searchsorted(features, chosen) for chosen in orders)
    path = _path(job, screen, training, len(order)) if training else Path(np.empty(0, np.int64), np.empty(0))
    kept = np.sort(order[: path.best] if training else order)
    job.listener(Solving(f"components of {len(kept)} features"))
    regression = screen.training(folds.used).regression(kept, plan)
    del screen
    hand_back()
    least = float(np.abs(correlation[features[kept]]).min()) if training else plan.request.options.threshold
    if training and len(kept) == len(order) < len(correlation):
        job.warn(
            f"the most features tried, {len(kept)} of {len(correlation)}, predict best, and more may do better; keep "
            f"them by a threshold below {least:.3g} (--threshold, threshold)."
        )
    n_samples, spread = int(np.count_nonzero(folds.weights)), folds.squares(folds.used)
    fields = {
        "correlation": correlation,
        "threshold": least,
        "target_share": np.square(regression.gains) * regression.values / spread,
        "tried_features": path.sizes,
        "cv_error": path.errors,
    }
    return _decomposition(job, whole, regression, features[kept], n_samples, fields)


class Path(NamedTuple):
    """Numbers of features, ascending, and the error of predicting left-out samples with each.

    Errors are relative to predicting the mean of the other samples.
    """

    sizes: npt.NDArray[np.int64]
    errors: Float64

    @property
    def best(self) -> int:
        """Number of features with the smallest error."""
        return int(self.sizes[np.argmin(self.errors)])


def _path(job: Job, screen: Screen, orders: Sequence[Places], most: int) -> Path:
    """Cross-validate numbers of features up to `most`, given the order of features in each training set."""
    sizes = _sizes(job.plan.request.n_components, most)
    job.listener(Solving(f"components of {len(sizes)} numbers of features in each of {len(orders)} training sets"))
    return Path(sizes, screen.errors(orders, sizes, job.plan))


@dataclass(frozen=True)
class Folds:
    """Target, and the folds of the samples; a single fold without cross-validation.

    Attributes
    ----------
    target, weights : ndarray of shape (n,)
        Target and weight of each sample.
    codes : ndarray of int, shape (n,)
        Fold of each sample. Samples of weight 0 do not affect the folds of others.
    count : int
        Number of folds.
    """

    target: Float64
    weights: Float64
    codes: Places
    count: int

    @classmethod
    def of(cls, job: Job) -> Self:
        """Distribute the samples of a job over the folds of its request, by its seed."""
        assert job.target is not None  # noqa: S101 - all kinds of this method have one
        request, target = job.plan.request, job.target.values.reshape(-1).astype(np.float64)
        weights = np.ones(len(target)) if job.weights is None else job.weights
        codes, count = np.zeros(len(target), np.intp), 1
        if request.options.threshold == "auto":
            counted, count = np.flatnonzero(weights), request.options.n_folds
            codes[counted] = np.random.default_rng(request.seed).permutation(len(counted)) % count
        return cls(target, weights, codes, count)

    @property
    def used(self) -> list[int]:
        """Folds with samples."""
        return np.unique(self.codes[self.weights > 0]).tolist()  # type: ignore[no-any-return]

    def others(self, fold: int) -> list[int]:
        """Return the folds that train the model which predicts a fold."""
        return [other for other in self.used if other != fold]

    def squares(self, folds: Sequence[int]) -> float:
        """Return the sum of squared distances of the target from its mean, over these folds."""
        weights = np.where(np.isin(self.codes, folds), self.weights, 0.0)
        return float(weights @ np.square(self.target - np.average(self.target, weights=weights)))


@dataclass(frozen=True)
class Regression:
    """Components of selected features, and the regression of the target on their scores.

    Attributes
    ----------
    values : ndarray of shape (k,)
        Sums of squared scores, descending.
    vectors : ndarray of shape (m, k)
        Components as columns.
    gains : ndarray of shape (k,)
        Coefficient of each score; 0 along components whose variance is rounding.
    """

    values: Float64
    vectors: Float64
    gains: Float64


@dataclass(frozen=True)
class PrincipalSubmatrix:
    """Rows and columns, in ascending order, of a symmetric matrix that is given by its upper triangle.

    Attributes
    ----------
    values : ndarray of shape (m, m)
        Values in Fortran order, upper triangle.
    """

    values: Float64

    @classmethod
    def of(cls, whole: Float64, places: Places) -> Self:
        """Return a copy of rows and columns at these places of a matrix in Fortran order."""
        return cls(whole.T[np.ix_(places, places)].T)

    @property
    def size(self) -> int:
        """Order of the matrix, m."""
        return len(self.values)

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues."""
        return float(np.trace(self.values))

    def matrix(self) -> Float64:
        """Return a copy of the matrix."""
        return self.values.copy(order="F")

    def multiply(self, block: Float64) -> Float64:
        """Return the product with a block of columns."""
        return blas.dsymm(1.0, self.values, block)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TrainingSet:
    """Samples of several folds, which train a model.

    Attributes
    ----------
    moments : GroupMoments
        Moments of each tried feature over all these samples, with the target as times.
    matrix : ndarray of shape (m, m)
        Scatter matrix of these features, upper triangle, in Fortran order.
    """

    moments: GroupMoments
    matrix: Float64

    def regression(self, own: Places, plan: Plan) -> Regression:
        """Return the regression on the requested components of the features at these places, ascending."""
        part, products = PrincipalSubmatrix.of(self.matrix, own), self.moments.products[0, own]
        if not part.trace > 0:  # the features are constant in these samples
            return Regression(np.zeros(1), np.eye(len(own), 1), np.zeros(1))
        solution = leading_pairs(part, replace(plan, solver=solver_of(part.size, plan.request.n_components)), silent)
        # Scores are uncorrelated, so each has its own regression coefficient.
        values, along = solution.values, solution.vectors.T @ products
        varies = values > np.finfo(np.float64).eps * len(own) * values[:1]
        gains = np.divide(along, values, out=np.zeros(len(values)), where=varies)
        return Regression(values, solution.vectors, gains)


@dataclass(frozen=True)
class Screen:
    """Moments and scatter matrices of the tried features, fold by fold.

    Attributes
    ----------
    moments : GroupMoments
        Moments of each feature, with the target as times.
    matrices : GroupScatter
        Scatter matrices of the tried features, one for each fold.
    folds : Folds
        Target and folds.
    """

    moments: GroupMoments
    matrices: GroupScatter
    folds: Folds

    def training(self, folds: Sequence[int]) -> TrainingSet:
        """Return the training set of these folds."""
        return TrainingSet(self.moments.joined(folds), self.matrices.joined(folds).matrix())

    def errors(self, orders: Sequence[Places], sizes: npt.NDArray[np.int64], plan: Plan) -> Float64:
        """Return squared errors of predicting left-out samples, relative to predicting the mean of the others.

        Parameters
        ----------
        orders : sequence of ndarray of int
            For each fold, the features by descending score in the other folds.
        sizes : ndarray of int
            Numbers of features to keep.
        plan : Plan
            Plan of the fit, for the number of components.
        """
        errors, spread = np.zeros(len(sizes)), 0.0
        for fold, order in zip(self.folds.used, orders, strict=True):
            training = self.training(self.folds.others(fold))
            spread += self._error(fold, training.moments, np.zeros(self.moments.n_features))
            for place, size in enumerate(sizes.tolist()):
                kept, slope = np.sort(order[:size]), np.zeros(self.moments.n_features)
                regression = training.regression(kept, plan)
                slope[kept] = regression.vectors @ regression.gains
                errors[place] += self._error(fold, training.moments, slope)
        return errors / spread

    def _error(self, fold: int, training: GroupMoments, slope: Float64) -> float:
        """Return the sum of squared errors over a fold, by the means of a training set and a slope for each feature."""
        moments = self.moments
        apart = moments.mean_times[fold] - training.mean_times[0] - (moments.means[fold] - training.means[0]) @ slope
        # Sum of (y - mean - slope (x - mean))^2 over the fold, from its moments about its own means.
        squares = slope @ self.matrices.scatters[fold].multiply(slope[:, None])[:, 0]
        about = self.folds.squares([fold]) - 2 * slope @ moments.products[fold] + squares
        return float(about + moments.weights[fold] * apart**2)


def correlations(moments: GroupMoments, squares: float) -> Float64:
    """Return the correlation of each feature with the target, 0 if either is constant.

    Parameters
    ----------
    moments : GroupMoments
        Moments of a single group, with the target as times.
    squares : float
        Sum of squared distances of the target from its mean.
    """
    roots = np.sqrt(moments.squares[0] * squares)
    correlation: Float64 = np.divide(moments.products[0], roots, out=np.zeros(len(roots)), where=roots > 0)
    return correlation.clip(-1.0, 1.0)


def _ranked(moments: GroupMoments, folds: Folds, most: int) -> list[Places]:
    """Return the features by descending score in each training set, and in all samples.

    All sets get the same number of features, the largest for which at most `most` features are different.
    """
    sets = [*(folds.others(fold) for fold in folds.used), folds.used]
    orders, best = [], np.full(moments.n_features, most)
    for training in sets:
        scores = np.abs(correlations(moments.joined(training), folds.squares(training)))
        order = np.argsort(-scores, kind="stable")[:most]
        # Best rank of each feature in any set: lists of length r hold the features with a best rank below r.
        best[order] = np.minimum(best[order], np.arange(len(order)))
        orders.append(order)
    ranks = np.sort(best[best < most])
    length = most if len(ranks) <= most else int(ranks[most])
    return [order[:length] for order in orders]


def _over_threshold(job: Job, scores: Float64) -> Places:
    """Return the features that reach the threshold of a request; refuse a threshold that keeps too few or too many."""
    request, source, most = job.plan.request, job.collection.source, job.plan.product_features
    threshold, highest = float(request.options.threshold), np.sort(scores)[::-1]
    kept = np.flatnonzero(scores >= threshold)
    required = request.n_components if isinstance(request.n_components, int) else 1
    if len(kept) < required:
        number = "no feature" if not len(kept) else f"{len(kept)} of the {len(scores)} features"
        least = math.floor(1e3 * highest[required - 1]) / 1e3
        raise DataError(
            f"{number} of {source} reach a correlation of {threshold:g} with the target, and n_components="
            f"{request.n_components!r} takes {required} at least; give a threshold of at most {least:g}, or 'auto'."
        )
    if len(kept) > most:
        least = math.floor(1e3 * highest[most] + 1) / 1e3
        other = f"a threshold of at least {least:g}, or " if least < 1 else ""
        raise BudgetError(
            f"{len(kept)} of the {len(scores)} features of {source} reach a correlation of {threshold:g} with the "
            f"target, and memory allows {most}; give {other}more memory."
        )
    return kept


def _sizes(wanted: Any, most: int) -> npt.NDArray[np.int64]:
    """Return numbers of features, from the number of components on, each about `STEP` times the one before."""
    # Fewer features than components would not have enough directions.
    first = min(wanted, most) if isinstance(wanted, int) else 1
    count = math.ceil(math.log(most / first) / math.log(STEP)) + 1
    return np.unique(np.rint(np.geomspace(first, most, count)).astype(np.int64))


def _moments(job: Job, folds: Folds) -> GroupMoments:
    """Accumulate the moments of each feature with the target, fold by fold."""
    new = partial(GroupMoments, job.collection.n_features, folds.codes, folds.count, folds.target, apart=True)
    task = SamplesTask.of(job, new, partial(GroupMoments.from_state, copy=False))
    with job.reporting_pass(PassStarted("scores of features", 1, 2, job.plan.problem.n_samples, job.collection.nbytes)):
        return task.fold(job, job.checkpoint("scores"))


def _scatters(job: Job, folds: Folds, features: Places) -> GroupScatter:
    """Accumulate the scatter matrices of these features, fold by fold."""
    plan = job.plan
    how: dict[str, Any] = {"precision": plan.precision, "product_rows": plan.product_rows, "seed": plan.request.seed}
    device = plan.request.device
    selected = len(features) if len(features) == job.collection.n_features else features
    task = SamplesTask.of(
        job,
        partial(GroupScatter, selected, folds.count, folds.codes, device=device, **how),
        partial(GroupScatter.from_state, copy=False, device=device),
    )
    name = f"scatter matrices of {len(features)} features"
    with job.reporting_pass(PassStarted(name, 2, 2, plan.problem.n_samples, job.collection.nbytes)):
        scatters = task.fold(job, job.checkpoint("scatters"))
    for scatter in scatters.scatters:
        scatter.settle()
    return scatters


def _decomposition(
    job: Job,
    whole: GroupMoments,
    found: Regression,
    features: Places,
    n_samples: int,
    own_fields: dict[str, Any],
) -> Decomposition:
    """Return the components of the kept features, 0 in all others."""
    plan, count, freedom = job.plan, len(found.values), whole.weight - 1
    kept = np.zeros(whole.n_features, bool)
    kept[features] = True
    components = np.zeros((count, len(kept)), stored_dtype(found.values, plan))
    components[:, features] = found.vectors.T
    return Decomposition(
        mean=whole.means[0],
        components=components,
        explained_variance=found.values / freedom,
        residual_bound=np.full(count, np.nan),
        angle_bound=np.full(count, np.nan),
        total_variance=float(whole.squares.sum()) / freedom,
        n_samples=n_samples,
        total_weight=whole.weight,
        kind=plan.request.kind,
        own_fields={"kept": kept, "coefficients": found.gains, "target_mean": float(whole.mean_times[0]), **own_fields},
    )
