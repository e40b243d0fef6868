"""Names under which outputs store axes and coordinates: their own, unless an array of ours in the output has that name.

A group is one xarray Dataset, in which an axis and its coordinate have one name, and no two arrays do. An axis or
coordinate that is called like an array of ours (``images``, ``mean``, ``component`` ...) is stored with an underscore
after its name. The group's attribute keeps the original names, and readers restore them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

from .coordinate import Coordinate, Described

ORIGINAL = "original_names"  # key of the root attribute: stored names to original ones

_log = logging.getLogger("streampca")

Along = TypeVar("Along", Coordinate, Described)


def stored_names(names: Iterable[str], ours: Set[str], in_use: Iterable[str] = ()) -> dict[str, str]:
    """Return the stored name of each axis and coordinate that is called like an array of ours, which none else has."""
    names = dict.fromkeys(names)
    taken, renamed = {*names, *ours, *in_use}, {}
    for name in names:
        if name in ours:
            renamed[name] = f"{name}_"
            while renamed[name] in taken:
                renamed[name] += "_"
            taken.add(renamed[name])
    return renamed


def renamed_axes(axes: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Return axes with other names."""
    return tuple(names.get(axis, axis) for axis in axes)


def renamed_coordinates(coordinates: Mapping[str, Along], names: Mapping[str, str]) -> dict[str, Along]:
    """Return coordinates with other names, and other names of their axes."""
    if not names:
        return {**coordinates}
    return {
        names.get(name, name): coordinate._replace(axes=renamed_axes(coordinate.axes, names))
        for name, coordinate in coordinates.items()
    }


def originals_of(names: Mapping[str, str], dims: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the entry of a root attribute by which readers restore names; empty if there is nothing to restore.

    An axis of ours, among the stored `dims`, that is called like another was is read with the stored name of the other.
    """
    originals = {stored: name for name, stored in names.items()}
    originals |= {name: stored for name, stored in names.items() if name in dims}
    return {ORIGINAL: originals} if originals else {}


def original_names(about: Any) -> dict[str, str]:
    """Return the original names by stored ones that the root attribute of a group holds."""
    names = about.get(ORIGINAL) if isinstance(about, Mapping) else None
    return {str(name): str(original) for name, original in names.items()} if isinstance(names, Mapping) else {}


def log_renamed(names: Mapping[str, str], output: str) -> None:
    """Log a line for each axis or coordinate that has another name in an output."""
    for name, stored in names.items():
        _log.warning(
            "%r is an axis or coordinate and also an array of %s; the former is called %r there.", name, output, stored
        )
