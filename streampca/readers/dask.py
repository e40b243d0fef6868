"""Lazy arrays (dask, and xarray over it) as collections, computed piece by piece, and collections as lazy arrays.

The scheduler set in dask decides where a graph is computed; only a task of a cluster computes its own reads itself.
Computed pieces are not kept, except the last partition of a data frame, which is computed one partition at a time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from .. import machine
from ..arrays import Array, rows_of
from ..errors import ChangedError, RequestError, SourceError
from ..execution.compute import client_of, compute, held
from ..units import MIB
from .collection import Collection, State, check_dtype, digest, refuse_key
from .detect import is_sparse
from .storage_record import SparseStorage
from .stored.array import ArrayCollection, ObjectArray, StoredArray
from .stored.layout import Box, SampleAxes, largest_piece, pieces_of

if TYPE_CHECKING:  # dask.array takes half of the time of importing this package (with xarray, which it imports): on use
    import dask.array as da

LAZY_BLOCK_BYTES = 64 * MIB  # stored bytes in a chunk of a lazy array of a collection

# Bytes computed at a time, at least one chunk: dask holds the slices of all chunks, then joins them.
_PIECE = 16 * MIB


class LazyArray(ObjectArray):
    """A dask array, or an `xarray.DataArray` over one."""

    def __init__(self, array: Any, source: str) -> None:
        # Before anything is computed, only dask's meta, an empty array, shows whether values can be masked.
        lazy, sparse = _computable(array), None
        if is_sparse(getattr(lazy, "_meta", None)):
            sparse = lazy
            array = lazy = with_dense_chunks(lazy)
        super().__init__(array, source, masked=isinstance(getattr(lazy, "_meta", None), np.ma.MaskedArray))
        with _held_by_a_cluster(source):
            self._client = client_of(lazy)
        self.chunk_shape = tuple(side or 1 for side in self.chunk_shape)
        self._most = _PIECE // self.dtype.itemsize
        piece = largest_piece(self.shape, self.chunk_shape, self._most) * self.dtype.itemsize
        chunk = math.prod(self.chunk_shape) * self.dtype.itemsize
        # The piece, the slices that it is joined from, and for each thread a chunk and the inputs of its computation.
        self.decode_bytes = 2 * piece + 2 * machine.cores() * chunk
        if sparse is not None and not any(math.isnan(length) for length in sparse.shape):
            self._chunks = SparseChunks(sparse, source, self._client)
            self.sparse = self._chunks.stored

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_client": None}  # workers have clients of their own

    def read_sparse(self, rows: slice) -> Any:
        """Return rows of all chunks, which are computed once."""
        return self._chunks.rows(rows)

    def read_into(self, box: Box, out: Array) -> None:
        """Compute the box piece by piece, cut at chunk edges."""
        for piece, inside in pieces_of(box, self.chunk_shape, self._most):
            out[inside] = self.read(piece)

    def _sliced(self, box: Box) -> Array:
        lazy = _computable(self.array[box])
        with _held_by_a_cluster(self._source):
            return np.asanyarray(dense(compute(lazy, client=self._client) if hasattr(lazy, "compute") else lazy))

    def states(self, *, now: bool = False) -> list[State]:
        """Return a state of the name of the graph's result, which dask derives from the graph's inputs."""
        return [State(0, self._source, digest(str(getattr(_computable(self.array), "name", ""))))]


class SparseChunks:
    """A dask array of sparse chunks: computed to count their values when it is opened, and once more to keep them."""

    def __init__(self, array: Any, source: str, client: Any) -> None:
        self._array, self._source, self._client = array, source, client
        count, self._dtype = int(np.sum(self._computed(_stored_values, array), dtype=np.int64)), np.dtype(array.dtype)
        # As CSR: the chunks, and all of them joined.
        self.stored = SparseStorage(count, 2 * count * (self._dtype.itemsize + 8))
        self._rows: Any = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_rows", "_lock", "_client")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _rows=None, _lock=threading.Lock(), _client=None)

    def rows(self, rows: slice) -> Any:
        """Return a range of rows as CSR: all are held from the first call on, of others the chunks are computed."""
        if self._rows is None and rows.stop - rows.start < self._array.shape[0]:
            edges = np.cumsum((0, *self._array.chunks[0]))
            first = int(np.searchsorted(edges, rows.start, side="right")) - 1
            chunks = self._array.blocks[first : int(np.searchsorted(edges, rows.stop))]
            return rows_of(self._joined(chunks), slice(rows.start - int(edges[first]), rows.stop - int(edges[first])))
        with held(self._lock):
            if self._rows is None:
                self._rows = self._joined(self._array)
            return rows_of(self._rows, rows)

    def _joined(self, array: Any) -> Any:
        """Compute some chunks, and join them as CSR."""
        import scipy.sparse as sp

        joined = sp.block_array(self._computed(_as_csr, array), format="csr", dtype=self._dtype)
        joined.sum_duplicates()
        return joined

    def _computed(self, function: Callable[[Any], Array], array: Any) -> Array:
        """Return what a function makes of every chunk, an array with an entry for each."""
        ones = tuple((1,) * len(chunks) for chunks in array.chunks)
        mapped = array.map_blocks(function, dtype=object, chunks=ones, meta=np.empty((0, 0), object))
        with _held_by_a_cluster(self._source):
            computed: Array = compute(mapped, client=self._client)
        return computed


def _stored_values(chunk: Any) -> Array:
    return np.array([[chunk.nnz if is_sparse(chunk) else np.count_nonzero(chunk)]], dtype=object)


def _as_csr(chunk: Any) -> Array:
    import scipy.sparse as sp

    made = np.empty((1, 1), object)
    made[0, 0] = sp.csr_array(chunk)
    return made


def lazy_samples(collection: Collection) -> da.Array:
    """Return the samples of a collection as a lazy array of its shape; see `Collection.to_dask`."""
    if collection.mixed:
        raise RequestError(
            f"{collection.source} holds images of several sizes, which make no array; take them one by one, as "
            "collection[0], or prepare them, as by Preparation(resize=(64, 64))."
        )
    meta = collection.as_images(np.empty((0, collection.n_features), collection.dtype))
    return lazy_rows(collection, _Samples(collection), meta.shape[1:], meta.dtype)


class _Samples:
    """Rows of a collection in the shape of its samples."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection

    def __call__(self, rows: Array, start: int) -> Array:
        rows = rows if rows.flags.owndata else rows.copy()  # a view of an array in memory must not leak to the caller
        return self._collection.as_images(rows)


