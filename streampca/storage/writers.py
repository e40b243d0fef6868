"""Writers of scores and images, block by block: one for each format (Zarr, npy, TIFF, csv, Parquet)."""

from __future__ import annotations

import asyncio
import csv
import json
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import IO, Any, Protocol

import numpy as np
import zarr
from zarr.codecs import BloscCodec
from zarr.core.sync import sync

from ..arrays import Array
from ..errors import OutputError, without_secrets
from ..planning.boxes import Box, flat_range
from ..planning.component_chunks import Cut
from ..units import MIB
from .coordinate import PACKING, Coordinate
from .disk import UnsyncedFiles, sync_files
from .georeference import GRID_MAPPING, reference_name
from .remote import is_url
from .stored_names import log_renamed, originals_of, renamed_axes, renamed_coordinates, stored_names
from .table_cells import as_cell
from .tiff_pages import ENDINGS as TIFF
from .tiff_pages import page_layout, values_of, write_empty
from .zarr_concurrency import chunks_at_once
from .zarr_urls import to_write

WRITES_END = 30.0  # seconds to wait for writes in progress
ATTRIBUTE = "streampca"  # root attribute of every Zarr group that streampca writes
SAMPLE, SAMPLE_AXIS = "sample", "sample_axis"  # array of names; attribute that names the axis of samples
NAMES_AT_A_TIME = 100_000
PARQUET = ".parquet"
IN_ORDER = (".csv", PARQUET)  # endings of formats written from the first row to the last, by one process
GROUP_BYTES = 4 * MIB  # scores in a group of rows of a Parquet file; one group is in memory
CSV_DIGITS = {4: 9, 8: 17}  # significant digits that restore a float, by its bytes
# By default Zarr omits chunks that hold only the fill value; if all are written, a missing chunk is damage.
EVERY_CHUNK: Any = {"write_empty_chunks": True}
# Compression of outputs. Compared with Zarr's default, pictures of 8 bits are as small and as fast to read, and
# pictures of 16 bits 12 % smaller, as high and low bytes are grouped (benchmarks/copies.py). Images of float32 are 6 %
# smaller, written with 0.6 of the work and read 3 times as fast.
COMPRESSION = BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")


@dataclass(frozen=True)
class OutputArray:
    """Description of an array of n rows to be written.

    Attributes
    ----------
    name : str
        ``"scores"``, ``"images"`` or ``"components"``.
    shape, dims, dtype
        Shape, names of axes and dtype of the array, samples first. An axis that is called like an array of ours gets
        another name, see `stored_names`, and so do coordinates.
    ours : tuple of str
        Names among `dims` of axes that are not the source's, such as "component".
    names : sequence of str or None
        Names of the samples.
    chunk_rows : int
        Rows written at a time are whole multiples of this.
    attributes : mapping
        Plain data stored with the array, in formats that hold them.
    coordinates : mapping of str to Coordinate
        Coordinates along one or several dimensions, in formats that hold them; others are omitted.
    sample_coordinates : mapping of str to Coordinate
        Further coordinates along the samples, n values each, by name, likewise; names already used are omitted.
    cut : Cut or None
        How Zarr stores the array; whole rows in chunks of `chunk_rows` by default.
    counts : bool
        Whether the first axis counts samples, including when the output is read again.
    path : str
        Path of the complete output, whose ending distinguishes OME-TIFF; empty where it does not matter.
    renamed : mapping of str to str
        Stored names of the axes and coordinates that have been given others.
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    dtype: np.dtype[Any]
    ours: tuple[str, ...] = ()
    names: Sequence[str] | None = None
    chunk_rows: int = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    sample_coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    cut: Cut | None = None
    counts: bool = True
    path: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first, *others = self.dims
        is_named, ours = self.names is not None, {self.name, *self.ours}
        # Coordinates along axes that the array lacks would make an invalid dataset.
        within = {name: item for name, item in self.coordinates.items() if set(item.along(name)) <= {*self.dims}}
        kept = {*within} - {*self.ours}
        along = {name: item for name, item in self.sample_coordinates.items() if name not in kept}
        if is_named and first == SAMPLE:
            along.pop(SAMPLE, None)  # the names themselves
        names, every = {SAMPLE} if is_named else set(), {*self.dims, *within, *along}
        theirs = (*(others if self.counts else self.dims), *within)
        inner = stored_names([name for name in theirs if name not in self.ours], ours | names, every)
        others = list(renamed_axes(others, inner))
        outer = inner
        if self.counts:
            outer = stored_names((first, *along), ours | {*others} | names - {first}, every | {*inner.values()})
        # An axis of samples that has no name in the source gives way to one that has this name.
        recorded = {name: new for name, new in outer.items() if name not in {*others} - {*self.ours}}
        new = {
            "dims": (outer.get(first, first), *others),
            "coordinates": renamed_coordinates(within, inner),
            "sample_coordinates": renamed_coordinates(along, outer),
            "renamed": {**self.renamed, **inner, **recorded},
        }
        for name, value in new.items():
            object.__setattr__(self, name, value)

    def most_bytes(self, suffix: str) -> int:
        """Return the uncompressed bytes of the values in the format of an ending."""
        in_text = CSV_DIGITS[self.dtype.itemsize] + 7 if suffix == ".csv" else None  # sign, point, exponent and comma
        return math.prod(self.shape) * (in_text or self.dtype.itemsize)


@dataclass
class UnfinishedOutput:
    """Partial output that is kept when writing breaks off, to be resumed; changes as it grows.

    Attributes
    ----------
    token : str
        Eight hexadecimal digits of the partial name; empty before it exists.
    size : int or None
        Bytes safely on disk, of an output in one file; None if nothing can be resumed.
    """

    token: str = ""
    size: int | None = None

    @property
    def is_resumable(self) -> bool:
        """True if a part is safely on disk."""
        return self.size is not None


class Writer(Protocol):
    """Writer of rows, or of boxes of them.

    Formats in `IN_ORDER` require rows in order, from this process. Copies of the other writers that were pickled to
    other processes write to the same output, each of them whole chunks.
    """

    def write(self, start: int, rows: Array, inside: Box = ()) -> None:
        """Write rows `start` onwards, or a box of them at `inside` of the sample's axes, a range of the flat sample."""

    def sync(self) -> int:
        """Sync a resumable output to disk; return the bytes of the file, 0 for a folder."""

    def close(self) -> None:
        """Complete the output, and sync it if resumable; can be repeated after resuming."""

    def abandon(self) -> None:
        """Release the output without completing it."""


