"""The axis that samples lie along: dates or another coordinate, and the name that it gives each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ...readers.collection import Array, Collection
from ...readers.coordinates import plain
from ...readers.dates import dates_of


@dataclass(frozen=True)
class SampleAxis:
    """Where the samples of a collection lie along a coordinate of theirs.

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
        """True where samples have names, and cannot be drawn along the axis."""
        return self.values.dtype.kind == "U"

    @cached_property
    def _unit(self) -> Literal["D", "m"]:
        """Unit that dates are written to: days, or minutes where there are any."""
        return "D" if (self.values == self.values.astype("datetime64[D]")).all() else "m"

    def name(self, position: int) -> str:
        """Return the name that the axis gives a sample: its date, text, or number."""
        value = self.values[position]
        if self.values.dtype.kind == "M":
            return str(np.datetime_as_string(np.datetime64(value), unit=self._unit)).replace("T", " ")
        return str(value) if self.is_text else f"{self.label} {value:g}"


def sample_axis_of(raw: Collection) -> SampleAxis | None:
    """Return the axis of a collection: its dates, else the coordinate of its samples; None where it has neither."""
    known, axis = raw.sample_coordinates(), raw.sample_axis
    dates = dates_of(known, axis, None)
    if dates is not None and (moments := dates.moments) is not None:
        return SampleAxis("date", moments)
    if axis is None or axis not in known:
        return None
    own = plain(known[axis].values, known[axis].attributes)
    if own is None or own.values.ndim != 1 or own.values.dtype.kind not in "iufU":
        return None
    units = own.attributes.get("units")
    return SampleAxis(f"{axis} ({units})" if units else axis, own.values)
