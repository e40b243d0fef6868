"""The steps themselves: plain functions of a few samples, (m, *shape) to (m, *shape) or rows (m, p) to (m, p).

Each maps sample by sample, and to the same bits however many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, what Pillow and most cameras mean by grey
NORMALIZATIONS = ("mean", "norm", "ratio")

MOST_DIGITS = 2**53 - 1  # every whole number up to here is a float64

# Values summed in float64 at a time: a copy of 1 MiB, beside which a pass over the row costs more than the call.
_SUMMED = 2**17
# A mean of less than this share of the mean size of values is rounding left of zero.
_NO_MEAN = 1e-12


class SampleError(DataError):
    """A sample that cannot be prepared.

    Parameters
    ----------
    sample : int
        Its number among those given.
    problem : str
        What follows its name in a message.
    """

    def __init__(self, sample: int, problem: str) -> None:
        super().__init__(f"sample {sample} of those given {problem}")
        self.sample, self.problem = sample, problem

    def of(self, named: Callable[[int], str], start: int = 0) -> DataError:
        """Return the error with the name that a collection gives its sample, of a block that begins at `start`."""
        return DataError(f"{named(start + self.sample)} {self.problem}")


class NormalizeError(SampleError):
    """A sample that cannot be set against its mean or norm, which is 0."""


def check_digits(rows: Array, raw: np.dtype[Any]) -> None:
    """Refuse whole numbers of more digits than float64 has, which would be rounded before they are centred.

    Parameters
    ----------
    rows : ndarray of shape (m, p)
        Features: raw values, or weighted means of them.
    raw : dtype
        Of the raw values. Only integers of 64 bits are looked at.

    Raises
    ------
    SampleError
        If one is beyond 2^53 - 1.
    """
    if raw.kind not in "iu" or raw.itemsize < 8 or not rows.size:
        return
    if int(rows.min()) >= -MOST_DIGITS and int(rows.max()) <= MOST_DIGITS:
        return
    sample = int(np.argmax(((rows < -MOST_DIGITS) | (rows > MOST_DIGITS)).any(axis=1)))
    value = max((int(rows[sample].min()), int(rows[sample].max())), key=abs)
    raise SampleError(
        sample,
        f"holds {value}, and float64 holds whole numbers up to {MOST_DIGITS} (2^53 - 1) only; subtract an offset from "
        "all samples, or store them as float64 if their last digits do not matter.",
    )


def float_of(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the float that weighted values become: float32 for integers of up to 16 bits and float32, else float64."""
    return np.result_type(np.dtype(dtype), np.float32)


def greyed(samples: Array) -> Array:
    """Weigh red, green and blue of the last axis into one grey value; a fourth channel is alpha, and left out."""
    dtype = float_of(samples.dtype)
    grey: Array = np.multiply(samples[..., 0], np.float32(LUMA[0]), dtype=dtype)
    for channel in (1, 2):
        grey += np.multiply(samples[..., channel], np.float32(LUMA[channel]), dtype=dtype)
    return grey


def resized(samples: Array, shape: tuple[int, int]) -> Array:
    """Resample the first two axes of each sample to `shape`, in float32, every further axis by itself.

    By Pillow's linear filter, widened by the factor where an image shrinks. Its weights are never negative: no ringing
    beside edges for components to pick up, as by Lanczos, no value beyond the image's own; and it does well by every
    factor up and down, where plain means of whole pixels (`binned`) take one here and two there. The two-step
    ``reducing_gap`` saves less than decoding costs, and is up to 0.8 % of the range off.
    """
    from PIL import Image

    height, width = shape
    planes = samples.reshape(*samples.shape[:3], prod(samples.shape[3:]))
    out = np.empty((len(samples), height, width, planes.shape[-1]), np.float32)
    for number, channel in np.ndindex(len(samples), planes.shape[-1]):
        plane = Image.fromarray(np.ascontiguousarray(planes[number, :, :, channel], dtype=np.float32))
        out[number, :, :, channel] = np.asarray(plane.resize((width, height), Image.Resampling.BILINEAR))
    return out.reshape(len(samples), height, width, *samples.shape[3:])


def binned(samples: Array, side: int) -> Array:
    """Means of squares of the first two axes; a remainder at the far edges is dropped."""
    height, width = samples.shape[1] // side, samples.shape[2] // side
    cut = samples[:, : height * side, : width * side]
    squares = cut.reshape(len(cut), height, side, width, side, *cut.shape[3:])
    return squares.mean(axis=(2, 4), dtype=float_of(samples.dtype))  # type: ignore[no-any-return]


def normalized(rows: Array, how: str) -> tuple[Array, Float64]:
    """Set each row against its own mean or norm.

    Parameters
    ----------
    rows : ndarray of shape (m, p)
        Features.
    how : {"mean", "norm", "ratio"}
        Take the mean off; divide by the Euclidean norm; divide by the mean.

    Returns
    -------
    rows : ndarray of shape (m, p)
    numbers : ndarray of shape (m,)
        The means or norms, with which `denormalized` undoes it.

    Raises
    ------
    NormalizeError
        If there is nothing to divide by.
    """
    out, numbers = np.empty(rows.shape, float_of(rows.dtype)), np.empty(len(rows))
    step = max(1, _SUMMED // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(np.float64)  # summed without numpy's buffer, whose cuts vary
        number = np.sqrt(np.square(part).sum(axis=1)) if how == "norm" else part.sum(axis=1) / rows.shape[1]
        size = np.abs(part).sum(axis=1) / rows.shape[1]
        undefined = np.flatnonzero((np.abs(number) <= _NO_MEAN * size) & (how != "mean"))
        if undefined.size:
            what = {"norm": "has only zeros, so its norm is 0", "ratio": "has a mean of 0"}[how]
            raise NormalizeError(
                start + int(undefined[0]),
                f"{what}, and normalize {how!r} divides by it; leave the sample out, or use normalize 'mean'.",
            )
        numbers[start : start + step] = number
        out[start : start + step] = part - number[:, None] if how == "mean" else part / number[:, None]
    return out, numbers


def denormalized(rows: Array, how: str, numbers: Float64) -> Array:
    """Undo `normalized`."""
    own = numbers[:, None].astype(rows.dtype)
    undone: Array = rows + own if how == "mean" else rows * own
    return undone


def normalizing_bytes(n_features: int) -> int:
    """Bytes that `normalized` holds beside what it is given and returns."""
    return 4 * 8 * max(_SUMMED, n_features)
