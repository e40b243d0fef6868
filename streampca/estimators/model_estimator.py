"""`ModelEstimator`, the base of the estimators: it validates input as scikit-learn does, and applies the model."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted, validate_data

from ..execution.checkpoint import Checkpointing, checkpointing
from ..models.pca import PCAModel
from ..readers import Collection, open_collection
from ..readers.collection import unmasked
from ..readers.dask import rows_of_frame
from ..readers.detect import is_lazy_frame
from .inputs import as_samples, is_table

Array = npt.NDArray[Any]


class ModelEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of estimators that fit a model, and transform tables, images and all that can be opened with it."""

    whiten: bool
    missing: str
    checkpoint: str | os.PathLike[str] | Checkpointing | None
    n_features_in_: int

    @property
    def model_(self) -> PCAModel:
        """The fitted model, with images, names, saving and lazy application."""
        return self._fitted("model_")

    def _fitted(self, name: str) -> PCAModel:
        """Return the model; before a fit, raise an error that names the attribute asked for."""
        model: PCAModel | None = self.__dict__.get("_model")
        if model is None:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet and has no {name}; call fit first.")
        return model

    def __sklearn_is_fitted__(self) -> bool:
        return "_model" in self.__dict__

    @property
    def _checkpointing(self) -> Checkpointing | None:
        """Where and how often a fit saves its progress, if it does."""
        return checkpointing(self.checkpoint)

    @property
    def _n_features_out(self) -> int:
        return self.model_.n_components

    def transform(self, X: Any) -> Any:
        """Return scores of samples, (n, n_components_), float32 for samples in float32; whitened with `whiten`."""
        check_is_fitted(self)
        samples = self._values(X)
        scores = self.model_.transform(samples, whiten=self.whiten)
        return scores.astype(np.float32) if is_single(getattr(samples, "dtype", None)) else scores

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit the model, and return the scores of the samples that it was fitted to."""
        return self.fit(X, y, **fit_params).transform(X)

    def inverse_transform(self, X: Any) -> Any:
        """Return samples from scores, in the shape of those fitted: (n, p) or images."""
        check_is_fitted(self)
        X = as_samples(X)
        return self.model_.inverse_transform(X if hasattr(X, "shape") else np.asarray(X), whiten=self.whiten)

    def _values(self, X: Any) -> Any:
        """Return what the model's `transform` takes: tables validated as scikit-learn does, everything else as it is.

        NaN is left to the model, which knows what its mask leaves out and names the sample.
        """
        X = as_samples(X, self.model_.raw_shape)
        images = isinstance(X, np.ndarray) and self.model_.raw_shape != (self.n_features_in_,)
        if is_lazy_frame(X):
            self._check_names(X, reset=False)
            return rows_of_frame(X)
        if not is_table(X) or images:
            return X if hasattr(X, "dtype") else open_collection(X, like=self.model_)
        checks: dict[str, Any] = {"dtype": "numeric", "accept_sparse": True, "ensure_all_finite": False}
        return validate_data(self, unmasked(X), reset=False, **checks)

    def _opened(
        self, X: Any, *, least: int, reset: bool = True, sample_shape: tuple[int, ...] | None = None
    ) -> Collection:
        """Open samples of a shape that may be known, tables validated as scikit-learn does, with at least so many."""
        X = as_samples(X, sample_shape)
        if is_lazy_frame(X):
            self._check_names(X, reset=reset)
        if not is_table(X):
            return open_collection(X)
        checks: dict[str, Any] = {"ensure_min_samples": least, "ensure_all_finite": False, "accept_sparse": True}
        return open_collection(validate_data(self, unmasked(X), reset=reset, dtype="numeric", **checks))

    def _check_names(self, frame: Any, *, reset: bool) -> None:
        """Note the names of a lazy frame's columns, or hold them against those of the first, as of tables."""
        validate_data(self, frame._meta, reset=reset, skip_check_array=True)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: `X` may be sparse, with some values of `missing` also NaN; float32 stays so."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self.missing != "error"
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def of_model(name: str, meaning: str) -> Any:
    """Return a property that reads an attribute of the fitted model."""
    return property(lambda estimator: getattr(estimator._fitted(f"{name}_"), name), doc=meaning)


def is_single(dtype: Any) -> bool:
    """Return whether a dtype, or None, is float32 in any byte order."""
    return dtype is not None and np.dtype(dtype).newbyteorder("=") == np.float32
