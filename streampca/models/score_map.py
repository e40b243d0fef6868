"""`ScoreMapModel`: a model that contains principal components, and maps the scores along them to others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from .model import Model
from .pca import PCAModel


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ScoreMapModel(Model):
    """Principal components of a collection, and what was learned from the scores along them.

    A stored model holds the arrays of both in one group.

    Attributes
    ----------
    pca : PCAModel
        Principal components that samples are projected on first.
    """

    instead: ClassVar[str] = "use those that it contains: load_model(...).pca"

    pca: PCAModel

    @classmethod
    def on(cls, pca: PCAModel, **own: Any) -> Self:
        """Make a model of principal components, which describe the samples, and of other fields."""
        shared = {entry.name: getattr(pca, entry.name) for entry in fields(Model)}
        return cls(pca=replace(pca, statistic=None), **{**shared, **own})

    @classmethod
    def of_fields(cls, shared: Mapping[str, Any], own: Mapping[str, Any]) -> Self:
        """Make a model of stored fields; see `Model.of_fields`."""
        return cls.on(PCAModel(**shared), **own)

    @property
    def basis(self) -> PCAModel:
        """The principal components; see `Model.basis`."""
        return self.pca

    def as_images(self) -> PCAModel:
        """Return the principal components; see `Model.as_images`."""
        return self.pca

    def summary(self) -> dict[str, Any]:
        """The numbers as plain data, beside those of the principal components; None for what is not finite."""
        return {**self.pca.summary(), **super().summary()}
