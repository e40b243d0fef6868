"""Supervised models: two kinds of supervised components, Fisher's discriminants, sliced inverse regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt
from scipy.linalg import qr

from ..arrays import Array, Float64
from ..kinds.opening import OpeningOptions
from ..preprocessing.feature_map import KernelMap
from ..preprocessing.kernels import Kernel
from ..storage.components import StoredComponents
from .accuracy import percent
from .images import ImageModel
from .kernel_pca import repr_in_features
from .model import over
from .store import SAMPLE
from .subspace import Subspace

LISTED = 4  # largest number of values listed in a sentence


class SupervisedModel(ImageModel):
    """Axes that were learned from samples and a target."""

    about_components: ClassVar[str] = "axes of unit length"

    @property
    def classes(self) -> npt.NDArray[Any] | None:
        """Labels of the target, or lower ends of its slices, ascending; None for a target of numbers."""
        classes = (self.provenance.get("target") or {}).get("classes")
        return None if classes is None else np.array(classes)

    @property
    def _target_in_words(self) -> str:
        """Description of the target for sentences."""
        classes = self.classes
        return "a target of numbers" if classes is None else f"{len(classes)} classes"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SupervisedPCAModel(SupervisedModel):
    """Supervised PCA by dependence: orthonormal axes along which samples depend most on the target.

    With a kernel the axes lie in its feature space: `components` and `mean`, (k, q) and (q,), and the results of
    `reconstruct` and `inverse_transform` refer to the q features that represent it.

    `components` are in the order of `dependence`; `explained_variance`, the variances along them, is not sorted. Error
    bounds are NaN: none is known.

    Attributes
    ----------
    dependence : ndarray of shape (k,)
        Contribution of each axis to the Hilbert-Schmidt independence criterion of samples and target: eigenvalues of
        X^T H B H X over (n - 1)^2, descending, in squared units of the samples times those of the target.
    total_dependence : float
        The criterion: the sum of the contributions of all axes, including those not kept.
    """

    kind = "supervised-pca"

    dependence: Float64 = field(metadata=over("component"))
    total_dependence: float = field(metadata=over())

    @property
    def kernel(self) -> Kernel | None:
        """The kernel in whose feature space the axes lie, with its estimated parameters; None without a kernel."""
        mapping = self.preparation.mapped
        return None if mapping is None else mapping.kernel

    def __repr__(self) -> str:
        mapping = self.preparation.mapped
        return super().__repr__() if mapping is None else repr_in_features(self, mapping)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentence on the features that represent the kernel."""
        mapping, request = self.preparation.mapped, self.preparation.feature_map
        if mapping is None or request is None:
            return ()
        features = f"{mapping.n_features} random features"
        if isinstance(mapping, KernelMap):
            features = f"{'all ' if request.is_exact else ''}{len(mapping.landmarks)} samples as landmarks"
        error = "exact" if request.is_exact else "how far the axes are from those of all samples is not estimated"
        return (f"kernel {mapping.kernel} by {features}: {error}",)

    @property
    def about_axes(self) -> str:
        """Sentence that describes the axes, with their shares in the dependence of samples on the target."""
        shares = _listed([percent(share) for share in self.dependence_ratio])
        return (
            f"axes of supervised PCA, of {self._target_in_words}, by descending share in the dependence on it "
            f"({shares}); no bound on their error is known"
        )

    @property
    def dependence_ratio(self) -> Float64:
        """Share of each axis in the criterion, shape (k,)."""
        return self.dependence / self.total_dependence


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class DiscriminantModel(SupervisedModel):
    """Fisher's discriminants: axes along which class means lie furthest apart, relative to the scatter within classes.

    `components` have unit length and are not orthogonal; scores along them are uncorrelated within classes (without
    shrinkage). `reconstruct` and `inverse_transform` project on the span of the axes. `explained_variance` is the
    variance that each axis adds to that in the span of the axes before it, so that the shares add up. Error bounds are
    NaN: none is known.

    Attributes
    ----------
    separation : ndarray of shape (k,)
        Scatter of the means along each axis over that within classes, descending.
    total_separation : float
        Sum of the separations of all axes, including those not kept.
    score_variance : ndarray of shape (k,)
        Variance of the scores along each axis; ``whiten=True`` divides scores by its root.
    scaling : ndarray of shape (k,)
        Factors that give scores a variance of 1 within classes, and make them scikit-learn's up to sign and shift.
    """

    kind = "fisher-discriminant"

    separation: Float64 = field(metadata=over("component"))
    total_separation: float = field(metadata=over())
    score_variance: Float64 = field(metadata=over("component"))
    scaling: Float64 = field(metadata=over("component"))

    @property
    def separation_ratio(self) -> Float64:
        """Share of each axis in the total separation, shape (k,)."""
        return self.separation / self.total_separation

    @property
    def subspace(self) -> Subspace:
        """Mean and axes as plain rows of features, with their triangular factor."""
        return replace(super().subspace, variance=self.score_variance, triangle=self._triangle)

    @cached_property
    def _triangle(self) -> Float64:
        """Upper triangular factor R of axes^T = Q R."""
        axes = np.asarray(self.components) if isinstance(self.components, StoredComponents) else self.components
        rows = self.frame.features(axes).astype(np.float64)
        # The axes are not orthogonal: reconstruction projects on their span by the orthonormal factor.
        triangle: Float64 = qr(rows.T, mode="r", check_finite=False)[0][: len(rows)]
        return triangle

    @property
    def about_axes(self) -> str:
        """Sentence that describes the axes, with the separation of the classes along them."""
        separations = _listed([f"{value:.3g}" for value in self.separation])
        return (
            f"Fisher's discriminants of {self._target_in_words}, whose means vary along them so many times as much as "
            f"samples within classes: {separations}; no bound on their error is known"
        )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class InverseRegressionModel(DiscriminantModel):
    """Directions of sliced inverse regression: the target depends on samples through scores along them.

    The model is a `DiscriminantModel` with slices of the sorted target as classes, and the scatter of all samples in
    place of that within classes: `separation` lies between 0 and 1, and `scaling` gives scores a variance of 1.
    """

    kind = "sliced-inverse-regression"

    @property
    def about_axes(self) -> str:
        """Sentence that describes the axes, with the share of the variance along them that lies between slices."""
        shares = _listed([percent(value) for value in self.separation])
        return (
            f"directions of sliced inverse regression; between slices of the target lies so much of the variance along "
            f"them: {shares}; no bound on their error is known"
        )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SupervisedComponentsModel(SupervisedModel):
    """Supervised principal components: those of the features that correlate with a numeric target, which they predict.

    `components` are orthonormal, by descending variance, and 0 in features that were not kept. Scores along them are
    uncorrelated. Error bounds are NaN: none is known.

    Attributes
    ----------
    correlation : ndarray of shape sample_shape
        Correlation of each feature with the target, 0 where it is constant, NaN outside the mask.
    kept : ndarray of bool, shape sample_shape
        Features from which the components were computed.
    threshold : float
        Smallest |correlation| of the features kept.
    coefficients : ndarray of shape (k,)
        Change of the target with the score along each component.
    target_mean : float
        Mean of the target.
    target_share : ndarray of shape (k,)
        Share of the target's variance that each component explains; they add up to R^2 of the fitted samples.
    tried_features : ndarray of int, shape (m,)
        Numbers of features that were compared by cross-validation, ascending; empty if `threshold` was an option.
    cv_error : ndarray of shape (m,)
        Squared error of predicting left-out samples from that many features, over that of the mean: 1 - R^2.
    """

    kind = "supervised-principal-components"

    correlation: Float64 = field(metadata=over(*SAMPLE))
    kept: npt.NDArray[np.bool_] = field(metadata=over(*SAMPLE))
    threshold: float = field(metadata=over())
    coefficients: Float64 = field(metadata=over("component"))
    target_mean: float = field(metadata=over())
    target_share: Float64 = field(metadata=over("component"))
    tried_features: npt.NDArray[np.int64] = field(metadata=over("trial"))
    cv_error: Float64 = field(metadata=over("trial"))

    @property
    def n_kept(self) -> int:
        """Number of features kept."""
        return int(np.count_nonzero(self.kept))

    @property
    def about_axes(self) -> str:
        """Sentence that describes the components, with the share of the target's variance that they explain."""
        share = percent(float(self.target_share.sum()))
        left_out = f", and {percent(1 - float(self.cv_error.min()))} in left-out samples" if len(self.cv_error) else ""
        return (
            f"supervised principal components of {self.n_kept} of {self.n_features} features, whose correlation with "
            f"the target is at least {self.threshold:.3g} either way; they explain {share} of its variance{left_out}; "
            "no bound on their error is known"
        )

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain data, without those of single features; see `Model.summary`."""
        return {**super().summary(), "n_kept": self.n_kept}

    def predict(self, samples: Any, /, *, missing: str | None = None, **opening: Unpack[OpeningOptions]) -> Any:
        """Predict the target of each sample, shape (n,), float64, by linear regression on its scores.

        Parameters
        ----------
        samples, missing
            As for `transform`.
        **opening
            As for `transform`.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n,)
            Predictions, at once or lazily as by `transform`. For a target of two labels, the first of `classes` is 0
            and the second 1.
        """
        subspace = self._first(None, missing)
        function = partial(_predictions, subspace, self.coefficients, self.target_mean)
        return self.number_of_each(samples, function, "prediction", missing=subspace.missing, **opening)


def _predictions(subspace: Subspace, coefficients: Float64, mean: float, rows: Array) -> Float64:
    """Return the target's mean plus the scores of rows times coefficients."""
    predictions: Float64 = subspace.project(rows).astype(np.float64) @ coefficients + mean
    return predictions


def _listed(values: Sequence[str]) -> str:
    """Return the first few values as a list in a sentence."""
    return ", ".join(values[:LISTED]) + (" ..." if len(values) > LISTED else "")
