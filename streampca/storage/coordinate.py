"""Values along axes of a collection or an output, or their description; names of attributes of packed numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array

# Attributes of packed numbers; they do not hold for the unpacked values.
PACKING = frozenset(
    (
        "scale_factor", "add_offset", "_FillValue", "missing_value", "valid_min", "valid_max", "valid_range",
        "_Unsigned",
    )
)  # fmt: skip


class Described(NamedTuple):
    """Attributes and axes of a `Coordinate` whose values were not read."""

    attributes: Mapping[str, Any] = {}
    axes: tuple[str, ...] = ()

    def along(self, name: str) -> tuple[str, ...]:
        """Return the names of the axes, given the name of the coordinate."""
        return self.axes or (name,)


class Coordinate(NamedTuple):
    """Values along one or several axes, and their attributes in the source, such as ``units``.

    `axes` names the axes in order; it is empty if the coordinate has the name of its only axis. A single value without
    an axis holds for everything.
    """

    values: Array
    attributes: Mapping[str, Any] = {}
    axes: tuple[str, ...] = ()

    def along(self, name: str) -> tuple[str, ...]:
        """Return the names of the axes, given the name of the coordinate."""
        # A dimension coordinate has its own name as axis, a scalar none.
        return self.axes or ((name,) if np.ndim(self.values) else ())
