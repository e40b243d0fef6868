"""Zarr arrays that refuse chunks which take, stored or decoded, more bytes than the metadata allow.

A zstd frame of 64 KiB can hold 2 GiB of zeros, and a sparse file can have any length. The bytes of a chunk's values
follow from the array's metadata. A file that is much longer is not read. For formats that state the decoded size in a
header (zstd, Blosc, LZ4), the header is checked before decoding; the others (gzip, zlib, bz2, lzma) are stopped as soon
as they have written too much.
"""

from __future__ import annotations

import asyncio
import bz2
import errno
import lzma
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import imagecodecs
import numcodecs
import numpy as np
import zarr
from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray
from zarr.abc.codec import BytesBytesCodec
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.codecs import ShardingCodec, VLenBytesCodec, VLenUTF8Codec
from zarr.storage import FsspecStore, LocalStore, StorePath, WrapperStore

from ..units import MIB, format_bytes
from .disk import open_regular
from .remote import is_url
from .zarr_urls import zarr_store

SLACK = 64 * 2**10  # bytes that codecs can add to a chunk: headers, checksums, values that do not compress
FILTERED = 8  # largest factor by which the filters of format 2 lengthen values before they are compressed
TEXT = 2**10  # bytes assumed for one text; chunks of texts do not state their size
MOST_METADATA = 32 * MIB  # largest file of metadata; plates of thousands of pictures need about 10 MiB
LZMA_MEMORY = 128 * MIB  # memory of a decompressor; the highest preset needs 65 MiB
INDEX_ENTRY = 16  # bytes that the index of a shard holds for each chunk
TEXT_CODECS = frozenset(("vlen-utf8", "vlen-bytes"))
BYTE_CODECS = frozenset(("gzip", "zlib", "bz2", "lzma", "zstd", "blosc", "lz4"))
_METADATA = frozenset(("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"))
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP, _ZLIB = 31, 15  # container formats, as numbered by zlib


