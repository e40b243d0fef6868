"""Estimators of embeddings by a graph of neighbours, with scikit-learn's names where it has them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from scipy.spatial.distance import cdist
from sklearn.utils.validation import check_is_fitted

from ..arrays import Array
from ..errors import RequestError
from ..fitting.embed import embed_affinities, plan_of_affinities
from ..fitting.embedding_kinds import Embedded
from ..kinds.description import fields_of
from ..kinds.manifold import (
    ActionRespectingEmbeddingDescription,
    IsomapDescription,
    LocallyLinearEmbeddingDescription,
    MaximumVarianceUnfoldingDescription,
    SpectralClusteringDescription,
    SpectralDescription,
    SpectralEmbeddingDescription,
)
from ..kinds.run import Run
from ..models.embedding import EmbeddingModel, IsomapModel, SpectralClusteringModel
from ..preprocessing.run_options import refuse_unused
from .model_estimator import ModelEstimator, is_single, rows_of_all
from .scikit_learn import ClusterMixin

NEAREST, PRECOMPUTED = "nearest_neighbors", "precomputed"
# parameters that do nothing without a graph of neighbours
OF_GRAPH = ("graph", "n_neighbors", "pca_components", "largest_component", "missing", "preparation")
IN_MEMORY = ("memory", "listener")  # fields of a run that count without one
CUTS = ("normalized_cut", "ratio_cut")


@dataclass(eq=False, repr=False)
class ManifoldEstimator(ModelEstimator):
    """Base of estimators that embed samples by the graph of their nearest neighbours."""

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
            If the graph of neighbours has more connected components than the kind can embed, or a value is missing.
        RequestError
            If there are fewer samples than the parameters need.
        BudgetError
            If it does not fit the budget.
        """
        return self._fitted_to(X)

    def _fitted_to(self, X: Any, actions: Any = None) -> Self:
        raw = self._opened(X, least=3)
        opened = self._open(raw, actions)
        model, chosen = cast("EmbeddingModel", self._carry_out(opened)), opened.collection.raw
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
            coordinates[others] = model.transform(chosen[others.tolist()])
        coordinates = coordinates.astype(np.float32 if is_single(raw.dtype) else np.float64, copy=False)
        self.embedding_: Array = rows_of_all(coordinates, raw, chosen)
        self._set_results(model)
        return self

    def _set_results(self, model: Any) -> None:
        """Store what the kind finds beside coordinates."""

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Array:
        """Embed samples, and return their coordinates, (n, n_components)."""
        return self.fit(X, y, **fit_params).embedding_.copy()

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_.shape[1])


@dataclass(eq=False, repr=False)
class Isomap(ManifoldEstimator, IsomapDescription):
    """Isomap: points whose distances are the geodesic distances of samples along the graph of their neighbours.

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


@dataclass(eq=False, repr=False)
class LocallyLinearEmbedding(ManifoldEstimator, LocallyLinearEmbeddingDescription):
    """Locally linear embedding: points rebuilt by the weights that rebuild samples from their neighbours.

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

    def _set_results(self, model: EmbeddingModel) -> None:
        self.reconstruction_error_ = float(model.embedding_eigenvalues.sum())


@dataclass(eq=False, repr=False)
class MaximumVarianceUnfolding(ManifoldEstimator, MaximumVarianceUnfoldingDescription):
    """Maximum variance unfolding: points as far apart as the lengths of the graph's edges allow.

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

    def _set_results(self, model: EmbeddingModel) -> None:
        found = model.measured
        self.eigenvalues_, self.gap_ = model.embedding_eigenvalues, found["gap"]
        names = ("median_violation", "violation_95", "largest_violation")
        self.violations_ = {name: found[name] for name in names}
        self.short_circuits_ = found["short_circuits"]


@dataclass(eq=False, repr=False)
class ActionRespectingEmbedding(ManifoldEstimator, ActionRespectingEmbeddingDescription):
    """Action respecting embedding of samples in time: each action is one rotation or reflection, and a shift.

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


