"""Where results go: Zarr, ``.npy`` or ``.csv``, block by block in bounded memory, complete or visibly not.

Rows are written beside the output, under a name ending in ``.streampca-partial``, which takes its name when the last
row is there; until then, what is to be replaced stays.
"""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec

from .boxes import Box, flat_range
from .collection import Coordinate
from .errors import OutputError, RequestError, without_secrets
from .machine import cores
from .units import MIB

Array = npt.NDArray[Any]

ATTRIBUTE = "streampca"  # root attribute of every store of ours
PARTIAL, REPLACED = ".streampca-partial", ".streampca-replaced"  # nobody else's names: what has them is removed
SUFFIXES = (".zarr", ".npy", ".csv")
NAMES_AT_A_TIME = 100_000
NEXT_TO_NOTHING = 1 * MIB  # free on a disk: no model or table fits
# Of copies: pictures of 8 bits as small as Zarr's default makes them and as fast to read, of 16 bits 12 % smaller,
# for bytes of one kind are gathered first (benchmarks/copies.py).
COMPRESSION = BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")


class Cut(NamedTuple):
    """Shapes of what Zarr decodes at least, and of the files it gathers that in."""

    chunk: tuple[int, ...]
    shard: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """What will be written: one array of n rows.

    Attributes
    ----------
    name : str
        Of the array: ``"scores"`` or ``"images"``.
    shape, dims, dtype
        Of the array, samples first.
    names : sequence of str or None
        The samples' own names.
    chunk_rows : int
        Rows written at a time are whole multiples of this.
    attributes : mapping
        Plain data kept with the output, where the format has room.
    coordinates : mapping of str to Coordinate
        One-dimensional coordinates by dimension, where the format has room; those of other names are left out.
    sample_coordinates : mapping of str to Coordinate
        Others along the samples, n values each, by name, where the format has room; names that are taken are left out.
    cut : Cut or None
        How Zarr stores the array; whole rows in chunks of `chunk_rows` by default.
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    dtype: np.dtype[Any]
    names: Sequence[str] | None = None
    chunk_rows: int = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    sample_coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    cut: Cut | None = None

    def __post_init__(self) -> None:
        taken = {self.name, *self.dims[1:]} | ({self.dims[0]} if self.names is not None else set())
        beside = {name: kept for name, kept in self.sample_coordinates.items() if name not in taken}
        object.__setattr__(self, "sample_coordinates", beside)
        within = {name: kept for name, kept in self.coordinates.items() if name in self.dims}
        object.__setattr__(self, "coordinates", within)


class Sink(Protocol):
    """Takes rows in order, or boxes of them in any."""

    def write(self, start: int, rows: Array, inside: Box = ()) -> None:
        """Write rows `start` onwards, or a box of them at `inside` of the sample's axes, itself a range of it."""


@contextmanager
def open_sink(path: str, table: Table, *, overwrite: bool = False) -> Iterator[Sink]:
    """Open an output for writing by the ending of its name; complete it when the block ends well.

    Raises
    ------
    OutputError
        If it exists already and `overwrite` is false, or cannot be written.
    RequestError
        If the ending is none of .zarr, .npy, .csv, or the format cannot hold the array.
    """
    suffix = check_output(path, table.name, overwrite=overwrite)
    if suffix == ".csv" and len(table.shape) > 2:
        raise RequestError(f"{path}: images do not fit a csv table; write them to .zarr or .npy.")
    with staged(path) as partial:
        sink = _SINKS[suffix](partial, table)
        try:
            yield sink
            sink.close()
        except BaseException:
            sink.abandon()
            raise


@contextmanager
def staged(path: str) -> Iterator[str]:
    """Give the name to write an output under; it takes the output's name when the block ends well, else it is removed.

    What has the output's name already stays until then. Folders above it are made.

    Raises
    ------
    OutputError
        If something cannot be written.
    """
    path = path.rstrip("/")
    partial = path + PARTIAL
    with writing(path):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        discard(partial)
        try:
            yield partial
            _take_place(partial, path)
        except BaseException:
            discard(partial)
            raise


def _take_place(partial: str, path: str) -> None:
    """Give a finished output its name; what has it stays whole until then, beside it if it is a folder."""
    aside = path + REPLACED
    discard(aside)
    if os.path.isdir(path) or (os.path.isdir(partial) and os.path.lexists(path)):
        os.rename(path, aside)
    os.replace(partial, path)
    discard(aside)


