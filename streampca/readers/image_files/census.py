"""Kinds of image in a collection's files, by some headers, or by a census that decodes every file once."""

from __future__ import annotations

import json
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from ...errors import RequestError, SourceError, first_line, without_secrets
from ...events import BlockDone, Listener, PassStarted, reported
from ...signals import safe_point
from ...storage.georeference import Georeference
from ...units import MIB, format_bytes
from ..collection import Array, Skipped
from ..silence_decoders import quiet
from ..tags import TagRules
from ..threads import map_decoding
from ..tiff_axes import check_place
from .decode import Kind, format_kind, holds_several, read_header, read_picture
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

# Decoded bytes a header counts as: it waits for the disk rather than for the interpreter's lock.
_HEADER = 2**16

# What stands in a census for a file that cannot be decoded, and for one not looked at yet.
_BAD, _UNSEEN = -1, -2

OFFER = 'To leave out such files, give --on-bad-file skip (on_bad_file="skip").'

T = TypeVar("T")

_log = logging.getLogger("streampca")


class KindCount(NamedTuple):
    """A kind of image: how many `files` of those looked at are of it, and which is the `first`."""

    kind: Kind
    files: int
    first: int


@dataclass
class Census:
    """Table of files: of which kind each is, as far as it is known, and why some are left out.

    Attributes
    ----------
    files : Listing
        All files.
    kinds : dict of Kind to int
        Their kinds, numbered.
    numbers : ndarray of int32, shape (n,)
        Each file's kind; -1 where it cannot be decoded, -2 where it was not looked at.
    reasons : dict of int to str
        What is wrong with those that cannot be decoded or are left out, in one line.
    fresh : bool
        Whether any file was decoded for it, rather than all taken over from a table.
    located : dict of int to Georeference
        Where images of files lie, of those whose header was read and says so.
    """

    files: Listing
    kinds: dict[Kind, int]
    numbers: Array
    reasons: dict[int, str] = field(default_factory=dict)
    fresh: bool = True
    located: dict[int, Georeference] = field(default_factory=dict)

    @classmethod
    def unseen(cls, files: Listing) -> Census:
        """Return a table in which no file has been looked at."""
        return cls(files, {}, np.full(len(files), _UNSEEN, np.int32))

    @property
    def complete(self) -> bool:
        """True where every file was looked at."""
        return not (self.numbers == _UNSEEN).any()

    @property
    def places(self) -> Array:
        """Files that are not left out, ascending."""
        kept = np.ones(len(self.files), np.bool_)
        kept[list(self.reasons)] = False
        return np.flatnonzero(kept)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Files that are left out, in order."""
        return self.skipped_since(None)

    def skipped_since(self, before: Census | None) -> tuple[Skipped, ...]:
        """Files that are left out here and were not in an earlier table."""
        new = self.reasons.keys() - (before.reasons if before else {})
        return tuple(Skipped(without_secrets(self.files.path(at)), self.reasons[at]) for at in sorted(new))

    def enter(self, places: Iterable[int], found: Iterable[Kind | str]) -> None:
        """Enter the kinds of some files, or what is wrong with them."""
        for at, kind in zip(places, found, strict=True):
            if isinstance(kind, str):
                self.numbers[at], self.reasons[at] = _BAD, kind
            else:
                self.numbers[at] = self.kinds.setdefault(kind, len(self.kinds))

    def counts(self, places: Array) -> list[KindCount]:
        """Sort files whose kind is known into their kinds, the commonest first."""
        known, kinds = places[self.numbers[places] >= 0], list(self.kinds)
        found, first, counts = np.unique(self.numbers[known], return_index=True, return_counts=True)
        each = zip(found.tolist(), counts.tolist(), known[first].tolist(), strict=True)
        return sorted(
            (KindCount(kinds[number], *rest) for number, *rest in each), key=lambda one: (-one.files, one.first)
        )

    def without(self, places: Array, common: Kind, label: str, reasons: Mapping[int, str] | None = None) -> Census:
        """Leave out some files, for the reason given for their kind, else because they are unlike the common one."""
        kinds, left = list(self.kinds), {}
        for at in places.tolist():
            number, path = int(self.numbers[at]), self.files.path(at)
            reason = (reasons or {}).get(number) or first_line(unlike(path, kinds[number], common, label))
            left[at] = reason.removeprefix(f"{without_secrets(path)} ")
        return replace(self, reasons=self.reasons | left)

    def usable(self, label: str) -> Census:
        """Leave out the files that are not of the commonest dtype.

        Which shapes fit is for the preparation to say, see `fitting`.
        """
        places = self.places
        if not len(places):
            raise SourceError(
                f"none of the {len(self.files)} files of {label} can be used; {self.files.path(0)} {self.reasons[0]}."
            )
        common = _commonest(self.counts(places))
        wrong = [number for kind, number in self.kinds.items() if kind[1] != common[1]]
        return self.without(places[np.isin(self.numbers[places], wrong)], common, label)

    def fitting(self, places: Array, shape_of: Callable[[tuple[int, ...]], tuple[int, ...]], label: str) -> Census:
        """Leave out the files whose images a preparation cannot make like most of the others.

        Images of no shape that most of those have which can be prepared are all kept: they are for the preparation to
        refuse by name.
        """
        shapes: dict[Kind, tuple[int, ...]] = {}
        reasons: dict[int, str] = {}
        sorts, total = self.counts(places), Counter[tuple[int, ...]]()
        for kind, files, _ in sorts:
            try:
                shapes[kind] = shape_of(kind[0])
                total[shapes[kind]] += files
            except RequestError as error:
                reasons[self.kinds[kind]] = first_line(error)
        shape, count = total.most_common(1)[0] if total else ((), 0)
        alike = [kind for kind in shapes if shapes[kind] == shape]
        if 2 * count <= total.total() or len(alike) == len(sorts):
            return self
        others = ~np.isin(self.numbers[places], [self.kinds[kind] for kind in alike])
        return self.without(places[others], alike[0], label, reasons)

    def arrays(self) -> dict[str, Array]:
        """Return the census for a table."""
        kinds = [[list(map(int, shape)), dtype.str] for shape, dtype in self.kinds]
        text = json.dumps([kinds, list(self.reasons.items())]).encode()
        return {"kinds": self.numbers, "said": np.frombuffer(text, np.uint8), "reading": np.array(self.files.reading)}

    def take_over(self, table: Mapping[str, Array]) -> None:
        """Enter what a table says of files whose name, size and time are as they were."""
        # Kinds are of images as they are read: turned, or not.
        alike = tuple(table.get("reading", ())) == self.files.reading
        if "said" not in table or not alike or str(table["root"]) != os.path.realpath(self.files.root):
            return
        kinds, reasons = json.loads(table["said"].tobytes())
        said = dict(reasons)
        was = _tokens(FileNames.of(table["text"], table["ends"]), table["states"])
        now = _tokens(self.files.names, self.files.states)
        order = np.argsort(was)
        places = order[np.searchsorted(was, now, sorter=order).clip(max=len(was) - 1)]
        same = (was[places] == now) & (self.files.states[0] >= 0)
        self.kinds = {(tuple(shape), np.dtype(dtype)): number for number, (shape, dtype) in enumerate(kinds)}
        self.numbers[same] = table["kinds"][places[same]]
        self.reasons.update((at, said[int(places[at])]) for at in np.flatnonzero(self.numbers == _BAD).tolist())


def _tokens(names: FileNames, states: Array) -> Array:
    """Return a number for each file's name, size and time: two of a million agree by chance once in 10^7 tables."""
    return np.fromiter(map(hash, zip(names, *states.tolist(), strict=True)), np.int64, len(names))


