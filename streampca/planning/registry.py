"""`METHODS`, the registry of methods: to add one, write the module that plans it in this folder and a row here.

The function that carries the plan out has a row in `streampca.fitting.methods.METHODS`. `KINDS` lists the kinds of
model that methods make; their classes have rows in `streampca.models.registry.MODEL_KINDS`.
"""

from __future__ import annotations

from typing import Literal, get_args

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

TargetType = Literal["auto", "classes", "numbers"]  # what the values of a target are taken for
TARGET_TYPES: tuple[TargetType, ...] = get_args(TargetType)
TargetRule = Literal["", "features", "classes", "slices", "number"]
# kind of model -> how it reads its target: not at all, as label features (classes, or numbers as they are), as
# classes, as slices of sorted numbers, or as one number a sample
KINDS: dict[str, TargetRule] = {
    "pca": "",
    "kernel-pca": "",
    "classical-mds": "",
    "supervised-pca": "features",
    "discriminant": "classes",
    "sliced-inverse-regression": "slices",
    "supervised-components": "number",
}
MAPPING_KINDS = ("kernel-pca",)  # kinds whose samples always go through a feature map of a kernel
# kind of model that takes a kernel -> its default kernel; None where samples are taken as they are by default
KERNEL_KINDS: dict[str, str | None] = {"kernel-pca": "rbf", "supervised-pca": None}
