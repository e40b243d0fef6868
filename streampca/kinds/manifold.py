"""Kinds of model that embed samples by the graph of their nearest neighbours."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal

from ..errors import RequestError
from .description import Description, TargetRule
from .options import DropOptions, SeededOptions
from .values import Check, Count, InPython, Range

Positive = Annotated[float, Range(above=0)]
GraphLandmarks = Annotated[int, Range(least=2)] | Literal["all"] | None


def _check_graph(value: Any) -> Any:
    if value is None or isinstance(value, (str, os.PathLike)) or hasattr(value, "indices"):
        return value
    raise RequestError(f"graph = {value!r}: give a NeighborGraph, the path of one that was stored, or None.")


@dataclass(eq=False, repr=False)
class GraphDescription(DropOptions, SeededOptions):
    """Base of descriptions of embeddings.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours of each sample, itself not among them. Few keep edges from bridging two sheets of the
        surface. Action respecting embedding places new samples by them.
    graph : NeighborGraph or path, optional
        Graph of the samples' neighbours, as `neighbors` writes it; by default it is computed. `n_neighbors` is then
        that of the graph.
    pca_components : int, optional
        Number of principal components by whose scores samples are compared; by default all features are. Where that
        does not fit the budget, or takes minutes, the refusal or the plan names a number that would do. What samples
        have outside so many components is then ignored, and a search that would take more than a minute is
        approximate (HNSW).
    """

    uses_graph: ClassVar[bool] = True

    _: KW_ONLY
    n_neighbors: Count = 5
    graph: Annotated[str | Annotated[Any, InPython()] | None, Check(_check_graph)] = None
    pca_components: Count | None = None

    @property
    def axes(self) -> int:
        """Number of axes of the embedding."""
        return int(getattr(self, self.axes_parameter))


@dataclass(eq=False, repr=False)
class DimensionOptions(Description):
    """Number of dimensions of an embedding.

    Parameters
    ----------
    n_components : int, default=2
        Number of dimensions.
    """

    n_components: Count = 2


@dataclass(eq=False, repr=False)
class LandmarkOptions(Description):
    """Landmarks of an embedding.

    Parameters
    ----------
    landmarks : int or "all", optional
        Number of samples that are embedded first and place the others; by default all, or as many as take seconds.
        Isomap takes all of up to 2000 samples, else 300. Maximum variance unfolding takes up to 2000, and locally
        linear embedding all whose eigenproblem fits the budget, else up to 10000.
    """

    _: KW_ONLY
    landmarks: GraphLandmarks = None


@dataclass(eq=False, repr=False)
class ConnectedDescription(GraphDescription):
    """Base of descriptions of embeddings whose graph must be connected.

    Parameters
    ----------
    largest_component : bool, default=False
        Embed the largest component of a graph that is not connected, which is refused otherwise. Samples outside it
        are placed as `transform` places new ones.
    """

    _: KW_ONLY
    largest_component: bool = False

    @property
    def most_components(self) -> int:
        """Largest number of connected components that the graph may have."""
        return 1


@dataclass(eq=False, repr=False)
class IsomapDescription(DimensionOptions, LandmarkOptions, ConnectedDescription):
    """Description of Isomap.

    Parameters
    ----------
    landmark_choice : {"uniform", "farthest"}, default="uniform"
        Choice of landmarks: at random, or far apart, which covers the outskirts, and outliers.
    """

    kind: ClassVar[str] = "isomap"

    _: KW_ONLY
    landmark_choice: Literal["uniform", "farthest"] = "uniform"


@dataclass(eq=False, repr=False)
class LocallyLinearEmbeddingDescription(DimensionOptions, LandmarkOptions, ConnectedDescription):
    """Description of locally linear embedding.

    Parameters
    ----------
    reg : float, default=1e-3
        Regularisation of the weights, relative to the trace of the neighbours' Gram matrix. It decides the quality in
        high dimensions: 0.1 is better for images.
    """

    kind: ClassVar[str] = "locally-linear-embedding"

    _: KW_ONLY
    reg: Positive = 1e-3


@dataclass(eq=False, repr=False)
class MaximumVarianceUnfoldingDescription(DimensionOptions, LandmarkOptions, ConnectedDescription):
    """Description of maximum variance unfolding.

    Parameters
    ----------
    reg : float, default=1e-3
        Regularisation of the weights that place samples beside landmarks.
    """

    kind: ClassVar[str] = "maximum-variance-unfolding"

    _: KW_ONLY
    reg: Positive = 1e-3


@dataclass(eq=False, repr=False)
class ActionRespectingEmbeddingDescription(DimensionOptions, GraphDescription):
    """Description of action respecting embedding.

    Parameters
    ----------
    reg : float, default=1e-3
        Regularisation of the weights that place new samples.
    """

    kind: ClassVar[str] = "action-respecting-embedding"
    target_rule: ClassVar[TargetRule] = "actions"

    _: KW_ONLY
    reg: Positive = 1e-3


@dataclass(eq=False, repr=False)
class SpectralDescription(ConnectedDescription):
    """Base of descriptions of embeddings by eigenvectors of the graph's Laplacian.

    Parameters
    ----------
    n_neighbors : int, default=10
        Number of neighbours of each sample, itself not among them.
    gamma : float, optional
        Edges of length d weigh exp(-gamma d^2); by default all weigh 1.
    laplacian : {"normalized", "unnormalized"}, default="normalized"
        Laplacian: I - D^-1/2 W D^-1/2, which relaxes the normalised cut, or D - W, the ratio cut.
    """

    _: KW_ONLY
    n_neighbors: Count = 10
    gamma: Positive | None = None
    laplacian: Literal["normalized", "unnormalized"] = "normalized"


@dataclass(eq=False, repr=False)
class SpectralEmbeddingDescription(DimensionOptions, SpectralDescription):
    """Description of Laplacian eigenmaps."""

    kind: ClassVar[str] = "spectral-embedding"


@dataclass(eq=False, repr=False)
class SpectralClusteringDescription(SpectralDescription):
    """Description of spectral clustering.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters, and of eigenvectors. A graph can have up to so many connected components.
    largest_component : bool, default=False
        Cluster the largest component of the graph alone, where the others are outliers. Samples outside it are placed
        as `transform` places new ones.
    """

    kind: ClassVar[str] = "spectral-clustering"
    axes_parameter: ClassVar[str] = "n_clusters"

    n_clusters: Count = 8

    @property
    def most_components(self) -> int:
        """Number of clusters: the indicators of components are eigenvectors of eigenvalue 0."""
        return self.n_clusters
