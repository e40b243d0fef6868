"""`Joined`: sources one after another as one collection: lists, globs and folders of files that hold many samples.

Files of images, a sample each, are a collection by themselves (`images.py`).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import machine
from ..collection import (
    Array,
    Chunks,
    Collection,
    Coordinate,
    Skipped,
    State,
    digest,
    encoded_states,
    group_size,
    span_of,
)
from ..errors import SourceError, StreampcaError, without_secrets
from ..events import silent
from ..units import MIB, format_shape
from .pictures.census import log_skipped, offering
from .pictures.listing import Listing
from .pictures.names import FileNames
from .reading import Reading
from .sniff import those_of
from .stored.axes import Axis, Selection
from .stored.bytes import state_of
from .stored.coordinates import MOST_VALUES
from .stored.reopening import Reopening
from .stored.runs import fill, piece_bytes

T = TypeVar("T")

# Parts kept open, each with a file or two and what it decoded last (HDF5 keeps chunks): as many as hold this together.
_OPEN, _HELD = 32, 8 * MIB
# Headers read at a time: disks and networks answer many questions together.
_AT_ONCE = 16


def open_joined(
    source: str | Sequence[str],
    *,
    key: str | None = None,
    sample_axes: Sequence[Axis] | None = None,
    select: Selection | None = None,
    on_bad_file: str = "error",
    opened: Callable[..., Collection],
    reading: Reading = Reading(),  # noqa: B008 - frozen
) -> Collection:
    """Open every file of a list, glob or folder and put them one after another.

    Parameters
    ----------
    source : str or list of str
        A glob or folder gives files in natural order, a list in its own.
    key, sample_axes, select : optional
        As for `open_collection`, for each.
    on_bad_file : {"error", "skip"}
        What a file does that cannot be opened, or is unlike most: end the run, or be left out.
    opened : callable
        ``opened(path, options=..., further=...) -> Collection`` opens one of them; it pickles.
    reading : Reading
        Which tags of image files are followed.

    Raises
    ------
    SourceError
        If one cannot be opened or is unlike the first, or all are left out; the message names it.
    """
    files = _listing(source)
    label = source if isinstance(source, str) else f"a list of {len(files)} files"
    options = {"key": key, "sample_axes": sample_axes, "select": select}
    return joined(files, label, options, opened, reading, skip=on_bad_file == "skip")


def joined(
    files: Listing,
    label: str,
    options: Mapping[str, Any],
    opened: Callable[..., Collection],
    reading: Reading,
    *,
    skip: bool,
) -> Joined:
    """Open every file of a listing, by `opened` with `options`, and put them one after another; see `open_joined`."""
    if not len(files):
        raise SourceError(f"{label} holds no files; give at least one.")
    # A part that is one image file has nothing to list, to leave out or to tell a listener of.
    further = {"on_bad_file": "error", "opened": opened, "listing": None, "listener": silent, "reading": reading}
    return Joined(files, partial(opened, options=options, further=further), source=label, skip=skip)


# What the parts of one collection have in common: the shape of a sample, its dtype and the names of its axes.
_Kind = tuple[tuple[int, ...], "np.dtype[Any]", tuple[str, ...] | None]


class _Part(NamedTuple):
    """What is known of a file from its header: `states` is a digest of its states, `alone` of the one file it is."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...] | None
    chunks: Chunks
    decode_bytes: int
    piece_bytes: int
    states: int
    alone: int
    reading: Mapping[str, str] | None

    @property
    def kind(self) -> _Kind:
        return self.shape[1:], self.dtype, self.axes


