"""Netpbm images: PBM, PGM and PPM, plain and raw (https://netpbm.sourceforge.net/doc/).

Pillow scales values by their declared maximum, so that 12-bit pixels come out as other numbers; these stay as stored.
"""

from __future__ import annotations

import math
import os
import re
from typing import IO

import numpy as np

from ...arrays import Array
from .opened_image import OpenedImage

# Pillow took 7.7 s and 77 MiB for 2000 x 2000 pixels of 12 bits (0.01 s, 23 MiB here) and cuts 16-bit colour to 8 bits.
# Longest header, which consists of three numbers and comments: a longer one is another format.
_LONGEST_HEADER = 2**16
_NUMBER = re.compile(rb"(?:\s|#[^\r\n]*[\r\n])+([0-9]{1,9})(?=\s)")


def open_pnm(file: IO[bytes]) -> OpenedImage:
    """Open a Netpbm file, which stays open until it is decoded; raise ValueError for another format or a short file.

    Bits are returned as 0 (black) and 255.
    """
    start = file.read(_LONGEST_HEADER)
    kind = int(start[1:2])
    numbers, at = [], 2
    for _ in range(2 if kind in (1, 4) else 3):
        match = _NUMBER.match(start, at)
        if not match:
            raise ValueError("the header ends before its width, height and largest value")
        numbers.append(int(match[1]))
        at = match.end()
    width, height, most = (*numbers, 1)[:3]
    if not width or not height or not 1 <= most <= 65535:
        raise ValueError(f"the header says width {width}, height {height} and largest value {most}")
    shape, dtype = (height, width, 3) if kind in (3, 6) else (height, width), np.dtype("u1" if most < 256 else "u2")
    count = math.prod(shape)
    # Plain pixels take at least a digit and a blank each, plain bits need no blanks, and raw bits fill bytes by rows.
    stored = {1: count, 4: height * -(-width // 8)}.get(kind, 2 * count - 1 if kind < 4 else count * dtype.itemsize)
    size = file.seek(0, os.SEEK_END) - at - 1  # by seeking, as files behind URLs have no descriptor
    if size < stored:
        raise ValueError(f"the file holds {max(size, 0)} bytes of pixels and {stored} are announced")

    def load() -> Array:
        file.seek(at + 1)
        if kind < 4:
            return _plain(file.read(), kind, count, most).astype(dtype).reshape(shape)
        pixels = file.read(stored)
        if kind == 4:
            bits = np.unpackbits(np.frombuffer(pixels, "u1").reshape(height, -1), axis=1)[:, :width]
            return (1 - bits) * np.uint8(255)
        return np.frombuffer(pixels, dtype.newbyteorder(">")).reshape(shape).astype(dtype, copy=False)

    return OpenedImage(shape, dtype, load)


def _plain(text: bytes, kind: int, count: int, most: int) -> Array:
    text = re.sub(rb"#[^\r\n]*", b"", text)
    if kind == 1:
        values = np.frombuffer(b"".join(text.split())[:count], "u1").astype(np.int64) - ord("0")
    else:
        values = np.array(text.split(None, count)[:count]).astype(np.int64)
    if wrong := values[(values < 0) | (values > most)].tolist():
        raise ValueError(f"a pixel is {wrong[0]}, and the header says 0 to {most}")
    return (1 - values) * 255 if kind == 1 else values
