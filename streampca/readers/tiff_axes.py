"""Positions along the axes of a TIFF file, and names of its channels, from metadata of ImageJ, OME and GeoTIFF.

References: https://docs.openmicroscopy.org/ome-model (Pixels, Channel) and https://imagej.net/ij/docs/guide (section
26, properties). Resolution tags of other files describe prints, and are ignored.
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
    coordinates: dict[str, Coordinate] = {}
    for name, length in zip(dims, shape, strict=True):
        coordinate = scalings[name].coordinate(length) if name in scalings else None
        if coordinate is not None and np.isfinite(coordinate.values).all():
            coordinates[name] = coordinate
        elif name == "c" and len(channels) == length:
            coordinates[name] = Coordinate(np.array(channels, np.str_))
    return coordinates


def check_place(
    place: Georeference | None, name: str, common: Georeference | None, common_name: str, shape: Sequence[int]
) -> None:
    """Refuse an image with another georeference than the common one; an image without one passes.

    Raises
    ------
    SourceError
        If positions differ; it names both images.
    """
    if place is None or common is None or place == common:
        return
    grids = CommonGrid(SourceError, fixed=(0, 1))
    grids.add(Grid(SIDES, common.coordinates(*shape[:2])), common_name)
    grids.add(Grid(SIDES, place.coordinates(*shape[:2])), name)


def _scaling(size: object, unit: str | None, offset: object = 0.0) -> AxisScaling:
    """Return the scaling of an axis of pixels of this size; a size of 0 or less is unknown."""
    number = float(str(size))
    return AxisScaling(number, float(str(offset)) * number, unit) if 0 < number < np.inf else AxisScaling()


def _of_ome(text: str) -> tuple[Mapping[str, AxisScaling], tuple[str, ...]]:
    """Return the scalings of axes and the names of channels of the first image in OME-XML."""
    root = ElementTree.fromstring(text)  # noqa: S314 - tifffile has parsed it in the same way
    pixels = root.find(".//{*}Image/{*}Pixels")
    if pixels is None:
        return {}, ()
    scalings = {}
    for letter in "XYZ":
        name = f"PhysicalSize{letter}"
        if name in pixels.attrib:
            unit = unit_name(pixels.get(f"{name}Unit", "µm"))
            scalings[letter.lower()] = _scaling(pixels.attrib[name], unit)
    if "TimeIncrement" in pixels.attrib:
        scalings["t"] = _scaling(pixels.attrib["TimeIncrement"], unit_name(pixels.get("TimeIncrementUnit", "s")))
    return scalings, distinct([channel.get("Name") for channel in pixels.findall("{*}Channel")])


def _of_imagej(
    tiff: Any, dims: Sequence[str], shape: Sequence[int]
) -> tuple[Mapping[str, AxisScaling], tuple[str, ...]]:
    """Return the scalings of axes and the names of channels from ImageJ's metadata; sizes need a unit."""
    about = tiff.imagej_metadata if tiff.is_imagej else None
    if not about:
        return {}, ()
    scalings, unit = {}, unit_name(str(about.get("unit", "")))
    if unit is not None:
        for name, code, origin in (("x", _X_RESOLUTION, "xorigin"), ("y", _Y_RESOLUTION, "yorigin")):
            pixels, units = tiff.pages.first.tags.valueof(code, default=(0, 1))
            if pixels:
                scalings[name] = _scaling(units / pixels, unit, -float(about.get(origin, 0)))
        if "spacing" in about:
            scalings["z"] = _scaling(abs(float(about["spacing"])), unit)
    if "finterval" in about:
        scalings["t"] = _scaling(about["finterval"], "second")
    return scalings, _labelled_channels(about.get("Labels"), dims, shape)


def _labelled_channels(labels: Any, dims: Sequence[str], shape: Sequence[int]) -> tuple[str, ...]:
    """Return a label for each channel, if its planes have the same label in all frames and slices."""
    leading = tuple(shape[: list(dims).index("y")])
    if "c" not in dims[: len(leading)] or not isinstance(labels, list) or len(labels) != np.prod(leading):
        return ()
    by_channel = np.moveaxis(np.array(labels, np.str_).reshape(leading), list(dims).index("c"), 0)
    of_channel = by_channel.reshape(len(by_channel), -1)
    return distinct([str(labels[0]) for labels in of_channel]) if (of_channel == of_channel[:, :1]).all() else ()
