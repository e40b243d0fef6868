"""`StreamingPCA`: the scikit-learn face of the engine."""

from __future__ import annotations

import os
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..events import logged
from ..execution.checkpoint import Checkpointing
from ..fitting.fit import fit_collection
from ..fitting.plan import prepared
from ..models.pca import PCAModel
from ..planning.request import Request
from ..preprocessing import Preparation
from ..readers import Collection, open_collection
from ..readers.collection import unmasked
from ..readers.weights import weights_of
from ..units import parse_bytes

Array = npt.NDArray[Any]


def _of_model(name: str, meaning: str) -> Any:
    """Return a property that reads an attribute of the fitted model."""
    return property(lambda estimator: getattr(estimator._fitted(f"{name}_"), name), doc=meaning)


class StreamingPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal component analysis of collections that need not fit in memory, with scikit-learn's names.

    Parameters
    ----------
    n_components : int, float, {"elbow", "mp", "mle"} or None, default=None
        A number of components; a fraction of the variance, between 0 and 1; or None for min(n_samples - 1,
        n_features).
    whiten : bool, default=False
        Divide scores by the standard deviation along each component; those along components whose variance is no more
        than rounding become 0.
    method : {"auto", "covariance", "dual", "randomized"}, default="auto"
        Algorithm; "auto" lets the plan choose.
    memory : int or str, optional
        Most bytes to use, e.g. ``"2 GiB"``; half of what the machine allows by default.
    precision : {"auto", "single", "double"}, default="auto"
        Of products; sums are always double.
    preparation : Preparation, optional
        Applied to every sample first.
    checkpoint : path, optional
        Folder for checkpoints of a fit, so that the same fit resumes after it was killed.
    random_state : int, RandomState or None, default=0
        Seeds the probes that bound the error, and what method "randomized" starts from; components of the exact
        methods do not depend on it.
    tol : float, default=1e-4
        Residual of a component, relative to its variance, at which method "randomized" stops.
    max_passes : int, optional
        Most passes of method "randomized" over the samples; 1 is a sketch. By default as many as `tol` takes, up to
        30. After few passes bounds are of the distance to some true variance, see `streampca.fit`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Orthonormal, by descending variance.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of shape (n_components_,)
        As in scikit-learn's PCA; ratios are of the exact total variance.
    error_bound_, angle_bound_ : ndarray of shape (n_components_,)
        See `PCAModel`.
    mean_ : ndarray of shape (n_features_in_,)
    n_components_, n_samples_, n_features_in_ : int
    noise_variance_ : float
        Mean variance of the directions left out.
    model_ : PCAModel
        The same with images, names, saving and lazy application.

    Notes
    -----
    `fit` and `transform` take what scikit-learn takes, and also images (n, h, w), dask and zarr arrays, paths, globs
    and collections. For these `transform` returns a lazy dask array (numpy for numpy).

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
        checkpoint: str | os.PathLike[str] | None = None,
        random_state: Any = 0,
        tol: float = 1e-4,
        max_passes: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.method = method
        self.memory = memory
        self.precision = precision
        self.preparation = preparation
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.tol = tol
        self.max_passes = max_passes

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the components of a collection.

        Parameters
        ----------
        X : array-like of shape (n, p), images (n, *sample_shape), path, glob, list of paths or Collection
        y : ignored
        sample_weight : array-like of shape (n,), optional
            How often each sample counts: weight 2 is the sample given twice.
        """
        collection = prepared(self._opened(X), self.preparation)
        state = self.random_state
        request = Request(
            n_components=self.n_components,
            method=self.method,
            memory=parse_bytes(self.memory),
            precision=self.precision,
            seed=int(state) if isinstance(state, Integral) else int(check_random_state(state).randint(2**31 - 1)),
            tol=self.tol,
            max_passes=self.max_passes,
        )
        self.model_: PCAModel = fit_collection(
            collection,
            request,
            weights=weights_of(sample_weight, collection.raw),
            checkpoint=None if self.checkpoint is None else Checkpointing(os.fspath(self.checkpoint)),
            listener=logged,
        )
        self.n_features_in_ = collection.raw.n_features
        return self

    def transform(self, X: Any) -> Any:
        """Scores of samples, (n, n_components_); whitened if the estimator says so."""
        check_is_fitted(self)
        return self.model_.transform(self._values(X), whiten=self.whiten)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit and return the scores of the samples fitted."""
        return self.fit(X, y, **fit_params).transform(X)

    def inverse_transform(self, X: Any) -> Any:
        """Samples from scores, in the shape of the samples fitted: (n, p) or images."""
        check_is_fitted(self)
        return self.model_.inverse_transform(X if hasattr(X, "shape") else np.asarray(X), whiten=self.whiten)

    def _values(self, X: Any) -> Any:
        """Return what the model's `transform` takes: tables validated as scikit-learn does, everything else as it is.

        NaN is left to the model, which knows what its mask leaves out and names the sample.
        """
        images = isinstance(X, np.ndarray) and self.model_.raw_shape != (self.n_features_in_,)
        if not _is_table(X) or images:
            return X
        return validate_data(self, unmasked(X), reset=False, dtype=None, ensure_all_finite=False)

    def _opened(self, X: Any) -> Collection:
        if not _is_table(X):
            return open_collection(X)
        checked = validate_data(self, unmasked(X), dtype="numeric", ensure_min_samples=2, ensure_all_finite=False)
        return open_collection(checked)

    def _fitted(self, name: str) -> PCAModel:
        """Return the fitted model, or say that the attribute `name` is known after `fit` only."""
        if "model_" not in vars(self):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet and has no {name}; call fit first.")
        return self.model_

    @property
    def components_(self) -> Array:
        """Components as rows of features."""
        return np.asarray(self._fitted("components_").subspace.components)

    @property
    def mean_(self) -> Array:
        """Mean as a row of features."""
        return self._fitted("mean_").subspace.mean

    explained_variance_ = _of_model("explained_variance", "Variance along each component.")
    explained_variance_ratio_ = _of_model("explained_variance_ratio", "Share of the total variance of each component.")
    singular_values_ = _of_model("singular_values", "Singular values of the centred data.")
    error_bound_ = _of_model("error_bound", "Bound on each pair's relative residual.")
    angle_bound_ = _of_model("angle_bound", "Bound on each direction's angle, radians.")
    n_components_ = _of_model("n_components", "Number of components found.")
    n_samples_ = _of_model("n_samples", "Number of samples fitted.")

    @property
    def noise_variance_(self) -> float:
        """Mean variance of the directions left out."""
        model = self._fitted("noise_variance_")
        left = min(model.n_features, model.total_weight or model.n_samples) - model.n_components
        rest = model.total_variance - float(model.explained_variance.sum())
        return max(0.0, rest) / left if left > 0 else 0.0

    @property
    def _n_features_out(self) -> int:
        return self.model_.n_components


def _is_table(X: Any) -> bool:
    """Return whether scikit-learn takes `X`: a two-dimensional array or data frame in memory, or a list.

    Sparse matrices count as tables, too, so that they are refused in scikit-learn's own words.
    """
    if isinstance(X, (str, os.PathLike, Collection)) or getattr(X, "ndim", 2) > 2:
        return False
    if isinstance(X, (list, tuple)) and X and all(isinstance(item, (str, os.PathLike)) for item in X):
        return False  # image files
    return isinstance(X, (np.ndarray, list, tuple)) or issparse(X) or hasattr(X, "iloc") or not hasattr(X, "dtype")
