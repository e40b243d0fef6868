"""`PCA`: principal component analysis with scikit-learn's interface, also of samples that come in batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import NotFittedError
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ..accumulators import FrequentDirections, Scatter
from ..errors import ModelError, RequestError
from ..events import logged
from ..fitting.arguments import Arguments
from ..fitting.batches import NO_BATCHES, check_batches
from ..fitting.identity import described
from ..fitting.incremental import IncrementalFit
from ..fitting.null_components import with_n_components
from ..fitting.open_fit import Opened
from ..kinds.description import fields_of
from ..kinds.pca import PCADescription
from ..kinds.run import run_of
from ..models.likelihood import GaussianDensity, check_matrix_fits, density_of, mean_log_density
from ..models.pca import PCAModel
from ..planning.request import Request
from ..preprocessing import Preparation
from ..readers.source import batch_of, is_batches
from .model_estimator import WhiteningEstimator, is_single, of_model

Array = npt.NDArray[Any]


@dataclass(eq=False, repr=False)
class PCA(WhiteningEstimator, PCADescription):
    """Principal component analysis of collections that need not fit in memory, with scikit-learn's names.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Orthonormal, by descending variance. float32 of samples in float32, as `mean_` and scores of such samples; those
        of `model_` are float64 where float32 would not do.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of shape (n_components_,)
        As in scikit-learn's PCA; ratios are of the exact total variance.
    error_bound_, angle_bound_ : ndarray of shape (n_components_,)
        See `PCAModel`.
    mean_ : ndarray of shape (n_features_in_,)
    var_ : ndarray of shape (n_features_in_,)
        Variance of each feature, divided by n; after `partial_fit`, or a fit by method "covariance".
    n_components_, n_samples_, n_samples_seen_, n_features_in_ : int
        The third counts samples of weight 0, too.
    noise_variance_ : float
        Mean variance of the directions left out.
    model_ : PCAModel
        The fitted model, with images, names, saving and lazy application.

    Notes
    -----
    Up to min(n_samples, n_features) components can be asked for, also 0. Samples span n_samples - 1 dimensions at most;
    components beyond what they span have variance 0 and no error bound.

    `fit` and `transform` take what scikit-learn takes, and also images (n, h, w), dask and zarr arrays, paths, globs
    and collections. For these `transform` returns a lazy dask array (numpy for numpy). It gives a row for every sample:
    with ``missing="drop-samples"``, scores of incomplete samples are NaN; with "em", they are those of least squares
    over the values that exist.

    A pickle after `fit` holds components, means and variances, and not the p x p statistic of method "covariance": it
    transforms, and does not go on with `partial_fit`. After `partial_fit` it holds the sums, and does.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> images = np.random.default_rng(0).random((100, 8, 8))
    >>> pca = streampca.PCA(n_components=5).fit(images)
    >>> pca.transform(images).shape
    (100, 5)
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the components of a collection.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p), images (n, *sample_shape), path, glob, paths or Collection
            Or a generator of batches of these, each of which is read once; components are then those of
            `partial_fit`. A batch may be the one array in a list or tuple; several arrays and mappings are refused.
        y : ignored
        sample_weight : array-like of shape (n,), optional
            How often each sample counts: weight 2 is the sample given twice.
        """
        if is_batches(X):
            return self._unless_refused(self._fit_batches, X, sample_weight)
        opened = self._open(self._opened(X), sample_weight=sample_weight)
        n = opened.collection.n_samples  # that are left
        self._check_count(n, opened.collection.n_features)
        model = self._carry_out(replace(opened, request=self._within(opened.request, n)))
        self._take(model, opened.collection.raw.n_features, n)
        return self

    @available_if(lambda estimator: _adds_batches(estimator.method, estimator.missing))  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add a batch of samples to those that were learned from before, by `fit` or by this.

        Whatever the batches, the components are those of one fit of all samples by method "covariance": of whole
        numbers whose products are exact to the last bit, else to rounding. Where p x p exceeds the memory of
        `run`, samples are sketched instead, see Notes. Components are solved for when they are asked for, not here.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p), images (n, *sample_shape), path, glob, paths or Collection
            A batch of any length from 1; anything that `fit` takes is one batch.
        y : ignored
        sample_weight : array-like of shape (n,), optional
            How often each sample of the batch counts: weight 2 is the sample given twice.

        Raises
        ------
        RequestError
            If the preparation takes a pass over all samples first (``mask="valid"``), if it, `missing`, `precision` or
            `half_life` has been changed since the first batch, or if all components are asked for and p x p does not
            fit. (With another `missing` than "error", which takes such a pass, there is no `partial_fit`.)
        ModelError
            If samples are of another shape or kind than before; or after a fit by a method that keeps no statistic, or
            that was pickled.
        DataError
            If a sample holds NaN or infinity, or values whose squares overflow.
        BudgetError
            If not even a sketch fits the budget.

        Notes
        -----
        A batch that is refused, or whose reading is broken off by Ctrl-C, leaves the estimator as it was; where that
        breaks off adding it, all further use is refused. ``n_components`` and ``whiten`` may be set anew at any time;
        the memory of `run` and `random_state` are taken as they are at the first batch. All else in `run`, `tol` and
        `max_passes` are of `fit`. Until there are enough samples for the components, asking for them is a
        NotFittedError.

        Beyond p x p, frequent directions keep a sketch of 4 rows a component (64 at least; 200 where the number
        depends on the data), and the sum of what it lost bounds every error: `error_bound_` is then certain, and the
        log says it once.

        Time: n p^2 flops, as in a fit; samples wait in a buffer of up to 8 MiB to be multiplied together, so that
        batches of one sample cost little more. Memory: a second p x p matrix while a large batch is added, and one
        for a model that was asked for before it.
        """
        if sample_weight is None and self._waits(X):
            return self
        return self._unless_refused(self._add, X, sample_weight)

    @classmethod
    def from_model(cls, model: PCAModel, **params: Any) -> Self:
        """Return an estimator that is fitted with a model.

        Parameters
        ----------
        model : PCAModel
            Such as ``load_model(path, statistic=True)``: `partial_fit` goes on from it where it has its statistic.
        **params
            Parameters of the estimator; by default those that the model was fitted with.
        """
        request = (model.provenance.get("plan") or {}).get("request") or {"n_components": model.n_components}
        fitted_with = {name: request[name] for name in fields_of(PCADescription) if name in request}
        fitted_with.pop("method", None)  # by which the statistic was found, and batches are not added
        prepares = None if model.preparation.is_identity else model.preparation
        given = {**fitted_with, "preparation": prepares, **params}
        fitted = cls(**given)
        fitted._take(model, math.prod(model.raw_shape), model.n_samples)
        fitted._pickles_statistic = True  # it was loaded by request
        return fitted

    def _take(self, model: PCAModel, n_features: int, n_samples: int) -> None:
        """Take a model as the one that was fitted."""
        self._pickles_statistic, self._pickled_var = False, None
        self._batches: IncrementalFit | None = None
        self._model = model
        self._begun = self._settings()
        self.n_features_in_, self.n_samples_seen_ = n_features, n_samples

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: after `fit` without the p x p statistic, which only `partial_fit` would use."""
        state, (_, model) = dict(super().__getstate__()), self._state
        if model is not None and isinstance(model.statistic, Scatter) and not self._pickles_statistic:
            state |= {"_model": model.without_statistic(), "_pickled_var": model.statistic.feature_variance}
        return state

    def _arguments(self, **changes: Any) -> Arguments:
        """Return what the parameters ask for; see `ModelEstimator`. A fit finds one component where 0 are wanted."""
        return super()._arguments(**{"n_components": 1 if self._count == 0 else self.n_components, **changes})

    def _request(self, seed: int | None = None) -> Request:
        """Return the request of the parameters; a seed is drawn from `random_state` unless it is known."""
        return self._arguments(**({} if seed is None else {"random_state": seed})).request()

    def _within(self, request: Request, n_samples: int) -> Request:
        """Ask for one component less than there are samples, which is what they span; the last is added later."""
        return request.asking(n_components=n_samples - 1) if request.n_components == n_samples > 1 else request

    def _finished(self, model: PCAModel, opened: Opened) -> PCAModel:
        """Return the model with as many components as are asked for."""
        return with_n_components(model, self._count_in(model, opened.collection.n_samples))

    @property
    def _count(self) -> int | None:
        """The number of components that is asked for; None for all, a fraction or a rule."""
        wanted = self.n_components
        return int(wanted) if isinstance(wanted, Integral) and not isinstance(wanted, bool) else None

    def _check_count(self, n_samples: int, n_features: int) -> None:
        """Refuse a number of components that these samples do not have."""
        count, least, most = self._count, int(self.method == "randomized"), min(n_samples, n_features)
        if count is not None and not least <= count <= most:
            raise RequestError(
                f"n_components={count} must be between {least} and min(n_samples, n_features)={most}, the most that "
                f"{n_samples} samples of {n_features} features have; ask for at {'least' if count < least else 'most'} "
                "that."
            )

    def _settings(self) -> dict[str, Any]:
        """Return the parameters that must be the same for all batches."""
        return {name: getattr(self, name) for name in ("preparation", "precision", "half_life", "missing")}

    def _changed(self) -> str | None:
        """Return the name of a setting that is not what it was for the first batch."""
        now = self._settings()
        return next((name for name, value in self._begun.items() if not _is_same(value, now[name])), None)

    def _waits(self, X: Any) -> bool:
        """Buffer a plain array like those before it, if possible, which takes a twentieth of the time of `_add`."""
        begun, _ = self._state
        if begun is None or type(X) is not np.ndarray or "feature_names_in_" in self.__dict__:
            return False
        if X.shape[1:] != begun.template.raw_shape or not len(X) or self._changed():
            return False
        if not begun.add_rows(X.reshape(len(X), -1)):
            return False
        self.n_samples_seen_ = begun.n_samples
        return True

    def _unless_refused(self, learn: Callable[[Any, Any], None], X: Any, sample_weight: Any) -> Self:
        """Learn from samples; where that fails, be as before."""
        before = self.__dict__.copy()
        try:
            learn(X, sample_weight)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _fit_batches(self, batches: Iterator[Any], sample_weight: Any) -> None:
        """Fit batches that come one after another."""
        check_batches(self, run_of({"run": self.run}), sample_weight)
        for name in ("_batches", "_model", "n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        for batch in map(batch_of, batches):
            if not self._waits(batch):
                self._add(batch, None)
        begun, _ = self._state
        if begun is None:
            raise RequestError(NO_BATCHES)
        if lacking := begun.lacking(self._request(begun.request.seed)):
            raise RequestError(f"{lacking}; give more batches, or ask for fewer components.")
        self._take(self.model_, self.n_features_in_, begun.n_samples)

    def _add(self, X: Any, sample_weight: Any) -> None:
        """Add a batch of any kind."""
        begun, model = self._state
        first = begun is None and model is None
        if not first and (name := self._changed()):
            raise RequestError(
                f"{name} has been changed since the samples before were learned from; set it back, or call fit to "
                "begin anew."
            )
        known = model if begun is None else begun.template
        raw = self._opened(X, least=1, reset=first, sample_shape=None if known is None else known.raw_shape)
        if begun is None:
            self._begun = self._settings()
            if model is None:
                begun = IncrementalFit.begin(raw, self.preparation, self._request())
            elif self._pickled_var is not None and model.statistic is None:
                raise ModelError(
                    "the statistic that batches are added to is not pickled with a fit; give all batches to "
                    "partial_fit, whose pickles keep it, or store the model with model_.save(path) after the fit, and "
                    "go on with PCA.from_model(load_model(path, statistic=True))."
                )
            else:
                begun = IncrementalFit.going_on(model, self._request())
        begun.add(raw, sample_weight, logged)
        self._batches, self._model = begun, None
        self.n_features_in_, self.n_samples_seen_ = raw.n_features, begun.n_samples

    def score_samples(self, X: Any) -> Any:
        """Log-likelihood of each sample, shape (n,), as of scikit-learn's PCA; see `PCAModel.score_samples`."""
        check_is_fitted(self)
        return self.model_.number_of_each(self._values(X), self._density().log_density, "log_likelihood")

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of samples; see `PCAModel.score`."""
        check_is_fitted(self)
        return mean_log_density(self._density(), self.model_, self._values(X), self._memory)

    def get_covariance(self) -> Array:
        """Covariance of the features, shape (p, p); refused where that does not fit the budget.

        With ``whiten=True`` it is scikit-learn's, which multiplies the components by their standard deviations first;
        `PCAModel.get_covariance` of ``model_`` is that of the samples. So are likelihoods.
        """
        check_is_fitted(self)
        density = self._density()
        check_matrix_fits(density, "covariance", self._memory)
        return density.covariance()

    def get_precision(self) -> Array:
        """Inverse of `get_covariance`, shape (p, p)."""
        check_is_fitted(self)
        density = self._density()
        check_matrix_fits(density, "precision", self._memory)
        return density.precision()

    def _density(self) -> GaussianDensity:
        return density_of(self.model_, whitened=self.whiten)

    def __sklearn_is_fitted__(self) -> bool:
        return self._state != (None, None)

    @property
    def _state(self) -> tuple[IncrementalFit | None, PCAModel | None]:
        """Return the batches learned from, or the model; neither before the first."""
        return self.__dict__.get("_batches"), self.__dict__.get("_model")

    def _fitted(self, name: str) -> PCAModel:
        """Return the model of all samples so far, or say why there is no attribute `name`."""
        begun, _ = self._state
        if begun is None:
            return cast("PCAModel", super()._fitted(name))
        request = self._request(begun.request.seed)
        if lacking := begun.lacking(request):
            raise NotFittedError(f"this {type(self).__name__} has no {name} yet: {lacking}; give it more samples.")
        found = begun.model(request, logged)
        return begun.completed(found, self._count_in(found, begun.n_samples))

    def _count_in(self, found: PCAModel, n_samples: int) -> int:
        """Return how many components a model of so many samples is to have."""
        if self.n_components is None:  # copies of samples add dimensions without variance
            return max(found.n_components, min(int(found.total_weight or n_samples), found.n_features))
        return found.n_components if self._count is None else self._count

    def _as_given(self, values: Array) -> Array:
        """Return values in the floating dtype of the samples."""
        begun, model = self._state
        given = begun.dtype if begun is not None else model.provenance.get("dtype") if model is not None else None
        return values.astype(np.float32, copy=False) if is_single(given) else values

    @property
    def components_(self) -> Array:
        """Components as rows of features."""
        model = self._fitted("components_")
        return self._as_given(np.asarray(model.subspace.components))

    @property
    def mean_(self) -> Array:
        """Mean as a row of features."""
        begun, _ = self._state
        return self._as_given(self._fitted("mean_").subspace.mean if begun is None else begun.statistic.mean.copy())

    @property
    def var_(self) -> Array:
        """Variance of each feature, divided by n as in IncrementalPCA; after batches, or method "covariance"."""
        begun, model = self._state
        if model is not None and model.statistic is None and self._pickled_var is not None:
            return self._pickled_var.copy()
        statistic = self._fitted("var_").statistic if begun is None else begun.statistic
        if not isinstance(statistic, Scatter | FrequentDirections):
            raise AttributeError(
                "var_ is known after partial_fit, or a fit by method 'covariance'; fit with method='covariance'."
            )
        return statistic.feature_variance

    explained_variance_ = of_model("explained_variance", "Variance along each component.")
    explained_variance_ratio_ = of_model("explained_variance_ratio", "Share of the total variance of each component.")
    singular_values_ = of_model("singular_values", "Singular values of the centred data.")
    error_bound_ = of_model("error_bound", "Bound on each pair's relative residual.")
    angle_bound_ = of_model("angle_bound", "Bound on each direction's angle, radians.")
    n_components_ = of_model("n_components", "Number of components found.")
    noise_variance_ = of_model("noise_variance", "Mean variance of the directions left out.")

    @property
    def n_samples_(self) -> int:
        """Number of samples fitted, without those of weight 0."""
        begun, _ = self._state
        return self._fitted("n_samples_").n_samples if begun is None else begun.statistic.n_samples


def _is_same(one: Any, other: Any) -> bool:
    """Compare two values of a setting; preparations hold arrays, and are compared as a fit that resumes does."""
    return one is other or _comparable(one) == _comparable(other)


def _comparable(value: Any) -> Any:
    """Return a preparation as plain data, everything else as it is."""
    if not isinstance(value, Preparation):
        return value
    mask = None if value.mask is None else np.asarray(value.mask)  # of the word "valid", too
    return described(None, {}, value, mask, None, None)


def _adds_batches(method: Any, missing: Any) -> bool:
    """Return True where batches can be added later; else raise the error that `available_if` shows as the cause."""
    if method in ("dual", "randomized", "em"):
        raise AttributeError(
            f"method={method!r} has nothing to which later batches could be added; partial_fit takes method 'auto' or "
            "'covariance'."
        )
    if missing != "error":
        raise AttributeError(
            f"missing={missing!r} takes a pass over all samples before a fit, and batches never come together; leave "
            "samples out or mask pixels beforehand, or fit all samples at once."
        )
    return True
