"""JPEG 2000 files, decoded by imagecodecs, which keeps values of up to 16 bits as stored.

Pillow scales 12-bit grey to 16 bits and cuts deeper colours to 8. The header is read here, from the codestream's SIZ
marker (ISO/IEC 15444-1, A.5.1): width, height, and the depth of every component.
"""

from __future__ import annotations

import struct
from typing import IO

import imagecodecs
import numpy as np

from ...arrays import Array
from ...errors import SourceError
from .opened_image import OpenedImage, check_size, check_stored

# First bytes of files: boxes, or the codestream alone.
JPEG_2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_SIZ = b"\xff\x4f\xff\x51"
_SIZES = struct.Struct(">4xIIII16xH")  # after the marker: length, capabilities, sizes, offsets, tiles, components
# Bytes in which the codestream must begin, after boxes of metadata such as colour profiles.
_LONGEST_HEADER = 2**22


def open_jpeg_2000(file: IO[bytes], path: str) -> OpenedImage:
    """Open a JPEG 2000 file, which stays open until it is decoded."""
    start = file.read(_LONGEST_HEADER)
    at = start.find(_SIZ)
    if at < 0:
        raise SourceError(f"{path} is a JPEG 2000 file without an image; it is damaged, copy it again.")
    at += len(_SIZ)
    right, bottom, left, top, channels = _SIZES.unpack_from(start, at)
    components = [start[at + _SIZES.size + 3 * channel :][:3] for channel in range(channels)]
    depths = {(component[0] & 0x7F) + 1 for component in components}
    if len(set(components)) > 1 or max(depths) > 16 or channels > 4 or components[0][1:] != b"\1\1":
        raise SourceError(
            f"{path} has channels of several sizes or depths, of more than 16 bits, or more than four; save it as PNG "
            "or TIFF."
        )
    kind = "i" if components[0][0] & 0x80 else "u"
    shape = (bottom - top, right - left, *((channels,) if channels > 1 else ()))
    dtype = np.dtype(f"{kind}{1 if max(depths) <= 8 else 2}")
    check_size(path, shape, dtype)
    check_stored(file, path, shape, dtype)

    def load() -> Array:
        file.seek(0)
        return np.asarray(imagecodecs.jpeg2k_decode(file.read()))

    return OpenedImage(shape, dtype, load)
