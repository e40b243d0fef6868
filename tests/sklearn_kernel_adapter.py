"""scikit-learn's KernelPCA, its parameters mapped onto ours."""

from __future__ import annotations

import streampca


class KernelPCA(streampca.KernelPCA):
    def __init__(
        self, n_components=None, *, kernel="linear", gamma=None, degree=3, coef0=1, alpha=1.0,
        fit_inverse_transform=False, eigen_solver="auto", remove_zero_eig=False, random_state=None,
    ):  # fmt: skip
        super().__init__(
            n_components, kernel=kernel, gamma=gamma, degree=degree, coef0=coef0, alpha=alpha,
            fit_inverse_transform=fit_inverse_transform, remove_zero_eig=remove_zero_eig, random_state=random_state,
        )  # fmt: skip
        self.eigen_solver = eigen_solver
