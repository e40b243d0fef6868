"""Windows of images: their positions, and the reassembly of pictures, in which a pixel is the mean of its windows.

Pictures are reassembled line by line, so that memory holds only a band of them besides the windows. Running means are
kept rather than sums: where windows agree, the mean is their value to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import index as as_index
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..errors import RequestError
from ..units import MIB, format_shape, parse_bytes

BAND = 4 * MIB  # bytes of lines that are finished together, about
COPIES = 4  # copies of the patches in memory: the patches themselves, and intermediate arrays


@dataclass(frozen=True)
class Windows:
    """Windows of an image, row by row.

    Pixels at the far edges, where no whole window fits, are in no window.

    Attributes
    ----------
    image : tuple of int
        Shape of an image.
    size, step : tuple of int
        Sides of a window along its first axes, and steps from one to the next; further axes stay inside.
    """

    image: tuple[int, ...]
    size: tuple[int, ...]
    step: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a window."""
        return (*self.size, *self.image[len(self.size) :])

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of windows along each axis that is cut."""
        sides = zip(self.image, self.size, self.step, strict=False)
        return tuple((length - side) // step + 1 for length, side, step in sides)

    @property
    def per_image(self) -> int:
        """Number of windows of an image."""
        return math.prod(self.grid)

    @property
    def line_values(self) -> int:
        """Number of values in a line: those of an image at one index of its first axis."""
        return math.prod(self.image[1:])

    @property
    def band_rows(self) -> int:
        """Number of rows of windows whose lines are finished together."""
        return min(self.grid[0], max(1, BAND // (8 * self.line_values * self.step[0])))

    @property
    def band_lines(self) -> int:
        """Number of lines that are finished together, except for the last band."""
        return self.band_rows * self.step[0]

    @property
    def open_lines(self) -> int:
        """Number of lines that later windows can still reach."""
        return max(self.band_lines, (self.band_rows - 1) * self.step[0] + self.size[0])

    @property
    def open_bytes(self) -> int:
        """Bytes in memory during reassembly: means and counts of the open lines, and the finished lines."""
        last = self.image[0] - (self.grid[0] - self.band_rows) * self.step[0]
        return (8 + 4) * (2 * self.open_lines + max(last, 0)) * self.line_values


def size_and_step(patches: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sides of a window and the steps between windows from the option `patches` of `open_collection`."""
    options = patches if isinstance(patches, Mapping) else {"size": patches}
    if not {"size"} <= set(options) <= {"size", "step"}:
        raise RequestError(f"patches {patches!r} must have a size and may have a step; give such as 16 or (16, 16).")
    size = _sides(options["size"], patches, 2)
    step = size if options.get("step") is None else _sides(options["step"], patches, len(size))
    if len(step) != len(size):
        raise RequestError(f"patches has {len(size)} sides and {len(step)} steps; give one step a side.")
    return size, step


def _sides(size: Any, patches: Any, count: int) -> tuple[int, ...]:
    try:
        sides = tuple(map(as_index, size)) if isinstance(size, Sequence | np.ndarray) else (as_index(size),) * count
    except TypeError:
        sides = ()
    if not sides or min(sides) < 1:
        raise RequestError(f"patches {patches!r} are not whole numbers from 1; give such as 16 or (16, 16).")
    return sides


class Lines(NamedTuple):
    """Finished lines of a picture: number of the image, first line, and float64 values (lines, ...)."""

    image: int
    start: int
    values: Array


class Mosaic:
    """Reassembly of images from windows that arrive in order."""

    def __init__(self, windows: Windows, state: Mapping[str, Array] | None = None) -> None:
        self._windows = windows
        shape = (windows.open_lines, *windows.image[1:])
        self._mean = np.zeros(shape) if state is None else np.array(state["mean"])
        self._count = np.zeros(shape, np.int32) if state is None else np.array(state["count"])

    def state(self) -> dict[str, Array]:
        """Return the means and counts of the lines that later windows can still reach."""
        return {"mean": self._mean, "count": self._count}

    def add(self, start: int, values: Array) -> Iterator[Lines]:
        """Add windows, numbered from `start` on through all images; yield lines as they are finished."""
        windows = self._windows
        inner = windows.per_image // windows.grid[0]
        values = values.reshape(len(values), *windows.shape)
        done = 0
        while done < len(values):
            row, first = divmod(start + done, inner)
            count = min(inner - first, len(values) - done)
            image, row = divmod(row, windows.grid[0])
            self._put(row, first, values[done : done + count])
            done += count
            ends = first + count == inner
            if ends and row == windows.grid[0] - 1:
                yield self._finished(image, row)
            elif ends and (row + 1) % windows.band_rows == 0:
                yield self._band(image, row)

    def _put(self, row: int, first: int, values: Array) -> None:
        """Add windows of one row, whose flattened indices along the other axes begin at `first`."""
        windows = self._windows
        top = (row % windows.band_rows) * windows.step[0]
        mean, count = (array[top : top + windows.size[0]] for array in (self._mean, self._count))
        places = np.unravel_index(np.arange(first, first + len(values)), windows.grid[1:] or (1,))
        starts = [place * step for place, step in zip(places, windows.step[1:], strict=False)]
        pixels = np.moveaxis(values, 1, 0)  # (height, windows, ...)
        # One pixel of all windows at a time: windows of a row overlap, but one pixel of each lies at a distinct place,
        # so that assignment by index adds every window.
        for pixel in product(*(range(side) for side in windows.size[1:])):
            across = tuple(begin + offset for begin, offset in zip(starts, pixel, strict=True))
            at = (slice(None), *(across or (None,)))
            inside: tuple[Any, ...] = (slice(None), slice(None), *pixel)
            new = pixels[inside]
            present = ~np.isnan(new) if new.dtype.kind == "f" else np.ones(new.shape, bool)
            count[at] += present
            before = mean[at]
            with np.errstate(invalid="ignore"):
                # An infinite mean stays, unless it meets the opposite infinity: then the mean is NaN.
                moves = present & (np.isfinite(before) | (new == -before))
                mean[at] = before + np.where(moves, new - before, 0) / np.maximum(count[at], 1)

    def _band(self, image: int, row: int) -> Lines:
        """Return the lines that no later window reaches, and move the others up."""
        windows = self._windows
        done = windows.band_lines
        values = self._means(done)
        for array in (self._mean, self._count):
            array[: len(array) - done] = array[done:].copy()
            array[len(array) - done :] = 0
        return Lines(image, (row + 1 - windows.band_rows) * windows.step[0], values)

    def _finished(self, image: int, row: int) -> Lines:
        """Return all remaining lines of an image, with NaN where there is no window."""
        windows = self._windows
        start = row // windows.band_rows * windows.band_lines
        lines = windows.image[0] - start
        values = np.full((lines, *windows.image[1:]), np.nan)
        means = self._means(min(lines, windows.open_lines))
        values[: len(means)] = means
        self._mean[:], self._count[:] = 0, 0
        return Lines(image, start, values)

    def _means(self, lines: int) -> Array:
        return np.where(self._count[:lines] > 0, self._mean[:lines], np.nan)


