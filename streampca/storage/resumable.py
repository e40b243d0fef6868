"""Components on disk that are gone on with after the process that was writing them has died."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr

from ..planning.blocks import Span
from ..planning.boxes import Box
from ..planning.component_chunks import Cut, component_cut
from .components import NAME, ComponentSink, identity_of
from .disk import sync_files
from .outputs import discard
from .sinks import EVERY_CHUNK, MOST_UNSYNCED, Unfinished, files_of, remove_debris
from .tiling import Mask, Tiling

TOKEN = 8  # digits of an identity that the name of the unfinished model bears


class Begun(NamedTuple):
    """Components that were being written.

    Attributes
    ----------
    identity : str
        Theirs.
    features : int
        How many are on disk for certain, from the first on.
    """

    identity: str
    features: int


def unfinished_of(begun: Begun | None) -> Unfinished:
    """The unfinished model that components were being written to, or one that begins."""
    return Unfinished() if begun is None else Unfinished(begun.identity[:TOKEN], 0)


class ResumableSink(ComponentSink):
    """A `ComponentSink` that is on disk when that is asked for, and opens what was begun.

    Parameters
    ----------
    group, shape, dims, dtype, mask
        See `ComponentSink`.
    folder : str
        The group's.
    unfinished : Unfinished
        The model; told when there is something worth keeping.
    begun : Begun, optional
        What to go on with. Components begin anew where what is in the group is not that.
    """

    def __init__(
        self,
        group: zarr.Group,
        shape: tuple[int, ...],
        *,
        dims: tuple[str, ...],
        dtype: npt.DTypeLike,
        mask: Mask | None = None,
        folder: str,
        unfinished: Unfinished,
        begun: Begun | None = None,
    ) -> None:
        self._above, self._folder = os.path.dirname(os.path.abspath(folder)), os.path.join(folder, NAME)
        self._unfinished = unfinished
        array = None
        if begun is not None:
            cut = component_cut(shape, np.dtype(dtype).itemsize)
            tiling = Tiling(shape[1:], cut.chunk[1:], mask)
            array = _begun_array(group, self._folder, (shape, np.dtype(dtype), cut), tiling, begun)
        if begun is None or array is None:
            discard(self._folder)
            unfinished.size = None
            identity = unfinished.token + uuid.uuid4().hex[TOKEN:]
        else:
            identity = begun.identity
        super().__init__(group, shape, dims=dims, dtype=dtype, mask=mask, identity=identity, array=array)
        self._unsynced = {os.path.join(place, "zarr.json") for place in (folder, self._folder)}

    def _put(self, box: Box, values: npt.NDArray[Any]) -> None:
        super()._put(box, values)
        self._unsynced.update(_files(self._array, self._folder, box))
        if len(self._unsynced) >= MOST_UNSYNCED:
            self._flush()

    def sync(self) -> None:
        """Put what was written on disk; from now on it is kept when writing breaks off."""
        self._flush()
        self._unfinished.size = 0

    def _flush(self) -> None:
        sync_files(self._unsynced, self._above)
        self._unsynced.clear()


def _begun_array(
    group: zarr.Group, folder: str, form: tuple[tuple[int, ...], np.dtype[Any], Cut], tiling: Tiling, begun: Begun
) -> zarr.Array[Any] | None:
    """The array that was begun, in its folder, with nothing but that in it; None where it is missing, or is another."""
    array = _array_of(group)
    if array is None:
        return None
    found = (array.shape, array.dtype, Cut(array.chunks, array.shards or array.chunks))
    written = (file for tile in tiling.within(Span(0, begun.features)) for file in _files(array, folder, tile.box))
    if found != form or identity_of(array) != begun.identity or not all(map(os.path.exists, written)):
        return None
    remove_debris(folder)
    # Zarr reads a file before it writes a part of it, and one that was not yet on disk may be damaged.
    for tile in tiling.tiles():
        if not tile.features.size or tile.features.stop > begun.features:
            for file in _files(array, folder, tile.box):
                with suppress(FileNotFoundError):
                    os.remove(file)
    return array


def _array_of(group: zarr.Group) -> zarr.Array[Any] | None:
    try:
        with zarr.config.set({f"array.{key}": value for key, value in EVERY_CHUNK.items()}):
            array = group[NAME]
    except (OSError, ValueError, KeyError, TypeError):  # what Zarr raises for what it cannot read
        return None
    return array if isinstance(array, zarr.Array) else None


def _files(array: zarr.Array[Any], folder: str, box: Box) -> Iterator[str]:
    """The files that hold a box of pixels of all components."""
    yield from files_of(array, folder, (slice(0, array.shape[0]), *box))
