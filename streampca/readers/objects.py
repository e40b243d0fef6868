"""Objects of the caller that hold arrays: numpy, dask, zarr, h5py and xarray, archives and dictionaries of such."""

from __future__ import annotations

import os
from typing import Any, Unpack

import numpy as np

from ..errors import SourceError
from .collection import Array, Collection, State, check_dtype, digest, refuse_key, with_nan
from .detect import is_array
from .stored.array import PAGE, ArrayCollection, StoredArray, dims_of, page_shape
from .stored.boxes import Box
from .stored.layout import SampleAxes
from .stored.select_array import select_array
from .stored.value_digests import sampled_states


def open_array(source: Any, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open an object with shape, dtype and slicing; entries that a masked array masks are NaN."""
    name = f"{type(source).__module__.partition('.')[0]} array"
    refuse_key(key, f"a {name}")
    _check_object(source, name)
    if type(source).__module__.startswith("h5py."):
        from .hdf5 import dataset_of_object

        source = dataset_of_object(source, name)
    dims, how = dims_of(source), {}
    if isinstance(source, np.ma.MaskedArray):
        check_dtype(source.dtype, name)
        source = MaskedEntries(source, name) if np.ma.is_masked(source) else source.data
    if type(source).__module__.startswith("zarr."):
        from .zarr import object_chunks
        from .zarr_groups import check_codecs

        check_codecs(source, name)
        how["states"] = object_chunks
    if getattr(source, "__dask_graph__", None) is not None:
        from .dask import LazyArray, is_lazy

        source = LazyArray(source, name) if is_lazy(source) else source
    return ArrayCollection(source, source=name, dims=dims, **axes, **how)


def _check_object(source: Any, name: str) -> None:
    """Refuse objects that look like arrays and would be read wrongly."""
    if any(not isinstance(length, (int, np.integer)) for length in source.shape):
        raise SourceError(
            f"{name} has shape {tuple(source.shape)}, which is not known yet; call its compute_chunk_sizes() first."
        )
    if hasattr(source, "tocsr"):
        raise SourceError(f"{name} is a sparse matrix, which is not read; give source.toarray(), or a Zarr array.")
    try:
        np.dtype(source.dtype)
    except TypeError:
        raise SourceError(f"{name} has dtype {source.dtype}, unknown to numpy; convert it to a numpy array.") from None


class MaskedEntries(StoredArray):
    """A masked array in memory, read with NaN for its masked entries."""

    def __init__(self, array: Any, source: str) -> None:
        self._array, self._source, self.shape = array, source, array.shape
        self.dtype = with_nan(array.dtype).newbyteorder("=")
        self.chunk_shape = page_shape(self.shape, PAGE // array.dtype.itemsize)  # as of any array in memory

    def read_into(self, box: Box, out: Array) -> None:
        """Copy the box, then write NaN where it is masked."""
        piece = self._array[box]
        out[...] = piece.data
        np.copyto(out, np.nan, where=np.ma.getmaskarray(piece))

    def states(self, *, now: bool = False) -> list[State]:
        """Return the present states of the values, with those of their mask."""
        pairs = (sampled_states(array, self._source) for array in (self._array.data, np.ma.getmaskarray(self._array)))
        return [one._replace(state=digest(one.state, other.state)) for one, other in zip(*pairs, strict=True)]


def open_container(source: Any, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open the array that `key` names in an object that holds several, else the only one that can hold images."""
    package = type(source).__module__.partition(".")[0]
    name = f"{package} {type(source).__name__}" if package != "builtins" else f"a {type(source).__name__}"
    if package == "numpy" and hasattr(source, "zip"):
        # Its members are read whole by being looked at; the file's reader looks at headers.
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
