"""scikit-learn's SpectralEmbedding, its parameters mapped onto ours."""

from __future__ import annotations

import streampca


class SpectralEmbedding(streampca.SpectralEmbedding):  # a sample is among its own neighbours there
    def __init__(
        self, n_components=2, *, affinity="nearest_neighbors", gamma=None, random_state=None, eigen_solver=None,
        eigen_tol="auto", n_neighbors=None,
    ):  # fmt: skip
        others, seed = (n_neighbors or 11) - 1, random_state
        super().__init__(n_components, n_neighbors=others, affinity=affinity, gamma=gamma, random_state=seed)
        self.eigen_solver, self.eigen_tol = eigen_solver, eigen_tol

    def _check_affinity(self):
        """Take all options with any affinity, as scikit-learn does."""
