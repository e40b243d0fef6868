"""Varimax and promax rotation of components: patterns of few large loadings that span what the components span.

References
----------
H. Kaiser, "The varimax criterion for analytic rotation in factor analysis", Psychometrika 23, 1958.
A. Hendrickson, P. White, "Promax: a quick method for rotation to oblique simple structure", British Journal of
Statistical Psychology 17, 1964.
M. Richman, "Rotation of principal components", Journal of Climatology 6, 1986.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from ..eigensolvers.signs import extremes
from ..errors import ModelError, RequestError
from ..planning.blocks import Span, blocks_of
from ..planning.budget import check_budget
from ..planning.memory import RUNTIME_BYTES
from ..preprocessing import unflatten
from ..preprocessing.sizes_for_planning import this_machine
from ..signals import safe_point
from ..storage.components import StoredRows
from ..units import counted, parse_bytes, whole_number
from .accuracy import check_variances, percent
from .images import InvertibleModel
from .model import over
from .pca import PCAModel
from .score_map import ScoreMapModel
from .store import SAMPLE
from .subspace import PIECE, Subspace

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

TOLERANCE = 1e-10  # of entries of the rotation matrix from one iteration to the next, at which varimax stops


@dataclass(frozen=True)
class RotatedSubspace(Subspace):
    """Orthonormal components, and the matrices that turn scores along them to those along rotated ones, and back.

    `variance` is that of the rotated scores.

    Attributes
    ----------
    forth : ndarray of shape (k, k)
        Scores along the components, times this, are those along the rotated ones.
    back : ndarray of shape (k, k)
        Its inverse: the rotated components by the components.
    """

    forth: Float64 = field(kw_only=True)
    back: Float64 = field(kw_only=True)

    def first(self, count: int) -> Subspace:
        """Return the subspace itself: each rotated component is a sum of all components."""
        return self

    def part_of_scores(self, rows: Array) -> Array:
        """Return the share of some features in the scores; see `Subspace.part_of_scores`."""
        scores = super().part_of_scores(rows)
        turned: Array = scores @ self.forth.astype(scores.dtype)
        return turned

    def _least_squares(self, rows: Array) -> Float64:
        return super()._least_squares(rows) @ self.forth

    def coefficients(self, scores: Array) -> Array:
        """Return the coefficients of the components in rows with scores along the first rotated ones."""
        turned: Array = scores @ self.back[: scores.shape[1]].astype(scores.dtype)
        return turned


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RotatedPCAModel(ScoreMapModel, InvertibleModel):
    """Principal components rotated to patterns of few large loadings, with what is needed to apply them to raw images.

    `pca` holds the components that were rotated, and reconstructs samples from the same span. Over the samples fitted,
    scores have the variances `explained_variance`.

    Attributes
    ----------
    components : ndarray of shape (k, *sample_shape)
        Rotated components, of unit length, by descending variance; not orthogonal. The largest loading of each is
        positive. NaN outside the mask.
    explained_variance : ndarray of shape (k,)
        Sum of each one's squared loadings. By varimax they add up to the variances of the components rotated.
    correlation : ndarray of shape (k, k)
        Correlations of the scores of the samples fitted: the identity by varimax.
    matrix : ndarray of shape (k, k)
        Loadings of the components, each times its standard deviation, times this are the rotated loadings.
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
    def n_scores(self) -> int:
        """Number of scores of a sample: one along each rotated component."""
        return self.n_components

    @property
    def explained_variance_ratio(self) -> Float64:
        """Share of the total variance of each rotated component."""
        return self.explained_variance / self.pca.total_variance

    @property
    def subspace(self) -> Subspace:
        """Mean and components as plain rows of features, and the matrices that rotate scores."""
        whole, deviations = self.pca.subspace.first(self.n_components), np.sqrt(self.explained_variance)
        loadings = self.matrix * np.sqrt(whole.variance)[:, None]
        back: Float64 = (loadings / deviations).T
        return RotatedSubspace(
            **{**vars(whole), "variance": self.explained_variance},
            forth=cast("Float64", np.linalg.inv(back)),
            back=back,
        )

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


