"""`KernelPCA`: kernel principal component analysis with scikit-learn's interface."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from ..arrays import Array, Float64
from ..errors import RequestError
from ..fitting.open_fit import Opened
from ..kinds.kernel_pca import PRECOMPUTED, KernelPCADescription
from ..models.classical_mds import PairsModel
from ..planning.request import Request
from ..preprocessing.feature_map import KernelMap
from ..preprocessing.kernels import Kernel
from ..readers.source import as_source
from .model_estimator import PaddedEstimator, of_model


@dataclass(eq=False, repr=False)
class KernelPCA(PaddedEstimator, KernelPCADescription):
    """Kernel principal component analysis of collections that need not fit in memory.

    Parameters
    ----------
    alpha : float, default=1.0
        Ridge of the regression that learns pre-images.
    fit_inverse_transform : bool, default=False
        Learn pre-images, for `inverse_transform`.
    remove_zero_eig : bool, default=False
        Leave out components whose eigenvalue is 0, as is always done with ``n_components=None``.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (n_components_,)
        Eigenvalues of the centred kernel matrix, descending.
    eigenvectors_ : ndarray of shape (n_samples, n_components_)
        Unit eigenvectors of that matrix, if all samples are landmarks. With weights w they belong to the matrix about
        the weighted mean, multiplied by sqrt(w) from both sides, and are 0 for samples of weight 0; the samples must
        then fit in memory.
    residual_estimate_, left_out_ : ndarray of shape (n_components_,), float
        Estimates of the errors by landmarks and random features; see `KernelPCAModel`.
    X_fit_ : ndarray
        Prepared samples that others are compared with: the fitted ones of weight above 0, or the landmarks. Samples
        that do not fit in memory are read from the source by ``np.asarray``.
    gamma_ : float or None
        Parameter of the kernel, given or found in the samples.
    dual_coef_, X_transformed_fit_ : ndarray
        Coefficients and scores of the regression that learns pre-images.
    n_features_in_ : int
        Number of features.
    model_ : KernelPCAModel, or PairsModel of a precomputed kernel
        The fitted model, with images, saving and lazy application.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> rows = np.random.default_rng(0).random((100, 8))
    >>> streampca.KernelPCA(2, kernel="rbf", landmarks=20).fit_transform(rows).shape
    (100, 2)
    """

    _: KW_ONLY
    alpha: float = 1.0
    fit_inverse_transform: bool = False
    remove_zero_eig: bool = False

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the components of a collection in the feature space of the kernel.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p), images (n, *sample_shape), path, glob, paths or Collection
            For kernel "precomputed", the kernel between all samples, (n, n).
        y : ignored
        sample_weight : array-like of shape (n,), optional
            How often each sample counts: weight 2 is the sample given twice.
        """
        for name in ("_model", "dual_coef_", "X_transformed_fit_"):
            self.__dict__.pop(name, None)
        opened = self._open(self._opened(X), sample_weight=sample_weight)
        if self.fit_inverse_transform:
            self._check_samples_are_held(opened)
        model, self._weights = self._carry_out(self._limited(opened)), opened.weights
        if isinstance(model, PairsModel):
            self._set_eigenvalues(model.mds_eigenvalues)
        else:
            self._set_eigenvalues(((model.total_weight or model.n_samples) - 1) * model.explained_variance)
        if self.fit_inverse_transform:
            self._learn_pre_images()
        return self

    def _within(self, request: Request, n_samples: int) -> Request:
        """Return a request of no more components than samples, landmarks and random features give; see `_limited`."""
        count, options = request.n_components, request.options
        if not isinstance(count, int):
            return request
        limits = [getattr(options, name, None) for name in ("landmarks", "random_features")]
        most = min([n_samples - 1, *(limit for limit in limits if isinstance(limit, int))])
        return request.asking(n_components=max(1, min(count, most)))

    def _check_samples_are_held(self, opened: Opened) -> None:
        """Refuse pre-images for a precomputed kernel, and for samples that do not fit in memory."""
        if self.kernel == PRECOMPUTED:
            raise RequestError("Cannot fit_inverse_transform with a precomputed kernel; leave it out.")
        if opened.collection.pending is not None and not opened.collection.holds_landmarks:
            raise RequestError(
                "fit_inverse_transform=True regresses all samples, which do not fit the memory; leave it out, and use "
                "model_.inverse_transform, which learns from some of them, or give landmarks such as 1000."
            )

    @property
    def _pads(self) -> bool:
        return not self.remove_zero_eig

    def transform(self, X: Any) -> Any:
        """Return scores, (m, n_components_); for paths a lazy array, see `PCAModel.transform`.

        For kernel "precomputed", `X` is the kernel between m samples and those fitted, (m, n).
        """
        return super().transform(X)

    def _learn_pre_images(self) -> None:
        """Regress samples on their scores with the kernel, as scikit-learn does."""
        scores = self._padded(np.asarray(self.model_.transform_rows(self.X_fit_)))
        matrix = self._kernel_of_scores().matrix(scores, scores)
        matrix[np.diag_indices_from(matrix)] += self.alpha
        self.X_transformed_fit_ = scores
        self.dual_coef_ = np.linalg.solve(matrix, np.asarray(self.X_fit_, np.float64))

    def _kernel_of_scores(self) -> Kernel:
        """Return the kernel between scores; linear for a user's own, which may work on nothing but samples."""
        kernel = self.model_.kernel
        return kernel if kernel.function is None else Kernel("linear")

    def inverse_transform(self, X: Any) -> Array:
        """Return pre-images of scores, (n, n_features), by the regression that `fit_inverse_transform` asks for.

        Rows are flattened images: scale and standardize are undone, and pixels outside the mask are NaN.
        `model_.inverse_transform` needs no such regression, and also offers fixed-point iteration.
        """
        check_is_fitted(self)
        if not hasattr(self, "dual_coef_"):
            raise NotFittedError("this KernelPCA has learned no pre-images; set fit_inverse_transform=True before fit.")
        scores = np.asarray(as_source(X), np.float64)
        rows = self._kernel_of_scores().matrix(scores, self.X_transformed_fit_) @ self.dual_coef_
        images: Array = self.model_.image_frame.images(rows)
        return images.reshape(len(images), -1)

    @property
    def model_(self) -> Any:
        """The fitted model, with saving, lazy application and, unless the kernel is precomputed, images."""
        check_is_fitted(self)
        return self._model

    @property
    def X_fit_(self) -> Any:  # noqa: N802 - scikit-learn's name
        """Samples that others are compared with."""
        mapping = self.model_.mapping
        return mapping.landmarks if isinstance(mapping, KernelMap) else self.model_.references

    @property
    def gamma_(self) -> float | None:
        """Parameter of the kernel, given or found in the samples."""
        gamma = None if self.kernel == PRECOMPUTED else self.model_.kernel.gamma
        return float(gamma) if gamma is not None and not isinstance(gamma, str) else None

    @property
    def eigenvectors_(self) -> Float64:
        """Unit eigenvectors of the centred kernel matrix, weighted, where all samples are landmarks."""
        check_is_fitted(self)
        if self.kernel == PRECOMPUTED:
            vectors = np.asarray(self.model_.components).T
        else:
            model = self.model_
            features = model.preparation.feature_map
            if features is None or not features.is_exact:
                raise AttributeError(
                    "eigenvectors_ needs all samples as landmarks; fit without landmarks and random_features."
                )
            # The scores have more digits than the weights of the map, which are divided by small eigenvalues.
            vectors = model.embedding / np.sqrt(self.eigenvalues_[: self._rank])
            if self._weights is not None:
                vectors = _weighted_rows(vectors, self._weights)
        return np.pad(vectors, ((0, 0), (0, len(self.eigenvalues_) - self._rank)))

    residual_estimate_ = of_model(
        "residual_estimate", "Estimates of the components' residuals in the kernel's features."
    )

    @property
    def left_out_(self) -> float:
        """Largest share of the variance of the kernel's own features that landmarks may leave out."""
        return float(self.model_.left_out)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: `X` may be sparse, or a precomputed kernel."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == PRECOMPUTED
        return tags


def _weighted_rows(vectors: Float64, weights: Float64) -> Float64:
    """Return rows of all n samples: the given ones, of weight above 0, times the roots of their weights, else 0."""
    has_weight = weights > 0
    all_rows = np.zeros((len(weights), vectors.shape[1]))
    all_rows[has_weight] = vectors * np.sqrt(weights[has_weight, None])
    return all_rows
