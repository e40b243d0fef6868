"""`View`, a collection that delegates to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...storage.coordinate import Coordinate
from ..collection import Chunks, Collection
from ..opening_record import GuessedAxes


class View(Collection):
    """A collection with the samples of `base`, one for one, in their order; subclasses override what differs."""

    def __init__(self, base: Collection) -> None:
        self.base = base
        self.source, self.shape, self.dtype, self.axes = base.source, base.shape, base.dtype, base.axes
        self.skipped, self.kept, self.labels, self.reading = base.skipped, base.kept, base.labels, base.reading
        self.compares_coordinates = base.compares_coordinates

    @property
    def chunks(self) -> Chunks:
        """Delegate to the base."""
        return self.base.chunks

    @property
    def decode_bytes(self) -> int:
        """Delegate to the base."""
        return self.base.decode_bytes

    @property
    def converted_bytes(self) -> int:
        """Delegate to the base."""
        return self.base.converted_bytes

    @property
    def encoded(self) -> bool:
        """Delegate to the base."""
        return self.base.encoded

    @property
    def keeps(self) -> bool:
        """Delegate to the base."""
        return self.base.keeps

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Delegate to the base."""
        return self.base.attributes

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Delegate to the base."""
        return self.base.coordinates

    @property
    def sample_axis(self) -> str | None:
        """Delegate to the base."""
        return self.base.sample_axis

    @property
    def series(self) -> Mapping[str, Any]:
        """Delegate to the base."""
        return self.base.series

    @property
    def samples_along(self) -> tuple[str, ...]:
        """Delegate to the base."""
        return self.base.samples_along

    @property
    def guessed_axes(self) -> GuessedAxes | None:
        """Delegate to the base."""
        return self.base.guessed_axes

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
