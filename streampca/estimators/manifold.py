"""Estimators of embeddings by a graph of neighbours, with scikit-learn's names where it has them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from scipy.spatial.distance import cdist
from sklearn.base import ClusterMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..errors import RequestError
from ..events import logged
from ..execution import LocalExecutor
from ..fitting.embed import embed_affinities, embed_collection, plan_of_affinities
from ..fitting.embedding_kinds import Embedded
from ..fitting.open_fit import prepare
from ..models.embedding import EmbeddingModel, IsomapModel, SpectralClusteringModel
from ..planning.embedding import EmbeddingRequest
from ..units import parse_bytes
from .inputs import as_samples, seed_of
from .model_estimator import ModelEstimator, is_single

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

NEAREST, PRECOMPUTED = "nearest_neighbors", "precomputed"
OF_GRAPH = ("n_neighbors", "pca_components", "largest_component", "checkpoint")  # parameters of NEAREST alone
CUTS = ("normalized_cut", "ratio_cut")


class ManifoldEstimator(ModelEstimator):
    """Base of estimators that embed samples by the graph of their nearest neighbours."""

    missing, whiten = "error", False
    kind: ClassVar[str]
    # parameters that are options of `EmbeddingRequest` under the same names
    _own: ClassVar[tuple[str, ...]] = ("n_components", "n_neighbors", "pca_components", "largest_component")

    memory: int | str | None
    random_state: Any

    def fit(self, X: Any, y: Any = None) -> Self:
        """Embed samples.

        Parameters
        ----------
        X : array-like of shape (n, p), images, path, glob or Collection
            Samples.
        y : ignored

        Raises
        ------
        DataError
            If the graph of neighbours has several parts, or a value is missing.
        RequestError
            If there are fewer samples than the parameters need.
        BudgetError
            If it does not fit `memory`.
        """
        return self._fitted_to(X)

    def _fitted_to(self, X: Any, actions: Any = None) -> Self:
        opened = self._opened(X, least=3)
        self.n_features_in_ = opened.n_features
        model = embed_collection(
            prepare(opened, None),
            self._request(),
            actions=actions,
            missing=self.missing,
            place=None,
            executor=LocalExecutor(),
            checkpoint=self._checkpointing,
            listener=logged,
        )
        self._model = model
        coordinates = model.embedding
        if len(coordinates) < model.n_samples:
            left = model.n_samples - len(coordinates)
            warnings.warn(
                f"the number of connected components of the graph is above 1: {left} samples outside the largest are "
                "placed as new ones are; more n_neighbors would connect them.",
                UserWarning,
                stacklevel=3,
            )
            others = np.setdiff1d(np.arange(model.n_samples), model.embedded_samples)
            coordinates = np.empty((model.n_samples, model.n_scores))
            coordinates[model.embedded_samples] = model.embedding
            coordinates[others] = model.transform(opened[others.tolist()])
        self.embedding_: Array = coordinates.astype(np.float32 if is_single(opened.dtype) else np.float64, copy=False)
        self._set_results(model)
        return self

    def _request(self) -> EmbeddingRequest:
        options = {name: getattr(self, name) for name in self._own}
        seed, memory = seed_of(self.random_state), parse_bytes(self.memory)
        return EmbeddingRequest(kind=self.kind, seed=seed, memory=memory, **options)

    def _set_results(self, model: Any) -> None:
        """Store what the kind finds beside coordinates."""

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Array:
        """Embed samples, and return their coordinates, (n, n_components)."""
        return self.fit(X, y, **fit_params).embedding_

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_.shape[1])


class Isomap(ManifoldEstimator):
    """Isomap: points whose distances are the geodesic distances of samples along the graph of their neighbours.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours of each sample, itself not among them.
    n_components : int, default=2
        Number of dimensions.
    landmarks : int or "all", optional
        Number of samples that geodesic distances are measured from; by default all up to 2000 samples, and 300 of more.
    landmark_choice : {"random", "farthest"}, default="random"
        How they are chosen.
    pca_components : int, optional
        Number of principal components by whose scores neighbours are found. 0 takes features as they are, which is the
        default for up to 50 features; of more it is 50.
    largest_component : bool, default=False
        Embed the largest part of a graph that is not connected, which is refused otherwise. Samples outside it are
        placed as `transform` places them.
    memory : int or str, optional
        Most bytes to use, e.g. ``"2 GiB"``; half of what the machine allows by default.
    random_state : int, RandomState or None, default=0
        Seed of the random numbers.
    checkpoint : path, optional
        Folder for finished stages of a fit, so that the same fit resumes after it was killed.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components)
        Coordinates; columns of 0 beyond the dimensions that the distances have, where all samples are landmarks.
    residual_variance_ : ndarray of shape (q,)
        Share of the variance of geodesic distances that distances in 1, 2 ... dimensions do not explain.
    dist_matrix_ : ndarray of shape (n_samples, n_samples)
        Geodesic distances of the embedded samples, where all of them are landmarks.
    n_features_in_ : int
        Number of features.
    model_ : IsomapModel
        The fitted model, with saving and lazy application.

    Examples
    --------
    >>> from sklearn.datasets import make_swiss_roll
    >>> import streampca
    >>> points, _ = make_swiss_roll(500, random_state=0)
    >>> streampca.Isomap(n_neighbors=10).fit_transform(points).shape
    (500, 2)
    """

    kind = "isomap"
    _own = (*ManifoldEstimator._own, "landmarks", "landmark_choice")

    def __init__(
        self,
        *,
        n_neighbors: int = 5,
        n_components: int = 2,
        landmarks: int | str | None = None,
        landmark_choice: str = "random",
        pca_components: int | None = None,
        largest_component: bool = False,
        memory: int | str | None = None,
        random_state: Any = 0,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.n_components = n_components
        self.landmarks = landmarks
        self.landmark_choice = landmark_choice
        self.pca_components = pca_components
        self.largest_component = largest_component
        self.memory = memory
        self.random_state = random_state
        self.checkpoint = checkpoint

    def _set_results(self, model: Any) -> None:
        self.residual_variance_ = model.residual_variance

    @property
    def dist_matrix_(self) -> Array:
        """Geodesic distances of the embedded samples, where all of them are landmarks."""
        check_is_fitted(self)
        found: Array = cast("IsomapModel", self.model_).geodesics
        if found.shape != 2 * (len(cast("IsomapModel", self.model_).embedding),):
            raise AttributeError("dist_matrix_ is of all samples, and only landmarks were measured from; use model_.")
        return found.astype(self.embedding_.dtype, copy=False)

    def reconstruction_error(self) -> float:
        """Return the root mean square difference of inner products by geodesic distances and in the embedding.

        As scikit-learn's, where all samples are landmarks. `residual_variance_` is known for fewer, too.
        """
        from sklearn.preprocessing import KernelCenterer

        products = KernelCenterer().fit_transform(-0.5 * np.square(self.dist_matrix_, dtype=np.float64))
        kept = cast("IsomapModel", self.model_).embedding_eigenvalues
        return float(np.sqrt(max(np.square(products).sum() - np.square(kept).sum(), 0.0)) / len(products))


class LocallyLinearEmbedding(ManifoldEstimator):
    """Locally linear embedding: points rebuilt by the weights that rebuild samples from their neighbours.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours of each sample.
    n_components : int, default=2
        Number of dimensions.
    reg : float, default=1e-3
        Regularisation of the weights, relative to the trace of the neighbours' Gram matrix. It decides the quality in
        high dimensions: 0.1 is better for images.
    landmarks : int or "all", optional
        Number of random samples that are embedded, while the others are placed by their weights; by default all, or up
        to 10000 where the eigenproblem of all does not fit `memory`.
    pca_components, largest_component, memory, random_state, checkpoint : optional
        See `Isomap`.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components)
        Coordinates.
    reconstruction_error_ : float
        Sum of the eigenvalues of the axes.
    n_features_in_ : int
        Number of features.
    model_ : LocallyLinearModel
        The fitted model.
    """

    kind = "locally-linear-embedding"
    _own = (*ManifoldEstimator._own, "landmarks", "reg")

    def __init__(
        self,
        *,
        n_neighbors: int = 5,
        n_components: int = 2,
        reg: float = 1e-3,
        landmarks: int | str | None = None,
        pca_components: int | None = None,
        largest_component: bool = False,
        memory: int | str | None = None,
        random_state: Any = 0,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.n_components = n_components
        self.reg = reg
        self.landmarks = landmarks
        self.pca_components = pca_components
        self.largest_component = largest_component
        self.memory = memory
        self.random_state = random_state
        self.checkpoint = checkpoint

    def _set_results(self, model: EmbeddingModel) -> None:
        self.reconstruction_error_ = float(model.embedding_eigenvalues.sum())


class MaximumVarianceUnfolding(ManifoldEstimator):
    """Maximum variance unfolding: points as far apart as the lengths of the graph's edges allow.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours of each sample. Few keep edges from bridging two sheets of the surface.
    n_components : int, default=2
        Number of dimensions.
    landmarks : int or "all", optional
        Number of random samples that are unfolded, while the others are placed by barycentric weights; by default all
        up to 2000 samples, and 2000 of more.
    reg : float, default=1e-3
        Regularisation of these weights.
    pca_components, largest_component, memory, random_state, checkpoint : optional
        See `Isomap`.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components)
        Coordinates.
    eigenvalues_ : ndarray of shape (n_components,)
        Leading eigenvalues of the kernel matrix.
    violations_ : dict
        Median, 95th percentile and largest relative violation of squared edge lengths.
    gap_ : float or None
        Share of itself that the variance may be short of the largest possible; None where no bound is known.
    short_circuits_ : list of pairs of int
        Edges that keep the samples from unfolding.
    n_features_in_ : int
        Number of features.
    model_ : MaximumVarianceModel
        The fitted model.
    """

    kind = "maximum-variance-unfolding"
    _own = (*ManifoldEstimator._own, "landmarks", "reg")

    def __init__(
        self,
        *,
        n_neighbors: int = 5,
        n_components: int = 2,
        landmarks: int | str | None = None,
        reg: float = 1e-3,
        pca_components: int | None = None,
        largest_component: bool = False,
        memory: int | str | None = None,
        random_state: Any = 0,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.n_components = n_components
        self.landmarks = landmarks
        self.reg = reg
        self.pca_components = pca_components
        self.largest_component = largest_component
        self.memory = memory
        self.random_state = random_state
        self.checkpoint = checkpoint

    def _set_results(self, model: EmbeddingModel) -> None:
        found = model.measured
        self.eigenvalues_, self.gap_ = model.embedding_eigenvalues, found["gap"]
        names = ("median_violation", "violation_95", "largest_violation")
        self.violations_ = {name: found[name] for name in names}
        self.short_circuits_ = found["short_circuits"]


class ActionRespectingEmbedding(ManifoldEstimator):
    """Action respecting embedding of samples in time: each action is one rotation or reflection, and a shift.

    Parameters
    ----------
    n_components : int, default=2
        Number of dimensions.
    n_neighbors : int, default=5
        Number of neighbours by which new samples are placed.
    reg : float, default=1e-3
        Regularisation of the weights that place them.
    pca_components, memory, random_state, checkpoint : optional
        See `Isomap`.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components)
        Coordinates, in the order of time.
    actions_ : dict
        Label of each action, and its `streampca.manifold.action_respecting.ActionMap`.
    n_features_in_ : int
        Number of features.
    model_ : ActionRespectingModel
        The fitted model; its `play` plays actions forward from any position.
    """

    kind = "action-respecting-embedding"
    _own = ("n_components", "n_neighbors", "pca_components", "reg")

    def __init__(
        self,
        n_components: int = 2,
        *,
        n_neighbors: int = 5,
        reg: float = 1e-3,
        pca_components: int | None = None,
        memory: int | str | None = None,
        random_state: Any = 0,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.reg = reg
        self.pca_components = pca_components
        self.memory = memory
        self.random_state = random_state
        self.checkpoint = checkpoint

    def fit(self, X: Any, y: Any = None) -> Self:
        """Embed samples in the order of time.

        Parameters
        ----------
        X : array-like of shape (n, p), images, path, glob or Collection
            Samples.
        y : array-like of shape (n,) or (n - 1,)
            Label of the action that leads from each sample to the next one.

        Raises
        ------
        RequestError
            If actions are missing, or there are too many samples.
        """
        return self._fitted_to(X, y)

    def _set_results(self, model: Any) -> None:
        self.actions_ = model.actions

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: `y` is needed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


class SpectralEstimator(ManifoldEstimator):
    """Base of estimators by eigenvectors of the Laplacian of a graph, or of a matrix of affinities."""

    _kernel_gamma: ClassVar[float | None] = None  # where none is given; None for the kernel's own default

    affinity: str | Callable[..., Any]
    gamma: float | None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Embed samples.

        Parameters
        ----------
        X : array-like of shape (n, p), images, path, glob or Collection
            Samples. An `affinity` other than "nearest_neighbors" takes a table in memory, dense or sparse, which for
            "precomputed" is the symmetric matrix of affinities, (n, n).
        y : ignored

        Raises
        ------
        DataError
            If the graph has several parts, or a value is missing.
        RequestError
            If there are fewer samples than the parameters need, a matrix is not symmetric, or an option does nothing
            with the affinity.
        BudgetError
            If it does not fit `memory`.
        """
        for name in ("_model", "affinity_matrix_"):
            self.__dict__.pop(name, None)
        self._check_affinity()
        if self.affinity == NEAREST:
            return self._fitted_to(X)
        checks: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_min_samples": 3}
        X = validate_data(self, as_samples(X), **checks)
        given, request = self._given(X), self._request()
        plan = plan_of_affinities(request, X, given)  # a kernel is planned before it is made
        matrix = self._kernel(X) if given is None else given
        found = embed_affinities(matrix, request, plan, listener=logged)
        self.affinity_matrix_ = matrix
        self.embedding_ = found.coordinates.astype(X.dtype, copy=False)
        self._set_found(found)
        return self

    def _check_affinity(self) -> None:
        """Refuse an affinity that is not known, and options that do nothing with it."""
        from sklearn.metrics.pairwise import KERNEL_PARAMS

        known = (NEAREST, PRECOMPUTED, *KERNEL_PARAMS)
        if not callable(self.affinity) and self.affinity not in known:
            raise RequestError(f"affinity {self.affinity!r} is not one of {', '.join(known)}, or a function; give one.")
        if self.affinity == NEAREST:
            return
        has_gamma = not callable(self.affinity) and "gamma" in KERNEL_PARAMS.get(self.affinity, ())
        defaults = signature(type(self).__init__).parameters
        for name in OF_GRAPH if has_gamma else (*OF_GRAPH, "gamma"):
            if name in defaults and getattr(self, name) != defaults[name].default:
                raise RequestError(f"{name} does nothing with affinity {self.affinity!r}; leave it out.")

    def _given(self, X: Any) -> Any:
        """Return affinities that are given as a matrix or by a function; None for a kernel."""
        if not callable(self.affinity) and self.affinity != PRECOMPUTED:
            return None
        found = self.affinity(X) if callable(self.affinity) else X
        matrix = found if issparse(found) else np.asarray(found)
        if matrix.shape != 2 * X.shape[:1]:
            raise RequestError(f"affinities of {X.shape[0]} samples have shape {matrix.shape}; give a square matrix.")
        return matrix

    def _kernel(self, X: Any) -> Any:
        """Return a kernel of a table, as scikit-learn makes it."""
        from sklearn.metrics.pairwise import pairwise_kernels

        gamma = self._kernel_gamma if self.gamma is None else self.gamma
        given = {} if gamma is None else {"gamma": gamma}
        return pairwise_kernels(X, metric=self.affinity, filter_params=True, **given)

    def _set_found(self, found: Embedded) -> None:
        """Store what the kind finds of a matrix of affinities."""
        self.eigenvalues_ = found.eigenvalues

    def _set_results(self, model: Any) -> None:
        self.eigenvalues_ = model.embedding_eigenvalues

    def _fitted(self, name: str) -> Any:
        if hasattr(self, "affinity_matrix_"):
            raise AttributeError(
                f"this {type(self).__name__} has no {name}, as affinities place no other samples; take affinity "
                f"{NEAREST!r}, or fit_transform."
            )
        return super()._fitted(name)

    def __sklearn_is_fitted__(self) -> bool:
        return super().__sklearn_is_fitted__() or "affinity_matrix_" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: `X` may be a matrix of pairs of samples."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.affinity == PRECOMPUTED
        return tags


