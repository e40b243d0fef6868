"""`ComponentsModel`: a mean and components with their variances, and the accuracy of these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index as as_index
from typing import Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from ..errors import RequestError
from ..kinds.opening import OpeningOptions
from ..storage.components import StoredComponents
from ..units import counted, format_shape
from .accuracy import null_directions, trust_of
from .model import Model, plain
from .store import PER_COMPONENT
from .subspace import Subspace

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ComponentsModel(Model):
    """Mean and components of a collection, on which samples are projected; see `Model` for what all kinds have.

    Attributes
    ----------
    components : ndarray or StoredComponents of shape (k, *sample_shape)
        Orthonormal, by descending variance; NaN outside the mask. In memory, or on disk where they are large (see
        `load_model`), and then read when they are sliced.
    mean : ndarray of shape sample_shape
        Of prepared samples, near 0 where means of groups were taken off them; NaN outside the mask.
    explained_variance, explained_variance_ratio, singular_values : ndarray of shape (k,)
        As in scikit-learn: variances divide by n - 1, ratios are of the exact total, singular values are of the
        centred data.
    error_bound : ndarray of shape (k,)
        |C v - lambda v| / lambda is at most this, for the stored component v and variance lambda, except with a
        probability of 1e-6 over all components. NaN where unknown. Some true variance is then as near to lambda; it is
        that of the same rank where nothing larger was left outside: for ``summary()["trust"]["leading"]`` components.
    angle_bound : ndarray of shape (k,)
        The component is within this angle (radians) of the true one; NaN where neighbouring variances lie too close.
    variance_bound : ndarray of shape (k,) or None
        A bound on each variance's relative error that is sharper than `error_bound`, where one is known; of the
        distance to some true variance, too.
    outside : float or None
        No direction left outside has a larger variance, except with a probability of 1e-6; None where not measured.
    eigenvalues : ndarray or None
        All variances of the collection, descending, where known.
    total_variance : float
        Sum of the variances of all features.
    total_weight : float or None
        Sum of their weights, in place of n_samples wherever that counts; None where no weights were given.
    """

    noun: ClassVar[str] = "component"
    about_components: ClassVar[str] = "principal components, orthonormal over the pixels"  # their name in a Dataset

    components: Array | StoredComponents
    mean: Float64
    explained_variance: Float64
    error_bound: Float64
    angle_bound: Float64
    total_variance: float
    total_weight: float | None = None
    variance_bound: Float64 | None = None
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
    def n_scores(self) -> int:
        """Number of scores of a sample: one along each component."""
        return self.n_components

    @property
    def variance_left(self) -> float:
        """Bound on the sum of the variances that the components leave."""
        return float(self.total_variance - self.explained_variance.sum())

    @property
    def explained_variance_ratio(self) -> Float64:
        """Share of the total variance along each component."""
        return self.explained_variance / self.total_variance

    @property
    def singular_values(self) -> Float64:
        """Singular values of the centred data, each sample times the root of its weight: sqrt((n - 1) variance)."""
        return np.sqrt(((self.total_weight or self.n_samples) - 1) * self.explained_variance)

    @property
    def about_axes(self) -> str:
        """A sentence that describes components that are not principal ones; empty for principal ones."""
        return ""

    def __repr__(self) -> str:
        ratio = float(self.explained_variance_ratio.sum())
        shape = self.sample_shape
        of = f"{format_shape(shape)} samples" if len(shape) > 1 else counted(shape[0], "feature")
        return (
            f"{type(self).__name__}({counted(self.n_components, 'component')} of {of}, {ratio:.1%} of the variance of "
            f"{self.n_samples} samples)"
        )

    def summary(self) -> dict[str, Any]:
        """The numbers as plain data, and how far to trust them; None for what is not finite."""
        names = (*PER_COMPONENT, *(() if self.variance_bound is None else ("variance_bound",)))
        return {
            **super().summary(),
            "n_components": self.n_components,
            "total_variance": self.total_variance,
            **{name: plain(getattr(self, name)) for name in names},
            "trust": trust_of(self).to_json(),
        }

    @property
    def subspace(self) -> Subspace:
        """Mean and components as plain rows of features, without names."""
        own, features = self.components, self.frame.features
        rows = own.rows if isinstance(own, StoredComponents) else features(own)
        null = null_directions(self)
        variance = np.where(null, 0.0, self.explained_variance)
        return Subspace(features(self.mean[None])[0], rows, variance, self.rule_for(None))

    def count_of(self, asked: int | None) -> int:
        """Return a number of components as asked for, all by default; refuses what there is not."""
        most = self.n_components
        try:
            count = most if asked is None else as_index(asked)
        except TypeError:
            count = 0
        if not min(1, most) <= count <= most:
            raise RequestError(f"n_components={asked!r} is no whole number between 1 and {most}, what {self.name} has.")
        return count

    def _first(self, asked: int | None, missing: str | None = None) -> Subspace:
        subspace = replace(self.subspace, missing=self.rule_for(missing))
        return subspace if asked is None else subspace.first(self.count_of(asked))

    def reconstruction_error(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        missing: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Squared distance of each prepared sample from its reconstruction, shape (n,), float64.

        In features as analysed: inside the mask, scaled and normalized.
        Over the samples fitted it averages to (n - 1)/n times the sum of the variances left out.
        """
        subspace = self._first(n_components, missing)
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
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Hotelling's T2 of each sample, shape (n,), float64: how far out it lies along the components.

        The sum of its squared scores, each over its component's variance; components whose variance is rounding are
        left out. Over the samples fitted it averages to (n - 1)/n a component. What lies beside the components is
        `reconstruction_error`'s.
        """
        subspace = self._first(n_components, missing)
        return self.number_of_each(samples, subspace.t2, "hotelling_t2", missing=subspace.missing, **opening)
