"""Masked arrays in memory: their masked entries are missing values, and become NaN as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..collection import Array, State, digest, with_nan
from .array import PAGE, StoredArray
from .axes import Box
from .sampled import sampled_states


class MaskedEntries(StoredArray):
    """A masked array in memory, read with NaN for its masked entries.

    Parameters
    ----------
    array : numpy.ma.MaskedArray
        Of real numbers, some masked.
    source : str
        What messages call it.
    """

    def __init__(self, array: Any, source: str) -> None:
        self._array, self._source, self.shape = array, source, array.shape
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

    def states(self, *, now: bool = False) -> list[State]:
        """Return the present states of the values, with those of their mask."""
        pairs = (sampled_states(array, self._source) for array in (self._array.data, np.ma.getmaskarray(self._array)))
        return [one._replace(state=digest(one.state, other.state)) for one, other in zip(*pairs, strict=True)]
