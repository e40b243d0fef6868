"""scikit-learn's Isomap and LocallyLinearEmbedding, their parameters mapped onto ours."""

from __future__ import annotations

import streampca


class Isomap(streampca.Isomap):
    def __init__(
        self, *, n_neighbors=5, radius=None, n_components=2, eigen_solver="auto", path_method="auto",
        neighbors_algorithm="auto", metric="minkowski", p=2,
    ):  # fmt: skip
        super().__init__(n_neighbors=n_neighbors, n_components=n_components, largest_component=True)
        self.radius, self.eigen_solver, self.path_method = radius, eigen_solver, path_method
        self.neighbors_algorithm, self.metric, self.p = neighbors_algorithm, metric, p

    def fit(self, X, y=None):
        if self.radius == float("inf"):
            self.n_neighbors = len(X) - 1
        return super().fit(X)


class LocallyLinearEmbedding(streampca.LocallyLinearEmbedding):
    def __init__(
        self, *, n_neighbors=5, n_components=2, reg=1e-3, eigen_solver="auto", method="standard", random_state=None,
    ):  # fmt: skip
        super().__init__(
            n_neighbors=n_neighbors, n_components=n_components, reg=reg, largest_component=True,
            random_state=random_state,
        )  # fmt: skip
        self.eigen_solver, self.method = eigen_solver, method

    def fit(self, X, y=None):
        if self.method != "standard":
            raise NotImplementedError(self.method)
        return super().fit(X)
