"""Bootstrap intervals of variances and components, from scores alone: no sample is read again.

Reference: A. Fisher, B. Caffo, B. Schwartz, V. Zipunnikov, "Fast, exact bootstrap principal component analysis for
p > 1 million", Journal of the American Statistical Association 111, 2016.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from ..arrays import Array, Float64
from ..errors import RequestError
from ..kinds.values import seed_of
from ..planning.blocks import Span, blocks_of
from ..planning.candidate_sizes import check_budget
from ..planning.memory import RUNTIME_BYTES
from ..preprocessing import unflatten
from ..preprocessing.sizes_for_planning import this_machine
from ..readers import open_collection
from ..readers.detect import is_data_array
from ..signals import safe_point, stopping_on_signals
from ..units import counted, format_shape, parse_bytes, whole_number
from .accuracy import check_variances
from .data_arrays import COMPONENT, NamedSamples, dataset_of
from .model import Model, over, require
from .pca import PCAModel
from .score_map import ScoreMapModel
from .subspace import PIECE, Subspace

if TYPE_CHECKING:
    from xarray import Dataset


VARIANCE_TOLERANCE = 0.01  # relative to the first variance: scores in float32 differ by less, whitened ones by more


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class BootstrapModel(ScoreMapModel):
    """Variances and components of bootstrap samples: drawn with replacement from those that a model was fitted on.

    `pca` is that model: its components are the reference for those of the draws, and samples have scores along them.

    Attributes
    ----------
    variances : ndarray of shape (replicates, k)
        Variances of each draw, descending.
    turns : ndarray of shape (replicates, k, k)
        Components of each draw, as columns, in the basis of the model's components; the diagonal is positive.
    level : float
        Coverage of the intervals, between 0 and 1.
    """

    kind: ClassVar[str] = "bootstrap"
    prefix: ClassVar[str] = "bootstrap_"
    noun: ClassVar[str] = "component"

    variances: Float64 = field(metadata=over("bootstrap_draw", "bootstrap_rank"))
    turns: Float64 = field(metadata=over("bootstrap_draw", "bootstrap_component", "bootstrap_rank"))
    level: float = field(metadata=over())

    @property
    def n_scores(self) -> int:
        """Number of scores of a sample: one along each component."""
        return self.pca.n_components

    @property
    def subspace(self) -> Subspace:
        """Mean and components as plain rows of features."""
        return self.pca.subspace

    def __repr__(self) -> str:
        draws, count = self.variances.shape
        return f"{type(self).__name__}({draws} draws, {counted(count, 'component')} of {self.pca!r})"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentence on the first interval and angle."""
        (low, high), first = self.variance_interval[0], self.pca.explained_variance[0]
        return (
            f"by {len(self.variances)} draws, {100 * self.level:g} % intervals: the first variance lies between "
            f"{low / first:.3g} and {high / first:.3g} of that found, the first component within "
            f"{np.degrees(self.angle[0]):.2g}\N{DEGREE SIGN}",
        )

    @property
    def variance_interval(self) -> Float64:
        """Lower and upper end of an interval for each variance, shape (k, 2).

        Normal intervals of the logarithm, corrected for bias: draws overestimate the model's leading variances as much
        as the model overestimates the true ones.
        """
        logs, model_logs = np.log(self.variances), np.log(self.pca.explained_variance[: self.variances.shape[1]])
        middle = 2 * model_logs - logs.mean(axis=0)  # the model's value minus the bias, mean(logs) - model_logs
        half = NormalDist().inv_cdf((1 + self.level) / 2) * logs.std(axis=0, ddof=1)
        return cast("Float64", np.exp(np.stack([middle - half, middle + half], axis=1)))

    @property
    def angle(self) -> Float64:
        """Quantile `level` of the angles between the draws' and the model's components, in radians, shape (k,)."""
        cosines = np.clip(np.diagonal(self.turns, axis1=1, axis2=2), 0, 1)
        return cast("Float64", np.quantile(np.arccos(cosines), self.level, axis=0))

    def component_error(self) -> Array:
        """Standard deviation over the draws of each pixel of each component, (k, *sample_shape); NaN outside the mask.

        Cost p k^3 flops; components on disk are read piece by piece.
        """
        count = self.variances.shape[1]
        # The variance of a pixel of component j is v^T M_j v: v the pixel's loadings, M_j the covariance of the turns.
        deviations = self.turns - self.turns.mean(axis=0)
        moments = np.einsum("bij,bkj->jik", deviations, deviations, optimize=True) / (len(deviations) - 1)
        subspace, rows = self.pca.subspace.first(count), np.empty((count, self.pca.n_features))
        for features, piece in subspace.pieces():
            for span in blocks_of(Span(0, features.size), max(1, PIECE // count)):
                loadings = cast("Array", piece.components)[:, slice(*span)].astype(np.float64)
                columns = slice(features.start + span.start, features.start + span.stop)
                for number, moment in enumerate(moments):
                    rows[number, columns] = np.einsum("ij,ij->j", moment @ loadings, loadings)
        rows = np.sqrt(np.maximum(rows, 0, out=rows), out=rows)
        return unflatten(rows, self.pca.sample_shape, self.pca.mask)

    def intervals(self) -> Dataset:
        """Return the model's components and variances with their intervals and errors, as an `xarray.Dataset`."""
        count = self.variances.shape[1]
        further = ("variance_lower", "variance_upper", "component_error", "angle")
        dataset = dataset_of(self.pca, *further).isel({COMPONENT: slice(count)})[["components", "explained_variance"]]
        lower, upper = self.variance_interval.T
        variance, components = dataset["explained_variance"], dataset["components"]
        share = f"{100 * self.level:g} %"
        variables = {
            "variance_lower": variance.copy(data=lower).assign_attrs(long_name=f"lower end of the {share} interval"),
            "variance_upper": variance.copy(data=upper).assign_attrs(long_name=f"upper end of the {share} interval"),
            "component_error": components.copy(data=self.component_error()).assign_attrs(
                long_name="standard deviation of the components of draws", units="1"
            ),
            "angle": variance.copy(data=self.angle).assign_attrs(
                long_name=f"angle to the components of {share} of the draws", units="radian"
            ),
        }
        return dataset.assign(variables).assign_attrs(title="bootstrap of principal components", level=self.level)


@stopping_on_signals()
def bootstrap(
    model: Model,
    scores: Any,
    n_components: int | None = None,
    *,
    n_replicates: int = 500,
    level: float = 0.9,
    block: int = 1,
    random_state: Any = 0,
    memory: int | str | None = None,
) -> BootstrapModel:
    """Estimate the sampling variation of variances and components from the scores of the fitted samples.

    Samples drawn with replacement lie in the span of all samples, so the components of a draw follow from a k x k
    matrix in the space of scores. Components that are left out are assumed not to mix with those kept: keep a few more
    than are of interest.

    Parameters
    ----------
    model : PCAModel
        Fitted without sample weights; not changed.
    scores : array of shape (n, k), DataArray, collection or path of one
        Scores of all samples that the model was fitted on, as `PCAModel.transform` returns or `PCAModel.write_scores`
        writes them, not whitened.
    n_components : int, optional
        Number of first components; all by default.
    n_replicates : int, default=500
        Number of draws of n samples, at least 2.
    level : float, default=0.9
        Coverage of the intervals, between 0 and 1.
    block : int, default=1
        Number of consecutive samples that are drawn together, below n: for a time series, its correlation time. Draws
        of fewer than about ten blocks differ too little for intervals.
    random_state : int, RandomState, Generator or None, default=0
        Seed of the draws.
    memory : int or str, optional
        Most bytes to use; half of what the machine allows by default.

    Returns
    -------
    BootstrapModel

    Raises
    ------
    RequestError
        If scores are not those of the samples fitted, the model has sample weights or a component without variance, or
        an option is out of range.
    BudgetError
        If n x k scores and a k x k matrix a draw do not fit the budget.

    Notes
    -----
    Costs n k^2 flops a draw, and no read of the samples. Components of draws are matched to the model's by rank: where
    sampling mixes components (see ``model.summary()["trust"]``), their angles are large.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> draws = streampca.bootstrap(model, model.transform(digits), n_components=3, n_replicates=100)
    >>> draws.variance_interval.shape
    (3, 2)
    """
    model = require(model, PCAModel, "draws are made of principal components")
    count = model.count_of(n_components)
    draws = whole_number(n_replicates, "n_replicates", least=2, example="500")
    length = whole_number(block, "block", least=1, example="12")
    rng = np.random.default_rng(seed_of(random_state))
    if not 0 < level < 1:
        raise RequestError(f"level {level!r} is not between 0 and 1; use for example 0.9.")
    check_variances(model, count)
    if model.total_weight is not None:
        raise RequestError(f"{model.name} was fitted with sample weights, which draws know nothing of; fit it without.")
    n = model.n_samples
    if length >= n:
        raise RequestError(
            f"block {length} is not below the {n} samples, and every draw would hold all of them; use for example "
            f"{max(1, n // 10)}."
        )
    # Scores, their weighted copy, and the matrices of all draws.
    needed = 8 * (2 * n * count + draws * count * (count + 1)) + RUNTIME_BYTES
    budget, source = this_machine().budget(parse_bytes(memory))
    subject = f"{draws} draws of {n} samples in the space of {count} components"
    check_budget(subject, lambda size: size >= needed, budget, source)
    rows = _centred_scores(model, scores, count)
    variances, turns = np.empty((draws, count)), np.empty((draws, count, count))
    for number in range(draws):
        safe_point()
        # A circular block bootstrap: blocks wrap around at the end, so that every sample is drawn equally often.
        starts = rng.integers(0, n, -(-n // length))
        drawn = ((starts[:, None] + np.arange(length)) % n).ravel()[:n]
        times = np.bincount(drawn, minlength=n).astype(np.float64)
        mean = times @ rows / n
        # The rows are centred on the mean of all samples, so the mean of a draw is small and nothing cancels.
        scatter = (rows * times[:, None]).T @ rows - n * np.outer(mean, mean)
        values, vectors = np.linalg.eigh(scatter / (n - 1))
        variances[number], vectors = values[::-1].clip(min=np.finfo(np.float64).tiny), vectors[:, ::-1]
        turns[number] = vectors * np.where(np.diagonal(vectors) < 0, -1, 1)
    return BootstrapModel.on(model, variances=variances, turns=turns, level=float(level))


def _centred_scores(model: PCAModel, scores: Any, count: int) -> Float64:
    """Return centred scores of the fitted samples, (n, k), float64; refuse scores of other samples."""
    if isinstance(scores, (str, os.PathLike)):
        scores = open_collection(scores)
    array = NamedSamples.scores(scores).values if is_data_array(scores) else scores
    shape = tuple(getattr(array, "shape", np.shape(array)))
    if len(shape) != 2 or shape[0] != model.n_samples or shape[1] < count:
        raise RequestError(
            f"scores have shape {format_shape(shape)} and {model.name} was fitted on {model.n_samples} samples; give "
            f"the scores of these along {count} components, as model.transform returns them."
        )
    rows = np.asarray(array[:, :count], np.float64)
    rows = rows - rows.mean(axis=0)
    expected = model.explained_variance[:count]
    difference = np.abs(np.einsum("ij,ij->j", rows, rows) / (len(rows) - 1) - expected)
    if not (difference <= VARIANCE_TOLERANCE * expected[0]).all():
        raise RequestError(
            f"scores have other variances than the components of {model.name}; give those of the samples it was fitted "
            "on, in its units, not whitened: model.transform(samples)."
        )
    return cast("Float64", rows)
