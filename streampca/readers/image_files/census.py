"""Kinds of images in a collection's files, by some headers, or by a census that decodes every file once."""

from __future__ import annotations

import json
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...arrays import Array
from ...errors import RequestError, SourceError, first_line, without_secrets
from ...events import BlockDone, Listener, PassStarted, reported
from ...signals import safe_point
from ...storage.georeference import Georeference
from ...units import MIB, format_bytes
from ..collection import Skipped
from ..common_dtype import common_dtype, dtype_remedy, number_kind
from ..silence_decoders import quiet
from ..tags import TagRules
from ..threads import map_decoding
from ..tiff_axes import check_place
from .decode import Kind, format_kind, holds_several, read_header, read_picture
from .listing import Listing
from .names import FileNames

# Headers read on opening, spread over the files; the others are checked when they are decoded.
_LOOKED_AT = 64

# Most files of which every header is read (2 s) if images differ in size, so that the largest is known.
_ALL_HEADERS = 20_000

# Files between two events of a census.
_AT_A_TIME = 1024

# Most bytes of an image in a census if none of the first headers could be read.
_LARGE = 64 * MIB

# Decoded bytes that a header counts as: reading one waits for the disk rather than for the interpreter's lock.
_HEADER = 2**16

# Numbers in a census for a file that cannot be decoded, and for one that has not been read yet.
_BAD, _UNSEEN = -1, -2

OFFER = 'To leave out such files, give --on-bad-file skip (on_bad_file="skip").'

T = TypeVar("T")

_log = logging.getLogger("streampca")


class KindCount(NamedTuple):
    """A kind of image, the number of `files` of that kind among those read, and the index of the `first`."""

    kind: Kind
    files: int
    first: int


@dataclass
class Census:
    """Table of files: the kind of each, where known, and the reasons why some are left out.

    Attributes
    ----------
    files : Listing
        All files.
    kinds : dict of Kind to int
        Their kinds, numbered.
    numbers : ndarray of int32, shape (n,)
        Each file's kind; -1 if it cannot be decoded, -2 if it was not read.
    reasons : dict of int to str
        Reason, in one line, for each file that cannot be decoded or is left out.
    fresh : bool
        Whether any file was decoded, rather than all entries copied from a stored table.
    located : dict of int to Georeference
        Georeferences from the headers that were read and have one.
    """

    files: Listing
    kinds: dict[Kind, int]
    numbers: Array
    reasons: dict[int, str] = field(default_factory=dict)
    fresh: bool = True
    located: dict[int, Georeference] = field(default_factory=dict)

    @classmethod
    def unseen(cls, files: Listing) -> Census:
        """Return a table in which no file has been read."""
        return cls(files, {}, np.full(len(files), _UNSEEN, np.int32))

    @property
    def complete(self) -> bool:
        """True if every file was read."""
        return not (self.numbers == _UNSEEN).any()

    @property
    def places(self) -> Array:
        """Indices of the files that are not left out, ascending."""
        mask = np.ones(len(self.files), np.bool_)
        mask[list(self.reasons)] = False
        return np.flatnonzero(mask)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Files that are left out, in order."""
        return self.skipped_since(None)

    def skipped_since(self, before: Census | None) -> tuple[Skipped, ...]:
        """Return the files that are left out here but not in an earlier table."""
        new = self.reasons.keys() - (before.reasons if before else {})
        return tuple(Skipped(without_secrets(self.files.path(at)), self.reasons[at]) for at in sorted(new))

    def enter(self, places: Iterable[int], kinds: Iterable[Kind | str]) -> None:
        """Enter the kind of each file, or the reason why it is bad."""
        for at, kind in zip(places, kinds, strict=True):
            if isinstance(kind, str):
                self.numbers[at], self.reasons[at] = _BAD, kind
            else:
                self.numbers[at] = self.kinds.setdefault(kind, len(self.kinds))

    def counts(self, places: Array) -> list[KindCount]:
        """Count the files of each kind, where known, the most common kind first."""
        known_places, kinds = places[self.numbers[places] >= 0], list(self.kinds)
        numbers, first, counts = np.unique(self.numbers[known_places], return_index=True, return_counts=True)
        rows = zip(numbers.tolist(), counts.tolist(), known_places[first].tolist(), strict=True)
        return sorted(
            (KindCount(kinds[number], *rest) for number, *rest in rows), key=lambda count: (-count.files, count.first)
        )

    def without(self, places: Array, common: Kind, label: str, reasons: Mapping[int, str] | None = None) -> Census:
        """Leave out some files, for the reason given for their kind, else because they differ from the common kind."""
        kinds, left_out = list(self.kinds), {}
        for at in places.tolist():
            number, path = int(self.numbers[at]), self.files.path(at)
            reason = (reasons or {}).get(number) or first_line(unlike(path, kinds[number], common, label))
            left_out[at] = reason.removeprefix(f"{without_secrets(path)} ")
        return replace(self, reasons=self.reasons | left_out)

    def usable(self, label: str, asked: str | None = None) -> Census:
        """Leave out the files that are not joined with those of the most common dtype, unless a dtype is asked for.

        Shapes are left to the preparation, see `fitting`.
        """
        places = self.places
        if not len(places):
            raise SourceError(
                f"none of the {len(self.files)} files of {label} can be used; {self.files.path(0)} {self.reasons[0]}."
            )
        if asked is not None:
            return self
        common = _commonest(self.counts(places))
        wrong = [number for kind, number in self.kinds.items() if common_dtype(kind[1], common[1]) is None]
        return self.without(places[np.isin(self.numbers[places], wrong)], common, label)

    def read_as(self, dtype: np.dtype[Any]) -> Census:
        """Return the table with the dtype in which all images are read; kinds of one shape become one."""
        kinds: dict[Kind, int] = {}
        merged = np.array([kinds.setdefault((shape, dtype), len(kinds)) for shape, _ in self.kinds], np.int32)
        numbers = np.where(self.numbers >= 0, merged[np.maximum(self.numbers, 0)], self.numbers)
        return replace(self, kinds=kinds, numbers=numbers)

    def fitting(self, places: Array, shape_of: Callable[[tuple[int, ...]], tuple[int, ...]], label: str) -> Census:
        """Leave out the files whose images a preparation does not bring to the most common shape.

        If no shape has a majority among the prepared images, all files are kept, for the preparation to refuse by name.
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
        """Copy the entries of a stored table for files with unchanged name, size and time."""
        # Kinds depend on the rules for tags: images are turned, or not.
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
    """Return a hash of each file's name, size and time: two of a million agree by chance once in 10^7 tables."""
    return np.fromiter(map(hash, zip(names, *states.tolist(), strict=True)), np.int64, len(names))


