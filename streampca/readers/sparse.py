"""Sparse matrices and arrays of `scipy.sparse`, whose rows are read as they are, or made dense.

CSR is read as it is. Every other format is converted to CSR on the first read, which the budget accounts for: CSC has
no rows to slice, and finding the values of a block of rows would search the whole matrix.
"""

from __future__ import annotations

import hashlib
import math
import threading
from typing import Any, Unpack

import numpy as np

from ..arrays import Array, rows_of
from .collection import MOST_STATES, Collection, State, digest, group_size, refuse_key
from .storage_record import SparseStorage
from .stored.array import ArrayCollection, StoredArray
from .stored.layout import Box, SampleAxes

_SLICED = 2**18  # stored values in the rows sliced at a time: 4 MiB with their indices
# Stored values that states digest: 12 MiB at most, a few milliseconds; of few values a part, as passes are as fast.
_DIGESTED, _LEAST_DIGESTED, _PART = 2**20, 2**14, 64


def open_sparse(source: Any, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open a sparse matrix or array of any format; samples are rows."""
    name = f"{source.format} matrix" if hasattr(source, "format") else "sparse matrix"
    refuse_key(key, f"a {name}")
    return ArrayCollection(SparseArray(source, name), source=name, **axes)


class SparseArray(StoredArray):
    """A sparse matrix in the caller's memory, read as sparse rows or dense boxes; values that are not stored are 0."""

    chunk_shape = ()
    counts_first = True

    def __init__(self, matrix: Any, source: str) -> None:
        self._matrix, self._source = matrix, source
        self.shape = tuple(int(length) for length in matrix.shape)
        self.dtype = np.dtype(matrix.dtype)
        self._csr = matrix if getattr(matrix, "format", None) == "csr" else None
        self._lock = threading.Lock()
        self.sparse = SparseStorage(int(matrix.nnz))
        value_bytes = self.dtype.itemsize + np.dtype(np.int64).itemsize
        row = self.shape[-1] if self.shape else 0
        self.decode_bytes = value_bytes * (min(_SLICED, int(matrix.nnz)) + row)
        if self._csr is None:  # SciPy uses 32-bit indices where they suffice
            index = 4 if max(self.shape, default=0) < 2**31 and matrix.nnz < 2**31 else 8
            self.converted_bytes = int(matrix.nnz) * (self.dtype.itemsize + index) + index * (self.shape[0] + 1)

    def __getstate__(self) -> dict[str, Any]:
        dropped = {"_lock", "_csr"} if self._csr is not self._matrix else {"_lock"}
        return {name: value for name, value in vars(self).items() if name not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_csr": None, **state, "_lock": threading.Lock()})

    def read_into(self, box: Box, out: Array) -> None:
        """Make rows dense, as many at a time as hold about `_SLICED` stored values."""
        matrix, (rows, columns) = self._rows(), box
        if columns != slice(0, self.shape[1]):
            matrix = matrix[rows.start : rows.stop, columns]
            rows = slice(0, rows.stop - rows.start)
        start, first = rows.start, rows.start
        while start < rows.stop:
            full = int(np.searchsorted(matrix.indptr, matrix.indptr[start] + _SLICED, side="right")) - 1
            stop = min(rows.stop, max(start + 1, full))
            target, piece = out[start - first : stop - first], matrix[start:stop]
            if target.flags.c_contiguous and target.dtype == piece.dtype:
                piece.toarray(out=target)
            else:
                target[...] = piece.toarray()
            start = stop

    def read_sparse(self, rows: slice) -> Any:
        """Return rows, without a copy where they are all; entries given several times are added up, once in a copy."""
        matrix = self._rows()
        with self._lock:
            if not matrix.has_canonical_format:
                matrix = self._csr = matrix.copy() if matrix is self._matrix else matrix
                matrix.sum_duplicates()
        return rows_of(matrix, rows)

    def _rows(self) -> Any:
        """Return the matrix as CSR, converted once."""
        with self._lock:
            if self._csr is None:
                self._csr = self._matrix.tocsr()
            return self._csr

    def states(self, *, now: bool = False) -> list[State]:
        """Return digests of some stored values: by groups of rows for CSR, of the whole matrix for other formats."""
        matrix, n = self._matrix, self.shape[0]
        most = min(_DIGESTED, max(_LEAST_DIGESTED, int(matrix.nnz) // _PART)) // MOST_STATES
        if getattr(matrix, "format", None) != "csr":
            data = getattr(matrix, "data", None)
            content = _digest(data, most) if isinstance(data, np.ndarray) and data.dtype != object else ""
            return [State(0, self._source, digest(content, int(matrix.nnz)))]
        groups = list[State]()
        for start in range(0, n, size := group_size(n)):
            stored = slice(matrix.indptr[start], matrix.indptr[min(start + size, n)])
            arrays = (matrix.data[stored], matrix.indices[stored], matrix.indptr[start:][:size])
            row = len(arrays[0]) // len(arrays[2])  # stored values
            parts = (_digest(values, most, row, len(groups)) for values in arrays)
            groups.append(State(start, f"{self._source} (rows {start} to {min(start + size, n) - 1})", digest(*parts)))
        return groups


def _digest(values: Array, most: int, row: int = 1, group: int = 0) -> str:
    """Hash a sequence of values, or of more than about `most` some at equal distances, not all of a few columns."""
    step = max(1, len(values) // most)
    while math.gcd(step, row) > 1:  # rows can have values of the same columns
        step += 1
    return hashlib.sha256(np.ascontiguousarray(values[group % step :: step]).data).hexdigest()[:16]
