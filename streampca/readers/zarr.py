"""Zarr arrays and groups, formats 2 and 3, sharded or not (https://zarr-specs.readthedocs.io)."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np
import zarr

from .. import machine
from ..collection import Array, Collection, check_dtype, digest, file_state
from ..errors import RequestError, SourceError, nearest
from ..units import MIB, format_shape
from .array import ArrayCollection, StoredArray, dims_of
from .axes import Axis, Box, Selection, lengths
from .quiet import quiet

# Pieces of this many decoded bytes bound what a read holds beside its result; 4 to 128 MiB read equally fast.
_PIECE = 4 * MIB
# What the memory pools of Zarr's decoding threads keep, as measured with chunks of 0.1 to 16 MiB.
_POOLS = 6 * MIB
# Listing what is stored of an array with more chunks takes seconds.
_MOST_LISTED = 10_000
# Files whose size and time tell one state of a local store from another; all of a large one would take seconds.
_FILES_COMPARED = 256

_log = logging.getLogger("streampca")


def open_zarr(
    source: str,
    *,
    key: str | None = None,
    sample_axes: Sequence[Axis] | None = None,
    select: Selection | None = None,
) -> Collection:
    """Open a Zarr array, or one array of a group: the one at path `key`, or the only one of two axes or more."""
    node = _open_node(source)
    name = ""
    if isinstance(node, zarr.Group):
        name = _chosen(node, key, source)
    elif key is not None:
        raise RequestError(f"key {key!r} was given, but {source} is a single Zarr array; leave key out.")
    label = f"{source}, array {name!r}" if name else source
    handle = _array_at(node, name, label)
    check_dtype(_dtype(handle), label)
    _check_plain_values(handle, label)
    _check_written(handle, label)
    array = ZarrArray(source, name, label, handle)
    return ArrayCollection(array, source=label, dims=dims_of(handle), sample_axes=sample_axes, select=select)


class ZarrArray(StoredArray):
    """A stored Zarr array, known by the path of its store and its name there.

    Parameters
    ----------
    path, name : str
        The store, and the array's path in it (empty for the root).
    label : str
        What messages call it.
    handle : zarr.Array
        The array, opened.
    """

    def __init__(self, path: str, name: str, label: str, handle: Any) -> None:
        self._path, self._name, self._label = path, name, label
        self._handle: Any = handle
        self.attributes = dict(handle.attrs)
        self.shape = tuple(int(length) for length in handle.shape)
        self.dtype = _dtype(handle)
        self.chunk_shape = tuple(int(length) for length in handle.chunks)
        chunk = math.prod(self.chunk_shape) * self.dtype.itemsize
        whole = math.prod(self.shape) * self.dtype.itemsize
        # A piece as Zarr returns it, and for every core a chunk as stored and decoded.
        self.decode_bytes = max(chunk, min(_PIECE, whole)) + 2 * chunk * machine.cores() + _POOLS
        self.decode_bytes += 2 * min(chunk, _PIECE) * machine.cores()  # and what those threads' pools keep of them

    def read_into(self, box: Box, out: Array) -> None:
        """Decode the box in pieces that end at chunk edges."""
        handle = self._open()
        for piece, inside in _pieces(box, tuple(slice(0, length) for length in lengths(box)), self._cuts):
            try:
                # Zarr decodes ten chunks at once by default: no faster than one a core, and 3 times the memory.
                with zarr.config.set({"async.concurrency": machine.cores()}):
                    out[inside] = handle[piece]
            except MemoryError:
                raise
            except Exception as error:  # codecs and stores raise what they like for a chunk they cannot read
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                where = ", ".join(f"{part.start}:{part.stop}" for part in piece)
                raise SourceError(
                    f"{self._label} cannot be read at [{where}] ({reason}); a chunk there is damaged, copy the store "
                    "again."
                ) from error

    def _cuts(self, box: Box) -> list[tuple[int, int]]:
        """Return (axis, chunk edge) to cut a box at that touches too many bytes of chunks, none where it is fine."""
        edges, size = [], self.dtype.itemsize
        for axis, (part, chunk) in enumerate(zip(box, self.chunk_shape, strict=True)):
            first, last = part.start // chunk, -(-part.stop // chunk)
            size *= (last - first) * chunk
            if last - first > 1:
                edges.append((axis, (first + last) // 2 * chunk))
        return edges if size > _PIECE else []

    def fingerprint(self) -> str:
        """Digest of the array's metadata and, on a local disk, of size and time of its first files."""
        folder = os.path.join(self._path, self._name)
        files = (os.path.join(here, name) for here, _, names in os.walk(folder) for name in sorted(names))
        states = [(path, *file_state(path)) for path in islice(files, _FILES_COMPARED)]
        return digest(self._label, str(self._open().metadata.to_dict()), states)

    def _open(self) -> Any:
        if self._handle is None:
            self._handle = _array_at(_open_node(self._path), self._name, self._label)
        return self._handle

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handle": None}


