"""HDF5 files and NetCDF-4, which is HDF5 with dimension scales: one dataset, contiguous, chunked or virtual.

Plain contiguous values are read by position; whole chunks of gzip data are decoded here, in threads; anything else is
read by h5py (https://docs.h5py.org), in pieces that end at chunk edges. Packed numbers with the attributes of the CF
conventions are unpacked.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Unpack

import h5py
import numpy as np

from .. import machine
from ..arrays import Array
from ..errors import SourceError, StreampcaError, first_line
from ..storage.coordinate import Coordinate, Described
from ..units import MIB
from .collection import Collection, State, check_dtype, check_shape
from .hdf5_chunks import ChunkSizes, chunk_decoder, whole_chunks
from .hdf5_content import (
    attributes_of,
    axis_names,
    check_filters,
    check_links,
    check_stored,
    dtype_of,
    holds_plain_numbers,
    opened,
    opened_file,
    reading,
    record_shape,
    scale_of,
    select_dataset,
    sources_of,
    tagged_axes,
    unwritten_of,
)
from .hdf5_growth import growing_states, mode_of, written_entries
from .stored import cf
from .stored.array import ArrayCollection, StoredArray
from .stored.default_fills import default_fill
from .stored.files import FileStates, PlainFile, Reopening
from .stored.flat import FlatArray
from .stored.kept_chunk import KeptChunk
from .stored.layout import Box, SampleAxes, largest_piece, lengths, pieces_of
from .stored.value_digests import sampled_states
from .threads import for_each

# Bytes read at a time: larger pieces were not faster.
_PIECE = 4 * MIB
# Chunks read at a time, and the memory of HDF5's plan of a read, with about 8 KiB for each chunk.
_CHUNKS = 256
_PLAN = _CHUNKS * 8192
# HDF5's cache of the index of chunks, as HDF5 counts it and as measured; by default it grows to some 30 MiB.
_INDEX, _INDEX_HELD = MIB // 4, 3 * MIB
# HDF5's default cache of chunks, for reads that begin or end inside chunks; `KeptChunk` holds larger chunks.
_CACHE = MIB
# Copies of a chunk: decoded, as stored, and between two filters. Measured were 2 to 3.5 for deflate, shuffled or not,
# and zstd.
_COPIES = 3


def open_hdf5(source: str, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open a dataset of an HDF5 or NetCDF-4 file: the one at path `key`, or the only one that can hold images."""
    with opened(source) as file:
        dataset = select_dataset(file, key, source)
        if file.swmr_mode:
            dataset.refresh()
        label = f"{source}, dataset {dataset.name.strip('/')!r}"
        array = Hdf5Array(dataset, label)
        attributes = attributes_of(dataset)
    return ArrayCollection(cf.unpacked(array, attributes, label), source=label, **axes)


