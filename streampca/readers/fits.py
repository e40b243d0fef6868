"""FITS files, plain or gzipped: one image HDU, any number of axes, tile-compressed or not.

Headers are parsed by astropy (https://docs.astropy.org/en/stable/io/fits); plain values are read by position. Axes are
in numpy's order, the reverse of the header's. Scaled integers are read as the values they represent, unsigned ones
exactly (https://fits.gsfc.nasa.gov/fits_standard.html, sections 4.4.2.5 and 5.2.5); BLANK becomes NaN.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, Unpack

import numpy as np

from ..arrays import Array
from ..errors import SourceError
from ..storage import remote
from ..storage.disk import open_regular
from ..units import MIB, format_shape
from .collection import Collection
from .image_files.opened_image import OpenedImage, check_size, decoding
from .stored.array import ArrayCollection, StoredArray
from .stored.cf import Packing, Unpacked
from .stored.files import FileStates, Reopening
from .stored.flat import FlatHeader
from .stored.layout import Box, SampleAxes, largest_piece, lengths, pieces_of
from .stored.select_array import select_array

# astropy's `section` took 1.7 times as long for plain values, and 1.4 to 1.9 times the memory (200 MiB, scaled int16).
_DTYPES = {8: "u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
# Decoded bytes of a piece, about, and copies of each tile that astropy makes on the way.
_PIECE, _COPIES = 4 * MIB, 4
# Bytes that astropy holds for a row of the table of tiles: position and scale of the tile, and copies of both.
_TABLE = 80


class ImageHDU(NamedTuple):
    """An image HDU as its header describes it; `begin` is the byte of its first value in the decoded file."""

    number: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int
    tiles: tuple[int, ...] | None
    header: Mapping[str, Any]


def open_fits(source: str, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open an image HDU of a FITS file: the one with number or name `key`, or the only one."""
    image, label = _chosen_image(source, key)
    array = _array(source, image, label)
    return ArrayCollection(array, source=label, dims=_axis_names(image), **axes)


def open_fits_image(path: str) -> OpenedImage:
    """Open a FITS file that holds one image: two axes, and any others of length 1."""
    image, label = _chosen_image(path, None)
    array = _array(path, image, label)
    if len(image.shape) < 2 or math.prod(image.shape[:-2]) != 1:
        raise SourceError(
            f"{label} has shape {format_shape(image.shape)}, and a file of a folder, glob or list is one image; give "
            "it alone to make each of its planes a sample, or leave it out."
        )
    check_size(path, array.shape, array.dtype)
    shape = image.shape[-2:]
    return OpenedImage(shape, array.dtype.newbyteorder("="), lambda: array.read_all().reshape(shape))


def has_planes(path: str) -> bool:
    """Return whether a FITS file holds several images as one array; a file that cannot be read is reported later."""
    try:
        image, _ = _chosen_image(path, None)
    except SourceError:
        return False
    return math.prod(image.shape[:-2]) > 1


def read_first_image(path: str, check: Callable[[tuple[tuple[int, ...], np.dtype[Any]]], None]) -> Array | None:
    """Read the first image of a file, None if there is none; `check` is first called with its shape and dtype."""
    for name, image in _images(path).items():
        array = _array(path, image, f"{path}, HDU {name}")
        check((array.shape, array.dtype))
        return array.read_all()
    return None