def _pieces(box: Box, inside: Box, cuts: Callable[[Box], list[tuple[int, int]]]) -> Iterator[tuple[Box, Box]]:
    """Halve a box at chunk edges until nothing is left to cut; with where each piece lies in the whole."""
    found = cuts(box)
    if not found:
        yield box, inside
        return
    axis, edge = found[0]
    middle = inside[axis].start + edge - box[axis].start
    for here, there in (
        (slice(box[axis].start, edge), slice(inside[axis].start, middle)),
        (slice(edge, box[axis].stop), slice(middle, inside[axis].stop)),
    ):
        yield from _pieces((*box[:axis], here, *box[axis + 1 :]), (*inside[:axis], there, *inside[axis + 1 :]), cuts)


def _open_node(source: str) -> Any:
    try:
        with quiet():
            return zarr.open(store=source, mode="r")
    except ImportError as error:
        raise SourceError(f"{source} cannot be opened: {error}; install what it names, or copy the store.") from error
    except Exception as error:  # metadata is anyone's JSON: what it lacks shows as KeyError, TypeError and more
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise SourceError(f"{source} is not a whole Zarr store ({reason}); copy or write it again.") from error


def _array_at(node: Any, name: str, label: str) -> Any:
    if not name:
        return node
    try:
        return node[name]
    except Exception as error:  # as in _open_node
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise SourceError(f"{label} is gone or damaged ({reason}); copy or write the store again.") from error


def _dtype(handle: Any) -> np.dtype[Any]:
    return cast("np.dtype[Any]", np.dtype(handle.dtype))


def _chosen(group: zarr.Group, key: str | None, source: str) -> str:
    """Name the array to read of a group."""
    arrays = _arrays(group, source)
    if key is not None:
        found = [name for name in arrays if name == key.strip("/")] or [
            name for name in arrays if name.startswith(f"{key.strip('/')}/")
        ]
        if not found:
            raise RequestError(
                f"{source} has no array {key!r}; it holds {_listing(arrays)}.{nearest(key, list(arrays))}"
            )
        arrays = {name: arrays[name] for name in found}
    images = [name for name, array in arrays.items() if len(array.shape) >= 2]
    if len(images) == 1 or len(arrays) == 1:
        return (images or list(arrays))[0]
    if not arrays:
        raise SourceError(f"{source} is a Zarr group without arrays; give the path of an array or of its group.")
    raise SourceError(
        f"{source} holds {len(arrays)} arrays, {_listing(arrays)}; say which with key={(images or list(arrays))[0]!r}."
    )


def _arrays(group: zarr.Group, source: str) -> Mapping[str, Any]:
    try:
        with quiet():
            members = group.members(max_depth=None)
    except Exception as error:  # as in _open_node
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise SourceError(f"{source} is not a whole Zarr group ({reason}); copy or write it again.") from error
    return {name: member for name, member in sorted(members, key=lambda item: item[0]) if hasattr(member, "shape")}


def _listing(arrays: Mapping[str, Any]) -> str:
    named = [f"{name} ({format_shape(array.shape) or 'one value'} {array.dtype})" for name, array in arrays.items()]
    return ", ".join(named[:12]) + (f" and {len(named) - 12} more" if len(named) > 12 else "")


def _check_plain_values(handle: Any, label: str) -> None:
    """Refuse packed numbers (the CF conventions): read raw, their fill values would pass for data."""
    attributes = dict(handle.attrs)
    packed = [name for name in ("scale_factor", "add_offset") if name in attributes]
    if _dtype(handle).kind in "iu":
        packed += [name for name in ("_FillValue", "missing_value") if name in attributes]
    if packed:
        raise SourceError(
            f"{label} stores packed numbers (attribute {packed[0]}), not the values themselves; open it with "
            "xarray.open_zarr, which unpacks them, and give one of its arrays."
        )


def _check_written(handle: Any, label: str) -> None:
    """Refuse an array nothing was written to; say so where part of it was not, which Zarr reads as its fill value."""
    if not math.prod(handle.shape) or handle.nchunks > _MOST_LISTED:
        return
    stored = handle.nchunks_initialized
    if stored == 0:
        raise SourceError(
            f"{label} has none of its {handle.nchunks} chunks stored: it was created and never written; write it, or "
            "copy the whole store."
        )
    if stored < handle.nchunks:
        _log.warning(
            "%s has %d of %d chunks stored; the others read as %s, which is right only if the store was written to "
            "its end.",
            label, stored, handle.nchunks, handle.metadata.fill_value,
        )  # fmt: skip
