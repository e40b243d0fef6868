"""Classical multidimensional scaling."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

from ..errors import RequestError
from .options import DropOptions, LandmarkChoice, Landmarks, NComponents, SpectrumOptions
from .values import Count

INNER_PRODUCTS = "kernel"  # metric by which kernel PCA of a precomputed matrix is solved; not an option


@dataclass(eq=False, repr=False)
class ClassicalMDSDescription(DropOptions, SpectrumOptions):
    """Description of classical multidimensional scaling.

    Parameters
    ----------
    n_components : int, float or None, default=2
        Number of dimensions, share of the variance, or None for all.
    metric : {"euclidean", "precomputed"}, default="euclidean"
        Input: samples, whose Euclidean distances are approximated, or a matrix of distances (precomputed). The points
        are then those of principal components, or those of the matrix, n samples of n numbers each, which must be
        symmetric.
    landmarks : int or "all", optional
        Number of samples that are scaled, and place all others by distances; by default all (landmark scaling). They
        need metric "euclidean".
    landmark_choice : {"uniform", "k-means++", "leverage"}, default="uniform"
        Choice of landmarks: at random, far apart, or by how much they add to others.
    rank : int, optional
        Number of axes along which landmarks place samples; by default all that they span. Principal components then
        reduce these to `n_components`. With no more than `n_components` of them the stress is larger.
    """

    kind: ClassVar[str] = "classical-mds"

    n_components: NComponents = 2
    _: KW_ONLY
    metric: Literal["euclidean", "precomputed"] = "euclidean"
    landmarks: Landmarks = None
    landmark_choice: LandmarkChoice = "uniform"
    rank: Count | None = None

    def check(self) -> None:
        """Refuse options for samples if the input is a matrix of pairs of samples."""
        super().check()
        if self.rank is not None and self.landmarks is None:
            raise RequestError(f"rank={self.rank!r} is an option of landmarks; give landmarks with it.")
        if self.metric == "euclidean":
            return
        if self.landmarks is not None:
            raise RequestError(
                f"landmarks={self.landmarks!r} are of metric 'euclidean', and metric is {self.metric!r}; leave them "
                "out."
            )
        check_pairs(self.n_components, self.missing, f"metric={self.metric!r}")


def check_pairs(n_components: object, missing: str, option: str) -> None:
    """Refuse rules for samples of features if, by an option, the input is a matrix of pairs of samples.

    Raises
    ------
    RequestError
    """
    if n_components in ("mp", "mle"):
        raise RequestError(
            f"n_components={n_components!r} is a rule for samples of features; ask for a number such as 10 of "
            "a matrix of pairs of samples, or a fraction such as 0.9."
        )
    if missing != "error":
        raise RequestError(
            f"missing={missing!r} is for samples of features, and a matrix of pairs of samples must have "
            f"every entry; leave missing out with {option}."
        )