def kind_bytes(kind: Kind) -> int:
    """Bytes of an image, decoded."""
    return math.prod(kind[0]) * kind[1].itemsize


def with_remedy(error: SourceError, files: Listing) -> SourceError:
    """Return the error with the offer to leave out bad files, where there are others."""
    return SourceError(f"{error} {OFFER}") if len(files) > 1 else error


def look_at(files: Listing, label: str) -> Census:
    """Sort files into kinds by some headers, by all where those differ in shape and files are few enough."""
    census = Census.unseen(files)
    _look(census, _spread(len(files)))
    if len(census.kinds) > 1 and len(files) <= _ALL_HEADERS:
        _look(census, np.flatnonzero(census.numbers == _UNSEEN).tolist())
    sorts = census.counts(np.arange(len(files)))
    common = _commonest(sorts)
    for sort in sorts:
        if sort.kind[1] != common[1]:
            raise with_remedy(unlike(files.path(sort.first), sort.kind, common, label), files)
    return census


def _look(census: Census, places: Sequence[int]) -> None:
    """Read headers."""

    def header_of(path: str) -> tuple[Kind, Georeference | None]:
        try:
            return read_header(path, census.files.reading)
        except SourceError as error:
            raise with_remedy(error, census.files) from error

    found = _each(census.files, places, header_of, _HEADER)
    census.enter(places, (kind for kind, _ in found))
    census.located.update({at: place for at, (_, place) in zip(places, found, strict=True) if place is not None})


