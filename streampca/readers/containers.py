"""Objects of the caller's that hold several arrays: h5py and Zarr groups, xarray datasets, archives, dictionaries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..errors import SourceError
from .arrays import open_array
from .collection import Collection
from .detect import is_array
from .stored.axes import Axis, Selection
from .stored.choosing import chosen


def open_held(
    source: Any,
    *,
    key: str | None = None,
    sample_axes: Sequence[Axis] | None = None,
    select: Selection | None = None,
) -> Collection:
    """Open the array that `key` names in an object that holds several, else the only one that can hold images.

    Raises
    ------
    RequestError
        If there is no array called `key`.
    SourceError
        If it is not clear which is meant, or there is none; the message lists them.
    """
    package = type(source).__module__.partition(".")[0]
    name = f"{package} {type(source).__name__}" if package != "builtins" else f"a {type(source).__name__}"
    if package == "numpy" and hasattr(source, "zip"):
        # Its members are read whole by being looked at; the file's reader looks at headers.
        from .npy import open_npz

        path = source.zip.filename
        if path is None or not os.path.isfile(path):
            raise SourceError(f"{name} is not of a file; give the path of its file, or one of its arrays.")
        return open_npz(path, key=key, sample_axes=sample_axes, select=select)
    return open_array(_array(source, package, key, name), sample_axes=sample_axes, select=select)


def _array(source: Any, package: str, key: str | None, name: str) -> Any:
    if package == "h5py":
        from .hdf5_content import chosen_dataset

        return chosen_dataset(source, key, name)
    if package == "zarr":
        from .zarr_groups import choose

        return source[choose(source, key, name).name]
    arrays = {str(member): source[member] for member in source if is_array(source[member])}
    return arrays[chosen(arrays, key, name)]
