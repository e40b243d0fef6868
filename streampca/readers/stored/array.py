"""`StoredArray`, an N-d array in files, and `ArrayCollection`, samples of it or of an array the caller holds.

The axes that make one sample may lie anywhere; the others are flattened into samples in order (`layout.py`).
Readers of files describe theirs as a `StoredArray`, which fills boxes of a buffer, and get `sample_axes`, `select`
and partial reads from `ArrayCollection`.
"""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, Self, Unpack

import numpy as np

from ...errors import SourceError, StreampcaError
from ...storage.coordinate import Coordinate
from ..collection import Array, Chunks, Collection, State, check_dtype, check_shape, digest, with_ends
from .axis_coordinates import inner_coordinates, object_attributes, object_coordinates, outer_coordinates
from .boxes import Box, boxes_of, covering_box, lengths
from .layout import Layout, SampleAxes, layout_of
from .value_digests import object_states

# A partial read of a contiguous array fetches whole pages of this many bytes from the disk or memory behind it.
PAGE = 4096


class ArrayLike(Protocol):
    """An object that can be read: shape, dtype and slicing."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""

    @property
    def dtype(self) -> Any:
        """A numpy dtype."""

    def __getitem__(self, key: Any) -> Any:
        """Slice by a tuple of slices and integers."""


class StoredArray(abc.ABC):
    """An N-d array in files, read box by box into the caller's buffer: no copy of a block is made on the way.

    Holds paths, not handles; what it opens is dropped by pickling.

    Attributes
    ----------
    shape : tuple of int
        Lengths of the axes.
    dtype : numpy.dtype
        As stored.
    chunk_shape : tuple of int
        Box that one access decodes.
    decode_bytes : int
        Most bytes `read_into` holds beside its target.
    encoded : bool
        Whether `read_into` decodes, rather than copies bytes.
    attributes : mapping
        Plain data the format keeps with the array.
    dims : tuple of str or None
        Names of all axes, where the format has them.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    decode_bytes: int = 0
    encoded: bool = False
    attributes: Mapping[str, Any] = MappingProxyType({})
    dims: tuple[str, ...] | None = None

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates along its axes, by the axis's name, one value an entry; read when asked for."""
        return {}

    def names(self, axis: str) -> Sequence[str] | None:
        """Texts along an axis, one an entry, where the format keeps such; read when asked for."""
        return None

    @abc.abstractmethod
    def read_into(self, box: Box, out: Array) -> None:
        """Read a box (a slice with start and stop for every axis, none empty) into `out`, of the box's shape.

        `out` may have any strides.

        Raises
        ------
        SourceError
            If it cannot be read; the message names the file.
        """

    @abc.abstractmethod
    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the files, see `Collection.states`; groups are of entries along axis 0."""


class ArrayCollection(Collection):
    """An N-d array seen as samples."""

    def __init__(
        self,
        array: ArrayLike | StoredArray,
        *,
        source: str,
        dims: Sequence[str] | None = None,
        states: Callable[[Any, str], list[State]] = object_states,
        **axes: Unpack[SampleAxes],
    ) -> None:
        self.source = source
        self.dtype = check_dtype(np.dtype(array.dtype), source)
        shape = check_shape(tuple(int(length) for length in array.shape), source)
        self._array, self._object_states = array, states
        self._dims = tuple(dims or ())
        counting = str(self.attributes.get("sample_axis", "sample"))  # as outputs of ours say
        self._lay_out(layout_of(shape, source=source, dims=self._dims or None, counting=counting, **axes))

    def _lay_out(self, layout: Layout) -> None:
        self._layout = layout
        self.shape = check_shape((math.prod(layout.outer_shape), *layout.inner_shape), self.source)
        self.axes = tuple(self._dims[axis] for axis in layout.inner) if self._dims else None

    def laid_out(self, layout: Layout) -> Self:
        """The same array seen by another layout of its axes."""
        other = copy.copy(self)
        other._lay_out(layout)
        return other

    @property
    def array(self) -> ArrayLike | StoredArray:
        """The array that is read."""
        return self._array

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of all the array's axes, empty where it has none."""
        return self._dims

    @property
    def layout(self) -> Layout:
        """Layout of the array's axes as samples and features."""
        return self._layout

    @property
    def chunks(self) -> Chunks:
        """Storage chunks seen as samples and features; numpy's arrays count as cut by pages, others by samples."""
        sizes = _chunk_shape(self._array)
        if sizes is not None:
            return self._layout.chunks(sizes)
        page = max(1, PAGE // self.dtype.itemsize) if isinstance(self._array, np.ndarray) else self.n_features
        return Chunks(1, min(self.n_features, page))

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes that the format keeps with a stored array."""
        return self._array.attributes if isinstance(self._array, StoredArray) else object_attributes(self._array)

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of the array along the axes of a sample."""
        return inner_coordinates(self._all_coordinates(), self._layout, self._dims)

    @property
    def sample_axis(self) -> str | None:
        """The one axis that counts samples, where the format has named it."""
        outer = self._layout.outer
        name = self._dims[outer[0]] if len(outer) == 1 and self._dims else None
        return None if name == f"axis_{outer[0] if outer else 0}" else name

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return the coordinates along the axes flattened into samples, repeated over the others."""
        return outer_coordinates(self._all_coordinates(), self._layout, self._dims)

    def sample_names(self) -> Sequence[str] | None:
        """Texts that the array has along the one axis that counts samples."""
        outer = self._layout.outer
        if len(outer) != 1 or not self._dims or not isinstance(self._array, StoredArray):
            return None
        names, taken = self._array.names(self._dims[outer[0]]), self._layout.index[outer[0]]
        if names is None or not isinstance(taken, slice):
            return None
        return names if taken == slice(0, len(names)) else names[taken]

    def _all_coordinates(self) -> Mapping[str, Coordinate]:
        array = self._array
        return array.coordinates if isinstance(array, StoredArray) else object_coordinates(array)

    @property
    def decode_bytes(self) -> int:
        """Bytes held beside the block while reading it."""
        return self._array.decode_bytes if isinstance(self._array, StoredArray) else 0

    @property
    def encoded(self) -> bool:
        """Whether reads decode: by the stored array, or for an object, whether its library cuts it into chunks."""
        array = self._array
        return array.encoded if isinstance(array, StoredArray) else _chunk_shape(array) is not None

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read samples as boxes of the array, axes transposed to the sample's order; see `Collection.read`."""
        features = features or slice(0, self.n_features)
        shape = (rows.stop - rows.start, features.stop - features.start)
        if 0 in shape:
            return np.empty(shape, self.dtype)
        inner, cut = covering_box(features.start, features.stop, self.sample_shape)
        boxes = [(*box, *inner) for box in boxes_of(rows.start, rows.stop, self._layout.outer_shape)]
        if len(boxes) == 1 and not isinstance(self._array, StoredArray):
            return np.ascontiguousarray(self._piece(boxes[0]).reshape(shape[0], -1)[:, cut])
        out = np.empty((shape[0], math.prod(lengths(inner))), self.dtype)
        self._fill_all(boxes, out)
        return np.ascontiguousarray(out[:, cut])

    @property
    def fills(self) -> bool:
        """Whether the array is in files, which are read into buffers; an object returns arrays of its own."""
        return isinstance(self._array, StoredArray)

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Fill whole lines of samples directly; see `Collection.read_into`."""
        some = features or slice(0, self.n_features)
        inner, _ = covering_box(some.start, some.stop, self.sample_shape)
        if not isinstance(self._array, StoredArray) or math.prod(lengths(inner)) != out.shape[1] or out.size == 0:
            super().read_into(rows, features, out)
            return
        self._fill_all([(*box, *inner) for box in boxes_of(rows.start, rows.stop, self._layout.outer_shape)], out)

    def _fill_all(self, boxes: Sequence[Box], out: Array) -> None:
        """Read boxes that follow one another in the order of samples."""
        done = 0
        for box in boxes:
            count = math.prod(lengths(box[: len(self._layout.outer)]))
            self._fill(box, out[done : done + count])
            done += count

    def _piece(self, box: Box) -> Array:
        """Slice an array-like; axes come in the order (outer, inner)."""
        assert not isinstance(self._array, StoredArray)  # noqa: S101 - those fill buffers
        try:
            piece = np.asarray(self._array[self._layout.key(box)])
        except (StreampcaError, MemoryError):
            raise
        except Exception as error:  # whatever the library behind the array raises for a chunk it cannot decode
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise SourceError(f"{self.source} cannot be read ({reason}); check what lies behind it.") from error
        kept = self._layout.kept
        piece = piece.transpose([kept.index(axis) for axis in (*self._layout.outer, *self._layout.inner)])
        if piece.dtype == self.dtype.newbyteorder():  # numpy unpickles arrays in the machine's own byte order
            piece = piece.astype(self.dtype, copy=False)
        if piece.shape != lengths(box) or piece.dtype != self.dtype:
            raise SourceError(
                f"{self.source} gave {piece.dtype} values of shape {piece.shape} for a slice of {self.dtype} values of "
                f"shape {lengths(box)}; give an array whose slices have its own dtype."
            )
        return piece

    def _fill(self, box: Box, rows: Array) -> None:
        """Read one box into its rows of the block, shape (samples, features)."""
        target = rows.reshape(lengths(box))
        if not isinstance(self._array, StoredArray):
            target[...] = self._piece(box)
            return
        order = (*self._layout.outer, *self._layout.inner)
        target = target.transpose([order.index(axis) for axis in self._layout.kept])
        dropped = [axis for axis, item in enumerate(self._layout.index) if not isinstance(item, slice)]
        key = (item if isinstance(item, slice) else slice(item, item + 1) for item in self._layout.key(box))
        self._array.read_into(tuple(key), np.expand_dims(target, tuple(dropped)))

    def where(self, index: int) -> str:
        """Name the sample, by its place on every axis where several make the samples."""
        plain = f"sample {index} of {self.source}"
        if not self._layout.outer:
            return self.source
        if len(self._layout.outer) == 1 and self._layout.place(0) == {self._layout.outer[0]: 0}:
            return plain
        names = self._dims or [f"axis {axis}" for axis in range(len(self._layout.index))]
        return f"{plain} ({', '.join(f'{names[axis]} {entry}' for axis, entry in self._layout.place(index).items())})"

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the array behind, of an object those of the time of the call, with the layout."""
        array, layout = self._array, self._layout
        stored = array.states(now=now) if isinstance(array, StoredArray) else self._object_states(array, self.source)
        first = layout.index[0]
        if layout.outer[:1] != (0,) or not isinstance(first, slice):  # every sample may have a part in every entry
            seen = repr((layout.index, layout.outer, layout.inner))
            return [State(0, what, digest(state, seen)) for _, what, state in stored]
        seen = repr((first.start, layout.index[1:], layout.outer, layout.inner))
        each = math.prod(layout.outer_shape[1:])
        return [
            State(max(0, state.first - first.start) * each, state.what, digest(state.state, seen))
            for state, end in with_ends(stored, max(int(array.shape[0]), stored[-1].first + 1))
            if end > first.start and (state.first < first.stop or first.stop == int(array.shape[0]))
        ]


def page_shape(shape: tuple[int, ...], values: int) -> tuple[int, ...]:
    """Return the box of about so many consecutive values of an array, within one entry of axis 0."""
    left, sizes = max(1, values), []
    for length in reversed(shape[1:]):
        sizes.append(min(length, left))
        left = max(1, left // max(1, length))
    return (1, *reversed(sizes))


def dims_of(array: Any) -> tuple[str, ...] | None:
    """Axis names as xarray, Zarr 3 and Zarr 2 keep them."""
    for dims in (
        getattr(array, "dims", None),
        getattr(getattr(array, "metadata", None), "dimension_names", None),
        dict(getattr(array, "attrs", {})).get("_ARRAY_DIMENSIONS"),
    ):
        if isinstance(dims, (list, tuple)) and dims and all(isinstance(name, str) for name in dims):
            return tuple(dims)
    return None


def _chunk_shape(array: ArrayLike | StoredArray) -> tuple[int, ...] | None:
    if isinstance(array, StoredArray):
        return array.chunk_shape
    chunks = getattr(array, "chunks", None)
    if not chunks:
        return None
    return tuple(max(size) if isinstance(size, tuple) else int(size) for size in chunks)
