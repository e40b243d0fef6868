"""Orientation tags, which give the rotation and reflection of a stored image (Exif 2.32 and TIFF 6.0, tag 274)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from PIL import PngImagePlugin

from ...arrays import Array
from .opened_image import OpenedImage

TAG = 274

# Functions that turn a stored image upright, by the tag's value; 1 is upright already.
_TURNS: dict[int, Callable[[Array], Array]] = {
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: np.swapaxes(image, 0, 1),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: np.swapaxes(image[::-1, ::-1], 0, 1),
    8: lambda image: np.rot90(image),
}
_SIDEWAYS = frozenset((5, 6, 7, 8))

# Keys under which Pillow keeps the metadata that can contain the tag.
_SAYING = frozenset(("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"))

_CHUNK = struct.Struct(">I4s")
_TEXTS = frozenset((b"tEXt", b"zTXt", b"iTXt"))
# Keywords of the texts of a PNG file that can contain the tag.
_TELLING = (b"Raw profile type exif", b"XML:com.adobe.xmp")


def upright(picture: OpenedImage) -> OpenedImage:
    """Return an image turned by its orientation tag; decoding it gives a view of the stored image."""
    turn = _TURNS.get(picture.orientation)
    if turn is None:
        return picture
    (height, width), rest, load = picture.shape[:2], picture.shape[2:], picture.load
    sides = (width, height) if picture.orientation in _SIDEWAYS else (height, width)
    return OpenedImage((*sides, *rest), picture.dtype, lambda: turn(load()))


def orientation_of(image: Any) -> int:
    """Return the orientation of an image that Pillow opened, from Exif or XMP; 1 without a tag."""
    if not _SAYING & image.info.keys():  # reading the tag takes a tenth of the time of a small JPEG
        return 1
    try:
        return int(image.getexif().get(TAG, 1))
    except Exception:  # damaged Exif data can raise any error; viewers do not turn such an image
        return 1


def png_orientation(file: IO[bytes], path: str) -> int:
    """Return the orientation of a PNG file, whose chunks of metadata can come before or after the pixels.

    Pillow, which decodes the pixels to reach the chunks after them, is called only if such chunks exist.
    """
    file.seek(8)
    while len(start := file.read(_CHUNK.size)) == _CHUNK.size:
        length, name = _CHUNK.unpack(start)
        keyword = file.read(min(length, max(map(len, _TELLING)))) if name in _TEXTS else b""
        if name == b"eXIf" or keyword.startswith(_TELLING):
            file.seek(0)
            image = PngImagePlugin.PngImageFile(file, path)
            if "exif" not in image.info:
                image.load()  # reads the chunks after the pixels
            return orientation_of(image)
        if name == b"IEND":
            break
        file.seek(length + 4 - len(keyword), 1)
    return 1
