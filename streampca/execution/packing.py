"""Packs values for workers: pickled, with arrays out of band, so that these are not copied."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Packed(NamedTuple):
    """A value as dask carries it: its pickled form, and the memory of its arrays."""

    form: bytes
    arrays: tuple[npt.NDArray[np.uint8], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of it all."""
        return len(self.form) + sum(array.nbytes for array in self.arrays)


def packed(value: Any) -> Packed:
    """Pack a value without copying its arrays."""
    buffers: list[pickle.PickleBuffer] = []
    form = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return Packed(form, tuple(np.asarray(buffer.raw(), np.uint8) for buffer in buffers))


def unpacked(given: Packed) -> Any:
    """Return a new value whose arrays are shared and read-only."""
    form, arrays = given
    for array in arrays:
        array.flags.writeable = False
    return pickle.loads(form, buffers=arrays)  # noqa: S301 - from the scheduler, as the function that calls this
