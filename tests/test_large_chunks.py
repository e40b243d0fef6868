"""Zarr chunks of which no piece holds two are read in threads of their own: the same values, and none left behind."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
import warnings

import numpy as np
import pytest
import zarr
from contract import WholeContract, over
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


def laid_out(options):
    return lambda folder: (written(folder, **options), zarr.open_array(folder / "x.zarr")[...])


@pytest.mark.usefixtures("alone")
@over({name: laid_out(options) for name, options in LAYOUTS.items()})
class TestLargeChunks(WholeContract):
    cuts = 1


def test_read_by_two_threads(tmp_path, alone):
    """One of them decodes; both end with the collection and leave nothing open."""
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
