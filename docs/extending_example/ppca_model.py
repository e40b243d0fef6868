"""Models of kind 'ppca': principal components and the noise around them (Tipping and Bishop, 1999).

Inside the package it is streampca/models/ppca.py, with the row ``"ppca": (".ppca", "ProbabilisticPCA")`` in
`models.registry.MODEL_KINDS`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streampca import PCAModel


@dataclass(frozen=True, eq=False, kw_only=True)
class ProbabilisticPCA(PCAModel):
    """A Gaussian density: the covariance of the components, and the same noise along all other directions.

    Attributes
    ----------
    noise : float
        Variance of the noise by maximum likelihood: what the components leave, over all p - k directions beside them.
    """

    kind = "ppca"
    own_arrays: ClassVar = {"noise": ()}  # stored beside those of every model, a number without axes

    noise: float

    def log_likelihood(self, samples):
        """Logarithm of the density at each raw sample, shape (n,)."""
        left_out = self.n_features - self.n_components
        determinant = np.log(self.explained_variance).sum() + left_out * np.log(self.noise)
        distance = self.hotelling_t2(samples) + self.reconstruction_error(samples) / self.noise
        return -(self.n_features * np.log(2 * np.pi) + determinant + distance) / 2
