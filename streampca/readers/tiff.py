"""TIFF files: a file given alone is a collection of its pages; in a folder each file is one image.

Pages are decoded by tifffile, which keeps values as stored: 16-bit colour, floats, LZW, deflate and zstd.
"""

from __future__ import annotations

import html
import math
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple, Unpack

import numpy as np
import tifffile

from .. import machine
from ..arrays import Array
from ..errors import SourceError
from ..storage import remote
from ..storage.coordinate import Coordinate
from ..storage.georeference import BAND, SIDES, georeference_of
from ..units import MIB, format_shape
from .collection import Collection, State, check_dtype, digest, refuse_key, with_nan
from .common_dtype import ImageDtype, common_dtype, dtype_remedy
from .coordinates import CHECK, is_checked
from .image_files.opened_image import OpenedImage, check_size, decoding
from .image_files.orientation import TAG, upright
from .stored.array import ArrayCollection, StoredArray
from .stored.axis_roles import DefaultAxes, page_axes
from .stored.cf import Packing, Unpacked, packing_of
from .stored.files import FileStates, Reopening, check_kind, positioned, size_of
from .stored.flat import FlatArray
from .stored.layout import Box, Layout, SampleAxes
from .tags import TagRules
from .threads import for_each
from .tiff_axes import check_place, coordinates_of

# Pages checked on opening; the others are checked when they are decoded.
_LOOKED_AT = 64
# Bytes that tifffile keeps of every page it has passed: the offset in the file, as a Python number in a list.
_PAGE_INDEX = 48
# Tags that give the kind of a page, bits of the first, and the TIFF types of whole numbers.
_NEW_SUBFILE_TYPE, _SUBFILE_TYPE = 254, 255
_REDUCED, _MASK = 1, 4
_BESIDE = _REDUCED | _MASK
_WHOLE = {1: "B", 3: "H", 4: "I", 16: "Q"}
_NO_DATA = 42113  # GDAL's tag: a number as text
_ALPHA = (1, 2)  # kinds of further samples that are opacities
_COLOURS = {"MINISWHITE", "MINISBLACK", "RGB", "PALETTE"}
_NAMES = {"Y": "y", "X": "x", "S": "channel", "T": "t", "Z": "z", "C": "c"}


