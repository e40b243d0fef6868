"""Image files of several sizes as a collection: each image in its own shape, no rows without a common one."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from ... import machine
from ...errors import RequestError, SourceError, first_line, without_secrets
from ...units import MIB, format_shape
from ..collection import Array, Collection, Skipped, State, check_dtype, digest, with_ends
from ..quiet import quiet
from ..stored.layout import SampleAxes, layout_of
from ..threads import for_each
from ..views.compose import choose
from .census import Census, KindCount, kind_bytes, kinds_of, log_skipped, unlike, with_remedy
from .decode import Kind, format_kind, read_picture
from .listing import Listing


@dataclass(frozen=True)
class CheckedFiles:
    """The files of a collection that were all decoded once, and may be left out.

    Attributes
    ----------
    census : Census
        Of all files there were.
    places : ndarray of int, shape (n,)
        Where among those each file of the collection is.
    skipped : tuple of int
        Where those left out are.
    alike : callable
        ``alike(files, label, kind) -> Collection`` of files of one kind.
    """

    census: Census
    places: Array
    skipped: tuple[int, ...]
    alike: Callable[[Listing, str, Kind], Collection]


class MixedImages(Collection):
    """Image files of several sizes or numbers of channels, and one dtype."""

    mixed = True
    _told = 0  # files whose leaving out was logged last: a collection is made to fit again whenever it is prepared

    def __init__(
        self,
        files: Listing,
        label: str,
        sorts: Sequence[KindCount],
        *,
        complete: bool,
        checked_files: CheckedFiles | None = None,
        **axes: Unpack[SampleAxes],
    ) -> None:
        largest = max((sort.kind for sort in sorts), key=lambda kind: (kind[0][0] * kind[0][1], kind_bytes(kind)))
        channels = max((sort.kind[0][2:] for sort in sorts), default=())
        self.source, self.files = label, files
        self.dtype = check_dtype(largest[1], label)
        self._examples = tuple((files.path(sort.first), sort.kind[0]) for sort in sorts[:2])
        self._offers = checked_files is None and sorts[0].files * 2 > sum(sort.files for sort in sorts)
        self._checked_files = checked_files
        self.one_size = len({sort.kind[0][:2] for sort in sorts}) == 1
        self._complete = complete
        self._most = max(kind_bytes(sort.kind) for sort in sorts) * (1 if complete else 2)
        self._rows = self._selected((len(files), *largest[0][:2], *channels), axes)
        self.shape = (self._rows.stop - self._rows.start, *largest[0][:2], *channels)
        self.axes = ("y", "x", "channel")[: len(self.shape) - 1]

    def _selected(self, shape: tuple[int, ...], axes: SampleAxes) -> slice:
        dims = ("sample", "y", "x", "channel")[: len(shape)]
        layout = layout_of(shape, source=self.source, dims=dims, sample_axes=None, select=axes.get("select"))
        rows, *others = layout.index
        if (
            axes.get("sample_axes") is not None
            or not isinstance(rows, slice)
            or others != [slice(0, size) for size in shape[1:]]
        ):
            raise RequestError(
                f"{self.source} holds images of several sizes, of which sample_axes and select can take no axis but "
                "the samples; leave them out, and crop after resizing."
            )
        return rows

    @property
    def row_bytes(self) -> int:
        """Bytes of the largest image there may be, decoded."""
        return self._most

    @property
    def decode_bytes(self) -> int:
        """Bytes `each` holds: an image a thread, as Pillow has it and as values, and its file's buffers."""
        return machine.cores() * (3 * self._most + MIB)

    @property
    def encoded(self) -> bool:
        """Image files are compressed."""
        return True

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Refuse: images of several sizes make no rows; see `each`."""
        (one, shape), (other, others) = self._examples
        colours = len(shape) != len(others) or shape[2:] != others[2:]
        typed, written = (" --grey", ", grey=True") if colours else ("", "")
        leave = "leave out the others (--on-bad-file skip)" if self._offers else "leave out the others"
        raise SourceError(
            f"{self.source} holds images of several sizes, e.g. {one} ({format_shape(shape)}) and {other} "
            f"({format_shape(others)}); give --resize 64x64{typed} (Preparation(resize=(64, 64){written})), or {leave}."
        )

    def each(self, rows: slice, function: Callable[[int, Array], None]) -> None:
        """Decode files, some at a time; see `Collection.each`."""

        def work(at: int) -> None:
            function(at, self._picture(self._rows.start + rows.start + at))

        with quiet():
            for_each(work, rows.stop - rows.start, self.row_bytes)

    def _picture(self, index: int) -> Array:
        path = self.files.path(index)

        def check(kind: Kind) -> None:
            if kind[1] != self.dtype:
                raise SourceError(
                    f"{path} is {format_kind(kind)}, and the other images of {self.source} are {self.dtype}; convert "
                    "it, or leave it out."
                )
            if math.prod(kind[0]) * self.dtype.itemsize > self._most:
                known = "the largest" if self._complete else "twice the largest"
                raise SourceError(
                    f"{path} is {format_kind(kind)}, more than {known} image looked at on opening "
                    f"({format_shape(self.sample_shape)}); leave it out, or open the collection again."
                )

        try:
            return read_picture(path, check, self.files.reading)
        except SourceError as error:
            raise with_remedy(error, self.files) from error

    def taken(self, kept: Array) -> Collection:
        """Only the files of which `kept`, n bools, is True."""
        every = np.zeros(len(self.files), np.bool_)
        every[self._rows] = kept
        files = self.files.taken(every)
        if self._checked_files is not None and kept.any():
            checked_files = replace(self._checked_files, places=self._checked_files.places[every])
            sorts = kinds_of(checked_files.census, checked_files.places)
            other: Collection
            if len(sorts) == 1:
                other = checked_files.alike(files, self.source, sorts[0].kind)
            else:
                other = MixedImages(files, self.source, sorts, complete=True, checked_files=checked_files)
            other.skipped = self.skipped
            return other
        mixed = copy.copy(self)
        mixed.files, mixed._rows = files, slice(0, int(np.count_nonzero(kept)))
        mixed.shape = (mixed._rows.stop, *self.sample_shape)
        return mixed

    def fitting(self, shape_of: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Collection:
        """Leave out the files whose images a preparation cannot make like most of the others; see `Collection`.

        Images of no shape that most of those have which can be prepared are all kept: they are for the preparation to
        refuse by name.
        """
        if self._checked_files is None:
            return self
        kinds = self._checked_files.census.kinds
        numbers = self._checked_files.census.numbers[self._checked_files.places[self._rows]]
        counts: Counter[tuple[int, ...]] = Counter()
        shapes: dict[int, tuple[int, ...]] = {}
        reasons: dict[int, str] = {}
        for number, count in zip(*map(np.ndarray.tolist, np.unique(numbers, return_counts=True)), strict=True):
            try:
                shapes[number] = shape_of(kinds[number][0])
                counts[shapes[number]] += count
            except RequestError as error:
                reasons[number] = first_line(error)
        common, count = counts.most_common(1)[0] if counts else ((), 0)
        kept = np.isin(numbers, [number for number, shape in shapes.items() if shape == common])
        if 2 * count <= counts.total() or kept.all():
            return self
        typical = Counter(numbers[kept].tolist()).most_common(1)[0][0]
        left = dict(zip(self._checked_files.skipped, self.skipped, strict=True))
        places = np.arange(len(self.files))[self._rows][~kept]
        for at, number in zip(places.tolist(), numbers[~kept].tolist(), strict=True):
            path = self.files.path(at)
            reason = reasons.get(number) or first_line(unlike(path, kinds[number], kinds[typical], self.source))
            shown = without_secrets(path)
            left[int(self._checked_files.places[at])] = Skipped(shown, reason.removeprefix(f"{shown} "))
        found = choose(self, np.flatnonzero(kept))
        found.skipped = tuple(left[at] for at in sorted(left))
        if isinstance(found, MixedImages) and found._checked_files is not None:
            found._checked_files = replace(found._checked_files, skipped=tuple(sorted(left)))
        if self._told != len(places):
            self._told = len(places)
            log_skipped(
                [left[int(self._checked_files.places[at])] for at in places.tolist()], len(self.files), self.source
            )
        return found

    def paths(self) -> list[str]:
        """The files of a list; else the folder or glob."""
        return [*super().paths(), *self.files.unnamed(self.source)]

    def where(self, index: int) -> str:
        """Path of the file, from where the source was named."""
        return self.files.path(self._rows.start + index)

    def sample_names(self) -> Sequence[str]:
        """Paths of the files below their common folder."""
        return self.files.names.part(self._rows)

    def states(self, *, now: bool = False) -> list[State]:
        """Return states of runs of files."""
        rows = self._rows
        return [
            State(max(0, first - rows.start), what, digest(state, rows.start))
            for (first, what, state), end in with_ends(self.files.groups(now=now), len(self.files))
            if end > rows.start and (first < rows.stop or rows.stop == len(self.files))
        ]
