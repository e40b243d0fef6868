"""OME-Zarr metadata: the levels of a picture, the names of their axes and the positions of their pixels.

Versions 0.1 to 0.5 (https://ngff.openmicroscopy.org/specifications) are read: ``multiscales`` among the attributes of a
picture's group, under ``ome`` since 0.5. Plates, wells and stores of several pictures (bioformats2raw) name the groups
of their pictures in the same way. Functions map plain values to plain values; nothing is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import SourceError
from ..storage.coordinate import Coordinate, Described
from ..storage.pixel_sizes import AxisScaling, distinct

# Axes of every picture in versions 0.1 and 0.2, which do not name them.
_FIVE_AXES = ("t", "c", "z", "y", "x")
_CF_AXIS = {"time": "T", "channel": "C"}  # CF's letter for a kind of axis; C is an addition of ours


@dataclass(frozen=True)
class Multiscale:
    """One picture stored at several resolutions.

    Attributes
    ----------
    levels : tuple of str
        Paths of its arrays from its group, the finest first.
    axes : tuple of str
        Names of their axes.
    scalings : tuple of tuple of AxisScaling
        For every level, one an axis.
    channels : tuple of str
        Names of the channels; empty if the metadata have none, or give several the same name.
    kinds : tuple of str
        Kinds of the axes (space, time, channel), each empty if the metadata do not give it.
    """

    levels: tuple[str, ...]
    axes: tuple[str, ...]
    scalings: tuple[tuple[AxisScaling, ...], ...]
    channels: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def described(self) -> dict[str, Described]:
        """Attributes of the CF conventions that express the types of the axes."""
        kinds = zip(self.axes, self.kinds, strict=False)
        return {name: Described({"axis": _CF_AXIS[kind]}) for name, kind in kinds if kind in _CF_AXIS}

    def level(self, key: str) -> str | None:
        """Return the path of the level that `key` gives by path or number (0 is the finest), None if there is none."""
        if key in self.levels:
            return key
        return self.levels[int(key)] if key.isdecimal() and int(key) < len(self.levels) else None

    def coordinates(self, level: str, shape: Sequence[int]) -> dict[str, Coordinate]:
        """Return the coordinates of a level's axes of space and time, and the names of its channels, where known."""
        scalings = self.scalings[self.levels.index(level)]
        scaled = {
            axis: scaling.coordinate(length)
            for axis, scaling, length in zip(self.axes, scalings, shape, strict=True)
            if axis != "c"
        }
        coordinates = {axis: coordinate for axis, coordinate in scaled.items() if coordinate is not None}
        if "c" in self.axes and shape[self.axes.index("c")] == len(self.channels):
            coordinates["c"] = Coordinate(np.array(self.channels, np.str_))
        return coordinates


def multiscale_of(attributes: Mapping[str, Any], subject: str) -> Multiscale | None:
    """Return the picture that a group's attributes describe, None if they describe none."""
    multiscales = _metadata(attributes).get("multiscales")
    if not multiscales:
        return None
    try:
        # Of several, the first is the one to show by default.
        return replace(_multiscale(multiscales[0]), channels=_channels(_metadata(attributes)))
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # metadata are anyone's JSON
        raise SourceError(
            f"{subject} has OME-Zarr metadata (multiscales) that cannot be understood ({type(error).__name__}: "
            f"{error}); give the path of the array itself, such as {subject}/0."
        ) from error


def parts_of(attributes: Mapping[str, Any]) -> list[str]:
    """Return the paths of the groups that the metadata of a plate, a well or a store of several pictures list."""
    metadata = _metadata(attributes)
    for name, within in (("plate", "wells"), ("well", "images")):
        members = metadata.get(name)
        listed = members.get(within) if isinstance(members, Mapping) else None
        if isinstance(listed, list):
            return [str(item["path"]) for item in listed if isinstance(item, Mapping) and item.get("path")]
    series = metadata.get("series")
    return [str(path) for path in series if path] if isinstance(series, list) else []


def is_plate(attributes: Mapping[str, Any]) -> bool:
    """Return whether a group is a plate, whose pictures lie at row/column/field."""
    return isinstance(_metadata(attributes).get("plate"), Mapping)


def is_numbered(attributes: Mapping[str, Any]) -> bool:
    """Return whether a group has the layout of bioformats2raw: images in groups 0, 1, ..., and notes in a group OME."""
    return "bioformats2raw.layout" in _metadata(attributes)


def _metadata(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes that belong to OME: all of a group's before version 0.5, then those under ``ome``."""
    inside = attributes.get("ome")
    return inside if isinstance(inside, Mapping) else attributes


def _channels(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the channels from the display settings (``omero``)."""
    shown = metadata.get("omero")
    listed = shown.get("channels") if isinstance(shown, Mapping) else None
    if not isinstance(listed, list):
        return ()
    return distinct([channel.get("label") if isinstance(channel, Mapping) else None for channel in listed])


def _multiscale(multiscale: Mapping[str, Any]) -> Multiscale:
    axes = multiscale.get("axes") or _FIVE_AXES
    names = tuple(str(axis["name"]) if isinstance(axis, Mapping) else str(axis) for axis in axes)
    units = [axis.get("unit") if isinstance(axis, Mapping) else None for axis in axes]
    datasets = multiscale["datasets"]
    shared = multiscale.get("coordinateTransformations") or ()
    if len(set(names)) < len(names) or not datasets:
        raise ValueError("an axis named twice, or no dataset")
    scalings = tuple(
        _scalings((*(dataset.get("coordinateTransformations") or ()), *shared), units) for dataset in datasets
    )
    kinds = tuple(str(axis.get("type", "")) if isinstance(axis, Mapping) else "" for axis in axes)
    levels = tuple(str(dataset["path"]).strip("/") for dataset in datasets)
    return Multiscale(levels, names, scalings, kinds=kinds)


def _scalings(transformations: Sequence[Mapping[str, Any]], units: Sequence[Any]) -> tuple[AxisScaling, ...]:
    """Compose scales and translations in order; other kinds, and numbers kept in files, leave positions unknown."""
    scale, offset = np.ones(len(units)), np.zeros(len(units))
    for step in transformations:
        kind = step.get("type")
        if kind == "identity":
            continue
        if kind not in ("scale", "translation") or kind not in step:
            return tuple(AxisScaling() for _ in units)
        numbers = np.asarray(step[kind], float)
        if numbers.shape != scale.shape:
            raise ValueError(f"a {kind} of {numbers.size} numbers for {len(units)} axes")
        if kind == "scale":
            scale, offset = scale * numbers, offset * numbers
        else:
            offset = offset + numbers
    return tuple(
        AxisScaling(float(a), float(b), unit if isinstance(unit, str) else None)
        for a, b, unit in zip(scale, offset, units, strict=True)
    )
