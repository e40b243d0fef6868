"""`Patches`: windows of images as samples, cut while they are read, without whole images in memory.

Windows are read by bands: the image rows of a row of windows are consecutive among the flattened features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...arrays import Array
from ...errors import RequestError
from ...planning.blocks import Span, block_rows, blocks_of
from ...storage.coordinate import Coordinate
from ...storage.pixel_sizes import holds_channels
from ...units import MIB, format_shape
from ..collection import Collection, State, digest
from ..coordinates import MOST_VALUES
from ..storage_record import Chunks, Storage
from ..stored.layout import boxes_of, lengths
from ..windows import Windows, size_and_step

# Bytes of the base read at once, at least one row of windows. A chunk of up to the second size is read whole: in parts
# it would be decoded once for each part.
_PIECE = 8 * MIB
_LARGEST = 64 * MIB
# Lengths of a last axis without a name that can be colours: grey, grey with alpha, RGB, RGBA.
_COLOURS = (1, 2, 3, 4)


class Patches(Collection):
    """Windows of every image of a collection, image by image and row by row.

    Pixels at the far edges, where no whole window fits, are in no window.
    """

    def __init__(self, base: Collection, patches: Any) -> None:
        self.base = base
        size, step = size_and_step(patches)
        _check_axes(base, size)
        image = base.sample_shape
        if any(length < side for length, side in zip(image, size, strict=False)):
            raise RequestError(
                f"patches of {format_shape(size)} do not fit the images of {base.source}, which are "
                f"{format_shape(image)}; give at most {format_shape(image[: len(size)])}."
            )
        self.windows = Windows(image, size, step)
        self.size, self.step, self.grid, self.per_image = size, step, self.windows.grid, self.windows.per_image
        self.source, self.dtype, self.axes = base.source, base.dtype, base.axes
        self.skipped, self.reading = base.skipped, base.reading
        self.shape = (base.n_samples * self.per_image, *self.windows.shape)
        self.labels = None if base.labels is None else np.repeat(base.labels, self.per_image)
        images, bands = self._at_once()  # windows cut from one read of the base, with all features
        self.storage = Storage(
            Chunks(images * bands * math.prod(self.grid[1:]), self.n_features),
            base.storage.decode_bytes + images * self._band_rows(bands) * self._line_bytes(),
            encoded=base.storage.encoded,
        )

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read the bands that contain these windows and cut the windows out; see `Collection.read`."""
        features = features or slice(0, self.n_features)
        out = np.empty((rows.stop - rows.start, features.stop - features.start), self.dtype)
        if out.size:
            inner = math.prod(self.grid[1:])
            for images, bands in self._pieces(rows.start // inner, -(-rows.stop // inner)):
                first = (images.start * self.grid[0] + bands.start) * inner
                cut = self._windows(images, bands)
                start, stop = max(rows.start, first), min(rows.stop, first + math.prod(cut.shape[: 1 + len(self.grid)]))
                self._copy(cut, slice(start - first, stop - first), features, out[start - rows.start :])
        return out

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """Yield images and rows of windows to read at once, for rows of windows numbered through all images."""
        most_images, most_bands = self._at_once()
        for images, bands in boxes_of(start, stop, (self.base.n_samples, self.grid[0])):
            for span in blocks_of(Span(images.start, images.stop), most_images):
                for band in blocks_of(Span(bands.start, bands.stop), most_bands):
                    yield slice(*span), slice(*band)

    def _windows(self, images: slice, bands: slice) -> Array:
        """Return a view of the windows of `bands`, (images, *grid, *window), whose grid has only these rows."""
        first, sides = bands.start * self.step[0], len(self.size)
        height = self._band_rows(bands.stop - bands.start)
        line = self.base.n_features // self.base.sample_shape[0]
        block = self.base.read(images, slice(first * line, (first + height) * line))
        block = block.reshape(len(block), height, *self.base.sample_shape[1:])
        axes = tuple(range(1, 1 + sides))
        every = np.lib.stride_tricks.sliding_window_view(block, self.size, axes)
        stepped = every[(slice(None), *(slice(None, None, step) for step in self.step))]
        return np.moveaxis(stepped, range(1 + sides, block.ndim), range(1 + 2 * sides, block.ndim + sides))

    def _copy(self, windows: Array, numbers: slice, features: slice, out: Array) -> None:
        """Copy windows, numbered in C order, into `out`, box by box."""
        grid, window = windows.shape[: 1 + len(self.grid)], windows.shape[1 + len(self.grid) :]
        done = 0
        for box in boxes_of(numbers.start, numbers.stop, grid):
            count, column = math.prod(lengths(box)), 0
            for inside in boxes_of(features.start, features.stop, window):
                width = math.prod(lengths(inside))
                piece = windows[(*box, *inside)]
                out[done : done + count, column : column + width].reshape(piece.shape)[...] = piece
                column += width
            done += count

    def _at_once(self) -> tuple[int, int]:
        """Return how many images and rows of windows to read at once: several small images, or a part of one."""
        samples, features = self.base.chunks
        chunk = samples * features * self.dtype.itemsize
        piece = max(_PIECE, chunk if chunk <= _LARGEST else 0)
        if self.base.row_bytes <= piece:
            return min(self.base.n_samples, block_rows(self.base.row_bytes, samples, piece)), self.grid[0]
        fit = (piece // self._line_bytes() - self.size[0]) // self.step[0] + 1
        return 1, max(1, min(self.grid[0], fit))

    def _band_rows(self, bands: int) -> int:
        return (bands - 1) * self.step[0] + self.size[0]

    def _line_bytes(self) -> int:
        """Bytes of an image's values at one place of its first axis."""
        return self.base.row_bytes // self.base.sample_shape[0]

    def paths(self) -> list[str]:
        """Return the paths of the base."""
        return [*self.beside, *self.base.paths()]

    def where(self, index: int) -> str:
        """Name the image and the window in it: ``"a.tif, rows 16:32, columns 0:16"``."""
        image, window = divmod(index, self.per_image)
        names = ("rows", "columns") if len(self.size) == 2 else self.axes or [f"axis {at}" for at in range(9)]
        places = zip(names, np.unravel_index(window, self.grid), self.step, self.size, strict=False)
        ranges = [f"{name} {int(at) * step}:{int(at) * step + side}" for name, at, step, side in places]
        where = self.base.where(image)
        if where.startswith("sample "):  # samples are windows here
            where = where.replace("sample", "image", 1)
        return f"{where}, {', '.join(ranges)}"

    def named(self, index: int) -> str:
        """Name the window, and its number."""
        return f"{self.where(index)} (sample {index})"

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return the origin of each window: its ``image``, if there are several, and its start along the cut axes."""
        if self.n_samples > MOST_VALUES:
            return {}
        counted = {"image": (self.base.n_samples, 1)} if self.base.n_samples > 1 else {}
        sides = ("row", "column") if len(self.size) == 2 else tuple(f"start_{at}" for at in range(len(self.size)))
        counted |= {name: (count, step) for name, count, step in zip(sides, self.grid, self.step, strict=True)}
        starts = np.indices([count for count, _ in counted.values()], dtype=np.int64).reshape(len(counted), -1)
        steps = [step for _, step in counted.values()]
        return {name: Coordinate(start * step) for name, start, step in zip(counted, starts, steps, strict=True)}

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the images, combined with the windows."""
        seen = repr((self.windows.image, self.size, self.step))
        return [
            State(first * self.per_image, what, digest(state, seen)) for first, what, state in self.base.states(now=now)
        ]


def _check_axes(base: Collection, size: tuple[int, ...]) -> None:
    if base.mixed:
        raise RequestError(
            f"{base.source} holds images of several sizes, which cannot be cut into windows alike; leave patches out, "
            "or give images of one size."
        )
    image = base.sample_shape
    if len(image) == len(size):
        return
    if len(image) == len(size) + 1 and (holds_channels(base.axes[-1]) if base.axes else image[-1] in _COLOURS):
        return
    axes = f" ({', '.join(base.axes)})" if base.axes else ""
    raise RequestError(
        f"patches has {len(size)} sides and the images of {base.source} are {format_shape(image)}{axes}; give a side "
        "for every axis but one of colours at the end, or name an image's axes with sample_axes."
    )
