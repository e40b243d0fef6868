"""Files that claim, or inflate to, more than they can hold are refused before memory is taken for it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import zipfile
import zlib
from pathlib import Path

import h5py
import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec, ZstdCodec

import streampca
from streampca.errors import RequestError, SourceError
from streampca.storage.bounded_zarr import decoded

N, SIDE, CHUNK = 64, 32, 16
BOMB = bytes(64 * 2**20)  # zeros: thousands of times a chunk, 64 KiB compressed


def images():
    return np.random.default_rng(0).integers(0, 256, (N, SIDE, SIDE)).astype(np.uint8)


def without_size(data):
    """Compress to a zstd frame that does not say how much it holds: a literal header, and blocks of one byte each."""
    blocks = [data[start : start + 2**17] for start in range(0, len(data), 2**17)]
    body = b"".join(
        (int(number == len(blocks) - 1) | 1 << 1 | len(block) << 3).to_bytes(3, "little") + block[:1]
        for number, block in enumerate(blocks)
    )
    return b"\x28\xb5\x2f\xfd" + bytes([0, 0x38]) + body


STORED = {
    "zstd": numcodecs.Zstd().encode(BOMB),
    "zstd of no stated size": without_size(BOMB),
    "gzip": gzip.compress(BOMB),
}


def store_of(folder, codec, *, zarr_format=3, shards=None):
    path = folder / "images.zarr"
    compressors = {"gzip": GzipCodec(), "zstd": ZstdCodec()}[codec]
    if zarr_format == 2:
        compressors = {"gzip": numcodecs.GZip(), "zstd": numcodecs.Zstd()}[codec]
    zarr.create_array(
        path, data=images(), chunks=(CHUNK, SIDE, SIDE), shards=shards, compressors=compressors, zarr_format=zarr_format
    )
    return path


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", STORED)
def test_chunks_that_inflate_beyond_their_values_are_refused(tmp_path, name, zarr_format):
    path = store_of(tmp_path, name.split()[0], zarr_format=zarr_format)
    np.testing.assert_array_equal(streampca.open_collection(path).read(slice(0, N)), images().reshape(N, -1))
    next(Path(path).rglob("0.0.0" if zarr_format == 2 else "c/0/0/0")).write_bytes(STORED[name])
    with pytest.raises(SourceError) as raised:
        streampca.open_collection(path).read(slice(0, N))
    assert "\n" not in str(raised.value)


def test_chunks_in_shards_are_read_as_they_were_written(tmp_path):
    path = store_of(tmp_path, "zstd", shards=(2 * CHUNK, SIDE, SIDE))
    np.testing.assert_array_equal(streampca.open_collection(path).read(slice(0, N)), images().reshape(N, -1))


@pytest.mark.parametrize(
    ("codec", "stored"),
    [
        (numcodecs.GZip(), STORED["gzip"]),
        (numcodecs.Zlib(), zlib.compress(BOMB)),
        (numcodecs.BZ2(), bz2.compress(BOMB[: 2**22])),
        (numcodecs.LZMA(), lzma.compress(BOMB[: 2**22])),
        (numcodecs.Zstd(), STORED["zstd"]),
        (numcodecs.Blosc(), struct.pack("<4B3I", 2, 1, 0, 1, 2**31, 2**18, 16)),
        (numcodecs.LZ4(), struct.pack("<I", 2**31)),
    ],
)
def test_sizes_are_known_before_they_are_written(codec, stored):
    with pytest.raises(ValueError, match="inflates to"):
        decoded(codec, memoryview(stored), 2**20, 2**20)


def test_members_of_gzip_follow_each_other():
    stored = gzip.compress(b"first ") + gzip.compress(b"second")
    assert decoded(numcodecs.GZip(), memoryview(stored), 12, 12) == b"first second"
    with pytest.raises(ValueError, match="end too early"):
        decoded(numcodecs.GZip(), memoryview(stored[:-9]), 12, 12)


def test_hdf5_chunks_that_inflate_beyond_their_values_are_refused(tmp_path):
    path = tmp_path / "images.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (N, SIDE, SIDE), "u1", chunks=(CHUNK, SIDE, SIDE), compression="gzip")
        made[...] = images()
        made.id.write_direct_chunk((0, 0, 0), zlib.compress(BOMB))
    with pytest.raises(SourceError, match=r"the chunk at \(0, 0, 0\) of .* inflates to more"):
        streampca.open_collection(path).read(slice(0, N))


def test_headers_of_npy_are_short(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**30) + bytes(100))
    with pytest.raises(SourceError, match=r"1\.0 GiB of text|1 GiB of text"):
        streampca.open_collection(path)


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_labels_of_more_samples_than_there_are_are_not_loaded(tmp_path, kind):
    header = np.lib.format.header_data_from_array_1_0(np.empty(0))
    header["shape"] = (2**29,)
    path = tmp_path / f"labels.{kind}"
    with zipfile.ZipFile(path, "w") if kind == "npz" else open(path, "wb") as file:
        into = file.open("y.npy", "w") if kind == "npz" else file
        np.lib.format.write_array_header_1_0(into, header)
        into.write(bytes(100))
        into.close()
    with pytest.raises(RequestError, match="has 536870912 values, and there are at most 64 samples"):
        streampca.open_collection(images(), labels=f"{path}:y" if kind == "npz" else path)