def _of_values(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that hold for the unpacked values that are written."""
    return {name: value for name, value in attributes.items() if name not in PACKING}


def _text(name: str) -> str:
    """Return a file's name as UTF-8 with other bytes escaped, without the secrets of a URL."""
    return without_secrets(name).encode("utf-8", "backslashreplace").decode("utf-8")


class _FileWriter:
    """Writer of one file."""

    _file: IO[Any]
    _unfinished: UnfinishedOutput | None

    def sync(self) -> int:
        self._file.flush()
        sync_files([self._file.name], os.path.dirname(os.path.abspath(self._file.name)))
        size = os.fstat(self._file.fileno()).st_size
        if self._unfinished is not None:
            self._unfinished.size = size
        return size

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        with suppress(OSError):  # `sync` has not counted bytes that cannot be flushed
            self._file.close()


class _NpyWriter(_FileWriter):
    def __init__(self, path: str, table: OutputArray, unfinished: UnfinishedOutput | None = None) -> None:
        self._unfinished, resumes = unfinished, unfinished is not None and unfinished.is_resumable
        self._file = open(path, "r+b" if resumes else "xb", buffering=0)  # noqa: SIM115 - `close` or `abandon` does
        header = {"descr": np.lib.format.dtype_to_descr(table.dtype), "fortran_order": False, "shape": table.shape}
        try:
            np.lib.format.write_array_header_1_0(self._file, header)
        except BaseException:
            self.abandon()
            raise
        self._dtype, self._shape, self._first = table.dtype, table.shape[1:], self._file.tell()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": os.path.abspath(self._file.name)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _file=open(state["_file"], "r+b", buffering=0))  # noqa: SIM115

    def write(self, start: int, rows: Array, inside: Box = ()) -> None:
        values = np.ascontiguousarray(rows, self._dtype)
        row = math.prod(self._shape) * self._dtype.itemsize
        if not inside:
            self._put(values, self._first + start * row)
            return
        at, _ = flat_range(inside, self._shape)
        for number, box in enumerate(values.reshape(len(values), -1), start):
            # A box is a range of the flat sample, so that each row of it is contiguous in the file.
            self._put(box, self._first + number * row + at * self._dtype.itemsize)

    def _put(self, values: Array, at: int) -> None:
        remaining = values.reshape(-1).view(np.uint8).data
        while remaining:  # without seeking, as several threads write; the system can write a part only
            count = os.pwrite(self._file.fileno(), remaining, at)
            remaining, at = remaining[count:], at + count


class _TiffWriter(_NpyWriter):
    """Writer of pages of float32 values, which are contiguous as in ``.npy``."""

    def __init__(self, path: str, table: OutputArray, unfinished: UnfinishedOutput | None = None) -> None:
        self._unfinished = unfinished
        if unfinished is None or not unfinished.is_resumable:
            along = {**table.sample_coordinates, **table.coordinates}
            write_empty(path, table.path, page_layout(table.shape, table.dims), along)
        self._first, self._dtype = values_of(path)
        self._shape = table.shape[1:]
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115 - as above


class _CsvWriter(_FileWriter):
    def __init__(self, path: str, table: OutputArray, unfinished: UnfinishedOutput | None = None) -> None:
        self._unfinished, size = unfinished, None if unfinished is None else unfinished.size
        if size is not None:
            # Rows after the last sync are written again.
            os.truncate(path, size)
        self._file = open(path, "x" if size is None else "a", newline="", encoding="utf-8")  # noqa: SIM115 - as above
        self._writer = csv.writer(self._file)
        self._names = table.names
        if size is None:
            self._writer.writerow(["sample", *(f"{table.dims[1]}_{j + 1}" for j in range(table.shape[1]))])

    def write(self, start: int, rows: Array, inside: Box = ()) -> None:
        # Enough digits to read back the same bits.
        digits = f".{CSV_DIGITS[rows.dtype.itemsize]}g"
        for number, row in enumerate(rows, start):
            # Names come from the data: they must not become formulas.
            name = as_cell(_text(self._names[number])) if self._names is not None else number
            self._writer.writerow([name, *(format(value, digits) for value in row.tolist())])


class _ParquetWriter(_FileWriter):
    """Writer of a table for pandas, polars and databases: samples, their coordinates, scores.

    The end of the file lists the groups of rows: without it, nothing can be read or resumed.
    """

    def __init__(self, path: str, table: OutputArray, unfinished: UnfinishedOutput | None = None) -> None:
        import pyarrow
        from pyarrow import parquet

        self._unfinished, self._table, self._pending, self._start = None, table, list[Array](), 0
        self._scores = [f"{table.dims[1]}_{j + 1}" for j in range(table.shape[1])]
        names = stored_names(table.sample_coordinates, {*self._scores})
        log_renamed({**table.renamed, **names}, table.path or path)
        along = renamed_coordinates(table.sample_coordinates, names)
        self._along = {name: np.asarray(coordinate.values) for name, coordinate in along.items()}
        fields = [] if SAMPLE in self._along else [(SAMPLE, pyarrow.string() if table.names else pyarrow.int64())]
        fields += [(name, pyarrow.from_numpy_dtype(values.dtype)) for name, values in self._along.items()]
        fields += [(name, pyarrow.from_numpy_dtype(table.dtype)) for name in self._scores]
        about = json.dumps({"kind": table.name, "complete": True, **table.attributes})
        self._schema = pyarrow.schema(fields, metadata={ATTRIBUTE: about})
        self._file = open(path, "xb")  # noqa: SIM115 - as above
        self._writer = parquet.ParquetWriter(self._file, self._schema, compression="zstd")

    def write(self, start: int, rows: Array, inside: Box = ()) -> None:
        self._pending.append(np.array(rows))
        if sum(block.nbytes for block in self._pending) >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow

        rows, start = np.concatenate(self._pending), self._start
        self._pending, self._start = [], start + len(rows)
        group, names = slice(start, self._start), self._table.names
        numbered = np.arange(start, self._start)
        columns: dict[str, Any] = {SAMPLE: numbered if names is None else [_text(name) for name in names[group]]}
        columns |= {name: values[group] for name, values in self._along.items()}
        columns |= {name: np.ascontiguousarray(rows[:, j]) for j, name in enumerate(self._scores)}
        self._writer.write_table(pyarrow.table(columns, schema=self._schema))

    def close(self) -> None:
        if self._pending:
            self._write_group()
        self._writer.close()
        super().close()

    def abandon(self) -> None:
        self._writer.is_open = False  # otherwise its destructor would write the end of the file
        super().abandon()


class ZarrWriter:
    """Writer of a group with one array of rows, their names and coordinates: an xarray Dataset.

    Parameters
    ----------
    path : str
        Folder to write, from `staged`.
    table : OutputArray
        Description of the array.
    unfinished : UnfinishedOutput, optional
        Output to resume if it is resumable; None if files need not be synced.
    """

    def __init__(self, path: str, table: OutputArray, unfinished: UnfinishedOutput | None = None) -> None:
        self._path, self._table, self._lock, self._is_shared = path, table, threading.Lock(), False
        self._unfinished = unfinished
        is_synced = unfinished is not None and not is_url(path)  # stores keep what they have taken
        self._unsynced = UnsyncedFiles(os.path.dirname(os.path.abspath(path))) if is_synced else None
        if unfinished is not None and unfinished.is_resumable:
            # The previous run can have died while Zarr was writing.
            remove_debris(path)
            self._open()
        else:
            log_renamed(table.renamed, table.path or path)
            with compact_metadata():
                self._group = zarr.create_group(to_write(path), zarr_format=3)
                self._array: Any = self._create()
            if self._unsynced is not None:
                self._unsynced.add(os.path.join(path, name, "zarr.json") for name in ("", table.name))

    def _open(self) -> None:
        self._group = zarr.open_group(to_write(self._path), mode="r+", zarr_format=3, use_consolidated=False)
        self._array = reopened(self._group, self._table.name)

    def __getstate__(self) -> dict[str, Any]:
        self._is_shared = True
        # The process that opened the output writes names and coordinates, which can be large.
        table = replace(self._table, names=None, attributes={}, coordinates={}, sample_coordinates={})
        path = self._path if is_url(self._path) else os.path.abspath(self._path)
        return {"path": path, "table": table, "syncs": self._unsynced is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._path, self._table, self._lock = state["path"], state["table"], threading.Lock()
        self._is_shared, self._unfinished = True, None
        self._unsynced = UnsyncedFiles(os.path.dirname(self._path)) if state["syncs"] else None
        self._open()

    def _create(self) -> zarr.Array[Any]:
        table = self._table
        whole_rows = (min(table.chunk_rows, table.shape[0]), *table.shape[1:])
        storage: dict[str, Any] = {"chunks": whole_rows}
        if table.cut is not None:
            storage = {"chunks": table.cut.chunk, "shards": table.cut.shard}
        return self._group.create_array(
            table.name,
            shape=table.shape,
            dtype=table.dtype,
            dimension_names=table.dims,
            attributes=_of_values(table.attributes) | self._links(),
            compressors=[COMPRESSION],
            config=EVERY_CHUNK,
            **storage,
        )

    def _links(self) -> dict[str, str]:
        """Return attributes for the axis of samples, and for coordinates that are not dimensions (CF, section 5)."""
        table = self._table
        named = [SAMPLE] if table.names is not None else []
        names = [name for name in (*named, *table.coordinates, *table.sample_coordinates) if name not in table.dims]
        about = {SAMPLE_AXIS: table.dims[0]} if table.counts else {}
        reference = reference_name(table.coordinates)
        about |= {} if reference is None else {GRID_MAPPING: reference}
        return about | ({"coordinates": " ".join(names)} if names else {})

    def write(self, start: int, rows: Array, inside: Box = ()) -> None:
        """Write rows `start` onwards, or a box of them that starts and stops at `inside` of the sample's axes."""
        box = (slice(start, start + len(rows)), *inside)
        files = list(files_of(self._array, os.path.join(self._path, self._table.name), box))
        # One write of several files has a chunk in memory for every core; single files are written in parallel.
        with self._lock if len(files) > 1 else nullcontext(), chunks_at_once():
            self._array[box] = rows
        if self._unsynced is not None:
            with self._lock:
                self._unsynced.add(files)

    def sync(self) -> int:
        """Sync written values to disk."""
        if self._unsynced is not None:
            with self._lock:
                self._unsynced.sync()
        if self._unfinished is not None:
            self._unfinished.size = 0
        return 0

    def close(self) -> None:
        """Write names and coordinates, and mark the group complete."""
        table = self._table
        if self._is_shared:  # a process that shared it can have died
            remove_debris(self._path)
        with compact_metadata():
            for name, coordinate in table.coordinates.items():
                self._write_along(coordinate.along(name), name, np.asarray(coordinate.values), coordinate.attributes)
            for name, coordinate in table.sample_coordinates.items():
                self._write_along(table.dims[:1], name, np.asarray(coordinate.values), coordinate.attributes)
            if table.names is not None:
                self._write_along(table.dims[:1], SAMPLE, table.names, {})
            _check_array(self._path, table)
            # Last, so that an incomplete output is visibly so.
            originals = originals_of(table.renamed, table.dims)
            self._group.attrs.put({ATTRIBUTE: {"kind": table.name, "complete": True, **originals}})
            consolidate(self._path)
        if self._unsynced is not None:
            self._unsynced.add(files_but(self._path, self._table.name))
            self._unsynced.sync()

    def _write_along(
        self, dims: tuple[str, ...], name: str, values: Sequence[str] | Array, attributes: Mapping[str, Any]
    ) -> None:
        """Write values along dimensions; text, along one dimension, is written in parts."""
        is_text = not isinstance(values, np.ndarray) or values.dtype.kind in "OSUT"
        options: dict[str, Any] = {"chunks": (min(len(values), NAMES_AT_A_TIME),), "dtype": "string"} if is_text else {}
        if isinstance(values, np.ndarray) and not is_text:
            if values.dtype.kind == "M":  # stored as by xarray, as Zarr has no settled type for times
                attributes = {**attributes, "units": "nanoseconds since 1970-01-01", "calendar": "proleptic_gregorian"}
                values = values.astype("M8[ns]").astype(np.int64)
            options = {"dtype": values.dtype}
        shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
        array = self._group.create_array(name, shape=shape, dimension_names=dims, overwrite=True, **options)
        array.attrs.put(_of_values(attributes))
        for start in range(0, len(values), NAMES_AT_A_TIME) if is_text else ():
            part = values[start : start + NAMES_AT_A_TIME]
            array[start : start + len(part)] = np.array([_text(str(value)) for value in part], dtype=object)
        if not is_text:
            array[...] = values

    def abandon(self) -> None:
        """Do nothing: nothing is held open."""


WRITERS: dict[str, Callable[[str, OutputArray, UnfinishedOutput | None], Writer]] = {
    ".zarr": ZarrWriter,
    ".npy": _NpyWriter,
    **dict.fromkeys(TIFF, _TiffWriter),
    ".csv": _CsvWriter,
    PARQUET: _ParquetWriter,
}


def reopened(group: zarr.Group, name: str) -> Any:
    """Return an array of a group that writes every chunk to a file, as when it was created."""
    with zarr.config.set({f"array.{key}": value for key, value in EVERY_CHUNK.items()}):
        return group[name]


def wait_for_writes() -> None:
    """Wait until Zarr has ended all other writes after one of them failed.

    Zarr writes chunks concurrently and raises the first error at once: the other writes would create a folder again
    that was removed meanwhile.
    """

    async def others() -> None:
        current = asyncio.current_task()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not current), return_exceptions=True)

    with suppress(TimeoutError):  # remote reads can take longer, and do no harm
        sync(others(), timeout=WRITES_END)


