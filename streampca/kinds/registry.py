"""`KINDS`, the registry of kinds of model: to add one, write its description in this folder and a row here.

The class of its models has a row in `streampca.models.registry`, and its estimator one in `streampca.__init__`.
"""

from __future__ import annotations

from importlib import import_module

from .description import Description

# kind -> module and class of its description, imported on first use
KINDS: dict[str, tuple[str, str]] = {
    "pca": (".pca", "PCADescription"),
    "kernel-pca": (".kernel_pca", "KernelPCADescription"),
    "classical-mds": (".classical_mds", "ClassicalMDSDescription"),
    "supervised-pca": (".supervised", "SupervisedPCADescription"),
    "fisher-discriminant": (".supervised", "FisherDiscriminantDescription"),
    "sliced-inverse-regression": (".supervised", "SlicedInverseRegressionDescription"),
    "supervised-principal-components": (".supervised", "SupervisedPrincipalComponentsDescription"),
    "isomap": (".manifold", "IsomapDescription"),
    "spectral-embedding": (".manifold", "SpectralEmbeddingDescription"),
    "spectral-clustering": (".manifold", "SpectralClusteringDescription"),
    "locally-linear-embedding": (".manifold", "LocallyLinearEmbeddingDescription"),
    "maximum-variance-unfolding": (".manifold", "MaximumVarianceUnfoldingDescription"),
    "action-respecting-embedding": (".manifold", "ActionRespectingEmbeddingDescription"),
}


def kind_class(kind: str) -> type[Description]:
    """Return the class that describes a kind of model."""
    module, name = KINDS[kind]
    cls: type[Description] = getattr(import_module(module, __package__), name)
    return cls


def kinds_with(parameter: str) -> list[str]:
    """Return the kinds that have a parameter."""
    from .description import fields_of

    return [kind for kind in KINDS if parameter in fields_of(kind_class(kind))]
