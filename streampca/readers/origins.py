"""Files behind objects of the caller's: what must not be written over while it is read through them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np


def files_behind(source: Any) -> list[str]:
    """Files and folders that an array or a group of arrays says it reads; none of what lies in memory.

    `numpy.memmap` and its views, zarr, h5py, archives of numpy's, xarray, and dictionaries of such are known.
    """
    found = (path for path in _candidates(source) if isinstance(path, (str, os.PathLike)))
    return [os.fspath(path) for path in found if os.path.exists(path)]


def _candidates(source: Any) -> Iterator[Any]:
    package = type(source).__module__.partition(".")[0]
    if isinstance(source, np.ndarray):
        while source is not None:
            yield getattr(source, "filename", None)
            source = getattr(source, "base", None)
    elif package == "zarr":
        place = source.store_path
        root = getattr(place.store, "root", None) or getattr(place.store, "path", None)
        if isinstance(root, (str, os.PathLike)):
            inside = os.path.join(root, place.path)
            yield inside if os.path.exists(inside) else root
    elif package == "h5py":
        yield source.file.filename if source else None
    elif package == "numpy":
        yield getattr(getattr(source, "zip", None), "filename", None)
    elif isinstance(source, dict):
        for each in source.values():
            yield from _candidates(each)
    else:
        yield getattr(source, "encoding", {}).get("source")
        for each in getattr(source, "data_vars", {}).values():
            yield each.encoding.get("source")
