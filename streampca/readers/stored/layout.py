"""Layout of an N-d array as samples: axes flattened into samples, axes that make one, the selection, and boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index as as_index
from typing import TypedDict

from ...errors import MissingEntryError, RepeatedAxisError, RequestError, nearest
from ...storage.pixel_sizes import is_colour
from ..collection import COLOURS
from ..storage_record import Chunks
from .axis_roles import DefaultAxes

Box = tuple[slice, ...]
Axis = int | str
Selection = Mapping[Axis, int | slice]


class SampleAxes(TypedDict, total=False):
    """Options of every reader: the axes that make one sample, and the selected part of each; see `open_collection`."""

    sample_axes: Sequence[Axis] | None
    select: Selection | None


@dataclass(frozen=True)
class Layout:
    """An N-d array seen as samples.

    Attributes
    ----------
    index : tuple of int or slice
        Selection along every axis of the array; an integer drops its axis.
    outer, inner : tuple of int
        Axes flattened into samples, in order, none if the array is a single image; axes that make one sample, in the
        sample's own order.
    by_position : bool
        Whether the axes of one sample were chosen by position alone.
    outer_shape, inner_shape : tuple of int
        Lengths of the axes flattened into samples; shape of one sample.
    order : tuple of int
        All axes of the array: first those of samples, then those of features, then the dropped ones.
    places : tuple of int
        Place of each axis of the array in that order.
    """

    index: tuple[int | slice, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    by_position: bool = False
    outer_shape: tuple[int, ...] = field(init=False)
    inner_shape: tuple[int, ...] = field(init=False)
    order: tuple[int, ...] = field(init=False)
    places: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        kept = (*self.outer, *self.inner)
        dropped = (axis for axis in range(len(self.index)) if axis not in kept)
        ranges = {axis: item for axis, item in enumerate(self.index) if isinstance(item, slice)}
        for name, axes in (("outer_shape", self.outer), ("inner_shape", self.inner)):
            object.__setattr__(self, name, tuple(ranges[axis].stop - ranges[axis].start for axis in axes))
        object.__setattr__(self, "order", (*kept, *dropped))
        object.__setattr__(self, "places", tuple(self.order.index(axis) for axis in range(len(self.index))))

    @property
    def kept(self) -> list[int]:
        """Axes of the array that are not dropped, in the array's order."""
        return sorted((*self.outer, *self.inner))

    def key(self, box: Box) -> Box:
        """Return the array's box for a box over (outer, inner) axes; it has length 1 along dropped axes."""
        key = [item if isinstance(item, slice) else slice(item, item + 1) for item in self.index]
        for axis, part in zip((*self.outer, *self.inner), box, strict=True):
            key[axis] = slice(key[axis].start + part.start, key[axis].start + part.stop)
        return tuple(key)

    def place(self, sample: int) -> dict[int, int]:
        """Return the entry of flattened sample `sample` along each outer axis of the array."""
        entries = {}
        for axis, length in zip(reversed(self.outer), reversed(self.outer_shape), strict=True):
            sample, entry = divmod(sample, length)
            entries[axis] = self.taken(axis).start + entry
        return dict(sorted(entries.items()))

    def chunks(self, sizes: Sequence[int]) -> Chunks:
        """Return storage chunks of `sizes` (one per axis) as runs of flattened samples and features."""
        outer = [sizes[axis] for axis in self.outer]
        inner = [sizes[axis] for axis in self.inner]
        return Chunks(_flat_chunk(outer, self.outer_shape), _flat_chunk(inner, self.inner_shape))

    def taken(self, axis: int) -> slice:
        """Return the selected range of an outer or inner axis."""
        item = self.index[axis]
        assert isinstance(item, slice)  # noqa: S101 - axes dropped by an integer are neither outer nor inner
        return item


def layout_of(
    shape: tuple[int, ...],
    *,
    source: str,
    dims: Sequence[str] | None,
    default: Callable[[Sequence[int]], DefaultAxes],
    sample_axes: Sequence[Axis] | None = None,
    select: Selection | None = None,
) -> Layout:
    """Lay out an array of `shape` with axes `dims` by the caller's options; see `open_collection`.

    If the caller names no axes of one sample, `default` chooses among the axes that are not dropped.
    """
    index = _selection(shape, dims, select or {}, source)
    axes = [axis for axis, item in enumerate(index) if isinstance(item, slice)]
    if sample_axes is None:
        inner, by_position = default(axes)
    else:
        inner, by_position = tuple(_requested_axes(sample_axes, axes, len(shape), dims, source)), False
    return Layout(tuple(index), tuple(axis for axis in axes if axis not in inner), inner, by_position)


