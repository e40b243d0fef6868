"""IDX files, plain or gzipped: the format of MNIST and its relatives (http://yann.lecun.com/exdb/mnist/)."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Unpack

import numpy as np

from ..arrays import Array
from ..errors import SourceError
from ..storage import remote
from .collection import Collection, refuse_key
from .stored.array import ArrayCollection
from .stored.files import is_gzip, opened, size_of, unzipped
from .stored.flat import FlatArray, FlatHeader
from .stored.layout import SampleAxes

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def open_idx(source: str, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open an IDX file of images."""
    refuse_key(key, source)
    array = _array(source)
    if len(array.shape) == 1:
        raise SourceError(
            f"{source} holds {array.shape[0]} labels, one number each, not images; give the images file as the source "
            "and this one as labels."
        )
    array.counts_first = True  # items come first in the format
    return ArrayCollection(array, source=source, **axes)


def read_idx(path: str, check: Callable[[FlatHeader], None] | None = None) -> Array:
    """Read a whole IDX file of any shape, such as a file of labels; `check` is first called with the header."""
    array = _array(path)
    if check is not None:
        check(FlatHeader(array.shape, array.dtype, 0))
    return array.read_all()


def is_idx(path: str) -> bool:
    """Return whether a file has an IDX header that agrees with its size, or a name like ``idx3-ubyte``."""
    if not remote.is_url(path) and not os.path.isfile(path):
        return False
    name = os.path.basename(path).lower()
    called = any(sign in name for sign in (".idx", "-idx", "idx1-", "idx3-"))
    try:
        header = _header(path)
    except (SourceError, OSError, EOFError, zlib.error):
        return called and not name.endswith((".npy", ".npz"))
    return called or is_gzip(path) or header.nbytes == size_of(path)


def _array(path: str) -> FlatArray:
    try:
        return _header(path).array_of_file(path)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path} cannot be read as IDX ({error}); it is damaged, copy it again.") from error


def _header(path: str) -> FlatHeader:
    with unzipped(path) if is_gzip(path) else opened(path) as file:
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
    return FlatHeader(shape, np.dtype(_TYPES[magic[2]]), 4 + len(lengths))
