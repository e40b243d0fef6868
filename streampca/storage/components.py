"""Components on disk, larger than memory: written, resumed and read a range of features at a time.

They form one Zarr array ``(component, *sample_dims)``, cut into tiles: a box of pixels of all components, or of as many
as fill a file of good size. A tile is a shard, written once and whole; its chunks hold a few components each, so that
one component can be read without all others.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import zarr

from ..arrays import Array
from ..errors import ModelError, OutputError
from ..machine import cores
from ..planning import component_chunks
from ..planning.blocks import Span, blocks_of
from ..planning.boxes import Box, box_of
from ..planning.component_chunks import DECODE_COPIES, PIECE, READ_COPIES, Cut, component_cut
from ..signals import safe_point
from .bounded_zarr import bounded, limited_store
from .disk import UnsyncedFiles
from .integrity import (
    CHECKED,
    absent_chunk,
    check_codecs,
    check_metadata,
    damaged,
    read_json,
    read_model,
    reason_of,
)
from .outputs import discard
from .remote import is_url
from .tiling import Mask, Tiling
from .writers import (
    ATTRIBUTE,
    EVERY_CHUNK,
    UnfinishedOutput,
    files_of,
    remove_debris,
    reopened,
)
from .zarr_concurrency import chunks_at_once
from .zarr_urls import METADATA

if TYPE_CHECKING:
    from zarr.storage import LocalStore


NAME = "components"  # name of the array in a model
TOKEN = 8  # leading digits of an identity that are part of the name of the unfinished model


class UnfinishedComponents(NamedTuple):
    """Components that a process had not finished writing when it ended.

    Attributes
    ----------
    identity : str
        Identity given to the array when it was created.
    features : int
        Number of leading features that are safely on disk.
    """

    identity: str
    features: int

    @property
    def output(self) -> UnfinishedOutput:
        """Unfinished model that holds the components."""
        return UnfinishedOutput(self.identity[:TOKEN], 0)


class ComponentWriter:
    """Writes components to a model, a range of features at a time.

    Parameters
    ----------
    group : zarr.Group
        Group of the model, in a folder.
    shape : tuple of int
        (k, *sample_shape).
    dims : tuple of str
        Names of the sample's axes.
    dtype : dtype
        Stored dtype, float32 or float64.
    mask : ndarray of bool or None
        Pixels that are features.
    attributes : mapping, optional
        What else is said of the array.
    identity : str, optional
        Identity of the components of which these are a copy; a new one by default.
    unfinished : UnfinishedOutput, optional
        The model, if it must be resumable: `sync` then puts components on disk and records that.
    resume : UnfinishedComponents, optional
        Components to resume if the group holds them; otherwise writing starts again.

    Attributes
    ----------
    identity : str
        Identity of the components.
    resumed : bool
        Whether `resume` was found.
    """

    def __init__(
        self,
        group: zarr.Group,
        shape: tuple[int, ...],
        *,
        dims: tuple[str, ...],
        dtype: npt.DTypeLike,
        mask: Mask | None = None,
        attributes: Mapping[str, Any] | None = None,
        identity: str | None = None,
        unfinished: UnfinishedOutput | None = None,
        resume: UnfinishedComponents | None = None,
    ) -> None:
        dtype, cut = np.dtype(dtype), component_cut(shape, np.dtype(dtype).itemsize)
        folder = str(cast("LocalStore", group.store).root)
        self._folder, self._unfinished = os.path.join(folder, NAME), unfinished
        self._unsynced = None if unfinished is None else UnsyncedFiles(os.path.dirname(os.path.abspath(folder)))
        self._tiling = Tiling(shape[1:], cut.chunk[1:], mask)
        # Resume only components of the same form and identity whose files all exist.
        array = None if resume is None else self._found(group, (shape, dtype, cut), resume)
        self.resumed = array is not None
        if resume is not None and self.resumed:
            identity = resume.identity
        elif unfinished is not None:
            discard(self._folder)
            unfinished.size, identity = None, unfinished.token + uuid.uuid4().hex[TOKEN:]
        self.identity = identity or uuid.uuid4().hex
        if array is None:
            array = group.create_array(
                NAME,
                shape=shape,
                dtype=dtype,
                chunks=cut.chunk,
                # A shard of a single chunk would add an index for nothing.
                shards=None if cut.shard == cut.chunk else cut.shard,
                dimension_names=("component", *dims),
                attributes={**(attributes or {}), ATTRIBUTE: {"id": self.identity}},
                # Pixels outside the mask, and values that were never written.
                fill_value=np.nan,
                compressors=CHECKED,
                config=EVERY_CHUNK,
            )
        self._array = array
        if self._unsynced is not None:
            # Metadata must be on disk before values can be resumed.
            self._unsynced.add(os.path.join(place, "zarr.json") for place in (folder, self._folder))

    def _found(
        self, group: zarr.Group, form: tuple[tuple[int, ...], np.dtype[Any], Cut], resume: UnfinishedComponents
    ) -> zarr.Array[Any] | None:
        """Return the unfinished array, reduced to values that are safely on disk; None if it does not match."""
        try:
            array = reopened(group, NAME)
        except (OSError, ValueError, KeyError, TypeError):  # Zarr's errors for unreadable arrays
            return None
        if not isinstance(array, zarr.Array):
            return None
        written = (
            file for tile in self._tiling.within(Span(0, resume.features)) for file in self._files(array, tile.box)
        )
        stored_form = (array.shape, array.dtype, Cut(array.chunks, array.shards or array.chunks))
        if stored_form != form or identity_of(array) != resume.identity or not all(map(os.path.exists, written)):
            return None
        remove_debris(self._folder)
        # Zarr reads a file before it writes a part of it, and a file that was not yet on disk can be damaged.
        for tile in self._tiling.tiles():
            if not tile.features.size or tile.features.stop > resume.features:
                for file in self._files(array, tile.box):
                    with suppress(FileNotFoundError):
                        os.remove(file)
        return array

    def _files(self, array: zarr.Array[Any], box: Box) -> Iterator[str]:
        return files_of(array, self._folder, (slice(0, array.shape[0]), *box))

    @property
    def shape(self) -> tuple[int, ...]:
        """(k, *sample_shape)."""
        return self._array.shape

    def ranges(self, most_features: int) -> list[Span]:
        """Cut the features into ranges to write, each of at most `most_features` or the fewest that storage allows."""
        return self._tiling.ranges(most_features)

    def write(self, features: Span, values: Array) -> None:
        """Write loadings (k, features) of one of `ranges`, or of several adjacent ones.

        Holds `WRITE_COPIES` tiles in memory.
        """
        for tile in self._tiling.within(features):
            safe_point()
            part = values[:, tile.features.start - features.start : tile.features.stop - features.start]
            self._put(tile.box, tile.filled(part))

    def read(self, features: Span) -> Array:
        """Return loadings (k, features) of one of ``ranges(1)``; holds a few components of it in memory as well.

        Raises
        ------
        OutputError
            If they are damaged. All components are then removed, so that the next run computes them again.
        """
        # The smallest ranges are single tiles.
        (tile,) = self._tiling.within(features)
        values = np.empty((self.shape[0], features.size), self._array.dtype)
        try:
            # One chunk of the shard at a time: while Zarr decodes a whole tile, it holds several copies.
            for rows in blocks_of(Span(0, self.shape[0]), self._array.chunks[0]):
                with chunks_at_once():
                    values[slice(*rows)] = tile.flat(np.asarray(self._array[(slice(*rows), *tile.box)]))
        except MemoryError:
            raise
        except Exception as error:  # see reason_of
            discard(self._folder)
            raise OutputError(
                f"components in {self._folder} were damaged when a run ended ({reason_of(error)}); start it again to "
                "make them again."
            ) from None
        return values

    def write_outside(self) -> None:
        """Write the tiles without features, so that every chunk exists."""
        for tile in self._tiling.tiles():
            if not tile.features.size:
                self._put(tile.box, tile.filled(np.empty((self.shape[0], 0), self._array.dtype)))

    def _put(self, box: Box, values: Array) -> None:
        with chunks_at_once():
            self._array[(slice(None), *box)] = values
        if self._unsynced is not None:
            self._unsynced.add(self._files(self._array, box))

    def sync(self) -> None:
        """Put written values on disk, from where writing can resume; does nothing if the model is not resumable."""
        if self._unsynced is not None and self._unfinished is not None:
            self._unsynced.sync()
            self._unfinished.size = 0

    def copy(self, components: Any) -> None:
        """Write all values of sliceable components of shape (k, *sample_shape), NaN outside the mask."""
        for tile in Tiling(self.shape[1:], self._tiling.box, None).within(Span(0, prod(self.shape[1:]))):
            self._put(tile.box, components[(slice(None), *tile.box)])


@dataclass(frozen=True)
class StoredComponents:
    r"""Components of a model on disk, read when indexed; pickles small, as it holds only the path.

    Slicing returns numpy arrays of shape (j, \*part of the sample), NaN outside the mask; ``np.asarray`` reads all.

    Attributes
    ----------
    path : str
        Folder of the model.
    shape : tuple of int
        (k, \*sample_shape).
    dtype : numpy.dtype
        float32 or float64.
    piece_bytes : int
        Approximate bytes read at a time as rows of features.
    identity : str or None
        Identity given when they were written, which reveals a replaced model; None for other arrays.
    digest : str or None
        Digest of the array's metadata (``streampca.storage.integrity``), whose chunks must all exist; None while the
        model is written.
    array_name : str
        Name of the array in the model; another array that is as large as components can be read in the same way.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    piece_bytes: int = PIECE
    identity: str | None = None
    digest: str | None = None
    array_name: str = NAME

    @classmethod
    def of(
        cls, path: str, array: zarr.Array[Any], piece_bytes: int = PIECE, *, digest: str | None, name: str = NAME
    ) -> StoredComponents:
        """Describe an open array that will be read from a path, which can be relative to the present folder."""
        place = path if is_url(path) else os.path.abspath(path)
        return cls(place, array.shape, array.dtype, piece_bytes, identity_of(array), digest, name)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all components, decoded."""
        return prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        with self.reading() as array:
            return self.values(array, key)

    def values(self, array: zarr.Array[Any], key: Any) -> Array:
        """Read by basic indexing from the array that `reading` yields; raise ModelError if a chunk is missing."""
        absent = None
        if self.digest is not None:
            absent = absent_chunk(array, os.path.join(self.path, self.array_name), _touched(key, self.shape))
        if absent is not None:
            self._check_is_there()
            raise damaged(self.path, self.array_name, f"values are missing, {absent} is not there")
        return np.asarray(array[key])

    def __iter__(self) -> Iterator[Array]:
        return (self[number] for number in range(len(self)))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(f"components stored in {self.path} have to be read, which makes a copy")
        return self[...].astype(self.dtype if dtype is None else dtype, copy=False)

    @property
    def rows(self) -> StoredRows:
        """Components as rows of features."""
        return StoredRows(self, len(self))

    @contextmanager
    def reading(self) -> Iterator[zarr.Array[Any]]:
        """Open the array for reading.

        Raises
        ------
        ModelError
            If it is damaged or missing, or belongs to another model.
        """
        try:
            place = os.path.join(self.path, self.array_name)
            array: Any = zarr.open_array(limited_store(place, sealed=self.digest is not None), mode="r", zarr_format=3)
            # Another model can have taken the path since this one was opened.
            if (array.shape, array.dtype, identity_of(array)) != (self.shape, self.dtype, self.identity):
                raise self._another()
            check_metadata(self.path, self.array_name, self.digest)
            check_codecs(self.path, self.array_name, array)
            with chunks_at_once():
                yield bounded(array)
            self._check_is_same()
        except MemoryError:
            raise
        except ModelError:
            self._check_is_same()
            raise
        except Exception as error:  # see reason_of
            self._check_is_same()
            raise damaged(self.path, self.array_name, reason_of(error)) from None

    def _check_is_same(self) -> None:
        """Refuse values that were read while another model replaced this one."""
        identity = self.identity
        # A second look, as a replacement takes an instant.
        for wait in (0.0, 0.02):
            time.sleep(wait)
            self._check_is_there()
            try:
                identity = read_json(os.path.join(self.path, self.array_name, METADATA))["attributes"][ATTRIBUTE]["id"]
            except FileNotFoundError:  # between the two renamings of a replacement
                continue
            except (OSError, ValueError, LookupError, TypeError):  # damage that reading has reported, or an old model
                pass
            break
        if identity != self.identity:
            raise self._another()

    def _another(self) -> ModelError:
        return ModelError(f"{self.path} is another model than was opened; load it again.")

    def _check_is_there(self) -> None:
        if not is_url(self.path) and not os.path.exists(self.path):
            raise ModelError(f"{self.path} is no longer there; load the model from where it is now.") from None


def _touched(key: Any, shape: tuple[int, ...]) -> Box:
    """Return the smallest box that holds a basic index of an array of this shape."""
    box = []
    for places in np.ogrid[tuple(slice(length) for length in shape)]:
        # Basic indexing of a grid of positions along each axis gives the selected ones, whatever the key.
        selected = np.broadcast_to(places, shape)[key].flat  # a view, whatever its size
        first, last = sorted((selected[0], selected[-1])) if len(selected) else (0, -1)
        box.append(slice(int(first), int(last) + 1))
    return tuple(box)


@dataclass(frozen=True)
class StoredRows:
    """First components of a model on disk as rows of features, (count, p), read range by range.

    Attributes
    ----------
    components : StoredComponents
        Components that are read.
    count : int
        Number of components.
    """

    components: StoredComponents
    count: int

    def __getstate__(self) -> dict[str, Any]:  # without the mask, which can be large and is read again on use
        return {"components": self.components, "count": self.count}

    @property
    def shape(self) -> tuple[int, int]:
        """(count, p)."""
        return self.count, self.tiling.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype."""
        return self.components.dtype

    @cached_property
    def _cut(self) -> Cut:
        with self.components.reading() as array:
            return Cut(array.chunks, array.shards or array.chunks)

    @property
    def is_cut(self) -> bool:
        """True if storage is cut into ranges of features; otherwise every read decodes whole components."""
        box, shape = self._cut.shard[1:], self.components.shape[1:]
        # Boxes must be ranges of the flat sample, and a single box for everything must be small.
        return box == box_of(prod(box), shape) and (box != shape or self.components.nbytes <= component_chunks.TILE)

    @cached_property
    def tiling(self) -> Tiling:
        """Tiles of the storage, or the pieces read at a time if storage does not cut features."""
        shape = self.components.shape[1:]
        box = self._cut.shard[1:] if self.is_cut else box_of(self.piece_features, shape)
        return Tiling(shape, box, self._mask())

    def _mask(self) -> Mask | None:
        mask = read_model(self.components.path).read("mask")
        return None if mask is None else np.asarray(mask, bool)

    @property
    def tile_features(self) -> int:
        """Largest number of features in a tile."""
        return prod(self.tiling.box)

    @property
    def reading_bytes(self) -> int:
        """Bytes in memory while a range is read, not counting its values."""
        if self.is_cut:
            return component_chunks.POOLS + READ_COPIES * self.count * self.tile_features * self.dtype.itemsize
        return component_chunks.POOLS + DECODE_COPIES * cores() * prod(self._cut.shard) * self.dtype.itemsize

    @property
    def piece_features(self) -> int:
        """Approximate number of features in a piece."""
        return max(1, self.components.piece_bytes // (max(1, self.count) * self.dtype.itemsize))

    def __len__(self) -> int:
        return self.count

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return self.read(Span(0, self.shape[1])).astype(self.dtype if dtype is None else dtype, copy=False)

    def first(self, count: int) -> StoredRows:
        """Return the first `count` rows."""
        return replace(self, count=count)

    def ranges(self, most_features: int | None = None) -> list[Span]:
        """Cut the features into ranges of at most `most_features`, or about `piece_bytes`, and of whole tiles."""
        most = most_features or self.piece_features
        if self.is_cut:
            return self.tiling.ranges(most)
        return [Span(start, min(start + most, self.shape[1])) for start in range(0, self.shape[1], most)]

    def read(self, features: Span) -> Array:
        """Read a range of features, (count, features); holds `READ_COPIES` tiles in memory.

        Raises
        ------
        ModelError
            If values are damaged or missing.
        """
        out = np.empty((self.count, features.size), self.dtype)
        with self.components.reading() as array:
            for tile in self.tiling.within(features):
                start, stop = max(tile.features.start, features.start), min(tile.features.stop, features.stop)
                part = tile.flat(self.components.values(array, (slice(self.count), *tile.box)))
                here = part[:, start - tile.features.start : stop - tile.features.start]
                out[:, start - features.start : stop - features.start] = here
        with np.errstate(invalid="ignore"):
            # Loadings are finite, so the fill value NaN shows features that were never written.
            complete = np.isfinite(out.sum())
        if not complete:
            raise damaged(self.components.path, NAME, "values are missing")
        return out


@dataclass(frozen=True)
class RowsToCome(StoredRows):
    """Components of a model that does not hold its mask yet: written so far, or sizes to plan with.

    Attributes
    ----------
    mask : ndarray of bool or None
        Pixels that are features.
    """

    mask: Mask | None = None

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: npt.DTypeLike, mask: Mask | None) -> RowsToCome:
        """Describe components of a shape (k, *sample_shape)."""
        return cls(StoredComponents("", shape, np.dtype(dtype)), shape[0], mask)

    @cached_property
    def _cut(self) -> Cut:
        return component_cut(self.components.shape, self.dtype.itemsize)

    def _mask(self) -> Mask | None:
        return self.mask


def identity_of(array: zarr.Array[Any]) -> str | None:
    """Return the identity given to components when they were written; None for other arrays."""
    about = array.attrs.get(ATTRIBUTE)
    identity = about.get("id") if isinstance(about, dict) else None
    return identity if isinstance(identity, str) else None
