"""Decoding of whole chunks of gzip HDF5 outside HDF5's lock: on several cores, and by libdeflate.

HDF5 decodes one chunk at a time in one process. Here it only returns the stored bytes; shuffling, deflating and the
checksum are undone by imagecodecs and numpy, which let other threads run meanwhile. With chunks of 16 x 64 x 64 uint16,
HDF5, one thread and two threads took 0.045, 0.019 and 0.011 s for 16 MiB, shuffled; 0.101, 0.042 and 0.023 s, not
shuffled.

The filters are those of https://support.hdfgroup.org/documentation/hdf5/latest/_f_i_l_t_e_r.html.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import h5py
import imagecodecs
import numpy as np

from ..arrays import Array
from ..errors import SourceError
from ..units import MIB, format_bytes
from .hdf5_content import holds_plain_numbers
from .stored.layout import Box

# imagecodecs accepts any buffer, but its annotations name few types.
_codecs: Any = imagecodecs
_DEFLATE, _SHUFFLE, _FLETCHER32 = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
_OURS = frozenset((_DEFLATE, _SHUFFLE, _FLETCHER32))
_CHECKSUM = 4  # bytes, after the bytes that it covers
# Smallest chunk in bytes that is decoded here: HDF5 decodes several smaller ones in the time Python takes for one.
_LEAST = 8192
# Largest ratio of deflate (https://zlib.net/zlib_tech.html); growth that is not checked; bytes inflated at a time.
_MOST_DEFLATED, _HARMLESS, _AT_ONCE = 1032, 8 * MIB, 2**16


@dataclass(frozen=True)
class ChunkDecoder:
    """Decoder that undoes the filters of chunks.

    Attributes
    ----------
    shape : tuple of int
        Shape of a chunk.
    dtype : numpy.dtype
        Dtype of its values, in the byte order of the file.
    filters : tuple of int
        HDF5's numbers of the filters, in the order of writing.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    filters: tuple[int, ...]

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk's values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def held_bytes(self) -> int:
        """Most bytes that one thread holds: a chunk before and after a filter, as no filter lengthens it."""
        return 2 * (self.chunk_bytes + _CHECKSUM)

    def read(self, dataset: Any, at: tuple[int, ...]) -> Array | None:
        """Read the whole chunk whose first corner is at `at`.

        Returns
        -------
        ndarray or None
            None for a chunk that was never written, is damaged, or disagrees with the dataset's filters: HDF5 then
            reads or reports it.
        """
        try:
            skipped, stored = dataset.id.read_direct_chunk(at)
            held = [stored]
            del stored  # so that `decoded` can free it once it is inflated
            return self.decoded(held, skipped)
        except (ValueError, RuntimeError, OSError):  # the codecs' errors are RuntimeErrors
            self._check_size(dataset, at)
            return None

    def _check_size(self, dataset: Any, at: tuple[int, ...]) -> None:
        """Refuse a chunk that inflates to more than its values.

        HDF5 would inflate all of it, up to 1032 times its stored bytes.
        """
        if self.filters[-1] != _DEFLATE:
            return  # a checksum at the end, which HDF5 checks itself, or shuffled bytes
        with contextlib.suppress(RuntimeError, OSError, zlib.error):
            skipped, stored = dataset.id.read_direct_chunk(at)
            inflated = b"" if skipped else zlib.decompressobj().decompress(stored, self.chunk_bytes + _CHECKSUM + 1)
            if len(inflated) > self.chunk_bytes + _CHECKSUM:
                raise too_large(dataset, at, self.chunk_bytes)

    def decoded(self, stored: list[bytes], skipped: int) -> Array:
        """Undo the filters of one chunk, which is removed from the list; bits of `skipped` mark filters not applied."""
        data = np.frombuffer(stored.pop(), np.uint8)
        for position, number in reversed(list(enumerate(self.filters))):
            if skipped >> position & 1:
                continue
            if number == _FLETCHER32:
                data = _checked(data)
            elif number == _DEFLATE:
                inflated = np.empty(self.chunk_bytes + _CHECKSUM, np.uint8)
                data = inflated[: len(_codecs.deflate_decode(data, out=inflated))]
            else:
                data = _unshuffled(data, self.dtype.itemsize)
        if data.size != self.chunk_bytes:
            raise ValueError(f"{data.size} bytes are not a chunk of {self.chunk_bytes}")
        return data.view(self.dtype).reshape(self.shape)


