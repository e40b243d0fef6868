"""Tiles of a sample: its pixels cut into boxes, each with its range of features (pixels inside the mask).

Every box is a range of the flattened sample, so that boxes on disk are ranges of features in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..planning.blocks import Span
from ..planning.boxes import Box, flat_range, tiles_of

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Tile:
    """Box of pixels.

    Attributes
    ----------
    box : tuple of slice
        Position of the box in the sample.
    features : Span
        Features inside the box.
    inside : ndarray of bool or None
        Flattened pixels of the box that are features; all if None.
    """

    box: Box
    features: Span
    inside: Mask | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the box."""
        return tuple(part.stop - part.start for part in self.box)

    def flat(self, pixels: Array) -> Array:
        """Return the features of pixels: (m, *shape) to (m, features)."""
        rows = pixels.reshape(len(pixels), math.prod(self.shape))
        return rows if self.inside is None else rows.compress(self.inside, axis=1)

    def filled(self, rows: Array) -> Array:
        """Return the pixels of features: (m, features) to (m, *shape), NaN outside the mask."""
        if self.inside is not None:
            pixels = np.full((len(rows), len(self.inside)), np.nan, rows.dtype)
            pixels[:, self.inside] = rows
            rows = pixels
        return rows.reshape(len(rows), *self.shape)


class Tiling:
    """Sample of a given shape, cut into boxes.

    Parameters
    ----------
    shape : tuple of int
        Shape of the sample.
    box : tuple of int
        Lengths of a box: ones, a run, whole axes; the last box of an axis can be shorter.
    mask : ndarray of bool or None
        Pixels that are features; all if None.
    """

    def __init__(self, shape: tuple[int, ...], box: tuple[int, ...], mask: Mask | None) -> None:
        self.shape, self.box = shape, box
        self._mask = None if mask is None else np.ascontiguousarray(mask).reshape(-1)
        self._boxes = list(tiles_of(shape, box))
        pixels = (flat_range(box, shape) for box in self._boxes)
        counts = [
            stop - start if self._mask is None else int(np.count_nonzero(self._mask[start:stop]))
            for start, stop in pixels
        ]
        self._edges = np.cumsum([0, *counts])  # features before each box

    @property
    def n_features(self) -> int:
        """Number of pixels inside the mask, p."""
        return int(self._edges[-1])

    def ranges(self, most: int) -> list[Span]:
        """Cut the features into ranges of whole boxes, each of at most `most` features or a single box."""
        ranges, start, stop = [], 0, 0
        for edge in self._edges[1:].tolist():
            if edge - start > most and stop > start:
                ranges.append(Span(start, stop))
                start = stop
            stop = edge
        return [*ranges, Span(start, stop)] if stop > start else ranges

    def tiles(self) -> Iterator[Tile]:
        """Yield all boxes in order, including those outside the mask."""
        for index in range(len(self._boxes)):
            yield self._tile(index)

    def within(self, features: Span) -> Iterator[Tile]:
        """Yield the boxes that hold features of a range, in order."""
        # The last box that starts at or before the range; boxes without features are skipped below.
        first = int(np.searchsorted(self._edges, features.start, "right")) - 1
        for index in range(first, len(self._boxes)):
            start, stop = int(self._edges[index]), int(self._edges[index + 1])
            if start >= features.stop:
                break
            if stop > start:
                yield self._tile(index)

    def _tile(self, index: int) -> Tile:
        box, features = self._boxes[index], Span(int(self._edges[index]), int(self._edges[index + 1]))
        inside = None if self._mask is None else self._mask[slice(*flat_range(box, self.shape))]
        return Tile(box, features, inside)
