"""Reading of one image file of any format: its header, and its pixels."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from ...arrays import Array
from ...errors import SourceError
from ...storage import remote
from ...storage.disk import open_regular
from ...storage.georeference import Georeference
from ...units import format_shape
from ..detect import is_fits, is_tiff
from ..fits import has_planes, open_fits_image
from ..tags import TagRules
from ..tiff import has_pages, opened_page
from .find import CUBES, STACKS
from .jpeg_2000 import JPEG_2000, open_jpeg_2000
from .names import ending
from .opened_image import OpenedImage, decoding
from .orientation import upright
from .other_formats import UNREAD
from .pillow import open_bitmap
from .png import open_png
from .pnm import open_pnm

# Shape, (height, width) or (height, width, channels), and dtype.
Kind = tuple[tuple[int, ...], np.dtype[Any]]


def read_header(path: str, reading: TagRules = TagRules()) -> tuple[Kind, Georeference | None]:  # noqa: B008 - frozen
    """Return shape and dtype of an image, and its georeference, if it has one."""
    with _opened(path, reading) as picture:
        return (picture.shape, picture.dtype), picture.place


def read_picture(
    path: str,
    check: Callable[[Kind], None] | None = None,
    reading: TagRules = TagRules(),  # noqa: B008 - frozen
    check_place: Callable[[Georeference | None], None] | None = None,
) -> Array:
    """Decode an image, shape (height, width[, channels]).

    Before memory is allocated, `check` is called with shape and dtype, and `check_place` with the georeference.
    """
    with _opened(path, reading) as picture:
        if check is not None:
            check((picture.shape, picture.dtype))
        if check_place is not None:
            check_place(picture.place)
        pixels = picture.load()
    if pixels.shape != picture.shape or pixels.dtype != picture.dtype:
        raise SourceError(
            f"{path} decodes to {format_shape(pixels.shape)} {pixels.dtype} and its header says "
            f"{format_shape(picture.shape)} {picture.dtype}; save it again."
        )
    return pixels


def holds_several(path: str) -> bool:
    """Return whether a file is a TIFF stack or a FITS cube; a file that cannot be read is reported when it is read."""
    kind = ending(path)
    try:
        if kind in STACKS:
            return is_tiff(path) and has_pages(path)
        return kind in CUBES and is_fits(path) and has_planes(path)
    except SourceError:
        return False


def format_kind(kind: Kind) -> str:
    """Return a kind of image as text, e.g. ``"112 x 92 uint8"``."""
    return f"{format_shape(kind[0])} {kind[1]}"


@contextmanager
def _opened(path: str, reading: TagRules) -> Iterator[OpenedImage]:
    with _as_stored(path, reading) as picture:
        yield upright(picture) if reading.orientation else picture


@contextmanager
def _as_stored(path: str, reading: TagRules) -> Iterator[OpenedImage]:
    try:
        # Closed by the with below; only errors of opening it are caught here.
        file: IO[bytes] = io.BytesIO(remote.fetch(path)) if remote.is_url(path) else open_regular(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror}; check that it is there.") from error
    with file, decoding(path):
        magic = file.read(8)
        file.seek(0)
        if magic[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            if ending(path) in UNREAD:
                raise SourceError(
                    f"{path} is a camera's or scanner's own format, in which the TIFF pages are previews; save it as "
                    "TIFF or PNG."
                )
            with opened_page(path, reading) as picture:
                yield picture
        elif magic[:1] == b"P" and magic[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6"):
            yield open_pnm(file)
        elif magic == b"\x89PNG\r\n\x1a\n":
            yield open_png(file, path)
        elif magic.startswith(JPEG_2000) and ending(path) not in UNREAD:  # Nikon's first files begin so
            yield open_jpeg_2000(file, path)
        elif magic == b"SIMPLE  " or (magic.startswith(b"\x1f\x8b") and is_fits(path)):
            yield open_fits_image(path)
        else:
            yield open_bitmap(file, path)
