"""Boxes of N-d arrays: those that cover a range of flattened samples or features, and pieces cut at chunk edges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Box = tuple[slice, ...]


def boxes_of(start: int, stop: int, shape: tuple[int, ...]) -> Iterator[Box]:
    """Cover flat indices `start` to `stop` of a C-ordered grid by boxes, in order, none overlapping."""
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
    """Return the least box of whole rows of a C-ordered grid holding flat indices `start` to `stop`, and where in it.

    One box rather than the exact three or more of `boxes_of`: each would decode the same storage chunks again.
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
    """Lengths of a box's sides."""
    return tuple(part.stop - part.start for part in box)


def pieces_of(box: Box, chunks: Sequence[int], most: int) -> Iterator[tuple[Box, Box]]:
    """Halve a box until none of its pieces touches more than `most` values of whole chunks, or all lie in one chunk.

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
