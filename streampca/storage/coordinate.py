"""Values along axes of a collection or an output, or what describes them; names of attributes of packed numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Attributes of stored numbers that stand for other values, or for none; they do not hold for those values.
PACKING = frozenset(
    (
        "scale_factor", "add_offset", "_FillValue", "missing_value", "valid_min", "valid_max", "valid_range",
        "_Unsigned",
    )
)  # fmt: skip


class Described(NamedTuple):
    """Attributes of a coordinate whose values were not read, and its axes, as a `Coordinate` has them."""

    attributes: Mapping[str, Any] = {}
    axes: tuple[str, ...] = ()

    def along(self, name: str) -> tuple[str, ...]:
        """Return the names of the axes, given the name of the coordinate."""
        return self.axes or (name,)


class Coordinate(NamedTuple):
    """Values along one or several axes, one an entry, and their attributes in the source (``units`` and the like).

    `axes` names its axes in order; it is empty where the coordinate is named as its only axis. One value without an
    axis holds for everything.
    """

    values: Array
    attributes: Mapping[str, Any] = {}
    axes: tuple[str, ...] = ()

    def along(self, name: str) -> tuple[str, ...]:
        """Return the names of the axes, given the name of the coordinate."""
        return self.axes or ((name,) if np.ndim(self.values) else ())
