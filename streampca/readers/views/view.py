"""`View`, a collection that reads another one: all that is not said otherwise is as the other collection says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...storage.coordinate import Coordinate
from ..collection import Chunks, Collection
from ..opening_record import GuessedAxes


class View(Collection):
    """A collection whose samples are those of `base`, one for one, in their order."""

    def __init__(self, base: Collection) -> None:
        self.base = base
        self.source, self.shape, self.dtype, self.axes = base.source, base.shape, base.dtype, base.axes
        self.skipped, self.kept, self.labels, self.reading = base.skipped, base.kept, base.labels, base.reading
        self.compares_coordinates = base.compares_coordinates

    @property
    def chunks(self) -> Chunks:
        """Return that of the base."""
        return self.base.chunks

    @property
    def decode_bytes(self) -> int:
        """Return that of the base."""
        return self.base.decode_bytes

    @property
    def converted_bytes(self) -> int:
        """Return that of the base."""
        return self.base.converted_bytes

    @property
    def encoded(self) -> bool:
        """Return that of the base."""
        return self.base.encoded

    @property
    def keeps(self) -> bool:
        """Return that of the base."""
        return self.base.keeps

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Return that of the base."""
        return self.base.attributes

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Return that of the base."""
        return self.base.coordinates

    @property
    def sample_axis(self) -> str | None:
        """Return that of the base."""
        return self.base.sample_axis

    @property
    def series(self) -> Mapping[str, Any]:
        """Return that of the base."""
        return self.base.series

    @property
    def samples_along(self) -> tuple[str, ...]:
        """Return that of the base."""
        return self.base.samples_along

    @property
    def guessed_axes(self) -> GuessedAxes | None:
        """Return that of the base."""
        return self.base.guessed_axes

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return that of the base."""
        return self.base.sample_coordinates()

    def where(self, index: int) -> str:
        """Return that of the base."""
        return self.base.where(index)

    def named(self, index: int) -> str:
        """Return that of the base."""
        return self.base.named(index)

    def paths(self) -> list[str]:
        """Return that of the base."""
        return [*self.beside, *self.base.paths()]

    def sample_names(self) -> Sequence[str] | None:
        """Return that of the base."""
        return self.base.sample_names()

    def sample_keys(self) -> npt.NDArray[np.int64] | None:
        """Return that of the base."""
        return self.base.sample_keys()
