"""Decoding of Zarr's chunks that writes no more than a chunk holds, whatever the stored bytes would inflate to.

A zstd frame of 64 KiB can stand for 2 GiB. What a chunk holds is known from the metadata: codecs that say beforehand
how much they will write are asked, and others are stopped.
"""

from __future__ import annotations

import asyncio
import bz2
import copy
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

import imagecodecs
import numcodecs
import numpy as np
import zarr
from numcodecs.abc import Codec
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import ShardingCodec

from ..units import format_bytes

SLACK = 64 * 2**10  # bytes that a codec between others may add: checksums, and what does not compress
FILTERED = 8  # times longer that filters may make the values of a chunk before they are compressed
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP, _ZLIB = 31, 15  # containers, as zlib counts them


def bounded(array: Any) -> Any:
    """Return a `zarr.Array` whose chunks are refused, with a ValueError, before they inflate to more than they hold."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        if metadata.compressor is None:
            return array
        chunk = math.prod(array.chunks) * array.dtype.itemsize
        changed = replace(
            metadata, compressor=_Bounded(metadata.compressor, chunk, FILTERED if metadata.filters else 1)
        )
    else:
        changed = replace(metadata, codecs=tuple(_bounded_codec(codec) for codec in metadata.codecs))
    return zarr.Array(zarr.AsyncArray(changed, array.store_path))


def codec_name(codec: Any) -> str:
    """Return what numcodecs calls a codec of either format."""
    if isinstance(codec, _Bounded):
        return str(codec.get_config()["id"])
    return str(getattr(codec, "codec_id", None) or codec.to_dict()["name"]).removeprefix("numcodecs.")


class _Bounded(Codec):  # type: ignore[misc]
    """A codec of numcodecs that decodes to the bytes of a chunk, or to at most so many times as many."""

    codec_id = "bounded"

    def __init__(self, codec: Any, chunk: int, times: int) -> None:
        self._codec, self._chunk, self._most = codec, chunk, times * chunk

    def encode(self, buf: Any) -> Any:
        return self._codec.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        found = decoded(codec_name(self), memoryview(buf), self._most, self._chunk)
        return self._codec.decode(buf) if found is None else found

    def get_config(self) -> Any:
        return self._codec.get_config()


def _bounded_codec(codec: Any) -> Any:
    """Return a codec of format 3 likewise, in shards too."""
    if isinstance(codec, ShardingCodec):
        return replace(codec, codecs=tuple(_bounded_codec(each) for each in codec.codecs))
    if not isinstance(codec, BytesBytesCodec):
        return codec
    made = copy.copy(codec)
    object.__setattr__(made, "__class__", _bounded_kind(cast("Any", type(codec))))
    return made


@cache
def _bounded_kind(kind: Any) -> Any:
    """Return the class of bounded codecs of a class: copies that the pipeline adapts to a chunk are of it, too."""

    async def _decode_single(self: Any, chunk_bytes: Any, chunk_spec: Any) -> Any:
        chunk = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        stored = memoryview(chunk_bytes.as_array_like())
        found = await asyncio.to_thread(decoded, codec_name(self), stored, chunk + SLACK, chunk)
        if found is None:
            return await kind._decode_single(self, chunk_bytes, chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(found)

    return type(kind.__name__, (kind,), {"_decode_single": _decode_single})


def decoded(name: str, stored: memoryview, most: int, chunk: int) -> bytes | memoryview | None:
    """Return what the bytes of a chunk inflate to, by the name of a codec; None where that may do it itself.

    Parameters
    ----------
    name : str
        Codec, as numcodecs calls it.
    stored : memoryview
        The chunk as it is stored.
    most, chunk : int
        Most bytes to write, and those of the chunk's values, which bytes inflate to that do not say beforehand.

    Raises
    ------
    ValueError
        If it would be more.
    """
    match name:
        case "gzip" | "zlib":
            whole = _filled(name, stored, chunk)
            if whole is not None:
                return whole
            return _inflated(lambda: zlib.decompressobj(_GZIP if name == "gzip" else _ZLIB), stored, most)
        case "bz2":
            return _inflated(bz2.BZ2Decompressor, stored, most)
        case "zstd":
            claimed = _zstd_size(stored)
        case "blosc" if len(stored) >= 16:
            claimed = struct.unpack_from("<I", stored, 4)[0]
        case "lz4" if len(stored) >= 4:
            claimed = struct.unpack_from("<I", stored)[0]
        case _:
            return None
    if claimed is None:
        filled: memoryview = numcodecs.Zstd().decode(stored, out=np.empty(chunk, np.uint8)).data
        return filled  # which it was, or the codec would have refused
    if claimed > most:
        raise _too_large(claimed, most)
    return None


def _filled(name: str, stored: memoryview, size: int) -> memoryview | None:
    """Inflate to exactly so many bytes; None where it would be fewer or more, or libdeflate finds something wrong.

    The size being known, nothing is put together from parts: half the memory of zlib, and a third of its time.
    """
    codec: Any = imagecodecs.GZIP if name == "gzip" else imagecodecs.DEFLATE
    if not codec.available:  # builds of imagecodecs may lack some
        return None
    decode: Any = imagecodecs.gzip_decode if name == "gzip" else imagecodecs.deflate_decode
    try:
        values = decode(stored, out=np.empty(size, np.uint8))
    except (RuntimeError, ValueError):  # a DeflateError is a RuntimeError
        return None
    filled: memoryview = values.data
    return filled if len(filled) == size else None


def _inflated(begin: Callable[[], Any], stored: memoryview | bytes, most: int) -> bytes:
    """Inflate members one after another, to at most so many bytes."""
    parts, left = [], most + 1
    while stored:
        decoder = begin()
        part = decoder.decompress(stored, left)
        parts.append(part)
        left -= len(part)
        if left <= 0:
            raise _too_large(None, most)
        if not decoder.eof:
            raise ValueError("compressed bytes end too early")
        stored = decoder.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd_size(stored: memoryview) -> int | None:
    """Return the bytes that a zstd frame says it holds (RFC 8878, 3.1.1.1); None where it does not say."""
    if len(stored) < 6 or stored[:4] != _ZSTD_MAGIC:
        return 0  # the codec will say what is wrong
    descriptor = stored[4]
    single, size_flag = descriptor >> 5 & 1, descriptor >> 6
    at = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    length = (single, 2, 4, 8)[size_flag]
    if length == 0:
        return None
    size = int.from_bytes(stored[at : at + length], "little")
    return size + 256 if length == 2 else size


def _too_large(claimed: int | None, most: int) -> ValueError:
    of = "more than that" if claimed is None else format_bytes(claimed)
    return ValueError(f"a chunk takes at most {format_bytes(most)}, and this one inflates to {of}")
