"""Image files of several sizes as a collection: each image in its own shape, no rows without a common one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np

from ... import machine
from ...collection import Array, Collection, State, check_dtype, digest, with_ends
from ...errors import RequestError, SourceError
from ...units import MIB, format_shape
from ..quiet import quiet
from ..stored.axes import Axis, Selection, layout_of
from ..threads import for_each
from .census import Sort, kind_bytes, offering
from .imagefile import Kind, read_picture, say_kind
from .listing import Listing


class MixedImages(Collection):
    """Image files of several sizes or numbers of channels, and one dtype.

    Parameters
    ----------
    files : Listing
        They.
    label : str
        What messages call them all.
    sorts : list of Sort
        Shapes and dtype of those looked at, the commonest first.
    complete : bool
        Whether these are all. If not, a file may turn out to have up to twice the pixels of the largest.
    sample_axes, select : optional
        As for `open_collection`; here `select` narrows the samples only.
    """

    mixed = True

    def __init__(
        self,
        files: Listing,
        label: str,
        sorts: Sequence[Sort],
        *,
        complete: bool,
        sample_axes: Sequence[Axis] | None = None,
        select: Selection | None = None,
    ) -> None:
        largest = max((sort.kind for sort in sorts), key=lambda kind: (kind[0][0] * kind[0][1], kind_bytes(kind)))
        channels = max((sort.kind[0][2:] for sort in sorts), default=())
        self.source, self.files = label, files
        self.dtype = check_dtype(largest[1], label)
        self._examples = tuple((files.path(sort.first), sort.kind[0]) for sort in sorts[:2])
        self._offers = sorts[0].files * 2 > sum(sort.files for sort in sorts)
        self._complete = complete
        self._most = max(kind_bytes(sort.kind) for sort in sorts) * (1 if complete else 2)
        self._rows = self._selected((len(files), *largest[0][:2], *channels), sample_axes, select)
        self.shape = (self._rows.stop - self._rows.start, *largest[0][:2], *channels)
        self.axes = ("y", "x", "channel")[: len(self.shape) - 1]

    def _selected(self, shape: tuple[int, ...], sample_axes: Sequence[Axis] | None, select: Selection | None) -> slice:
        dims = ("sample", "y", "x", "channel")[: len(shape)]
        layout = layout_of(shape, source=self.source, dims=dims, sample_axes=None, select=select)
        rows, *others = layout.index
        if sample_axes is not None or not isinstance(rows, slice) or others != [slice(0, size) for size in shape[1:]]:
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
        """They are."""
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
                    f"{path} is {say_kind(kind)}, and the other images of {self.source} are {self.dtype}; convert it, "
                    "or leave it out."
                )
            if math.prod(kind[0]) * self.dtype.itemsize > self._most:
                known = "the largest" if self._complete else "twice the largest"
                raise SourceError(
                    f"{path} is {say_kind(kind)}, more than {known} image looked at on opening "
                    f"({format_shape(self.sample_shape)}); leave it out, or open the collection again."
                )

        try:
            return read_picture(path, check)
        except SourceError as error:
            raise offering(error, self.files) from error

    def taken(self, kept: Array) -> MixedImages:
        """Only the files of which `kept`, n bools, is True."""
        every = np.zeros(len(self.files), np.bool_)
        every[self._rows] = kept
        other = copy.copy(self)
        other.files = self.files.taken(every)
        other._rows = slice(0, int(np.count_nonzero(kept)))
        other.shape = (other._rows.stop, *self.sample_shape)
        return other

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