class Hdf5Array(Reopening, StoredArray):
    """A dataset, identified by the path of its file and its name there."""

    _dataset: Any
    _file: Any
    _process: int
    _lock: threading.Lock
    _sizes: ChunkSizes | None

    def __init__(self, dataset: Any, label: str, *, held: bool = False) -> None:
        # Made anew without the metadata in which h5py keeps the names of an enumeration.
        self.dtype = np.dtype(check_dtype(dtype_of(dataset, label), label).str)
        self._written = check_shape(tuple(int(length) for length in dataset.shape or ()), label)
        check_filters(dataset, label)
        elsewhere = 0 if held else check_stored(dataset, label)
        self.shape = self._written if held else record_shape(dataset, label)
        self._label, self._path, self._name = label, str(dataset.file.filename), str(dataset.name)
        self.dims = axis_names(dataset) or tagged_axes(dataset, label)
        self.unwritten, self._padding = unwritten_of(dataset), None
        if self.shape != self._written:
            declares = "_FillValue" in dataset.attrs
            self._padding = dataset.fillvalue if declares else default_fill(self.dtype)
            self.unwritten = None if declares else self._padding
        self.attributes = {name: cf.plain_value(value) for name, value in attributes_of(dataset).items()}
        self._flat = None if held else _flat(dataset, self.shape, self.dtype, label)
        # Values written to an open file can still be in HDF5's memory, where our decoder does not see them.
        fixed = not held or dataset.file.mode == "r"
        self._decoder = chunk_decoder(dataset, self.dtype) if fixed else None
        # HDF5 can write to a file open for writing at any time, and some files exist in memory only.
        fixed = fixed and os.path.isfile(self._path)
        self._files = FileStates([*{self._path: "", **dict(sources_of(dataset))}]) if fixed else None
        self.grows = not held and bool(dataset.file.swmr_mode)
        self._first: dict[int, list[State]] = {}
        self._kept = KeptChunk()
        self._measure(dataset, elsewhere)
        self._forget()
        if held:
            self._dataset, self._sizes = dataset, _chunk_sizes(dataset)

    def _measure(self, dataset: Any, elsewhere: int) -> None:
        """Set chunk shape and memory of reads; `elsewhere` is the largest chunk of a virtual dataset's sources."""
        size = self.dtype.itemsize
        self.chunk_shape = tuple(dataset.chunks or (1, *self.shape[1:]))
        if self._flat is not None:
            self.chunk_shape, self.decode_bytes = self._flat.chunk_shape, self._flat.decode_bytes
        chunk = math.prod(self.chunk_shape) * size if dataset.chunks else 0
        if not dataset.id.get_create_plist().get_nfilters():
            chunk = elsewhere
        self.encoded = chunk > 0
        # Unfiltered chunks need no cache, and for virtual datasets every source would have one.
        caches = chunk > 0 and not dataset.is_virtual
        # A chunk is kept if a piece cannot hold two, and nobody can write to it meanwhile.
        self.keeps = caches and 2 * chunk > _PIECE and self._files is not None and not self.grows
        self._cache = max(chunk, _CACHE) if caches and not self.keeps else 0
        self._most = max(1, min(_PIECE // size, _CHUNKS * math.prod(self.chunk_shape)))
        if self._flat is not None:
            return
        index = _INDEX_HELD if dataset.chunks else 0
        threads = machine.cores() * self._decoder.held_bytes if self._decoder is not None else 0
        if self.keeps:
            self.decode_bytes = index + (threads or _COPIES * chunk)
            return
        piece = largest_piece(self.shape, self.chunk_shape, self._most) * size
        # HDF5 reads the chunks that threads cannot decode, while the threads continue.
        self.decode_bytes = self._cache + _COPIES * chunk + max(piece, threads) + index + (_PLAN if index else 0)

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Dimension scales by the axis's name, and datasets beside this one that its attributes name."""
        return cf.coordinates_of(self.dims or (), self.shape, self.attributes, self._variables, self._single)

    @property
    def series(self) -> Mapping[str, Any]:
        """See `Collection`: attributes of the file, and datasets of one value beside this one."""
        with reading(f"{self._label}, attributes of its file"):
            whole = attributes_of(self._open().file)
        return cf.series_of(whole, self.attributes, self._single)

    def _single(self, name: str) -> tuple[Any, Mapping[str, Any]] | None:
        with reading(f"{self._label}, coordinate {name!r}"):
            dataset = self._open().parent.get(name)
            if not isinstance(dataset, h5py.Dataset) or dataset.shape != () or dataset.dtype.kind not in "iufSO":
                return None
            return dataset[()], attributes_of(dataset)

    @property
    def described(self) -> Mapping[str, Described]:
        """Attributes of the coordinates."""
        return cf.described_by(self.dims or (), self.shape, self.attributes, self._variables)

    def _variables(self, name: str) -> Iterator[cf.Variable]:
        dataset, dims, label = self._open(), self.dims or (), f"{self._label}, coordinate {name!r}"

        def values() -> Array:
            with reading(label):
                entries = slice(0, count)
                if text:
                    return np.asarray(coordinate.asstr("utf-8", "replace")[entries].astype(np.str_))
                return np.asarray(coordinate[entries])

        check_links(dataset.parent, name)
        with reading(label):
            coordinate = scale_of(dataset, dims.index(name)) if name in dims else dataset.parent.get(name)
            if not isinstance(coordinate, h5py.Dataset) or not coordinate.shape or _is_bare(coordinate):
                return
            count = coordinate.shape[0]
            if name in dims and dataset.maxshape[dims.index(name)] is None:
                count = min(count, self.shape[dims.index(name)])  # a caller's dataset has what is stored
            text = h5py.check_string_dtype(dtype_of(coordinate, label)) is not None
            axes = (name,) if name in dims else axis_names(coordinate) or ("",) * coordinate.ndim
            if coordinate.ndim == 1 if text else coordinate.dtype.kind in "iuf":
                yield cf.Variable(
                    axes,
                    (count, *coordinate.shape[1:]),
                    text,
                    attributes_of(coordinate),
                    label,
                    values,
                    unwritten_of(coordinate),
                )

    def read_into(self, box: Box, out: Array) -> None:
        """Read what is stored of a box, the rest of which is missing."""
        inside = tuple(
            slice(min(part.start, end), min(part.stop, end)) for part, end in zip(box, self._written, strict=True)
        )
        if inside != box:
            if self._padding is None:
                raise self._no_padding()
            out[...] = self._padding
        if 0 not in lengths(inside):
            self._read_stored(inside, out[_within(inside, box)])

    def _no_padding(self) -> SourceError:
        """Return the error for bytes that are missing."""
        axis = next(axis for axis, end in enumerate(self._written) if end < self.shape[axis])
        name, end = (self.dims or ())[axis], self._written[axis]
        return SourceError(
            f"{self._label} has {end} of the {self.shape[axis]} entries of its file along {name}, and bytes have no "
            f"number that stands for none; take those that it has with --select {name}=0:{end} "
            f"(select={{{name!r}: slice(0, {end})}})."
        )

    def _read_stored(self, box: Box, out: Array) -> None:
        """Read the box by position, or its whole chunks in threads and the rest by HDF5, or all by HDF5."""
        if self._flat is not None:
            self._flat.read_into(box, out)
            return
        dataset = self._open()
        if self._decoder is None and not self.keeps:
            self._read_by_hdf5(dataset, box, out)
            return
        # In the order of storage, so that the last part belongs to the chunk in which the next read begins.
        parts = whole_chunks(box, self.chunk_shape, self._written)
        for part, whole in sorted(parts, key=lambda part: [side.start for side in part[0]]):
            inside = out[_within(part, box)]
            if whole:
                self._kept.drop()
                self._read_chunks(dataset, part, inside)
            elif self.keeps:
                for piece, within in pieces_of(part, self.chunk_shape, self._most):
                    decode = partial(self._chunk, dataset)
                    self._kept.read_into(piece, self.chunk_shape, self._written, inside[within], decode)
            else:  # through HDF5's cache: the rest of these chunks may be asked for next
                self._read_by_hdf5(dataset, part, inside)

    def _chunk(self, dataset: Any, chunk: Box) -> Array:
        """Return a whole chunk, cut at the end of the array."""
        values = None
        if self._decoder is not None:
            values = self._decoder.read(dataset, tuple(part.start for part in chunk))
        if values is None:
            values = np.empty(lengths(chunk), self.dtype)
            self._read_by_hdf5(dataset, chunk, values)
        return values[tuple(slice(0, length) for length in lengths(chunk))]

    def _read_chunks(self, dataset: Any, box: Box, out: Array) -> None:
        """Read a box of whole chunks, each into its own part of `out`, in threads."""
        decoder = self._decoder
        if decoder is None:
            self._read_by_hdf5(dataset, box, out)
            return
        counts = tuple(-(-length // side) for length, side in zip(lengths(box), decoder.shape, strict=True))

        def read_chunk(number: int) -> None:
            chunk = tuple(
                slice(part.start + int(at) * side, min(part.start + (int(at) + 1) * side, part.stop))
                for part, at, side in zip(box, np.unravel_index(number, counts), decoder.shape, strict=True)
            )
            target = out[_within(chunk, box)]
            values = decoder.read(dataset, tuple(part.start for part in chunk))
            if values is None:
                self._read_by_hdf5(dataset, chunk, target)
            else:
                target[...] = values[tuple(slice(0, length) for length in target.shape)]

        for_each(read_chunk, math.prod(counts), decoder.chunk_bytes)

    def _read_by_hdf5(self, dataset: Any, box: Box, out: Array) -> None:
        """Read the box in pieces that end at chunk edges, through scratch if `out` is not contiguous."""
        for piece, inside in pieces_of(box, self.chunk_shape, self._most):
            target = out[inside]
            if self._sizes is not None:
                with reading(self._label):
                    self._sizes.check(dataset, piece)
            direct = target if target.flags.c_contiguous else np.empty(lengths(piece), self.dtype)
            try:
                dataset.read_direct(direct.view(dataset.dtype), piece)
            except MemoryError:
                raise
            except Exception as error:  # HDF5 and its filters can raise any error for a chunk they cannot read
                where = ", ".join(f"{part.start}:{part.stop}" for part in piece)
                raise SourceError(
                    f"{self._label} cannot be read at [{where}] ({first_line(error)}); a chunk there is damaged, copy "
                    "the file again."
                ) from error
            if direct is not target:
                target[...] = direct

    def _open(self) -> Any:
        """Return the dataset, opened in this process with a cache of known size."""
        with self._lock:
            if self._dataset is None or self._process != os.getpid():
                try:
                    file = opened_file(self._path)
                    _bound_index(file)
                    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
                    access.set_chunk_cache(521, self._cache, 0.75)  # HDF5's own slots and preference
                    self._dataset = h5py.Dataset(h5py.h5d.open(file.id, self._name.encode(), access))
                    check_filters(self._dataset, self._label)
                except StreampcaError:
                    raise
                except Exception as error:  # as in read_into
                    raise SourceError(
                        f"{self._label} cannot be opened here ({first_line(error)}); keep the file where and as it was."
                    ) from error
                self._process, self._file, self._sizes = os.getpid(), file, _chunk_sizes(self._dataset)
            return self._dataset

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the file and of a virtual dataset's sources; if the caller can write, of values."""
        if self.grows:
            raise SourceError(
                f"{self._label} is being written, in SWMR mode: read it when its writer has closed it, or let a model "
                "follow it, by --follow (streampca.follow)."
            )
        if self._files is not None:
            return self._files.states(now=now)
        return sampled_states(self._open(), self._label, chunk_rows=self.chunk_shape[0])

    def states_of_first(self, length: int, *, now: bool = False) -> list[State] | None:
        """Return states of the chunks that hold the first entries; None for datasets that cannot grow."""
        if not self._can_grow:
            return None
        if now or length not in self._first:
            dataset = self._open()
            with reading(self._label):
                dataset.refresh()
                states = growing_states(dataset, min(length, self._written[0]), self._label)
            if now:
                return states
            self._first[length] = states
        return self._first[length]

    def begun(self, first: int = 0) -> int:
        """Count the entries with stored chunks while the file is open for writing; all entries once it is closed."""
        if not (self.grows and self._can_grow):
            return self.shape[0]
        with reading(self._label):
            return min(written_entries(self._open(), first), self._written[0])

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Return the number of entries whose writing had begun that long ago, as chunks have no time of change."""
        return min(before, self.shape[0]) if self._can_grow else None

    @property
    def _can_grow(self) -> bool:
        """True if the dataset can be written in SWMR mode."""
        return self._files is not None and mode_of(self._path).can_grow and bool(self._open().chunks)

    def _forget(self) -> None:
        self._dataset, self._file, self._process, self._lock = None, None, os.getpid(), threading.Lock()
        self._sizes = None


def dataset_of_object(dataset: Any, label: str) -> StoredArray:
    """Return a caller's `h5py.Dataset`: read through the open file in this process, and by path after pickling."""
    return cf.unpacked(Hdf5Array(dataset, label, held=True), attributes_of(dataset), label)


def _chunk_sizes(dataset: Any) -> ChunkSizes | None:
    """Return the check of a dataset's chunks; None if they are stored without filters."""
    return ChunkSizes(dataset) if dataset.chunks and dataset.id.get_create_plist().get_nfilters() else None


def _bound_index(file: Any) -> None:
    """Keep HDF5's cache of metadata small: chunks are read in order, so that entries are seldom needed again."""
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.max_size = _INDEX
    config.min_size = min(config.min_size, _INDEX)
    file.id.set_mdc_config(config)


def _flat(dataset: Any, shape: tuple[int, ...], dtype: np.dtype[Any], label: str) -> FlatArray | None:
    """Return the dataset as one run of plain values, None if it is not stored as one.

    200 MiB of float32 in blocks of 20 took 0.02 to 0.04 s by position and 0.11 to 0.13 s by h5py.
    """
    plist = dataset.id.get_create_plist()
    plain = plist.get_layout() == h5py.h5d.CONTIGUOUS and not plist.get_external_count()
    if not plain or not holds_plain_numbers(dataset, dtype):
        return None
    if dataset.file.driver not in ("sec2", "stdio") or not math.prod(shape):
        return None
    return FlatArray(PlainFile(str(dataset.file.filename), dataset.id.get_offset(), label), shape, dtype)


def _within(part: Box, box: Box) -> Box:
    """Return the position of a part relative to a box that contains it."""
    return tuple(
        slice(inner.start - outer.start, inner.stop - outer.start) for inner, outer in zip(part, box, strict=True)
    )


def _is_bare(scale: Any) -> bool:
    """Return whether a scale has no values: NetCDF-4 writes such a one for a dimension without a variable."""
    name = cf.plain_value(scale.attrs.get("NAME", b""))
    return isinstance(name, str) and name.startswith("This is a netCDF dimension but not a netCDF variable")