class ChunkSizes:
    """Check of the chunks that HDF5 decodes: HDF5 itself reads chunks of any size, and inflates them to any size.

    Parameters
    ----------
    dataset : h5py.Dataset
        A dataset in chunks.
    """

    def __init__(self, dataset: Any) -> None:
        plist, self._shape = dataset.id.get_create_plist(), tuple(dataset.chunks)
        self._itemsize = dataset.dtype.itemsize
        self._values: int = math.prod(self._shape) * self._itemsize
        self._filters = tuple(plist.get_filter(position)[0] for position in range(plist.get_nfilters()))
        self._checked: set[tuple[int, ...]] = set()

    def check(self, dataset: Any, box: Box) -> None:
        """Refuse chunks of a box that are stored as, or inflate to, many more bytes than their values have.

        A chunk is inflated here only if it could grow by more than `_HARMLESS` bytes, and only once.

        Raises
        ------
        SourceError
            Names the first such chunk.
        """
        edges = zip(box, self._shape, strict=True)
        for at in product(*(range(part.start // side * side, part.stop, side) for part, side in edges)):
            if at in self._checked:
                continue
            size = dataset.id.get_chunk_info_by_coord(at).size or 0
            could_inflate = _DEFLATE in self._filters and _MOST_DEFLATED * size > self._values + _HARMLESS
            if size > 2 * self._values + _HARMLESS or (could_inflate and self._inflates_to_more(dataset, at)):
                raise too_large(dataset, at, self._values)
            if could_inflate:
                self._checked.add(at)

    def _inflates_to_more(self, dataset: Any, at: tuple[int, ...]) -> bool:
        skipped, stored = dataset.id.read_direct_chunk(at)
        position = self._filters.index(_DEFLATE)
        if int(skipped) >> position & 1:
            return False
        for number in reversed(self._filters[position + 1 :]):
            if number == _SHUFFLE:
                stored = _unshuffled(np.frombuffer(stored, np.uint8), self._itemsize).tobytes()
            elif number != _FLETCHER32:  # its sum at the end is ignored by the inflation
                return False
        return _inflated_size(stored, 2 * self._values + _HARMLESS) > 2 * self._values + _HARMLESS


def too_large(dataset: Any, at: tuple[int, ...], values: int) -> SourceError:
    """Return the error for a chunk that takes more bytes than its values."""
    return SourceError(
        f"the chunk at {at} of {dataset.file.filename} takes {format_bytes(values)} and inflates to more, or is stored "
        "as more; write the file again."
    )


def _inflated_size(stored: bytes, most: int) -> int:
    """Return the inflated size of deflated bytes, or a number above `most`; holds `_AT_ONCE` bytes at a time."""
    decoder, size = zlib.decompressobj(), 0
    try:
        for start in range(0, len(stored), _AT_ONCE):
            rest = stored[start : start + _AT_ONCE]
            while rest and size <= most and not decoder.eof:
                size += len(decoder.decompress(rest, _AT_ONCE))
                rest = decoder.unconsumed_tail
    except zlib.error:
        pass  # HDF5 reports it when it decodes the chunk
    return size


def chunk_decoder(dataset: Any, dtype: np.dtype[Any]) -> ChunkDecoder | None:
    """Return the decoder for the chunks of a dataset; None where HDF5 has to decode them, or is as fast."""
    plist = dataset.id.get_create_plist()
    if plist.get_layout() != h5py.h5d.CHUNKED or not holds_plain_numbers(dataset, dtype):
        return None
    filters = [plist.get_filter(position) for position in range(plist.get_nfilters())]
    numbers = tuple(number for number, *_ in filters)
    if _DEFLATE not in numbers or len(set(numbers)) < len(numbers) or not _OURS.issuperset(numbers):
        return None
    if any(number == _SHUFFLE and options != (dtype.itemsize,) for number, _, options, _ in filters):
        return None
    # Some builds of imagecodecs lack codecs.
    if not _codecs.DEFLATE.available or (_FLETCHER32 in numbers and not _codecs.H5CHECKSUM.available):
        return None
    decoder = ChunkDecoder(tuple(dataset.chunks), dtype, numbers)
    return decoder if decoder.chunk_bytes >= _LEAST else None


def whole_chunks(box: Box, chunks: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[tuple[Box, bool]]:
    """Cut a box of an array of `shape` into slabs of partial chunks and one box of whole chunks.

    Yields
    ------
    part : tuple of slice
        Box in the array; no chunk is in two parts.
    whole : bool
        Whether the part begins at the edge of a chunk, and ends at one or at the array's end, along every axis.
    """
    inner = []
    for part, side, length in zip(box, chunks, shape, strict=True):
        first = -(-part.start // side) * side
        inner.append(slice(first, part.stop if part.stop == length else part.stop // side * side))
    if any(part.stop <= part.start for part in inner):
        yield box, False
        return
    for axis, (part, within) in enumerate(zip(box, inner, strict=True)):
        for slab in (slice(part.start, within.start), slice(within.stop, part.stop)):
            if slab.stop > slab.start:
                yield (*inner[:axis], slab, *box[axis + 1 :]), False
    yield tuple(inner), True


def _checked(data: Array) -> Array:
    """Return the bytes without the checksum at their end; refuse a wrong one."""
    values = data[:-_CHECKSUM]
    if _codecs.h5checksum_fletcher32(values) != int(data[-_CHECKSUM:].view("<u4")[0]):
        raise ValueError("the checksum is wrong")
    return values


def _unshuffled(data: Array, size: int) -> Array:
    """Return shuffled bytes in the order of values; the bytes of an incomplete last value are not shuffled."""
    count = data.size // size
    values = np.empty_like(data)
    # Each byte of a value as a field of its own: twice as fast as transposing.
    fields = values[: count * size].view([(str(byte), np.uint8) for byte in range(size)])
    for byte, plane in enumerate(data[: count * size].reshape(size, count)):
        fields[str(byte)] = plane
    values[count * size :] = data[count * size :]
    return values
