"""Coordinates of an N-d array's axes, seen along the axes of a sample and along samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...storage.coordinate import Coordinate
from ..coordinates import plain
from .layout import Layout

# Coordinates of more values than this are left out: they would cost more memory than what is computed from them.
MOST_VALUES = 2**22
MOST_TEXTS = 2**18


def inner_coordinates(
    coordinates: Mapping[str, Coordinate], layout: Layout, dims: Sequence[str]
) -> dict[str, Coordinate]:
    """Coordinates of the axes that make one sample, cut as the layout takes them."""
    return {
        dims[axis]: coordinates[dims[axis]]._replace(values=coordinates[dims[axis]].values[layout.taken(axis)])
        for axis in (layout.inner if dims else ())
        if dims[axis] in coordinates
    }


def outer_coordinates(
    coordinates: Mapping[str, Coordinate], layout: Layout, dims: Sequence[str]
) -> dict[str, Coordinate]:
    """Coordinates of the axes flattened into samples, n values each: where there are several axes, repeated."""
    shape = layout.outer_shape
    found = {}
    places = {dims[axis]: place for place, axis in enumerate(layout.outer)} if dims else {}
    for name, coordinate in coordinates.items() if math.prod(shape) <= MOST_VALUES else ():
        place = places.get(coordinate.axis or name)
        if place is None:
            continue
        along = coordinate.values[layout.taken(layout.outer[place])]
        along = along.reshape([-1 if at == place else 1 for at in range(len(shape))])
        found[name] = Coordinate(np.broadcast_to(along, shape).reshape(-1), coordinate.attributes)
    return found


def object_coordinates(array: Any) -> dict[str, Coordinate]:
    """Coordinates that an `xarray.DataArray` has along one of its axes; none for other objects."""
    coords: Any = getattr(array, "coords", None)
    if not hasattr(coords, "items") or not hasattr(array, "dims"):
        return {}
    along = {str(name): coord for name, coord in coords.items() if len(coord.dims) == 1 and coord.size <= MOST_VALUES}
    found = {name: plain(coord.values, dict(coord.attrs), str(coord.dims[0])) for name, coord in along.items()}
    return {name: coordinate for name, coordinate in found.items() if coordinate is not None}


def object_attributes(array: Any) -> Mapping[str, Any]:
    """Return the attributes of an `xarray.DataArray`; none for other objects."""
    known = getattr(array, "attrs", {}) if hasattr(array, "coords") else {}
    return dict(known) if isinstance(known, Mapping) else {}
