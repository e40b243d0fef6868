"""`Joined`: concatenated sources as one collection: lists, globs and folders of files with many samples each.

Image files with one sample each are another kind of collection (`images.py`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ... import machine
from ...arrays import Array
from ...errors import DuplicatesError, EmptySelectionError, SourceError, StreampcaError, without_secrets
from ...execution.threads import ordered_in_threads
from ...kinds.opening import Opening
from ...storage.coordinate import Coordinate
from ...storage.remote import is_url
from ...units import MIB, counted, format_shape
from ..collection import Collection, Filled, Skipped, State, digest, encoded_states, group_size, span_of
from ..common_dtype import WORKSPACE, common_dtype, dtype_remedy
from ..coordinates import MOST_VALUES, CommonGrid, Grid, Order, is_checked, one_after_another
from ..detect import array_files_in, is_zarr
from ..duplicates import (
    ALL,
    ERROR,
    SampleTimes,
    dates_are_shared,
    first_files,
    log_repeats,
    repeats_to_leave_out,
    times_of,
)
from ..image_files.census import log_skipped, with_remedy
from ..image_files.listing import Listing
from ..opener import Opener
from ..opening_record import ArrayAxes, GuessedAxes
from ..storage_record import Chunks, Storage
from ..stored.files import Reopening, state_of
from ..system_folders import log_left_out
from ..tags import TagRules
from .blocks import fill, piece_bytes
from .chosen import Chosen, Places, compact
from .converted import as_dtype
from .reordered import Reordered

T = TypeVar("T")

_log = logging.getLogger("streampca")

# Most parts that stay open, each with a file or two and its cache of decoded chunks, and most bytes of them together.
_OPEN, _HELD = 32, 8 * MIB
# Options that decide which values are read.
_OF_VALUES = ("key", "sample_axes", "select", "sel", "fill_value", "dtype")
# Headers read concurrently: disks and networks have latency.
_AT_ONCE = 16


def open_joined(source: str | Sequence[str], *, opener: Opener) -> Collection:
    """Open every file of a list, glob or folder and concatenate them."""
    files = _listing(source)
    label = source if isinstance(source, str) else f"a list of {len(files)} files"
    log_left_out(files.left_out, label)
    return joined(files, label, opener)


def joined(files: Listing, label: str, opener: Opener) -> Joined:
    """Open every file of a listing and concatenate them; see `open_joined`."""
    if not len(files):
        raise SourceError(f"{label} holds no files; give at least one.")
    return Joined(files, opener.of_part().open, source=label, options=opener.options, reading=opener.reading)


# Kind that the parts of one collection share: the shape of a sample, its dtype and the names of its axes.
_Kind = tuple[tuple[int, ...], "np.dtype[Any]", tuple[str, ...] | None]


class _Part(NamedTuple):
    """Header of a file; `state` is a digest of its state, or of the states of its files if it has `several`."""

    n_samples: int
    kind: _Kind
    storage: Storage
    piece: int  # bytes of a piece, see `piece_bytes`
    state: int
    several: bool
    reading: Mapping[str, str] | None
    sample_axis: str | None
    samples_along: tuple[str, ...]
    guessed_axes: GuessedAxes | None
    array_axes: ArrayAxes | None
    coordinates: Mapping[str, Coordinate]
    times: SampleTimes | None


class _Group:
    """Files that can be concatenated: of one kind, on one grid.

    Attributes
    ----------
    kind : tuple
        Kind of a sample, with the dtype in which those of all files are joined.
    converts : bool
        Whether some of the files have another dtype.
    error : SourceError or None
        Difference of the first of them from the first file of the same kind on another grid.
    """

    def __init__(self, part: _Part, checked: bool) -> None:
        self.kind, self.sample_axis, self.storage, self.piece = part.kind, part.sample_axis, part.storage, 1
        self.samples_along, self.guessed_axes, self.array_axes = part.samples_along, part.guessed_axes, part.array_axes
        self.grid, self.converts = CommonGrid(SourceError, checked=checked), False
        self.error: SourceError | None = None

    def add(self, path: str, part: _Part) -> dict[int, Order]:
        """Add a file and return the orders that put it on the grid, by axis; refuse a file on another grid."""
        orders = self.grid.add(Grid(part.kind[2] or (), part.coordinates), path)
        if part.sample_axis != self.sample_axis:
            self.sample_axis = None
        joined_kind = _common_kind(self.kind, part.kind)
        if joined_kind is not None and part.kind[1] != self.kind[1]:
            self.kind, self.converts = joined_kind, True
        decode = part.storage.decode_bytes + (2 * part.piece if orders else 0)
        self.piece = max(self.piece, part.piece)
        self.storage = replace(
            self.storage,
            chunks=Chunks(*map(max, self.storage.chunks, part.storage.chunks)),
            decode_bytes=max(1, decode, self.storage.decode_bytes),
        )
        return orders


def _grouped(groups: list[_Group], path: str, part: _Part, checked: bool) -> tuple[int, dict[int, Order]]:
    """Add a file to the first group that accepts it, else to a new one; return the group's number and its orders."""
    error = None
    for number, group in enumerate(groups):
        if _common_kind(group.kind, part.kind) is not None:
            try:
                return number, group.add(path, part)
            except SourceError as another:
                error = error or another
    groups.append(_Group(part, checked))
    groups[-1].error = error
    return len(groups) - 1, groups[-1].add(path, part)


