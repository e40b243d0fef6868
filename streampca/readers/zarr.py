"""Zarr arrays and groups, formats 2 and 3, sharded or not (https://zarr-specs.readthedocs.io), on disk or behind URLs.

Packed numbers with the attributes of the CF conventions, as xarray writes them, are read as the values they stand for.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any, Unpack

import numpy as np
import zarr

from .. import machine
from ..arrays import Array
from ..errors import RequestError, SourceError, without_secrets
from ..storage import remote
from ..storage.bounded_zarr import bounded, codec_name, limited_store
from ..storage.coordinate import Coordinate, Described
from ..storage.integrity import read_model, reason_of
from ..storage.stored_names import original_names, renamed_axes, renamed_coordinates
from ..storage.writers import ATTRIBUTE, SAMPLE_AXIS
from ..storage.zarr_concurrency import chunks_at_once
from ..units import MIB
from .collection import MOST_STATES, Collection, State, check_dtype, digest, group_size, span_of
from .silence_decoders import quiet
from .stored import cf
from .stored.array import MOST_COUNTED, ArrayCollection, StoredArray, check_written, dims_of
from .stored.kept_chunk import KeptChunk, chunk_of
from .stored.layout import Box, SampleAxes, largest_piece, pieces_of
from .stored.value_digests import sampled_states
from .zarr_groups import (
    ArrayPath,
    broken,
    check_codecs,
    choose,
    is_model,
    member,
    single_value,
    text_array,
    variables_called,
)
from .zarr_threads import OneChunkReader

# Decoded bytes of a piece, which bound the memory of a read beside its result; 4 to 128 MiB read equally fast.
_PIECE = 4 * MIB
# Bytes that the memory pools of Zarr's decoding threads keep, as measured with chunks of 0.1 to 16 MiB.
_POOLS = 6 * MIB
# Chunks in memory while one is decoded, measured with values that do not compress: 2.0 with zstd and gzip, 2.8 with
# Blosc, 3.0 with filters, which make one out of another.
_COPIES, _MOST_COPIES = {"zstd": 2, "gzip": 2, "zlib": 2, "blosc": 3}, 4
# Concurrent requests for small chunks, and their bytes: a server's latency does not depend on the size of the answer.
_REQUESTS, _REQUESTED = 16, 32 * MIB

# Errors that Zarr and codecs raise for bytes that arrived but cannot be decoded; others are failures of transport.
_DAMAGE = (ValueError, LookupError, TypeError, RuntimeError)


def open_zarr(source: str, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open a Zarr array, or one array of a group: the one at path `key`, or the only one of two axes or more."""
    node = _open_node(source)
    choice = ArrayPath("")
    if isinstance(node, zarr.Group):
        choice = choose(node, key, source)
    elif key is not None:
        raise RequestError(f"key {key!r} was given, but {source} is a single Zarr array; leave key out.")
    label = without_secrets(f"{source}, array {choice.name!r}" if choice.name else source)
    handle = _array_at(node, choice.name, label)
    check_dtype(_dtype(handle), label)
    if math.prod(handle.shape) and handle.nchunks <= MOST_COUNTED and remote.is_listed(source):
        check_written(handle.nchunks_initialized, handle.nchunks, handle.metadata.fill_value, label)
    if isinstance(node, zarr.Group) and is_model(node) and not remote.is_url(source):
        read_model(source).array(choice.name)  # refuses what is damaged, or not there
    is_ours = isinstance(node, zarr.Group) and "/" not in choice.name
    array = ZarrArray(source, choice, label, handle, original_names(node.attrs.get(ATTRIBUTE)) if is_ours else {})
    values = cf.unpacked(array, _packing(handle), label)
    return ArrayCollection(values, source=label, **axes)


