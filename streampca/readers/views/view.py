"""`View`, a collection that delegates to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...storage.coordinate import Coordinate
from ..collection import Collection


class View(Collection):
    """A collection with the samples of `base`, one for one, in their order; subclasses override what differs."""

    def __init__(self, base: Collection) -> None:
        self.base = base
        self.source, self.shape, self.dtype, self.axes = base.source, base.shape, base.dtype, base.axes
        self.skipped, self.kept, self.labels, self.reading = base.skipped, base.kept, base.labels, base.reading
        self.sample_axis, self.samples_along = base.sample_axis, base.samples_along
        self.guessed_axes, self.array_axes = base.guessed_axes, base.array_axes
        self.compares_coordinates = base.compares_coordinates
        self.storage = replace(base.storage, fills=False, sparse=None)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Delegate to the base."""
        return self.base.attributes

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Delegate to the base."""
        return self.base.coordinates

    @property
    def series(self) -> Mapping[str, Any]:
        """Delegate to the base."""
        return self.base.series

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Delegate to the base."""
        return self.base.sample_coordinates()

    def where(self, index: int) -> str:
        """Delegate to the base."""
        return self.base.where(index)

    def named(self, index: int) -> str:
        """Delegate to the base."""
        return self.base.named(index)

    def paths(self) -> list[str]:
        """Delegate to the base."""
        return [*self.beside, *self.base.paths()]

    def sample_names(self) -> Sequence[str] | None:
        """Delegate to the base."""
        return self.base.sample_names()

    def sample_keys(self) -> npt.NDArray[np.int64] | None:
        """Delegate to the base."""
        return self.base.sample_keys()
