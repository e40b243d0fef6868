"""`MODEL_KINDS`, the registry of kinds of model: to add one, write its class in this folder and a row here.

A kind of model is a subclass of `Model` that declares the arrays it stores (`Model.own_arrays`). `load` finds the
class by the kind in the stored root attribute; a method names the kind of its model in its `Decomposition`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .model import Model

# name -> module and class, imported on first use
MODEL_KINDS: dict[str, tuple[str, str]] = {
    "pca": (".pca", "PCAModel"),
    "kernel-pca": (".kernel_pca", "KernelPCAModel"),
    "supervised-pca": (".supervised", "SupervisedPCAModel"),
    "fisher-discriminant": (".supervised", "DiscriminantModel"),
    "sliced-inverse-regression": (".supervised", "InverseRegressionModel"),
    "supervised-principal-components": (".supervised", "SupervisedComponentsModel"),
    "classical-mds": (".classical_mds", "ClassicalMDSModel"),
    "classical-mds-of-pairs": (".classical_mds", "PairsModel"),
    "isomap": (".embedding", "IsomapModel"),
    "locally-linear-embedding": (".embedding", "LocallyLinearModel"),
    "maximum-variance-unfolding": (".embedding", "MaximumVarianceModel"),
    "action-respecting-embedding": (".embedding", "ActionRespectingModel"),
    "spectral-embedding": (".embedding", "SpectralEmbeddingModel"),
    "spectral-clustering": (".embedding", "SpectralClusteringModel"),
    "rotated-pca": (".rotation", "RotatedPCAModel"),
    "bootstrap": (".bootstrap", "BootstrapModel"),
}


def model_class(kind: str) -> type[Model]:
    """Return the class of models of a kind."""
    module, name = MODEL_KINDS[kind]
    return cast("type[Model]", getattr(import_module(module, __package__), name))
