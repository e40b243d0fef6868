"""`Coordinate`: values along one axis of a collection or an output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy.typing as npt

Array = npt.NDArray[Any]


class Coordinate(NamedTuple):
    """Values along one axis, one an entry, and what the source says of them (``units`` and the like).

    `axis` names the axis where the coordinate is not called after it.
    """

    values: Array
    attributes: Mapping[str, Any] = {}
    axis: str = ""