class SpectralEmbedding(SpectralEstimator):
    """Laplacian eigenmaps: eigenvectors of the Laplacian of the graph of neighbours.

    Parameters
    ----------
    n_components : int, default=2
        Number of dimensions.
    n_neighbors : int, default=15
        Number of neighbours of each sample, itself not among them.
    affinity : str or callable, default="nearest_neighbors"
        Weights of pairs of samples: those of the graph of neighbours, on which any number of samples is embedded out
        of core; or those of a matrix in memory: "precomputed", a kernel of
        ``sklearn.metrics.pairwise.pairwise_kernels`` such as "rbf", or a function that returns the matrix of all
        samples.
    gamma : float, optional
        Edges of length d have the weight exp(-gamma d^2); 1 by default. Parameter of a kernel, too, whose default is
        scikit-learn's: 1 over the number of features for "rbf".
    laplacian : {"normalized", "unnormalized"}, default="normalized"
        Laplacian: I - D^-1/2 W D^-1/2, or D - W.
    pca_components, largest_component, memory, random_state, checkpoint : optional
        See `Isomap`.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components)
        Coordinates, as scikit-learn's with ``affinity="nearest_neighbors"`` and one neighbour more, as it counts a
        sample among its own.
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues of the Laplacian, ascending.
    affinity_matrix_ : ndarray or sparse array of shape (n_samples, n_samples)
        Affinities, where `affinity` is not "nearest_neighbors".
    n_features_in_ : int
        Number of features.
    model_ : SpectralEmbeddingModel
        The fitted model; `transform` extends the eigenvectors to other samples (Nystroem). There is none of a matrix of
        affinities.
    """

    kind = "spectral-embedding"
    _own = (*ManifoldEstimator._own, "gamma", "laplacian")

    def __init__(
        self,
        n_components: int = 2,
        *,
        n_neighbors: int = 15,
        affinity: str | Callable[..., Any] = NEAREST,
        gamma: float | None = None,
        laplacian: str = "normalized",
        pca_components: int | None = None,
        largest_component: bool = False,
        memory: int | str | None = None,
        random_state: Any = 0,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.affinity = affinity
        self.gamma = gamma
        self.laplacian = laplacian
        self.pca_components = pca_components
        self.largest_component = largest_component
        self.memory = memory
        self.random_state = random_state
        self.checkpoint = checkpoint


class SpectralClustering(ClusterMixin, SpectralEstimator):  # type: ignore[misc]
    """Spectral clustering: k-means of the rows of eigenvectors of the graph's Laplacian.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters, and of eigenvectors.
    n_neighbors : int, default=10
        Number of neighbours of each sample, itself not among them.
    affinity, gamma, laplacian : optional
        See `SpectralEmbedding`; "normalized" relaxes the normalised cut, "unnormalized" the ratio cut. The default of
        `gamma` is 1 for kernels here, as scikit-learn's.
    pca_components, largest_component, memory, random_state, checkpoint : optional
        See `Isomap`.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of each sample, from 0.
    cuts_ : dict
        Normalised cut and ratio cut of the clusters.
    embedding_ : ndarray of shape (n_samples, n_clusters)
        Rows that were clustered.
    eigenvalues_, affinity_matrix_
        See `SpectralEmbedding`.
    n_features_in_ : int
        Number of features.
    model_ : SpectralClusteringModel
        The fitted model.
    """

    kind = "spectral-clustering"
    _kernel_gamma = 1.0
    _own = ("n_neighbors", "pca_components", "largest_component", "n_clusters", "gamma", "laplacian")

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_neighbors: int = 10,
        affinity: str | Callable[..., Any] = NEAREST,
        gamma: float | None = None,
        laplacian: str = "normalized",
        pca_components: int | None = None,
        largest_component: bool = False,
        memory: int | str | None = None,
        random_state: Any = 0,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.affinity = affinity
        self.gamma = gamma
        self.laplacian = laplacian
        self.pca_components = pca_components
        self.largest_component = largest_component
        self.memory = memory
        self.random_state = random_state
        self.checkpoint = checkpoint

    def _set_results(self, model: Any) -> None:
        super()._set_results(model)
        self.labels_ = cdist(self.embedding_, model.centers).argmin(axis=1)
        self.labels_[model.embedded_samples] = model.labels
        self.cuts_ = {name: model.measured[name] for name in CUTS}

    def _set_found(self, found: Embedded) -> None:
        super()._set_found(found)
        self.labels_ = found.own_fields["labels"]
        self.cuts_ = {name: found.measured[name] for name in CUTS}

    def fit_predict(self, X: Any, y: Any = None, **kwargs: Any) -> npt.NDArray[np.int64]:
        """Cluster samples, and return their clusters, (n,)."""
        return cast("npt.NDArray[np.int64]", self.fit(X, y, **kwargs).labels_)

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Return the clusters of other samples, whose places in the embedding are nearest to these centers, (m,)."""
        check_is_fitted(self)
        return cast("SpectralClusteringModel", self.model_).predict(self._values(X))
