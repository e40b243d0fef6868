"""Zarr chunks of which no piece holds two are read in threads of their own: the same values, and none left behind."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import zarr
from numcodecs import Delta, Zstd
from zarr.codecs import GzipCodec, TransposeCodec

from streampca.errors import SourceError
from streampca.readers import open_collection
from streampca.readers import zarr as zarr_reader

LAYOUTS = {
    "compressed": {},
    "not compressed": {"compressors": None},
    "gzip": {"compressors": [GzipCodec()]},
    "sharded": {"shards": (60, 8, 5)},
    "one chunk a shard": {"shards": (30, 4, 5)},
    "transposed": {"filters": [TransposeCodec(order=(2, 0, 1))]},
    "big-endian": {"dtype": ">f4"},
    "format 2": {"zarr_format": 2},
    "format 2, Fortran order": {"zarr_format": 2, "order": "F"},
    "format 2, filtered": {"zarr_format": 2, "compressors": Zstd(), "filters": [Delta("f4")]},
}


@pytest.fixture
def alone(monkeypatch):
    """Small chunks count as large."""
    monkeypatch.setattr(zarr_reader, "_PIECE", 4)


def values():
    return np.random.default_rng(0).normal(size=(60, 9, 10)).astype("f4")


def written(folder, **options):
    made = zarr.create_array(folder / "x.zarr", shape=(60, 9, 10), chunks=(30, 4, 5), **{"dtype": "f4", **options})
    made[...] = values()
    return open_collection(folder / "x.zarr")


def read_whole(collection):
    return collection.read(slice(0, 60))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_the_same(tmp_path, alone, layout):
    found = written(tmp_path, **LAYOUTS[layout])
    x = zarr.open_array(tmp_path / "x.zarr")[...].reshape(60, -1)
    np.testing.assert_array_equal(read_whole(found), x)
    np.testing.assert_array_equal(found.read(slice(7, 41)), x[7:41])
    np.testing.assert_array_equal(found.read(slice(29, 31), slice(33, 58)), x[29:31, 33:58])


def test_read_by_two_threads(tmp_path, alone):
    """Of which one decodes; they end with the collection, with nothing left open."""
    found, before = written(tmp_path), set(threading.enumerate())
    for _ in range(3):
        read_whole(found)
    threads = set(threading.enumerate()) - before
    assert len(threads) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del found
        gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_read_where_a_loop_runs_already(tmp_path, alone):
    found = written(tmp_path)

    async def notebook():
        return read_whole(found)

    np.testing.assert_array_equal(asyncio.run(notebook()), values().reshape(60, -1))


def test_read_from_several_threads(tmp_path, alone):
    found, results = written(tmp_path), {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: read_whole(found)})) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(np.array_equal(result, values().reshape(60, -1)) for result in results.values())


def test_read_after_pickling(tmp_path, alone):
    found = written(tmp_path)
    read_whole(found)
    again = pickle.loads(pickle.dumps(found))  # noqa: S301 - our own
    np.testing.assert_array_equal(read_whole(again), read_whole(found))


def _sum(collection, answer):
    answer.send(float(read_whole(collection).sum()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_read_after_a_fork(tmp_path, alone):
    found = written(tmp_path)
    read_whole(found)
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_sum, args=(found, there))
    process.start()
    assert here.poll(20), "a fork waits for threads it does not have"
    assert here.recv() == float(read_whole(found).sum())
    process.join()


def test_a_damaged_chunk_is_named(tmp_path, alone):
    found = written(tmp_path)
    (tmp_path / "x.zarr" / "c" / "1" / "0" / "1").write_bytes(b"nothing")
    with pytest.raises(SourceError, match=r"cannot be read at \[30:60, 0:4, 5:10\]"):
        read_whole(found)


HELD = """
import sys
from streampca.machine import PeakMeter
from streampca.readers import open_collection
collection = open_collection(sys.argv[1])
meter = PeakMeter()
for _ in range(2):
    block = collection.read(slice(0, collection.n_samples))
    size = block.nbytes
    del block
peak = meter.peak()
print(-1 if peak is None else peak - size, collection.decode_bytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_a_read_holds_one_chunk_and_its_bytes(tmp_path, codec):
    """In any of Zarr's threads, chunks of 12 MiB held 58 to 89 MiB beside the block."""
    n = 12 * 2**20 // 32
    options = {"compressors": [GzipCodec(level=1)]} if codec == "gzip" else {}
    made = zarr.create_array(tmp_path / "x.zarr", shape=(n, 6, 8), dtype="f4", chunks=(n, 1, 8), **options)
    noise = np.random.default_rng(0).random((n, 8), dtype=np.float32)
    for row in range(6):
        made[:, row] = np.roll(noise, row)
    command = [sys.executable, "-c", HELD, tmp_path / "x.zarr"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    beside, promised = map(int, done.stdout.split())
    print(codec, round(beside / 2**20), round(promised / 2**20))
    if beside < 0:
        pytest.skip("this system does not tell a process its peak")
    assert beside <= promised <= (5 if codec == "gzip" else 3) * 12 * 2**20
