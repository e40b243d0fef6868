"""`KernelPCA`: kernel principal component analysis with scikit-learn's names, by the engine of all models."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from ..errors import RequestError
from ..events import logged
from ..fitting.fit import fit_collection
from ..fitting.open_fit import open_fit
from ..models.classical_mds import ClassicalMDSModel
from ..planning.request import Request
from ..preprocessing import Preparation
from ..preprocessing.feature_map import KernelMap
from ..preprocessing.kernel_features import KernelOptions
from ..preprocessing.kernels import Kernel
from ..preprocessing.preparation import with_features
from ..units import format_shape, parse_bytes
from .inputs import as_samples, seed_of
from .model_estimator import ModelEstimator, of_model

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

PRECOMPUTED = "precomputed"


class KernelPCA(ModelEstimator):
    """Kernel principal component analysis of collections that need not fit in memory.

    Parameters
    ----------
    n_components : int, optional
        Number of components; by default all with eigenvalues above 0.
    kernel : {"linear", "poly", "rbf", "sigmoid", "cosine", "laplacian", "precomputed"} or callable, default="linear"
        Kernel, or a function of two samples. For "precomputed", `X` is the n x n kernel matrix itself, an array or a
        path, which must be symmetric and have no negative eigenvalues.
    gamma : float, "auto" or None, default=None
        Parameter of kernels that have it. None is 1 / n_features; "auto" is derived from the median distance between
        samples.
    degree, coef0 : optional
        Parameters of kernels that have them.
    alpha : float, default=1.0
        Ridge of the regression that learns pre-images.
    fit_inverse_transform : bool, default=False
        Learn pre-images, for `inverse_transform`.
    remove_zero_eig : bool, default=False
        Leave out components whose eigenvalue is 0; with ``n_components=None`` they always are.
    random_state : int, RandomState or None, default=0
        Seed of landmarks and random features.
    landmarks : int, optional
        Number of samples that all others are compared with (Nystroem). By default all samples, which is exact and takes
        n x n numbers.
    random_features : int, optional
        Number of random Fourier features, in place of landmarks.
    landmark_choice : {"uniform", "k-means++", "leverage"}, default="uniform"
        How landmarks are chosen.
    preparation : Preparation, optional
        Preparation of every sample, applied first.
    memory : int or str, optional
        Most bytes to use, e.g. ``"2 GiB"``; half of what the machine allows by default.
    checkpoint : path, optional
        Folder for checkpoints of a fit, so that the same fit resumes after it was killed.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (n_components_,)
        Eigenvalues of the centred kernel matrix, descending.
    eigenvectors_ : ndarray of shape (n_samples, n_components_)
        Unit eigenvectors of that matrix, where all samples are landmarks. With weights w the matrix, centred on the
        weighted mean, is multiplied by sqrt(w) from both sides, and rows of samples of weight 0 are 0; these
        eigenvectors are there where the samples fit in memory.
    residual_estimate_, left_out_ : ndarray of shape (n_components_,), float
        Estimates of what landmarks and random features lose; see `KernelPCAModel`.
    X_fit_ : ndarray
        Samples that others are compared with, prepared: those fitted whose weight is above 0, or the landmarks; read
        from the source with ``np.asarray`` where they do not fit in memory.
    gamma_ : float or None
        Parameter of the kernel, as found in the samples where it was not given.
    dual_coef_, X_transformed_fit_ : ndarray
        Coefficients and scores of the regression that learns pre-images.
    n_features_in_ : int
    model_ : KernelPCAModel, or ClassicalMDSModel of a precomputed kernel
        The fitted model, with images, saving and lazy application.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> rows = np.random.default_rng(0).random((100, 8))
    >>> streampca.KernelPCA(2, kernel="rbf", landmarks=20).fit_transform(rows).shape
    (100, 2)
    """

    missing, whiten = "error", False

    def __init__(
        self,
        n_components: int | None = None,
        *,
        kernel: str | Callable[[Any, Any], float] = "linear",
        gamma: float | str | None = None,
        degree: int = 3,
        coef0: float = 1.0,
        alpha: float = 1.0,
        fit_inverse_transform: bool = False,
        remove_zero_eig: bool = False,
        random_state: Any = 0,
        landmarks: int | None = None,
        random_features: int | None = None,
        landmark_choice: str = "uniform",
        preparation: Preparation | None = None,
        memory: int | str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.alpha = alpha
        self.fit_inverse_transform = fit_inverse_transform
        self.remove_zero_eig = remove_zero_eig
        self.random_state = random_state
        self.landmarks = landmarks
        self.random_features = random_features
        self.landmark_choice = landmark_choice
        self.preparation = preparation
        self.memory = memory
        self.checkpoint = checkpoint

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
        count = self.n_components
        if count is not None and (not isinstance(count, Integral) or isinstance(count, bool) or count < 1):
            raise RequestError(f"n_components={count!r} is not a number of components; give one, or None.")
        for name in ("_model", "dual_coef_", "X_transformed_fit_"):
            self.__dict__.pop(name, None)
        if self.kernel == PRECOMPUTED:
            return self._fit_matrix(X, sample_weight)
        seed = seed_of(self.random_state)
        preparation = with_features(self.preparation, "kernel-pca", KernelOptions.of(self), seed=seed)
        request = Request(n_components=None, kind="kernel-pca", memory=parse_bytes(self.memory), seed=seed)
        opened = open_fit(self._opened(X, least=2), request, preparation, sample_weight=sample_weight, listener=logged)
        collection = opened.collection
        most = collection.n_samples - 1
        if collection.pending is None:
            most = min(collection.n_features, most)
        elif self.fit_inverse_transform:
            raise RequestError(
                "fit_inverse_transform=True regresses all samples, which do not fit the memory; leave it out, as "
                "model_.inverse_transform learns from some of them, or give landmarks such as 1000."
            )
        request = replace(request, n_components=min(self.n_components or most, most))
        model = fit_collection(replace(opened, request=request), checkpoint=self._checkpointing, listener=logged)
        self._model, self._weights, self.n_features_in_ = model, opened.weights, collection.raw.n_features
        values = ((model.total_weight or model.n_samples) - 1) * model.explained_variance
        self._take(values)
        if self.fit_inverse_transform:
            self._learn_pre_images()
        return self

    def _fit_matrix(self, X: Any, sample_weight: Any) -> Self:
        """Fit a precomputed kernel matrix, by classical scaling of inner products."""
        if self.fit_inverse_transform:
            raise RequestError("Cannot fit_inverse_transform with a precomputed kernel; leave it out.")
        given = (sample_weight, self.landmarks, self.random_features, self.preparation)
        if any(option is not None for option in given):
            raise RequestError(
                "a precomputed kernel matrix is solved as it is; leave sample_weight, landmarks, random_features and "
                "preparation out."
            )
        raw = self._opened(X, least=2)
        if raw.shape != (raw.n_samples, raw.n_samples):
            raise RequestError(
                f"a precomputed kernel matrix has as many columns as rows, and X has shape {format_shape(raw.shape)}; "
                "give the kernel between all samples."
            )
        most = max(1, raw.n_samples - 1)
        request = Request(
            n_components=None if self.n_components is None else min(self.n_components, most),
            kind="classical-mds",
            metric="kernel",
            memory=parse_bytes(self.memory),
            seed=seed_of(self.random_state),
        )
        opened = open_fit(raw, request, listener=logged)
        model = fit_collection(opened, checkpoint=self._checkpointing, listener=logged)
        assert isinstance(model, ClassicalMDSModel)  # noqa: S101 - the kind that was asked for
        self._model, self.n_features_in_ = model, raw.n_features
        self._take(model.mds_eigenvalues)
        return self

    def _take(self, values: Float64) -> None:
        """Store the eigenvalues that were found, and 0 for components that are asked for beyond them."""
        self._rank = len(values)
        missing = 0 if self.remove_zero_eig or self.n_components is None else max(0, self.n_components - len(values))
        self.eigenvalues_ = np.concatenate([values, np.zeros(missing)])

    def transform(self, X: Any) -> Any:
        """Return scores along the components, (m, n_components_); lazily for paths, see `PCAModel.transform`.

        For kernel "precomputed", `X` is the kernel between m samples and those fitted, (m, n).
        """
        return self._padded(super().transform(X))

    def _padded(self, scores: Any) -> Any:
        """Append columns of 0 to scores, for components without variance."""
        missing = len(self.eigenvalues_) - scores.shape[1]
        if missing < 1:
            return scores
        if isinstance(scores, np.ndarray):
            return np.pad(scores, ((0, 0), (0, missing)))
        raise RequestError(
            f"{missing} components have no variance; ask for n_components={scores.shape[1]} to transform lazily."
        )

    def _learn_pre_images(self) -> None:
        """Regress samples on their scores with the kernel, as scikit-learn does."""
        scores, kernel = self._padded(np.asarray(self.model_.transform_rows(self.X_fit_))), self._kernel_of_scores()
        matrix = kernel.matrix(scores, scores)
        matrix[np.diag_indices_from(matrix)] += self.alpha
        self.X_transformed_fit_ = scores
        self.dual_coef_ = np.linalg.solve(matrix, np.asarray(self.X_fit_, np.float64))

    def _kernel_of_scores(self) -> Kernel:
        kernel = self.model_.kernel
        return kernel if kernel.function is None else Kernel("linear")

    def inverse_transform(self, X: Any) -> Array:
        """Return pre-images of scores, (n, n_features), by the regression that `fit_inverse_transform` asks for.

        Rows are prepared images, flattened: scale and standardize are undone, and pixels outside the mask are NaN.
        `model_.inverse_transform` needs no such regression, and also offers fixed points.
        """
        check_is_fitted(self)
        if not hasattr(self, "dual_coef_"):
            raise NotFittedError("this KernelPCA has learned no pre-images; set fit_inverse_transform=True before fit.")
        scores = np.asarray(as_samples(X), np.float64)
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
        """Parameter of the kernel, as found in the samples where it was not given."""
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
            wanted = model.preparation.feature_map
            if wanted is None or not wanted.is_exact:
                raise AttributeError("eigenvectors_ are of all samples, and only landmarks are kept; use transform.")
            # The scores have more digits than the weights of the map, which are divided by small eigenvalues.
            vectors = model.embedding / np.sqrt(self.eigenvalues_[: self._rank])
            if self._weights is not None:
                vectors = _of_weighted(vectors, self._weights)
        return np.pad(vectors, ((0, 0), (0, len(self.eigenvalues_) - self._rank)))

    residual_estimate_ = of_model(
        "residual_estimate", "Estimates of the components' residuals in the kernel's features."
    )

    @property
    def left_out_(self) -> float:
        """Largest share of the variance of the kernel's own features that landmarks may leave out."""
        return float(self.model_.left_out)

    @property
    def n_components_(self) -> int:
        """Number of components."""
        check_is_fitted(self)
        return len(self.eigenvalues_)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: `X` may be sparse, or a kernel between pairs of samples."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == PRECOMPUTED
        return tags


def _of_weighted(vectors: Float64, weights: Float64) -> Float64:
    """Return a row times sqrt(weight) for each of n samples, from rows of those whose weight is above 0."""
    counted = weights > 0
    made = np.zeros((len(weights), vectors.shape[1]))
    made[counted] = vectors * np.sqrt(weights[counted, None])
    return made
