"""scikit-learn's PCA and IncrementalPCA, their parameters mapped onto ours."""

from __future__ import annotations

import streampca

METHODS = {
    "auto": "auto", "full": "auto", "arpack": "auto", "covariance_eigh": "covariance", "randomized": "randomized",
}  # fmt: skip
TOL = 1e-10  # scikit-learn's tests compare randomized solutions with full ones


class PCA(streampca.PCA):
    def __init__(
        self, n_components=None, *, copy=True, whiten=False, svd_solver="auto", tol=0.0, iterated_power="auto",
        n_oversamples=10, power_iteration_normalizer="auto", random_state=None,
    ):  # fmt: skip
        method = "auto" if n_components is None else METHODS[svd_solver]
        super().__init__(n_components, whiten=whiten, method=method, random_state=random_state, tol=tol or TOL)
        self.copy, self.svd_solver, self.iterated_power = copy, svd_solver, iterated_power
        self.n_oversamples, self.power_iteration_normalizer = n_oversamples, power_iteration_normalizer


class IncrementalPCA(streampca.PCA):
    def __init__(self, n_components=None, *, whiten=False, copy=True, batch_size=None):
        super().__init__(n_components, whiten=whiten, method="covariance")
        self.copy, self.batch_size = copy, batch_size

    def partial_fit(self, X, y=None, check_input=True):
        return super().partial_fit(X, y)
