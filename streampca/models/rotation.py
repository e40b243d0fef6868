"""Varimax and promax rotation of components: patterns with few large loadings that span the same subspace.

References
----------
H. Kaiser, "The varimax criterion for analytic rotation in factor analysis", Psychometrika 23, 1958.
A. Hendrickson, P. White, "Promax: a quick method for rotation to oblique simple structure", British Journal of
Statistical Psychology 17, 1964.
M. Richman, "Rotation of principal components", Journal of Climatology 6, 1986.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..eigensolvers.signs import extremes
from ..errors import ModelError, RequestError
from ..planning.blocks import Span, blocks_of
from ..planning.candidate_sizes import check_budget
from ..planning.memory import RUNTIME_BYTES
from ..preprocessing import unflatten
from ..preprocessing.sizes_for_planning import this_machine
from ..signals import safe_point
from ..storage.components import StoredRows
from ..units import counted, parse_bytes, whole_number
from .accuracy import check_variances, percent
from .components import ComponentsModel
from .images import ImageModel, ReconstructingModel
from .model import over
from .pca import PCAModel
from .score_map import ScoreMapModel
from .store import SAMPLE
from .subspace import PIECE, Subspace

TOLERANCE = 1e-10  # varimax stops when no entry of the rotation matrix changes by more in an iteration


@dataclass(frozen=True)
class RotatedSubspace(Subspace):
    """Orthonormal components, and the matrices that convert scores along them to scores along rotated ones, and back.

    `variance` is that of the rotated scores.

    Attributes
    ----------
    rotation : ndarray of shape (k, k)
        Matrix from scores along the components to scores along the rotated ones: ``scores @ rotation``.
    inverse_rotation : ndarray of shape (k, k)
        Inverse of `rotation`: the rotated components as combinations of the components.
    covariance : ndarray of shape (k, k)
        Covariance of the rotated scores.
    count : int
        Number of the first rotated components that rows are reconstructed from. Scores are always along all.
    """

    rotation: Float64 = field(kw_only=True)
    inverse_rotation: Float64 = field(kw_only=True)
    covariance: Float64 = field(kw_only=True)
    count: int = field(kw_only=True)

    @property
    def n_components(self) -> int:
        """Number of rotated components that rows are reconstructed from."""
        return self.count

    def first(self, count: int) -> Subspace:
        """Return the map that reconstructs from the first rotated components; each is a sum of all components."""
        return replace(self, count=min(count, self.count))

    def part_of_scores(self, rows: Array) -> Array:
        """Return what the features of this piece contribute to the scores; see `Subspace.part_of_scores`."""
        scores = super().part_of_scores(rows)
        return cast("Array", scores @ self.rotation.astype(scores.dtype))

    def _least_squares(self, rows: Array) -> Float64:
        return super()._least_squares(rows) @ self.rotation

    def coefficients(self, scores: Array) -> Array:
        """Return the coefficients of the components in rows, from scores along the first rotated ones."""
        kept = scores[:, : self.count]
        return cast("Array", kept @ self.inverse_rotation[: kept.shape[1]].astype(scores.dtype))

    def explained_squares(self, scores: Array) -> Float64:
        """Return squared lengths less squared errors, (m,), from scores along all; see `Subspace.explained_squares`."""
        # Coefficients in the orthonormal components: of the projection, and of what the reconstruction leaves of it.
        whole = scores @ self.inverse_rotation
        rest = scores[:, self.count :] @ self.inverse_rotation[self.count :]
        return cast("Float64", np.square(whole).sum(axis=1) - np.square(rest).sum(axis=1))

    def t2(self, rows: Array, scores: Array | None = None) -> Float64:
        """Return Hotelling's T2 of each row along the first components, whose scores can correlate; (m,), float64."""
        scores = (self.project(rows) if scores is None else scores)[:, : self.count].astype(np.float64)
        solved = np.linalg.solve(self.covariance[: self.count, : self.count], scores.T)
        return cast("Float64", np.einsum("ij,ji->i", scores, solved))

    def variance_left_out(self, count: int) -> float:
        """Return the variance along the components that reconstructions from the first `count` rotated ones lack."""
        rest = self.inverse_rotation[count:]
        return float(np.sum(self.covariance[count:, count:] * (rest @ rest.T)))


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RotatedPCAModel(ScoreMapModel, ReconstructingModel):
    """Principal components rotated to patterns with few large loadings.

    `pca` holds the components before rotation, and reconstructs samples from the same span. Over the fitted samples,
    scores have the variances `explained_variance`. Reconstructions from the first of several rotated components are the
    mean plus the sum of these, each times its score: no projections, as scores are of all together.

    Attributes
    ----------
    components : ndarray of shape (k, *sample_shape)
        Rotated components, of unit length, by descending variance; not orthogonal. The largest loading of each is
        positive. NaN outside the mask.
    explained_variance : ndarray of shape (k,)
        Sum of the squared loadings of each. With varimax, their sum is that of the variances of the components.
    correlation : ndarray of shape (k, k)
        Correlations of the scores of the fitted samples: the identity with varimax.
    matrix : ndarray of shape (k, k)
        Matrix from loadings (components times standard deviations) to rotated loadings: ``loadings @ matrix``.
    """

    kind: ClassVar[str] = "rotated-pca"
    prefix: ClassVar[str] = "rotated_"
    noun: ClassVar[str] = "rotated component"

    components: Array = field(metadata=over("rotated_component", *SAMPLE))
    explained_variance: Float64 = field(metadata=over("rotated_component"))
    correlation: Float64 = field(metadata=over("rotated_component", "rotated_other"))
    matrix: Float64 = field(metadata=over("rotated_from", "rotated_component"))

    @property
    def n_components(self) -> int:
        """Number of rotated components, k."""
        return len(self.explained_variance)

    @property
    def explained_variance_ratio(self) -> Float64:
        """Share of the total variance of each rotated component."""
        return self.explained_variance / self.pca.total_variance

    @property
    def subspace(self) -> RotatedSubspace:
        """Mean and components as plain rows of features, and the matrices that rotate scores."""
        subspace, deviations = self.pca.subspace.first(self.n_components), np.sqrt(self.explained_variance)
        loadings = self.matrix * np.sqrt(subspace.variance)[:, None]
        inverse: Float64 = (loadings / deviations).T
        return RotatedSubspace(
            **{**vars(subspace), "variance": self.explained_variance},
            rotation=cast("Float64", np.linalg.inv(inverse)),
            inverse_rotation=inverse,
            covariance=self.correlation * np.outer(deviations, deviations),
            count=self.n_components,
        )

    @property
    def shown(self) -> RotatedComponents:
        """The rotated components with their variances; see `Model.shown`."""
        unknown = np.full(self.n_components, np.nan)  # bounds are those of the components before rotation
        of_rotated = {
            "components": self.components,
            "explained_variance": self.explained_variance,
            "residual_bound": unknown,
            "angle_bound": unknown,
            "error_bound": unknown,
            "outside": None,
            "eigenvalues": None,
            "name": self.name,
        }
        shared = {entry.name: getattr(self.pca, entry.name) for entry in fields(ComponentsModel)}
        return RotatedComponents(**shared | of_rotated, rotated=self)

    def as_images(self) -> RotatedComponents:
        """Return the rotated components with their variances as those of a model to draw; see `Model.as_images`."""
        return self.shown

    def __repr__(self) -> str:
        ratio = float(self.explained_variance_ratio.sum())
        return (
            f"{type(self).__name__}({counted(self.n_components, 'component')} of {self.pca!r}, {ratio:.1%} of the "
            "variance)"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentence on the rotated components."""
        shares, most = self.explained_variance_ratio, np.abs(self.correlation - np.eye(self.n_components)).max()
        return (
            f"the first {self.n_components} components are rotated: they hold {percent(shares.sum())} of the variance, "
            f"the first {percent(shares[0])}, and correlations of scores are at most {most:.2g}",
        )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RotatedComponents(ImageModel):
    """Rotated components as those of a model to draw, and to examine samples by.

    Attributes
    ----------
    rotated : RotatedPCAModel
        Model that maps samples to scores.
    """

    kind: ClassVar[str] = RotatedPCAModel.kind
    noun: ClassVar[str] = RotatedPCAModel.noun

    rotated: RotatedPCAModel

    @property
    def subspace(self) -> Subspace:
        """The map of rows to rotated scores; see `Model.subspace`."""
        return self.rotated.subspace

    def weights_of(self, scores: Array) -> Array:
        """Return the scores: patterns are added up, each times its score; see `ComponentsModel.weights_of`."""
        return scores

    def variance_outside(self, counts: npt.NDArray[np.int64]) -> Float64:
        """Return the sum of the variances that reconstructions leave out; see `ComponentsModel.variance_outside`."""
        pca, subspace = self.rotated.pca, self.rotated.subspace
        outside = pca.total_variance - pca.explained_variance[: self.n_components].sum()
        return cast("Float64", outside + np.array([subspace.variance_left_out(count) for count in counts]))


def rotated(
    model: PCAModel, n_components: int | None, power: float, max_iterations: int, memory: int | str | None
) -> RotatedPCAModel:
    """Rotate the first components of a model; see `PCAModel.rotate`."""
    if not 1 <= power < np.inf:
        raise RequestError(f"power {power!r} is not a number of at least 1; use for example 4.")
    count = _checked_count(model, n_components, memory)
    rotation = _varimax(model, count, max_iterations)
    if power == 1:
        return _rotated_model(model, rotation)
    # Promax: the least squares fit of the loadings to their own powers, as in the appendix of Richman 1986.
    gram, target, largest = np.zeros((count, count)), np.zeros((count, count)), np.zeros(count)
    for normalized in _normalized_loadings(model, count):
        loadings = normalized @ rotation
        gram += loadings.T @ loadings
        target += loadings.T @ (loadings * np.abs(loadings) ** (power - 1))
        np.maximum(largest, np.abs(loadings).max(axis=0), out=largest)
    oblique = np.linalg.solve(gram, target / largest**power)
    oblique *= np.sqrt(np.diag(np.linalg.inv(oblique.T @ oblique)))  # scores of unit variance
    return _rotated_model(model, rotation @ oblique)


def _varimax(model: PCAModel, count: int, max_iterations: int) -> Float64:
    """Return the orthogonal matrix that maximizes the varimax criterion, (k, k)."""
    most = whole_number(max_iterations, "max_iterations", least=1, example="1000")
    gram, features = np.zeros((count, count)), model.n_features
    for normalized in _normalized_loadings(model, count):
        gram += normalized.T @ normalized
    rotation = np.eye(count)
    for _ in range(most):
        safe_point()
        cubes, squares = np.zeros((count, count)), np.zeros(count)
        for normalized in _normalized_loadings(model, count):
            rotated = normalized @ rotation
            cubes += normalized.T @ rotated**3
            squares += np.einsum("ij,ij->j", rotated, rotated)
        # The next rotation is the orthogonal polar factor of the criterion's gradient.
        left, _, right = np.linalg.svd(cubes - gram @ rotation * (squares / features))
        previous, rotation = rotation, left @ right
        if np.abs(rotation - previous).max() <= TOLERANCE:
            return cast("Float64", rotation)
    raise ModelError(
        f"varimax of the first {count} components of {model.name} did not converge in {counted(most, 'iteration')}; "
        f"allow more, such as max_iterations={10 * most}, or rotate fewer components (n_components={count - 1})."
    )


def _normalized_loadings(model: PCAModel, count: int) -> Iterator[Float64]:
    """Yield loadings of ranges of features, (features, k), each feature's scaled to unit length; 0 stays 0."""
    subspace = model.subspace.first(count)
    deviations = np.sqrt(subspace.variance)
    for _, piece in subspace.pieces():
        components = cast("Array", piece.components)
        for span in blocks_of(Span(0, components.shape[1]), max(1, PIECE // count)):
            loadings = components[:, slice(*span)].T * deviations
            lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
            yield np.divide(loadings, lengths, out=loadings, where=lengths > 0)


def _rotated_model(model: PCAModel, matrix: Float64) -> RotatedPCAModel:
    """Return the components of a model rotated by a matrix, in descending order of variance, with signs by the rule."""
    count = len(matrix)
    subspace = model.subspace.first(count)
    variance = np.square(matrix * np.sqrt(subspace.variance)[:, None]).sum(axis=0)
    order = np.argsort(-variance, kind="stable")  # stable, so that equal variances keep their order
    matrix, variance = matrix[:, order], variance[order]
    rows = np.empty((count, model.n_features), model.components.dtype)
    patterns = (matrix * np.sqrt(subspace.variance)[:, None] / np.sqrt(variance)).T
    for features, piece in subspace.pieces():
        for span in blocks_of(Span(0, features.size), max(1, PIECE // count)):
            columns = slice(features.start + span.start, features.start + span.stop)
            rows[:, columns] = patterns @ cast("Array", piece.components)[:, slice(*span)]
    signs = np.sign(extremes(rows))  # the largest loading of each component becomes positive
    rows *= signs[:, None]
    matrix = matrix * signs
    inverse = np.linalg.inv(matrix)
    return RotatedPCAModel.on(
        model,
        components=unflatten(rows, model.sample_shape, model.mask),
        explained_variance=variance,
        correlation=inverse @ inverse.T,
        matrix=matrix,
    )


def _checked_count(model: PCAModel, n_components: int | None, memory: int | str | None) -> int:
    """Return the number of components to rotate; refuse too few, null components and a budget that is too small."""
    count = model.count_of(n_components)
    if count < 2:
        raise RequestError(f"n_components={count} leaves nothing to rotate; give at least 2.")
    check_variances(model, count)
    itemsize = model.components.dtype.itemsize
    needed = (1 + (model.mask is not None)) * count * model.n_features * itemsize + RUNTIME_BYTES
    rows = model.subspace.components
    needed += rows.reading_bytes + rows.components.piece_bytes if isinstance(rows, StoredRows) else 0
    budget, source = this_machine().budget(parse_bytes(memory))
    subject = f"rotating {count} components of {model.n_features} features"
    check_budget(subject, lambda size: size >= needed, budget, source)
    return count