def kind_bytes(kind: Kind) -> int:
    """Return the bytes of a decoded image."""
    return math.prod(kind[0]) * kind[1].itemsize


def with_remedy(error: SourceError, files: Listing) -> SourceError:
    """Return the error with the offer to leave out bad files, if there are several files."""
    return SourceError(f"{error} {OFFER}") if len(files) > 1 else error


def look_at(files: Listing, label: str, asked: str | None = None) -> Census:
    """Sort files into kinds by some headers, or by all headers if kinds differ and files are few enough.

    Dtypes that are not joined are refused, unless a dtype is asked for.
    """
    census = Census.unseen(files)
    _look(census, _spread(len(files)))
    if len(census.kinds) > 1 and len(files) <= _ALL_HEADERS:
        _look(census, np.flatnonzero(census.numbers == _UNSEEN).tolist())
    sorts = census.counts(np.arange(len(files)))
    common = _commonest(sorts)
    for sort in sorts if asked is None else ():
        if common_dtype(sort.kind[1], common[1]) is None:
            raise with_remedy(unlike(files.path(sort.first), sort.kind, common, label), files)
    return census


def _look(census: Census, places: Sequence[int]) -> None:
    """Read headers."""

    def header_of(path: str) -> tuple[Kind, Georeference | None]:
        try:
            return read_header(path, census.files.reading)
        except SourceError as error:
            raise with_remedy(error, census.files) from error

    headers = _each(census.files, places, header_of, _HEADER)
    census.enter(places, (kind for kind, _ in headers))
    census.located.update({at: place for at, (_, place) in zip(places, headers, strict=True) if place is not None})


def common_place(census: Census, label: str, *, skip: bool, checked: bool) -> tuple[Census, Georeference | None]:
    """Return the common georeference of the images, and refuse or leave out files with another one.

    Without `skip` it is the first file's, and others are refused here where their headers are known; with `skip` it is
    the most common one. If places are not `checked`, there is a common one only if all files are known to have it.
    Images of several kinds have none; with `skip`, those of the most common kind can.

    Raises
    ------
    SourceError
        If an image has another georeference, and `skip` is False.
    """
    # Decoding, or a stored table, leaves no georeferences: the first header shows whether there are any.
    if skip and not census.located:
        _locate(census, census.places[:1].tolist())
        _locate(census, census.places[1:].tolist() if census.located else ())
    sorts = census.counts(census.places)
    common_kind = census.kinds[sorts[0].kind]
    located = {at: place for at, place in census.located.items() if census.numbers[at] == common_kind}
    located = {at: place for at, place in located.items() if at not in census.reasons}
    if not located or (len(sorts) > 1 and not skip):
        return census, None
    counts = Counter(located.values())
    if not checked and not census.complete:
        return census, None
    common = counts.most_common(1)[0][0] if skip else located[min(located)]
    example = next(at for at in sorted(located) if located[at] == common)
    left_out: dict[int, str] = {}
    for place in counts:
        at = next(at for at, other in located.items() if other == place)
        try:
            check_place(place, census.files.path(at), common, census.files.path(example), sorts[0].kind[0])
        except SourceError as error:
            if not checked:
                return census, None
            if not skip:
                raise with_remedy(error, census.files) from error
            reason = f"lies elsewhere: {first_line(error)}"
            left_out |= {number: reason for number, other in located.items() if other == place}
    return replace(census, reasons=census.reasons | left_out), common