@dataclass(eq=False, repr=False)
class SpectralEstimator(ManifoldEstimator, SpectralDescription):
    """Base of estimators by eigenvectors of the Laplacian of a graph, or of a matrix of affinities.

    Parameters
    ----------
    affinity : str or callable, default="nearest_neighbors"
        Weights of pairs of samples: those of the graph of neighbours, or of a matrix in memory. On the graph any number
        of samples is embedded out of core. The matrix is `X` itself ("precomputed"), a kernel of
        ``sklearn.metrics.pairwise.pairwise_kernels`` such as "rbf", whose parameter is `gamma`, or what a function of
        all samples returns.
    """

    _kernel_gamma: ClassVar[float | None] = None  # where none is given; None for the kernel's own default

    _: KW_ONLY
    affinity: str | Callable[[Any], Any] = NEAREST

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
            If the graph has more connected components than the kind can embed, or a value is missing.
        RequestError
            If there are fewer samples than the parameters need, a matrix is not symmetric, or an option does nothing
            with the affinity.
        BudgetError
            If it does not fit the budget.
        """
        for name in ("_model", "affinity_matrix_"):
            self.__dict__.pop(name, None)
        self._check_affinity()
        if self.affinity == NEAREST:
            return self._fitted_to(X)
        checks: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_min_samples": 3}
        X = self._checked(X, self._source(X), **checks)
        given, arguments = self._given(X), self._arguments()
        refuse_unused(self.fit, arguments.run, [name for name in fields_of(Run) if name not in IN_MEMORY])
        request = arguments.request()
        plan = plan_of_affinities(request, X, given)  # a kernel is planned before it is made
        matrix = self._kernel(X) if given is None else given
        found = embed_affinities(matrix, request, plan, listener=arguments.listener)
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
        for name in OF_GRAPH if has_gamma else (*OF_GRAPH, "gamma"):
            if getattr(self, name) != fields_of(type(self))[name].default:
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


@dataclass(eq=False, repr=False)
class SpectralEmbedding(SpectralEstimator, SpectralEmbeddingDescription):
    """Laplacian eigenmaps: eigenvectors of the Laplacian of the graph of neighbours.

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


@dataclass(eq=False, repr=False)
class SpectralClustering(ClusterMixin, SpectralEstimator, SpectralClusteringDescription):
    """Spectral clustering: k-means of the rows of eigenvectors of the graph's Laplacian.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of each sample, from 0; -1 of samples that are left out.
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

    Notes
    -----
    The `gamma` of kernels is 1 by default, as scikit-learn's.
    """

    _kernel_gamma = 1.0

    def _set_results(self, model: Any) -> None:
        super()._set_results(model)
        # Samples that are left out have no place, and label -1.
        known: npt.NDArray[np.bool_] = np.asarray(np.isfinite(self.embedding_).all(axis=1))
        labels = np.full(len(known), -1)
        labels[known] = cdist(self.embedding_[known], model.centers).argmin(axis=1)
        labels[np.flatnonzero(known)[model.embedded_samples]] = model.labels
        self.labels_: npt.NDArray[np.int64] = labels
        self.cuts_ = {name: model.measured[name] for name in CUTS}

    def _set_found(self, found: Embedded) -> None:
        super()._set_found(found)
        self.labels_ = found.own_fields["labels"]
        self.cuts_ = {name: found.measured[name] for name in CUTS}

    def fit_predict(self, X: Any, y: Any = None, **kwargs: Any) -> npt.NDArray[np.int64]:
        """Cluster samples, and return their clusters, (n,)."""
        return self.fit(X, y, **kwargs).labels_.copy()

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Return the clusters of other samples, whose places in the embedding are nearest to these centers, (m,)."""
        check_is_fitted(self)
        return cast("SpectralClusteringModel", self.model_).predict(self._values(X))
