"""Sizes of pixels and names of channels along the axes of images, from coordinates to the metadata of image formats.

Units have the names of OME-Zarr (https://ngff.openmicroscopy.org/0.5, axes), which are those of UDUNITS. OME-TIFF and
ImageJ use abbreviations (https://docs.openmicroscopy.org/ome-model, UnitsLength and UnitsTime).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .coordinate import Coordinate
from .georeference import BAND

LENGTHS = {
    "picometer": "pm",
    "nanometer": "nm",
    "micrometer": "µm",
    "millimeter": "mm",
    "centimeter": "cm",
    "meter": "m",
    "kilometer": "km",
    "inch": "in",
}
TIMES = {
    "nanosecond": "ns",
    "microsecond": "µs",
    "millisecond": "ms",
    "second": "s",
    "minute": "min",
    "hour": "h",
    "day": "d",
}
_METERS = {
    "picometer": 1e-12,
    "nanometer": 1e-9,
    "micrometer": 1e-6,
    "millimeter": 1e-3,
    "centimeter": 1e-2,
    "meter": 1.0,
    "kilometer": 1e3,
    "inch": 0.0254,
}
# Other abbreviations: those of ImageJ, and with the Greek letter in place of the micro sign.
_OTHER = {"micron": "micrometer", "microns": "micrometer", "um": "micrometer", "μm": "micrometer", "sec": "second"}
_OTHER |= {"μs": "microsecond", "us": "microsecond"}
# Names of the axis of colours in various formats, in lower case.
_COLOUR = {"c", "s", "channel", "channels", "colour", "color", "rgb", "rgba"}
_STEP_TOLERANCE = 1e-3  # relative difference of equal steps, as coordinates are often stored as float32


class AxisScaling(NamedTuple):
    """Positions along an axis: entry i lies at ``scale * i + offset``, in `unit`."""

    scale: float = 1.0
    offset: float = 0.0
    unit: str | None = None

    def coordinate(self, length: int) -> Coordinate | None:
        """Return the coordinates of an axis; None if they equal the numbers of the entries."""
        if self == AxisScaling():
            return None
        return Coordinate(self.scale * np.arange(length) + self.offset, {"units": self.unit} if self.unit else {})


def is_colour(name: str) -> bool:
    """Return whether a name is one of the axis of colours."""
    return name.lower() in _COLOUR


def holds_channels(name: str) -> bool:
    """Return whether values along an axis belong to one pixel: colours, or bands of a scene."""
    return is_colour(name) or name == BAND


def unit_name(text: str) -> str | None:
    """Return the full name of a unit of length or time; None for any other text."""
    # ImageJ writes the micro sign as an escape sequence.
    text = text.strip().replace("\\u00B5", "µ")
    symbols = {symbol: name for name, symbol in {**LENGTHS, **TIMES}.items()}
    # British spelling, plural and other abbreviations.
    lower = text.lower().replace("metre", "meter")
    candidates = (symbols.get(text), lower, lower.removesuffix("s"), _OTHER.get(lower))
    return next((name for name in candidates if name in LENGTHS or name in TIMES), None)


def pixel_sizes(dims: Sequence[str], coordinates: Mapping[str, Coordinate]) -> dict[str, AxisScaling]:
    """Return the sizes of pixels along the axes with equally spaced numbers as coordinates."""
    sizes = {}
    for name in dims:
        coordinate = coordinates.get(name)
        if coordinate is None or coordinate.along(name) != (name,):
            continue
        values, units = np.asarray(coordinate.values), coordinate.attributes.get("units")
        steps = np.diff(values.astype(np.float64)) if values.dtype.kind in "iuf" else np.empty(0)
        if not len(steps) or not np.isfinite(steps).all() or steps[0] == 0:
            continue
        if np.abs(steps - steps.mean()).max() <= _STEP_TOLERANCE * abs(steps.mean()):
            unit = unit_name(units) if isinstance(units, str) else None
            sizes[name] = AxisScaling(float(steps.mean()), float(values[0]), unit)
    return sizes


def channel_names(name: str, coordinates: Mapping[str, Coordinate]) -> list[str] | None:
    """Return the texts along an axis; None if it has none."""
    values = np.asarray(coordinates[name].values) if name in coordinates else np.empty(0)
    return [str(text) for text in values] if values.dtype.kind == "U" and values.ndim == 1 else None


def ome_sizes(sizes: Mapping[str, AxisScaling]) -> dict[str, Any]:
    """Return attributes of ``Pixels`` in OME-XML, given sizes along X, Y, Z and T."""
    attributes: dict[str, Any] = {}
    for letter, size in sizes.items():
        units, name = (TIMES, "TimeIncrement") if letter == "T" else (LENGTHS, f"PhysicalSize{letter}")
        if size.unit in units:  # otherwise OME's default unit would be wrong
            attributes |= {name: abs(size.scale), f"{name}Unit": units[size.unit]}
    return attributes


def imagej_sizes(sizes: Mapping[str, AxisScaling]) -> tuple[dict[str, Any], tuple[float, float] | None]:
    """Return ImageJ's metadata, and the pixels per unit along X and Y for TIFF's tags of resolution.

    ImageJ has a single unit of length, here that of X; pixels without a length along both X and Y have no size.
    """
    unit = sizes["X"].unit if "X" in sizes else None
    if unit not in LENGTHS:
        return {}, None
    meters = {letter: abs(size.scale) * _METERS[size.unit] for letter, size in sizes.items() if size.unit in LENGTHS}
    steps = {letter: length / _METERS[unit] for letter, length in meters.items()}
    if "Y" not in steps:
        return {}, None
    about: dict[str, Any] = {
        "unit": LENGTHS[unit].replace("µ", "u")
    }  # the header is ASCII, and ImageJ displays um as µm
    if "Z" in steps:
        about["spacing"] = steps["Z"]
    if "T" in sizes and sizes["T"].unit == "second":
        about["finterval"] = abs(sizes["T"].scale)
    return about, (1 / steps["X"], 1 / steps["Y"])


def distinct(names: Sequence[Any]) -> tuple[str, ...]:
    """Return names of channels if they are different texts; otherwise none, as they would not distinguish channels."""
    texts = tuple(name for name in names if isinstance(name, str) and name.strip())
    return texts if len(set(texts)) == len(names) else ()
