"""Boxes that a grid is cut into and that are ranges of it, flattened in C order: integers only.

Such a box is ones along the first axes, then a run along one axis, then whole axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

Box = tuple[slice, ...]


def box_of(width: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The largest box of a grid that is a range of it no longer than `width`: ones, a run, whole axes."""
    for axis, length in enumerate(shape):
        inner = math.prod(shape[axis + 1 :])
        if inner <= width:
            return (*(1,) * axis, min(length, width // inner), *shape[axis + 1 :])
    return (1,) * len(shape)


def union_of(width: int, box: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The largest box no longer than `width` that whole boxes of a tiling make up, or one such box where none is.

    Parameters
    ----------
    width : int
        Most values.
    box : tuple of int
        What the grid is cut into, itself a range.
    shape : tuple of int
        The grid.
    """
    union = box_of(width, shape)
    if math.prod(union) <= math.prod(box):
        return box
    axis = next((axis for axis, run in enumerate(union) if run != 1), 0)
    run = union[axis] if union[axis] == shape[axis] else union[axis] // box[axis] * box[axis]
    return (*union[:axis], run, *union[axis + 1 :])


def tiles_of(shape: tuple[int, ...], tile: tuple[int, ...]) -> Iterator[Box]:
    """Cut a grid into tiles, in C order."""
    cuts = (range(0, length, step) for length, step in zip(shape, tile, strict=True))
    for starts in product(*cuts):
        yield tuple(
            slice(start, min(start + step, length)) for start, step, length in zip(starts, tile, shape, strict=True)
        )


def flat_range(box: Box, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the range of a box in its grid, flattened: first and last, which is not included."""
    first = 0
    for part, length in zip(box, shape, strict=True):
        first = first * length + part.start
    return first, first + math.prod(part.stop - part.start for part in box)
