"""Kernel principal component analysis."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from ..errors import RequestError
from .classical_mds import INNER_PRODUCTS, ClassicalMDSDescription, check_pairs
from .description import Description, fields_of
from .options import DropOptions, Function, KernelOptions, NComponents, SpectrumOptions

PRECOMPUTED = "precomputed"


@dataclass(eq=False, repr=False)
class KernelPCADescription(KernelOptions, DropOptions, SpectrumOptions):
    """Description of kernel principal component analysis.

    Parameters
    ----------
    n_components : int, float, {"elbow", "mp"} or None, default=None
        Number of components, share of the variance, or a rule that counts them; None for all.
    kernel : str or callable, default="linear"
        Kernel: linear, poly, rbf, sigmoid, cosine, laplacian, distance, or precomputed for a matrix of inner products.
        Or a function of two samples (p,) and (p,), of which models hold the name only. The matrix must be symmetric and
        have no negative eigenvalues.
    """

    kind: ClassVar[str] = "kernel-pca"
    maps_samples: ClassVar[bool] = True

    n_components: NComponents = None
    _: KW_ONLY
    kernel: str | Function = "linear"

    def check(self) -> None:
        """Refuse options for samples if the input is a matrix of inner products."""
        super().check()
        if self.kernel != PRECOMPUTED:
            return
        for name in ("landmarks", "random_features"):
            if getattr(self, name) is not None:
                raise RequestError(f"a precomputed kernel matrix is solved as it is; leave {name} out.")
        check_pairs(self.n_components, self.missing, f"kernel={self.kernel!r}")

    def solved_as(self) -> Description:
        """Return the description of classical scaling for a precomputed kernel, whose inner products it scales."""
        if self.kernel != PRECOMPUTED:
            return self
        shared = {name: getattr(self, name) for name in fields_of(SpectrumOptions)}
        scaling = ClassicalMDSDescription(n_components=self.n_components, **shared)
        return scaling.replaced(metric=INNER_PRODUCTS)
