"""`PCA`: principal component analysis with scikit-learn's interface, also for samples that come in batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self, cast

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ..accumulators import FrequentDirections, Scatter
from ..arrays import Array
from ..errors import ModelError, RequestError
from ..events import logged
from ..fitting.arguments import Arguments
from ..fitting.batches import NO_BATCHES, check_batches
from ..fitting.identity import described
from ..fitting.incremental import IncrementalFit, needs_all_samples
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
from .model_estimator import WhiteningEstimator, of_model


@dataclass(eq=False, repr=False)
class PCA(WhiteningEstimator, PCADescription):
    """Principal component analysis of collections that need not fit in memory, with scikit-learn's interface.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Orthonormal, by descending variance. float32 for samples in float32, as are `mean_` and their scores; the
        components of `model_` are float64 where float32 has too few digits.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of shape (n_components_,)
        As in scikit-learn's PCA; ratios are of the exact total variance.
    error_bound_, angle_bound_, residual_bound_ : ndarray of shape (n_components_,)
        See `PCAModel`.
    mean_ : ndarray of shape (n_features_in_,)
        Mean of the samples.
    var_ : ndarray of shape (n_features_in_,)
        Variance of each feature, with divisor n; after `partial_fit`, or a fit by method "covariance".
    n_components_, n_samples_, n_samples_seen_, n_features_in_ : int
        Numbers of components, samples and features; only `n_samples_seen_` counts samples of weight 0.
    noise_variance_ : float
        Mean variance of the directions left out.
    model_ : PCAModel
        The fitted model, with images, names, saving and lazy application.

    Notes
    -----
    `n_components` may be 0 to min(n_samples, n_features). Samples span at most n_samples - 1 dimensions; components
    beyond their span have variance 0 and no error bound.

    `fit` and `transform` accept what scikit-learn accepts, and also images (n, h, w), dask and zarr arrays, paths,
    globs and collections. For these `transform` returns a lazy dask array (numpy for numpy). It gives a row for every
    sample: with ``missing="drop-samples"``, scores of incomplete samples are NaN; with "em", they are fitted by least
    squares to the values that exist.

    A pickle after `fit` holds components, means and variances, but not the p x p statistic of method "covariance": it
    can transform, but not continue with `partial_fit`. A pickle after `partial_fit` holds the statistic and can.

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
            `partial_fit`. A batch may be a list or tuple of one array; several arrays and mappings are refused.
        y : ignored
        sample_weight : array-like of shape (n,), optional
            How often each sample counts: weight 2 is the sample given twice.
        """
        if is_batches(X):
            return self._or_unchanged(self._fit_batches, X, sample_weight)
        opened = self._open(self._opened(X), sample_weight=sample_weight)
        n = opened.collection.n_samples  # without those that `missing` leaves out
        self._check_count(n, opened.collection.n_features)
        model = self._carry_out(replace(opened, request=self._within(opened.request, n)))
        self._set_model(model, opened.collection.raw.n_features, n)
        return self

    @available_if(lambda estimator: _adds_batches(estimator.method, estimator.missing))  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add a batch of samples to those of earlier calls of `fit` or `partial_fit`.

        Whatever the batches, the components are those of one fit of all samples by method "covariance": to the last
        bit for whole numbers with exact products, else to rounding. Where p x p exceeds the memory of `run`, samples
        are sketched instead, see Notes. Components are computed when they are first used, not here.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p), images (n, *sample_shape), path, glob, paths or Collection
            A batch of any length from 1; anything that `fit` accepts is one batch.
        y : ignored
        sample_weight : array-like of shape (n,), optional
            How often each sample of the batch counts: weight 2 is the sample given twice.

        Raises
        ------
        RequestError
            If the preparation needs a pass over all samples first (``mask="valid"``), if it, `missing`, `precision` or
            `half_life` has changed since the first batch, or if all components are requested and p x p does not fit.
            (With a `missing` other than "error", which needs such a pass, there is no `partial_fit`.)
        ModelError
            If samples differ in shape or kind from earlier ones; or after a fit that kept no statistic, or was pickled.
        DataError
            If a sample holds NaN or infinity, or values whose squares overflow.
        BudgetError
            If not even a sketch fits the budget.

        Notes
        -----
        A batch that is refused, or whose reading is interrupted by Ctrl-C, leaves the estimator unchanged; if adding
        it is interrupted, all further use is refused. ``n_components`` and ``whiten`` can be set anew at any time;
        `random_state` and the memory of `run` hold from the first batch on. `tol`, `max_passes` and all else in `run`
        concern `fit` only. Until there are enough samples for the components, reading them raises a NotFittedError.

        Where p x p does not fit, frequent directions keep a sketch of 4 rows a component (64 at least; 200 where the
        number depends on the data), and the sum of what it lost bounds every error: `error_bound_` is then certain,
        and the log says so once.

        Time: n p^2 flops, as in a fit; samples wait in a buffer of up to 8 MiB to be multiplied together, so that
        batches of one sample cost little more. Memory: a second p x p matrix while a large batch is added, and a third
        if a model was computed before.
        """
        if sample_weight is None and self._buffers(X):
            return self
        return self._or_unchanged(self._add, X, sample_weight)

    @classmethod
    def from_model(cls, model: PCAModel, **params: Any) -> Self:
        """Return an estimator that is fitted with a model.

        Parameters
        ----------
        model : PCAModel
            Model such as ``load(path, statistic=True)``; with its statistic, `partial_fit` can add to it.
        **params
            Parameters of the estimator; by default as the model was fitted.
        """
        request = (model.provenance.get("plan") or {}).get("request") or {"n_components": model.n_components}
        values = {name: request[name] for name in fields_of(PCADescription) if name in request}
        values.pop("method", None)  # batches are added by method "covariance", whichever made the statistic
        preparation = None if model.preparation.is_identity else model.preparation
        estimator = cls(**{**values, "preparation": preparation, **params})
        estimator._set_model(model, math.prod(model.raw_shape), model.n_samples)
        estimator._pickles_statistic = True  # as loading it was requested
        return estimator

    def _set_model(self, model: PCAModel, n_features: int, n_samples: int) -> None:
        """Store a model as the fitted one."""
        self._pickles_statistic, self._pickled_var = False, None
        self._batches: IncrementalFit | None = None
        self._model = model
        self._first_settings = self._settings()
        self.n_features_in_, self.n_samples_seen_ = n_features, n_samples

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle; after `fit` without the p x p statistic, which only `partial_fit` uses."""
        state, (_, model) = dict(super().__getstate__()), self._state
        if model is not None and isinstance(model.statistic, Scatter) and not self._pickles_statistic:
            state |= {"_model": model.without_statistic(), "_pickled_var": model.statistic.feature_variance}
        return state

    def _arguments(self, **changes: Any) -> Arguments:
        """Return the arguments of a fit, see `ModelEstimator`; for 0 components, one is fitted."""
        return super()._arguments(**{"n_components": 1 if self._count == 0 else self.n_components, **changes})

    def _request(self, seed: int | None = None) -> Request:
        """Return the request of the parameters, with a seed in place of `random_state` if one is given."""
        return self._arguments(**({} if seed is None else {"random_state": seed})).request()

    def _within(self, request: Request, n_samples: int) -> Request:
        """Return a request of at most n_samples - 1 components, which the samples span; the last is added later."""
        return request.asking(n_components=n_samples - 1) if request.n_components == n_samples > 1 else request

    def _finished(self, model: PCAModel, opened: Opened) -> PCAModel:
        """Return the model with the requested number of components."""
        return with_n_components(model, self._count_in(model, opened.collection.n_samples))

    @property
    def _count(self) -> int | None:
        """The requested number of components; None for all, a fraction or a rule."""
        k = self.n_components
        return int(k) if isinstance(k, Integral) and not isinstance(k, bool) else None

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
        """Return the parameters that must be equal for all batches."""
        return {name: getattr(self, name) for name in ("preparation", "precision", "half_life", "missing")}

    def _changed(self) -> str | None:
        """Return the name of a setting that has changed since the first batch."""
        now = self._settings()
        # Preparations hold arrays, which are compared by their digests.
        changed = (
            name
            for name, value in self._first_settings.items()
            if value is not now[name] and _comparable(value) != _comparable(now[name])
        )
        return next(changed, None)

    def _buffers(self, X: Any) -> bool:
        """Buffer a plain array like earlier ones, if possible, in a twentieth of the time of `_add`."""
        batches, _ = self._state
        if batches is None or type(X) is not np.ndarray or "feature_names_in_" in self.__dict__:
            return False
        if X.shape[1:] != batches.template.raw_shape or not len(X) or self._changed():
            return False
        if not batches.add_rows(X.reshape(len(X), -1)):
            return False
        self.n_samples_seen_ = batches.n_samples
        return True

    def _or_unchanged(self, learn: Callable[[Any, Any], None], X: Any, sample_weight: Any) -> Self:
        """Learn from samples; if that fails, restore the estimator."""
        before = self.__dict__.copy()
        try:
            learn(X, sample_weight)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _fit_batches(self, iterator: Iterator[Any], sample_weight: Any) -> None:
        """Fit batches that come one after another, and can be read only once."""
        check_batches(self, run_of({"run": self.run}), sample_weight)
        for name in ("_batches", "_model", "n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        for batch in map(batch_of, iterator):
            if not self._buffers(batch):
                self._add(batch, None)
        batches, _ = self._state
        if batches is None:
            raise RequestError(NO_BATCHES)
        if shortage := batches.shortage(self._request(batches.request.seed)):
            raise RequestError(f"{shortage}; give more batches, or ask for fewer components.")
        self._set_model(self.model_, self.n_features_in_, batches.n_samples)

    def _add(self, X: Any, sample_weight: Any) -> None:
        """Add a batch of any kind, after opening and validating it."""
        batches, model = self._state
        is_first = batches is None and model is None
        if not is_first and (name := self._changed()):
            raise RequestError(f"{name} has changed since the first batch; set it back, or call fit to begin anew.")
        earlier = model if batches is None else batches.template
        raw = self._opened(X, least=1, reset=is_first, sample_shape=None if earlier is None else earlier.raw_shape)
        if batches is None:
            self._first_settings = self._settings()
            if model is None:
                batches = IncrementalFit.begin(raw, self.preparation, self._request())
            elif self._pickled_var is not None and model.statistic is None:
                raise ModelError(
                    "the statistic that batches are added to is not pickled with a fit; give all batches to "
                    "partial_fit, whose pickles keep it, or store the model with model_.save(path) after the fit, and "
                    "go on with PCA.from_model(load(path, statistic=True))."
                )
            else:
                batches = IncrementalFit.from_model(model, self._request())
        batches.add(raw, sample_weight, logged)
        self._batches, self._model = batches, None
        self.n_features_in_, self.n_samples_seen_ = raw.n_features, batches.n_samples

    def score_samples(self, X: Any) -> Any:
        """Return the log-likelihood of each sample, (n,), as scikit-learn's PCA; see `PCAModel.score_samples`.

        It is that of the samples, whether or not scores are whitened.
        """
        check_is_fitted(self)
        return self.model_.number_of_each(self._values(X), self._density().log_density, "log_likelihood")

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of samples; see `PCAModel.score`."""
        check_is_fitted(self)
        return mean_log_density(self._density(), self.model_, self._values(X), self._memory)

    def get_covariance(self) -> Array:
        """Return the covariance of the features, (p, p), unless it exceeds the budget.

        It is that of the samples, whether or not scores are whitened.
        """
        check_is_fitted(self)
        density = self._density()
        check_matrix_fits(density, "covariance", self._memory)
        return density.covariance()

    def get_precision(self) -> Array:
        """Return the inverse of `get_covariance`, (p, p)."""
        check_is_fitted(self)
        density = self._density()
        check_matrix_fits(density, "precision", self._memory)
        return density.precision()

    def _density(self) -> GaussianDensity:
        return density_of(self.model_)

    def __sklearn_is_fitted__(self) -> bool:
        return self._state != (None, None)

    @property
    def _state(self) -> tuple[IncrementalFit | None, PCAModel | None]:
        """The fit of batches, or the fitted model; neither before the first fit."""
        return self.__dict__.get("_batches"), self.__dict__.get("_model")

    def _fitted(self, name: str) -> PCAModel:
        """Return the model of all samples so far; before there are enough, raise an error that names an attribute."""
        batches, _ = self._state
        if batches is None:
            return cast("PCAModel", super()._fitted(name))
        request = self._request(batches.request.seed)
        if shortage := batches.shortage(request):
            raise NotFittedError(f"this {type(self).__name__} has no {name} yet: {shortage}; give it more samples.")
        model = batches.model(request, logged)
        return batches.completed(model, self._count_in(model, batches.n_samples))

    def _count_in(self, model: PCAModel, n_samples: int) -> int:
        """Return the number of components that a model of n_samples samples must have."""
        if self.n_components is None:  # a weight above 1 stands for copies, which add components without variance
            return max(model.n_components, min(int(model.total_weight or n_samples), model.n_features))
        return model.n_components if self._count is None else self._count

    @property
    def _dtype(self) -> Any:
        batches, _ = self._state
        return super()._dtype if batches is None else batches.dtype

    @property
    def mean_(self) -> Array:
        """Mean as a row of features."""
        batches, _ = self._state  # which have a mean before there are enough samples for the components
        return super().mean_ if batches is None else self._in_dtype_of_samples(batches.statistic.mean.copy())

    @property
    def var_(self) -> Array:
        """Variance of each feature, with divisor n as in IncrementalPCA; after batches, or method "covariance"."""
        batches, model = self._state
        if model is not None and model.statistic is None and self._pickled_var is not None:
            return self._pickled_var.copy()
        statistic = self._fitted("var_").statistic if batches is None else batches.statistic
        if not isinstance(statistic, Scatter | FrequentDirections):
            raise AttributeError(
                "var_ is known after partial_fit, or a fit by method 'covariance'; fit with method='covariance'."
            )
        return statistic.feature_variance

    singular_values_ = of_model("singular_values", "Singular values of the centred data.")
    error_bound_ = of_model("error_bound", "Bound on the relative error of each variance.")
    residual_bound_ = of_model("residual_bound", "Bound on each pair's relative residual.")
    angle_bound_ = of_model("angle_bound", "Bound on each direction's angle, radians.")
    noise_variance_ = of_model("noise_variance", "Mean variance of the directions left out.")

    @property
    def n_samples_(self) -> int:
        """Number of samples fitted, without those of weight 0."""
        batches, _ = self._state
        return self._fitted("n_samples_").n_samples if batches is None else batches.statistic.n_samples


def _comparable(value: Any) -> Any:
    """Return a preparation as plain data, everything else as it is."""
    if not isinstance(value, Preparation):
        return value
    mask = None if value.mask is None else np.asarray(value.mask)  # the word "valid" has a digest as well
    return described(None, {}, value, mask, None, None)


def _adds_batches(method: Any, missing: Any) -> bool:
    """Return True if batches can be added; else raise the error that `available_if` shows as the cause."""
    if method in ("dual", "randomized", "em"):
        raise AttributeError(
            f"method={method!r} keeps no statistic to which batches could be added; partial_fit needs method 'auto' or "
            "'covariance'."
        )
    if missing != "error":
        raise AttributeError(needs_all_samples(missing))
    return True
