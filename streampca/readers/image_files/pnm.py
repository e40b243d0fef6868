"""Netpbm images: PBM, PGM and PPM, plain and raw (https://netpbm.sourceforge.net/doc/).

Pillow scales values by their declared maximum, so that 12-bit pixels come out as other numbers; these stay as stored.
"""

from __future__ import annotations

import math
import os
import re
from typing import IO, Any, NamedTuple

import numpy as np

from ..collection import Array

# Pillow took 7.7 s and 77 MiB for 2000 x 2000 pixels of 12 bits (0.01 s, 23 MiB here) and cuts 16-bit colour to 8 bits.
# Headers are three numbers and comments; a longer one than this is something else.
_LONGEST_HEADER = 2**16
_NUMBER = re.compile(rb"(?:\s|#[^\r\n]*[\r\n])+([0-9]{1,9})(?=\s)")


class Pnm(NamedTuple):
    """Header of a Netpbm file; `kind` is the digit of its magic number, `offset` the byte of the first pixel."""

    kind: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def stored_bytes(self) -> int:
        """Bytes the pixels take, at least: plain ones are a digit and a blank each, but plain bits need no blanks."""
        height, width = self.shape[:2]
        if self.kind in (1, 4):
            return height * (width if self.kind == 1 else -(-width // 8))
        return math.prod(self.shape) * (2 if self.kind < 4 else self.dtype.itemsize) - (self.kind < 4)


def read_header(file: IO[bytes]) -> Pnm:
    """Read the header; raises ValueError where there is none, or the file is too short for what it announces."""
    start = file.read(_LONGEST_HEADER)
    kind = int(start[1:2])
    numbers, at = [], 2
    for _ in range(2 if kind in (1, 4) else 3):
        found = _NUMBER.match(start, at)
        if not found:
            raise ValueError("the header ends before its width, height and largest value")
        numbers.append(int(found[1]))
        at = found.end()
    width, height, most = (*numbers, 1)[:3]
    if not width or not height or not 1 <= most <= 65535:
        raise ValueError(f"the header says width {width}, height {height} and largest value {most}")
    shape = (height, width, 3) if kind in (3, 6) else (height, width)
    header = Pnm(kind, shape, np.dtype("u1" if most < 256 else "u2"), at + 1)
    size = file.seek(0, os.SEEK_END) - header.offset  # not of a descriptor: files behind URLs have none
    if size < header.stored_bytes:
        raise ValueError(f"the file holds {max(size, 0)} bytes of pixels and {header.stored_bytes} are announced")
    return header


def read_pixels(file: IO[bytes], header: Pnm) -> Array:
    """Read the pixels, shape ``header.shape``; raises ValueError where there are too few.

    Bits come as 0 and 255, black being 0.
    """
    file.seek(header.offset)
    if header.kind < 4:
        return _plain(file.read(), header)
    pixels = file.read(header.stored_bytes)
    if header.kind == 4:
        height, width = header.shape
        bits = np.unpackbits(np.frombuffer(pixels, "u1").reshape(height, -1), axis=1)[:, :width]
        return (1 - bits) * np.uint8(255)
    stored = header.dtype.newbyteorder(">")
    return np.frombuffer(pixels, stored).reshape(header.shape).astype(header.dtype, copy=False)


def _plain(text: bytes, header: Pnm) -> Array:
    text = re.sub(rb"#[^\r\n]*", b"", text)
    count = math.prod(header.shape)
    if header.kind == 1:
        digits = np.frombuffer(b"".join(text.split())[:count], "u1") - ord("0")
        values = (1 - digits) * np.uint8(255)
    else:
        values = np.array(text.split(None, count)[:count]).astype(np.int64).astype(header.dtype)
    return values.reshape(header.shape)