def _locate(census: Census, places: Sequence[int]) -> None:
    """Read the georeferences of some files."""
    located = _each(census.files, places, lambda path: read_header(path, census.files.reading)[1], _HEADER)
    census.located.update({at: place for at, place in zip(places, located, strict=True) if place is not None})


def mostly_stacks(files: Listing) -> bool:
    """Return whether most files, by a sample of headers, are TIFF or FITS files with several images."""
    several = _each(files, _spread(len(files)), holds_several, _HEADER)
    return 2 * sum(several) > len(several)


def _each(files: Listing, places: Sequence[int], function: Callable[[str], T], each_bytes: int) -> list[T]:
    """Call ``function(path)`` for some files, several at a time."""
    with quiet():
        return list(map_decoding(lambda at: function(files.path(at)), places, each_bytes))


def unlike(path: str, kind: Kind, common: Kind, label: str) -> SourceError:
    """Return the error for a file of another kind than the others."""
    is_joined = common_dtype(kind[1], common[1]) == common[1]
    remedy = "convert it to that" if is_joined else dtype_remedy(kind[1], common[1])
    return SourceError(
        f"{path} is {format_kind(kind)}, unlike most images of {label} ({format_kind(common)}); {remedy}, or leave it "
        "out."
    )


def _commonest(sorts: Sequence[KindCount]) -> Kind:
    """Return the most common kind of those that are joined of most files; `sorts` begin with the most common kinds."""
    joined: Counter[str] = Counter()
    for kind, files, _ in sorts:
        joined[number_kind(kind[1])] += files
    most = joined.most_common(1)[0][0]
    return next(sort.kind for sort in sorts if number_kind(sort.kind[1]) == most)


def _spread(n: int) -> Sequence[int]:
    return sorted({at * (n - 1) // _LOOKED_AT for at in range(_LOOKED_AT + 1)})


def take_census(files: Listing, table: Mapping[str, Array] | None, listener: Listener) -> Census:
    """Decode every file once, several at a time; entries of a stored table are copied for unchanged files.

    An image of more than twice the bytes of the largest in the first headers is not decoded, and counts as bad: several
    are in memory at a time.
    """
    census = Census.unseen(files)
    if table is not None:
        census.take_over(table)
    unseen = np.flatnonzero(census.numbers == _UNSEEN)
    census.fresh = bool(len(unseen))
    if not census.fresh:
        return census
    usual = max(_header_bytes(files.path(at)) for at in _spread(len(files)))
    decode = partial(_decoded, reading=files.reading, most=2 * usual or _LARGE)
    with reported(listener, PassStarted("checking files", 1, 1, len(unseen), _size(files, unseen))):
        for start in range(0, len(unseen), _AT_A_TIME):
            safe_point()
            batch = unseen[start : start + _AT_A_TIME]
            census.enter(batch.tolist(), _each(files, batch.tolist(), decode, usual))
            listener(BlockDone(len(batch), _size(files, batch)))
    return census


def _decoded(path: str, reading: TagRules, most: int) -> Kind | str:
    """Decode a file; return its kind, or the reason why it is bad."""

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
    """Return the bytes of an image by its header; 0 if that cannot be read."""
    try:
        return kind_bytes(read_header(path)[0])
    except SourceError:
        return 0


def _size(files: Listing, which: Array) -> int:
    return int(np.maximum(files.states[0, which], 0).sum())


def log_skipped(skipped: Sequence[Skipped], count: int, label: str) -> None:
    """Log the files that were left out: one line for all at level warning, one for each at level info."""
    if skipped:
        shown = without_secrets(label)
        _log.warning("left out %d of the %d files of %s, %s first.", len(skipped), count, shown, skipped[0].path)
    for path, reason in skipped:
        _log.info("left out %s: %s", path, reason)