def open_tiff(
    source: str,
    *,
    key: str | None = None,
    coordinates: str = CHECK,
    reading: TagRules = TagRules(),  # noqa: B008 - frozen
    dtype: str | None = None,
    **axes: Unpack[SampleAxes],
) -> Collection:
    """Open the pages of one TIFF file; ImageJ and OME files keep the names of their axes."""
    refuse_key(key, source)
    with _opened(source) as tiff:
        leading, names, order = stack = _stack(tiff, source)
        page = tiff.pages[stack.page(0)].aspage()
        no_data = _no_data_tag(page)
        first = _picture(page, source, reading)
        place = first.place
        if not is_checked(coordinates):
            first = first._replace(place=None)  # so that the places of other pages are not compared
        array: StoredArray
        flat = _flat(tiff, first, leading, source, reading) if order is None else None
        if flat is None:
            count = min(math.prod(leading), len(tiff.pages))
            numbers = sorted({stack.page(at * (count - 1) // _LOOKED_AT) for at in range(_LOOKED_AT + 1)})
            pages = {number: _picture(tiff.pages[number], source, reading, no_data) for number in numbers}
            for number, other in pages.items():
                _check_alike(other, first, source, number)
                if dtype is None and common_dtype(other.dtype, first.dtype) is None:
                    raise _unlike(other, first, source, number)
            as_dtype = ImageDtype.of((other.dtype for other in pages.values()), dtype)
            array = TiffPages(source, leading, first, len(tiff.pages), as_dtype, order, reading, no_data)
        else:
            array = flat
        dims = (*names, "y", "x", "channel" if place is None else BAND)[: len(names) + len(first.shape)]
        positions = coordinates_of(tiff, dims, array.shape)
        if place is not None:
            positions |= place.coordinates(*first.shape[:2])
    collection = TiffCollection(array, positions, source=source, dims=dims, **axes)
    collection.reading = reading.record()
    return collection


class _Seen(SampleAxes, total=False):
    """Options of `ArrayCollection`: names of an array's axes, and its layout as samples."""

    dims: Sequence[str] | None


class TiffCollection(ArrayCollection):
    """The pages of a TIFF file as samples, with the positions of pixels from metadata of ImageJ and OME."""

    def __init__(
        self, array: StoredArray, positions: Mapping[str, Coordinate], *, source: str, **about: Unpack[_Seen]
    ) -> None:
        self._positions, self._pages = positions, array
        super().__init__(array, source=source, **about)

    def _layout_of(self, shape: tuple[int, ...], axes: SampleAxes) -> Layout:
        """Lay out pages as samples; bands do not count samples but belong to them."""
        if BAND in self.dims and axes.get("sample_axes") is None:
            dropped = {axis for axis, entry in (axes.get("select") or {}).items() if not isinstance(entry, slice)}
            numbers = {axis % len(shape) if isinstance(axis, int) else axis for axis in dropped}
            sides = [name for at, name in enumerate(self.dims) if name in (*SIDES, BAND) and not {at, name} & numbers]
            axes = {**axes, "sample_axes": sides}
        return super()._layout_of(shape, axes)

    @property
    def stored_coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates along the axes of the pages, by name."""
        return self._positions

    def _default_axes(self, axes: Sequence[int]) -> DefaultAxes:
        return page_axes(axes, self.dims)

    def where(self, index: int) -> str:
        """Name the page, counted from 1 as viewers do."""
        array = self._pages
        leading = array.shape[: self.dims.index("y")]
        place: dict[int, Any] = dict(enumerate(self.layout.index)) | self.layout.place(index)
        if any(isinstance(place[axis], slice) for axis in range(len(leading))):
            return super().where(index)  # the sample spans several pages
        at = tuple(place[axis] for axis in range(len(leading)))
        page = array.page_at(at) if isinstance(array, TiffPages) else _number(at, leading)
        return f"{self.source}, page {page + 1}"


class TiffPages(Reopening, StoredArray):
    r"""The pages of a TIFF file, decoded on demand, as an array of shape (\*leading, height, width[, channels])."""

    encoded = True  # also plain pages: tifffile copies each several times, at the speed of a decoder
    _tiff: Any  # opened on first use
    _lock: threading.Lock

    def __init__(
        self,
        path: str,
        leading: tuple[int, ...],
        page: OpenedImage,
        pages: int,
        dtype: ImageDtype,
        order: Array | None = None,
        reading: TagRules = TagRules(),  # noqa: B008 - frozen
        no_data: str = "",
    ) -> None:
        self._path, self._leading, self._order, self._reading, self._no_data = path, leading, order, reading, no_data
        self._files = FileStates((path,))
        self._page = page._replace(load=_no_decoder, dtype=dtype.dtype)
        self.dtype, self._image_dtype = dtype.dtype, dtype
        self.shape = (*leading, *page.shape)
        self.chunk_shape = (*(1 for _ in leading), *page.shape)
        # Every thread holds a page as stored, decoded and converted, its tags and the decoder's buffers.
        self.decode_bytes = machine.cores() * (
            3 * dtype.decoded_bytes(page.shape) + dtype.converted_bytes(page.shape) + MIB
        )
        self.decode_bytes += _PAGE_INDEX * pages + (remote.OPENED_BYTES if remote.is_url(path) else 0)
        self._forget()

    def read_into(self, box: Box, out: Array) -> None:
        """Decode each page of the box, several at a time."""
        places = list(product(*(range(part.start, part.stop) for part in box[: len(self._leading)])))
        starts = [part.start for part in box[: len(self._leading)]]

        def read_one(at: int) -> None:
            page = self.page_at(places[at])
            target = tuple(entry - start for entry, start in zip(places[at], starts, strict=True))
            out[target] = self._decode(page)[box[len(self._leading) :]]

        with decoding(self._path):
            for_each(read_one, len(places), math.prod(self._page.shape) * self.dtype.itemsize)

    def page_at(self, place: tuple[int, ...]) -> int:
        """Return the number, from 0, of the page at an index along the axes that count pages."""
        number = _number(place, self._leading)
        return number if self._order is None else int(self._order[number])

    def _decode(self, number: int) -> Array:
        with decoding(f"{self._path}, page {number + 1}"):
            tiff = self._open()
            with tiff.filehandle.lock:  # decoding threads use it too, as all share one file position
                picture = _picture(tiff.pages[number], self._path, self._reading, self._no_data)
            _check_alike(picture, self._page, self._path, number)
            if not self._image_dtype.accepts(picture.dtype):
                raise _unlike(picture, self._page, self._path, number)
            return self._image_dtype.converted(picture.load(), f"{self._path}, page {number + 1}")

    def _open(self) -> Any:
        with self._lock:
            if self._tiff is None:
                self._tiff = _tiff_file(self._path)
                self._tiff.filehandle.set_lock(True)
            return self._tiff

    def states(self, *, now: bool = False) -> list[State]:
        """Return the state of the file, combined with the rules for its tags."""
        followed = tuple(self._reading)
        return [state._replace(state=digest(state.state, followed)) for state in self._files.states(now=now)]

    def _forget(self) -> None:
        self._tiff, self._lock = None, threading.Lock()

    def __del__(self) -> None:
        if getattr(self, "_tiff", None) is not None:
            self._tiff.close()


@contextmanager
def opened_page(path: str, reading: TagRules) -> Iterator[OpenedImage]:
    """Open a TIFF file that is one image."""
    with _opened(path) as tiff:
        images = _images(tiff, path)
        if images > 1:
            raise SourceError(
                f"{path} has {images} pages, and a file of a folder, glob or list is one image; give it "
                "alone to make each page a sample, or leave it out."
            )
        yield _picture(tiff.pages[_full_pages(tiff)[0]], path, reading)


def has_pages(path: str) -> bool:
    """Return whether a TIFF file holds several images; a file that cannot be read is reported when it is read."""
    try:
        with _opened(path) as tiff:
            return _images(tiff, path) > 1
    except SourceError:
        return False


def _images(tiff: Any, path: str) -> int:
    # A file with one plane of a series that spans files, as microscopes write, is one image, too.
    alone = len(_full_pages(tiff)) == 1 and len(_ome_files(tiff)) > 1
    return 1 if alone else math.prod(_stack(tiff, path).leading)


def _tiff_file(path: str) -> Any:
    if remote.is_url(path):
        return tifffile.TiffFile(remote.open_file(path))
    check_kind(path)
    return tifffile.TiffFile(path)


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    tiff: Any  # tifffile's types allow None for attributes that are set once pages are counted
    with decoding(path), _tiff_file(path) as tiff:
        if len(tiff.pages) == 0:
            raise SourceError(f"{path} is a TIFF file without a readable page; it is damaged, copy it again.")
        tiff.filehandle.seek(tiff.pages.next_page_offset)
        if any(tiff.filehandle.read(tiff.tiff.offsetsize)):
            raise SourceError(
                f"{path} breaks off after page {len(tiff.pages)}: what it says comes next is not there; it was cut "
                "short or damaged, copy it again."
            )
        yield tiff


class _Stack(NamedTuple):
    """Lengths and names of the axes that count pages, and the page number at each index if pages are not in order."""

    leading: tuple[int, ...]
    names: tuple[str, ...]
    order: Array | None = None

    def page(self, place: int) -> int:
        """Return the number of the page at a flat index in C order."""
        return place if self.order is None else int(self.order[place])


def _stack(tiff: Any, path: str) -> _Stack:
    """Return the axes that count pages, by the file's metadata if the pages agree with them."""
    full = _full_pages(tiff)
    pages, among_others = len(full), full if len(full) < len(tiff.pages) else None
    if not (tiff.is_imagej or tiff.is_ome or tiff.is_shaped):
        return _Stack((pages,), ("page",), among_others)
    files = _ome_files(tiff)
    if len(files) > 1:
        examples = ", ".join(files[:3]) + ", ..." * (len(files) > 3)
        raise SourceError(
            f"{path} is one of {len(files)} files of an OME series ({examples}); "
            "save the series as one file, as by Bio-Formats' bfconvert."
        )
    for name in files:
        check_kind(os.path.join(os.path.dirname(path), name))  # opened to find the series
    series = tiff.series[0]
    image_axes = len(tiff.pages[int(full[0])].shape)
    leading, letters = tuple(series.shape[:-image_axes]), series.axes[:-image_axes]
    announced = max(math.prod(leading), int((tiff.imagej_metadata or {}).get("images", 0)) if tiff.is_imagej else 0)
    if announced > pages and (series.dataoffset is None or announced > math.prod(leading)):
        raise SourceError(
            f"{path} announces {announced} pages and holds {pages}; it was cut short, or its other images are in files "
            "of their own. Copy it again, or save it as one file."
        )
    if among_others is not None and not tiff.is_ome and math.prod(leading) != pages:
        return _Stack((pages,), ("page",), among_others)
    named_axes = all(letter in _NAMES for letter in letters)
    if leading and len(tiff.series) == 1 and named_axes and series.axes[-image_axes:] == tiff.pages[0].axes:
        order = _ome_order(series, path) if tiff.is_ome else among_others
        return _Stack(leading, tuple(_NAMES[letter] for letter in letters), order)
    return _Stack((max(pages, math.prod(leading)),), ("page",), among_others)


def _full_pages(tiff: Any) -> Array:
    """Return the numbers of the pages that are images, in order, without reduced copies and masks of other pages.

    Some writers mark every page as one of these; then all are returned.
    """
    count = len(tiff.pages)
    if count == 1:
        return np.zeros(1, np.int64)
    full = np.flatnonzero([not kind & _BESIDE for kind in _subfile_types(tiff)])
    return full if len(full) else np.arange(count)


def _subfile_types(tiff: Any) -> Iterator[int]:
    """Yield each page's subfile type (tag 254, or the older 255); parsing all its tags would take 20 times longer."""
    format_, file = tiff.tiff, tiff.filehandle
    entry = struct.Struct(format_.tagformat1 + format_.offsetformat[1:])  # code, type, count
    offset = tiff.pages.first.offset
    for _ in range(len(tiff.pages)):
        file.seek(offset)
        (tags,) = struct.unpack(format_.tagnoformat, file.read(format_.tagnosize))
        table = file.read(tags * format_.tagsize + format_.offsetsize)
        types = {}
        for at in range(tags):
            start = at * format_.tagsize
            code, kind, _ = entry.unpack_from(table, start)
            if code in (_NEW_SUBFILE_TYPE, _SUBFILE_TYPE) and kind in _WHOLE:
                types[code] = struct.unpack_from(format_.byteorder + _WHOLE[kind], table, start + entry.size)[0]
        yield types.get(_NEW_SUBFILE_TYPE) or (_REDUCED if types.get(_SUBFILE_TYPE) == 2 else 0)
        (offset,) = struct.unpack(format_.offsetformat, table[-format_.offsetsize :])


def _ome_files(tiff: Any) -> list[str]:
    """Return the names of the files that an OME file's metadata assign its images to."""
    matches = re.findall(r"""FileName\s*=\s*(?:"([^"]*)"|'([^']*)')""", tiff.ome_metadata or "") if tiff.is_ome else []
    return sorted({html.unescape("".join(name)) for name in matches})


def _ome_order(series: Any, path: str) -> Array | None:
    """Return the page number at each index of an OME series; None if pages are in the order of the file."""
    order = np.array([-1 if page is None else page.index for page in series.pages], np.int64)
    if (order < 0).any():
        place = np.unravel_index(
            int((order < 0).argmax()), series.shape[: len(series.shape) - len(series.keyframe.shape)]
        )
        words = ", ".join(f"{_NAMES[letter]} {int(at)}" for letter, at in zip(series.axes, place, strict=False))
        raise SourceError(
            f"{path} lacks {int((order < 0).sum())} of the {len(order)} pages its OME metadata lay out, the first at "
            f"{words}; save what there is without OME metadata, or copy it again."
        )
    return None if np.array_equal(order, np.arange(len(order))) else order


def _flat(tiff: Any, first: OpenedImage, leading: tuple[int, ...], path: str, reading: TagRules) -> StoredArray | None:
    """Return the whole file as one array of plain values, None if it is not stored as one run of them."""
    page = tiff.pages[0]
    series = tiff.series[0] if tiff.is_imagej or tiff.is_shaped else None
    if series is None or series.dataoffset is None or series.size != math.prod((*leading, *first.shape)):
        return None
    if page.dtype.kind not in "iuf" or page.photometric.name == "PALETTE" or tuple(page.shape) != first.shape:
        return None
    turned = reading.orientation and page.tags.valueof(TAG, default=1) != 1
    if turned or _Greys.of(page).changes:
        return None
    dtype = page.dtype.newbyteorder(tiff.byteorder)
    size, needed = size_of(path), series.dataoffset + series.size * dtype.itemsize
    if size < needed:
        raise SourceError(
            f"{path} has {size} bytes and its {math.prod(leading)} pages need {needed}; it was cut short, copy "
            "it again."
        )
    flat = FlatArray(positioned(path), (*leading, *first.shape), dtype, offset=series.dataoffset)
    packing = _no_data(_no_data_tag(page), dtype, path)
    return flat if packing is None else Unpacked(flat, packing)


# Shape and dtype of a page's image, and the function that converts stored values to them.
_Shown = tuple[tuple[int, ...], "np.dtype[Any]", Callable[[Array], Array]]


def _picture(page: Any, path: str, reading: TagRules, no_data: str = "") -> OpenedImage:
    """Describe a page, turned by its orientation tag if rules say so; `no_data` replaces a missing NODATA tag."""
    page = page.aspage()  # expand tifffile's short form of pages that should be like the first
    colour, compression = getattr(page.photometric, "name", page.photometric), getattr(page.compression, "name", "")
    if colour not in _COLOURS and not (colour == "YCBCR" and "JPEG" in compression):
        raise SourceError(f"{path} has colours stored as {colour}, not grey or RGB; convert it to RGB.")
    if page.axes not in ("YX", "YXS", "SYX"):
        raise SourceError(f"{path} has a page with axes {page.axes}; save it as pages of height by width.")
    check_dtype(page.dtype, path)
    check_size(path, page.shape, page.dtype)
    paletted = colour == "PALETTE" and page.colormap is not None
    shape, dtype, convert = _paletted(page) if paletted else _valued(page, _Greys.of(page))
    stored = np.dtype("u1") if page.dtype.kind == "b" else page.dtype
    packing = _no_data(_no_data_tag(page) or no_data, stored, path)
    shown = dtype if packing is None else with_nan(dtype)

    def load() -> Array:
        if page.compression != 1 and max(page.databytecounts, default=0) > 2 * page.nbytes + MIB:
            raise SourceError(f"{path} has a strip or tile longer than its page decoded; it is damaged, copy it again.")
        values: Array = page.asarray(maxworkers=1, lock=page.parent.filehandle.lock)
        if page.axes == "SYX":
            values = np.moveaxis(values, 0, -1)
        if packing is None:
            return convert(values)
        pixels = convert(values).astype(shown)
        pixels[(values[..., 0] if paletted and values.ndim == 3 else values) == packing.missing[0]] = np.nan
        return pixels

    turned = page.tags.valueof(TAG, default=1) if reading.orientation else 1
    place = georeference_of(page.tags.valueof) if turned == 1 else None  # it locates pixels as they are stored
    return upright(OpenedImage(shape, shown, load, turned, place))


def _no_data_tag(page: Any) -> str:
    """Return the text of GDAL's tag of the number that represents no value; empty without a tag."""
    return str(page.tags.valueof(_NO_DATA, default="")).strip("\0 ")


def _no_data(text: str, stored: np.dtype[Any], path: str) -> Packing | None:
    """Return the packing with the missing number of a NODATA tag, None if no stored number can equal it."""
    if not text:
        return None
    try:
        number: Any = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)
    except ValueError:
        raise SourceError(
            f"{path} has the NODATA tag {text[:40]!r}, which is not a number; correct the tag (gdal_edit.py "
            "-a_nodata) or take it off."
        ) from None
    packing = packing_of({"_FillValue": number}, stored, path)
    # A number beyond the range of the stored whole numbers cannot occur in a pixel.
    return packing if packing is not None and np.asarray(packing.missing[0]).dtype.kind == stored.kind else None


class _Greys(NamedTuple):
    """Intensities that the stored numbers of a page represent.

    Attributes
    ----------
    inverted : bool
        Whether 0 is white, so that numbers are inverted: black is 0 in every format here. Floats and signed numbers
        have no defined black, and stay as they are.
    largest : int
        The largest number that fits the bits of a sample, white or black; 0 for floats and signed numbers.
    scaled : bool
        Whether samples have less than 8 bits, and are scaled to 0 ... 255, like those of PNG files.
    """

    inverted: bool
    largest: int
    scaled: bool

    @classmethod
    def of(cls, page: Any) -> _Greys:
        bits = page.bitspersample if isinstance(page.bitspersample, int) else 8 * page.dtype.itemsize
        whole = page.dtype.kind in "bu"
        white = getattr(page.photometric, "name", "") == "MINISWHITE"
        return cls(white and whole, 2**bits - 1 if whole else 0, whole and bits < 8)

    @property
    def changes(self) -> bool:
        """True if stored numbers are not the values."""
        return self.inverted or self.scaled

    def convert(self, values: Array) -> Array:
        """Return the values that stored numbers represent; of a pixel's several numbers, only the first is inverted."""
        most = self.largest
        if self.scaled:
            scale = (np.arange(most + 1) * 255 + most // 2) // most
            values, most = scale.astype("u1")[values.astype("u1")], 255
        if self.inverted:
            values = values.copy()
            greys = values[..., 0] if values.ndim == 3 else values
            np.subtract(values.dtype.type(most), greys, out=greys)
        return values


def _valued(page: Any, greys: _Greys) -> _Shown:
    """Describe a page of values."""
    shape = (*page.shape[1:], page.shape[0]) if page.axes == "SYX" else page.shape
    native = np.dtype("u1") if page.dtype.kind == "b" else page.dtype.newbyteorder("=")
    if greys.changes:
        return shape, native, lambda values: greys.convert(values).astype(native, copy=False)
    return shape, native, lambda values: values.astype(native, copy=False)


def _paletted(page: Any) -> _Shown:
    """Describe a page of palette entries, which can have an opacity besides."""
    # TIFF stores 16 bits of each colour; a palette of greys alone gives pixels of one value.
    table = (np.asarray(page.colormap).T >> 8).astype("u1")
    table = np.ascontiguousarray(table[:, 0] if (table[:, :1] == table).all() else table)
    sides = page.shape[1:] if page.axes == "SYX" else page.shape[:2]
    if len(page.shape) == 2:
        return (*sides, *table.shape[1:]), table.dtype, lambda values: table[values.astype(np.intp)]
    colours, most = table.reshape(len(table), -1), 2**page.bitspersample - 1
    clear = bool(page.extrasamples) and int(page.extrasamples[0]) in _ALPHA

    def convert(values: Array) -> Array:
        shown = colours[values[..., 0].astype(np.intp)]
        alpha = (values[..., 1].astype(np.uint32) * 255 // most).astype("u1")
        return np.concatenate([shown, alpha[..., None]], axis=-1) if clear else shown.reshape(*sides, *table.shape[1:])

    channels = (colours.shape[1] + 1,) if clear else table.shape[1:]
    return (*sides, *channels), table.dtype, convert


def _number(place: tuple[int, ...], leading: tuple[int, ...]) -> int:
    """Return an index along the axes that count pages as one flat index, in C order."""
    return int(np.ravel_multi_index(place, leading))


def _no_decoder() -> Array:
    raise NotImplementedError  # in place of the decoder where only shape and dtype of a page are needed


def _check_alike(page: OpenedImage, first: OpenedImage, path: str, number: int) -> None:
    if page.shape != first.shape:
        raise SourceError(
            f"{path}, page {number + 1} is {format_shape(page.shape)} {page.dtype}, unlike its first page "
            f"({format_shape(first.shape)} {first.dtype}); split the file, so that all images have one size."
        )
    check_place(page.place, f"{path}, page {number + 1}", first.place, "its first page", first.shape)


def _unlike(page: OpenedImage, first: OpenedImage, path: str, number: int) -> SourceError:
    """Return the error for a page whose dtype is not joined with that of the others."""
    return SourceError(
        f"{path}, page {number + 1} is {page.dtype}, unlike other pages ({first.dtype}); "
        f"{dtype_remedy(page.dtype, first.dtype)}, or split the file."
    )