class ZarrArray(StoredArray):
    """A stored Zarr array, identified by the path or URL of its store and its name there."""

    _states: list[State] | None

    def __init__(
        self, path: str, choice: ArrayPath, label: str, handle: Any, originals: Mapping[str, str] | None = None
    ) -> None:
        self._originals = originals or {}
        self._path, self._choice, self._label = path, choice, label
        self._handle: Any = handle
        self._metadata, self._states = _described(handle), None
        self._stored_attributes = dict(handle.attrs)
        self.attributes = {**self._stored_attributes}
        if SAMPLE_AXIS in self.attributes:
            counting = self.attributes[SAMPLE_AXIS]
            self.attributes[SAMPLE_AXIS] = self._originals.get(counting, counting)
        self.shape = tuple(int(length) for length in handle.shape)
        self._stored_dims = choice.picture.axes if choice.picture else dims_of(handle)
        self.dims = None if self._stored_dims is None else renamed_axes(self._stored_dims, self._originals)
        self.dtype = _dtype(handle)
        self.chunk_shape = tuple(int(length) for length in handle.chunks)
        if choice.picture and len(choice.picture.axes) != len(self.shape):
            raise SourceError(
                f"{label} has {len(self.shape)} axes and its OME-Zarr metadata name {len(choice.picture.axes)} "
                f"({', '.join(choice.picture.axes)}); open it without them, as {path}/{choice.name}."
            )
        self.encoded = bool(getattr(handle, "compressors", ()) or getattr(handle, "filters", ()))
        chunk = math.prod(self.chunk_shape) * self.dtype.itemsize
        self._alone: OneChunkReader | None = None
        self._is_alone = self.keeps = 2 * chunk > _PIECE  # no piece holds two
        self._kept = KeptChunk()
        # Zarr decodes ten chunks at once by default: no faster than one a core, and 3 times the memory.
        self._at_once = 1 if self._is_alone else machine.cores()
        if remote.is_url(path) and not self._is_alone:
            self._at_once = max(self._at_once, min(_REQUESTS, _REQUESTED // max(1, 2 * chunk)))
        # A piece as Zarr returns it, the stored and the decoded bytes of every chunk under way, and the chunks that the
        # threads' memory pools keep. Chunks read alone are decoded into the target itself, unless they lie in shards.
        codecs = (*handle.filters, *handle.compressors) if self._is_alone else ()
        copies = max((_COPIES.get(codec_name(codec), _MOST_COPIES) for codec in codecs), default=1)
        self.decode_bytes = _POOLS + (copies * chunk if self._is_alone else 2 * chunk * self._at_once)
        if not self._is_alone or handle.shards:
            self.decode_bytes += largest_piece(self.shape, self.chunk_shape, self._most) * self.dtype.itemsize
        if not self._is_alone:
            self.decode_bytes += 2 * chunk * machine.cores()

    @property
    def _most(self) -> int:
        return max(1, _PIECE // self.dtype.itemsize)

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Positions of pixels by OME-Zarr metadata, else the arrays beside this one that are named as its axes."""
        if self._choice.picture:
            return self._choice.picture.coordinates(self._choice.level, self.shape)
        dims, attributes = self._stored_dims or (), self._stored_attributes
        coordinates = cf.coordinates_of(dims, self.shape, attributes, self._variables(), self._single)
        return renamed_coordinates(coordinates, self._originals)

    @property
    def described(self) -> Mapping[str, Described]:
        """Kinds of axes by OME-Zarr metadata, else the attributes of the arrays that are its coordinates."""
        if self._choice.picture:
            return self._choice.picture.described
        dims, attributes = self._stored_dims or (), self._stored_attributes
        return renamed_coordinates(cf.described_by(dims, self.shape, attributes, self._variables()), self._originals)

    def _variables(self) -> Callable[[str], Iterator[cf.Variable]]:
        """Return a function yielding the arrays of a name beside this one; for an axis's name, in parent groups too."""
        if not self._choice.name or not self.dims:
            return lambda _: iter(())
        root, folders = _open_node(self._path), [self._choice.name.rpartition("/")[0]]
        while folders[-1]:
            folders.append(folders[-1].rpartition("/")[0])
        axes = self._stored_dims or ()
        return lambda name: variables_called(name, root, folders if name in axes else folders[:1])

    def _single(self, name: str) -> Any:
        """Return the value and attributes of an array of one value beside this one; see `cf.Single`."""
        if not self._choice.name:
            return None
        return single_value(_open_node(self._path), self._choice.name.rpartition("/")[0], name)

    @property
    def series(self) -> Mapping[str, Any]:
        """See `Collection`: attributes of the group, and arrays of one value beside this one."""
        if not self._choice.name:
            return {}
        return cf.series_of(dict(_open_node(self._path).attrs), self._stored_attributes, self._single)

    def names(self, axis: str) -> Sequence[str] | None:
        """Return the array of texts beside this one that has the axis's name, or "sample" as in our own outputs."""
        if not self._choice.name or not self.dims or not self._stored_dims or axis not in self.dims:
            return None
        axis = self._stored_dims[self.dims.index(axis)]
        folder = self._choice.name.rpartition("/")[0]
        root, length = _open_node(self._path), self.shape[self._stored_dims.index(axis)]
        paths = (f"{folder}/{name}" if folder else name for name in dict.fromkeys((axis, "sample")))
        candidates = (text_array(root, path, length, axis) for path in paths)
        return next((texts for texts in candidates if texts is not None), None)

    def read_into(self, box: Box, out: Array) -> None:
        """Decode the box in pieces that end at chunk edges."""
        for piece, inside in pieces_of(box, self.chunk_shape, self._most):
            try:
                with chunks_at_once(self._at_once):
                    self._decode(piece, out[inside])
            except (SourceError, MemoryError):
                raise
            except Exception as error:  # see reason_of
                raise self._unreadable(piece, error) from error

    def _decode(self, piece: Box, out: Array) -> None:
        handle = self._open()
        if not self._is_alone:
            out[...] = handle[piece]
            return
        if self._alone is None or not self._alone.is_here:
            self._alone = OneChunkReader(handle)
        if piece == chunk_of(piece, self.chunk_shape, self.shape):
            self._kept.drop()
            self._alone.read_into(piece, out)
        else:
            self._kept.read_into(piece, self.chunk_shape, self.shape, out, self._alone.read)

    def _unreadable(self, piece: Box, error: Exception) -> SourceError:
        where = ", ".join(f"{part.start}:{part.stop}" for part in piece)
        if remote.is_url(self._path) and not isinstance(error, _DAMAGE):
            return remote.failure(f"{self._label} at [{where}]", error)
        return SourceError(
            f"{self._label} cannot be read at [{where}] ({reason_of(error)}); a chunk there is damaged, copy the store "
            "again."
        )

    def states(self, *, now: bool = False) -> list[State]:
        """Return states of runs of chunks along axis 0, with the array's metadata except its shape.

        Without `now`, the metadata are those at opening and the chunks those at the first call: opening reads no chunk.
        """
        if self._states is None or now:
            handle = _array_at(_open_node(self._path), self._choice.name, self._label) if now else self._open()
            states = chunk_states(handle, self._place, self._label, of=self.shape[0])
            if now:
                return [state._replace(state=digest(state.state, _described(handle))) for state in states]
            self._states = [state._replace(state=digest(state.state, self._metadata)) for state in states]
        return self._states

    def states_of_first(self, length: int, *, now: bool = False) -> list[State] | None:
        """Return states of runs of the chunks that hold the first entries, with the metadata."""
        handle = _array_at(_open_node(self._path), self._choice.name, self._label) if now else self._open()
        states, metadata = chunk_states(handle, self._place, self._label, of=length, length=length), self._metadata
        return [state._replace(state=digest(state.state, _described(handle) if now else metadata)) for state in states]

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Count the entries in complete rows of chunks; see `settled_entries`."""
        return None if remote.is_url(self._place) else settled_entries(self._open(), self._place, seconds, first)

    @property
    def _place(self) -> str:
        return "/".join(part for part in (self._path.rstrip("/"), self._choice.name) if part)

    def _open(self) -> Any:
        if self._handle is None:
            self._handle = _array_at(_open_node(self._path), self._choice.name, self._label)
        return self._handle

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handle": None, "_alone": None}


def chunk_states(handle: Any, place: str, label: str, *, of: int, length: int | None = None) -> list[State]:
    """Return states of runs of an array's chunks along axis 0, or of its shards if it is sharded.

    Parameters
    ----------
    handle : zarr.Array
        The array.
    place, label : str
        Path or URL of its chunks, and its name in messages.
    of : int
        Number of entries along axis 0 that determines how many chunks make a group.
    length : int, optional
        Number of entries along axis 0 whose states are returned; all by default. A last chunk that they do not fill is
        a group of its own.
    """
    sides = handle.shards or handle.chunks
    length = handle.shape[0] if length is None else length
    grid = tuple(-(-along // side) for along, side in zip((length, *handle.shape[1:]), sides, strict=True))
    size, encode, step = group_size(-(-of // sides[0])), handle.metadata.encode_chunk_key, 1
    if not remote.is_listed(place):
        step = -(-math.prod(grid) // MOST_STATES)  # every state costs a request
    groups, full = {}, length // sides[0]
    for start in (*range(0, full, size), *range(full, grid[0])):
        stop = min(start + size, full) if start < full else grid[0]
        within = product(range(start, stop), *map(range, grid[1:]))
        groups[start * sides[0]] = [encode(at) for at in islice(within, 0, None, step)]
    states: Iterator[tuple[int, Any] | None]
    if remote.is_url(place):
        states = iter(remote.states([f"{place}/{key}" for keys in groups.values() for key in keys]))
    else:
        states = (_stat(f"{place}/{key}") for keys in groups.values() for key in keys)
    return [
        State(first, f"{label}, {span_of(keys[0], keys[-1])}", digest(*islice(states, len(keys))))
        for first, keys in groups.items()
    ]


def settled_entries(handle: Any, place: str, seconds: float, first: int) -> int:
    """Return how many entries along axis 0 of an array on disk are complete; the `first` are known to be.

    A row of chunks is complete if all of its chunks exist and either none has changed for `seconds`, or the next row
    exists, too. The row that holds entry `first` and the last row may date from before the array was made longer, and
    still have to be written again: they must be younger than the array's metadata.
    """
    sides, chunk_key = handle.shards or handle.chunks, handle.metadata.encode_chunk_key
    grid = tuple(-(-along // side) for along, side in zip(handle.shape, sides, strict=True))
    old = time.time_ns() - seconds * 1e9
    resized = max((state[1] for name in ("zarr.json", ".zarray") if (state := _stat(f"{place}/{name}"))), default=0)

    def written(row: int) -> Any:
        """Return when the last chunk of a row was written; None if a chunk is missing."""
        if row >= grid[0]:
            return None
        states = [_stat(f"{place}/{chunk_key((row, *rest))}") for rest in product(*map(range, grid[1:]))]
        return None if None in states else max(state[1] for state in states if state is not None)

    row = first // sides[0]
    time_of_row = written(row)
    while time_of_row is not None:
        following = written(row + 1)
        is_old = time_of_row <= old
        is_followed = following is not None and (first <= row * sides[0] or following <= old)
        if not (is_followed or (is_old and time_of_row >= resized)):
            break
        row, time_of_row = row + 1, following
    return max(first, min(int(row * sides[0]), int(handle.shape[0])))


def object_chunks(array: Any, source: str) -> list[State]:
    """Return states of a `zarr.Array` that the caller holds: of its chunks if they are local files, else of values."""
    if not isinstance(array.store, zarr.storage.LocalStore):
        return sampled_states(array, source, chunk_rows=array.chunks[0])
    place = os.path.join(array.store.root, array.path)
    return chunk_states(array, place, source, of=array.shape[0])


def _described(handle: Any) -> str:
    """Return a digest of an array's metadata without its shape, which grows when samples are added."""
    return digest({name: str(value) for name, value in handle.metadata.to_dict().items() if name != "shape"})


def _stat(path: str) -> tuple[int, int] | None:
    """Return size and time of change of a stored object, None if it does not exist."""
    try:
        state = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; check its permissions.") from error
    return state.st_size, state.st_mtime_ns


def _open_node(source: str) -> Any:
    try:
        with quiet():
            return zarr.open(store=limited_store(source), mode="r")
    except SourceError:
        raise
    except Exception as error:  # see reason_of
        if remote.is_url(source) and not isinstance(error, _DAMAGE):
            raise remote.failure(source, error) from error
        raise broken(source, error) from error


def _array_at(node: Any, name: str, label: str) -> Any:
    array = member(node, name, label) if name else node
    if not isinstance(array, zarr.Array):
        raise SourceError(f"{label} is gone; copy or write the store again.")
    check_codecs(array, label)
    return bounded(array)


def _dtype(handle: Any) -> np.dtype[Any]:
    if handle.dtype.kind == "T":  # text of any length, whose dtype has no other name
        return np.dtype(np.str_)
    return np.dtype(str(handle.dtype.str))  # the same text before and after pickling


def _packing(handle: Any) -> dict[str, Any]:
    """Return an array's attributes as xarray reads them: in format 2 it stores ``_FillValue`` as Zarr's fill value."""
    attributes, fill = dict(handle.attrs), handle.metadata.fill_value
    # A fill value of 0 is Zarr's default, and says nothing about missing values.
    if handle.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attributes and fill:
        attributes.setdefault("_FillValue", fill)
    return attributes
