"""Kinds of model that embed samples by the graph of their nearest neighbours."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal

from ..errors import RequestError
from .description import TargetRule
from .options import DropOptions, SeededOptions
from .values import Check, Count, InPython, Range

Positive = Annotated[float, Range(above=0)]
GraphLandmarks = Annotated[int, Range(least=2)] | Literal["all"] | None


def _graph(value: Any) -> Any:
    if value is None or isinstance(value, (str, os.PathLike)) or hasattr(value, "indices"):
        return value
    raise RequestError(f"graph = {value!r}: give a NeighborGraph, the path of one that was stored, or None.")


@dataclass(eq=False, repr=False)
class GraphDescription(DropOptions, SeededOptions):
    """Base of descriptions of embeddings.

    Parameters
    ----------
    graph : NeighborGraph or path, optional
        Graph of the samples' neighbours, as `neighbors` writes it; by default it is computed. Features are then used
        as they are, and `n_neighbors` is that of the graph.
    pca_components : int, optional
        Number of principal components by whose scores neighbours are found; by default 50. 0 uses features as they
        are, which is the default for up to 50 features, such as scores.
    """

    uses_graph: ClassVar[bool] = True
    axes_parameter: ClassVar[str] = "n_components"

    _: KW_ONLY
    graph: Annotated[str | Annotated[Any, InPython()] | None, Check(_graph)] = None
    pca_components: Annotated[int, Range(least=0)] | None = None

    @property
    def axes(self) -> int:
        """Number of axes of the embedding."""
        return int(getattr(self, self.axes_parameter))


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


@dataclass(eq=False, repr=False)
class IsomapDescription(ConnectedDescription):
    """Description of Isomap.

    Parameters
    ----------
    n_components : int, default=2
        Number of dimensions.
    n_neighbors : int, default=5
        Number of neighbours of each sample, itself not among them.
    landmarks : int or "all", optional
        Number of samples that distances are measured from; by default all of up to 2000, else 300.
    landmark_choice : {"uniform", "farthest"}, default="uniform"
        Choice of landmarks: at random, or far apart, which covers the outskirts, and outliers.
    """

    kind: ClassVar[str] = "isomap"

    n_components: Count = 2
    _: KW_ONLY
    n_neighbors: Count = 5
    landmarks: GraphLandmarks = None
    landmark_choice: Literal["uniform", "farthest"] = "uniform"


@dataclass(eq=False, repr=False)
class LocallyLinearEmbeddingDescription(ConnectedDescription):
    """Description of locally linear embedding.

    Parameters
    ----------
    n_components : int, default=2
        Number of dimensions.
    n_neighbors : int, default=5
        Number of neighbours of each sample.
    reg : float, default=1e-3
        Regularisation of the weights, relative to the trace of the neighbours' Gram matrix. It decides the quality in
        high dimensions: 0.1 is better for images.
    landmarks : int or "all", optional
        Number of random samples that are embedded and place the others; by default all, if memory allows. Where the
        eigenproblem of all does not fit the budget, up to 10000 are embedded.
    """

    kind: ClassVar[str] = "locally-linear-embedding"

    n_components: Count = 2
    _: KW_ONLY
    n_neighbors: Count = 5
    reg: Positive = 1e-3
    landmarks: GraphLandmarks = None


@dataclass(eq=False, repr=False)
class MaximumVarianceUnfoldingDescription(ConnectedDescription):
    """Description of maximum variance unfolding.

    Parameters
    ----------
    n_components : int, default=2
        Number of dimensions.
    n_neighbors : int, default=5
        Number of neighbours of each sample. Few keep edges from bridging two sheets of the surface.
    reg : float, default=1e-3
        Regularisation of the weights that place samples beside landmarks.
    landmarks : int or "all", optional
        Number of random samples that are unfolded and place the others; by default all of up to 2000, else 2000.
    """

    kind: ClassVar[str] = "maximum-variance-unfolding"

    n_components: Count = 2
    _: KW_ONLY
    n_neighbors: Count = 5
    reg: Positive = 1e-3
    landmarks: GraphLandmarks = None


@dataclass(eq=False, repr=False)
class ActionRespectingEmbeddingDescription(GraphDescription):
    """Description of action respecting embedding.

    Parameters
    ----------
    n_components : int, default=2
        Number of dimensions.
    n_neighbors : int, default=5
        Number of neighbours by which new samples are placed.
    reg : float, default=1e-3
        Regularisation of the weights that place new samples.
    """

    kind: ClassVar[str] = "action-respecting-embedding"
    target_rule: ClassVar[TargetRule] = "actions"

    n_components: Count = 2
    _: KW_ONLY
    n_neighbors: Count = 5
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
class SpectralEmbeddingDescription(SpectralDescription):
    """Description of Laplacian eigenmaps.

    Parameters
    ----------
    n_components : int, default=2
        Number of dimensions.
    """

    kind: ClassVar[str] = "spectral-embedding"

    n_components: Count = 2


@dataclass(eq=False, repr=False)
class SpectralClusteringDescription(SpectralDescription):
    """Description of spectral clustering.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters, and of eigenvectors.
    """

    kind: ClassVar[str] = "spectral-clustering"
    axes_parameter: ClassVar[str] = "n_clusters"

    n_clusters: Count = 8
