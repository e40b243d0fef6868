"""Arrays stored in one run of bytes, in C or Fortran order: `.npy`, IDX and plain TIFF stacks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ... import machine
from ...arrays import Array
from ...errors import SourceError
from ...units import format_shape
from ..threads import for_each
from .array import StoredArray, page_shape
from .files import ByteSource, PlainFile, StreamFile, is_gzip, positioned, size_of, unzipped
from .layout import Box, lengths, pieces_of

# Bytes of scratch for pieces to be cut or transposed; fits the second-level cache of common processors.
_SCRATCH = 2**20
MOST_READERS = 4  # threads that read one box
_WORTH_PARTS = 32 * 2**20  # bytes of a box from which threads pay off: the read of a smaller one delays little
# Deflate packs at most 1032 bytes into one (https://zlib.net/zlib_tech.html): a header that announces more is wrong.
_MOST_DEFLATED = 1032
_STREAM_RUN = 2**16  # bytes of a stream's consecutive samples that count as one piece
# Pieces of less than a page whose starts are at most this many pages apart are read together with the gaps.
_GAP = 16


class FlatHeader(NamedTuple):
    """Shape and dtype of an array in one run of bytes; `offset` is the byte of its first value."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of header and values."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{format_shape(self.shape) or 'one value'} {self.dtype}"

    def check_length(self, size: int, label: str, *, zipped: bool = False) -> None:
        """Refuse a header that announces more values than a file of `size` bytes can hold."""
        if self.nbytes > size * (_MOST_DEFLATED if zipped else 1):
            raise SourceError(
                f"{label} has {size} bytes{', gzipped,' if zipped else ''} and its header ({self}) announces "
                f"{self.nbytes}; it was cut short, copy it again."
            )

    def array(self, source: ByteSource) -> FlatArray:
        """Return the array with this header in a source of bytes."""
        return FlatArray(source, self.shape, self.dtype, offset=self.offset, fortran=self.fortran)

    def array_of_file(self, path: str, label: str | None = None) -> FlatArray:
        """Return the array of a file with this header, gzipped or not."""
        zipped = is_gzip(path)
        self.check_length(size_of(path), label or path, zipped=zipped)
        if zipped:
            return self.array(StreamFile(path, partial(unzipped, path), self.nbytes, label))
        return self.array(positioned(path, label=label))


def reading_bytes(readers: int | None = None) -> int:
    """Return the scratch bytes of `readers` threads; by default, of the threads that read a file on disk."""
    return (1 + (min(MOST_READERS, machine.cores()) if readers is None else readers)) * _SCRATCH


class FlatArray(StoredArray):
    """An N-d array in a byte source from `offset` on, with entries of axis 0 `stride` bytes apart."""

    def __init__(
        self,
        source: ByteSource,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        offset: int = 0,
        fortran: bool = False,
        stride: int | None = None,
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._as_stored = shape[::-1] if fortran else shape
        self._readers = min(MOST_READERS, machine.cores()) if isinstance(source, PlainFile) and not fortran else 1
        self.decode_bytes = reading_bytes(self._readers) + source.held_bytes
        self.encoded = isinstance(source, StreamFile)
        self._source, self._offset, self._fortran, self._stride = source, offset, fortran, stride
        self.files = source.files
        # A stream is decoded in runs of whole samples, none of which is opened; else pages of values are read.
        values = source.page // dtype.itemsize
        if fortran:
            self.chunk_shape = (min(shape[0], max(1, values)), *(1 for _ in shape[1:]))
        else:
            together = min(shape[0], _STREAM_RUN // max(1, dtype.itemsize * math.prod(shape[1:])))
            self.chunk_shape = (max(1, together), *shape[1:]) if self.encoded else page_shape(shape, values)

    def read_into(self, box: Box, out: Array) -> None:
        """Read each contiguous run of the box at once, straight into `out` where its layout allows.

        Large boxes of plain files are read in parts by several threads: copying from the system's cache, one alone
        reached half the rate of two.
        """
        if self._fortran:
            box, out = box[::-1], out.T
        parts = self._readers
        if parts == 1 or out.nbytes < _WORTH_PARTS or len(out) < parts:
            self._fill(box, out)
            return
        edges = [len(out) * number // parts for number in range(parts + 1)]

        def part(number: int) -> None:
            start, stop = edges[number], edges[number + 1]
            self._fill((slice(box[0].start + start, box[0].start + stop), *box[1:]), out[start:stop])

        for_each(part, parts, out.nbytes // parts)

    def _fill(self, box: Box, out: Array) -> None:
        """Fill a target of any strides, by axes as stored; one that is not contiguous in pieces through scratch.

        It is read run by run; runs of less than a page that are close together are read with their gaps, then cut.
        """
        if not out.flags.c_contiguous:
            for piece, inside in pieces_of(box, (1,) * len(box), _SCRATCH // self.dtype.itemsize):
                direct = out[inside].flags.c_contiguous
                target = out[inside] if direct else np.empty(lengths(piece), self.dtype)
                self._fill(piece, target)
                if not direct:
                    out[inside] = target
            return
        shape = self._as_stored
        strides = [math.prod(shape[axis + 1 :]) * self.dtype.itemsize for axis in range(len(shape))]
        strides[0] = self._stride or strides[0]
        axis = len(shape) - 1
        while axis > 0 and lengths(box)[axis] == shape[axis] and strides[axis - 1] == strides[axis] * shape[axis]:
            axis -= 1
        whole, page = True, self._source.page
        while axis > 0 and lengths(box)[axis] * strides[axis] < page and strides[axis - 1] <= _GAP * page:
            axis, whole = axis - 1, False
        for place in product(*(range(part.start, part.stop) for part in box[:axis])):
            start = sum(entry * stride for entry, stride in zip(place, strides, strict=False))
            target = out[tuple(entry - part.start for entry, part in zip(place, box, strict=False))]
            if whole:
                self._source.pread(self._offset + start + box[axis].start * strides[axis], target)
                continue
            for part, scratch in self._pieces(box[axis], start, strides[axis], shape[axis + 1 :]):
                target[part] = scratch[(slice(None), *box[axis + 1 :])]

    def _pieces(self, part: slice, start: int, stride: int, shape: tuple[int, ...]) -> Iterator[tuple[slice, Array]]:
        """Yield ranges of the requested rows of an axis with the whole rows, as many at a time as scratch holds."""
        step, row = max(1, _SCRATCH // stride), math.prod(shape) * self.dtype.itemsize
        scratch = np.empty((min(step, part.stop - part.start), stride), np.uint8)
        for first in range(part.start, part.stop, step):
            piece = scratch[: min(step, part.stop - first)]
            filled = piece.reshape(-1)[: (len(piece) - 1) * stride + row]  # the file can end after the last row
            self._source.pread(self._offset + start + first * stride, filled)
            values = piece[:, :row].view(self.dtype).reshape(len(piece), *shape)
            yield slice(first - part.start, first - part.start + len(piece)), values
