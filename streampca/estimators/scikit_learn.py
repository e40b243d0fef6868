"""scikit-learn's bases of estimators, for type checkers in the form that the estimators use.

scikit-learn has no types, and a class with a base of unknown type accepts any argument.
"""

# ruff: noqa: D102 - scikit-learn documents these methods

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:

    class TransformerBase:
        """`BaseEstimator` that transforms samples."""

        def fit(self, X: Any, y: Any = None) -> Self: ...
        def get_feature_names_out(self, input_features: Any = None) -> Any: ...
        def get_params(self, deep: bool = True) -> dict[str, Any]: ...
        def set_output(self, *, transform: Literal["default", "pandas", "polars"] | None = None) -> Self: ...
        def set_params(self, **params: Any) -> Self: ...
        def __sklearn_tags__(self) -> Any: ...
        def __sklearn_clone__(self) -> Self: ...
        def __getstate__(self) -> dict[str, Any]: ...

    class RegressorMixin:
        """Score of predictions."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float: ...

    class ClusterMixin:
        """Mark of estimators with labels."""

else:
    from sklearn.base import (
        BaseEstimator,
        ClassNamePrefixFeaturesOutMixin,
        ClusterMixin,  # noqa: F401
        RegressorMixin,  # noqa: F401
        TransformerMixin,
    )

    class TransformerBase(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
        """`BaseEstimator` that transforms samples."""
