"""`StoredArray`, an N-d array in files, and `ArrayCollection`, samples of one or of an array in the caller's memory.

The axes that make one sample can be at any position; the others are flattened into samples in order (`layout.py`).
Readers of files describe an array as a `StoredArray`, which fills boxes of a buffer, and get `sample_axes`, `select`
and partial reads from `ArrayCollection`.
"""

from __future__ import annotations

import abc
import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self, Unpack

import numpy as np

from ...arrays import Array
from ...errors import RequestError, SourceError, StreampcaError, first_line
from ...storage.coordinate import Coordinate, Described
from ...storage.georeference import SIDES, SPATIAL_REF, moved
from ..collection import Collection, State, check_dtype, check_shape, digest, unmasked, with_ends, with_nan
from ..coordinates import (
    LEVEL,
    MOST_VALUES,
    described_coordinates,
    named_coordinates,
    over_axes,
    plain,
    tells_series,
)
from ..opening_record import ArrayAxes, GuessedAxes
from ..storage_record import Chunks, SparseStorage, Storage
from .axis_roles import DefaultAxes, default_axes, roles_of
from .files import FileStates
from .layout import Axis, Box, Layout, SampleAxes, boxes_of, covering_box, layout_of, lengths
from .select_values import places_of_values
from .value_digests import object_states

# Bytes of a page: partial reads of a contiguous array fetch whole pages from disk or memory.
PAGE = 4096
# Largest number of chunks for which the stored ones are counted, as counting more takes seconds.
MOST_COUNTED = 10_000
# Bytes compared at a time with the unwritten number: with the result they fit the second-level cache.
_COMPARED = 512 * 1024

_log = logging.getLogger("streampca")


class StoredArray(abc.ABC):
    """An N-d array read box by box into the caller's buffer, without intermediate copies of a block.

    It holds paths, not handles; pickling drops what it has opened.

    Attributes
    ----------
    shape : tuple of int
        Lengths of the axes.
    dtype : numpy.dtype
        Dtype as stored.
    chunk_shape : tuple of int
        Box that one access decodes.
    decode_bytes : int
        Largest number of bytes that `read_into` holds beside its target.
    converted_bytes : int
        Bytes held from the first read on.
    encoded : bool
        Whether `read_into` decodes, rather than copies bytes.
    keeps : bool
        See `streampca.readers.storage_record.Storage`.
    attributes : mapping
        Plain data that the format stores with the array.
    dims : tuple of str or None
        Names of all axes, if the format has them.
    files : FileStates
        Files from which any value can be read.
    grows : bool
        See `Collection`.
    counts_first : bool
        Whether entries of axis 0 are samples by definition of the format.
    unwritten : numpy number or None
        Number that the format stores where no value was written, if the file does not declare it as missing: it is read
        as NaN among floats, and refused among whole numbers. It has the dtype's kind, and is not NaN.
    sparse : SparseStorage or None
        Of a matrix whose rows `read_sparse` reads.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    decode_bytes: int = 0
    converted_bytes: int = 0
    encoded: bool = False
    keeps: bool = False
    attributes: Mapping[str, Any] = MappingProxyType({})
    dims: tuple[str, ...] | None = None
    files: FileStates
    grows: bool = False
    counts_first: bool = False
    unwritten: Any = None
    sparse: SparseStorage | None = None

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates along one or several of the axes, by name, one value per entry; read on access."""
        return {}

    @property
    def series(self) -> Mapping[str, Any]:
        """See `Collection`; read on access."""
        return {}

    @property
    def described(self) -> Mapping[str, Described]:
        """Attributes and axes of all coordinates, without their values, also of those that are too large to read."""
        return {name: Described(coord.attributes, coord.axes) for name, coord in self.coordinates.items()}

    def names(self, axis: str) -> Sequence[str] | None:
        """Return the texts along an axis, one per entry, if the format stores any."""
        return None

    def read_sparse(self, rows: slice) -> Any:
        """See `Collection.read_sparse`."""
        raise NotImplementedError

    @abc.abstractmethod
    def read_into(self, box: Box, out: Array) -> None:
        """Read a box (a slice with start and stop for every axis, none empty) into `out`, of the box's shape.

        `out` can have any strides.

        Raises
        ------
        SourceError
            If the box cannot be read; the message names the file.
        """

    def read_all(self) -> Array:
        """Read the whole array, in native byte order."""
        out = np.empty(self.shape, self.dtype)
        if out.size:
            self.read_into(tuple(slice(0, length) for length in self.shape), out)
        return out.astype(self.dtype.newbyteorder("="), copy=False)

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the files, see `Collection.states`; groups are of entries along axis 0."""
        return self.files.states(now=now)

    def states_of_first(self, length: int, *, now: bool = False) -> list[State] | None:
        """Return the states of the first entries along axis 0 alone, see `Collection.states_of_first`."""
        return None

    def begun(self, first: int = 0) -> int:
        """Return the number of leading entries along axis 0 whose writing has begun, see `Collection.begun`."""
        return self.shape[0]

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Return the number of leading entries along axis 0 that are complete, see `Collection.settled`."""
        return None


