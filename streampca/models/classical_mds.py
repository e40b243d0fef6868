"""`ClassicalMDSModel`: classical multidimensional scaling of samples, or of a matrix of distances or inner products.

References
----------
W. S. Torgerson, "Multidimensional scaling: I. Theory and method", Psychometrika 17, 1952.
J. C. Gower, "Adding a point to vector diagrams in multivariate analysis", Biometrika 55, 1968 (placing new samples).
K. V. Mardia, "Some properties of classical multi-dimensional scaling", Communications in Statistics A7, 1978.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..accumulators.products import Products
from ..arrays import Array, Float64
from ..errors import ModelError
from .components import ComponentsModel
from .images import ImageModel
from .likelihood import DensityModel
from .model import over
from .subspace import Subspace

STRESS_BYTES = 16 * 2**20  # size of a block of rows of distances


class DistancePlacement(Subspace):
    """Gower's coordinates of samples from their distances to the fitted ones: Lambda^-1/2 U^T (-1/2 d^2 - mean).

    `components` are Lambda^-1/2 U^T, (k, n), and `mean` is the mean row of -1/2 D^2, (n,).
    """

    @property
    def takes_sparse(self) -> bool:
        """False: squared distances are multiplied."""
        return False

    def _dtype_of(self, rows: Array) -> np.dtype[Any]:
        return np.dtype(np.float64)

    def _block(self, products: Products[Any, Any], rows: Array, mean: Array) -> Any:
        """Return -1/2 times the squares of rows of distances, minus the mean, in float64."""
        return products.half_squares(rows, mean)


class ScaledModel(ComponentsModel):
    """Points in few dimensions whose Euclidean distances approximate those of samples."""

    @property
    def mds_eigenvalues(self) -> Float64:
        """Eigenvalues of B along the axes, (k,), descending: squared lengths of the embedding's columns."""
        return self.explained_variance * ((self.total_weight or self.n_samples) - 1)


class ClassicalMDSModel(ScaledModel, ImageModel, DensityModel):
    """Classical scaling of samples by their Euclidean distances, whose axes are principal components."""

    kind: ClassVar[str] = "classical-mds"
    negative_share: ClassVar[Float64] = np.zeros(2)  # distances are Euclidean


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PairsModel(ScaledModel):
    """Classical scaling of a matrix of distances, or of inner products, of pairs of samples.

    Components are eigenvectors of B, which is -1/2 H D^2 H for distances D and H K H for a kernel K, with one number
    for each fitted sample. `transform` requires rows of distances to the fitted samples, or of inner products with
    them, (m, n).

    Attributes
    ----------
    from_distances : bool
        True if the model was fitted to distances; False for inner products, when scores are those of kernel PCA.
    negative_share : ndarray of shape (2,)
        Lower and upper bound on the share of negative eigenvalues of B in the sum of absolute values: 0 for Euclidean
        distances. They are equal if all eigenvalues are known (``eigenvalues``, over n - 1, the negative ones last).

    Notes
    -----
    `explained_variance` holds eigenvalues of B over n - 1: the variances along the axes. `total_variance` is the sum of
    the absolute values of all of them, or a lower bound if they are not all known. For Euclidean distances it is the
    variance of the points.
    """

    kind: ClassVar[str] = "classical-mds-of-pairs"
    about_components: ClassVar[str] = "eigenvectors of the centred matrix, one number for each fitted sample"

    from_distances: bool = field(metadata=over())
    negative_share: Float64 = field(metadata=over("bound"))

    def __repr__(self) -> str:
        (least, most), estimate = self.negative_share, self.estimated_negative_share
        share = f"{least:.2%}" if most - least < 1e-4 else f"{least:.2%} to {most:.2%}"
        share += "" if most - least < 1e-4 or estimate is None else f", about {estimate:.2%}"
        pairs = "distances" if self.from_distances else "kernel"
        return (
            f"{type(self).__name__}({self.n_samples} samples in {self.n_components} dimensions by their {pairs}, "
            f"{float(self.explained_variance_ratio.sum()):.1%} of the sum of absolute eigenvalues, of which negative "
            f"ones have {share})"
        )

    @property
    def instead(self) -> str:
        """Remedy where principal components are required; see `Model.instead`."""
        return "transform places samples by their pairs with those fitted, which have no features"

    @property
    def estimated_negative_share(self) -> float | None:
        """Estimate of the share that `negative_share` bounds, from random directions; None if it was not computed.

        No bound on its error is known; with 20 directions its relative error was 1 % on distances of 1200 images.
        """
        estimate: float | None = (self.provenance.get("matrix") or {}).get("estimated_negative_share")
        return estimate

    @cached_property
    def embedding(self) -> Float64:
        """Coordinates of the fitted samples, (n, k)."""
        return np.asarray(self.components, np.float64).T * np.sqrt(self.mds_eigenvalues)

    @property
    def variance_left(self) -> float:
        """Bound on the sum of the variances outside; infinite if not all eigenvalues, of both signs, are known."""
        return np.inf if self.eigenvalues is None else super().variance_left

    @property
    def fills_in(self) -> bool:
        """False: the rows of a matrix must be complete."""
        return False

    @property
    def subspace(self) -> Subspace:
        """The map from rows of the matrix to coordinates."""
        rows = np.asarray(self.components, np.float64) / np.sqrt(self.mds_eigenvalues)[:, None]
        placement = DistancePlacement if self.from_distances else Subspace
        return placement(self.mean, rows, self.explained_variance, self.rule_for(None))

    def stress(self, distances: Any) -> float:
        """Return Kruskal's stress-1 of the embedding: sqrt(sum (d - |z_i - z_j|)^2 / sum d^2) over all pairs.

        Parameters
        ----------
        distances
            Distances between the fitted samples, (n, n), as an array or anything that can be opened; read once.

        Raises
        ------
        ModelError
            If the matrix has another size.

        Notes
        -----
        Cost: one pass, 2 n^2 k flops, and 48 MiB.
        """
        from scipy.spatial.distance import cdist

        points, matrix = self.embedding, self.prepared(distances)
        if matrix.n_samples != len(points):
            raise ModelError(
                f"{matrix.source} has {matrix.n_samples} rows and {self.name} was fitted to {len(points)} samples; "
                "give the distances between these."
            )
        step, differences, total = max(1, STRESS_BYTES // (8 * len(points))), 0.0, 0.0
        for start in range(0, len(points), step):
            rows = matrix.read(slice(start, min(start + step, len(points)))).astype(np.float64)
            total += float(np.einsum("ij,ij->", rows, rows))
            # In place: rows of distances become differences from the distances in the embedding.
            rows -= cdist(points[start : start + step], points)
            differences += float(np.einsum("ij,ij->", rows, rows))
        return float(np.sqrt(differences / total))