def rotated(
    model: PCAModel, n_components: int | None, power: float, max_iterations: int, memory: int | str | None
) -> RotatedPCAModel:
    """Rotate the first components of a model; see `PCAModel.rotate`."""
    if not 1 <= power < np.inf:
        raise RequestError(f"power {power!r} is not a number of at least 1; use for example 4.")
    count = _checked(model, n_components, memory)
    turned = _varimax(model, count, max_iterations)
    if power == 1:
        return _rotated(model, turned)
    inner, target, most = np.zeros((count, count)), np.zeros((count, count)), np.zeros(count)
    for normalized in _normalized(model, count):
        loadings = normalized @ turned
        inner += loadings.T @ loadings
        target += loadings.T @ (loadings * np.abs(loadings) ** (power - 1))
        np.maximum(most, np.abs(loadings).max(axis=0), out=most)
    fitted = np.linalg.solve(inner, target / most**power)  # the least squares of Richman 1986, appendix
    fitted *= np.sqrt(np.diag(np.linalg.inv(fitted.T @ fitted)))  # scores of unit variance
    return _rotated(model, turned @ fitted)


def _varimax(model: PCAModel, count: int, max_iterations: int) -> Float64:
    """Return the orthogonal matrix that makes loadings simplest, (k, k)."""
    most = whole_number(max_iterations, "max_iterations", least=1, example="1000")
    inner, features = np.zeros((count, count)), model.n_features
    for normalized in _normalized(model, count):
        inner += normalized.T @ normalized
    turned = np.eye(count)
    for _ in range(most):
        safe_point()
        cubes, squares = np.zeros((count, count)), np.zeros(count)
        for normalized in _normalized(model, count):
            rotated = normalized @ turned
            cubes += normalized.T @ rotated**3
            squares += np.einsum("ij,ij->j", rotated, rotated)
        left, _, right = np.linalg.svd(cubes - inner @ turned * (squares / features))
        before, turned = turned, left @ right
        if np.abs(turned - before).max() <= TOLERANCE:
            return cast("Float64", turned)
    raise ModelError(
        f"varimax of the first {count} components of {model.name} did not converge in {counted(most, 'iteration')}; "
        f"allow more, such as max_iterations={10 * most}, or rotate fewer components (n_components={count - 1})."
    )


def _normalized(model: PCAModel, count: int) -> Iterator[Float64]:
    """Yield loadings of ranges of features, (features, k), each feature's of unit length; 0 of those that have none."""
    subspace = model.subspace.first(count)
    deviations = np.sqrt(subspace.variance)
    for _, piece in subspace.pieces():
        own = cast("Array", piece.components)
        for some in blocks_of(Span(0, own.shape[1]), max(1, PIECE // count)):
            loadings = own[:, slice(*some)].T * deviations
            lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
            yield np.divide(loadings, lengths, out=loadings, where=lengths > 0)


def _rotated(model: PCAModel, matrix: Float64) -> RotatedPCAModel:
    """Return the components of a model rotated by a matrix, which is put in order and its signs made those of all."""
    count = len(matrix)
    subspace = model.subspace.first(count)
    variance = np.square(matrix * np.sqrt(subspace.variance)[:, None]).sum(axis=0)
    order = np.argsort(-variance, kind="stable")
    matrix, variance = matrix[:, order], variance[order]
    rows = np.empty((count, model.n_features), model.components.dtype)
    patterns = (matrix * np.sqrt(subspace.variance)[:, None] / np.sqrt(variance)).T
    for features, piece in subspace.pieces():
        for some in blocks_of(Span(0, features.size), max(1, PIECE // count)):
            part = slice(features.start + some.start, features.start + some.stop)
            rows[:, part] = patterns @ cast("Array", piece.components)[:, slice(*some)]
    signs = np.sign(extremes(rows))
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


def _checked(model: PCAModel, n_components: int | None, memory: int | str | None) -> int:
    """Return how many components are rotated, or refuse them."""
    count = model.count_of(n_components)
    if count < 2:
        raise RequestError(f"n_components={count} leaves nothing to rotate; give at least 2.")
    check_variances(model, count)
    itemsize = model.components.dtype.itemsize
    needed = (1 + (model.mask is not None)) * count * model.n_features * itemsize + RUNTIME_BYTES
    rows = model.subspace.components
    needed += rows.reading_bytes + rows.components.piece_bytes if isinstance(rows, StoredRows) else 0
    budget, source = this_machine().budget(parse_bytes(memory))
    what = f"rotating {count} components of {model.n_features} features"
    check_budget(what, lambda size: size >= needed, budget, source)
    return count
