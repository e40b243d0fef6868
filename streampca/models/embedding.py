"""`EmbeddingModel`: coordinates of samples from a graph of neighbours, and the placement of new samples."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .. import machine
from ..arrays import Array, Float64
from ..manifold.action_respecting import ActionMap, play_forward
from ..manifold.graph_facts import components_sentence
from ..manifold.isomap import Scaling
from ..manifold.maximum_variance import Violations, exact_remedy
from ..manifold.placement import BarycentricPlacement, GeodesicPlacement, NystroemPlacement, Placement, block_bytes
from ..planning.neighbors import chunk_bytes
from ..units import counted, format_bytes
from .model import over
from .score_map import ScoreMapModel
from .subspace import Subspace, working_dtype

LISTED = 5  # largest number of short circuits in a sentence
PLACING_BYTES = 48 * 2**20  # memory of a thread that places samples: distances to the references, and paths


@dataclass(frozen=True)
class PlacedSubspace(Subspace):
    """Principal components or all features, by which samples are compared, and the map from these to an embedding."""

    placement: Placement = field(kw_only=True)

    @property
    def n_scores(self) -> int:
        """Number of axes of the embedding."""
        return self.placement.n_axes

    @property
    def works_by_parts(self) -> bool:
        """False: a placement needs all scores of a sample."""
        return False

    @property
    def takes_sparse(self) -> bool:
        """False: features of references are dense."""
        return False

    def project(self, rows: Array, *, whiten: bool = False) -> Array:
        """Return coordinates in the embedding: (m, p) to (m, d)."""
        coordinates = self.placement(self._comparable(rows))
        return coordinates.astype(working_dtype(rows.dtype, self.components.dtype), copy=False)

    def _comparable(self, rows: Array) -> Array:
        """Return the features or scores that are compared with the references: (m, p) to (m, s)."""
        if not len(self.components):
            return rows.astype(working_dtype(rows.dtype, self.components.dtype), copy=False)
        scores = super().project(rows)
        if self.placement.references.shape[1] == scores.shape[1]:
            return scores
        # The components span the fitted samples; the distance of another sample from that span adds to all distances.
        return np.column_stack((scores, np.sqrt(self.squared_error(rows, scores))))


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class EmbeddingModel(ScoreMapModel):
    """Coordinates of samples on a manifold, computed from a graph of their nearest neighbours.

    `pca` holds the principal components whose scores are compared; it has no components if all features are compared.
    `transform` places samples in the embedding.

    Attributes
    ----------
    embedding : ndarray of shape (m, d)
        Coordinates of the fitted samples.
    embedded_samples : ndarray of shape (m,)
        Their indices in the collection, ascending; samples outside the largest component of the graph are left out.
    embedding_eigenvalues : ndarray of shape (d,)
        Eigenvalues of the problem that the coordinates solve.
    embedding_residuals : ndarray of shape (d,)
        Norms of A v - value v for the unit eigenvectors v.
    references : ndarray of shape (r, p), (r, k) or (r, k + 1)
        Fitted samples that place others: all features, or scores. If the components span all fitted samples, the last
        coordinate is the distance from that span: 0 for references.
    reference_samples : ndarray of shape (r,)
        Indices of the references as rows of `embedding`.
    n_neighbors : int
        Number of neighbours of a sample.
    """

    whitens: ClassVar[bool] = False

    embedding: Float64 = field(metadata=over("fitted_sample", "axis"))
    embedded_samples: npt.NDArray[np.int64] = field(metadata=over("fitted_sample"))
    embedding_eigenvalues: Float64 = field(metadata=over("axis"))
    embedding_residuals: Float64 = field(metadata=over("axis"))
    references: Array = field(metadata=over("reference", "compared"))
    reference_samples: npt.NDArray[np.int64] = field(metadata=over("reference"))
    n_neighbors: int = field(metadata=over())

    @property
    def n_scores(self) -> int:
        """Number of axes of the embedding, d."""
        return int(self.embedding.shape[1])

    @property
    def measured(self) -> Mapping[str, Any]:
        """Measurements of the embedding as plain data: trustworthiness, recall, components of the graph ..."""
        measured: Mapping[str, Any] = self.provenance.get("embedding", {}).get("measured", {})
        return measured

    def __repr__(self) -> str:
        k, p = self.pca.n_components, self.n_features
        space = f"{k} components of {p} features" if k else counted(p, "feature")
        return (
            f"{type(self).__name__}({len(self.embedding)} samples in {self.n_scores} dimensions by {self.n_neighbors} "
            f"neighbours, compared by {space})"
        )

    @property
    def fills_in(self) -> bool:
        """False: samples are compared as a whole."""
        return False

    @property
    def subspace(self) -> Subspace:
        """Mean and components as plain rows, and the placement of scores."""
        return PlacedSubspace(**vars(self.pca.subspace), placement=self.placement)

    @cached_property
    def placement(self) -> Placement:
        """The map from scores to coordinates."""
        raise NotImplementedError

    @property
    def _grid_bytes(self) -> int:
        """Bytes of the coordinates, and of the placement with the buffers of its threads."""
        # The index makes a copy of the references to move their origin.
        held, cores = self.placement.nbytes + self.references.nbytes, machine.cores()
        chunks = chunk_bytes(self.references.shape[1], cores) + cores * block_bytes(self.references.shape[1])
        return super()._grid_bytes + held + chunks + PLACING_BYTES * cores

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the embedding, its graph, and its accuracy."""
        measured = self.measured
        lines = [
            f"{self.kind}: {len(self.embedding)} samples in {self.n_scores} dimensions by {self.n_neighbors} neighbours"
        ]
        if "facts" in measured:
            lines.append(f"the graph is {components_sentence(measured['facts'], exact='recall' not in measured)}")
        if "trustworthiness" in measured:
            lines.append(
                f"trustworthiness {measured['trustworthiness']:.3f} and continuity {measured['continuity']:.3f} of "
                f"{measured['compared_neighbors']} neighbours, on {measured['compared_samples']} samples: how far "
                "neighbours in the embedding are neighbours among the samples, and the other way round"
            )
            lines.append(_comparison_sentence(measured["neighborhoods"], measured["compared_neighbors"]))
        if "recall" in measured:
            lines.append(f"the graph has {measured['recall']['share']:.4f} of the true neighbours, as estimated (HNSW)")
        size = format_bytes(self.references.nbytes)
        lines.append(
            f"new samples are placed by {len(self.references)} of the fitted ones, which the model keeps: {size}"
        )
        if len(self.embedding) < self.n_samples:
            left_out = counted(self.n_samples - len(self.embedding), "sample")
            lines.append(f"the embedding leaves out {left_out} outside the largest component of the graph")
        if np.isfinite(self.embedding_residuals).all() and len(self.embedding_residuals):
            lines.append(
                f"eigenvectors solve their problem with residuals of at most {self.embedding_residuals.max():.1e} "
                f"({measured.get('solver', 'eigensolver')})"
            )
        return (*lines, *self.own_notes)

    @property
    def own_notes(self) -> tuple[str, ...]:
        """Sentences that only this kind has."""
        return ()


