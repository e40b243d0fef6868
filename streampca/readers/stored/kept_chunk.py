"""`KeptChunk`: a decoded chunk, kept for successive reads of its parts."""

from __future__ import annotations

from collections.abc import Callable

from ...arrays import Array
from ...execution.decoded_chunks import thread_cache
from .layout import Box


class KeptChunk:
    """Cache of the large chunk of an array that was decoded last, while other parts of it can still be needed.

    A fold reads blocks in order. A chunk larger than a block is decoded for the first block and kept for the others:
    each reading thread keeps one, until its last entry is read, another is decoded, or the fold ends. This needs no
    more memory than decoding does anyway. Outside folds nothing is kept.
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
            Box of the part in the array.
        chunk_shape, shape : tuple of int
            Shapes of the array's chunks, and of the array.
        out : ndarray
            Array of the part's shape, of any strides.
        decode : callable
            ``decode(chunk)`` returns the values of a whole chunk, cut at the end of the array.
        """
        chunk, cache = chunk_of(part, chunk_shape, shape), thread_cache()
        decoded: tuple[Box, Array] | None = None if cache is None else cache.get(self)
        if decoded is None or decoded[0] != chunk:
            del decoded
            self.drop()  # the budget has memory for one chunk
            decoded = chunk, decode(chunk)
        inside = tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(part, chunk, strict=True))
        out[...] = decoded[1][inside]
        is_last = all(inner.stop == outer.stop for inner, outer in zip(part, chunk, strict=True))
        if is_last:
            self.drop()
        elif cache is not None:
            cache[self] = decoded

    def drop(self) -> None:
        """Release the chunk that this thread keeps."""
        cache = thread_cache()
        if cache is not None:
            cache.pop(self, None)


def chunk_of(part: Box, chunk_shape: tuple[int, ...], shape: tuple[int, ...]) -> Box:
    """Return the chunk that contains the first corner of a part, cut at the end of an array of `shape`."""
    starts = (piece.start // side * side for piece, side in zip(part, chunk_shape, strict=True))
    return tuple(
        slice(start, min(start + side, length)) for start, side, length in zip(starts, chunk_shape, shape, strict=True)
    )
