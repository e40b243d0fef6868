"""Models of kind 'probabilistic-pca': principal components, and the noise around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .images import ImageModel
from .model import over


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ProbabilisticPCAModel(ImageModel):
    """A Gaussian density: the covariance of the components, and the same noise along all other directions.

    Attributes
    ----------
    noise : float
        Variance of the noise by maximum likelihood: what the components leave, over all p - k directions beside them.
    """

    kind = "probabilistic-pca"

    noise: float = field(metadata=over())  # stored beside the arrays of every model; a number has no axes

    def log_likelihood(self, samples: Any) -> Any:
        """Return the logarithm of the density at each raw sample, shape (n,)."""
        n_other = self.n_features - self.n_components
        determinant = np.log(self.explained_variance).sum() + n_other * np.log(self.noise)
        distance = self.hotelling_t2(samples) + self.reconstruction_error(samples) / self.noise
        return -(self.n_features * np.log(2 * np.pi) + determinant + distance) / 2