class LimitedStore(WrapperStore[LocalStore]):
    """Local folder that raises ValueError for files which are too long to be read whole.

    Parameters
    ----------
    store : LocalStore
        Folder.
    whole, part : int, optional
        Largest number of bytes to read of a file of chunks, and of a part of one; unlimited by default.
    """

    def __init__(self, store: LocalStore, whole: int | None = None, part: int | None = None) -> None:
        super().__init__(store)
        self._whole, self._part = whole, part

    def _with_store(self, store: LocalStore) -> Self:
        return type(self)(store, self._whole, self._part)

    def limited(self, whole: int, part: int) -> LimitedStore:
        """Return the same folder with limits on the bytes read of chunks."""
        return LimitedStore(self._store, whole, part)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        """Return the bytes of a file or of a part of it; None if it does not exist."""
        try:
            return await asyncio.to_thread(self._read, key, prototype, byte_range)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        """Return parts of files."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    def _read(self, key: str, prototype: Any, byte_range: Any) -> Any:
        """Read a file or a part of it, up to its limit, even if the reported length is wrong."""
        what, most = "a stored chunk takes", self._whole if byte_range is None else self._part
        if key.rpartition("/")[2] in _METADATA:
            what, most = "metadata take", MOST_METADATA
        try:
            file = open_regular(self._store.root / key)
        except OSError as error:
            # A path that is not a file is invalid, see `check_regular`; Zarr handles other errors.
            if error.errno != errno.EINVAL:
                raise
            raise ValueError(f"{key} cannot be read: {error.strerror}") from None
        with file:
            size = os.fstat(file.fileno()).st_size
            match byte_range:
                case None:
                    start, count = 0, size
                case RangeByteRequest():
                    start, count = byte_range.start, byte_range.end - byte_range.start
                case SuffixByteRequest():
                    # Zarr reads the index of a shard from its end.
                    start, count = max(0, size - byte_range.suffix), byte_range.suffix
                case _:
                    start, count = byte_range.offset, max(0, size - byte_range.offset)
            if most is not None and count > most:
                raise ValueError(f"{what} at most {format_bytes(most)}, and {key} has {format_bytes(count)}")
            file.seek(start)
            return prototype.buffer.from_bytes(file.read(count))


def limited_store(path: str, *, sealed: bool = False) -> LimitedStore | FsspecStore:
    """Return a local folder as a read-only store with metadata of limited size, or the store behind a URL.

    Of `sealed` data at a URL every chunk was written: one that is missing is an error.
    """
    return zarr_store(path, sealed=sealed) if is_url(path) else LimitedStore(LocalStore(path, read_only=True))


def bounded(array: Any) -> Any:
    """Return a `zarr.Array` that raises ValueError for chunks that take too many bytes, stored or decoded."""
    metadata, place = array.metadata, array.store_path
    chunk = _values_bytes(array.chunks, array.dtype)
    if metadata.zarr_format == 2:
        most = chunk * (FILTERED if metadata.filters else 1)
        changed = replace(
            metadata,
            compressor=_bounded_by_numcodecs(metadata.compressor, most, array),
            filters=metadata.filters and tuple(_bounded_by_numcodecs(codec, most, array) for codec in metadata.filters),
        )
    else:
        changed = replace(metadata, codecs=tuple(_bounded_codecs(metadata.codecs)))
    if isinstance(place.store, LimitedStore):
        shard = _values_bytes(array.shards or array.chunks, array.dtype)
        # Zarr reads the index of a shard as a part of the file too.
        index = INDEX_ENTRY * (shard // max(1, chunk)) if array.shards else 0
        # Twice the bytes of the values, as some codecs lengthen values that do not compress.
        times = FILTERED if array.filters else 2
        limits = times * shard + index + SLACK, max(times * chunk, index) + SLACK
        place = StorePath(place.store.limited(*limits), place.path)
    return zarr.Array(zarr.AsyncArray(changed, place))


def codec_name(codec: Any) -> str:
    """Return the name of a codec of either format in numcodecs."""
    if isinstance(codec, _Bounded):
        return str(codec.get_config()["id"])
    return str(getattr(codec, "codec_id", None) or codec.to_dict()["name"]).removeprefix("numcodecs.")


def _values_bytes(shape: Iterable[int], dtype: Any) -> int:
    return math.prod(shape) * (TEXT if dtype.kind in "OT" else dtype.itemsize)


class _Bounded(Codec):  # type: ignore[misc]
    """Codec of numcodecs that decodes to a limited number of bytes, or of texts."""

    codec_id = "bounded"

    def __init__(self, codec: Any, most: int, array: Any) -> None:
        self._codec, self._most = codec, most
        self._chunk, self._texts = _values_bytes(array.chunks, array.dtype), math.prod(array.chunks)

    def encode(self, buf: Any) -> Any:
        return self._codec.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        if self._codec.codec_id in TEXT_CODECS:
            _check_texts(ensure_contiguous_ndarray(buf), self._texts)
            return self._codec.decode(buf, out)
        values = decoded(self._codec, memoryview(buf), self._most, self._chunk)
        return self._codec.decode(buf) if values is None else values

    def get_config(self) -> Any:
        return self._codec.get_config()


def _check_texts(data: Any, most: int) -> None:
    """Refuse a chunk that announces more texts than fit in it; codecs allocate 8 bytes for each in advance."""
    count = int.from_bytes(data.reshape(-1).view(np.uint8)[:4].tobytes(), "little")
    fitting = min(most, data.nbytes // 4 - 1)  # a length of 4 bytes precedes each text, and their number all of them
    if count > fitting:
        raise ValueError(f"a chunk announces {count} texts, and {fitting} fit in it")


def _bounded_by_numcodecs(codec: Any, most: int, array: Any) -> Any:
    """Return a codec of format 2, limited if it decodes bytes or texts; filters of numbers are not changed."""
    is_limited = codec is not None and codec.codec_id in BYTE_CODECS | TEXT_CODECS
    return _Bounded(codec, most, array) if is_limited else codec


def _bounded_codecs(codecs: Iterable[Any]) -> Iterator[Any]:
    """Yield codecs of format 3, limited; the codecs inside a shard are limited as well."""
    for codec in codecs:
        if isinstance(codec, ShardingCodec):
            yield replace(codec, codecs=tuple(_bounded_codecs(codec.codecs)))
        elif isinstance(codec, BytesBytesCodec):
            yield _BoundedBytes(codec)
        else:
            yield codec
        if isinstance(codec, VLenUTF8Codec | VLenBytesCodec):
            yield _CountedTexts()  # bytes pass it last before they are decoded to texts


@dataclass(frozen=True)
class _BoundedBytes(BytesBytesCodec):
    """Codec of format 3, for reading only, that decodes to a limited number of bytes by the wrapped codec."""

    codec: Any

    def to_dict(self) -> Any:
        return self.codec.to_dict()

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        return int(self.codec.compute_encoded_size(input_byte_length, chunk_spec))

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        chunk = _values_bytes(chunk_spec.shape, chunk_spec.dtype.to_native_dtype())
        stored = memoryview(chunk_data.as_numpy_array())
        values = await asyncio.to_thread(decoded, self.codec, stored, chunk + SLACK, chunk)
        if values is None:
            return await self.codec._decode_single(chunk_data, chunk_spec)  # `decode` takes batches
        return chunk_spec.prototype.buffer.from_bytes(values)


class _CountedTexts(BytesBytesCodec):
    """Step of decoding that refuses bytes which announce more texts than a chunk has, and passes on all others."""

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        return input_byte_length

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        _check_texts(chunk_data.as_numpy_array(), math.prod(chunk_spec.shape))
        return chunk_data


def decoded(codec: Any, stored: memoryview, most: int, chunk: int) -> bytes | memoryview | None:
    """Decode the bytes of a chunk within a limit, unless the codec itself keeps the limit.

    Parameters
    ----------
    codec : codec of numcodecs or of Zarr
        Codec of the chunk.
    stored : memoryview
        Stored chunk.
    most : int
        Largest number of decoded bytes.
    chunk : int
        Bytes of the chunk's values, which is the size of a zstd frame that does not state it.

    Returns
    -------
    bytes, memoryview or None
        Decoded bytes; None if the codec itself can decode them safely.

    Raises
    ------
    ValueError
        If the chunk decodes to more than `most` bytes.
    """
    match codec_name(codec):
        case "gzip" | "zlib" as name:
            container = _GZIP if name == "gzip" else _ZLIB
            # libdeflate is faster, but needs the exact size: otherwise zlib decodes in parts.
            whole = _filled(name, stored, chunk)
            return _inflated(lambda: zlib.decompressobj(container), stored, most) if whole is None else whole
        case "bz2":
            return _inflated(bz2.BZ2Decompressor, stored, most)
        case "lzma":
            return _inflated(partial(_lzma_decompressor, codec), stored, most)
        case "zstd":
            claimed = zstd_size(stored)
        case "blosc" if len(stored) >= 16:
            # Blosc's header holds the decoded size in bytes 4 to 8.
            claimed = struct.unpack_from("<I", stored, 4)[0]
        case "lz4" if len(stored) >= 4:
            # numcodecs precedes an LZ4 block by its decoded size.
            claimed = struct.unpack_from("<I", stored)[0]
        case _:
            return None
    if claimed is None:
        filled: memoryview = numcodecs.Zstd().decode(stored, out=np.empty(chunk, np.uint8)).data
        return filled  # numcodecs refuses values that do not fill it
    if claimed > most:
        raise _too_large(claimed, most)
    return None


def _lzma_decompressor(codec: Any) -> lzma.LZMADecompressor:
    """Return a decompressor of the codec's container, with limited memory: a header can request 4 GiB."""
    config = codec.get_config() if hasattr(codec, "get_config") else codec.to_dict()["configuration"]
    if config.get("format") == lzma.FORMAT_RAW:
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=config["filters"])
    return lzma.LZMADecompressor(memlimit=LZMA_MEMORY)


