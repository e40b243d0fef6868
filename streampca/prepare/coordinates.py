"""Coordinates of a sample's axes, taken through the steps that change its pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..collection import Coordinate
from .preparation import Preparation

Array = npt.NDArray[Any]

LATITUDES = ("lat", "latitude")
DEGREES_NORTH = ("degrees_north", "degree_north", "degrees_N", "degree_N", "degreesN", "degreeN")  # CF 1.11, 4.1


def prepared_coordinates(
    preparation: Preparation, known: Mapping[str, Coordinate], axes: Sequence[str], raw_shape: tuple[int, ...]
) -> Mapping[str, Coordinate]:
    """Coordinates of prepared samples, by axis name; text and dates are left out where pixels are merged.

    Parameters
    ----------
    preparation : Preparation
        Of the samples.
    known : mapping of str to Coordinate
        Of raw samples.
    axes : sequence of str
        Names of a raw sample's axes, the first of them.
    raw_shape : tuple of int
        Of a raw sample.
    """
    made = {}
    for axis, name in enumerate(axes[: len(preparation.of_images.shape_of(raw_shape))]):
        if name in known:
            values = _prepared(preparation, axis, np.asarray(known[name].values), raw_shape)
            if values is not None:
                made[name] = Coordinate(values, known[name].attributes)
    return made


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


def resampled(values: Array, length: int) -> Array:
    """Values at the centres of `length` cells that cover as much as the cells of `values` do, read linearly."""
    if len(values) == 1:
        return np.repeat(values, length)
    centres = (np.arange(length) + 0.5) * len(values) / length - 0.5
    before = np.clip(np.floor(centres).astype(int), 0, len(values) - 2)  # the ends go on as they were
    share = centres - before
    between: Array = values[before] * (1 - share) + values[before + 1] * share
    return between


def is_latitude(name: str, coordinate: Coordinate) -> bool:
    """Whether a coordinate is a latitude in degrees, by its name or by what is said of it."""
    about = coordinate.attributes
    return name.lower() in LATITUDES or about.get("standard_name") == "latitude" or about.get("units") in DEGREES_NORTH
