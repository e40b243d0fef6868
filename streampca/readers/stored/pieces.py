"""Cuts a box at chunk edges into pieces of bounded size, so that what decodes or converts it needs little memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .axes import Box, lengths


def pieces_of(box: Box, chunks: Sequence[int], most: int) -> Iterator[tuple[Box, Box]]:
    """Halve a box until none of its pieces touches more than `most` values of whole chunks, or all lie in one chunk.

    Parameters
    ----------
    box : tuple of slice
        Where it lies in the array.
    chunks : sequence of int
        Lengths of a chunk's sides.
    most : int
        Values, counted over whole chunks.

    Yields
    ------
    piece, inside : tuple of slice
        Where the piece lies in the array, and where in the box. In C order of their first corners along the axis cut
        first; no chunk is in two pieces.
    """
    yield from _halved(box, tuple(slice(0, length) for length in lengths(box)), chunks, most)


def largest_piece(shape: Sequence[int], chunks: Sequence[int], most: int) -> int:
    """Values that a piece of `pieces_of` has at most, in an array of `shape`."""
    chunk = math.prod(min(side, length) for side, length in zip(chunks, shape, strict=True))
    return max(chunk, min(most, math.prod(shape)))


def _halved(box: Box, inside: Box, chunks: Sequence[int], most: int) -> Iterator[tuple[Box, Box]]:
    edge = _edge(box, chunks, most)
    if edge is None:
        yield box, inside
        return
    axis, at = edge
    middle = inside[axis].start + at - box[axis].start
    for here, there in (
        (slice(box[axis].start, at), slice(inside[axis].start, middle)),
        (slice(at, box[axis].stop), slice(middle, inside[axis].stop)),
    ):
        yield from _halved(
            (*box[:axis], here, *box[axis + 1 :]), (*inside[:axis], there, *inside[axis + 1 :]), chunks, most
        )


def _edge(box: Box, chunks: Sequence[int], most: int) -> tuple[int, int] | None:
    """Axis and chunk edge to cut a box at that touches more values than `most`, None where there is no need or way."""
    found, touched = None, 1
    for axis, (part, chunk) in enumerate(zip(box, chunks, strict=True)):
        first, last = part.start // chunk, -(-part.stop // chunk)
        touched *= (last - first) * chunk
        if last - first > 1 and found is None:
            found = axis, (first + last) // 2 * chunk
    return found if touched > most else None
