"""Coordinates of a sample's axes, taken through the steps that change its pixels, and compared with a model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import ModelError
from ..readers.collection import Array
from ..readers.coordinates import CommonGrid, Grid, Order, is_straight, order_of
from ..storage.coordinate import Coordinate
from .preparation import Preparation
from .resize import resampled

LATITUDES = ("lat", "latitude")
DEGREES_NORTH = ("degrees_north", "degree_north", "degrees_N", "degree_N", "degreesN", "degreeN")  # CF 1.11, 4.1


def prepared_coordinates(
    preparation: Preparation, known: Mapping[str, Coordinate], axes: Sequence[str], raw_shape: tuple[int, ...]
) -> Mapping[str, Coordinate]:
    """Coordinates of prepared samples, by axis name; text and dates are left out where pixels are merged."""
    made = {}
    for axis, name in enumerate(axes[: len(preparation.of_images.shape_of(raw_shape))]):
        if name in known:
            values = _prepared(preparation, axis, np.asarray(known[name].values), raw_shape)
            if values is not None:
                made[name] = Coordinate(values, known[name].attributes)
    return made


def raw_orders(
    preparation: Preparation, raw: Grid, raw_shape: tuple[int, ...], fitted: Grid, subject: str, model: str
) -> dict[int, Order]:
    """Find the order of raw samples' entries along each axis in which they are prepared to a model's grid.

    Along an axis whose pixels are cut or merged, entries are taken as they are or from the last to the first: of
    others, it is not known which raw pixels a prepared one was made of.

    Returns
    -------
    dict of int to ndarray of int
        See `orders_between`.
    """
    known, dims = dict(raw.coordinates), raw.dims[: len(fitted.dims)]
    changed = [axis for axis in range(len(dims)) if _changes(preparation, axis, raw_shape)]
    orders: dict[int, Order] = {}
    for axis in changed:
        name, their = dims[axis], fitted.coordinates.get(fitted.dims[axis])
        if name in known and their is not None:
            back = known[name]._replace(values=np.asarray(known[name].values)[::-1])
            straight, turned = (
                prepared_coordinates(preparation, {name: each}, dims, raw_shape).get(name)
                for each in (known[name], back)
            )
            if _agrees(turned, their, name) and not _agrees(straight, their, name):
                known[name], orders[axis] = back, np.arange(raw_shape[axis])[::-1]
    common = CommonGrid(ModelError, fixed=changed)
    common.add(fitted, model)
    return orders | common.add(Grid(dims, prepared_coordinates(preparation, known, dims, raw_shape)), subject)


def _agrees(one: Coordinate | None, other: Coordinate, name: str) -> bool:
    return one is not None and is_straight(order_of(one, other, name))


def _changes(preparation: Preparation, axis: int, raw_shape: tuple[int, ...]) -> bool:
    """Return whether pixels along an axis are cut or merged."""
    ranges = preparation.ranges(raw_shape)
    merged = axis < 2 and (preparation.resize is not None or preparation.bin > 1)
    return merged or (axis < len(ranges) and ranges[axis] != (0, raw_shape[axis]))


def _prepared(preparation: Preparation, axis: int, values: Array, raw_shape: tuple[int, ...]) -> Array | None:
    ranges = preparation.ranges(raw_shape)
    if axis < len(ranges):
        values = values[slice(*ranges[axis])]
    if axis > 1 or (preparation.resize is None and preparation.bin == 1):
        return values
    if values.dtype.kind not in "iuf":
        return None
    values = values.astype(np.float64)
    if preparation.resize is not None:
        values = resampled(values, preparation.resize[axis])
    whole = len(values) // preparation.bin * preparation.bin
    return values[:whole].reshape(-1, preparation.bin).mean(axis=1)  # type: ignore[no-any-return]


def is_latitude(name: str, coordinate: Coordinate) -> bool:
    """Return whether a coordinate is a latitude in degrees, by its name or by what is said of it."""
    about = coordinate.attributes
    return name.lower() in LATITUDES or about.get("standard_name") == "latitude" or about.get("units") in DEGREES_NORTH
