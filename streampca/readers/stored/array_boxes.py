"""Boxes of N-d arrays that cover a range of flattened samples or features, and their pieces, cut at chunk edges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Box = tuple[slice, ...]


def boxes_of(start: int, stop: int, shape: tuple[int, ...]) -> Iterator[Box]:
    """Yield disjoint boxes in order that cover flat indices `start` to `stop` of a C-ordered grid."""
    if len(shape) < 2:
        if stop > start:
            yield (slice(start, stop),)[: len(shape)]
        return
    inner = math.prod(shape[1:])
    while start < stop:
        first, rest = divmod(start, inner)
        if rest == 0 and stop - start >= inner:
            last = stop // inner
            yield (slice(first, last), *(slice(0, length) for length in shape[1:]))
            start = last * inner
        else:
            end = min(stop, (first + 1) * inner)
            for box in boxes_of(rest, end - first * inner, shape[1:]):
                yield (slice(first, first + 1), *box)
            start = end


def covering_box(start: int, stop: int, shape: tuple[int, ...]) -> tuple[Box, slice]:
    """Return the smallest box that covers flat indices `start` to `stop` of a C-ordered grid, and their range in it.

    One box replaces the exact three or more of `boxes_of`, each of which would decode the same storage chunks again.
    """
    box: list[slice] = []
    for axis in range(len(shape)):
        inner = math.prod(shape[axis + 1 :])
        first, last = start // inner, -(-stop // inner)
        box.append(slice(first, last))
        start, stop = start - first * inner, stop - first * inner
        if last - first > 1:
            break
    box += [slice(0, length) for length in shape[len(box) :]]
    return tuple(box), slice(start, stop)


def lengths(box: Box) -> tuple[int, ...]:
    """Return the lengths of a box's sides."""
    return tuple(part.stop - part.start for part in box)


def pieces_of(box: Box, chunks: Sequence[int], most: int) -> Iterator[tuple[Box, Box]]:
    """Halve a box until each piece touches at most `most` values of whole chunks, or lies in one chunk.

    Yields
    ------
    piece, inside : tuple of slice
        The piece in the array, and in the box. Pieces are ordered along the axis that is cut first; no chunk is in two
        pieces.
    """
    yield from _halved(box, tuple(slice(0, length) for length in lengths(box)), chunks, most)


def largest_piece(shape: Sequence[int], chunks: Sequence[int], most: int) -> int:
    """Return the largest number of values in a piece of `pieces_of`, in an array of `shape`."""
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
    """Return axis and chunk edge at which to cut a box; None if it touches at most `most` values, or has no edge."""
    edge, touched = None, 1
    for axis, (part, chunk) in enumerate(zip(box, chunks, strict=True)):
        first, last = part.start // chunk, -(-part.stop // chunk)
        touched *= (last - first) * chunk
        if last - first > 1 and edge is None:
            edge = axis, (first + last) // 2 * chunk
    return edge if touched > most else None
