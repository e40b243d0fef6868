"""`Joined`: sources one after another as one collection: lists, globs and folders of files that hold many samples.

Files of images, a sample each, are a collection by themselves (`images.py`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack

import numpy as np

from ... import machine
from ...errors import SourceError, StreampcaError, without_secrets
from ...events import silent
from ...storage.coordinate import Coordinate
from ...units import MIB, format_shape
from ..collection import Array, Chunks, Collection, Skipped, State, digest, encoded_states, group_size, span_of
from ..coordinates import CHECK, IGNORE, MOST_VALUES, CommonGrid, Grid, Order, is_checked, one_after_another
from ..detect import array_files_in
from ..image_files.census import log_skipped, with_remedy
from ..image_files.listing import Listing
from ..image_files.names import FileNames
from ..stored.files import Reopening, state_of
from ..stored.layout import SampleAxes
from ..tags import TagRules
from .blocks import fill, piece_bytes
from .reordered import Reordered

T = TypeVar("T")

_log = logging.getLogger("streampca")

# Parts kept open, each with a file or two and what it decoded last (HDF5 keeps chunks): as many as hold this together.
_OPEN, _HELD = 32, 8 * MIB
# Headers read at a time: disks and networks answer many questions together.
_AT_ONCE = 16


def open_joined(
    source: str | Sequence[str],
    *,
    key: str | None = None,
    on_bad_file: str = "error",
    coordinates: str = CHECK,
    opened: Callable[..., Collection],
    reading: TagRules = TagRules(),  # noqa: B008 - frozen
    **axes: Unpack[SampleAxes],
) -> Collection:
    """Open every file of a list, glob or folder and put them one after another."""
    files = _listing(source)
    label = source if isinstance(source, str) else f"a list of {len(files)} files"
    options = {"key": key, **axes}
    checked = is_checked(coordinates)
    return joined(files, label, options, opened, reading, skip=on_bad_file == "skip", checked=checked)


def joined(
    files: Listing,
    label: str,
    options: Mapping[str, Any],
    opened: Callable[..., Collection],
    reading: TagRules,
    *,
    skip: bool,
    checked: bool = True,
) -> Joined:
    """Open every file of a listing, by `opened` with `options`, and put them one after another; see `open_joined`."""
    if not len(files):
        raise SourceError(f"{label} holds no files; give at least one.")
    # A part that is one image file has nothing to list, to leave out or to tell a listener of.
    further = {"on_bad_file": "error", "opened": opened, "listing": None, "listener": silent, "reading": reading}
    further["coordinates"] = CHECK if checked else IGNORE
    opener = partial(opened, options=options, further=further)
    return Joined(files, opener, source=label, skip=skip, checked=checked)


# What the parts of one collection have in common: the shape of a sample, its dtype and the names of its axes.
_Kind = tuple[tuple[int, ...], "np.dtype[Any]", tuple[str, ...] | None]


class _Part(NamedTuple):
    """Header of a file; `states` digests its states, `alone` the state of the one file it is, 0 if it is several."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...] | None
    chunks: Chunks
    decode_bytes: int
    piece_bytes: int
    states: int
    alone: int
    reading: Mapping[str, str] | None
    sample_axis: str | None
    coordinates: Mapping[str, Coordinate]

    @property
    def kind(self) -> _Kind:
        return self.shape[1:], self.dtype, self.axes


