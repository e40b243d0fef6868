"""`METHODS`, the registry of methods: to add one, write the module that plans it in this folder and a row here.

The function that carries the plan out has a row in `streampca.fitting.methods.METHODS`. A module lists the kinds of
model that its method makes in ``KINDS``.
"""

from __future__ import annotations

# name -> module with the functions of `choose_method.Method`, imported on first use
METHODS: dict[str, str] = {
    "covariance": ".covariance",
    "dual": ".dual",
    "randomized": ".randomized",
    "em": ".em",
    "cross-scatter": ".cross_scatter",
    "class-scatter": ".class_scatter",
    "screening": ".screening",
    "symmetric": ".symmetric",
    "kernel-matrix": ".kernel_matrix",
}
OF_PAIRS = "symmetric"  # the method for a matrix of pairs of samples, where others take samples of features

OF_KERNEL = "kernel-matrix"  # the method that compares all samples without having them in memory
