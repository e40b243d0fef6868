"""`ComponentsModel`: a mean and components with their variances, and the accuracy of these."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index as as_index
from typing import Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..errors import ModelError, RequestError
from ..kinds.opening import OpeningOptions
from ..storage.components import StoredComponents
from ..units import counted, format_shape
from .accuracy import null_directions, trust_of
from .model import Model, plain
from .store import PER_COMPONENT
from .subspace import Subspace, multiplied_there

NONE_CONTAINED = "fit with --pca-components (pca_components), or fit a model of kind 'pca'"  # instead of an embedding


class CountedModel(Model):
    """Model with a score for each of its components, of which the first can be used alone."""

    @property
    @abstractmethod
    def n_components(self) -> int:
        """Number of components, k."""

    @property
    def n_scores(self) -> int:
        """Number of scores of a sample: one along each component."""
        return self.n_components

    def count_of(self, request: int | None) -> int:
        """Return a requested number of components, all by default; refuse one outside 1 to k."""
        most = self.n_components
        try:
            count = most if request is None else as_index(request)
        except TypeError:
            count = 0
        if not min(1, most) <= count <= most:
            raise RequestError(
                f"n_components={request!r} is no whole number between 1 and {most}, what {self.name} has."
            )
        return count

    def _first(self, n_components: int | None, missing: str | None = None) -> Subspace:
        """Return the map of the first components, with a rule for missing values."""
        count, rule = self.count_of(n_components), self.rule_for(missing)
        subspace = replace(self.subspace, missing=rule, fills_in=self._can_fill_in)
        return subspace if n_components is None else subspace.first(count)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ComponentsModel(CountedModel):
    """Mean and components of a collection, on which samples are projected; `Model` has the attributes of all kinds.

    Attributes
    ----------
    components : ndarray or StoredComponents of shape (k, *sample_shape)
        Orthonormal rows, by descending variance; NaN outside the mask. In memory, or on disk if they are large (see
        `load`), and then read when they are sliced.
    mean : ndarray of shape sample_shape
        Mean of prepared samples, near 0 if means of groups were subtracted; NaN outside the mask.
    explained_variance, explained_variance_ratio, singular_values : ndarray of shape (k,)
        As in scikit-learn: variances divide by n - 1, ratios are of the exact total, singular values are of the
        centred data.
    residual_bound : ndarray of shape (k,)
        Bound on |C v - lambda v| / lambda for the stored component v and variance lambda, which holds for all
        components but for a probability of 1e-6; NaN where unknown. Some true variance is as near to lambda. For the
        first ``summary()["trust"]["leading"]`` components, it is the one of the same rank.
    angle_bound : ndarray of shape (k,)
        Bound on the angle (radians) to the true component; NaN where neighbouring variances lie too close.
    error_bound : ndarray of shape (k,)
        Bound on each variance's relative distance to some true variance, the sharpest that is known and at most
        `residual_bound`; NaN where unknown.
    outside : float or None
        Bound on the variance of any direction outside the components, which holds but for a probability of 1e-6; None
        if not measured.
    eigenvalues : ndarray or None
        All variances of the collection, descending, if known.
    total_variance : float
        Sum of the variances of all features.
    total_weight : float or None
        Sum of the samples' weights, which then replaces n_samples in all formulas; None without weights.
    """

    noun: ClassVar[str] = "component"
    about_components: ClassVar[str] = "principal components, orthonormal over the pixels"  # their name in a Dataset

    components: Array | StoredComponents
    mean: Float64
    explained_variance: Float64
    residual_bound: Float64
    angle_bound: Float64
    error_bound: Float64
    total_variance: float
    total_weight: float | None = None
    outside: float | None = None
    eigenvalues: Float64 | None = None

    @property
    def basis(self) -> ComponentsModel:
        """The model itself; see `Model.basis`."""
        return self

    @property
    def n_components(self) -> int:
        """Number of components, k."""
        return len(self.components)

    @property
    def variance_left(self) -> float:
        """Bound on the sum of the variances outside the components."""
        return float(self.total_variance - self.explained_variance.sum())

    @property
    def explained_variance_ratio(self) -> Float64:
        """Share of the total variance along each component."""
        return self.explained_variance / self.total_variance

    @property
    def singular_values(self) -> Float64:
        """Singular values of the centred data, sqrt((n - 1) variance); samples count by their weights."""
        return np.sqrt(((self.total_weight or self.n_samples) - 1) * self.explained_variance)

    @property
    def about_axes(self) -> str:
        """Sentence that describes axes other than principal components; empty for principal components."""
        return ""

    def __repr__(self) -> str:
        ratio = float(self.explained_variance_ratio.sum())
        shape = self.sample_shape
        space = f"{format_shape(shape)} samples" if len(shape) > 1 else counted(shape[0], "feature")
        return (
            f"{type(self).__name__}({counted(self.n_components, 'component')} of {space}, {ratio:.1%} of the variance "
            f"of {self.n_samples} samples)"
        )

    def summary(self) -> dict[str, Any]:
        """Return the numbers and their accuracy as plain data, None for values that are not finite."""
        return {
            **super().summary(),
            "n_components": self.n_components,
            "total_variance": self.total_variance,
            **{name: plain(getattr(self, name)) for name in PER_COMPONENT},
            "trust": trust_of(self).to_json(),
        }

    @property
    def subspace(self) -> Subspace:
        """Mean and components as plain rows of features, without names."""
        components, features = self.components, self.frame.features
        rows = components.rows if isinstance(components, StoredComponents) else features(components)
        return Subspace(features(self.mean[None])[0], rows, self._divided_by, self.rule_for(None))

    @cached_property
    def _divided_by(self) -> Float64:
        """Variances by which whitening and T2 divide: those within rounding are 0, which they leave out."""
        return np.where(null_directions(self), 0.0, self.explained_variance)

    def count_of(self, request: int | None) -> int:
        """Return a requested number of components, all by default; refuse one outside 1 to k.

        Refuse a model of none, too, which an embedding by all features contains: unlike that of a fit, it has no plan.
        """
        if not self.n_components and "plan" not in self.provenance:
            raise ModelError(
                f"{self.name} has no principal components, as its samples are compared by all features; "
                f"{NONE_CONTAINED}."
            )
        return super().count_of(request)

    def _map(self, missing: str | None, whiten: bool) -> Subspace:
        self.count_of(None)
        return super()._map(missing, whiten)

    def weights_of(self, scores: Array) -> Array:
        """Return the weights of `components` in reconstructions from scores along the first of them, (m, j)."""
        return self.subspace.coefficients(scores)

    def variance_outside(self, counts: npt.NDArray[np.int64]) -> Float64:
        """Return the sum of the variances that reconstructions from so many components leave out, for each count."""
        left_out: Float64 = self.total_variance - np.cumsum(self.explained_variance)[counts - 1]
        return left_out

    def reconstruction_error(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        missing: str | None = None,
        device: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Return the squared distance between each prepared sample and its reconstruction, shape (n,), float64.

        The distance is over features as analysed: inside the mask, scaled and normalized. Its mean over the fitted
        samples is (n - 1)/n times the sum of the variances outside the components.
        """
        subspace = multiplied_there(self._first(n_components, missing), device)
        return self.number_of_each(
            samples, subspace.squared_error, "reconstruction_error", missing=subspace.missing, **opening
        )

    def hotelling_t2(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        missing: str | None = None,
        device: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Return Hotelling's T2 of each sample, shape (n,), float64: its squared distance along the components.

        The sum of squared scores, each over its component's variance, without components whose variance is rounding.
        Its mean over the fitted samples is (n - 1)/n times the number of components. `reconstruction_error` measures
        the distance from the components.
        """
        subspace = multiplied_there(self._first(n_components, missing), device)
        return self.number_of_each(samples, subspace.t2, "hotelling_t2", missing=subspace.missing, **opening)
