"""Packing of values for workers: pickled as dask does, with arrays out of band, which are not copied.

Graphs of dask can hold lambdas and local functions, which plain pickling refuses. Packs are never stored: they go from
a client to the workers of its cluster. Options of stores, which values do not hold, go with each, and hold in the
worker until the next: clients with different options at the same time need workers of their own.
"""

from __future__ import annotations

import io
import os
import pickle
import uuid
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import numpy.typing as npt
from distributed import Future
from distributed.protocol import dask_deserialize, dask_serialize

from ..storage.remote import given_options, use_options

_IMPORTED = uuid.uuid4().hex


class Packed(NamedTuple):
    """A value as it is sent: its pickled form, and the memory of its arrays.

    `waits` is True if it holds futures: a task that uses the value waits for other tasks of the cluster.
    """

    form: bytes
    arrays: tuple[npt.NDArray[np.uint8], ...]
    waits: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of form and arrays."""
        return len(self.form) + sum(array.nbytes for array in self.arrays)

    def __repr__(self) -> str:
        """Return a text without the data, which can be secret."""
        return f"Packed({self.nbytes} bytes)"


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickler of functions by value if they cannot be imported, which notes whether there are futures."""

    waits = False

    def reducer_override(self, value: Any) -> Any:
        """Return the reduction of a value, or NotImplemented for the default one."""
        self.waits = self.waits or isinstance(value, Future)
        return super().reducer_override(value)


class _Finder(_Pickler):
    """Pickler that looks for futures and skips arrays."""

    def reducer_override(self, value: Any) -> Any:
        """Return the reduction of a value, or NotImplemented for the default one."""
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return int, ()
        return super().reducer_override(value)


class _Nowhere(io.RawIOBase):
    """A file that drops all data."""

    def write(self, data: Any) -> int:
        """Drop the data."""
        return len(data)


class _ForeignPickler(_Pickler):
    """Pickler of objects that only dask can serialize, such as open HDF5 files."""

    def reducer_override(self, value: Any) -> Any:
        """Return the reduction of a value, or NotImplemented for the default one."""
        reduction = super().reducer_override(value)
        if reduction is not NotImplemented or isinstance(value, np.ndarray):
            return reduction
        try:
            return dask_deserialize.dispatch(type(value)), dask_serialize.dispatch(type(value))(value)
        except TypeError:
            return NotImplemented


def packed(value: Any) -> Packed:
    """Pack a value without copying its arrays."""
    try:
        return _packed(value, _Pickler)
    except Exception:  # objects that cannot be pickled raise many kinds of errors
        return _packed(value, _ForeignPickler)


def waits(value: Any) -> bool:
    """Return whether a value holds futures, or cannot be pickled and so not be searched for them."""
    pickler = _Finder(_Nowhere(), protocol=5)
    try:
        pickler.dump(value)
    except Exception:  # objects that cannot be pickled raise many kinds of errors
        return True
    return pickler.waits


def _packed(value: Any, kind: type[_Pickler]) -> Packed:
    buffers: list[pickle.PickleBuffer] = []
    form = io.BytesIO()
    pickler = kind(form, protocol=5, buffer_callback=buffers.append)
    pickler.dump((_process(), given_options()))
    pickler.dump(value)
    return Packed(form.getvalue(), tuple(np.asarray(buffer.raw(), np.uint8) for buffer in buffers), pickler.waits)


def unpacked(pack: Packed) -> Any:
    """Return a new value that shares the arrays of a pack, read-only."""
    for array in pack.arrays:
        array.flags.writeable = False
    # From the scheduler, as the code that runs here.
    unpickler = pickle.Unpickler(io.BytesIO(pack.form), buffers=pack.arrays)  # noqa: S301
    client, options = unpickler.load()
    if client != _process():  # a worker of a process of its own
        use_options(options)  # first, as a value can open URLs
    return unpickler.load()


def _process() -> tuple[int, str]:
    """Return what identifies this process: forked ones share the text, and hosts the number."""
    return os.getpid(), _IMPORTED
