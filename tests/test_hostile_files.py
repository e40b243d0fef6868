"""Files that claim, or inflate to, more than they can hold are refused before memory is allocated for it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
import zlib

import numcodecs
import numpy as np
import pytest
import zarr
from hostile import CHUNK, FILES, SIDE, N, images, zstd
from shell import python
from zarr.codecs import GzipCodec, ZstdCodec

import streampca
from streampca.storage.bounded_zarr import decoded
from streampca.units import MIB

BUDGET, SECONDS = 96, 2  # MiB; a case takes some hundredths of a second where nothing else runs
BOMB = bytes(4 * 2**20)  # four times what is let through, and compressed fast

USED = """
import json, sys, time
import astropy.io.fits
import numpy as np
import streampca
from streampca.cli.config import load_run
from streampca.machine import PeakMeter
from streampca.preprocessing.mask_files import read_mask

how, path, budget = sys.argv[1:]
options = {"n_components": 2, "memory": f"{budget}MiB", "listener": lambda event: None}
images = np.zeros((64, 32, 32), np.uint8)
meter, began = PeakMeter(), time.perf_counter()
try:
    match how:
        case "fit":
            streampca.fit(path, **options)
        case "some":
            streampca.fit(path, samples=(0, 10, 2), **options)
        case "patches":
            streampca.fit(path, patches=8, **options)
        case "load":
            streampca.load(path, memory=options["memory"])
        case "mask":
            read_mask(path, int(budget) * 2**20)
        case "labels":
            streampca.open_collection(images, labels=path)
        case "run":
            load_run(path).to_yaml()
    said = None
except streampca.errors.StreampcaError as error:
    said = str(error)
print(json.dumps({"said": said, "peak": meter.peak(), "seconds": time.perf_counter() - began}))
"""


@pytest.mark.every(8)
@pytest.mark.parametrize("name", FILES)
def test_hostile_files_are_refused_within_the_budget(tmp_path, name):
    how, write = FILES[name]
    path = write(tmp_path)
    done = python(USED, how, f"{path}:y" if name == "labels, npz" else path, BUDGET)
    assert done.returncode == 0, done.stderr[-1000:]
    found = json.loads(done.stdout)
    assert found["said"] is not None
    assert "\n" not in found["said"]
    assert found["seconds"] < SECONDS
    assert found["peak"] is None or found["peak"] < BUDGET * MIB


@pytest.mark.parametrize(("zarr_format", "shards"), [(2, None), (3, None), (3, (2 * CHUNK, SIDE, SIDE))])
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_whole_chunks_are_read_as_they_were_written(tmp_path, codec, zarr_format, shards):
    codecs = {"gzip": (numcodecs.GZip(), GzipCodec()), "zstd": (numcodecs.Zstd(), ZstdCodec())}
    zarr.create_array(
        tmp_path / "x.zarr",
        data=images(),
        chunks=(CHUNK, SIDE, SIDE),
        shards=shards,
        compressors=codecs[codec][zarr_format - 2],
        zarr_format=zarr_format,
    )
    found = streampca.open_collection(tmp_path / "x.zarr").read(slice(0, N))
    np.testing.assert_array_equal(found, images().reshape(N, -1))


def test_a_frame_that_states_no_size_is_read():
    zeros = zstd(2**17, stated=False)
    assert decoded(numcodecs.Zstd(), memoryview(zeros), 2**17, 2**17) == bytes(2**17)


@pytest.mark.parametrize(
    ("codec", "stored"),
    [
        (numcodecs.GZip(), gzip.compress(BOMB)),
        (numcodecs.Zlib(), zlib.compress(BOMB)),
        (numcodecs.BZ2(), bz2.compress(BOMB)),
        (numcodecs.LZMA(), lzma.compress(BOMB)),
        (numcodecs.Zstd(), numcodecs.Zstd().encode(BOMB)),
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
