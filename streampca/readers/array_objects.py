"""Arrays in the caller's memory: numpy, dask, zarr, h5py and xarray, archives and dictionaries of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from ..errors import SourceError, first_line
from ..units import counted, format_shape
from .collection import Collection, refuse_key
from .dask import LazyArray, is_lazy
from .detect import is_array, is_dataset
from .stored.array import ArrayCollection, ObjectArray, StoredArray, dims_of
from .stored.layout import SampleAxes
from .stored.select_array import select_array


def open_array(source: Any, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open an object with shape, dtype and slicing; entries that a masked array masks are NaN."""
    package = type(source).__module__.partition(".")[0]
    name = f"{package} array"
    refuse_key(key, f"a {name}")
    _check_lengths(source, name)
    source = as_numpy(source, name)
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


def as_numpy(source: Any, name: str = "the array") -> Any:
    """Convert an array whose dtype numpy does not know, such as a tensor, to numpy; any other is returned as it is.

    Raises
    ------
    SourceError
        If it cannot be converted: numpy has no such values, or they are in the memory of another device.
    """
    try:
        np.dtype(source.dtype)
    except TypeError:
        try:
            converted = np.asarray(source)
        except Exception as error:  # third-party conversions raise any kind of error
            why = f" ({first_line(error)})"
        else:
            if converted.dtype.kind != "O" and converted.shape == tuple(source.shape):
                return converted
            why = ""
        raise SourceError(
            f"{name} has dtype {source.dtype}, unknown to numpy{why}; convert it to a numpy array."
        ) from None
    return source


def refuse_several(arrays: Sequence[Any]) -> None:
    """Refuse a list that holds arrays of two axes or more: each could be one sample, or a batch of samples.

    Raises
    ------
    SourceError
        Names the calls of numpy that make one array of them; not raised if the list holds no such arrays.
    """
    shapes = [shape_in_list(item) for item in arrays]
    if all(len(shape) < 2 for shape in shapes):
        return
    first = next(shape for shape in shapes if len(shape) > 1)
    numpy = "np.ma" if any(isinstance(item, np.ma.MaskedArray) for item in arrays) else "np"
    if len({shape[1:] for shape in shapes}) > 1:
        which, how = "not all of one shape", "give one of them"
    elif len(set(shapes)) > 1:
        which, how = "of several lengths", f"if these are batches of samples, give {numpy}.concatenate(arrays)"
    else:
        which = "each of which may be one sample, or a batch of samples"
        how = f"give {numpy}.stack(arrays) if it is one sample, or {numpy}.concatenate(arrays) if it is a batch"
    raise SourceError(
        f"a list of {counted(len(shapes), 'array')} was given, the first of {format_shape(first)}, {which}; {how}."
    )


def shape_in_list(item: Any) -> tuple[int, ...]:
    """Return the shape of an item of a list: () for numbers, paths and anything but arrays; nothing is computed."""
    if isinstance(item, (list, tuple)):  # only the first row is looked at: long lists of numbers are common
        return (len(item), *shape_in_list(item[0])) if item else (0,)
    if hasattr(item, "shape"):
        return tuple(item.shape)
    return np.shape(item) if hasattr(item, "__array__") and not is_dataset(item) else ()


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
