"""OME-Zarr: which arrays of a group are levels of one picture, what their axes are called, where their pixels lie.

Metadata of versions 0.1 to 0.5 (https://ngff.openmicroscopy.org/specifications): ``multiscales`` among the attributes
of a picture's group, under ``ome`` since 0.5. Plates, wells and stores of several pictures (bioformats2raw) name the
groups of theirs in the same way. Plain values in and out: nothing here opens anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import SourceError
from ..storage.coordinate import Coordinate, Described
from ..storage.pixel_sizes import AxisScaling, distinct

# What 0.1 and 0.2 call the five axes every picture has there.
_FIVE_AXES = ("t", "c", "z", "y", "x")
_CF_AXIS = {"time": "T", "channel": "C"}  # of kinds of axes that say what these count; C is no letter of CF's


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
        Names of the channels; empty where the metadata have none, or one name for several.
    kinds : tuple of str
        Kinds of the axes (space, time, channel), each empty where the metadata do not say.
    """

    levels: tuple[str, ...]
    axes: tuple[str, ...]
    scalings: tuple[tuple[AxisScaling, ...], ...]
    channels: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def described(self) -> dict[str, Described]:
        """Attributes of the CF conventions that stand for the types of the axes."""
        known = zip(self.axes, self.kinds, strict=False)
        return {name: Described({"axis": _CF_AXIS[kind]}) for name, kind in known if kind in _CF_AXIS}

    def level(self, key: str) -> str | None:
        """Path of the level that `key` names by its path or its number (from 0, the finest), None if it names none."""
        if key in self.levels:
            return key
        return self.levels[int(key)] if key.isdecimal() and int(key) < len(self.levels) else None

    def coordinates(self, level: str, shape: Sequence[int]) -> dict[str, Coordinate]:
        """Coordinates of a level's axes of space and time, and names of its channels, where the metadata have them."""
        scalings = self.scalings[self.levels.index(level)]
        found = {
            axis: scaling.coordinate(length)
            for axis, scaling, length in zip(self.axes, scalings, shape, strict=True)
            if axis != "c"
        }
        known = {axis: coordinate for axis, coordinate in found.items() if coordinate is not None}
        if "c" in self.axes and shape[self.axes.index("c")] == len(self.channels):
            known["c"] = Coordinate(np.array(self.channels, np.str_))
        return known


def multiscale_of(attributes: Mapping[str, Any], subject: str) -> Multiscale | None:
    """Return the picture that a group's attributes describe, None where they describe none."""
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
    """Paths of the groups that a plate, a well or a store of several pictures says it consists of."""
    metadata = _metadata(attributes)
    for name, within in (("plate", "wells"), ("well", "images")):
        members = metadata.get(name)
        listed = members.get(within) if isinstance(members, Mapping) else None
        if isinstance(listed, list):
            return [str(item["path"]) for item in listed if isinstance(item, Mapping) and item.get("path")]
    series = metadata.get("series")
    return [str(path) for path in series if path] if isinstance(series, list) else []


def is_numbered(attributes: Mapping[str, Any]) -> bool:
    """Return whether a group has the layout of bioformats2raw: images in groups 0, 1, ..., and notes in a group OME."""
    return "bioformats2raw.layout" in _metadata(attributes)


def _metadata(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what OME keeps among a group's attributes: all of them before 0.5, then those under ``ome``."""
    inside = attributes.get("ome")
    return inside if isinstance(inside, Mapping) else attributes


def _channels(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of channels, as microscopes' software shows them (``omero``)."""
    shown = metadata.get("omero")
    listed = shown.get("channels") if isinstance(shown, Mapping) else None
    if not isinstance(listed, list):
        return ()
    return distinct([each.get("label") if isinstance(each, Mapping) else None for each in listed])


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
    """Apply scales and translations in their order; other kinds, and numbers kept in files, leave places unknown."""
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