def _comparison_sentence(measured: Mapping[str, Any], neighbors: int) -> str:
    """Compare with the same number of principal components, and with other numbers of neighbours."""
    numbers = measured["neighbors"]
    index, trust = numbers.index(neighbors), measured["trustworthiness"]
    verb = "has" if measured["components"] == 1 else "have"
    values = (measured[name][index] for name in ("components_trustworthiness", "components_continuity"))
    line = f"{counted(measured['components'], 'principal component')} {verb} {' and '.join(f'{v:.3f}' for v in values)}"
    if len(numbers) == 1:
        return line
    return f"{line}; trustworthiness of {numbers[0]} to {numbers[-1]} neighbours: {trust[0]:.3f} to {trust[-1]:.3f}"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class IsomapModel(EmbeddingModel):
    """Isomap: points in few dimensions whose distances approximate the geodesic distances of samples.

    Attributes
    ----------
    geodesics : ndarray of shape (r, l)
        Geodesic distances from references to landmarks.
    landmarks : ndarray of shape (l,)
        Indices of the landmarks as rows of `embedding`.
    scaling_weights, scaling_mean, scaling_centre : ndarray of shape (d, l), (l,) and (d,)
        Coefficients of landmark MDS, see ``streampca.manifold.isomap``.
    residual_variance : ndarray of shape (q,)
        Share of the variance of geodesic distances that distances in 1, 2 ... dimensions do not explain.
    negative_share : float
        Share of negative eigenvalues of the landmarks' matrix: 0 for distances in a Euclidean space.
    """

    kind: ClassVar[str] = "isomap"

    geodesics: Array = field(metadata=over("reference", "landmark"))
    landmarks: npt.NDArray[np.int64] = field(metadata=over("landmark"))
    scaling_weights: Float64 = field(metadata=over("axis", "landmark"))
    scaling_mean: Float64 = field(metadata=over("landmark"))
    scaling_centre: Float64 = field(metadata=over("axis"))
    residual_variance: Float64 = field(metadata=over("dimension"))
    negative_share: float = field(metadata=over())

    @cached_property
    def placement(self) -> Placement:
        """The placement of scores, by geodesic distances through neighbours."""
        scaling = Scaling(
            self.scaling_weights,
            self.scaling_mean,
            self.scaling_centre,
            self.embedding_eigenvalues,
            float(self.negative_share),
        )
        return GeodesicPlacement(
            references=self.references,
            n_neighbors=int(self.n_neighbors),
            geodesics=self.geodesics,
            scaling=scaling,
        )

    @property
    def own_notes(self) -> tuple[str, ...]:
        """Sentences on distances."""
        unexplained = ", ".join(f"{value:.3g}" for value in self.residual_variance)
        positive = int(np.count_nonzero(self.embedding_eigenvalues))
        beyond = f"coordinates are 0 beyond {counted(positive, 'dimension')}: distances have no more of them"
        return (
            *((beyond,) if positive < self.n_scores else ()),
            f"share of the variance of geodesic distances that 1, 2 ... dimensions leave: {unexplained}",
            f"negative eigenvalues have {float(self.negative_share):.1%} of the sum of absolute values, which a flat "
            "manifold has none of",
        )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LocallyLinearModel(EmbeddingModel):
    """Locally linear embedding: the weights that reconstruct samples from their neighbours reconstruct the points.

    Attributes
    ----------
    reg : float
        Regularisation of the weights; see ``streampca.manifold.locally_linear``.
    """

    kind: ClassVar[str] = "locally-linear-embedding"

    reg: float = field(metadata=over())

    @cached_property
    def placement(self) -> Placement:
        """The placement of scores, by barycentric weights."""
        return BarycentricPlacement(
            references=self.references,
            n_neighbors=int(self.n_neighbors),
            coordinates=self.embedding[self.reference_samples],
            reg=float(self.reg),
        )

    @property
    def own_notes(self) -> tuple[str, ...]:
        """Sentences on weights and landmarks."""
        weights = f"weights are regularised by {float(self.reg):.3g} of the trace (reg), which decides the quality"
        if "n_landmarks" not in self.measured:
            return (weights,)
        return (
            weights,
            f"eigenvectors are of {self.measured['n_landmarks']} landmarks; other samples are placed by their weights",
        )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MaximumVarianceModel(LocallyLinearModel):
    """Maximum variance unfolding: points as far apart as the lengths of the graph's edges allow."""

    kind: ClassVar[str] = "maximum-variance-unfolding"

    @property
    def violations(self) -> Violations:
        """Differences of the lengths of edges from the given ones."""
        names = ("largest_violation", "violation_95", "median_violation")
        return Violations(*(self.measured[name] for name in names))

    @property
    def failure(self) -> str | None:
        """Sentence on edges that are wrong, if the median one is off by more than 2 %."""
        if self.violations.are_usable:
            return None
        return f"the unfolding has not converged, and {self.violations}; {self.remedy}."

    @property
    def remedy(self) -> str:
        """Remedy for an unfolding that has not converged."""
        return exact_remedy(int(self.n_neighbors), self.n_scores)

    @property
    def own_notes(self) -> tuple[str, ...]:
        """Sentences on lengths, the optimum and short circuits."""
        measured = self.measured
        lines = [
            str(self.violations),
            "no bound on the variance that was missed is known"
            if measured["gap"] is None
            else f"the variance is within {measured['gap']:.1e} of the largest possible",
        ]
        if not measured["converged"]:
            lines.append(f"the unfolding has not converged: {self.remedy}")
        if measured["short_circuits"]:
            listed = ", ".join(f"{i}-{j}" for i, j in measured["short_circuits"][:LISTED])
            lines.append(
                f"{len(measured['short_circuits'])} edges keep the samples from unfolding (short circuits: {listed}); "
                "take fewer neighbours, or leave these samples out"
            )
        if "n_landmarks" in measured:
            lines.append(
                f"{measured['n_landmarks']} landmarks were unfolded; other samples are placed by their weights"
            )
        return tuple(lines)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ActionRespectingModel(LocallyLinearModel):
    """Action respecting embedding of a time series, in which each action is one rigid motion.

    Attributes
    ----------
    action_rotations : ndarray of shape (a, d, d)
        Orthogonal matrix A of each action, which moves a sample at y to A y + b.
    action_shifts : ndarray of shape (a, d)
        Shift b of each action.
    action_errors, action_steps : ndarray of shape (a,)
        Root mean square distance from the following sample, of moved samples and of samples themselves.
    action_counts : ndarray of shape (a,)
        Number of occurrences of each action.
    """

    kind: ClassVar[str] = "action-respecting-embedding"

    action_rotations: Float64 = field(metadata=over("action", "axis", "axis_before"))
    action_shifts: Float64 = field(metadata=over("action", "axis"))
    action_errors: Float64 = field(metadata=over("action"))
    action_steps: Float64 = field(metadata=over("action"))
    action_counts: npt.NDArray[np.int64] = field(metadata=over("action"))

    @property
    def actions(self) -> dict[Hashable, ActionMap]:
        """Motion of each action, by its label."""
        arrays = (
            self.action_rotations,
            self.action_shifts,
            self.action_errors.tolist(),
            self.action_steps.tolist(),
            self.action_counts.tolist(),
        )
        labels = self.measured["actions"]
        return {label: ActionMap(*row) for label, *row in zip(labels, *arrays, strict=True)}

    def play(self, start: Any, sequence: Sequence[Hashable]) -> Float64:
        """Return the positions along a sequence of actions.

        Parameters
        ----------
        start : array-like of shape (d,)
            Starting position: a row of `embedding`, or the result of `transform` for an image.
        sequence : sequence of labels
            Labels of s actions.

        Returns
        -------
        ndarray of shape (s + 1, d)

        Raises
        ------
        RequestError
            If an action was not learned.
        """
        return play_forward(self.actions, np.asarray(start, np.float64).reshape(-1), sequence)

    @property
    def own_notes(self) -> tuple[str, ...]:
        """Sentences on actions."""
        errors = ", ".join(f"{label} {move.error / move.step:.2%}" for label, move in self.actions.items() if move.step)
        pairs = f"{self.measured['n_pairs_used']} of {self.measured['n_pairs']} pairs of equal actions were made rigid"
        return (f"error of each action as a rigid motion, as a share of its step: {errors}", pairs)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SpectralEmbeddingModel(EmbeddingModel):
    """Laplacian eigenmaps: eigenvectors of the Laplacian of the graph of neighbours, ascending.

    Attributes
    ----------
    gamma : float
        Weight exp(-gamma d^2) of an edge of length d; NaN for weights of 1.
    laplacian_eigenvalues : ndarray of shape (m,)
        Smallest eigenvalues of the Laplacian, ascending from 0; a gap after c of them indicates c clusters.
    """

    kind: ClassVar[str] = "spectral-embedding"

    gamma: float = field(metadata=over())
    laplacian_eigenvalues: Float64 = field(metadata=over("laplacian_eigenvalue"))

    @cached_property
    def placement(self) -> Placement:
        """The placement of scores, by Nystroem's extension of the eigenvectors."""
        # Unnormalized eigenvalues grow with the degree of the graph; the extension divides by normalized ones.
        scale = float(self.measured.get("mean_degree", 1.0))
        return NystroemPlacement(
            references=self.references,
            n_neighbors=int(self.n_neighbors),
            coordinates=self.embedding[self.reference_samples],
            eigenvalues=self.embedding_eigenvalues / scale,
            gamma=None if np.isnan(self.gamma) else float(self.gamma),
        )

    @property
    def own_notes(self) -> tuple[str, ...]:
        """Sentences on eigenvalues."""
        values = ", ".join(f"{value:.3g}" for value in self.embedding_eigenvalues)
        return (f"eigenvalues of the Laplacian: {values}",)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SpectralClusteringModel(SpectralEmbeddingModel):
    """Spectral clustering: k-means of the rows of Laplacian eigenvectors.

    Attributes
    ----------
    labels : ndarray of shape (m,)
        Cluster of each fitted sample, from 0.
    centers : ndarray of shape (c, d)
        Means of the clusters in the embedding.
    """

    kind: ClassVar[str] = "spectral-clustering"

    labels: npt.NDArray[np.int64] = field(metadata=over("fitted_sample"))
    centers: Float64 = field(metadata=over("cluster", "axis"))

    def predict(self, samples: Any) -> npt.NDArray[np.int64]:
        """Return the cluster of each sample, (n,): that of the center nearest to its coordinates in the embedding."""
        from scipy.spatial.distance import cdist

        labels: npt.NDArray[np.int64]
        labels = cdist(np.asarray(self.transform(samples), np.float64), self.centers).argmin(axis=1)
        return labels

    @property
    def own_notes(self) -> tuple[str, ...]:
        """Sentences on eigenvalues, sizes and cuts."""
        sizes = ", ".join(map(str, np.bincount(self.labels).tolist()))
        cuts = (
            f"clusters of {sizes} samples; normalised cut {self.measured['normalized_cut']:.3g}, ratio cut "
            f"{self.measured['ratio_cut']:.3g}"
        )
        return (*super().own_notes, cuts)
