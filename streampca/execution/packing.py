"""Packs values for workers: pickled as dask pickles, with arrays out of band, so that these are not copied.

What dask computes may hold lambdas and local functions, which plain pickling refuses. Nothing of it is stored: a pack
goes from a client to the workers of its own cluster.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import numpy.typing as npt
from distributed import Future
from distributed.protocol import dask_deserialize, dask_serialize


class Packed(NamedTuple):
    """A value as dask carries it: its pickled form, and the memory of its arrays.

    `waits` is True of one that holds futures: who uses it waits for other tasks of the cluster.
    """

    form: bytes
    arrays: tuple[npt.NDArray[np.uint8], ...]
    waits: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of it all."""
        return len(self.form) + sum(array.nbytes for array in self.arrays)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles functions by value where they cannot be imported, and notes futures."""

    waits = False

    def reducer_override(self, value: Any) -> Any:
        """Return how a value is pickled, or NotImplemented for the usual way."""
        self.waits = self.waits or isinstance(value, Future)
        return super().reducer_override(value)


class _Finder(_Pickler):
    """Looks for futures without copying arrays."""

    def reducer_override(self, value: Any) -> Any:
        """Return how a value is pickled, or NotImplemented for the usual way."""
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return int, ()
        return super().reducer_override(value)


class _Nowhere(io.RawIOBase):
    """A file that keeps nothing of what is written to it."""

    def write(self, data: Any) -> int:
        """Drop the data."""
        return len(data)


class _ForeignPickler(_Pickler):
    """Pickles what only dask can, as open HDF5 files."""

    def reducer_override(self, value: Any) -> Any:
        """Return how a value is pickled, or NotImplemented for the usual way."""
        found = super().reducer_override(value)
        if found is not NotImplemented or isinstance(value, np.ndarray):
            return found
        try:
            return dask_deserialize.dispatch(type(value)), dask_serialize.dispatch(type(value))(value)
        except TypeError:
            return NotImplemented


def packed(value: Any) -> Packed:
    """Pack a value without copying its arrays."""
    try:
        return _packed(value, _Pickler)
    except Exception:  # whatever an object raises that is not to be pickled
        return _packed(value, _ForeignPickler)


def waits(value: Any) -> bool:
    """Return whether a value holds futures, or may hold some, as it cannot be pickled and so not be looked through."""
    pickler = _Finder(_Nowhere(), protocol=5)
    try:
        pickler.dump(value)
    except Exception:  # whatever an object raises that is not to be pickled
        return True
    return pickler.waits


def _packed(value: Any, kind: type[_Pickler]) -> Packed:
    buffers: list[pickle.PickleBuffer] = []
    form = io.BytesIO()
    pickler = kind(form, protocol=5, buffer_callback=buffers.append)
    pickler.dump(value)
    return Packed(form.getvalue(), tuple(np.asarray(buffer.raw(), np.uint8) for buffer in buffers), pickler.waits)


def unpacked(given: Packed) -> Any:
    """Return a new value whose arrays are shared and read-only."""
    for array in given.arrays:
        array.flags.writeable = False
    return pickle.loads(given.form, buffers=given.arrays)  # noqa: S301 - from the scheduler, as the function that calls this