def check_output(path: str, kind: str, *, overwrite: bool) -> str:
    """Return the ending of an output's name, or say why nothing of a kind can be written there."""
    bare = path.rstrip("/")
    suffix = os.path.splitext(bare)[1].lower()
    if suffix not in SUFFIXES:
        raise RequestError(f"output {path} ends in none of {', '.join(SUFFIXES)}; choose one of these formats.")
    if os.path.lexists(bare):
        if not _is_ours(bare, kind):
            raise OutputError(f"{path} exists and is not {kind} written by streampca; choose another output.")
        if not overwrite:
            raise OutputError(
                f"{path} exists already; choose another output, or replace it with --overwrite (overwrite=True)."
            )
    check_place(bare)
    return suffix


def check_place(path: str) -> None:
    """Refuse a place where no file can be made, before anything is computed.

    Raises
    ------
    OutputError
        If it is an URL, or the nearest folder above that exists is none, or may not be written to.
    """
    if "://" in path:
        raise OutputError(f"{path} cannot be written: outputs are files and folders; give a path, and copy it there.")
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise OutputError(f"{path} cannot be written: {above} is not a folder; choose another output.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(f"{path} cannot be written: no permission to write in {above}; choose another output.")


def _is_ours(path: str, kind: str) -> bool:
    """Whether what exists may be replaced if asked: a file, or a Zarr group of our own of the same kind."""
    if not os.path.isdir(path):
        return True
    try:
        with open(os.path.join(path, "zarr.json"), encoding="utf-8") as file:
            about = json.load(file)["attributes"][ATTRIBUTE]
        return bool(about["kind"] == kind)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def discard(path: str) -> None:
    """Remove a file or folder, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


def _text(name: str) -> str:
    """A file's name as text that can be written: bytes that are no UTF-8 become escapes, secrets of a URL are gone."""
    return without_secrets(name).encode("utf-8", "backslashreplace").decode("utf-8")


class _FileSink:
    """What outputs in one file have in common: how they end."""

    _file: IO[Any]

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        with suppress(OSError):  # what cannot be flushed is thrown away anyway
            self._file.close()


class _NpySink(_FileSink):
    def __init__(self, path: str, table: Table) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by `close` or `abandon`
        header = {"descr": np.lib.format.dtype_to_descr(table.dtype), "fortran_order": False, "shape": table.shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._dtype, self._shape, self._first = table.dtype, table.shape[1:], self._file.tell()

    def write(self, start: int, rows: Array, inside: Box = ()) -> None:
        values = np.ascontiguousarray(rows, self._dtype)
        if not inside:
            self._file.write(values.data)
            return
        row, (at, _) = math.prod(self._shape) * self._dtype.itemsize, flat_range(inside, self._shape)
        for number, box in enumerate(values.reshape(len(values), -1), start):
            self._file.seek(self._first + number * row + at * self._dtype.itemsize)
            self._file.write(box.data)


class _CsvSink(_FileSink):
    def __init__(self, path: str, table: Table) -> None:
        self._file = open(path, "w", newline="", encoding="utf-8")  # noqa: SIM115 - closed by `close` or `abandon`
        self._writer = csv.writer(self._file)
        self._names = table.names
        self._writer.writerow(["sample", *(f"{table.dims[1]}_{j + 1}" for j in range(table.shape[1]))])

    def write(self, start: int, rows: Array, inside: Box = ()) -> None:
        digits = ".9g" if rows.dtype == np.float32 else ".17g"
        for number, row in enumerate(rows, start):
            name = _text(self._names[number]) if self._names is not None else number
            self._writer.writerow([name, *(format(value, digits) for value in row.tolist())])


class ZarrSink:
    """A group with one array of rows, their names and coordinates: an xarray Dataset.

    Parameters
    ----------
    path : str
        Folder to make, which `staged` gave.
    table : Table
        What will be written.
    """

    def __init__(self, path: str, table: Table) -> None:
        self._path, self._table = path, table
        self._group = zarr.create_group(path, zarr_format=3)
        whole_rows = (min(table.chunk_rows, table.shape[0]), *table.shape[1:])
        storage: dict[str, Any] = {"chunks": whole_rows}
        if table.cut is not None:
            storage = {
                "chunks": table.cut.chunk,
                "shards": table.cut.shard,
                "compressors": [COMPRESSION],
                "config": {"write_empty_chunks": True},  # so that one that is missing later is known to be lost
            }
        self._array = self._group.create_array(
            table.name,
            shape=table.shape,
            dtype=table.dtype,
            dimension_names=table.dims,
            attributes=dict(table.attributes) | self._links(),
            **storage,
        )

    def _links(self) -> dict[str, str]:
        """The attribute by which xarray finds coordinates that are not called like a dimension (CF, section 5)."""
        names = [name for name in self._table.sample_coordinates if name not in self._table.dims]
        return {"coordinates": " ".join(names)} if names else {}

    def write(self, start: int, rows: Array, inside: Box = ()) -> None:
        """Write rows `start` onwards, or a box of them that starts and stops at `inside` of the sample's axes."""
        # Zarr encodes ten chunks at once by default: no faster than one a core, and more memory.
        with zarr.config.set({"async.concurrency": cores()}):
            self._array[(slice(start, start + len(rows)), *inside)] = rows

    def close(self) -> None:
        """Write names and coordinates, and mark the group complete."""
        table = self._table
        for dim, coordinate in table.coordinates.items():
            self._write_coordinate(dim, dim, coordinate)
        for name, coordinate in table.sample_coordinates.items():
            self._write_coordinate(name, table.dims[0], coordinate)
        if table.names is not None:
            made = self._strings(table.dims[0], table.dims[0], len(table.names))
            for start in range(0, len(table.names), NAMES_AT_A_TIME):
                part = table.names[start : start + NAMES_AT_A_TIME]
                made[start : start + len(part)] = np.array([_text(name) for name in part], dtype=object)
        self._group.attrs.put({ATTRIBUTE: {"kind": table.name, "complete": True}})
        consolidate(self._path)

    def _write_coordinate(self, name: str, dim: str, coordinate: Coordinate) -> None:
        values, attributes = np.asarray(coordinate.values), dict(coordinate.attributes)
        if values.dtype.kind in "OSUT":
            made = self._strings(name, dim, len(values))
            values = np.array([_text(str(value)) for value in values.tolist()], dtype=object)
        else:
            if values.dtype.kind == "M":  # stored as xarray stores times: Zarr has no settled type for them
                attributes |= {"units": "nanoseconds since 1970-01-01", "calendar": "proleptic_gregorian"}
                values = values.astype("M8[ns]").astype(np.int64)
            made = self._group.create_array(name, shape=values.shape, dtype=values.dtype, dimension_names=(dim,))
        made.attrs.put(attributes)
        made[...] = values

    def _strings(self, name: str, dim: str, count: int) -> zarr.Array[Any]:
        chunks = (min(count, NAMES_AT_A_TIME),)
        return self._group.create_array(name, shape=(count,), dtype="string", chunks=chunks, dimension_names=(dim,))

    def abandon(self) -> None:
        """Nothing is held open."""


_SINKS: dict[str, Callable[[str, Table], ZarrSink | _NpySink | _CsvSink]] = {
    ".zarr": ZarrSink,
    ".npy": _NpySink,
    ".csv": _CsvSink,
}


def consolidate(path: str) -> None:
    """Gather all metadata of a group into its root, so that opening it reads one file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata", category=UserWarning)
        zarr.consolidate_metadata(path)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn what the system says about a failed write into one line that helps."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(output_problem(path, error)) from error


def output_problem(path: str, error: OSError) -> str:
    """One line about a failed write, with the remedy."""
    folder = os.path.dirname(os.path.abspath(path))
    free = shutil.disk_usage(folder).free if os.path.isdir(folder) else 0
    # Where one thread cannot make a folder for want of space, another may be told that there is no such folder.
    starved = error.errno == errno.ENOENT and os.path.isdir(folder) and free < NEXT_TO_NOTHING
    if starved or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"{path} could not be written: {os.strerror(errno.ENOSPC if starved else error.errno or errno.ENOSPC)} "
            f"({free // MIB} MiB free in {folder}). "
            "Free some space or choose another place, then run the same command again."
        )
    return f"{path} could not be written: {error.strerror or error}; check the folder and its permissions."