class ObjectArray(StoredArray):
    """An array in the caller's memory: anything with shape, dtype and slicing. Masked entries are read as NaN.

    Reading slices the array and checks the result; nothing is copied that numpy would not copy.
    """

    def __init__(
        self,
        array: Any,
        source: str,
        *,
        states: Callable[[Any, str], list[State]] = object_states,
        masked: bool | None = None,
    ) -> None:
        self.array, self._source, self._states = array, source, states
        self.shape = tuple(int(length) for length in array.shape)
        self.dtype, self._masked = check_dtype(np.dtype(array.dtype), source), masked
        if masked is None:
            self._masked = np.ma.is_masked(array)
        self.dtype = with_nan(self.dtype).newbyteorder("=") if self._masked else self.dtype
        chunks = getattr(array, "chunks", None) or ()
        self.encoded = bool(chunks)
        self.chunk_shape = tuple(max(map(int, size)) if isinstance(size, tuple) else int(size) for size in chunks)
        attributes = getattr(array, "attrs", {}) if hasattr(array, "coords") else {}
        self.attributes = dict(attributes) if isinstance(attributes, Mapping) else {}

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of an `xarray.DataArray` along its axes; none for other objects."""
        if not self._has_names:
            return {}
        coords = {name: plain(*coord) for name, coord in named_coordinates(self.array).items()}
        return {name: coord for name, coord in coords.items() if coord is not None}

    @property
    def _has_names(self) -> bool:
        """True for an `xarray.DataArray`."""
        return hasattr(getattr(self.array, "coords", None), "items") and hasattr(self.array, "indexes")

    @property
    def series(self) -> Mapping[str, Any]:
        """Coordinates without axes of an `xarray.DataArray` that identify its series."""
        if not self._has_names:
            return {}
        scalars = {str(name): coord for name, coord in self.array.coords.items() if not coord.dims}
        return {name: coord.values[()] for name, coord in scalars.items() if tells_series(name, coord.attrs)}

    @property
    def described(self) -> Mapping[str, Described]:
        """Attributes of the coordinates of an `xarray.DataArray`; none for other objects."""
        return described_coordinates(self.array) if self._has_names else {}

    def read(self, box: Box) -> Array:
        """Return a slice of the array; a view if its slicing returns one."""
        try:
            values = self._sliced(box)
        except (StreampcaError, MemoryError):
            raise
        except Exception as error:  # the library behind the array can raise any error for a chunk it cannot decode
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise SourceError(f"{self._source} cannot be read ({reason}); check what lies behind it.") from error
        plain = unmasked(values)
        if plain.dtype != values.dtype and not self._masked:
            raise SourceError(
                f"{self._source} has masked values, of which its meta, an array that is not masked, says nothing; fill "
                "them with a number first (dask.array.ma.filled), or give map_blocks a masked meta."
            )
        # numpy unpickles arrays in the machine's own byte order
        if self._masked or plain.dtype == self.dtype.newbyteorder():
            plain = plain.astype(self.dtype, copy=False)
        if plain.shape != lengths(box) or plain.dtype != self.dtype:
            raise SourceError(
                f"{self._source} gave {plain.dtype} values of shape {plain.shape} for a slice of {self.dtype} values "
                f"of shape {lengths(box)}; give an array whose slices have its own dtype."
            )
        return plain

    def _sliced(self, box: Box) -> Array:
        return np.asanyarray(self.array[box])

    def read_into(self, box: Box, out: Array) -> None:
        """Copy a slice."""
        out[...] = self.read(box)

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states at the time of the call: states at the time of opening are not recorded."""
        return self._states(self.array, self._source)


