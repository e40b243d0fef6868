"""`ClassicalMDS`: classical multidimensional scaling with scikit-learn's names, of samples or of a matrix on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted, validate_data

from ..errors import RequestError
from ..events import logged
from ..fitting.fit import fit_collection
from ..fitting.open_fit import open_fit
from ..models.classical_mds import ClassicalMDSModel
from ..planning.request import METRICS, Request
from ..preprocessing import Preparation
from ..preprocessing.kernel_features import KernelOptions
from ..preprocessing.preparation import with_features
from ..readers import Collection, open_collection
from ..readers.collection import unmasked
from ..units import parse_bytes
from .inputs import as_samples, is_table, seed_of
from .model_estimator import ModelEstimator

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


class ClassicalMDS(ModelEstimator):
    """Classical multidimensional scaling, also known as principal coordinates analysis or Torgerson's scaling.

    Finds points in few dimensions whose Euclidean distances approximate those of the samples. For Euclidean distances
    these are the scores of principal components. A matrix of any other distances may be on disk and larger than memory.

    Parameters
    ----------
    n_components : int, default=2
        Number of dimensions.
    metric : str or callable, default="euclidean"
        With "euclidean", `X` holds samples, of any size; with "precomputed", a symmetric matrix of distances, and with
        "kernel" one of inner products, each as an array or a path. With any other metric of
        ``sklearn.metrics.pairwise_distances``, `X` is a table in memory, and so is the matrix of all distances.
    metric_params : dict, optional
        Further arguments of the metric.
    landmarks : int, optional
        Number of samples, drawn at random, that are scaled; all samples are then placed by their distances to these
        (landmark scaling; de Silva and Tenenbaum, 2004). For metric "euclidean" only. By default all samples are
        scaled.
    rank : int, optional
        Number of axes along which landmarks place samples, before principal components reduce these to `n_components`;
        by default all that the landmarks span. With no more than `n_components` of them the stress is larger.
    memory : int or str, optional
        Most bytes to use, e.g. ``"2 GiB"``; half of what the machine allows by default.
    tol : float, default=1e-4
        Residual of an eigenvector, relative to its eigenvalue, at which the iteration over a matrix larger than memory
        stops.
    max_passes : int, optional
        Largest number of passes over such a matrix; by default as many as `tol` takes, up to 30.
    random_state : int, RandomState or None, default=0
        Seed of the directions that bound errors, of the start of iterations, and of the choice of landmarks.
    checkpoint : path, optional
        Folder for checkpoints of a fit, so that the same fit resumes after it was killed.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components_)
        Positions of the samples.
    eigenvalues_ : ndarray of shape (n_components_,)
        Eigenvalues of the double-centred matrix, descending: squared lengths of the columns of the embedding.
    negative_share_ : ndarray of shape (2,)
        Bounds on the share of negative eigenvalues in the sum of absolute values: 0 for Euclidean distances.
    n_components_, n_features_in_ : int
        Number of dimensions, smaller than asked for where fewer eigenvalues are positive, and number of features.
    model_ : ClassicalMDSModel
        The fitted model, with names, saving and lazy application.

    Notes
    -----
    Differs from ``sklearn.manifold.ClassicalMDS`` in that `transform` places other samples, and that the matrix of
    dissimilarities is not kept. Signs are as there: the largest absolute coordinate of each dimension is positive.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> places = np.random.default_rng(0).random((50, 2))
    >>> distances = np.linalg.norm(places[:, None] - places, axis=-1)
    >>> streampca.ClassicalMDS(metric="precomputed").fit_transform(distances).shape
    (50, 2)

    References
    ----------
    V. de Silva, J. Tenenbaum, "Sparse multidimensional scaling using landmark points", Stanford, 2004.
    """

    missing, whiten = "error", False

    def __init__(
        self,
        n_components: int = 2,
        *,
        metric: str | Callable[..., float] = "euclidean",
        metric_params: Mapping[str, Any] | None = None,
        landmarks: int | None = None,
        rank: int | None = None,
        memory: int | str | None = None,
        tol: float = 1e-4,
        max_passes: int | None = None,
        random_state: Any = 0,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_components = n_components
        self.metric = metric
        self.metric_params = metric_params
        self.landmarks = landmarks
        self.rank = rank
        self.memory = memory
        self.tol = tol
        self.max_passes = max_passes
        self.random_state = random_state
        self.checkpoint = checkpoint

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the positions of samples.

        Parameters
        ----------
        X : array-like of shape (n, p) or (n, n), images, path, glob or Collection
            Samples, or the matrix of their distances or inner products.
        y : ignored

        Raises
        ------
        DataError
            If the matrix is not symmetric, or an entry is no distance; the entry is named.
        RequestError
            If the matrix is not square, or has fewer dimensions than are asked for.
        BudgetError
            If not even a block of rows and a basis fit `memory`.
        """
        request = self._request()
        collection = self._samples_or_distances(X)
        opened = open_fit(collection, request, self._preparation(request), listener=logged)
        fitted = fit_collection(opened, checkpoint=self._checkpointing, listener=logged)
        model = cast("ClassicalMDSModel", fitted)
        if model.from_matrix:
            embedding = model.embedding
        else:
            embedding = np.asarray(model.transform(collection), np.float64)
            model, embedding = _with_signs(model, embedding)
        self._model, self.embedding_, self.eigenvalues_ = model, embedding, model.mds_eigenvalues
        self.negative_share_, self.n_components_ = model.negative_share, model.n_components
        return self

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Float64:
        """Find the positions of samples, and return them, shape (n, n_components_); see `fit`."""
        return self.fit(X, y, **fit_params).embedding_

    def transform(self, X: Any) -> Any:
        """Place other samples among the fitted ones, shape (n, n_components_).

        Parameters
        ----------
        X : array-like, images, path or Collection
            Samples with the features that were fitted; after a fit to a matrix, rows of distances to the fitted samples
            or of inner products with them, (m, n). Paths and collections give a lazy dask array.
        """
        check_is_fitted(self)
        given = self._values(X)
        return self.model_.transform(self._distances(given, self._samples) if self._makes_distances else given)

    @property
    def _makes_distances(self) -> bool:
        """True where distances are computed here, by scikit-learn."""
        return self.metric not in METRICS

    def _samples_or_distances(self, X: Any) -> Collection:
        """Open what was given to `fit`; compute distances of samples, and keep these, where the metric asks for it."""
        X = as_samples(X)
        if is_table(X):
            X = validate_data(self, unmasked(X), dtype="numeric", ensure_min_samples=2)
        elif self._makes_distances:
            raise RequestError(
                f"metric {self.metric!r} takes a table in memory, and {type(X).__name__} was given; use metric "
                "'euclidean', or compute the distances and give them with metric 'precomputed'."
            )
        if self._makes_distances:
            self._samples = X
            return open_collection(self._distances(X, X))
        found = open_collection(X)
        self.n_features_in_ = found.n_features
        return found

    def _distances(self, one: Array, other: Array) -> Float64:
        """Return the distances between rows of two tables, (m, n), float64."""
        from sklearn.metrics import pairwise_distances

        return np.asarray(
            pairwise_distances(one, None if one is other else other, metric=self.metric, **(self.metric_params or {})),
            np.float64,
        )

    def _preparation(self, request: Request) -> Preparation | None:
        """Return the preparation that places samples by landmarks, if these are asked for."""
        if self.metric_params and not self._makes_distances:
            raise RequestError(f"metric_params are of metrics that are computed here, and metric is {self.metric!r}.")
        if self.landmarks is None:
            if self.rank is not None:
                raise RequestError(f"rank={self.rank!r} is an option of landmarks; give landmarks with it.")
            return None
        if self.metric != "euclidean":
            raise RequestError(
                f"landmarks={self.landmarks!r} are of metric 'euclidean', and metric is {self.metric!r}; leave them "
                "out."
            )
        options = KernelOptions(landmarks=self.landmarks)
        return with_features(None, request.kind, options, rank=self.rank, seed=request.seed)

    def _request(self) -> Request:
        count = self.n_components
        if not isinstance(count, Integral) or isinstance(count, bool):
            raise RequestError(f"n_components={count!r} is no whole number of at least 1; give for example 2.")
        return Request(
            kind=ClassicalMDSModel.kind,
            metric="precomputed" if self._makes_distances else self.metric,
            n_components=int(count),
            memory=parse_bytes(self.memory),
            tol=self.tol,
            max_passes=self.max_passes,
            seed=seed_of(self.random_state),
        )

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: `X` may be a matrix of pairs of samples; it is not sparse."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise, tags.input_tags.sparse = self.metric in METRICS[1:], False
        tags.transformer_tags.preserves_dtype = []
        return tags


def _with_signs(model: ClassicalMDSModel, embedding: Float64) -> tuple[ClassicalMDSModel, Float64]:
    """Flip axes of a model in memory so that the largest absolute coordinate along each is positive."""
    largest = embedding[np.argmax(np.abs(embedding), axis=0), np.arange(embedding.shape[1])]
    signs = np.where(largest < 0, -1.0, 1.0)
    if not isinstance(model.components, np.ndarray):
        return model, embedding
    own = signs.astype(model.components.dtype).reshape(-1, *(1,) * (model.components.ndim - 1))
    return replace(model, components=model.components * own), embedding * signs