class Joined(Reopening, Filled):
    """Concatenated collections in files; each is opened again when it is read, some are kept open."""

    _open: OrderedDict[int, Collection]
    _lock: threading.Lock
    _chosen_places: dict[int, tuple[int, Places]]

    def __init__(
        self,
        files: Listing,
        opener: Callable[[str], Collection],
        *,
        source: str,
        options: Opening,
        reading: TagRules,
    ) -> None:
        skip, duplicates, checked = options.on_bad_file == "skip", options.duplicates, is_checked(options.coordinates)
        named = {name: value for name, value in options.given.items() if name in _OF_VALUES}
        self._how = repr((named, tuple(reading)))
        self.source, self._opener, self.compares_coordinates = source, opener, checked
        counts, numbers = np.zeros(len(files), np.int64), np.full(len(files), -1, np.int32)
        states, several = np.zeros(len(files), np.uint64), np.zeros(len(files), np.bool_)
        groups: list[_Group] = []
        orders: dict[int, dict[int, Order]] = {}
        problems: dict[int, StreampcaError] = {}
        outside: EmptySelectionError | None = None
        times: dict[int, SampleTimes] = {}
        repeats = repeats_to_leave_out(files, source, duplicates)
        for at, described in enumerate(_each(len(files), partial(_described, files, opener, repeats))):
            if described is None:
                counts[at] = counts[repeats[at]]
                continue
            if isinstance(described, EmptySelectionError):
                outside = outside or described
                continue
            if isinstance(described, StreampcaError):
                if not skip or isinstance(described, DuplicatesError):
                    raise described
                problems[at] = described
                continue
            path = files.path(at)
            numbers[at], orders[at] = _grouped(groups, path, described, checked)
            if numbers[at] and not skip:
                unlike = groups[-1].error or with_remedy(_unlike(path, described.kind, groups[0].kind, source), files)
                raise unlike
            counts[at], states[at], several[at] = described.n_samples, described.state, described.several
            if described.times is not None:
                times[at] = described.times
            self.reading = self.reading or described.reading
            if not orders[at]:
                del orders[at]
        if not groups and outside is not None:
            raise outside
        if not groups:
            raise SourceError(f"{source} has no file that can be read; the first one: {problems[0]}")
        # The largest group is the collection; files of other groups are skipped, with how they differ from it.
        most = int(np.bincount(numbers[numbers >= 0]).argmax())
        common, kept = groups[most], numbers == most
        for at in np.flatnonzero(~kept & (numbers >= 0)).tolist():
            path, group = files.path(at), groups[numbers[at]]
            problems[at] = (
                _unlike(path, group.kind, common.kind, source)
                if _common_kind(group.kind, common.kind) is None
                else SourceError(
                    f"{path} lies on another grid than most files of {source}: {groups[max(numbers[at], most)].error}"
                )
            )
        self.skipped = tuple(Skipped(without_secrets(files.path(at)), str(problems[at])) for at in sorted(problems))
        log_skipped(self.skipped, len(files), source)
        times = {at: dates for at, dates in times.items() if kept[at]}
        log_repeats(source, times.values())
        first = {} if duplicates == ALL else _of_first_files(files, times, source, refused=duplicates == ERROR)
        if (repeats or first) and not problems and outside is None:
            self.kept = np.concatenate([first.get(at, np.full(counts[at], kept[at])) for at in range(len(files))])
        dated = [dates.keys[first.get(at, slice(None))] for at, dates in times.items()]
        counts_of_parts = counts.copy()
        for at, mask in first.items():
            counts[at] = np.count_nonzero(mask)
        kept &= counts > 0
        self._keys = np.concatenate(dated) if sum(map(len, dated)) == counts[kept].sum() else None
        self.files = files.select(np.flatnonzero(kept))
        self._states, self._several = states[kept], several[kept]
        self._ends = np.concatenate([[0], np.cumsum(counts[kept])])
        shape, self.dtype, self.axes = common.kind
        self.shape = (int(self._ends[-1]), *shape)
        self._coordinates, self.sample_axis = common.grid.coordinates, common.sample_axis
        self.samples_along, self.guessed_axes = common.samples_along, common.guessed_axes
        self.array_axes = common.array_axes
        places = np.cumsum(kept) - 1
        self._orders = {int(places[at]): order for at, order in orders.items() if kept[at]}
        self._chosen_places = {
            int(places[at]): (int(counts_of_parts[at]), compact(np.flatnonzero(mask), len(mask)))
            for at, mask in first.items()
            if kept[at]
        }
        for number in self._orders.keys() | self._chosen_places.keys():
            self._states[number] = self._as_read(number, int(self._states[number]))
        decode = common.storage.decode_bytes + (common.piece if self._chosen_places else 0)
        self._most_open = max(1, min(_OPEN, _HELD // decode, len(self.files)))
        # All open parts hold chunks. A part that does not fill is read by pieces.
        self.storage = Storage(
            common.storage.chunks,
            self._most_open * decode
            + (common.piece if len(self.files) > 1 else 0)
            + (common.piece + WORKSPACE if common.converts else 0),
            encoded=common.storage.encoded,
            fills=common.storage.fills and 0 not in self._chosen_places,
        )
        self._forget()

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes of the first part."""
        return self.part(0).attributes

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of the first part that all parts share."""
        return self._coordinates

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return the coordinates that all parts have, concatenated, in the units of the first part."""
        if self.n_samples > MOST_VALUES:
            return {}
        # Parts are opened one by one, and only if the first has coordinates at all.
        shared = self.part(0).sample_coordinates().keys()
        parts = [self.part(number).sample_coordinates() for number in range(len(self.files))] if shared else []
        names = [name for name in shared if all(name in part for part in parts)]
        joined = {name: one_after_another([part[name] for part in parts]) for name in names}
        for name, whole in joined.items():
            if whole is None:
                _log.warning(
                    "%s of %s is left out: the units of one file cannot be converted to those of the first.",
                    name, self.source,
                )  # fmt: skip
        return {name: whole for name, whole in joined.items() if whole is not None}

    def sample_keys(self) -> npt.NDArray[np.int64] | None:
        """Return the keys of all parts; None if a part has none."""
        return self._keys

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read part by part; see `Collection.read`."""
        pieces = list(self._pieces(rows))
        if len(pieces) == 1:
            number, within = pieces[0]
            return self.part(number).read(within, features)
        return super().read(rows, features)

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Fill part by part; see `Collection.read_into`."""
        done = 0
        for number, within in self._pieces(rows):
            part, count = self.part(number), within.stop - within.start
            into = part.read_into if part.storage.fills else partial(fill, part)
            into(within, features, out[done : done + count])
            done += count

    def where(self, index: int) -> str:
        """Name the sample by its file and position there."""
        number, within = self._place(index)
        return self.part(number).where(within)

    def named(self, index: int) -> str:
        """Name the sample by its file and position there, and its number among all."""
        return f"{self.where(index)} (sample {index})"

    def paths(self) -> list[str]:
        """Return the files of a list; else the folder or glob."""
        return [*super().paths(), *self.files.unnamed(self.source)]

    def sample_names(self) -> Sequence[str] | None:
        """Return the paths of the files below their common folder, if each holds one sample."""
        return self.files.names if len(self.files) == self.n_samples else None

    def part(self, number: int) -> Collection:
        """Return one of the parts, opened."""
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
        path = self.files.path(number)
        count, places = self._chosen_places.get(number, (int(self._ends[number + 1] - self._ends[number]), None))
        part = self._opener(path)
        if part.shape != (count, *self.sample_shape) or common_dtype(part.dtype, self.dtype) != self.dtype:
            raise SourceError(
                f"{path} is {format_shape(part.shape)} {part.dtype} and was {format_shape((count, *self.sample_shape))}"
                f" {self.dtype} when {self.source} was opened; leave the files as they are while they are read."
            )
        part = as_dtype(part, self.dtype)
        if number in self._orders:
            part = Reordered(part, self._orders[number])
        if places is not None:
            part = Chosen(part, places)
        with self._lock:
            self._open[number] = part
            while len(self._open) > self._most_open:
                self._open.popitem(last=False)
        return part

    def states(self, *, now: bool = False) -> list[State]:
        """Return states of runs of parts; parts that are one file each are not opened for it."""
        files, states = (self.files, self._states) if not now else self._now()
        return self._grouped_states(files, states, group_size(len(self.files)))

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Count the samples of all parts except a last one that is too young; None if parts are folders."""
        return None if self._several.any() else int(self._ends[self.files.settled(seconds)])

    def states_of_first(self, n: int, *, now: bool = False) -> list[State] | None:
        """Return states of runs of the parts that hold the first n samples; None if these end within a part."""
        count = int(np.searchsorted(self._ends, n))
        if self._ends[count] != n or (now and self._several[:count].any()):
            return None
        files, states = self.files.first(count), self._states[:count]
        if now:
            file_states = ((at, _number(state_of(files.path(at)))) for at in range(count))
            states = np.array([self._as_read(at, state) for at, state in file_states], np.uint64)
        return self._grouped_states(files, states, group_size(count))

    def _grouped_states(self, files: Listing, states: Array, size: int) -> list[State]:
        grouped = []
        for start in range(0, len(files), size):
            stop = min(start + size, len(files))
            what, first = span_of(files.path(start), files.path(stop - 1)), self._ends[min(start, len(self.files))]
            grouped.append(State(int(first), what, digest(self._how, states[start:stop].tobytes())))
        return grouped

    def _now(self) -> tuple[Listing, Array]:
        """Return the current files and their states; a file that was not at its place has a state equal to no other."""
        files = self.files.current()

        def state_of_part(at: int) -> int:
            path = files.path(at)
            if at >= len(self.files) or path != self.files.path(at):
                return _number(path)
            several = self._several[at]
            state = encoded_states(self._opener(path).states(now=True)) if several else state_of(path)
            return self._as_read(at, _number(state))

        return files, np.fromiter(_each(len(files), state_of_part), np.uint64, len(files))

    def _as_read(self, number: int, state: int) -> int:
        """Return the state of a part, combined with its reordering and the choice of its samples."""
        orders = self._orders.get(number, {})
        changes: list[Any] = [(axis, digest(order.tobytes())) for axis, order in sorted(orders.items())]
        if number in self._chosen_places:
            changes.append(digest(np.asarray(self._chosen_places[number][1]).tobytes()))
        return _number((state, changes)) if changes else state

    def _place(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._ends, index, "right")) - 1
        return number, index - int(self._ends[number])

    def _pieces(self, rows: slice) -> Iterator[tuple[int, slice]]:
        """Yield the parts that hold samples, with the range in each; an empty range yields one of the first part."""
        if rows.stop == rows.start:
            yield 0, slice(0, 0)
        start = rows.start
        while start < rows.stop:
            number, within = self._place(start)
            stop = min(rows.stop, int(self._ends[number + 1]))
            yield number, slice(within, within + stop - start)
            start = stop

    def _forget(self) -> None:
        self._open, self._lock = OrderedDict(), threading.Lock()


def _common_kind(first: _Kind, second: _Kind) -> _Kind | None:
    """Return the kind in which samples of two kinds are joined, None if they are not."""
    dtype = common_dtype(first[1], second[1])
    return None if dtype is None or (first[0], first[2]) != (second[0], second[2]) else (first[0], dtype, first[2])


def _described(
    files: Listing, opener: Callable[[str], Collection], left_out: Container[int], at: int
) -> _Part | StreampcaError | None:
    """Open a file, unless it is left out, and return its header, or the error of opening it."""
    if at in left_out:
        return None
    path = files.path(at)
    try:
        before = None if os.path.isdir(path) else state_of(path)
        part = opener(path)
        states, times = part.states(), times_of(part)
    except StreampcaError as error:
        return error
    several = before is None or len(states) > 1
    kind = part.sample_shape, part.dtype, part.axes
    state = _number(encoded_states(states) if several else before)
    return _Part(
        part.n_samples,
        kind,
        part.storage,
        piece_bytes(part),
        state,
        several,
        part.reading,
        part.sample_axis,
        part.samples_along,
        part.guessed_axes,
        part.array_axes,
        part.coordinates,
        times,
    )


def _of_first_files(
    files: Listing, times: Mapping[int, SampleTimes], source: str, *, refused: bool
) -> dict[int, npt.NDArray[np.bool_]]:
    """Return masks of the samples whose dates no earlier file has, by the index of each file with repeated dates.

    Raises
    ------
    DuplicatesError
        If there are such files and `refused` is True.
    """
    if len(times) < 2:
        return {}
    files_with_dates, masks = list(times), {}
    owners = first_files([dated.keys for dated in times.values()])
    ends = np.cumsum([len(dated.dates.days) for dated in times.values()])
    for number, owner in enumerate(np.split(owners, ends[:-1])):
        again = np.flatnonzero(owner < number)
        if not len(again):
            continue
        path, at = files.path(files_with_dates[number]), files_with_dates[number]
        if refused:
            raise dates_are_shared(path, files.path(files_with_dates[owner[again[0]]]), times[at].dates, again)
        masks[at] = owner == number
    if masks:
        count = sum(int(np.count_nonzero(~mask)) for mask in masks.values())
        _log.warning(
            "left out %s of %s whose dates earlier files have, of %s first.",
            counted(count, "sample"), without_secrets(source), without_secrets(files.path(min(masks))),
        )  # fmt: skip
    return masks


def _number(state: object) -> int:
    """Return a digest as a 64-bit number, of which arrays hold many."""
    return int(digest(state), 16)


def _each(count: int, function: Callable[[int], T]) -> Iterator[T]:
    """Yield ``function(0)`` to ``function(count - 1)`` in order; several run at a time."""
    threads = max(_AT_ONCE, machine.cores())
    # Results in advance are bounded: each holds the coordinates of a file.
    return ordered_in_threads(function, range(count), threads, taken=4 * threads)


def _unlike(path: str, kind: _Kind, common_kind: _Kind, source: str) -> SourceError:
    """Return the error for a part of another kind than most, with the first property that differs."""
    descriptions: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("images of", "bring all to one size", format_shape),
        ("values of dtype", dtype_remedy(kind[1], common_kind[1]), str),
        ("axes", "give all the same axes", lambda axes: "without names" if axes is None else ", ".join(axes)),
    )
    properties = list(zip(descriptions, kind, common_kind, strict=True))
    if common_dtype(kind[1], common_kind[1]) is not None:
        del properties[1]
    (what, remedy, say), value, common = next(entry for entry in properties if entry[1] != entry[2])
    return SourceError(
        f"{path} has {what} {say(value)}, unlike other files of {source} ({say(common)}); {remedy}, or leave it out."
    )


def _listing(source: str | Sequence[str]) -> Listing:
    """Return the listing of a source's paths."""
    # Folders and globs in a list are expanded, so that a file that occurs twice is noticed.
    left_out: list[str] = []
    items = source if isinstance(source, str) else [*chain(*(_files_of(item, left_out) for item in source))]
    listing = Listing.of(array_files_in(items, left_out) if isinstance(items, str) else items)
    listing.again = partial(_listing, source) if isinstance(source, str) else None
    listing.left_out = tuple(left_out)
    return listing


def _files_of(item: str, left_out: list[str]) -> list[str]:
    """Return the files of a folder or glob in a list; any other item, or an empty folder or glob, as it is."""
    if is_url(item) or is_zarr(item) or os.path.isfile(item):
        return [item]
    return array_files_in(item, left_out) or [item]
