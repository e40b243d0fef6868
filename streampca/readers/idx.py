"""IDX files, plain or gzipped: the format of MNIST and its relatives (http://yann.lecun.com/exdb/mnist/)."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from functools import partial
from typing import IO, Any, NamedTuple, Unpack, cast

import numpy as np

from ..errors import SourceError
from ..units import format_shape
from . import remote
from .collection import Array, Collection, refuse_key
from .stored.array import ArrayCollection
from .stored.files import ByteSource, StreamFile, opened, positioned, size_of
from .stored.flat import FlatArray
from .stored.layout import SampleAxes

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# Deflate packs at most 1032 bytes into one (https://zlib.net/zlib_tech.html); a header asking for more is wrong.
_MOST_DEFLATED = 1032


class IdxHeader(NamedTuple):
    """Header of an IDX file; `offset` is the byte of its first value."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of header and values."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


def open_idx(source: str, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open an IDX file of images."""
    refuse_key(key, source)
    array = _array(source)
    if len(array.shape) == 1:
        raise SourceError(
            f"{source} holds {array.shape[0]} labels, one number each, not images; give the images file as the source "
            "and this one as labels."
        )
    return ArrayCollection(array, source=source, **axes)


def read_idx(path: str) -> Array:
    """Read a whole IDX file of any shape, such as a file of labels."""
    array = _array(path)
    out = np.empty(array.shape, array.dtype)
    if out.size:
        array.read_into(tuple(slice(0, length) for length in array.shape), out)
    return out


def is_idx(path: str) -> bool:
    """Return whether a file begins as IDX does and its size agrees with its header, or it is called so."""
    if not remote.is_url(path) and not os.path.isfile(path):
        return False
    name = os.path.basename(path).lower()
    called = any(sign in name for sign in (".idx", "-idx", "idx1-", "idx3-"))
    try:
        header = _header(path)
    except (SourceError, OSError, EOFError, zlib.error):
        return called and not name.endswith((".npy", ".npz"))
    return called or _is_gzip(path) or header.nbytes == size_of(path)


def _array(path: str) -> FlatArray:
    try:
        header, size = _header(path), size_of(path)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path} cannot be read as IDX ({error}); it is damaged, copy it again.") from error
    zipped = _is_gzip(path)
    if header.nbytes > size * (_MOST_DEFLATED if zipped else 1):
        raise SourceError(
            f"{path} has {size} bytes{', gzipped,' if zipped else ''} and its header ({format_shape(header.shape)} "
            f"{header.dtype.name}) announces {header.nbytes}; it was cut short, copy it again."
        )
    source: ByteSource = StreamFile(path, partial(_unzipped, path), header.nbytes) if zipped else positioned(path)
    return FlatArray(source, header.shape, header.dtype, offset=header.offset)


def _header(path: str) -> IdxHeader:
    with _unzipped(path) if _is_gzip(path) else opened(path) as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= 8:
            raise SourceError(
                f"{path} is not an IDX file: it begins with bytes {magic.hex(' ') or '(none)'}, not 00 00, a type and "
                "a number of axes; check that it was downloaded whole."
            )
        lengths = file.read(4 * magic[3])
        if len(lengths) < 4 * magic[3]:
            raise SourceError(f"{path} ends inside its IDX header; it was cut short, copy it again.")
    shape = tuple(int(length) for length in np.frombuffer(lengths, ">u4"))
    return IdxHeader(shape, np.dtype(_TYPES[magic[2]]), 4 + len(lengths))


def _is_gzip(path: str) -> bool:
    with opened(path) as file:
        return file.read(2) == b"\x1f\x8b"


def _unzipped(path: str) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(opened(path) if remote.is_url(path) else path, "rb"))