def _filled(name: str, stored: memoryview, size: int) -> memoryview | None:
    """Inflate to exactly `size` bytes; None if there are fewer or more, or libdeflate finds an error.

    With a known size no parts have to be joined, which takes half the memory of zlib and a third of its time.
    """
    codec: Any = imagecodecs.GZIP if name == "gzip" else imagecodecs.DEFLATE
    if not codec.available:  # some builds of imagecodecs lack it
        return None
    decode: Any = imagecodecs.gzip_decode if name == "gzip" else imagecodecs.deflate_decode
    try:
        values = decode(stored, out=np.empty(size, np.uint8))
    except (RuntimeError, ValueError):  # a DeflateError is a RuntimeError
        return None
    filled: memoryview = values.data
    return filled if len(filled) == size else None


def _inflated(begin: Callable[[], Any], stored: memoryview | bytes, most: int) -> bytes:
    """Decompress consecutive streams to at most `most` bytes in total."""
    # One byte more than allowed shows that there are too many.
    parts, remaining = [], most + 1
    while stored:
        decoder = begin()
        part = decoder.decompress(stored, remaining)
        parts.append(part)
        remaining -= len(part)
        if remaining <= 0:
            raise _too_large(None, most)
        if not decoder.eof:
            raise ValueError("compressed bytes end too early")
        # gzip, bz2 and xz files can be concatenated.
        stored = decoder.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def zstd_size(stored: memoryview | bytes) -> int | None:
    """Return the content size stated in a zstd frame (RFC 8878, 3.1.1.1); None if it states none."""
    if len(stored) < 6 or stored[:4] != _ZSTD_MAGIC:
        return 0  # the codec reports the error
    descriptor = stored[4]
    single, size_flag = descriptor >> 5 & 1, descriptor >> 6
    at = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    length = (single, 2, 4, 8)[size_flag]
    if length == 0:
        return None
    size = int.from_bytes(stored[at : at + length], "little")
    # Two-byte sizes are stored less 256 (RFC 8878).
    return size + 256 if length == 2 else size


def _too_large(claimed: int | None, most: int) -> ValueError:
    of = "more than that" if claimed is None else format_bytes(claimed)
    return ValueError(f"a chunk takes at most {format_bytes(most)}, and this one inflates to {of}")
