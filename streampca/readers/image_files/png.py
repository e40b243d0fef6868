"""PNG files of plain pixels, decoded by libpng in one call that lets other threads run.

For 96 x 96 pixels, Pillow takes 1.7 times as long, much of it in Python, where threads wait for each other. Files with
a palette, transparency, frames or interlacing are left to Pillow. The format is described in
https://www.w3.org/TR/png-3/.
"""

from __future__ import annotations

import io
import struct
from typing import IO

import imagecodecs
import numpy as np

from ...arrays import Array
from .opened_image import OpenedImage, check_size, check_stored
from .orientation import png_orientation
from .pillow import open_bitmap

_HEADER = struct.Struct(">8x4x4sIIBBBBB4x")  # after the signature and a length: IHDR, and its checksum
_AT_ONCE = 2**16  # largest file in bytes that is read whole
_CHUNK = struct.Struct(">I4s")
_CHANNELS: dict[int, tuple[int, ...]] = {0: (), 2: (3,), 4: (2,), 6: (4,)}  # by colour type
# Chunks before the pixels that do not affect their values.
_IDLE = frozenset((b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"tIME", b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"eXIf"))


def open_png(file: IO[bytes], path: str) -> OpenedImage:
    """Open a PNG file, which stays open until it is decoded."""
    start = file.read(_AT_ONCE)
    if len(start) < _AT_ONCE:
        file = io.BytesIO(start)  # fewer system calls than seeking from chunk to chunk, and then reading all
    file.seek(0)
    plain = _plain_picture(file, path)
    orientation = png_orientation(file, path)
    file.seek(0)
    return (open_bitmap(file, path) if plain is None else plain)._replace(orientation=orientation)


def _plain_picture(file: IO[bytes], path: str) -> OpenedImage | None:
    """Return the picture if size and depth alone determine its pixels, else None."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    name, width, height, depth, colours, *methods = _HEADER.unpack(header)
    if name != b"IHDR" or depth not in (8, 16) or colours not in _CHANNELS or any(methods) or not width * height:
        return None
    while (name := _next_chunk(file)) != b"IDAT":
        if name not in _IDLE:
            return None
    shape, dtype = (height, width, *_CHANNELS[colours]), np.dtype(f"u{depth // 8}")
    check_size(path, shape, dtype)
    check_stored(file, path, shape, dtype)
    return OpenedImage(shape, dtype, lambda: _decoded(file, path))


def _next_chunk(file: IO[bytes]) -> bytes:
    """Return the name of the next chunk, and skip it if it does not affect pixels; empty at the end of the file."""
    start = file.read(_CHUNK.size)
    if len(start) < _CHUNK.size:
        return b""
    length, name = _CHUNK.unpack(start)
    if name in _IDLE:
        file.seek(length + 4, 1)
    return bytes(name)


def _decoded(file: IO[bytes], path: str) -> Array:
    file.seek(0)
    try:
        return np.asarray(imagecodecs.png_decode(file.read()))
    except (RuntimeError, ValueError):  # Pillow reads some files that libpng rejects, and reports the others
        file.seek(0)
        return open_bitmap(file, path).load()
