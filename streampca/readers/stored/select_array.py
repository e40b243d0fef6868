"""Selection of one array among several of a source: the one that a key names, else the only one that can be images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import RequestError, SourceError, nearest
from ...units import format_shape
from ..collection import by_key

# Most arrays that an error lists.
_LISTED = 12


def select_array(
    arrays: Mapping[str, Any], key: str | None, source: str, *, images: Iterable[str] | None = None
) -> str:
    """Return the name of the array to read; without a key, an array of two axes or more among `images`."""
    path = (key or "").strip("/")
    if path in arrays:
        return path
    inside = {name: array for name, array in arrays.items() if name.startswith(f"{path}/") or not path}
    if not inside and arrays:
        likely = _several_axes(arrays, arrays if images is None else images) or arrays
        raise RequestError(f"{source} has no array {key!r}; it holds {listing(likely)}.{nearest(path, list(arrays))}")
    likely = _several_axes(inside, arrays if images is None else images)
    if len(likely) == 1 or len(inside) == 1:
        return next(iter(likely or inside))
    if not inside:
        raise SourceError(f"{source} holds no arrays; give a file with an array of images in it.")
    several = likely or inside  # coordinates are offered only if there are no other arrays
    raise SourceError(
        f"{source} holds {len(several)} arrays, {listing(several)}; say which with {by_key(next(iter(several)))}."
    )


def _several_axes(arrays: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the named arrays that exist and have two axes or more."""
    return {name: arrays[name] for name in names if name in arrays and len(arrays[name].shape) >= 2}


def listing(arrays: Mapping[str, Any]) -> str:
    """Return names, shapes and dtypes of the first few arrays in one line."""
    named = [f"{name} ({format_shape(array.shape) or 'one value'} {array.dtype})" for name, array in arrays.items()]
    return ", ".join(named[:_LISTED]) + (f" and {len(named) - _LISTED} more" if len(named) > _LISTED else "")