class Joined(Reopening, Collection):
    """Collections in files, one after another; each is opened again when it is read, some are kept open.

    Parameters
    ----------
    files : Listing
        In order.
    opener : callable
        ``opener(path) -> Collection``; it pickles.
    source : str
        What messages call them all.
    skip : bool
        Whether to leave out what cannot be opened or is unlike most.
    """

    _left_behind = ("_open", "_lock")

    _open: OrderedDict[int, Collection]
    _lock: threading.Lock

    def __init__(self, files: Listing, opener: Callable[[str], Collection], *, source: str, skip: bool) -> None:
        self.source, self._opener = source, opener
        counts, numbers = np.zeros(len(files), np.int64), np.full(len(files), -1, np.int32)
        states, alone = np.zeros(len(files), np.uint64), np.zeros(len(files), np.uint64)
        kinds: dict[_Kind, int] = {}
        most: list[Array] = []  # of each kind: samples and features of a chunk, bytes of decoding and of a piece
        problems: dict[int, StreampcaError] = {}
        reading: Mapping[str, str] | None = None
        for at, found in enumerate(_described(files, opener)):
            if isinstance(found, StreampcaError):
                if not skip:
                    raise found
                problems[at] = found
                continue
            numbers[at] = kinds.setdefault(found.kind, len(kinds))
            if len(kinds) > 1 and not skip:
                raise offering(_unlike(files.path(at), found.kind, next(iter(kinds)), source), files)
            counts[at], states[at], alone[at] = found.shape[0], found.states, found.alone
            reading = reading or found.reading
            its = np.array([*found.chunks, found.decode_bytes, found.piece_bytes], np.int64).clip(1)
            if len(most) < len(kinds):
                most.append(its)
            np.maximum(most[numbers[at]], its, out=most[numbers[at]])
        if not kinds:
            raise SourceError(f"{source} has no file that can be read; the first one: {problems[0]}")
        common = int(np.bincount(numbers[numbers >= 0]).argmax())
        kind, kept = list(kinds)[common], numbers == common
        samples, features, decode, piece = map(int, most[common])
        for at in np.flatnonzero(~kept & (numbers >= 0)).tolist():
            problems[at] = _unlike(files.path(at), list(kinds)[numbers[at]], kind, source)
        skipped = [Skipped(without_secrets(files.path(at)), str(problems[at])) for at in sorted(problems)]
        # Not Listing.taken: it asks the system for every file's state.
        self.files = files if kept.all() else Listing(files.root, files.names.taken(kept))
        counts, self._states, self._alone = counts[kept], states[kept], alone[kept]
        self._ends = np.concatenate([[0], np.cumsum(counts)])
        self.shape, self.dtype, self.axes = (int(self._ends[-1]), *kind[0]), kind[1], kind[2]
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
        """Those of the first part."""
        return self.part(0).attributes

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Those of the first part that the last one shares; parts between are like their neighbours."""
        last = self.part(len(self.files) - 1).coordinates
        return {name: one for name, one in self.part(0).coordinates.items() if _same(one, last.get(name))}

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Those that all parts have in the same units, one part's after another's."""
        if self.n_samples > MOST_VALUES:
            return {}
        found: dict[str, list[Coordinate]] | None = None
        for part in self._parts():
            its = part.sample_coordinates()
            if found is None:
                found = {name: [coordinate] for name, coordinate in its.items()}
            else:
                found = {
                    name: [*before, its[name]]
                    for name, before in found.items()
                    if name in its and _alike(before[0], its[name])
                }
            if not found:
                return {}
        return {
            name: parts[0]._replace(values=np.concatenate([part.values for part in parts]))
            for name, parts in (found or {}).items()
        }

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
                return _number(encoded_states(self._opener(path).states(now=True)))
            alone = _number(state_of(path))
            return int(self._states[at]) if alone == self._alone[at] else alone

        return files, np.fromiter(_each(len(files), state_of_part), np.uint64, len(files))

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


def _described(files: Listing, opener: Callable[[str], Collection]) -> Iterator[_Part | StreampcaError]:
    """Open every file, several at a time, and keep what its header says, or what is wrong with it."""

    def describe(at: int) -> _Part | StreampcaError:
        path = files.path(at)
        try:
            alone = 0 if os.path.isdir(path) else _number(state_of(path))
            part = opener(path)
            states = part.states()
        except StreampcaError as error:
            return error
        known = _number(encoded_states(states)), alone if len(states) == 1 else 0, part.reading
        return _Part(part.shape, part.dtype, part.axes, part.chunks, part.decode_bytes, piece_bytes(part), *known)

    return _each(len(files), describe)


def _number(state: object) -> int:
    """Digest as a number of 64 bits: of many parts, as many are held."""
    return int(digest(state), 16)


def _each(count: int, function: Callable[[int], T]) -> Iterator[T]:
    """What `function` gives for every number up to `count`, in order, several called at a time."""
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
    paths = list(source) if not isinstance(source, str) else those_of(source)
    try:
        root = "" if any("://" in path for path in paths) else os.path.commonpath(map(os.path.dirname, paths))
    except ValueError:  # of no paths, or of some from the root and others from here
        root = ""
    within = len(os.path.join(root, ""))
    listing = Listing(root, FileNames(path[within:] for path in paths))
    listing.again = partial(_listing, source) if isinstance(source, str) else None
    return listing


def _same(one: Coordinate, other: Coordinate | None) -> bool:
    return other is not None and _alike(one, other) and np.array_equal(one.values, other.values)


def _alike(one: Coordinate, other: Coordinate) -> bool:
    return one.values.dtype.kind == other.values.dtype.kind and dict(one.attributes) == dict(other.attributes)