class CompressedTiles(Reopening, StoredArray):
    """A tile-compressed image HDU, decoded by astropy."""

    encoded = True
    _hdus: Any  # opened on first use; astropy moves one file position, hence the lock
    _file: IO[bytes] | None
    _lock: threading.Lock

    def __init__(self, path: str, image: ImageHDU, label: str) -> None:
        self._path, self._number, self._label, self.files = path, image.number, label, FileStates((path,))
        self.shape, self.dtype = image.shape, image.dtype.newbyteorder("=")
        self.chunk_shape = image.tiles or (1, *image.shape[1:])
        size = self.dtype.itemsize
        self._most = _PIECE // size
        piece = largest_piece(self.shape, self.chunk_shape, self._most) * size
        tiles = math.prod(-(-length // side) for length, side in zip(self.shape, self.chunk_shape, strict=True))
        self.decode_bytes = 2 * piece + _COPIES * math.prod(self.chunk_shape) * size + _TABLE * tiles
        self._forget()

    def read_into(self, box: Box, out: Array) -> None:
        """Decode the box in pieces that end at tile edges."""
        for piece, inside in pieces_of(box, self.chunk_shape, self._most):
            with self._lock, decoding(self._label):
                if self._hdus is None:
                    self._file = open_regular(self._path)  # closed with the object
                    self._hdus = _hdus(self._file, self._path)
                values = self._hdus[self._number].section[piece]
                if values.shape != lengths(piece):
                    raise SourceError(
                        f"{self._label} gave {format_shape(values.shape)} values for {format_shape(lengths(piece))}; "
                        "it is damaged, copy it again."
                    )
                out[inside] = values

    def _forget(self) -> None:
        self._hdus, self._file, self._lock = None, None, threading.Lock()

    def __del__(self) -> None:
        for opened in (getattr(self, "_hdus", None), getattr(self, "_file", None)):
            if opened is not None:
                opened.close()


def packing_of(image: ImageHDU, label: str) -> Packing | None:
    """Return the packing that BSCALE, BZERO and BLANK describe; None if stored numbers are the values."""
    stored = image.dtype if image.tiles is None else image.dtype.newbyteorder("=")
    scale, zero = (_number(image, name, default, label) for name, default in (("BSCALE", 1.0), ("BZERO", 0.0)))
    whole = stored.kind != "f"
    blank = image.header.get("BLANK") if whole else None
    if blank is not None and not isinstance(blank, int):
        raise SourceError(f"{label} has BLANK {blank!r}, which is not a whole number; correct the header.")
    if (scale, zero, blank) == (1.0, 0.0, None):
        return None
    bits = 8 * stored.itemsize
    # The standard's convention for unsigned integers (signed ones for 8 bits): an offset of half the range, exactly.
    if whole and scale == 1 and blank is None and zero == (-128 if bits == 8 else 2 ** (bits - 1)):
        values = np.dtype(f"{'i' if bits == 8 else 'u'}{stored.itemsize}")
        return Packing(stored, values, offset=values.type(int(zero)))
    values = stored.newbyteorder("=") if not whole else np.dtype(np.float32 if bits <= 16 else np.float64)
    return Packing(
        stored,
        values,
        scale=None if scale == 1 else values.type(scale),
        offset=None if zero == 0 else values.type(zero),
        missing=() if blank is None else (blank,),
    )


def _number(image: ImageHDU, name: str, default: float, label: str) -> float:
    value = image.header.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SourceError(f"{label} has {name} {value!r}, which is not a finite number; correct the header.")
    return float(value)


def _array(path: str, image: ImageHDU, label: str) -> StoredArray:
    array: StoredArray
    if image.tiles is not None:
        array = CompressedTiles(path, image, label)
    else:
        array = FlatHeader(image.shape, image.dtype, image.begin).array_of_file(path, label)
    packing = packing_of(image, label)
    return array if packing is None else Unpacked(array, packing)


def _chosen_image(source: str, key: str | None) -> tuple[ImageHDU, str]:
    """Return the image HDU with number or name `key`, or the only one, and its name in messages."""
    remote.refuse(source, "a FITS file")
    images = _images(source)
    if not images:
        raise SourceError(f"{source} has no image HDU with values in it; give a FITS file of images, not of tables.")
    named = (key or "").strip()
    numbers = {str(image.number): name for name, image in images.items()}
    names = {name.upper(): name for name in images}
    name = select_array(images, numbers.get(named) or names.get(named.upper(), named), source)
    return images[name], f"{source}, HDU {name}"


def _images(path: str) -> dict[str, ImageHDU]:
    """Return the image HDUs with values by name, or by number if the name is missing or repeated."""
    images: dict[str, ImageHDU] = {}
    with _opened(path) as hdus:
        for number, hdu in enumerate(hdus):
            image = _image(number, hdu)
            if image is not None:
                name = str(hdu.name) if number and hdu.name and str(hdu.name) not in images else str(number)
                images[name] = image
    return images


def _image(number: int, hdu: Any) -> ImageHDU | None:
    header = hdu.header
    shape = tuple(int(header[f"NAXIS{axis}"]) for axis in range(int(header.get("NAXIS", 0)), 0, -1))
    if not hdu.is_image or not shape or 0 in shape or header.get("GROUPS") is True:
        return None
    tiles = None
    if type(hdu).__name__ == "CompImageHDU":
        tiles = tuple(int(side) for side in getattr(hdu, "tile_shape", (*(1 for _ in shape[1:]), shape[-1])))
    names = ("BSCALE", "BZERO", "BLANK", *(f"CTYPE{axis + 1}" for axis in range(len(shape))))
    cards = {name: header[name] for name in names if name in header}
    begin = int(hdu.fileinfo()["datLoc"])
    return ImageHDU(number, shape, np.dtype(_DTYPES[int(header["BITPIX"])]), begin, tiles, cards)


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    try:
        file = open_regular(path)  # closed below; only errors of opening it are caught here
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror}; check its permissions.") from error
    with file, decoding(path), _hdus(file, path) as hdus:
        yield hdus


def _hdus(file: IO[bytes], path: str) -> Any:
    """Return the HDUs of a file that the caller closes: astropy leaves a file open if it cannot parse it."""
    try:
        from astropy.io import fits
    except ImportError as error:
        raise SourceError(
            f"{path} is a FITS file, and astropy, which reads those, is not installed; pip install 'streampca[fits]'."
        ) from error
    return fits.open(file, memmap=False, do_not_scale_image_data=True, lazy_load_hdus=True)


def _axis_names(image: ImageHDU) -> tuple[str, ...]:
    """Return the names of the axes: ``y, x`` for the last two, and CTYPE's for the others (freq, stokes ...)."""
    names: list[str] = []
    for axis in range(len(image.shape) - 2):
        text = image.header.get(f"CTYPE{len(image.shape) - axis}")
        name = text.partition("-")[0].strip().lower() if isinstance(text, str) else ""
        names.append(name if name and name not in (*names, "x", "y") else f"axis_{axis}")
    return (*names, "y", "x")[-len(image.shape) :]
