"""scikit-learn's base classes, with types for the methods that the estimators use.

scikit-learn has no types, and type checkers let a class with an untyped base accept any argument.
"""

# ruff: noqa: D102 - scikit-learn documents these methods

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:

    class TransformerBase:
        """Base of estimators that transform samples."""

        def fit(self, X: Any, y: Any = None) -> Self: ...
        def get_feature_names_out(self, input_features: Any = None) -> Any: ...
        def get_params(self, deep: bool = True) -> dict[str, Any]: ...
        def set_output(self, *, transform: Literal["default", "pandas", "polars"] | None = None) -> Self: ...
        def set_params(self, **params: Any) -> Self: ...
        def __sklearn_tags__(self) -> Any: ...
        def __sklearn_clone__(self) -> Self: ...
        def __getstate__(self) -> dict[str, Any]: ...
        def __setstate__(self, state: dict[str, Any]) -> None: ...

    class RegressorMixin:
        """Mixin with the score of predictions."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float: ...

    class ClusterMixin:
        """Mixin that marks estimators with cluster labels."""

else:
    from sklearn.base import (
        BaseEstimator,
        ClassNamePrefixFeaturesOutMixin,
        ClusterMixin,  # noqa: F401
        RegressorMixin,  # noqa: F401
        TransformerMixin,
    )

    class TransformerBase(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
        """Base of estimators that transform samples."""