def compact_metadata() -> Any:
    """Return a context in which Zarr writes metadata without indents, with which Python encodes ten times as long."""
    return zarr.config.set({"json_indent": None})


def consolidate(path: str) -> None:
    """Gather all metadata of a group into its root, so that opening it reads one file."""
    with warnings.catch_warnings(), compact_metadata():
        warnings.filterwarnings("ignore", message="Consolidated metadata", category=UserWarning)
        zarr.consolidate_metadata(to_write(path))


def files_of(array: Any, folder: str, box: Box) -> Iterator[str]:
    """Yield the files that hold a box of an array in `folder`; the box can omit last axes."""
    cuts = array.shards or array.chunks
    whole = (slice(0, length) for length in array.shape[len(box) :])
    touched = (range(part.start // cut, -(-part.stop // cut)) for part, cut in zip((*box, *whole), cuts, strict=True))
    for coordinates in product(*touched):
        yield os.path.join(folder, array.metadata.encode_chunk_key(coordinates))


def files_but(path: str, name: str) -> Iterator[str]:
    """Yield every file of a group except those of one array."""
    for folder, folders, files in os.walk(path):
        if folder == path and name in folders:
            folders.remove(name)
        yield from (os.path.join(folder, file) for file in files)


def remove_debris(path: str) -> None:
    """Remove the temporary files that Zarr was writing when the process died."""
    for folder, _, files in os.walk(path):
        for file in files:
            if file.endswith(".partial"):
                os.remove(os.path.join(folder, file))


def _check_array(partial: str, table: OutputArray) -> None:
    """Raise OutputError unless an array that was written in shards has its shape, dtype and every chunk."""
    written: Any = zarr.open_group(to_write(partial), mode="r", use_consolidated=False)[table.name]
    if written.shards is None:
        return
    # Zarr counts every chunk of an existing shard, including those past the array's end.
    shards = math.prod(math.ceil(length / run) for length, run in zip(table.shape, written.shards, strict=True))
    chunks = shards * math.prod(run // part for run, part in zip(written.shards, written.chunks, strict=True))
    is_whole = written.nchunks_initialized == chunks
    if (written.shape, written.dtype) != (table.shape, table.dtype.newbyteorder("=")) or not is_whole:
        raise OutputError(f"{table.path} is not what was written to it; check the disk, then write it again.")
