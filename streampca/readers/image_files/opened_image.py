"""An image file as returned by the readers of formats, and the guards that they share.

Decoders respond to broken files with any error, warnings, log lines, or by allocating all memory; the guards turn all
of these into one line that names the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import numpy as np
from PIL.Image import DecompressionBombError

from ...arrays import Array
from ...errors import SourceError
from ...storage.georeference import Georeference
from ...units import MIB, format_bytes, format_shape
from ..silence_decoders import quiet
from ..stored.files import size_of

# Largest plausible ratio of compression: deflate reaches 1032 (https://zlib.net/zlib_tech.html), JPEG and LZW of an
# empty picture about as much. Small pictures are not checked.
_MOST_PACKED = 1500
_SMALL = 16 * MIB


class OpenedImage(NamedTuple):
    """An opened image file: `load` decodes it as stored, `orientation` is its tag's value, `place` its georeference."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[], Array]
    orientation: int = 1
    place: Georeference | None = None


def check_size(path: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an image before memory is taken for it if its file is too small to hold what its header claims."""
    decoded = math.prod(map(int, shape)) * dtype.itemsize
    if decoded > _SMALL and decoded > _MOST_PACKED * (stored := size_of(path)):
        raise SourceError(
            f"{path} claims {format_shape(shape)} {dtype} values ({format_bytes(decoded)}) in a file of "
            f"{format_bytes(stored)}, more than {_MOST_PACKED} times its size; it is damaged or made to exhaust "
            "memory, leave it out."
        )


def check_stored(file: IO[bytes], path: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an image before its open file is read whole if it is much longer than the values it decodes to."""
    stored, most = file.seek(0, os.SEEK_END), 2 * math.prod(map(int, shape)) * dtype.itemsize + _SMALL
    if stored > most:
        raise SourceError(
            f"{path} has {format_bytes(stored)}, and its {format_shape(shape)} {dtype} values take at most "
            f"{format_bytes(most)} as stored; it is damaged or made to exhaust memory, leave it out."
        )


@contextmanager
def decoding(path: str) -> Iterator[None]:
    """Turn any error of a decoder into one line that names the file."""
    try:
        with quiet():
            yield
    except SourceError:
        raise
    except MemoryError as error:
        raise SourceError(f"{path} needs more memory to decode than there is; leave it out.") from error
    except DecompressionBombError as error:
        raise SourceError(
            f"{path} is larger than is decoded ({error}); crop it or cut it into tiles, or leave it out."
        ) from error
    except Exception as error:  # decoders of broken files raise anything: struct.error, KeyError, ZeroDivisionError
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SourceError(
            f"{path} cannot be decoded ({reason}); it is damaged, save it again or leave it out."
        ) from error