class Joined(Reopening, Collection):
    """Collections in files, one after another; each is opened again when it is read, some are kept open."""

    _open: OrderedDict[int, Collection]
    _lock: threading.Lock

    def __init__(
        self, files: Listing, opener: Callable[[str], Collection], *, source: str, skip: bool, checked: bool = True
    ) -> None:
        self.source, self._opener, self.compares_coordinates = source, opener, checked
        counts, numbers = np.zeros(len(files), np.int64), np.full(len(files), -1, np.int32)
        states, alone = np.zeros(len(files), np.uint64), np.zeros(len(files), np.uint64)
        kinds: dict[tuple[_Kind, int], int] = {}
        grids: dict[_Kind, _Grids] = {}
        orders: dict[int, dict[int, Order]] = {}
        most: list[Array] = []  # of each kind: samples and features of a chunk, bytes of decoding and of a piece
        problems: dict[int, StreampcaError] = {}
        reading: Mapping[str, str] | None = None
        for at, found in enumerate(_described(files, opener)):
            if isinstance(found, StreampcaError):
                if not skip:
                    raise found
                problems[at] = found
                continue
            grid, its_orders = grids.setdefault(found.kind, _Grids(checked)).place(files.path(at), found)
            numbers[at] = kinds.setdefault((found.kind, grid), len(kinds))
            if len(kinds) > 1 and not skip:
                if grid:
                    raise grids[found.kind].errors[grid]
                raise with_remedy(_unlike(files.path(at), found.kind, next(iter(kinds))[0], source), files)
            if its_orders:
                orders[at] = its_orders
            counts[at], states[at], alone[at] = found.shape[0], found.states, found.alone
            reading = reading or found.reading
            decode = found.decode_bytes + (2 * found.piece_bytes if its_orders else 0)
            its = np.array([*found.chunks, decode, found.piece_bytes], np.int64).clip(1)
            if len(most) < len(kinds):
                most.append(its)
            np.maximum(most[numbers[at]], its, out=most[numbers[at]])
        if not kinds:
            raise SourceError(f"{source} has no file that can be read; the first one: {problems[0]}")
        common = int(np.bincount(numbers[numbers >= 0]).argmax())
        (kind, grid), kept = list(kinds)[common], numbers == common
        samples, features, decode, piece = map(int, most[common])
        for at in np.flatnonzero(~kept & (numbers >= 0)).tolist():
            its_kind, its_grid = list(kinds)[numbers[at]]
            problems[at] = (
                _unlike(files.path(at), its_kind, kind, source)
                if its_kind != kind
                else grids[kind].unlike(files.path(at), its_grid, grid, source)
            )
        skipped = [Skipped(without_secrets(files.path(at)), str(problems[at])) for at in sorted(problems)]
        # Not Listing.taken: it asks the system for every file's state.
        self.files = files if kept.all() else Listing(files.root, files.names.taken(kept))
        counts, self._states, self._alone = counts[kept], states[kept], alone[kept]
        self._ends = np.concatenate([[0], np.cumsum(counts)])
        self.shape, self.dtype, self.axes = (int(self._ends[-1]), *kind[0]), kind[1], kind[2]
        self._coordinates, self._sample_axis = grids[kind].common[grid].coordinates, grids[kind].sample_axes[grid]
        places = np.cumsum(kept) - 1
        self._orders = {int(places[at]): own for at, own in orders.items() if kept[at]}
        for number in self._orders:
            self._states[number] = self._with_order(number, int(self._states[number]))
        self.skipped, self.reading = tuple(skipped), reading
        log_skipped(skipped, len(files), source)
        self._chunks = Chunks(samples, features)
        self._most_open = max(1, min(_OPEN, _HELD // decode, len(counts)))
        self._decode_bytes = self._most_open * decode + (piece if len(counts) > 1 else 0)
        self._forget()

    @property
    def chunks(self) -> Chunks:
        """The largest of the parts'."""
        return self._chunks

    @property
    def decode_bytes(self) -> int:
        """The most that the parts kept open hold, and a piece of one."""
        return self._decode_bytes

    @property
    def encoded(self) -> bool:
        """Whether reading the first part decodes."""
        return self.part(0).encoded

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes of the first part."""
        return self.part(0).attributes

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of the first part that all parts share."""
        return self._coordinates

    @property
    def sample_axis(self) -> str | None:
        """The one that all parts have."""
        return self._sample_axis

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return the coordinates that all parts have, concatenated, in the units of the first part."""
        if self.n_samples > MOST_VALUES:
            return {}
        found: dict[str, list[Coordinate]] | None = None
        for part in self._parts():
            its = part.sample_coordinates()
            if found is None:
                found = {name: [coordinate] for name, coordinate in its.items()}
            else:
                found = {name: [*before, its[name]] for name, before in found.items() if name in its}
            if not found:
                return {}
        joined = {name: one_after_another(parts) for name, parts in (found or {}).items()}
        for name, whole in joined.items():
            if whole is None:
                _log.warning(
                    "%s of %s is left out: the units of one file cannot be converted to those of the first.",
                    name, self.source,
                )  # fmt: skip
        return {name: whole for name, whole in joined.items() if whole is not None}

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read part by part; see `Collection.read`."""
        pieces = list(self._pieces(rows))
        if len(pieces) == 1:
            number, some = pieces[0]
            return self.part(number).read(some, features)
        width = self.n_features if features is None else features.stop - features.start
        out = np.empty((rows.stop - rows.start, width), self.dtype)
        self.read_into(rows, features, out)
        return out

    @property
    def fills(self) -> bool:
        """Whether the first part does; another that does not holds a piece of itself beside, as it does anyway."""
        return self.part(0).fills

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Fill part by part; see `Collection.read_into`."""
        done = 0
        for number, some in self._pieces(rows):
            part, count = self.part(number), some.stop - some.start
            into = part.read_into if part.fills else partial(fill, part)
            into(some, features, out[done : done + count])
            done += count

    def where(self, index: int) -> str:
        """Name the sample by its place in its file."""
        number, within = self._place(index)
        return self.part(number).where(within)

    def named(self, index: int) -> str:
        """Name the sample by its place in its file, and its number among all."""
        return f"{self.where(index)} (sample {index})"

    def paths(self) -> list[str]:
        """The files of a list; else the folder or glob."""
        return [*super().paths(), *self.files.unnamed(self.source)]

    def sample_names(self) -> Sequence[str] | None:
        """Paths of the files below their common folder, where each holds one sample."""
        return self.files.names if len(self.files) == self.n_samples else None

    def part(self, number: int) -> Collection:
        """One of the parts, opened."""
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
        path, count = self.files.path(number), int(self._ends[number + 1] - self._ends[number])
        part = self._opener(path)
        if part.shape != (count, *self.sample_shape) or part.dtype != self.dtype:
            raise SourceError(
                f"{path} is {format_shape(part.shape)} {part.dtype} and was {format_shape((count, *self.sample_shape))}"
                f" {self.dtype} when {self.source} was opened; leave the files as they are while they are read."
            )
        if number in self._orders:
            part = Reordered(part, self._orders[number])
        with self._lock:
            self._open[number] = part
            while len(self._open) > self._most_open:
                self._open.popitem(last=False)
        return part

    def states(self, *, now: bool = False) -> list[State]:
        """Return states of runs of parts; of parts that are one file each, none is opened for it."""
        files, states = (self.files, self._states) if not now else self._now()
        size, found = group_size(len(self.files)), []
        for start in range(0, len(files), size):
            stop = min(start + size, len(files))
            what, first = span_of(files.path(start), files.path(stop - 1)), self._ends[min(start, len(self.files))]
            found.append(State(int(first), what, digest(states[start:stop].tobytes())))
        return found

    def _now(self) -> tuple[Listing, Array]:
        """The files that there are now, and their states; of a file that was not in its place any text."""
        files = self.files.current()

        def state_of_part(at: int) -> int:
            path = files.path(at)
            if at >= len(self.files) or path != self.files.path(at):
                return _number(path)
            if not self._alone[at]:
                return self._with_order(at, _number(encoded_states(self._opener(path).states(now=True))))
            alone = _number(state_of(path))
            return int(self._states[at]) if alone == self._alone[at] else alone

        return files, np.fromiter(_each(len(files), state_of_part), np.uint64, len(files))

    def _with_order(self, number: int, state: int) -> int:
        """The state of a part, with the order in which it is read."""
        orders = self._orders.get(number, {})
        own = [(axis, digest(order.tobytes())) for axis, order in sorted(orders.items())]
        return _number((state, own)) if own else state

    def _parts(self) -> Iterator[Collection]:
        return (self.part(number) for number in range(len(self.files)))

    def _place(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._ends, index, "right")) - 1
        return number, index - int(self._ends[number])

    def _pieces(self, rows: slice) -> Iterator[tuple[int, slice]]:
        """Parts that samples lie in, and which of each; of an empty range, an empty range of the first."""
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


class _Grids:
    """Grids of the files of one kind: each file lies on the first that it can be put on.

    Attributes
    ----------
    common : list of CommonGrid
        With what the files on each of them share.
    sample_axes : list of str or None
        Names of the axis that counts samples in all files of each.
    errors : list of SourceError
        How the first file of each differs from the first file of all; nothing is wrong with the first.
    """

    def __init__(self, checked: bool) -> None:
        self.common: list[CommonGrid] = []
        self.sample_axes: list[str | None] = []
        self.errors: list[SourceError] = []
        self._checked = checked
        self._placed: dict[int, tuple[int, dict[int, Order]]] = {}

    def place(self, path: str, part: _Part) -> tuple[int, dict[int, Order]]:
        """Return the number of the grid that a file lies on, and the orders that put it there, by axis."""
        identity = id(part.coordinates)  # equal ones are one object, which lives as long as files are described
        if identity not in self._placed:
            self._placed[identity] = self._compared(path, part)
        number, orders = self._placed[identity]
        if part.sample_axis != self.sample_axes[number]:
            self.sample_axes[number] = None
        return number, orders

    def _compared(self, path: str, part: _Part) -> tuple[int, dict[int, Order]]:
        grid, first = Grid(part.axes or (), part.coordinates), SourceError(f"{path} lies on another grid.")
        for number, common in enumerate(self.common):
            try:
                return number, common.add(grid, path)
            except SourceError as error:
                first = error if number == 0 else first
        self.common.append(CommonGrid(SourceError, checked=self._checked))
        self.common[-1].add(grid, path)
        self.sample_axes.append(part.sample_axis)
        self.errors.append(first)
        return len(self.common) - 1, {}

    def unlike(self, path: str, number: int, common: int, source: str) -> SourceError:
        """Say what keeps a file from being put beside most others."""
        return SourceError(
            f"{path} lies on another grid than most files of {source}: {self.errors[max(number, common)]}"
        )


def _described(files: Listing, opener: Callable[[str], Collection]) -> Iterator[_Part | StreampcaError]:
    """Open every file, several at a time, and keep what its header says, or what is wrong with it."""
    seen: dict[str, Mapping[str, Coordinate]] = {}

    def describe(at: int) -> _Part | StreampcaError:
        path = files.path(at)
        try:
            alone = 0 if os.path.isdir(path) else _number(state_of(path))
            part = opener(path)
            states = part.states()
            # One object for equal coordinates: those of a thousand files would be held while others are opened.
            along = part.coordinates
            along = seen.setdefault(_digest(along), along)
        except StreampcaError as error:
            return error
        known = _number(encoded_states(states)), alone if len(states) == 1 else 0, part.reading
        about = part.chunks, part.decode_bytes, piece_bytes(part)
        return _Part(part.shape, part.dtype, part.axes, *about, *known, part.sample_axis, along)

    return _each(len(files), describe)


def _digest(coordinates: Mapping[str, Coordinate]) -> str:
    values = [(name, each.values.dtype.str, each.values.tobytes()) for name, each in coordinates.items()]
    return digest(values, [sorted(each.attributes.items()) for each in coordinates.values()])


def _number(state: object) -> int:
    """Digest as a number of 64 bits: of many parts, as many are held."""
    return int(digest(state), 16)


def _each(count: int, function: Callable[[int], T]) -> Iterator[T]:
    """Yield ``function(0)`` to ``function(count - 1)`` in order; several run at a time."""
    with ThreadPoolExecutor(max(1, min(count, max(_AT_ONCE, machine.cores())))) as pool:
        # By and by: a task waiting for each of a million files would be a million Python objects.
        for start in range(0, count, 64 * _AT_ONCE):
            yield from pool.map(function, range(start, min(count, start + 64 * _AT_ONCE)))


def _unlike(path: str, its: _Kind, theirs: _Kind, source: str) -> SourceError:
    """Say what keeps a part from being put beside others of another kind."""
    ways = (
        ("images of", "bring all to one size"),
        ("values of dtype", f"convert it to {theirs[1]}"),
        ("axes", "give all the same axes"),
    )
    at = next(at for at in range(len(ways)) if its[at] != theirs[at])
    what, remedy = ways[at]
    return SourceError(
        f"{path} has {what} {_say(its[at], at)}, unlike other files of {source} ({_say(theirs[at], at)}); {remedy}, or "
        "leave it out."
    )


def _say(value: Any, at: int) -> str:
    if at == 0:
        return format_shape(value)
    return "without names" if value is None else ", ".join(value) if at == 2 else str(value)


def _listing(source: str | Sequence[str]) -> Listing:
    """Paths of a source held as a common folder, where they have one, and names below it."""
    paths = list(source) if not isinstance(source, str) else array_files_in(source)
    try:
        root = "" if any("://" in path for path in paths) else os.path.commonpath(map(os.path.dirname, paths))
    except ValueError:  # of no paths, or of some from the root and others from here
        root = ""
    within = len(os.path.join(root, ""))
    listing = Listing(root, FileNames(path[within:] for path in paths))
    listing.again = partial(_listing, source) if isinstance(source, str) else None
    return listing
