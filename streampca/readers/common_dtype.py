"""The dtype in which sources are joined, and the conversion of values to a dtype.

Byte order never matters. Numbers of one kind (signed, unsigned, floating) are joined in the widest of their dtypes,
which holds them exactly. Kinds are not joined unless the caller says in which dtype, as their scales can differ: black
and white may be 0 and 255 in one file, 0 and 65535 or 0.0 and 1.0 in another. So uint8 is a kind of its own. A
conversion that was asked for rounds to floating dtypes as numpy's ``astype`` does, and refuses other changes of values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..errors import SourceError

Dtype = np.dtype[Any]

_PIECE = 64 * 1024  # values converted at a time
# Bytes of masks and rounded numbers of a piece.
WORKSPACE = 12 * _PIECE


def number_kind(dtype: Dtype) -> str:
    """Return the kind of numbers that are joined: "uint8", or numpy's letter."""
    return "uint8" if dtype == np.uint8 else dtype.kind


def common_dtype(first: Dtype, second: Dtype) -> Dtype | None:
    """Return the dtype in which numbers of two dtypes are joined; None if they are of two kinds."""
    if first == second:
        return first
    return np.promote_types(first, second) if number_kind(first) == number_kind(second) else None


def dtype_remedy(first: Dtype, second: Dtype) -> str:
    """Return the remedy for two dtypes that are not joined, with one that holds the numbers of both."""
    name = np.promote_types(first, second).name
    return f"give --dtype {name} (dtype={name!r}) if all have one scale"


class ImageDtype(NamedTuple):
    """Dtype that images of one source are read in.

    Attributes
    ----------
    dtype : numpy.dtype
        Dtype of the values, in native byte order.
    asked : bool
        Whether the caller gave it, so that images of all kinds are converted.
    itemsize : int
        Most bytes of a value as decoded, for which memory is planned.
    converts : bool
        Whether images of another dtype are known or may come, for which memory is planned.
    """

    dtype: Dtype
    asked: bool
    itemsize: int
    converts: bool

    @classmethod
    def of(cls, dtypes: Iterable[Dtype], asked: str | None) -> Self:
        """Return the dtype of images of one kind, or the one that was asked for."""
        known = {dtype.newbyteorder("=") for dtype in dtypes}
        dtype = reduce(np.promote_types, known) if asked is None else np.dtype(asked)
        is_asked, itemsize = asked is not None, max(each.itemsize for each in {*known, dtype})
        return cls(dtype, is_asked, itemsize, is_asked or known != {dtype})

    def decoded_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the largest number of bytes of a decoded image."""
        return math.prod(shape) * self.itemsize

    def converted_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of the converted copy of an image, and of converting it."""
        return math.prod(shape) * self.dtype.itemsize + WORKSPACE if self.converts else 0

    def accepts(self, dtype: Dtype) -> bool:
        """Return whether images of a dtype are read."""
        joined = self.asked or common_dtype(dtype.newbyteorder("="), self.dtype) == self.dtype
        return joined and dtype.itemsize <= self.itemsize

    def converted(self, pixels: Array, name: str) -> Array:
        """Return pixels in the dtype; `name` is the image's in messages."""
        if pixels.dtype == self.dtype:
            return pixels
        out = np.empty(pixels.shape, self.dtype)
        convert(np.ascontiguousarray(pixels), out, lambda _: name)
        return out


def convert(values: Array, out: Array, name_of: Callable[[int], str]) -> None:
    """Convert values into `out`; both are C-contiguous, with entries along axis 0 that `name_of` names by number.

    Raises
    ------
    SourceError
        If the dtype of `out` is of whole numbers and a value is not one, or a value is beyond the dtype's range.
    """
    if values.dtype.newbyteorder("=") == out.dtype or np.can_cast(values.dtype, out.dtype, "safe"):
        out[...] = values
        return
    source, target = values.reshape(-1), out.reshape(-1)
    for start in range(0, len(source), _PIECE):
        piece = source[start : start + _PIECE]
        with np.errstate(over="ignore", invalid="ignore"):
            target[start : start + len(piece)] = piece
            is_lost = _is_lost(piece, target[start : start + len(piece)])
        if is_lost.any():
            at = start + int(is_lost.argmax())
            remedy = np.promote_types(values.dtype, out.dtype).name
            raise SourceError(
                f"{name_of(at * len(values) // len(source))} has the value {source[at]}, which {out.dtype.name} does "
                f"not hold; give --dtype {remedy} (dtype={remedy!r})."
            )


def _is_lost(values: Array, converted: Array) -> npt.NDArray[np.bool_]:
    """Return where a conversion changed a value other than by rounding it to a floating dtype."""
    if converted.dtype.kind == "f":
        return np.isinf(converted) & np.isfinite(values)
    limits = np.iinfo(converted.dtype)
    if values.dtype.kind != "f":
        return (values < limits.min) | (values > limits.max)
    # The largest whole number of 64 bits is no float64, and the number after it is.
    lowest, end = np.float64(limits.min), np.float64(limits.max // 2 + 1) * 2
    is_held: npt.NDArray[np.bool_] = (values >= lowest) & (values < end) & (values == np.floor(values))
    return ~is_held
