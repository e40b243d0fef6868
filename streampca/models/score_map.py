"""`ScoreMapModel`: base of models that contain principal components and map the scores along them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from .components import NONE_CONTAINED, ComponentsModel
from .model import Model
from .pca import PCAModel


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ScoreMapModel(Model):
    """Principal components of a collection, and a map that was learned from the scores along them.

    A stored model has the arrays of both in one group.

    Attributes
    ----------
    pca : PCAModel
        Principal components on which samples are projected first.
    """

    pca: PCAModel

    @classmethod
    def on(cls, pca: PCAModel, **kind_fields: Any) -> Self:
        """Make a model from principal components, whose description of the samples it shares, and other fields."""
        shared = {entry.name: getattr(pca, entry.name) for entry in fields(Model)}
        return cls(pca=replace(pca, statistic=None), **{**shared, **kind_fields})

    @classmethod
    def of_fields(cls, shared: Mapping[str, Any], kind_fields: Mapping[str, Any]) -> Self:
        """Make a model from stored fields; see `Model.of_fields`."""
        return cls.on(PCAModel(**shared), **kind_fields)

    @property
    def instead(self) -> str:
        """Remedy where principal components are required; see `Model.instead`."""
        if not self.pca.n_components:
            return NONE_CONTAINED
        return "use those that it contains (in Python: streampca.load(...).pca), or fit a model of kind 'pca'"

    @property
    def basis(self) -> PCAModel:
        """The principal components; see `Model.basis`."""
        return self.pca

    def as_images(self) -> ComponentsModel:
        """Return the principal components; see `Model.as_images`."""
        return self.pca

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain data, and under "pca" those of the principal components alone."""
        shared = Model.summary(self.pca)  # facts about the samples, which both have
        contained = {name: value for name, value in self.pca.summary().items() if name not in shared}
        return {**super().summary(), "pca": contained}