def image_layout(layout: Layout, dims: Sequence[str], sides: int) -> Layout:
    """Lay out an array whose images will be cut into windows with `sides` axes, if the caller named no axes.

    An array with just these axes, or these and colours, is a single image; named colours are moved to the end.
    """
    axes = layout.kept
    lengths_of = dict(zip((*layout.outer, *layout.inner), (*layout.outer_shape, *layout.inner_shape), strict=True))
    coloured = not dims and len(axes) == sides + 1 and lengths_of[axes[-1]] in COLOURS
    if len(axes) == sides or coloured:
        return replace(layout, outer=(), inner=tuple(axes), by_position=False)
    return replace(layout, inner=tuple(sorted(layout.inner, key=lambda axis: is_colour(dims[axis]) if dims else 0)))


def _flat_chunk(sizes: list[int], shape: tuple[int, ...]) -> int:
    """Return the flat length over which reading a C-ordered grid of boxes of `sizes` decodes each box once."""
    for axis, (size, length) in enumerate(zip(sizes, shape, strict=True)):
        if min(size, length) > 1 or axis == len(shape) - 1:
            return int(min(size, length) * math.prod(shape[axis + 1 :]))
    return 1


def _selection(shape: tuple[int, ...], dims: Sequence[str] | None, select: Selection, source: str) -> list[int | slice]:
    index: list[int | slice] = [slice(0, length) for length in shape]
    seen: dict[int, Axis] = {}
    for axis, item in select.items():
        number = _axis_number(axis, len(shape), dims, source)
        if number in seen:
            raise RepeatedAxisError(
                f"select names axis {axis!r} of {source} twice, also as {seen[number]!r}; name it once.",
                axes=(seen[number], axis),
            )
        seen[number] = axis
        index[number] = _selected_part(item, shape[number], f"select of axis {axis!r} of {source}")
    return index


def _selected_part(item: int | slice, length: int, subject: str) -> int | slice:
    if isinstance(item, slice):
        start, stop, step = item.indices(length)
        if step != 1 or stop <= start:
            raise MissingEntryError(
                f"{subject} takes {item}, which is not a range with step 1 inside its {length} entries; give start "
                "and stop, and a step as samples=slice(0, None, 2)."
            )
        return slice(start, stop)
    try:
        entry = as_index(item)
    except TypeError:
        raise RequestError(f"{subject} takes {item!r}; give one whole number or a slice.") from None
    if not -length <= entry < length:
        raise MissingEntryError(f"{subject} takes entry {entry}; it has {length} entries, numbered 0 to {length - 1}.")
    return entry % length


def _requested_axes(
    sample_axes: Sequence[Axis], available: list[int], ndim: int, dims: Sequence[str] | None, source: str
) -> list[int]:
    sample_axes = (sample_axes,) if isinstance(sample_axes, (str, int)) else tuple(sample_axes)
    inner = [_axis_number(axis, ndim, dims, source) for axis in sample_axes]
    if len(set(inner)) < len(inner) or not inner:
        raise RequestError(f"sample_axes {sample_axes} must name at least one axis of {source}, each once.")
    for axis, number in zip(sample_axes, inner, strict=True):
        if number not in available:
            raise RequestError(f"axis {axis!r} of {source} is in sample_axes and in select; name it in one of them.")
    return inner


def _axis_number(axis: Axis, ndim: int, dims: Sequence[str] | None, source: str) -> int:
    if dims is not None and axis in dims:
        return list(dims).index(str(axis))
    if isinstance(axis, str) and not axis.removeprefix("-").isdecimal():
        hint = f"its axes are {', '.join(dims)}" if dims else f"its axes have no names; number them 0 to {ndim - 1}"
        raise RequestError(f"{source} has no axis {axis!r}; {hint}.{nearest(axis, list(dims or ()))}")
    try:
        number = int(axis) if isinstance(axis, str) else as_index(axis)
    except TypeError:
        raise RequestError(f"{source} has no axis {axis!r}; give a name or a whole number.") from None
    if not -ndim <= number < ndim:
        raise RequestError(f"{source} has no axis {number}; its axes are numbered 0 to {ndim - 1}.")
    return number % ndim


# -- boxes that cover a range of flattened samples or features, and their pieces


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
