"""Probabilistic principal component analysis (Tipping and Bishop, 1999)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from .options import DropOptions, NComponents, SpectrumOptions


@dataclass(eq=False, repr=False)
class ProbabilisticPCADescription(DropOptions, SpectrumOptions):
    """Description of probabilistic principal component analysis.

    Parameters
    ----------
    n_components : int, float, {"elbow", "mp", "mle"} or None, default=0.95
        Number of components, share of the variance, or a rule that counts them. There must be variance besides.
    """

    kind: ClassVar[str] = "probabilistic-pca"

    n_components: NComponents = 0.95
    _: KW_ONLY
