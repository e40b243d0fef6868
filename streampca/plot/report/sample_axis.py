"""Axis of the samples: dates or another coordinate, and the names that it gives them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ...arrays import Array
from ...readers.collection import Collection
from ...readers.coordinates import plain
from ...readers.dates import dates_of


@dataclass(frozen=True)
class SampleAxis:
    """Positions of the samples of a collection along a coordinate.

    Attributes
    ----------
    label : str
        Name of the coordinate, with the units of numbers.
    values : ndarray of shape (n,)
        Numbers, texts, or dates as datetime64.
    """

    label: str
    values: Array

    @property
    def is_text(self) -> bool:
        """True if the values are names, along which samples cannot be drawn."""
        return self.values.dtype.kind == "U"

    @cached_property
    def _unit(self) -> Literal["D", "m"]:
        """Unit of written dates: days, or minutes if dates have times."""
        return "D" if (self.values == self.values.astype("datetime64[D]")).all() else "m"

    def name(self, position: int) -> str:
        """Return the name of a sample by the axis: its date, text, or number."""
        value = self.values[position]
        if self.values.dtype.kind == "M":
            return str(np.datetime_as_string(np.datetime64(value), unit=self._unit)).replace("T", " ")
        return str(value) if self.is_text else f"{self.label} {value:g}"


def sample_axis_of(raw: Collection) -> SampleAxis | None:
    """Return the axis of a collection: its dates, otherwise a coordinate of its samples; None if it has neither."""
    coordinates, axis = raw.sample_coordinates(), raw.sample_axis
    dates = dates_of(coordinates, axis, None)
    # Dates take precedence over other coordinates.
    if dates is not None and (moments := dates.moments) is not None:
        return SampleAxis("date", moments)
    if axis is None or axis not in coordinates:
        return None
    coordinate = plain(coordinates[axis].values, coordinates[axis].attributes)
    if coordinate is None or coordinate.values.ndim != 1 or coordinate.values.dtype.kind not in "iufU":
        return None
    units = coordinate.attributes.get("units")
    return SampleAxis(f"{axis} ({units})" if units else axis, coordinate.values)
