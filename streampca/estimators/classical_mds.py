"""`ClassicalMDS`: classical multidimensional scaling with scikit-learn's interface, of samples or a matrix on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..arrays import Array, Float64
from ..eigensolvers.signs import extremes
from ..errors import RequestError
from ..fitting.arguments import Arguments
from ..fitting.open_fit import Opened
from ..kinds.classical_mds import ClassicalMDSDescription
from ..models.classical_mds import ClassicalMDSModel, PairsModel
from ..readers import Collection, open_collection
from ..readers.source import as_source
from .model_estimator import PaddedEstimator, is_table, rows_of_all


@dataclass(eq=False, repr=False)
class ClassicalMDS(PaddedEstimator, ClassicalMDSDescription):
    """Classical multidimensional scaling, also known as principal coordinates analysis or Torgerson's scaling.

    Find points in few dimensions whose Euclidean distances approximate those of the samples. For Euclidean distances
    these are the scores of principal components. A matrix of other distances can be on disk and larger than memory.

    Parameters
    ----------
    metric_params : dict, optional
        Further arguments of a metric that is computed in memory; by default none. Such metrics are the others of
        ``sklearn.metrics.pairwise_distances``, and functions of two samples; `X` and the matrix of all distances must
        then fit in memory.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components_)
        Positions of the samples.
    eigenvalues_ : ndarray of shape (n_components_,)
        Eigenvalues of the double-centred matrix, descending: squared lengths of the columns of the embedding. Where
        fewer than requested are positive, the others are 0, and so are the columns.
    negative_share_ : ndarray of shape (2,)
        Bounds on the share of negative eigenvalues in the sum of absolute values: 0 for Euclidean distances.
    n_components_, n_features_in_ : int
        Number of dimensions, and number of features.
    model_ : ClassicalMDSModel, or PairsModel of a matrix
        The fitted model, with names, saving and lazy application.

    Notes
    -----
    Differs from ``sklearn.manifold.ClassicalMDS`` in that `transform` places other samples, and that the matrix of
    dissimilarities is not kept. Signs are as there: the largest absolute coordinate of each dimension is positive.

    References
    ----------
    V. de Silva, J. Tenenbaum, "Sparse multidimensional scaling using landmark points", Stanford, 2004.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> places = np.random.default_rng(0).random((50, 2))
    >>> distances = np.linalg.norm(places[:, None] - places, axis=-1)
    >>> streampca.ClassicalMDS(metric="precomputed").fit_transform(distances).shape
    (50, 2)
    """

    _: KW_ONLY
    metric_params: Mapping[str, Any] | None = None

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
            If the matrix is not symmetric, or an entry is not a distance; the entry is named.
        RequestError
            If the matrix is not square.
        BudgetError
            If not even a block of rows and a basis fit the budget.
        """
        raw = self._opened(X)
        opened = self._open(raw)
        model = self._carry_out(self._limited(opened))
        self._set_eigenvalues(model.mds_eigenvalues)
        self.embedding_: Float64 = self._padded(rows_of_all(self.embedding_, raw, opened.collection.raw))
        self.negative_share_ = model.negative_share
        return self

    def _finished(self, model: ClassicalMDSModel | PairsModel, opened: Opened) -> ClassicalMDSModel | PairsModel:
        """Store the coordinates, and return the model with signs that make the largest one along each axis positive."""
        if isinstance(model, PairsModel):
            self.embedding_ = model.embedding
            return model
        self.embedding_ = np.asarray(model.transform(opened.collection.raw), np.float64)
        largest = extremes(self.embedding_.T)
        if np.all(largest >= 0) or not isinstance(model.components, np.ndarray):
            return model
        signs = np.where(largest < 0, -1.0, 1.0)
        self.embedding_ = self.embedding_ * signs
        turned = signs.astype(model.components.dtype).reshape(-1, *(1,) * (model.components.ndim - 1))
        return replace(model, components=model.components * turned)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Float64:
        """Find the positions of samples, and return them, shape (n, n_components_); see `fit`."""
        return self.fit(X, y, **fit_params).embedding_.copy()

    def transform(self, X: Any) -> Any:
        """Place other samples among the fitted ones, (n, n_components_).

        Parameters
        ----------
        X : array-like, images, path or Collection
            Samples with the fitted features; after a fit to a matrix, rows of distances to the fitted samples or of
            inner products with them, (m, n). For paths and collections the result is a lazy dask array.
        """
        check_is_fitted(self)
        samples = self._values(X)
        return self._scores(self._distances(samples, self._samples) if self._makes_distances else samples)

    def inverse_transform(self, X: Any) -> Any:
        """Return samples from positions, (n, n_components_), of which columns beyond the rank do not count."""
        check_is_fitted(self)
        positions = as_source(X)
        positions = positions if hasattr(positions, "shape") else np.asarray(positions)
        if positions.shape[-1:] == (self.n_components_,):
            positions = positions[..., : self._rank]
        return super().inverse_transform(positions)

    @property
    def _makes_distances(self) -> bool:
        """True if distances are computed here, by scikit-learn."""
        return self.metric not in ("euclidean", "precomputed")

    def _arguments(self, **changes: Any) -> Arguments:
        """Return the arguments of a fit, in which distances that are computed here are precomputed ones."""
        if not self._makes_distances:
            if self.metric_params:
                raise RequestError(
                    f"metric_params belong to metrics that scikit-learn computes, and metric is {self.metric!r}; leave "
                    "them out."
                )
            return super()._arguments(**changes)
        return super()._arguments(**{"metric": "precomputed", **changes})

    def _opened(self, X: Any, **how: Any) -> Collection:
        """Open the samples of a fit, or the distances between them if they are computed here; keep the samples then."""
        if not self._makes_distances:
            return super()._opened(X, **how)
        source = self._source(X)
        if not is_table(source):
            raise RequestError(
                f"metric {self.metric!r} needs a table in memory, and {type(X).__name__} was given; use metric "
                "'euclidean', or compute the distances and give them with metric 'precomputed'."
            )
        self._samples = self._checked(X, source, dtype="numeric", ensure_min_samples=2)
        return open_collection(self._distances(self._samples, self._samples))

    def _distances(self, one: Array, other: Array) -> Float64:
        """Return the distances between rows of two tables, (m, n), float64."""
        from sklearn.metrics import pairwise_distances

        others = None if one is other else other  # of one table, scikit-learn makes an exactly symmetric matrix
        distances = pairwise_distances(one, others, metric=self.metric, **(self.metric_params or {}))
        return np.asarray(distances, np.float64)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: `X` may be a dense matrix of distances."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.metric == "precomputed"
        tags.input_tags.sparse = self.metric == "euclidean"
        tags.transformer_tags.preserves_dtype = []
        return tags
