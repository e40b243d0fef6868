"""Placement of new samples in an embedding, by their nearest neighbours among fitted ones.

References
----------
Bengio et al. (2003), Out-of-sample extensions for LLE, Isomap, MDS, eigenmaps, and spectral clustering.
De Silva and Tenenbaum (2004), Sparse multidimensional scaling using landmark points.
Saul and Roweis (2003), Think globally, fit locally (barycentric weights).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from ..arrays import Array, Float64
from ..errors import ModelError
from ..planning.neighbors import algorithm_of
from ..signals import safe_point
from .isomap import Scaling
from .laplacian import edge_weights
from .locally_linear import barycentric_weights
from .neighbors import NeighborSearch

BLOCK = 2**21  # numbers of a block of distances, or of copies of samples
COPIES, LEAST_ROWS = 3, 64  # of a block of samples in float64, and of rows: references are read once for each block
UNSTABLE = 0.01  # smallest distance of an eigenvalue from 1, by which positions and their errors are divided
_MAKING = Lock()


@dataclass(frozen=True, eq=False, kw_only=True)
class Placement:
    """Map from scores to positions in an embedding.

    Attributes
    ----------
    references : ndarray of shape (r, s)
        What fitted samples are compared by: scores or features.
    n_neighbors : int
        Number of references used to place a sample.
    """

    references: Array
    n_neighbors: int

    @property
    def n_axes(self) -> int:
        """Number of axes of the embedding, d."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    def __call__(self, scores: Array) -> Float64:
        """Place samples, (m, s) to (m, d); NaN where `scores` are not finite."""
        placed = np.full((len(scores), self.n_axes), np.nan)
        finite = np.flatnonzero(np.isfinite(scores).all(axis=1))
        rows = max(1, min(BLOCK // max(1, self._row_numbers), max(LEAST_ROWS, BLOCK // (COPIES * scores.shape[1]))))
        for start in range(0, len(finite), rows):
            safe_point()
            block = finite[start : start + rows]
            indices, distances = self._search.query(scores[block], self.n_neighbors)
            placed[block] = self._placed(scores[block], indices, distances)
        return placed

    @property
    def _search(self) -> NeighborSearch:
        with _MAKING:  # several threads can place samples; one builds the index
            return self._made_search

    @cached_property
    def _made_search(self) -> NeighborSearch:
        search = NeighborSearch(self.references, algorithm_of(self.references.shape[1]))
        search.build()
        return search

    def __getstate__(self) -> dict[str, Any]:  # without the index, which workers build themselves
        return {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}

    @property
    def _row_numbers(self) -> int:
        """Numbers held in memory while a sample is placed."""
        return int(self.n_neighbors * self.n_axes)

    def _placed(self, scores: Array, indices: Array, distances: Array) -> Float64:
        raise NotImplementedError


@dataclass(frozen=True, eq=False, kw_only=True)
class GeodesicPlacement(Placement):
    """Placement by geodesic distances from landmarks: the shortest path leads through one of the neighbours.

    Attributes
    ----------
    geodesics : ndarray of shape (r, m)
        Geodesic distances of references to landmarks.
    scaling : Scaling
        Map from such distances to coordinates.
    """

    geodesics: Array
    scaling: Scaling

    @property
    def n_axes(self) -> int:
        """Number of axes, d."""
        return len(self.scaling.weights)

    @property
    def _row_numbers(self) -> int:
        return int(self.n_neighbors * self.geodesics.shape[1])

    def _placed(self, scores: Array, indices: Array, distances: Array) -> Float64:
        # To a neighbour, and from there along the graph.
        paths = self.geodesics[indices] + distances[..., None]
        return self.scaling.place(paths.min(axis=1))


@dataclass(frozen=True, eq=False, kw_only=True)
class BarycentricPlacement(Placement):
    """Placement by the weights with which neighbours rebuild a sample.

    Attributes
    ----------
    coordinates : ndarray of shape (r, d)
        References in the embedding.
    reg : float
        See `barycentric_weights`.
    """

    coordinates: Float64
    reg: float

    @property
    def n_axes(self) -> int:
        """Number of axes, d."""
        return int(self.coordinates.shape[1])

    def _placed(self, scores: Array, indices: Array, distances: Array) -> Float64:
        weights = barycentric_weights(scores, self.references, indices, self.reg)
        return _weighted(weights, self.coordinates[indices])


@dataclass(frozen=True, eq=False, kw_only=True)
class NystroemPlacement(Placement):
    """Placement at the weighted mean of the neighbours, divided by 1 - eigenvalue of the Laplacian (Nyström).

    Attributes
    ----------
    coordinates : ndarray of shape (r, d)
        References in the embedding.
    eigenvalues : ndarray of shape (d,)
        Eigenvalues of the normalized Laplacian.
    gamma : float or None
        See `edge_weights`.
    """

    coordinates: Float64
    eigenvalues: Float64
    gamma: float | None

    @property
    def n_axes(self) -> int:
        """Number of axes, d."""
        return int(self.coordinates.shape[1])

    def _placed(self, scores: Array, indices: Array, distances: Array) -> Float64:
        # Distances relative to the nearest neighbour: far from all references, every weight would round to 0.
        near = distances if self.gamma is None else np.sqrt(np.maximum(distances**2 - distances[:, :1] ** 2, 0))
        weights = edge_weights(near, self.gamma)
        weights /= weights.sum(axis=1, keepdims=True)
        # Division by a small number would magnify errors of the mean.
        if (near_one := np.abs(1 - self.eigenvalues) < UNSTABLE).any():
            axis = int(np.argmax(near_one))
            raise ModelError(
                f"eigenvalue {self.eigenvalues[axis]:.3g} of the Laplacian makes the Nystroem extension along axis "
                f"{axis + 1} unstable. Embed along fewer axes (n_components), or with another number of neighbours "
                "(n_neighbors)."
            )
        return _weighted(weights, self.coordinates[indices]) / (1 - self.eigenvalues)


def block_bytes(n_features: int) -> int:
    """Return the bytes of a block of samples that are placed where few of them are many numbers."""
    return 8 * COPIES * LEAST_ROWS * n_features


def _weighted(weights: Float64, points: Float64) -> Float64:
    """Return weighted sums of points, (m, k) and (m, k, d) to (m, d)."""
    sums: Float64 = np.einsum("mk,mkd->md", weights, points)
    return sums