def lazy_rows(
    collection: Collection,
    function: Callable[[Array, int], Array],
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    read: Callable[[slice], Array] | None = None,
) -> da.Array:
    """Apply a function of blocks of samples to a collection: a lazy array of shape (n, *shape), chunked by samples.

    Parameters
    ----------
    collection : Collection
        The collection, which is in the graph once; each chunk reads its own samples.
    function : callable
        ``function(rows, start)`` maps m rows of features, of the samples from `start` on, to an array (m, *shape).
    shape, dtype
        Shape of the result for one row, and dtype of the result.
    read : callable, optional
        Reads the samples of a block; by default the collection's `read`.
    """
    import dask.array as da

    row_bytes = max(1, collection.n_features * collection.dtype.itemsize)
    rows = max(1, LAZY_BLOCK_BYTES // row_bytes)
    whole = rows // collection.chunks.samples * collection.chunks.samples
    rows, dtype = min(whole or rows, collection.n_samples), np.dtype(dtype)
    return da.from_array(
        _Mapped(collection.n_samples, read or collection.read, function, shape, dtype),
        chunks=(rows, *shape),
        # A random name: the fingerprint of an array in memory covers only some values, so that a name derived from it
        # could be the same for different arrays.
        name=False,
        asarray=False,
        getitem=_Mapped.rows,  # in place of dask's own, into which it would fuse slices of the result
        meta=np.empty((0,) * (1 + len(shape)), dtype),
    )


class _Mapped:
    """A collection mapped row by row, in the form that `dask.array.from_array` slices."""

    def __init__(
        self,
        n_samples: int,
        read: Callable[[slice], Array],
        function: Callable[[Array, int], Array],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._read, self._function = read, function
        self.shape, self.dtype = (n_samples, *shape), dtype
        self.ndim = len(self.shape)

    def rows(self, key: tuple[slice, ...]) -> Array:
        """Map the samples of a chunk, whose other slices are whole axes."""
        start = key[0].start
        return self._function(self._read(slice(start, key[0].stop)), start)


def with_dense_chunks(array: Any) -> Any:
    """Return a dask array whose chunks are dense; of sparse ones, not every format can be sliced and joined."""
    if not is_sparse(array._meta):
        return array
    return array.map_blocks(dense, dtype=array.dtype, meta=np.empty((0,) * array.ndim, array.dtype))


def with_csr_chunks(array: Any) -> Any:
    """Return a dask array whose chunks, if they are sparse, are CSR, which can be sliced and joined."""
    if not is_sparse(array._meta):
        return array
    from scipy.sparse import csr_array

    return array.map_blocks(csr_array, dtype=array.dtype, meta=csr_array((0, 0), dtype=array.dtype))


def dense(values: Any) -> Any:
    """Return values as they are, or those of a sparse matrix as a dense array."""
    return values.toarray() if is_sparse(values) else values


def _computable(array: Any) -> Any:
    """Return the dask array that an `xarray.DataArray` holds, or a dask array itself."""
    return getattr(array, "data", array)


def is_lazy(source: Any) -> bool:
    """Return whether an object is computed when it is converted to numpy."""
    graph = getattr(source, "__dask_graph__", None)
    return callable(graph) and graph() is not None and bool(getattr(source, "chunks", None))


def open_frame(source: Any, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open a dask DataFrame; samples are its rows. All partitions are computed once, to count the rows."""
    name = "dask DataFrame"
    refuse_key(key, f"a {name}")
    return ArrayCollection(LazyFrame(source, name), source=name, **axes)


def joined_frames(frames: Sequence[Any]) -> Any:
    """Return dask DataFrames one after another."""
    import dask.dataframe

    return dask.dataframe.concat(frames)


class LazyFrame(StoredArray):
    """The numbers of a data frame, in a dtype that holds the numbers of all columns."""

    encoded = True
    counts_first = True

    def __init__(self, frame: Any, source: str) -> None:
        self._frame, self._source = frame, source
        with _held_by_a_cluster(source):
            self._client = client_of(frame)
        self.dtype = _dtype_of(frame, source)
        counts = [int(count) for count in self._computed(frame.map_partitions(len))]
        self._edges = np.cumsum([0, *counts])
        self.shape = (int(self._edges[-1]), len(frame.columns))
        self.chunk_shape = (max(counts, default=1) or 1, self.shape[1])
        # A partition, the inputs of its computation, and its values in one dtype.
        self.decode_bytes = 3 * self.chunk_shape[0] * self.shape[1] * self.dtype.itemsize
        self._last: tuple[int, Array] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_last", "_lock", "_client")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _last=None, _lock=threading.Lock(), _client=None)

    def read_into(self, box: Box, out: Array) -> None:
        """Copy rows of one partition after another."""
        rows, columns = box
        first = int(np.searchsorted(self._edges, rows.start, side="right")) - 1
        for number in range(first, int(np.searchsorted(self._edges, rows.stop))):
            start, stop = (int(edge) for edge in self._edges[number : number + 2])
            here = slice(max(rows.start, start), min(rows.stop, stop))
            if here.stop > here.start:
                values = self._partition(number)
                out[here.start - rows.start : here.stop - rows.start] = values[
                    here.start - start : here.stop - start, columns
                ]

    def _partition(self, number: int) -> Array:
        """Return the values of a partition; it is computed unless it was read last."""
        with held(self._lock):
            if self._last is None or self._last[0] != number:
                self._last = None  # freed before the next one is computed
                frame = self._computed(self._frame.partitions[number])
                values = np.asarray(frame.to_numpy(dtype=self.dtype))
                count = int(self._edges[number + 1] - self._edges[number])
                if values.shape != (count, self.shape[1]):
                    raise ChangedError(
                        f"partition {number} of {self._source} has {len(values)} rows, and had {count} when they were "
                        "counted; give a frame whose partitions are the same each time they are computed."
                    )
                self._last = number, values
            return self._last[1]

    def _computed(self, part: Any) -> Any:
        """Compute in this thread unless a scheduler was chosen: dask's threads would keep the memory that they free."""
        with _held_by_a_cluster(self._source):
            return compute(part, client=self._client, default="synchronous")

    def states(self, *, now: bool = False) -> list[State]:
        """Return a state of the name of the graph's result, which dask derives from the graph's inputs."""
        return [State(0, self._source, digest(str(getattr(self._frame, "_name", ""))))]


@contextmanager
def _held_by_a_cluster(source: str) -> Iterator[None]:
    """Turn dask's error into one that tells that a cluster lost the data of an array or a frame."""
    try:
        yield
    except CancelledError as error:
        raise SourceError(f"{source} has lost what a cluster held of it, as by a restart; persist it again.") from error


def _dtype_of(frame: Any, source: str) -> np.dtype[Any]:
    """Return the dtype that holds the numbers of all columns."""
    dtypes = dict(frame.dtypes)
    for name, dtype in dtypes.items():
        if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
            raise SourceError(
                f"column {name!r} of {source} has dtype {dtype}, which numpy has no real numbers of; leave it out, or "
                f"convert it: frame.astype({{{name!r}: 'float64'}})."
            )
    return check_dtype(np.result_type(*dtypes.values()), source)
