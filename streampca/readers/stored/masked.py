"""Masked arrays in memory: their masked entries are missing values, and become NaN as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...collection import Array, digest, with_nan
from .array import PAGE, StoredArray, object_state
from .axes import Box


class MaskedEntries(StoredArray):
    """A masked array in memory, read with NaN for its masked entries.

    Parameters
    ----------
    array : numpy.ma.MaskedArray
        Of real numbers, some masked.
    """

    def __init__(self, array: Any) -> None:
        self._array, self.shape = array, array.shape
        self.dtype = with_nan(array.dtype).newbyteorder("=")
        left, sizes = max(1, PAGE // array.dtype.itemsize), []  # a page, as of any array in memory
        for length in reversed(self.shape[1:]):
            sizes.append(min(length, left))
            left = max(1, left // max(1, length))
        self.chunk_shape = (1, *reversed(sizes))

    def read_into(self, box: Box, out: Array) -> None:
        """Copy the box, then write NaN where it is masked."""
        piece = self._array[box]
        out[...] = piece.data
        np.copyto(out, np.nan, where=np.ma.getmaskarray(piece))

    def fingerprint(self) -> str:
        """Digest of some values and of their mask."""
        return digest(object_state(self._array.data), object_state(np.ma.getmaskarray(self._array)))
