"""Sizes of pixels and names of channels along the axes of images, from coordinates to the metadata of image formats.

Units have the names of OME-Zarr (https://ngff.openmicroscopy.org/0.5, axes), which are those of UDUNITS; OME-TIFF and
ImageJ abbreviate them (https://docs.openmicroscopy.org/ome-model, UnitsLength and UnitsTime).
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
# Other texts for them: ImageJ's, and the micro sign that is a letter of Greek.
_OTHER = {"micron": "micrometer", "microns": "micrometer", "um": "micrometer", "μm": "micrometer", "sec": "second"}
_OTHER |= {"μs": "microsecond", "us": "microsecond"}
# Names under which formats store the axis of colours, in lower case.
_COLOUR = {"c", "s", "channel", "channels", "colour", "color", "rgb", "rgba"}
_STEP_TOLERANCE = 1e-3  # of a step: coordinates are often stored as float32


class AxisScaling(NamedTuple):
    """Positions along an axis: entry i lies at ``scale * i + offset``, in `unit`."""

    scale: float = 1.0
    offset: float = 0.0
    unit: str | None = None

    def coordinate(self, length: int) -> Coordinate | None:
        """Coordinates of an axis, None where they say no more than the entries' numbers do."""
        if self == AxisScaling():
            return None
        return Coordinate(self.scale * np.arange(length) + self.offset, {"units": self.unit} if self.unit else {})


def is_colour(name: str) -> bool:
    """Return whether formats call an axis of colours so."""
    return name.lower() in _COLOUR


def holds_channels(name: str) -> bool:
    """Return whether values along an axis lie beside one another in a pixel: colours, or bands of a scene."""
    return is_colour(name) or name == BAND


def unit_name(text: str) -> str | None:
    """Return the name of a unit of length or time that a format abbreviates; None for any other text."""
    text = text.strip().replace("\\u00B5", "µ")
    symbols = {symbol: name for name, symbol in {**LENGTHS, **TIMES}.items()}
    lower = text.lower().replace("metre", "meter")
    candidates = (symbols.get(text), lower, lower.removesuffix("s"), _OTHER.get(lower))
    return next((name for name in candidates if name in LENGTHS or name in TIMES), None)


def pixel_sizes(dims: Sequence[str], coordinates: Mapping[str, Coordinate]) -> dict[str, AxisScaling]:
    """Return the sizes of pixels along those axes whose coordinates are numbers evenly apart."""
    found = {}
    for name in dims:
        each = coordinates.get(name)
        if each is None or each.along(name) != (name,) or np.asarray(each.values).dtype.kind not in "iuf":
            continue
        values, units = np.asarray(each.values, np.float64), each.attributes.get("units")
        steps = np.diff(values)
        if not len(steps) or not np.isfinite(steps).all() or steps[0] == 0:
            continue
        if np.abs(steps - steps.mean()).max() <= _STEP_TOLERANCE * abs(steps.mean()):
            unit = unit_name(units) if isinstance(units, str) else None
            found[name] = AxisScaling(float(steps.mean()), float(values[0]), unit)
    return found


def channel_names(name: str, coordinates: Mapping[str, Coordinate]) -> list[str] | None:
    """Return the texts along an axis; None where there are none."""
    values = np.asarray(coordinates[name].values) if name in coordinates else np.empty(0)
    return [str(text) for text in values] if values.dtype.kind == "U" and values.ndim == 1 else None


def ome_sizes(sizes: Mapping[str, AxisScaling]) -> dict[str, Any]:
    """Return attributes of ``Pixels`` in OME-XML, given sizes along X, Y, Z and T."""
    found: dict[str, Any] = {}
    for letter, size in sizes.items():
        known, name = (TIMES, "TimeIncrement") if letter == "T" else (LENGTHS, f"PhysicalSize{letter}")
        if size.unit in known:  # OME has a unit by default, which would be wrong
            found |= {name: abs(size.scale), f"{name}Unit": known[size.unit]}
    return found


def imagej_sizes(sizes: Mapping[str, AxisScaling]) -> tuple[dict[str, Any], tuple[float, float] | None]:
    """Return ImageJ's metadata, and pixels per unit along X and Y as TIFF's tags of resolution hold them.

    ImageJ has one unit of length, here that of X; pixels without a length along X and Y have no size.
    """
    unit = sizes["X"].unit if "X" in sizes else None
    if unit not in LENGTHS:
        return {}, None
    meters = {letter: abs(size.scale) * _METERS[size.unit] for letter, size in sizes.items() if size.unit in LENGTHS}
    steps = {letter: length / _METERS[unit] for letter, length in meters.items()}
    if "Y" not in steps:
        return {}, None
    about: dict[str, Any] = {"unit": LENGTHS[unit].replace("µ", "u")}  # its header is ASCII, and it shows um as µm
    if "Z" in steps:
        about["spacing"] = steps["Z"]
    if "T" in sizes and sizes["T"].unit == "second":
        about["finterval"] = abs(sizes["T"].scale)
    return about, (1 / steps["X"], 1 / steps["Y"])


def distinct(names: Sequence[Any]) -> tuple[str, ...]:
    """Return names of channels, if each is a text of its own; else none, for they would tell no channels apart."""
    texts = tuple(name for name in names if isinstance(name, str) and name.strip())
    return texts if len(set(texts)) == len(names) else ()
