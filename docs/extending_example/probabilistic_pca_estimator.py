"""`ProbabilisticPCA`: probabilistic principal component analysis with scikit-learn's interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from ..kinds.probabilistic_pca import ProbabilisticPCADescription
from .model_estimator import ModelEstimator, of_model


@dataclass(eq=False, repr=False)
class ProbabilisticPCA(ModelEstimator, ProbabilisticPCADescription):
    """Probabilistic principal component analysis of collections that need not fit in memory.

    Attributes
    ----------
    noise_ : float
        Variance of the noise.
    model_ : ProbabilisticPCAModel
        The fitted model, with images, saving and lazy application.
    """

    noise_ = of_model("noise", "Variance of the noise.")

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the components of a collection, and the noise around them."""
        self._carry_out(self._open(self._opened(X), sample_weight=sample_weight))
        return self
