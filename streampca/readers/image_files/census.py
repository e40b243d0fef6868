"""Kinds of image in a collection's files, by some headers, or by a census that decodes every file once."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...errors import SourceError, first_line, without_secrets
from ...events import BlockDone, Listener, PassFinished, PassStarted
from ...units import MIB, format_bytes
from ..collection import Array, Skipped
from ..quiet import quiet
from ..tags import BEFORE
from ..threads import for_each
from .decode import Kind, format_kind, holds_several, read_kind, read_picture
from .listing import Listing
from .names import FileNames

# Headers looked at on opening, spread over the files; the others are checked when they are decoded.
_LOOKED_AT = 64

# Where images differ in size every header is read up to so many files (2 s), so that the largest is known.
_ALL_HEADERS = 20_000

# Files between two events of a census.
_AT_A_TIME = 1024

# What one image may take in a census none of whose first headers could be read.
_LARGE = 64 * MIB

# What stands in a census for a file that cannot be decoded, and for one not decoded yet.
_BAD, _UNSEEN = -1, -2

OFFER = 'To leave out such files, give --on-bad-file skip (on_bad_file="skip").'


_log = logging.getLogger("streampca")


class KindCount(NamedTuple):
    """A kind of image: how many `files` of those looked at are of it, and which is the `first`."""

    kind: Kind
    files: int
    first: int


def kind_bytes(kind: Kind) -> int:
    """Bytes of an image, decoded."""
    return math.prod(kind[0]) * kind[1].itemsize


def with_remedy(error: SourceError, files: Listing) -> SourceError:
    """Return the error with the offer to leave out bad files, where there are others."""
    return SourceError(f"{error} {OFFER}") if len(files) > 1 else error


def look_at(files: Listing, label: str) -> tuple[list[KindCount], bool]:
    """Sort files into kinds by some headers, by all where those differ in shape and files are few enough.

    Returns
    -------
    list of KindCount
        The commonest first.
    bool
        Whether these are all the kinds there can be.
    """
    looked_at = _spread(len(files))
    sorts = _sorted_by_header(files, looked_at)
    if len(sorts) > 1 and len(looked_at) < len(files) <= _ALL_HEADERS:
        looked_at = range(len(files))
        sorts = _sorted_by_header(files, looked_at)
    common = _commonest(sorts)
    for sort in sorts:
        if sort.kind[1] != common[1]:
            raise with_remedy(unlike(files.path(sort.first), sort.kind, common, label), files)
    return sorts, len(looked_at) == len(files)


def mostly_stacks(files: Listing) -> bool:
    """Return whether most files, by the headers of some, are TIFF or FITS files that hold several images."""
    looked_at = _spread(len(files))
    several = np.zeros(len(looked_at), np.bool_)

    def look(at: int) -> None:
        several[at] = holds_several(files.path(looked_at[at]))

    with quiet():
        for_each(look, len(looked_at), 2**16)  # as in _sorted_by_header
    return bool(2 * several.sum() > len(looked_at))


def unlike(path: str, kind: Kind, common: Kind, label: str) -> SourceError:
    """Return the refusal of a file that is not like the others."""
    return SourceError(
        f"{path} is {format_kind(kind)}, unlike most images of {label} ({format_kind(common)}); convert it to that, or "
        "leave it out."
    )


def _commonest(sorts: Sequence[KindCount]) -> Kind:
    """Return the commonest kind of the commonest dtype; of `sorts`, the commonest come first."""
    dtypes: Counter[np.dtype[Any]] = Counter()
    for kind, files, _ in sorts:
        dtypes[kind[1]] += files
    dtype = dtypes.most_common(1)[0][0]
    return next(sort.kind for sort in sorts if sort.kind[1] == dtype)


def _spread(n: int) -> Sequence[int]:
    return sorted({at * (n - 1) // _LOOKED_AT for at in range(_LOOKED_AT + 1)})


def _sorted_by_header(files: Listing, looked_at: Sequence[int]) -> list[KindCount]:
    kinds: dict[int, Kind] = {}

    def read(at: int) -> None:
        try:
            kinds[looked_at[at]] = read_kind(files.path(looked_at[at]), files.reading)
        except SourceError as error:
            raise with_remedy(error, files) from error

    with quiet():
        for_each(read, len(looked_at), 2**16)  # headers wait for the disk rather than for the interpreter's lock
    counted = Counter(kinds[at] for at in looked_at)
    first = {kinds[at]: at for at in reversed(looked_at)}
    return [KindCount(kind, number, first[kind]) for kind, number in counted.most_common()]


@dataclass
class Census:
    """Result of decoding every file.

    Attributes
    ----------
    kinds : list of Kind
        All there are.
    numbers : ndarray of int32, shape (n,)
        Each file's kind, by its place in `kinds`; -1 where it cannot be decoded.
    reasons : dict of int to str
        What is wrong with those, in one line.
    fresh : bool
        Whether any file was decoded for it, rather than all taken over from a table.
    """

    kinds: list[Kind]
    numbers: Array
    reasons: dict[int, str] = field(default_factory=dict)
    fresh: bool = True

    def arrays(self, kept: Array) -> dict[str, Array]:
        """Return the census, and which files were kept, for a table."""
        kinds = [[list(map(int, shape)), dtype.str] for shape, dtype in self.kinds]
        text = json.dumps([kinds, list(self.reasons.items())]).encode()
        return {"kinds": self.numbers, "kept": kept, "said": np.frombuffer(text, np.uint8)}

    @classmethod
    def of(cls, table: Mapping[str, Array]) -> Census | None:
        """Inverse of `arrays`; None where a table holds no census, or one that makes no sense."""
        if not {"kinds", "kept", "said"} <= table.keys():
            return None
        numbers = table["kinds"]
        try:
            kinds, reasons = json.loads(table["said"].tobytes())
            census = cls([(tuple(shape), np.dtype(dtype)) for shape, dtype in kinds], numbers, dict(reasons))
        except (ValueError, TypeError):
            return None
        told = np.array_equal(sorted(census.reasons), np.flatnonzero(numbers == _BAD))
        return census if told and ((numbers >= _BAD) & (numbers < len(kinds))).all() else None


def take_census(files: Listing, table: Mapping[str, Array] | None, listener: Listener) -> Census:
    """Decode every file once, some at a time; what a table says of files that have not changed since is taken over.

    An image of more than twice the bytes of the largest whose header is looked at first is not decoded, and counts as
    bad: several are in memory at a time.
    """
    census = Census([], np.full(len(files), _UNSEEN, np.int32))
    if table is not None:
        _take_over(census, files, table)
    left = np.flatnonzero(census.numbers == _UNSEEN)
    if not len(left):
        census.fresh = False
        return census
    listener(PassStarted("checking files", 1, 1, len(left), _size(files, left)))
    began = time.perf_counter()
    check = _Check(files, census)
    with quiet():
        for start in range(0, len(left), _AT_A_TIME):
            some = left[start : start + _AT_A_TIME]
            for_each(partial(check, some), len(some), check.usual)
            listener(BlockDone(len(some), _size(files, some)))
    listener(PassFinished(time.perf_counter() - began))
    return census


def usable_files(census: Census, files: Listing, label: str) -> tuple[Array, tuple[Skipped, ...]]:
    """Choose which files to keep: those that can be decoded, of the commonest dtype.

    Which shapes fit is for the preparation to say, see `MixedImages.fitting`.

    Returns
    -------
    ndarray of bool, shape (n,)
        Files that are kept.
    tuple of Skipped
        The others, in order; each is logged.
    """
    good = census.numbers >= 0
    sorts = kinds_of(census, good)
    if not sorts:
        raise SourceError(
            f"none of the {len(files)} files of {label} can be used; {files.path(0)} {census.reasons[0]}."
        )
    common = _commonest(sorts)
    wanted = [kind[1] == common[1] for kind in census.kinds]
    kept = np.array([*wanted, False])[census.numbers]  # the last is for those that are bad, -1
    skipped = tuple(_skipped(census, files, at, common, label) for at in np.flatnonzero(~kept).tolist())
    log_skipped(skipped, len(files), label)
    return kept, skipped


def log_skipped(skipped: Sequence[Skipped], count: int, label: str) -> None:
    """Say in the log that files were left out: a line for all at level warning, one for each at level info."""
    if skipped:
        shown = without_secrets(label)
        _log.warning("left out %d of the %d files of %s, %s first.", len(skipped), count, shown, skipped[0].path)
    for path, reason in skipped:
        _log.info("left out %s: %s", path, reason)


def kinds_of(census: Census, kept: Array) -> list[KindCount]:
    """Sort the files that are kept, by bools or places, into their kinds, the commonest first; places count those."""
    found, first, counts = np.unique(census.numbers[kept], return_index=True, return_counts=True)
    sorts = [
        KindCount(census.kinds[number], count, at)
        for number, count, at in zip(found.tolist(), counts.tolist(), first.tolist(), strict=True)
    ]
    return sorted(sorts, key=lambda sort: (-sort.files, sort.first))


def _skipped(census: Census, files: Listing, at: int, common: Kind, label: str) -> Skipped:
    path = without_secrets(files.path(at))
    if at in census.reasons:
        return Skipped(path, census.reasons[at])
    reason = first_line(unlike(path, census.kinds[census.numbers[at]], common, label))
    return Skipped(path, reason.removeprefix(f"{path} "))


def _size(files: Listing, which: Array) -> int:
    return int(np.maximum(files.states[0, which], 0).sum())


class _Check:
    """Decodes files and enters them in a census."""

    def __init__(self, files: Listing, census: Census) -> None:
        self._files, self._census, self._lock = files, census, threading.Lock()
        self._places = {kind: at for at, kind in enumerate(census.kinds)}
        self.usual = max((_header_bytes(files.path(at)) for at in _spread(len(files))), default=0)
        self._most = 2 * self.usual or _LARGE

    def __call__(self, some: Array, turn: int) -> None:
        """Decode one of some files."""
        at = int(some[turn])
        path = self._files.path(at)
        found: list[Kind] = []
        try:
            read_picture(path, lambda kind: found.append(self._checked(kind, path)), self._files.reading)
        except SourceError as error:
            self._census.numbers[at] = _BAD
            self._census.reasons[at] = first_line(error).removeprefix(f"{without_secrets(path)} ")
        else:
            self._census.numbers[at] = self._place(found[0])

    def _checked(self, kind: Kind, path: str) -> Kind:
        if kind_bytes(kind) > self._most:
            raise SourceError(
                f"{path} is {format_kind(kind)} ({format_bytes(kind_bytes(kind))}), more than twice the largest image "
                f"looked at first ({format_bytes(self._most // 2)})."
            )
        return kind

    def _place(self, kind: Kind) -> int:
        with self._lock:
            if kind not in self._places:
                self._places[kind] = len(self._census.kinds)
                self._census.kinds.append(kind)
            return self._places[kind]


def _header_bytes(path: str) -> int:
    try:
        return kind_bytes(read_kind(path))
    except SourceError:
        return 0


def _take_over(census: Census, files: Listing, table: Mapping[str, Array]) -> None:
    """Enter what a table says of files whose size and time are what they were."""
    earlier = Census.of(table)
    # Kinds are of images as they are read: turned, or not.
    alike = tuple(table.get("reading", BEFORE)) == files.reading
    if earlier is None or not alike or str(table["root"]) != os.path.realpath(files.root):
        return
    places = _places(FileNames.of(table["text"], table["ends"]), files.names)
    same = (places >= 0) & (table["states"][:, places] == files.states).all(axis=0) & (files.states[0] >= 0)
    census.kinds = earlier.kinds
    census.numbers[same] = earlier.numbers[places[same]]
    if earlier.reasons:
        bad = np.flatnonzero(census.numbers == _BAD).tolist()
        census.reasons.update((at, earlier.reasons[int(places[at])]) for at in bad)


def _places(old: FileNames, new: FileNames) -> Array:
    """Place in `old` of every name of `new`, -1 where it is not there, without a dictionary of them all."""
    if old == new:
        return np.arange(len(new))
    known = np.fromiter(map(hash, old), np.int64, len(old))
    order = np.argsort(known, kind="stable")
    asked = np.fromiter(map(hash, new), np.int64, len(new))
    places: Array = order[np.searchsorted(known[order], asked).clip(max=len(old) - 1)]
    places[known[places] != asked] = -1
    for at in np.flatnonzero(places >= 0).tolist():
        if old[int(places[at])] != new[at]:  # two names of one hash
            places[at] = -1
    return places
