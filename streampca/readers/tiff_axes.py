"""Positions along the axes of a TIFF file, and names of its channels, as ImageJ, OME and GeoTIFF keep them.

References: https://docs.openmicroscopy.org/ome-model (Pixels, Channel) and https://imagej.net/ij/docs/guide (section
26, properties). Resolution tags of other files are those of printers, and are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np

from ..errors import SourceError
from ..storage.coordinate import Coordinate
from ..storage.georeference import SIDES, Georeference
from ..storage.pixel_sizes import AxisScaling, distinct, unit_name
from .coordinates import CommonGrid, Grid

_X_RESOLUTION, _Y_RESOLUTION = 282, 283


def coordinates_of(tiff: Any, dims: Sequence[str], shape: Sequence[int]) -> dict[str, Coordinate]:
    """Return the coordinates of the axes `dims`, of lengths `shape`, of an open file."""
    try:
        scalings, channels = _of_ome(tiff.ome_metadata) if tiff.is_ome else _of_imagej(tiff, dims, shape)
    except (ElementTree.ParseError, LookupError, TypeError, ValueError, ArithmeticError):  # metadata are anyone's text
        return {}
    found: dict[str, Coordinate] = {}
    for name, length in zip(dims, shape, strict=True):
        each = scalings[name].coordinate(length) if name in scalings else None
        if each is not None and np.isfinite(each.values).all():
            found[name] = each
        elif name == "c" and len(channels) == length:
            found[name] = Coordinate(np.array(channels, np.str_))
    return found


def check_place(
    place: Georeference | None, name: str, common: Georeference | None, other: str, shape: Sequence[int]
) -> None:
    """Refuse an image that lies elsewhere than another one of the same shape; one that does not say where lies there.

    Raises
    ------
    SourceError
        Names both.
    """
    if place is None or common is None or place == common:
        return
    grids = CommonGrid(SourceError, fixed=(0, 1))
    grids.add(Grid(SIDES, common.coordinates(*shape[:2])), other)
    grids.add(Grid(SIDES, place.coordinates(*shape[:2])), name)


def _scaling(size: object, unit: str | None, offset: object = 0.0) -> AxisScaling:
    """Return positions of what lies so far apart; a size of nothing or less is not known."""
    number = float(str(size))
    return AxisScaling(number, float(str(offset)) * number, unit) if 0 < number < np.inf else AxisScaling()


def _of_ome(text: str) -> tuple[Mapping[str, AxisScaling], tuple[str, ...]]:
    """Return what OME-XML says of its first image."""
    root = ElementTree.fromstring(text)  # noqa: S314 - tifffile has parsed it in the same way
    pixels = root.find(".//{*}Image/{*}Pixels")
    if pixels is None:
        return {}, ()
    found = {}
    for letter in "XYZ":
        name = f"PhysicalSize{letter}"
        if name in pixels.attrib:
            unit = unit_name(pixels.get(f"{name}Unit", "µm"))
            found[letter.lower()] = _scaling(pixels.attrib[name], unit)
    if "TimeIncrement" in pixels.attrib:
        found["t"] = _scaling(pixels.attrib["TimeIncrement"], unit_name(pixels.get("TimeIncrementUnit", "s")))
    return found, distinct([channel.get("Name") for channel in pixels.findall("{*}Channel")])


def _of_imagej(
    tiff: Any, dims: Sequence[str], shape: Sequence[int]
) -> tuple[Mapping[str, AxisScaling], tuple[str, ...]]:
    """Return what ImageJ says; pixels without a unit have no size."""
    about = tiff.imagej_metadata if tiff.is_imagej else None
    if not about:
        return {}, ()
    found, unit = {}, unit_name(str(about.get("unit", "")))
    if unit is not None:
        for name, code, origin in (("x", _X_RESOLUTION, "xorigin"), ("y", _Y_RESOLUTION, "yorigin")):
            pixels, units = tiff.pages.first.tags.valueof(code, default=(0, 1))
            if pixels:
                found[name] = _scaling(units / pixels, unit, -float(about.get(origin, 0)))
        if "spacing" in about:
            found["z"] = _scaling(abs(float(about["spacing"])), unit)
    if "finterval" in about:
        found["t"] = _scaling(about["finterval"], "second")
    return found, _labelled_channels(about.get("Labels"), dims, shape)


def _labelled_channels(labels: Any, dims: Sequence[str], shape: Sequence[int]) -> tuple[str, ...]:
    """Return the labels of planes, where each channel has one of its own in all frames and slices."""
    leading = tuple(shape[: list(dims).index("y")])
    if "c" not in dims[: len(leading)] or not isinstance(labels, list) or len(labels) != np.prod(leading):
        return ()
    by_channel = np.moveaxis(np.array(labels, np.str_).reshape(leading), list(dims).index("c"), 0)
    of_channel = by_channel.reshape(len(by_channel), -1)
    return distinct([str(each[0]) for each in of_channel]) if (of_channel == of_channel[:, :1]).all() else ()
