"""Estimators that learn from a target.

`SupervisedPCA`, `SupervisedPrincipalComponents`, `FisherDiscriminant` and `SlicedInverseRegression`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted, column_or_1d

from ..arrays import Array
from ..errors import RequestError
from ..kinds.supervised import (
    FisherDiscriminantDescription,
    SlicedInverseRegressionDescription,
    SupervisedPCADescription,
    SupervisedPrincipalComponentsDescription,
)
from ..models.data_arrays import NamedSamples
from ..models.supervised import DiscriminantModel, SupervisedComponentsModel
from ..readers.detect import is_data_array
from ..readers.source import as_source
from .model_estimator import WhiteningEstimator, of_model
from .scikit_learn import RegressorMixin


@dataclass(eq=False, repr=False)
class SupervisedEstimator(WhiteningEstimator):
    """Base of estimators that learn from a target."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn axes from samples and a label or number for each.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p), images (n, *sample_shape), path, glob, paths or Collection
        y : array-like of shape (n,), path or str
            Target: anything that `open_column` accepts; see `target_type`.
        sample_weight : array-like of shape (n,), optional
            How often each sample counts: weight 2 is the sample given twice.
        """
        opened = self._open(self._opened(X), None if y is None else _plain(y), sample_weight)
        self._carry_out(opened)
        self.__dict__.pop("classes_", None)  # those of an earlier fit
        if opened.target is not None and opened.target.classes is not None and self.target_rule != "slices":
            self.classes_ = opened.target.classes
        return self

    n_samples_ = of_model("n_samples", "Number of samples fitted, without those of weight 0.")


@dataclass(eq=False, repr=False)
class SupervisedPCA(SupervisedEstimator, SupervisedPCADescription):
    """Supervised principal component analysis: orthonormal axes along which samples depend most on their labels.

    The axes maximise the Hilbert-Schmidt independence criterion of projected samples and target (Barshan, Ghodsi,
    Azimifar and Zolghadri Jahromi, 2011). They are the leading eigenvectors of X^T H B H X, for a kernel B of the
    target.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Orthonormal, by descending dependence; float32 for samples in float32. With a kernel, they and `mean_` are those
        of the q features that stand for it: (n_components_, q) and (q,).
    dependence_, dependence_ratio_ : ndarray of shape (n_components_,)
        Contribution of each axis to the criterion, and its share.
    explained_variance_, explained_variance_ratio_ : ndarray of shape (n_components_,)
        Variance along each axis, not in descending order, and its share of the total.
    classes_ : ndarray of shape (c,)
        Labels of the classes, ascending; not set for a target of numbers.
    mean_ : ndarray of shape (n_features_in_,)
    n_components_, n_samples_, n_features_in_ : int
    model_ : SupervisedPCAModel
        The fitted model, with images, names, saving and lazy application.

    Notes
    -----
    B is 1 for two samples of one class and 0 for others; for numbers it is their product. Label features of your own,
    ``y`` of shape (n, l), stand for B = y y^T. Cost: two passes over the samples, and 32 p l bytes for l classes or
    numbers beside blocks. A kernel needs one more pass for its landmarks, and maps samples at the cost of
    `streampca.KernelPCA`.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> streampca.SupervisedPCA(n_components=2).fit_transform(X, y).shape
    (1797, 2)
    """

    def inverse_transform(self, X: Any) -> Any:
        """Return samples from scores; refused with a kernel, whose features no sample may have."""
        if self.model_.preparation.maps:
            raise RequestError(
                "SupervisedPCA with a kernel has no samples for scores, only features of the kernel; fit it without "
                "a kernel, or use KernelPCA(...).model_, which finds pre-images."
            )
        return super().inverse_transform(X)

    dependence_ = of_model("dependence", "Contribution of each axis to the criterion.")
    dependence_ratio_ = of_model("dependence_ratio", "Share of each axis in the criterion.")


@dataclass(eq=False, repr=False)
class SupervisedPrincipalComponents(RegressorMixin, SupervisedEstimator, SupervisedPrincipalComponentsDescription):
    """Supervised principal components: components of the features that correlate with a number, and predict it.

    Features are kept if the absolute value of their correlation with the target reaches a threshold. The target is
    regressed on the leading principal components of these (Bair, Hastie, Paul and Tibshirani, 2006). It is meant for
    many features, of which few depend on the target.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Orthonormal, by descending variance; 0 in features that are not kept.
    kept_ : ndarray of bool, shape (n_features_in_,)
        Mask of the features that are kept.
    correlation_ : ndarray of shape (n_features_in_,)
        Correlation of each feature with the target; 0 for constant features.
    threshold_ : float
        Smallest absolute correlation of the features that are kept.
    coefficients_ : ndarray of shape (n_components_,)
        Regression coefficients of the target on scores that are not whitened.
    tried_features_, cv_error_ : ndarray of shape (m,)
        Numbers of features compared by cross-validation, and the squared error of each in predicting left-out samples,
        relative to predicting their mean; empty if the threshold was given.
    explained_variance_, explained_variance_ratio_ : ndarray of shape (n_components_,)
        Variance along each component, and its share of that of all features.
    mean_ : ndarray of shape (n_features_in_,)
    n_components_, n_samples_, n_features_in_ : int
    model_ : SupervisedComponentsModel
        The fitted model, with images, names, saving and lazy application.

    Notes
    -----
    ``y`` holds a number for each sample, also a whole one, or one of two text labels, for which 0 and 1 are predicted.
    Cost: two passes over the samples, 24 p n_folds bytes, and 8 m^2 n_folds for m features compared, at most 2048.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> X = np.random.default_rng(0).normal(size=(100, 500))
    >>> X[:, :20] += 2 * X[:, :1]
    >>> found = streampca.SupervisedPrincipalComponents(threshold=0.5).fit(X, X[:, 0])
    >>> bool(found.kept_[:20].all()), bool(found.score(X, X[:, 0]) > 0.9)
    (True, True)
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Select features and learn components from samples and a number for each; see `SupervisedPCA.fit`."""
        is_array = y is not None and not isinstance(y, (str, os.PathLike))
        return super().fit(X, column_or_1d(y, warn=True) if is_array else y, sample_weight)

    def predict(self, X: Any) -> Any:
        """Return the predicted number of each sample, (n,)."""
        check_is_fitted(self)
        model = self._fitted("predict")
        assert isinstance(model, SupervisedComponentsModel)  # noqa: S101 - the kind that is fitted
        return model.predict(self._values(X))

    @property
    def kept_(self) -> npt.NDArray[np.bool_]:
        """Mask of the features that are kept, as a row."""
        return self._row("kept")

    @property
    def correlation_(self) -> Array:
        """Correlation of each feature with the target, as a row."""
        return self._row("correlation")

    def _row(self, name: str) -> Array:
        """Return an attribute of the model with one value for each pixel as a row of features."""
        model = self._fitted(f"{name}_")
        row: Array = model.frame.features(getattr(model, name)[None])[0]
        return row

    threshold_ = of_model("threshold", "Smallest absolute correlation of the features that are kept.")
    coefficients_ = of_model("coefficients", "Regression coefficients of the target on scores that are not whitened.")
    tried_features_ = of_model("tried_features", "Numbers of features compared by cross-validation.")
    cv_error_ = of_model("cv_error", "Squared error of predicting left-out samples, over that of their mean.")


@dataclass(eq=False, repr=False)
class DiscriminantEstimator(SupervisedEstimator):
    """Base of the estimators whose axes are not orthogonal."""

    def _scores(self, samples: Any) -> Any:
        """Return centred samples times `scalings_`, (n, n_components_); whitened with `whiten`."""
        scores = super()._scores(samples)
        if self.whiten:
            return scores
        scaling = self._model_of("scaling_").scaling
        return scores * scaling.astype(scores.dtype)

    def inverse_transform(self, X: Any) -> Any:
        """Return the points in the span of the axes that have these scores."""
        X = as_source(X)
        X = X if hasattr(X, "shape") else np.asarray(X)
        if not self.whiten:
            scaling = self._model_of("scaling_").scaling
            if is_data_array(X):  # its coordinates may name some components only, in any order
                X = NamedSamples.scores(X).numbered(len(scaling)).array
            if X.ndim and X.shape[-1] <= len(scaling):  # the model refuses further columns
                X = X / scaling[: X.shape[-1]].astype(X.dtype if np.dtype(X.dtype).kind == "f" else np.float64)
        return super().inverse_transform(X)

    @property
    def scalings_(self) -> Array:
        """Axes as columns of features, (p, k), scaled so that centred samples times these are scores."""
        model = self._model_of("scalings_")
        return self._in_dtype_of_samples((np.asarray(model.subspace.components, np.float64) * model.scaling[:, None]).T)

    separation_ = of_model(
        "separation", "Scatter between means along each axis, relative to that within classes or in all."
    )
    separation_ratio_ = of_model("separation_ratio", "Share of each axis in the sum of separations.")

    def _model_of(self, name: str) -> DiscriminantModel:
        model = self._fitted(name)
        assert isinstance(model, DiscriminantModel)  # noqa: S101 - the kinds that are fitted
        return model


@dataclass(eq=False, repr=False)
class FisherDiscriminant(DiscriminantEstimator, FisherDiscriminantDescription):
    """Fisher's linear discriminants of classes, as axes to project samples on.

    The axes are those of scikit-learn's ``LinearDiscriminantAnalysis(solver="eigen")``, found in one pass over samples
    that need not fit in memory.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Unit vectors, by descending separation; not orthogonal.
    scalings_ : ndarray of shape (n_features_in_, n_components_)
        Axes as scikit-learn scales them: scores are centred samples times these.
    separation_, separation_ratio_ : ndarray of shape (n_components_,)
        Scatter of the class means over that within classes, along each axis, and its share of the sum, which is
        scikit-learn's ``explained_variance_ratio_``.
    explained_variance_, explained_variance_ratio_ : ndarray of shape (n_components_,)
        Variance that each axis adds to that in the span of those before it, and its share of the total.
    classes_ : ndarray of shape (c,)
        Labels, ascending.
    mean_ : ndarray of shape (n_features_in_,)
    n_components_, n_samples_, n_features_in_ : int
    model_ : DiscriminantModel
        The fitted model, with images, names, saving and lazy application; its scores are along the unit vectors.

    Notes
    -----
    Scores have variance 1 within classes; whitened ones have variance 1 over all samples.

    Time: that of method "covariance", and 2 n p c flops for c classes. Memory: 16 p^2 bytes.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> streampca.FisherDiscriminant().fit_transform(X, y).shape
    (150, 2)
    """


@dataclass(eq=False, repr=False)
class SlicedInverseRegression(DiscriminantEstimator, SlicedInverseRegressionDescription):
    """Sliced inverse regression: the directions on which a number depends, by whatever function (Li, 1991).

    Samples are sorted by the number and cut into slices. The directions are those along which the means of slices
    differ most, relative to the covariance of all samples.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Unit vectors, by descending separation; not orthogonal.
    scalings_, separation_ratio_, explained_variance_, explained_variance_ratio_ : ndarray
        As for `FisherDiscriminant`.
    separation_ : ndarray of shape (n_components_,)
        Share of the variance along each direction that lies between slices, from 0 to 1.
    mean_ : ndarray of shape (n_features_in_,)
    n_components_, n_samples_, n_features_in_ : int
    model_ : InverseRegressionModel
        The fitted model, with images, names, saving and lazy application; its scores are along the unit vectors.

    Notes
    -----
    Scores have unit variance, with divisor n; whitened ones with divisor n - 1.

    A function that is even about the mean, such as a square, moves no slice's mean and is not found. The cost is that
    of `FisherDiscriminant`.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> X = np.random.default_rng(0).normal(size=(500, 5))
    >>> sir = streampca.SlicedInverseRegression(1).fit(X, (X[:, 0] + X[:, 1]) ** 3)
    >>> bool(abs(sir.components_[0, :2]).min() > 0.6)
    True
    """


def _plain(y: Any) -> Any:
    """Return a target for `open_column`; an array of objects becomes one of their own type."""
    if isinstance(y, (str, os.PathLike)):
        return y
    values = np.asarray(y)
    return np.asarray(values.tolist()) if values.dtype == object else values
