"""Arrays the caller holds: numpy, dask, zarr, h5py, xarray, anything with shape, dtype and slicing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import SourceError
from .collection import Collection, check_dtype, refuse_key
from .stored.array import ArrayCollection, dims_of
from .stored.axes import Axis, Selection
from .stored.masked import MaskedEntries


def open_array(
    source: Any,
    *,
    key: str | None = None,
    sample_axes: Sequence[Axis] | None = None,
    select: Selection | None = None,
) -> Collection:
    """Open an object with shape, dtype and slicing; entries that a masked array masks are NaN."""
    name = f"{type(source).__module__.partition('.')[0]} array"
    refuse_key(key, f"a {name}")
    _check_object(source, name)
    if type(source).__module__.startswith("h5py."):
        from .hdf5 import held_dataset

        source = held_dataset(source, name)
    dims, how = dims_of(source), {}
    if isinstance(source, np.ma.MaskedArray):
        check_dtype(source.dtype, name)
        source = MaskedEntries(source, name) if np.ma.is_masked(source) else source.data
    if type(source).__module__.startswith("zarr."):
        from .zarr import held_chunks
        from .zarr_groups import check_codecs

        check_codecs(source, name)
        how["states"] = held_chunks
    if getattr(source, "__dask_graph__", None) is not None:
        from .dask import LazyArray, is_lazy

        source = LazyArray(source, name) if is_lazy(source) else source
    return ArrayCollection(source, source=name, dims=dims, sample_axes=sample_axes, select=select, **how)


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
