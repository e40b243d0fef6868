"""Arrays in the caller's memory: numpy, dask, zarr, h5py and xarray, archives and dictionaries of them."""

from __future__ import annotations

import os
from typing import Any, Unpack

import numpy as np

from ..errors import SourceError
from .collection import Collection, refuse_key
from .dask import LazyArray, is_lazy
from .detect import is_array
from .stored.array import ArrayCollection, ObjectArray, StoredArray, dims_of
from .stored.layout import SampleAxes
from .stored.select_array import select_array


def open_array(source: Any, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open an object with shape, dtype and slicing; entries that a masked array masks are NaN."""
    package = type(source).__module__.partition(".")[0]
    name = f"{package} array"
    refuse_key(key, f"a {name}")
    _check_lengths(source, name)
    array: StoredArray
    if package == "h5py":
        from .hdf5 import dataset_of_object

        array = dataset_of_object(source, name)
    elif package == "zarr":
        from .zarr import object_chunks
        from .zarr_groups import check_codecs

        check_codecs(source, name)
        array = ObjectArray(source, name, states=object_chunks)
    elif is_lazy(source):
        array = LazyArray(source, name)
    else:
        array = ObjectArray(source, name)
    return ArrayCollection(array, source=name, dims=array.dims or dims_of(source), **axes)


def _check_lengths(source: Any, name: str) -> None:
    """Refuse an array with axes of unknown length."""
    if any(not isinstance(length, (int, np.integer)) for length in source.shape):
        raise SourceError(
            f"{name} has shape {tuple(source.shape)}, which is not known yet; call its compute_chunk_sizes() first."
        )


def open_container(source: Any, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open the array that `key` names in an object that holds several, else the only one that can hold images."""
    package = type(source).__module__.partition(".")[0]
    name = f"{package} {type(source).__name__}" if package != "builtins" else f"a {type(source).__name__}"
    if package == "numpy" and hasattr(source, "zip"):
        # Looking at a member of the open archive reads it whole; the reader of the file reads headers only.
        from .npy import open_npz

        path = source.zip.filename
        if path is None or not os.path.isfile(path):
            raise SourceError(f"{name} is not of a file; give the path of its file, or one of its arrays.")
        return open_npz(path, key=key, **axes)
    return open_array(_array(source, package, key, name), **axes)


def _array(source: Any, package: str, key: str | None, name: str) -> Any:
    if package == "h5py":
        from .hdf5_content import select_dataset

        return select_dataset(source, key, name)
    if package == "zarr":
        from .zarr_groups import choose

        return source[choose(source, key, name).name]
    arrays = {str(member): source[member] for member in source if is_array(source[member])}
    return arrays[select_array(arrays, key, name)]
