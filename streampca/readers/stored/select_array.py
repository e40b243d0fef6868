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
    check_not_sparse(arrays, path, source, images=images)
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


def check_not_sparse(arrays: Mapping[str, Any], path: str, source: str, *, images: Iterable[str] | None) -> None:
    """Refuse the sparse matrix that a path names, or without one, one that is no part of a group of arrays."""
    groups = (name.removesuffix("indptr") for name in arrays if name.rpartition("/")[2] == "indptr")
    for group in groups:
        matrix = group.rstrip("/")
        if {f"{group}data", f"{group}indices"} <= arrays.keys() and (matrix == path or not (path or "/" in matrix)):
            likely = _largest_first(arrays, arrays if images is None else images)
            others = [name for name, array in likely.items() if len(array.shape) >= 2]
            instead = f", or take another array by {by_key(others[0])}" if others else ""
            by = "scipy.sparse.load_npz(path)" if source.lower().endswith(".npz") else "anndata.read_h5ad(path).X"
            raise SourceError(
                f"{source} holds {matrix or 'its matrix'} as a sparse matrix, which is read from memory alone; give it "
                f"as one of scipy.sparse, such as {by}{instead}."
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