class ArrayCollection(Collection):
    """An N-d array seen as samples."""

    def __init__(
        self, array: Any, *, source: str, dims: Sequence[str] | None = None, **axes: Unpack[SampleAxes]
    ) -> None:
        self.source = source
        self.array: StoredArray = array if isinstance(array, StoredArray) else ObjectArray(array, source)
        self.dtype = check_dtype(np.dtype(self.array.dtype), source)
        shape = check_shape(self.array.shape, source)
        self.dims, self.grows = tuple(dims or self.array.dims or ()), self.array.grows
        self._options = axes
        self._lay_out(self._layout_of(shape, axes))

    def _layout_of(self, shape: tuple[int, ...], axes: SampleAxes) -> Layout:
        return layout_of(shape, source=self.source, dims=self.dims or None, default=self._default_axes, **axes)

    def _default_axes(self, axes: Sequence[int]) -> DefaultAxes:
        """Choose the axes of one sample by the array's metadata, if the caller names none."""
        counting = self.attributes.get("sample_axis")  # an attribute of our own outputs
        if counting in self.dims and len(axes) > 1:
            return DefaultAxes(tuple(axis for axis in axes if self.dims[axis] != counting))
        roles = roles_of(self.dims, self.array.described) if self.dims else None
        choice = default_axes(axes, self.array.shape, roles)
        return choice._replace(by_position=choice.by_position and not self.array.counts_first)

    def _lay_out(self, layout: Layout) -> None:
        self.layout = layout
        self.shape = check_shape((math.prod(layout.outer_shape), *layout.inner_shape), self.source)
        names: Sequence[Any] = self.dims or range(len(layout.index))
        inner, outer = (tuple(names[axis] for axis in axes) for axes in (layout.inner, layout.outer))
        self.guessed_axes = GuessedAxes(inner, outer) if layout.by_position else None
        self.array_axes = ArrayAxes(self.dims, len(layout.index), layout.outer)
        self.axes, self.samples_along = (inner, outer) if self.dims else (None, ())
        is_named = len(self.samples_along) == 1 and self.samples_along[0] != f"axis_{layout.outer[0]}"
        self.sample_axis = self.samples_along[0] if is_named else None
        array, chunks = self.array, Chunks(1, self.n_features)
        if array.chunk_shape:
            chunks = layout.chunks(array.chunk_shape)
        elif isinstance(array, ObjectArray) and isinstance(array.array, np.ndarray):
            chunks = Chunks(1, min(self.n_features, max(1, PAGE // self.dtype.itemsize)))
        self.storage = Storage(
            chunks,
            array.decode_bytes,
            array.converted_bytes,
            array.encoded,
            array.keeps,
            fills=type(array) is not ObjectArray,  # an object in memory returns arrays of its own
            sparse=array.sparse if self.shape == array.shape and layout.outer == (0,) else None,
        )

    def selected(self, sel: Mapping[str, Any]) -> Self:
        """Return the same array with a further selection by values; see `places_of_values`."""
        select: dict[Axis, int | slice] = dict(self._options.get("select") or {})
        places = places_of_values(sel, self.stored_coordinates, self.dims, self.source)
        for name, place in places.items():
            number = self.dims.index(name)
            if not select.keys().isdisjoint((name, number, number - len(self.dims))):
                raise RequestError(f"axis {name!r} of {self.source} is in select and in sel; name it in one of them.")
            select[name] = place
        return self.laid_out(self._layout_of(self.array.shape, {**self._options, "select": select}))

    def of_array(self, array: StoredArray) -> Self:
        """Return the same samples of another array with the same shape and axes."""
        collection = copy.copy(self)
        collection.array, collection.dtype = array, check_dtype(np.dtype(array.dtype), self.source)
        return collection.laid_out(self.layout)

    def laid_out(self, layout: Layout) -> Self:
        """Return the same array with another layout of its axes."""
        collection = copy.copy(self)
        collection._lay_out(layout)
        return collection

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes that the format stores with the array."""
        return self.array.attributes

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of the array along the axes of a sample, cut to the layout's selection."""
        if not self.dims:
            return {}
        inner = [self.dims[axis] for axis in self.layout.inner]
        coordinates = self._along(inner)
        for axis, side in enumerate(SIDES):  # a reference with the transform of rotated pixels moves with the cut
            if SPATIAL_REF in coordinates and side in inner:
                start = self.layout.taken(self.dims.index(side)).start
                coordinates[SPATIAL_REF] = moved(coordinates[SPATIAL_REF], axis, start, 1)
        return {name: coordinates[name] for name in (*inner, *coordinates) if name in coordinates}

    @property
    def stored_coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates along all axes of the array, by name, before any selection."""
        return self.array.coordinates

    def _along(self, dims: Sequence[str]) -> dict[str, Coordinate]:
        """Return the coordinates along the given axes and no others, cut to the layout's selection."""
        ranges, coordinates = {dim: self.layout.taken(self.dims.index(dim)) for dim in dims}, {}
        for name, coordinate in self.stored_coordinates.items():
            ordered = over_axes(coordinate, name, dims)
            if ordered is not None:
                part = tuple(ranges[dim] for dim in ordered.along(name))
                coordinates[name] = ordered._replace(values=ordered.values[part])
        return coordinates

    @property
    def series(self) -> Mapping[str, Any]:
        """Names and values that identify the series of the array, as the format stores them."""
        return self.array.series

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return the coordinates along the axes flattened into samples, n values each, repeated over the others."""
        shape, coordinates = self.layout.outer_shape, {}
        if not self.dims or self.n_samples > MOST_VALUES:
            return {}
        outer = self.samples_along
        for name, coord in self._along(outer).items():
            if not coord.along(name):
                continue
            lengths_of = zip(outer, shape, strict=True)
            values = coord.values.reshape([length if dim in coord.along(name) else 1 for dim, length in lengths_of])
            about = {key: value for key, value in coord.attributes.items() if key != LEVEL or len(outer) == 1}
            coordinates[name] = Coordinate(np.broadcast_to(values, shape).reshape(-1), about)
        return coordinates

    def sample_names(self) -> Sequence[str] | None:
        """Return the array's texts along the one axis that counts samples."""
        if len(self.layout.outer) != 1 or not self.dims:
            return None
        [axis] = self.layout.outer
        names, entries = self.array.names(self.dims[axis]), self.layout.taken(axis)
        return names if names is None or entries == slice(0, len(names)) else names[entries]

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read samples as boxes of the array, axes transposed to the sample's order; see `Collection.read`."""
        features = features or slice(0, self.n_features)
        shape = (rows.stop - rows.start, features.stop - features.start)
        if 0 in shape:
            return np.empty(shape, self.dtype)
        inner, cut = covering_box(features.start, features.stop, self.sample_shape)
        boxes, width = list(self._boxes(rows, inner)), math.prod(lengths(inner))
        if len(boxes) == 1 and type(self.array) is ObjectArray:  # one slice can be a view
            piece = self.array.read(boxes[0][0]).transpose(self.layout.order)
            return np.ascontiguousarray(piece.reshape(shape[0], width)[:, cut])
        out = np.empty((shape[0], width), self.dtype)
        for box, part, box_shape in boxes:
            self.array.read_into(box, out[part].reshape(box_shape).transpose(self.layout.places))
        read = np.ascontiguousarray(out[:, cut])
        if self.array.unwritten is not None:
            self._settle(rows.start, read, self.array.unwritten)
        return read

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Fill whole lines of samples directly; see `Collection.read_into`."""
        start, stop = (0, self.n_features) if features is None else (features.start, features.stop)
        inner, _ = covering_box(start, stop, self.sample_shape)
        if not self.storage.fills or math.prod(lengths(inner)) != out.shape[1] or out.size == 0:
            super().read_into(rows, features, out)
            return
        for box, part, box_shape in self._boxes(rows, inner):
            self.array.read_into(box, out[part].reshape(box_shape).transpose(self.layout.places))
        if self.array.unwritten is not None:
            self._settle(rows.start, out, self.array.unwritten)

    def read_sparse(self, rows: slice) -> Any:
        """Read rows of a sparse matrix; see `Collection.read_sparse`."""
        return self.array.read_sparse(rows)

    def _boxes(self, rows: slice, inner: Box) -> Iterator[tuple[Box, slice, tuple[int, ...]]]:
        """Yield boxes of the array that hold samples cut to a box, each with its rows among these, and its shape there.

        The shape has the array's axes in the order of the layout.
        """
        done, n_axes = 0, len(self.layout.index)
        for outer in boxes_of(rows.start, rows.stop, self.layout.outer_shape):
            shape = lengths((*outer, *inner))
            count = math.prod(shape[: len(outer)])
            shape = (*shape, *(1,) * (n_axes - len(shape)))  # of dropped axes
            yield self.layout.key((*outer, *inner)), slice(done, done + count), shape
            done += count

    def _settle(self, first: int, rows: Array, number: Any) -> None:
        """Replace unwritten numbers in rows just read, (samples, features), by NaN, or refuse the sample."""
        # Bits are compared, as numpy compares numbers in another byte order ten times slower.
        bits = np.dtype(f"u{self.dtype.itemsize}")
        unwritten = np.array([number], self.dtype).view(bits)[0]
        step = max(1, _COMPARED // max(1, rows.shape[1] * rows.dtype.itemsize))
        for start in range(0, len(rows), step):
            piece = rows[start : start + step]
            is_unwritten = piece.view(bits) == unwritten
            if not is_unwritten.any():
                continue
            if self.dtype.kind != "f":
                sample = first + start + int(is_unwritten.any(axis=1).argmax())
                raise SourceError(never_written(self.where(sample), number))
            piece[is_unwritten] = np.nan

    def where(self, index: int) -> str:
        """Name the sample, with its entry along every axis if several axes count samples."""
        plain = f"sample {index} of {self.source}"
        if not self.layout.outer:
            return self.source
        if len(self.layout.outer) == 1 and self.layout.place(0) == {self.layout.outer[0]: 0}:
            return plain
        names = self.dims or [f"axis {axis}" for axis in range(len(self.layout.index))]
        return f"{plain} ({', '.join(f'{names[axis]} {entry}' for axis, entry in self.layout.place(index).items())})"

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the array, combined with the layout; for an object, those at the time of the call."""
        return self._laid_out(self.array.states(now=now), self.array.shape[0])

    @property
    def _counts_entries(self) -> bool:
        """True if samples are the entries of the first axis, all of them."""
        return self.layout.outer == (0,) and self.layout.index[0] == slice(0, self.n_samples)

    def begun(self, first: int = 0) -> int:
        """Return the number of leading entries of the array whose writing has begun."""
        return self.array.begun(first) if self._counts_entries else self.n_samples

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Return the number of leading entries of the array that are complete."""
        return self.array.settled(seconds, first, before) if self._counts_entries else None

    def states_of_first(self, n: int, *, now: bool = False) -> list[State] | None:
        """Return the states of the first entries of the array, combined with the layout."""
        states = self.array.states_of_first(n, now=now) if self._counts_entries else None
        return None if states is None else self._laid_out(states, n)

    def _laid_out(self, stored: list[State], length: int) -> list[State]:
        """Convert states of array entries to states of samples; the array had `length` entries then."""
        layout = self.layout
        first = layout.index[0]
        if layout.outer[:1] != (0,) or not isinstance(first, slice):  # every sample can depend on every entry
            seen = repr((layout.index, layout.outer, layout.inner))
            return [State(0, what, digest(state, seen)) for _, what, state in stored]
        seen = repr((first.start, layout.index[1:], layout.outer, layout.inner))
        per_entry = math.prod(layout.outer_shape[1:])
        return [
            State(max(0, state.first - first.start) * per_entry, state.what, digest(state.state, seen))
            for state, end in with_ends(stored, max(length, stored[-1].first + 1))
            if end > first.start and (state.first < first.stop or first.stop == length)
        ]


def check_written(stored: int, count: int, fill: Any, label: str) -> None:
    """Refuse an array without stored chunks; log a warning if some are missing, which read as the fill value."""
    if stored == 0:
        raise SourceError(
            f"{label} has none of its values stored: it was created and never written; write it, or copy all of it."
        )
    if stored < count:
        _log.warning(
            "%s has %d of %d chunks stored; the others read as %s, which is right only if it was written to its end.",
            label, stored, count, fill,
        )  # fmt: skip


def never_written(where: str, number: Any) -> str:
    """Return the message for a sample with the number of values that were never written, and the remedies."""
    return (
        f"{where} has values {number}, which the format has where none was written, and its file declares no fill "
        f"value; read them as missing with --fill-value {number} (fill_value={number}), with a rule for these such as "
        "--missing drop-samples (missing='drop-samples'), or as numbers with --fill-value none (fill_value='none')."
    )


def page_shape(shape: tuple[int, ...], values: int) -> tuple[int, ...]:
    """Return the box of about `values` consecutive values of an array, within one entry of axis 0."""
    remaining, sizes = max(1, values), []
    for length in reversed(shape[1:]):
        sizes.append(min(length, remaining))
        remaining = max(1, remaining // max(1, length))
    return (1, *reversed(sizes))


def dims_of(array: Any) -> tuple[str, ...] | None:
    """Return the names of the axes by the metadata of xarray, Zarr 3 or Zarr 2."""
    for dims in (
        getattr(array, "dims", None),
        getattr(getattr(array, "metadata", None), "dimension_names", None),
        dict(getattr(array, "attrs", {})).get("_ARRAY_DIMENSIONS"),
    ):
        if isinstance(dims, (list, tuple)) and dims and all(isinstance(name, str) for name in dims):
            return tuple(dims)
    return None
