"""`StreamingPCA`: the scikit-learn face of the engine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import NotFittedError
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ..accumulators import FrequentDirections, Scatter
from ..errors import ModelError, RequestError
from ..events import logged
from ..fitting.fit import fit_collection
from ..fitting.identity import described
from ..fitting.incremental import IncrementalFit
from ..fitting.null_components import with_n_components
from ..fitting.open_fit import drop_misfit_images, open_fit
from ..models.likelihood import GaussianDensity, check_matrix_fits, density_of, mean_log_density
from ..models.pca import PCAModel
from ..planning.request import Request
from ..preprocessing import Preparation
from ..units import parse_bytes
from .inputs import batch_of, is_batches, seed_of
from .model_estimator import ModelEstimator, is_single, of_model

Array = npt.NDArray[Any]


class StreamingPCA(ModelEstimator):
    """Principal component analysis of collections that need not fit in memory, with scikit-learn's names.

    Parameters
    ----------
    n_components : int, float, {"elbow", "mp", "mle"} or None, default=None
        A number of components from 0 to min(n_samples, n_features), which None stands for; a fraction of the variance,
        between 0 and 1; or a rule, see `streampca.fit`. Samples span n_samples - 1 dimensions at most; components
        beyond what they span have variance 0 and no error bound.
    whiten : bool, default=False
        Divide scores by the standard deviation along each component; those along components whose variance is no more
        than rounding become 0.
    method : {"auto", "covariance", "dual", "randomized", "em"}, default="auto"
        Algorithm; "auto" lets the plan choose.
    memory : int or str, optional
        Most bytes to use, e.g. ``"2 GiB"``; half of what the machine allows by default.
    precision : {"auto", "single", "double"}, default="auto"
        Precision of products; sums are always double.
    preparation : Preparation, optional
        Preparation of every sample, applied first.
    missing : {"error", "drop-features", "drop-samples", "em"}, default="error"
        Treatment of NaN and infinity, in tables and in images; see `streampca.fit`. `transform` always gives a row for
        every sample: with "drop-samples", scores of incomplete samples are NaN; with "em", they are those of least
        squares over the values that are there.
    checkpoint : path, optional
        Folder for checkpoints of a fit, so that the same fit resumes after it was killed.
    random_state : int, RandomState or None, default=0
        Seed of the probes that bound the error, and of the start of method "randomized"; components of the exact
        methods do not depend on it.
    tol : float, default=1e-4
        Residual of a component, relative to its variance, at which method "randomized" stops.
    max_passes : int, optional
        Most passes of method "randomized" over the samples; 1 is a sketch. By default as many as `tol` takes, up to
        30. After few passes bounds are of the distance to some true variance, see `streampca.fit`.
    half_life : float, optional
        Samples after which a sample counts half as much, in `fit` and over all batches of `partial_fit`; by default
        samples are not forgotten.

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
    `fit` and `transform` take what scikit-learn takes, and also images (n, h, w), dask and zarr arrays, paths, globs
    and collections. For these `transform` returns a lazy dask array (numpy for numpy).

    A pickle after `fit` holds components, means and variances, and not the p x p statistic of method "covariance": it
    transforms, and does not go on with `partial_fit`. After `partial_fit` it holds the sums, and does.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> images = np.random.default_rng(0).random((100, 8, 8))
    >>> pca = streampca.StreamingPCA(n_components=5).fit(images)
    >>> pca.transform(images).shape
    (100, 5)
    """

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        whiten: bool = False,
        method: str = "auto",
        memory: int | str | None = None,
        precision: str = "auto",
        preparation: Preparation | None = None,
        missing: str = "error",
        checkpoint: str | os.PathLike[str] | None = None,
        random_state: Any = 0,
        tol: float = 1e-4,
        max_passes: int | None = None,
        half_life: float | None = None,
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.method = method
        self.memory = memory
        self.precision = precision
        self.preparation = preparation
        self.missing = missing
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.tol = tol
        self.max_passes = max_passes
        self.half_life = half_life

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
        asked = self._request()  # refused before anything is read
        raw = drop_misfit_images(self._opened(X, least=2), self.preparation)
        opened = open_fit(
            raw, _spanned(asked, raw.n_samples), self.preparation, sample_weight=sample_weight, listener=logged
        )
        n, p = opened.collection.n_samples, opened.collection.n_features
        self._check_count(n, p)
        opened = replace(opened, request=_spanned(asked, n))  # of the samples that are left
        model = fit_collection(opened, checkpoint=self._checkpointing, listener=logged)
        self._take(with_n_components(model, self._count_in(model, n)), opened.collection.raw.n_features, n)
        return self

    @available_if(lambda estimator: _adds_batches(estimator.method, estimator.missing))  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add a batch of samples to those that were learned from before, by `fit` or by this.

        Whatever the batches, the components are those of one fit of all samples by method "covariance": of whole
        numbers whose products are exact to the last bit, else to rounding. Where p x p exceeds `memory`, samples are
        sketched instead, see Notes. Components are solved for when they are asked for, not here.

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
            If not even a sketch fits `memory`.

        Notes
        -----
        A batch that is refused, or whose reading is broken off by Ctrl-C, leaves the estimator as it was; where that
        breaks off adding it, all further use is refused. ``n_components`` and ``whiten`` may be set anew at any time;
        `memory` and `random_state` are taken as they are at the first batch, `checkpoint`, `tol` and `max_passes` are
        of `fit`. Until there are enough samples for the components, asking for them is a NotFittedError.

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
        asked = (model.provenance.get("plan") or {}).get("request") or {}
        own = ("n_components", "precision", "tol", "max_passes", "half_life", "missing")
        known = {name: asked[name] for name in own if name in asked}
        prepares = None if model.preparation.is_identity else model.preparation
        given = {**known, "random_state": asked.get("seed", 0), "preparation": prepares, **params}
        fitted = cls(**given)
        fitted._take(model, math.prod(model.raw_shape), model.n_samples)
        fitted._pickles_statistic = True  # it was loaded by request
        return fitted

    def _take(self, model: PCAModel, n_features: int, n_samples: int) -> None:
        """Take a model as the one that was fitted."""
        self._pickles_statistic, self._pickled_var = False, None
        self._batches: IncrementalFit | None = None
        self._model: PCAModel | None = model
        self._begun = self._settings()
        self.n_features_in_, self.n_samples_seen_ = n_features, n_samples

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: after `fit` without the p x p statistic, which only `partial_fit` would use."""
        state, (_, model) = dict(super().__getstate__()), self._state
        if model is not None and isinstance(model.statistic, Scatter) and not self._pickles_statistic:
            state |= {"_model": model.without_statistic(), "_pickled_var": model.statistic.feature_variance}
        return state

    def _request(self, seed: int | None = None) -> Request:
        """Return what the parameters ask; a seed is drawn from `random_state` unless it is known."""
        return Request(
            n_components=1 if self._count == 0 else self.n_components,
            method=self.method,
            memory=parse_bytes(self.memory),
            precision=self.precision,
            seed=seed_of(self.random_state) if seed is None else seed,
            tol=self.tol,
            max_passes=self.max_passes,
            half_life=self.half_life,
            missing=self.missing,
        )

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
        if sample_weight is not None or self.checkpoint is not None:
            raise RequestError(
                "batches are there once, and sample_weight and checkpoint are of samples that can be read again; leave "
                "them out, or give each batch with its weights to partial_fit, and pickle the estimator between them."
            )
        if self.method not in ("auto", "covariance"):
            raise RequestError(f"method={self.method!r} reads samples again; fit batches by 'auto' or 'covariance'.")
        for name in ("_batches", "_model", "n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        for batch in map(batch_of, batches):
            if not self._waits(batch):
                self._add(batch, None)
        begun, _ = self._state
        if begun is None:
            raise RequestError("the batches are over before the first; give at least one.")
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
                    "go on with StreamingPCA.from_model(load_model(path, statistic=True))."
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
        return mean_log_density(self._density(), self.model_, self._values(X), self.memory)

    def get_covariance(self) -> Array:
        """Covariance of the features, shape (p, p); refused where that does not fit `memory`.

        With ``whiten=True`` it is scikit-learn's, which multiplies the components by their standard deviations first;
        `PCAModel.get_covariance` of ``model_`` is that of the samples. So are likelihoods.
        """
        check_is_fitted(self)
        density = self._density()
        check_matrix_fits(density, "covariance", self.memory)
        return density.covariance()

    def get_precision(self) -> Array:
        """Inverse of `get_covariance`, shape (p, p)."""
        check_is_fitted(self)
        density = self._density()
        check_matrix_fits(density, "precision", self.memory)
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
            return super()._fitted(name)
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


def _spanned(request: Request, n_samples: int) -> Request:
    """Ask for one component less than there are samples, which is what they span centred; the last is added later."""
    return replace(request, n_components=n_samples - 1) if request.n_components == n_samples > 1 else request


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
