"""Images of another size: resampled by a linear filter, or means of squares of pixels.

Each function maps sample by sample, and to the same bits however many there are.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..readers.collection import Array
from .dtypes import float_of


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


def resampled(values: Array, length: int) -> Array:
    """Values at the centres of `length` cells of axis 0 that cover as much as those of `values`, read linearly."""
    if len(values) == 1:
        return np.repeat(values, length, axis=0)
    centres = (np.arange(length) + 0.5) * len(values) / length - 0.5
    before = np.clip(np.floor(centres).astype(int), 0, len(values) - 2)  # the ends go on as they were
    share = (centres - before).reshape(-1, *(1,) * (values.ndim - 1))
    between: Array = values[before] * (1 - share) + values[before + 1] * share
    return between
