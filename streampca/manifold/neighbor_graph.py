"""`NeighborGraph`: the nearest neighbours of every sample, with their provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..arrays import Array


@dataclass(frozen=True, eq=False)
class NeighborGraph:
    """The k nearest neighbours of each of n samples, by Euclidean distance.

    Attributes
    ----------
    indices : ndarray of shape (n, k)
        Numbers of the neighbours of each sample, nearest first; a sample is not a neighbour of itself.
    distances : ndarray of shape (n, k)
        Distances to these neighbours, ascending along rows.
    provenance : mapping
        Source of the samples, method of the search, and measured facts, as plain data.
    """

    indices: Array
    distances: Array
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"NeighborGraph({self.n_samples} samples, {self.n_neighbors} neighbors)"

    @property
    def n_samples(self) -> int:
        """Number of samples, n."""
        return len(self.indices)

    @property
    def n_neighbors(self) -> int:
        """Number of neighbours of each sample, k."""
        return int(self.indices.shape[1])

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the graph is, and what was found out about it."""
        from .graph_facts import sentences  # which is of graphs

        return tuple(sentences(self))

    def to_csr(self) -> sp.csr_array:
        """Return the distances as a sparse matrix (n, n): row i holds those of sample i, zeros among them."""
        n, k = self.indices.shape
        # With int64 pointers, scipy would copy all indices as int64 too.
        pointers = np.arange(n + 1, dtype=self.indices.dtype if n * k < 2**31 else np.int64) * k
        return sp.csr_array((self.distances.reshape(-1), self.indices.reshape(-1), pointers), shape=(n, n))
