"""`Coordinate`: values along one or several axes of a collection or an output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy.typing as npt

Array = npt.NDArray[Any]


class Coordinate(NamedTuple):
    """Values along one or several axes, one an entry, and what the source says of them (``units`` and the like).

    `axes` names its axes, in their order, where it is not called after its only one.
    """

    values: Array
    attributes: Mapping[str, Any] = {}
    axes: tuple[str, ...] = ()

    def along(self, name: str) -> tuple[str, ...]:
        """Return the names of the axes of a coordinate that has a name."""
        return self.axes or (name,)
