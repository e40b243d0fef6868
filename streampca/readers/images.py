"""A folder, glob or list of image files, with one sample per file."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np

from .. import machine
from ..arrays import Array
from ..errors import RequestError, SourceError, UnusedOptionError
from ..storage.coordinate import Coordinate
from ..storage.georeference import BAND, Georeference
from ..storage.remote import is_url
from ..units import MIB, format_shape
from .collection import Collection, State, check_dtype, file_state, refuse_key
from .common_dtype import ImageDtype
from .coordinates import is_checked
from .duplicates import repeats_to_leave_out
from .image_files.census import (
    Census,
    common_place,
    kind_bytes,
    log_skipped,
    look_at,
    mostly_stacks,
    take_census,
    unlike,
    with_remedy,
)
from .image_files.decode import Kind, format_kind, read_picture
from .image_files.find import find_images
from .image_files.listing import Listing, listing_in, read_table, write_table
from .opener import Opener
from .silence_decoders import quiet
from .storage_record import Chunks, Storage
from .stored.array import ArrayCollection, StoredArray
from .stored.axis_roles import page_axes
from .stored.layout import Box, SampleAxes, layout_of
from .system_folders import log_left_out
from .threads import for_each
from .tiff_axes import check_place
from .views.compose import choose
from .views.joined import joined


def open_images(source: str | Sequence[str], *, opener: Opener) -> Collection:
    """Open image files of one kind of numbers; axes are ``sample, y, x`` and, in colour, ``channel``.

    If most of the files are TIFF stacks or FITS cubes, each of their pages or planes is a sample, and so is every other
    image, one file after another.

    Returns
    -------
    ImageCollection, MixedImages or Joined
        The second if images differ in height, width or colour, the third if most files hold several images.
    """
    options, listener = opener.options, opener.listener
    select: Any = options.select
    axes: SampleAxes = {"sample_axes": options.sample_axes, "select": select}
    skip, listing = options.on_bad_file == "skip", None if options.listing is None else os.fspath(options.listing)
    table = read_table(listing) if listing else None
    listed = listing_in(table, source) if table and isinstance(source, str) and os.path.isdir(source) else None
    files = listed or find_images(source, skip=skip)
    files.again = partial(find_images, source, skip=skip) if isinstance(source, str) else None
    files.reading = opener.reading
    label = source if isinstance(source, str) else f"a list of {len(files)} image files"
    log_left_out(files.left_out, label)
    if mostly_stacks(files):
        return joined(files, label, opener)
    if options.sel:
        raise UnusedOptionError(
            f"{label} are images without values along their axes to take by; give select in place of sel.", option="sel"
        )
    if options.fill_value is not None:
        raise UnusedOptionError(
            f"{label} are images, whose files say which values are missing; leave fill_value out.", option="fill_value"
        )
    refuse_key(opener.key, label)
    repeats, every = repeats_to_leave_out(files, label, options.duplicates), len(files)
    once = np.setdiff1d(np.arange(every), [*repeats])
    files, listing = files.select(once), None if repeats else listing  # a table holds all files of its folder
    asked = options.dtype
    census = take_census(files, table, listener) if skip else look_at(files, label, asked)
    if listing and (listed is None or (skip and census.fresh)):
        write_table(listing, files, **(census.arrays() if skip else {}))
    if skip:
        census = census.usable(label, asked)
    dtype = ImageDtype.of((sort.kind[1] for sort in census.counts(census.places)), asked)
    census = census.read_as(dtype.dtype)
    census, place = common_place(census, label, skip=skip, checked=is_checked(options.coordinates))
    if skip:
        log_skipped(census.skipped, len(files), label)
    try:
        collection = _collection_of(census, census.places, label, place, dtype, skip=skip, axes=axes)
    except RequestError:
        if not skip:
            raise
        # Options on an image's axes need one shape: the most common one, if other images can be left out.
        fitting = census.fitting(census.places, lambda shape: shape, label)
        log_skipped(fitting.skipped_since(census), len(files), label)
        census = fitting
        collection = _collection_of(census, census.places, label, place, dtype, skip=skip, axes=axes)
    if (census.reasons or repeats) and len(census.places) == collection.n_samples:
        collection.kept = np.isin(np.arange(every), once[census.places])
    return collection


def _collection_of(
    census: Census,
    places: Array,
    label: str,
    place: Georeference | None,
    dtype: ImageDtype,
    *,
    skip: bool,
    axes: SampleAxes,
) -> Collection:
    """Return the files at some places of a table as a collection; with `skip`, misfits can be left out later."""
    sorts = census.counts(places)
    collection: Collection
    if len(sorts) == 1:
        array = ImageFiles(census.files.select(places), label, sorts[0].kind[0], dtype, place)
        dims = ("sample", "y", "x", "channel" if place is None else BAND)[: len(array.shape)]
        collection = ImageCollection(array, source=label, dims=dims, **axes)
    else:
        collection = MixedImages(census, places, label, place, dtype, skip=skip, **axes)
    collection.skipped, collection.reading = census.skipped if skip else (), census.files.reading.record()
    return collection


class ImageCollection(ArrayCollection):
    """Image files as samples."""

    def where(self, index: int) -> str:
        """Return the path of the file, in the form in which the source was given."""
        files = self._files()
        return super().where(index) if files is None else files.listing.path(self.layout.place(index)[0])

    def paths(self) -> list[str]:
        """Return the files of a list; else the folder or glob."""
        listed = self.array.listing.unnamed(self.source) if isinstance(self.array, ImageFiles) else ()
        return [*super().paths(), *listed]

    def sample_names(self) -> Sequence[str] | None:
        """Return the paths of the files below their common folder, if each is a sample."""
        files, entries = self._files(), self.layout.index[0]
        if files is None or not isinstance(entries, slice):
            return None
        names = files.listing.names
        return names if entries == slice(0, len(names)) else names[entries]

    def each(self, rows: slice, function: Callable[[int, Array], None]) -> None:
        """Decode files, several at a time, without a block; see `Collection.each`."""
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

    def taken(self, mask: Array) -> ImageCollection | None:
        """Return the files where `mask`, n bools, is True; None if samples are not files."""
        files, run = self._files(), self.layout.index[0]
        if files is None or not isinstance(run, slice):
            return None
        every = np.zeros(len(files.listing), np.bool_)
        every[run] = mask
        collection = copy.copy(self)
        collection.array = files.of_listing(files.listing.select(np.flatnonzero(every)))
        count = int(np.count_nonzero(mask))
        return collection.laid_out(replace(self.layout, index=(slice(0, count), *self.layout.index[1:])))

    def _files(self) -> ImageFiles | None:
        return self.array if isinstance(self.array, ImageFiles) and self.layout.outer == (0,) else None


class ImageFiles(StoredArray):
    """Image files as one array of shape (files, height, width[, channels]), with one georeference if they have any."""

    def __init__(
        self,
        listing: Listing,
        label: str,
        image_shape: tuple[int, ...],
        dtype: ImageDtype,
        place: Georeference | None = None,
    ) -> None:
        self.listing, self.place = listing, place
        self.label, self.kind, self._image_dtype = label, (image_shape, dtype.dtype), dtype
        self.shape, self.dtype = (len(listing), *image_shape), dtype.dtype
        self.chunk_shape = (1, *image_shape)
        self.image_bytes = dtype.decoded_bytes(image_shape)
        # Every thread holds the picture (Pillow keeps 4 bytes per colour pixel), its values, and the file's buffers.
        self.decode_bytes = machine.cores() * (3 * self.image_bytes + dtype.converted_bytes(image_shape) + MIB)
        first = listing.path(0)  # a file at least as large as its values is not compressed
        self.encoded = is_url(first) or file_state(first)[0] < self.image_bytes

    def of_listing(self, listing: Listing) -> ImageFiles:
        """Return some of the files."""
        return ImageFiles(listing, self.label, self.kind[0], self._image_dtype, self.place)

    def picture(self, index: int) -> Array:
        """Decode a file, shape (height, width[, channels])."""
        return _picture(self.listing, index, self._image_dtype, self._check, self._check_place)

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of the pixels if the images are georeferenced."""
        return {} if self.place is None else self.place.coordinates(*self.kind[0][:2])

    def _check_place(self, place: Georeference | None, path: str) -> None:
        check_place(place, path, self.place, f"other images of {self.label}", self.kind[0])

    def _check(self, kind: Kind, path: str) -> None:
        if kind[0] != self.kind[0] or not self._image_dtype.accepts(kind[1]):
            raise unlike(path, kind, self.kind, self.label)

    def read_into(self, box: Box, out: Array) -> None:
        """Decode each file of the box, several at a time."""

        def read_one(at: int) -> None:
            out[at] = self.picture(box[0].start + at)[box[1:]]

        with quiet():
            for_each(read_one, box[0].stop - box[0].start, self.image_bytes)

    def states(self, *, now: bool = False) -> list[State]:
        """Return states of runs of files."""
        return self.listing.groups(now=now)

    def states_of_first(self, length: int, *, now: bool = False) -> list[State] | None:
        """Return states of runs of the first files."""
        return self.listing.first(length).groups(now=now)

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Count the files, without a last one that is too young."""
        return self.listing.settled(seconds)


class MixedImages(Collection):
    """Image files of several sizes or numbers of channels: each in its own shape, not as rows."""

    mixed = True
    _told = 0  # skipped files that were logged last: `fitting` is called again for every preparation

    def __init__(
        self,
        census: Census,
        places: Array,
        label: str,
        place: Georeference | None,
        dtype: ImageDtype,
        *,
        skip: bool,
        **axes: Unpack[SampleAxes],
    ) -> None:
        sorts = census.counts(places)
        largest = max((sort.kind for sort in sorts), key=lambda kind: (kind[0][0] * kind[0][1], kind_bytes(kind)))
        channels = max((sort.kind[0][2:] for sort in sorts), default=())
        self.source, self.files = label, census.files
        self.dtype, self._image_dtype = check_dtype(dtype.dtype, label), dtype
        self._examples = tuple((self.files.path(sort.first), sort.kind[0]) for sort in sorts[:2])
        self._offers = not skip and sorts[0].files * 2 > sum(sort.files for sort in sorts)
        self._skip, self._place = skip, place
        self.one_size = len({sort.kind[0][:2] for sort in sorts}) == 1
        self._census = census if census.complete else None
        most_shape = max((sort.kind[0] for sort in sorts), key=math.prod)
        self._most = dtype.decoded_bytes(most_shape) * (1 if census.complete else 2)
        places = places[self._selected((len(places), *largest[0][:2], *channels), axes)]
        self._places = places.astype(np.int32 if len(self.files) < 2**31 else np.int64)
        self.shape = (len(places), *largest[0][:2], *channels)
        self.axes = ("y", "x", "channel")[: len(self.shape) - 1]
        # `each` holds one image per thread, in Pillow's form and as values, and its file's buffers.
        converted = dtype.converted_bytes(most_shape) * (1 if census.complete else 2)
        decode = machine.cores() * (3 * self._most + converted + MIB)
        self.storage = Storage(Chunks(1, self.n_features), decode, encoded=True)

    def _selected(self, shape: tuple[int, ...], axes: SampleAxes) -> slice:
        dims = ("sample", "y", "x", "channel")[: len(shape)]
        whole = partial(page_axes, dims=dims)
        layout = layout_of(shape, source=self.source, dims=dims, default=whole, select=axes.get("select"))
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
        """Most bytes of a decoded image."""
        return self._most

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Refuse: images of several sizes make no rows; see `each`."""
        (path, shape), (other_path, other_shape) = self._examples
        colours = len(shape) != len(other_shape) or shape[2:] != other_shape[2:]
        typed, written = (" --grey", ", grey=True") if colours else ("", "")
        skip = " (--on-bad-file skip, on_bad_file='skip')" if self._offers else ""
        raise SourceError(
            f"{self.source} holds images of several sizes, e.g. {path} ({format_shape(shape)}) and {other_path} "
            f"({format_shape(other_shape)}); give --resize 64x64{typed} (Preparation(resize=(64, 64){written})), or "
            f"leave out the others{skip}."
        )

    def each(self, rows: slice, function: Callable[[int, Array], None]) -> None:
        """Decode files, several at a time; see `Collection.each`."""

        def work(at: int) -> None:
            function(at, _picture(self.files, int(self._places[rows.start + at]), self._image_dtype, self._check))

        with quiet():
            for_each(work, rows.stop - rows.start, self.row_bytes)

    def _check(self, kind: Kind, path: str) -> None:
        if not self._image_dtype.accepts(kind[1]):
            raise unlike(path, kind, (self.sample_shape, self.dtype), self.source)
        if kind_bytes(kind) > self._most:
            limit = "twice the largest" if self._census is None else "the largest"
            raise SourceError(
                f"{path} is {format_kind(kind)}, more than {limit} image looked at on opening "
                f"({format_shape(self.sample_shape)}); leave it out, or open the collection again."
            )

    def taken(self, mask: Array) -> Collection:
        """Return the files where `mask`, n bools, is True."""
        places = self._places[mask]
        if self._census is not None and len(places):
            how: dict[str, Any] = {"skip": self._skip, "axes": {}}
            return _collection_of(self._census, places, self.source, self._place, self._image_dtype, **how)
        collection = copy.copy(self)
        collection._places, collection.shape = places, (len(places), *self.sample_shape)
        return collection

    def fitting(self, shape_of: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Collection:
        """Leave out the files whose images a preparation does not bring to the most common shape; see `Collection`."""
        if not self._skip or self._census is None:
            return self
        census = self._census.fitting(self._places, shape_of, self.source)
        skipped = census.skipped_since(self._census)
        if not skipped:
            return self
        chosen = choose(self, np.flatnonzero(np.isin(self._places, census.places)))
        chosen.skipped = census.skipped
        if isinstance(chosen, MixedImages):
            chosen._census = census
        if self._told != len(skipped):
            self._told = len(skipped)
            log_skipped(skipped, self.n_samples, self.source)
        return chosen

    def paths(self) -> list[str]:
        """Return the files of a list; else the folder or glob."""
        return [*super().paths(), *self.files.unnamed(self.source)]

    def where(self, index: int) -> str:
        """Return the path of the file, in the form in which the source was given."""
        return self.files.path(int(self._places[index]))

    def sample_names(self) -> Sequence[str]:
        """Return the paths of the files below their common folder."""
        return self.files.select(self._places).names

    def states(self, *, now: bool = False) -> list[State]:
        """Return states of runs of files."""
        return self.files.select(self._places).groups(now=now)


def _picture(
    files: Listing,
    index: int,
    dtype: ImageDtype,
    check: Callable[[Kind, str], None],
    check_place: Callable[[Georeference | None, str], None] | None = None,
) -> Array:
    """Decode a file, shape (height, width[, channels])."""
    path = files.path(index)
    try:
        where = None if check_place is None else lambda place: check_place(place, path)
        pixels = read_picture(path, lambda kind: check(kind, path), files.reading, where)
    except SourceError as error:
        raise with_remedy(error, files) from error
    return dtype.converted(pixels, path)