def common_place(census: Census, label: str, *, skip: bool, checked: bool) -> tuple[Census, Georeference | None]:
    """Return where the images of files lie, and refuse or leave out files elsewhere.

    Without `skip` it is where the first lies, and others are refused here as far as their headers are known; with it,
    where most lie. Where it is not `checked`, it is a place only if all files are known to be there. Images of several
    kinds have no place in common, but those of the commonest kind where others may be left out.

    Raises
    ------
    SourceError
        If an image lies elsewhere, and is not to be left out.
    """
    if skip and not census.located:  # those decoded or taken over from a table: the first tells if there is any
        _locate(census, census.places[:1].tolist())
        _locate(census, census.places[1:].tolist() if census.located else ())
    sorts = census.counts(census.places)
    common_kind = census.kinds[sorts[0].kind]
    known = {at: place for at, place in census.located.items() if census.numbers[at] == common_kind}
    known = {at: place for at, place in known.items() if at not in census.reasons}
    if not known or (len(sorts) > 1 and not skip):
        return census, None
    counts = Counter(known.values())
    if not checked and not census.complete:
        return census, None
    common = counts.most_common(1)[0][0] if skip else known[min(known)]
    example = next(at for at in sorted(known) if known[at] == common)
    left: dict[int, str] = {}
    for place in counts:
        at = next(at for at, each in known.items() if each == place)
        try:
            check_place(place, census.files.path(at), common, census.files.path(example), sorts[0].kind[0])
        except SourceError as error:
            if not checked:
                return census, None
            if not skip:
                raise with_remedy(error, census.files) from error
            left |= {each: f"lies elsewhere: {first_line(error)}" for each, where in known.items() if where == place}
    return replace(census, reasons=census.reasons | left), common


def _locate(census: Census, places: Sequence[int]) -> None:
    """Read where images of some files lie."""
    found = _each(census.files, places, lambda path: read_header(path, census.files.reading)[1], _HEADER)
    census.located.update({at: place for at, place in zip(places, found, strict=True) if place is not None})


def mostly_stacks(files: Listing) -> bool:
    """Return whether most files, by the headers of some, are TIFF or FITS files that hold several images."""
    several = _each(files, _spread(len(files)), holds_several, _HEADER)
    return 2 * sum(several) > len(several)


def _each(files: Listing, places: Sequence[int], function: Callable[[str], T], each_bytes: int) -> list[T]:
    """Call ``function(path)`` for some files, several at a time."""
    with quiet():
        return list(map_decoding(lambda at: function(files.path(at)), places, each_bytes))


def unlike(path: str, kind: Kind, common: Kind, label: str) -> SourceError:
    """Return the refusal of a file that is not like the others."""
    return SourceError(
        f"{path} is {format_kind(kind)}, unlike most images of {label} ({format_kind(common)}); convert it to that, or "
        "leave it out."
    )


def _commonest(sorts: Sequence[KindCount]) -> Kind:
    """Return the commonest kind of the commonest dtype; of `sorts`, the commonest come first."""
    dtypes: Counter[object] = Counter()
    for kind, files, _ in sorts:
        dtypes[kind[1]] += files
    dtype = dtypes.most_common(1)[0][0]
    return next(sort.kind for sort in sorts if sort.kind[1] == dtype)


def _spread(n: int) -> Sequence[int]:
    return sorted({at * (n - 1) // _LOOKED_AT for at in range(_LOOKED_AT + 1)})


def take_census(files: Listing, table: Mapping[str, Array] | None, listener: Listener) -> Census:
    """Decode every file once, some at a time; what a table says of files that have not changed since is taken over.

    An image of more than twice the bytes of the largest whose header is looked at first is not decoded, and counts as
    bad: several are in memory at a time.
    """
    census = Census.unseen(files)
    if table is not None:
        census.take_over(table)
    left = np.flatnonzero(census.numbers == _UNSEEN)
    census.fresh = bool(len(left))
    if not census.fresh:
        return census
    usual = max(_header_bytes(files.path(at)) for at in _spread(len(files)))
    decode = partial(_decoded, reading=files.reading, most=2 * usual or _LARGE)
    with reported(listener, PassStarted("checking files", 1, 1, len(left), _size(files, left))):
        for start in range(0, len(left), _AT_A_TIME):
            safe_point()
            some = left[start : start + _AT_A_TIME]
            census.enter(some.tolist(), _each(files, some.tolist(), decode, usual))
            listener(BlockDone(len(some), _size(files, some)))
    return census


def _decoded(path: str, reading: TagRules, most: int) -> Kind | str:
    """Decode a file; return its kind, or what is wrong with it."""

    def check(kind: Kind) -> None:
        if kind_bytes(kind) > most:
            raise SourceError(
                f"{path} is {format_kind(kind)} ({format_bytes(kind_bytes(kind))}), more than twice the largest image "
                f"looked at first ({format_bytes(most // 2)})."
            )

    try:
        pixels = read_picture(path, check, reading)
    except SourceError as error:
        return first_line(error).removeprefix(f"{without_secrets(path)} ")
    return pixels.shape, pixels.dtype


def _header_bytes(path: str) -> int:
    """Bytes of an image by its header; 0 where that cannot be read."""
    try:
        return kind_bytes(read_header(path)[0])
    except SourceError:
        return 0


def _size(files: Listing, which: Array) -> int:
    return int(np.maximum(files.states[0, which], 0).sum())


def log_skipped(skipped: Sequence[Skipped], count: int, label: str) -> None:
    """Say in the log that files were left out: a line for all at level warning, one for each at level info."""
    if skipped:
        shown = without_secrets(label)
        _log.warning("left out %d of the %d files of %s, %s first.", len(skipped), count, shown, skipped[0].path)
    for path, reason in skipped:
        _log.info("left out %s: %s", path, reason)
