"""The array of a source with several: the one that a key names, else the only one that can hold images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import RequestError, SourceError, nearest
from ...units import format_shape
from ..collection import by_key

# Arrays an error lists.
_LISTED = 12


def select_array(
    arrays: Mapping[str, Any], key: str | None, source: str, *, images: Iterable[str] | None = None
) -> str:
    """Name the array to read; `images` are those that may be meant without a key, and have two axes or more."""
    named = (key or "").strip("/")
    if named in arrays:
        return named
    inside = {name: array for name, array in arrays.items() if name.startswith(f"{named}/") or not named}
    if not inside and arrays:
        meant = _several_axes(arrays, arrays if images is None else images) or arrays
        raise RequestError(f"{source} has no array {key!r}; it holds {listing(meant)}.{nearest(named, list(arrays))}")
    likely = _several_axes(inside, arrays if images is None else images)
    if len(likely) == 1 or len(inside) == 1:
        return next(iter(likely or inside))
    if not inside:
        raise SourceError(f"{source} holds no arrays; give a file with an array of images in it.")
    found = likely or inside  # coordinates are offered only where there is nothing else
    raise SourceError(
        f"{source} holds {len(found)} arrays, {listing(found)}; say which with {by_key(next(iter(found)))}."
    )


def _several_axes(arrays: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named arrays that are there and have two axes or more."""
    return {name: arrays[name] for name in names if name in arrays and len(arrays[name].shape) >= 2}


def listing(arrays: Mapping[str, Any]) -> str:
    """Names, shapes and dtypes of the first few arrays, in a line."""
    named = [f"{name} ({format_shape(array.shape) or 'one value'} {array.dtype})" for name, array in arrays.items()]
    return ", ".join(named[:_LISTED]) + (f" and {len(named) - _LISTED} more" if len(named) > _LISTED else "")
