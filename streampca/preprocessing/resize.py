"""Resizing of images: resampling by a linear filter, or means over squares of pixels.

Each function maps samples one by one, so that the bits of a sample do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..planning.blocks import Span, blocks_of

if TYPE_CHECKING:
    from scipy import sparse

PIECE = 2**13  # values of a sample computed with more digits at a time, or one line of its image


def resized(samples: Array, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Resample the first two axes of each sample to `shape`, in float32, every further axis by itself.

    The filter is Pillow's linear one, widened by the factor where an image shrinks. Its weights are never negative, so
    that edges do not ring, as with Lanczos, and values stay within the image's range. It works for every factor up and
    down, where means of whole pixels (`binned`) would use one pixel here and two there. The two-step ``reducing_gap``
    saves less time than decoding takes, and errs by up to 0.8 % of the range.

    Weights of a pixel add up to 1: where `dtype` is wider than float32, the mean of a plane is taken off before it is
    rounded, and added again. The rounding is measured against the same weights in float64; see `LineResampler`.
    """
    planes = samples.reshape(*samples.shape[:3], prod(samples.shape[3:]))
    out = np.empty((len(samples), *shape, planes.shape[-1]), dtype)
    for number, channel in np.ndindex(len(samples), planes.shape[-1]):
        plane = planes[number, :, :, channel]
        level = float(plane.mean(dtype=np.float64)) if dtype != np.float32 else 0.0
        level = level if isfinite(level) else 0.0  # NaN stays where it is
        out[number, :, :, channel] = _resized_by_pillow(plane, shape, level)
        if level:
            out[number, :, :, channel] += level
    return out.reshape(len(samples), *shape, *samples.shape[3:])


def _resized_by_pillow(plane: Array, shape: tuple[int, int], level: float) -> Array:
    """Resample a plane, with its level subtracted, in float32."""
    from PIL import Image

    if level:
        near = np.subtract(plane, level, out=np.empty(plane.shape, np.float32), casting="unsafe")
    else:
        near = np.ascontiguousarray(plane, dtype=np.float32)
    return np.asarray(Image.fromarray(near).resize(shape[::-1], Image.Resampling.BILINEAR))


class LineResampler(NamedTuple):
    """Weights of Pillow's linear filter in float64, applied to a few lines of images at a time.

    Attributes
    ----------
    rows, columns : sparse matrix of shape (made, given)
        Weights of the lines given in those made, and of the columns.
    """

    rows: sparse.csr_array
    columns: sparse.csr_array

    @classmethod
    def of(cls, given: tuple[int, ...], made: tuple[int, int]) -> LineResampler:
        """Return the weights between images of two sizes."""
        rows, columns = (_weights(length, own) for length, own in zip(given, made, strict=True))
        return cls(rows, columns)

    def lines(self, given: Callable[[Span], Array], made: Span, dtype: np.dtype[Any]) -> Array:
        """Resample some lines of images whose lines ``given(lines)`` returns, (m, lines, width, ...)."""
        weights = self.rows[slice(*made)]
        needed = Span(int(weights.indices.min()), int(weights.indices.max()) + 1)
        first = given(Span(needed.start, needed.start + 1))
        level = np.nan_to_num(first.mean(axis=(1, 2), dtype=np.float64), posinf=0.0, neginf=0.0)
        found = np.zeros((len(first), made.size, self.columns.shape[0], *first.shape[3:]))
        for some in blocks_of(needed, max(1, PIECE // max(1, first[0].size))):
            own, images = weights[:, slice(*some)], given(some)
            for number, *channel in np.ndindex(level.shape):
                place = (number, slice(None), slice(None), *channel)
                near = np.subtract(images[place], level[number, *channel], dtype=np.float64)
                found[place] += own @ (self.columns @ near.T).T
        made_lines: Array = np.add(found, level[:, None, None], dtype=dtype)
        return made_lines


def _weights(length: int, n_pixels: int) -> sparse.csr_array:
    """Return the weights of Pillow's linear filter from `length` to `n_pixels` pixels, (n_pixels, length)."""
    from scipy import sparse

    scale = length / n_pixels
    support = max(scale, 1.0)
    rows, columns, values = [], [], []
    for row in range(n_pixels):
        centre = (row + 0.5) * scale
        # Pixels whose centres lie within the support, with the bounds that Pillow rounds to.
        pixels = np.arange(max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), length))
        weights = np.maximum(1 - np.abs(pixels - centre + 0.5) / support, 0.0)
        rows.append(np.full(len(pixels), row))
        columns.append(pixels)
        values.append(weights / weights.sum())
    cells = tuple(np.concatenate(parts) for parts in (rows, columns))
    return sparse.csr_array((np.concatenate(values), cells), shape=(n_pixels, length))


def binned(samples: Array, side: int, dtype: np.dtype[Any]) -> Array:
    """Return the means over squares of the first two axes, in a dtype; a remainder at the far edges is dropped."""
    height, width = samples.shape[1] // side, samples.shape[2] // side
    cut = samples[:, : height * side, : width * side]
    squares = cut.reshape(len(cut), height, side, width, side, *cut.shape[3:])
    return squares.mean(axis=(2, 4), dtype=dtype)  # type: ignore[no-any-return]


def resampled(values: Array, length: int) -> Array:
    """Resample axis 0 linearly at `length` cell centres, which cover the same range as the cells of `values`."""
    if len(values) == 1:
        return np.repeat(values, length, axis=0)
    centres = (np.arange(length) + 0.5) * len(values) / length - 0.5
    before = np.clip(np.floor(centres).astype(int), 0, len(values) - 2)  # extrapolates linearly at the ends
    share = (centres - before).reshape(-1, *(1,) * (values.ndim - 1))
    between: Array = values[before] * (1 - share) + values[before + 1] * share
    return between
