"""`KeptChunk`: the decoded chunk that reads of its parts, one after another, are served from."""

from __future__ import annotations

from collections.abc import Callable

from ...execution.decoded_chunks import kept_here
from ..collection import Array
from .array_boxes import Box


class KeptChunk:
    """The large chunk of an array that was decoded last, as long as other parts of it may be asked for.

    A fold reads blocks in order. Where they are smaller than a chunk, the chunk is decoded for the first of them and
    kept for the others: each thread that reads keeps one, until its last entry was read, another is decoded, or the
    fold ends. So it takes no more than decoding takes anyway. Outside folds nothing is kept.
    """

    def read_into(
        self,
        part: Box,
        chunk_shape: tuple[int, ...],
        shape: tuple[int, ...],
        out: Array,
        decode: Callable[[Box], Array],
    ) -> None:
        """Read a part of one chunk.

        Parameters
        ----------
        part : tuple of slice
            Where it lies in the array.
        chunk_shape, shape : tuple of int
            Shapes of the array's chunks, and of the array.
        out : ndarray
            Array of the part's shape, of any strides.
        decode : callable
            ``decode(chunk)`` returns the values of a whole chunk, as far as the array reaches.
        """
        chunk, kept = chunk_of(part, chunk_shape, shape), kept_here()
        found: tuple[Box, Array] | None = None if kept is None else kept.get(self)
        if found is None or found[0] != chunk:
            del found
            self.drop()  # there is memory for one while it is decoded
            found = chunk, decode(chunk)
        out[...] = found[1][tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(part, chunk, strict=True))]
        is_last = all(inner.stop == outer.stop for inner, outer in zip(part, chunk, strict=True))
        if is_last:
            self.drop()
        elif kept is not None:
            kept[self] = found

    def drop(self) -> None:
        """Let go of what this thread keeps."""
        kept = kept_here()
        if kept is not None:
            kept.pop(self, None)


def chunk_of(part: Box, chunk_shape: tuple[int, ...], shape: tuple[int, ...]) -> Box:
    """Return the chunk that a part of an array of `shape` begins in, as far as the array reaches."""
    starts = (piece.start // side * side for piece, side in zip(part, chunk_shape, strict=True))
    return tuple(
        slice(start, min(start + side, length)) for start, side, length in zip(starts, chunk_shape, shape, strict=True)
    )