def from_patches(
    patches: Any, shape: Sequence[int], size: Any, step: Any = None, *, out: Any = None, memory: int | str = "64 MiB"
) -> Any:
    """Reassemble a picture from its patches, each pixel the mean of the patches that contain it.

    The inverse of cutting with ``open_collection(..., patches={"size": size, "step": step})``: exact to the last bit
    where patches agree.

    Parameters
    ----------
    patches : array of shape (n, *patch) or (n, p)
        Patches of one image or of several in order, row by row: numpy, dask or anything that can be sliced; one run of
        them is in memory at a time. NaN leaves a pixel to the other patches.
    shape : sequence of int
        Shape of the image: (height, width), with a last axis of colours, or of as many axes as a patch has sides.
    size, step : int or sequence of int
        Sides of a patch, and steps between patches, by default the size.
    out : array, optional
        Array that receives the picture by assignment to slices, such as a Zarr array or `numpy.memmap`, for a picture
        larger than memory.
    memory : int or str, default="64 MiB"
        Approximate bytes of the patches in memory at a time; a dask array is read by its chunks.

    Returns
    -------
    ndarray of float64, shape (*shape) or (images, *shape), or `out`
        The picture or pictures; a single image has no axis of images. Pixels that no patch covers are NaN.

    Raises
    ------
    RequestError
        If they are not patches of whole images of this shape, or `out` does not hold these.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> patches = np.arange(12.0).reshape(3, 2, 2)
    >>> streampca.from_patches(patches, (2, 4), size=2, step=(2, 1))
    array([[ 0. ,  2.5,  6.5,  9. ],
           [ 2. ,  4.5,  8.5, 11. ]])
    """
    windows = _windows(shape, *size_and_step({"size": size, "step": step}))
    patches = patches if getattr(patches, "shape", ()) else np.atleast_1d(patches)
    if math.isnan(patches.shape[0]):
        raise RequestError("patches are of an unknown number; call dask's compute_chunk_sizes() first.")
    count, rest = divmod(len(patches), windows.per_image)
    values = math.prod(windows.shape)
    if rest or not count or math.prod(patches.shape[1:]) != values:
        raise RequestError(
            f"patches of shape {format_shape(patches.shape)} do not cover whole images of "
            f"{format_shape(windows.image)}; give {windows.per_image} for each image, of {values} values."
        )
    whole = ((count,) if count > 1 else ()) + windows.image
    if out is None:
        out = np.empty(whole)
    elif tuple(out.shape) != whole:
        raise RequestError(f"out has shape {format_shape(out.shape)}; give one of {format_shape(whole)}.")
    mosaic = Mosaic(windows)
    for start, stop in _runs(patches, max(1, parse_bytes(memory) // (COPIES * 8 * values))):
        for lines in mosaic.add(start, np.asarray(patches[start:stop])):
            place: tuple[Any, ...] = (slice(lines.start, lines.start + len(lines.values)),)
            out[(lines.image, *place) if count > 1 else place] = lines.values
    return out


def _runs(patches: Any, most: int) -> Iterator[tuple[int, int]]:
    """Return ranges of patches to read at once: dask's own chunks, as parts of one would compute it repeatedly."""
    chunks = getattr(patches, "chunks", None)
    lengths = chunks[0] if chunks and isinstance(chunks[0], tuple) else ()
    stops = np.cumsum(lengths).tolist() if lengths else [*range(most, len(patches), most), len(patches)]
    return zip([0, *stops[:-1]], stops, strict=True)


def _windows(shape: Sequence[int], size: tuple[int, ...], step: tuple[int, ...]) -> Windows:
    try:
        image = tuple(map(as_index, shape))
    except TypeError:
        raise RequestError(f"shape {shape!r} is not that of an image; give its sides, such as (480, 640).") from None
    if len(image) not in (len(size), len(size) + 1) or any(a < b for a, b in zip(image, size, strict=False)):
        raise RequestError(
            f"patches of {format_shape(size)} are of no image of {format_shape(image)}; give an image's shape, with "
            "one axis of colours at most beside those of a patch."
        )
    return Windows(image, size, step)
