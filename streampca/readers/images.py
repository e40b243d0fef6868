"""A folder, glob or list of image files, one sample a file."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

import numpy as np

from .. import machine
from ..errors import RequestError, SourceError
from ..events import Listener, silent
from ..units import MIB
from .collection import Array, Collection, Skipped, State, file_state, refuse_key
from .image_files.census import kinds_of, look_at, mostly_stacks, take_census, unlike, usable_files, with_remedy
from .image_files.decode import Kind, read_picture
from .image_files.find import find_images
from .image_files.listing import Listing, TableNames, listing_in, read_table, write_table
from .image_files.mixed_sizes import CheckedFiles, MixedImages
from .quiet import quiet
from .remote import is_url
from .stored.array import ArrayCollection, StoredArray
from .stored.boxes import Box
from .stored.layout import SampleAxes
from .tags import TagRules
from .threads import for_each
from .views.joined import joined


def open_images(
    source: str | Sequence[str],
    *,
    key: str | None = None,
    on_bad_file: str = "error",
    listing: str | None = None,
    listener: Listener = silent,
    opened: Callable[..., Collection] | None = None,
    reading: TagRules = TagRules(),  # noqa: B008 - frozen
    **axes: Unpack[SampleAxes],
) -> Collection:
    """Open image files of one dtype; axes are ``sample, y, x`` and, in colour, ``channel``.

    Where most of the files are TIFF stacks or FITS cubes, each of their pages or planes is a sample, and so is every
    other image, one file after another.

    Returns
    -------
    ImageCollection, MixedImages or Joined
        The second where images differ in height, width or colour, the third where most files hold several.
    """
    table = read_table(listing) if listing else None
    known = listing_in(table, source) if table and isinstance(source, str) and os.path.isdir(source) else None
    files = known or find_images(source, skip=on_bad_file == "skip")
    files.again = partial(find_images, source, skip=on_bad_file == "skip") if isinstance(source, str) else None
    files.reading = reading
    label = source if isinstance(source, str) else f"a list of {len(files)} image files"
    if opened is not None and mostly_stacks(files):
        options = {"key": key, **axes}
        return joined(files, label, options, opened, reading, skip=on_bad_file == "skip")
    refuse_key(key, label)
    skipped: tuple[Skipped, ...] = ()
    kept: Array | None = None
    checked_files: CheckedFiles | None = None
    if on_bad_file == "skip":
        census = take_census(files, table, listener)
        kept, skipped = usable_files(census, files, label)
        if listing and (known is None or census.fresh):
            write_table(listing, files, **census.arrays(kept), reading=np.array(files.reading))
        files, sorts, complete = files.taken(kept), kinds_of(census, kept), True
        checked_files = CheckedFiles(census, np.flatnonzero(kept), tuple(np.flatnonzero(~kept).tolist()), _alike)
    else:
        sorts, complete = look_at(files, label)
        if listing and known is None:
            write_table(listing, files)
    if listing:
        files.names = TableNames(files.names, listing, on_bad_file == "skip")
    collection: Collection
    if len(sorts) == 1:
        collection = _alike(files, label, sorts[0].kind, **axes)
    else:
        mixed = partial(MixedImages, files, label, sorts, complete=complete, checked_files=checked_files)
        try:
            collection = mixed(**axes)
        except RequestError:
            # What is asked of an image's axes takes images of one shape: those of most, where others may be left out.
            images = mixed()
            images.skipped, images.kept = skipped, kept
            found = images.fitting(lambda shape: shape)
            if not isinstance(found, ImageCollection) or not isinstance(found.array, ImageFiles):
                raise
            files, skipped, kept = found.array.listing, found.skipped, found.kept
            collection = _alike(files, label, found.array.kind, **axes)
    collection.skipped, collection.reading = skipped, reading.record()
    collection.kept = kept if skipped and len(files) == collection.n_samples else None
    return collection


def _alike(files: Listing, label: str, kind: Kind, **axes: Unpack[SampleAxes]) -> ImageCollection:
    """Files of one kind as a collection."""
    array = ImageFiles(files, label, kind)
    dims = ("sample", "y", "x", "channel")[: len(array.shape)]
    return ImageCollection(array, source=label, dims=dims, **axes)


class ImageCollection(ArrayCollection):
    """Image files as samples."""

    def where(self, index: int) -> str:
        """Path of the file, from where the source was named."""
        files = self._files()
        return super().where(index) if files is None else files.listing.path(self.layout.place(index)[0])

    def paths(self) -> list[str]:
        """The files of a list; else the folder or glob."""
        listed = self.array.listing.unnamed(self.source) if isinstance(self.array, ImageFiles) else ()
        return [*super().paths(), *listed]

    def sample_names(self) -> Sequence[str] | None:
        """Paths of the files below their common folder, where each is a sample."""
        files, taken = self._files(), self.layout.index[0]
        if files is None or not isinstance(taken, slice):
            return None
        names = files.listing.names
        return names if taken == slice(0, len(names)) else names.part(taken)

    def each(self, rows: slice, function: Callable[[int, Array], None]) -> None:
        """Decode files, some at a time, without a block; see `Collection.each`."""
        files = self._files()
        if files is None:
            super().each(rows, function)
            return
        cut = self.layout.index[1:]
        order = [self.layout.kept[1:].index(axis) for axis in self.layout.inner]

        def work(at: int) -> None:
            picture = files.picture(self.layout.place(rows.start + at)[0])
            function(at, picture[cut].transpose(order))

        with quiet():
            for_each(work, rows.stop - rows.start, files.image_bytes)

    def taken(self, kept: Array) -> ImageCollection | None:
        """Only the files of which `kept`, n bools, is True; None where a sample is not a file."""
        files, run = self._files(), self.layout.index[0]
        if files is None or not isinstance(run, slice):
            return None
        every = np.zeros(len(files.listing), np.bool_)
        every[run] = kept
        other = copy.copy(self)
        other.array = files.taken(every)
        count = int(np.count_nonzero(kept))
        return other.laid_out(replace(self.layout, index=(slice(0, count), *self.layout.index[1:])))

    def _files(self) -> ImageFiles | None:
        return self.array if isinstance(self.array, ImageFiles) and self.layout.outer == (0,) else None


class ImageFiles(StoredArray):
    """Image files as one array of shape (files, height, width[, channels])."""

    def __init__(self, listing: Listing, label: str, kind: Kind) -> None:
        self.listing = listing
        self._label, self.kind = label, kind
        self.shape, self.dtype = (len(listing), *kind[0]), kind[1]
        self.chunk_shape = (1, *kind[0])
        self.image_bytes = math.prod(kind[0]) * kind[1].itemsize
        # Each thread: the picture (Pillow keeps 4 bytes for a colour pixel), its values, and the file's buffers.
        self.decode_bytes = machine.cores() * (3 * self.image_bytes + MIB)

    @property
    def encoded(self) -> bool:  # type: ignore[override]
        """Whether files are compressed, which one at least as large as its values is not."""
        path = self.listing.path(0)
        return is_url(path) or file_state(path)[0] < self.image_bytes

    def taken(self, kept: Array) -> ImageFiles:
        """Only the files of which `kept`, one bool each, is True."""
        return ImageFiles(self.listing.taken(kept), self._label, self.kind)

    def picture(self, index: int) -> Array:
        """Decode a file, shape (height, width[, channels])."""
        path = self.listing.path(index)

        def check(kind: Kind) -> None:
            if kind != self.kind:
                raise unlike(path, kind, self.kind, self._label)

        try:
            return read_picture(path, check, self.listing.reading)
        except SourceError as error:
            raise with_remedy(error, self.listing) from error

    def read_into(self, box: Box, out: Array) -> None:
        """Decode each file of the box, some at a time."""

        def read_one(at: int) -> None:
            out[at] = self.picture(box[0].start + at)[box[1:]]

        with quiet():
            for_each(read_one, box[0].stop - box[0].start, self.image_bytes)

    def states(self, *, now: bool = False) -> list[State]:
        """Return states of runs of files."""
        return self.listing.groups(now=now)
