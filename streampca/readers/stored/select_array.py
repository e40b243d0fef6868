"""Selection of one array among several of a source: the one that a key names, else the only one that can be images."""

from __future__ import annotations

import math
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
        likely = _largest_first(arrays, arrays if images is None else images)
        raise RequestError(f"{source} has no array {key!r}; it holds {listing(likely)}.{nearest(path, list(arrays))}")
    likely = _largest_first(inside, inside if images is None else images)
    if len(likely) == 1 or len(inside) == 1:
        return next(iter(likely))
    if not inside:
        raise SourceError(f"{source} holds no arrays; give a file with an array of images in it.")
    raise SourceError(
        f"{source} holds {len(likely)} arrays, {listing(likely)}; say which with {by_key(next(iter(likely)))}."
    )


def _largest_first(arrays: Mapping[str, Any], images: Iterable[str]) -> dict[str, Any]:
    """Return the arrays that can be images, or else are of numbers, or all if none is; the largest first."""
    numbers = [name for name, array in arrays.items() if array.dtype.kind in "biuf"]
    several = [name for name in images if name in numbers and len(arrays[name].shape) >= 2]
    likely = several or numbers or [*arrays]  # coordinates are offered only if there are no other arrays
    return {name: arrays[name] for name in sorted(likely, key=lambda name: -math.prod(arrays[name].shape))}


def listing(arrays: Mapping[str, Any]) -> str:
    """Return names, shapes and dtypes of the first few arrays in one line."""
    named = [f"{name} ({format_shape(array.shape) or 'one value'} {array.dtype})" for name, array in arrays.items()]
    return ", ".join(named[:_LISTED]) + (f" and {len(named) - _LISTED} more" if len(named) > _LISTED else "")
