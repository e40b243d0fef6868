"""Chunks of which no piece holds two: read in threads of their own (Zarr), and kept for the next block of a fold."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
import warnings

import h5py
import numpy as np
import pytest
import zarr
from contract import WholeContract, over
from numcodecs import Delta, Zstd
from zarr.codecs import GzipCodec, TransposeCodec

from streampca.errors import SourceError
from streampca.execution.decoded_chunks import keeping, thread_cache
from streampca.planning.blocks import Span, blocks_of
from streampca.readers import hdf5, hdf5_chunks, open_collection
from streampca.readers import zarr as zarr_reader
from streampca.readers.stored.kept_chunk import KeptChunk

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


HDF5 = {
    "deflated": {"compression": "gzip", "shuffle": True},
    "by HDF5": {"compression": "lzf"},
}


@pytest.fixture
def alone(monkeypatch):
    """Small chunks count as large."""
    monkeypatch.setattr(zarr_reader, "_PIECE", 4)
    monkeypatch.setattr(hdf5, "_PIECE", 4)
    monkeypatch.setattr(hdf5_chunks, "_LEAST", 1)


@pytest.fixture
def chunks_decoded(monkeypatch):
    """Chunks that were decoded to be kept, in order."""
    found, read_into = [], KeptChunk.read_into

    def noted(self, part, chunk_shape, shape, out, decode):
        def decode_noted(chunk):
            found.append(tuple(side.start for side in chunk))
            return decode(chunk)

        read_into(self, part, chunk_shape, shape, out, decode_noted)

    monkeypatch.setattr(KeptChunk, "read_into", noted)
    return found


def values():
    return np.random.default_rng(0).normal(size=(60, 9, 10)).astype("f4")


def written(folder, **options):
    made = zarr.create_array(folder / "x.zarr", shape=(60, 9, 10), **{"chunks": (30, 4, 5), "dtype": "f4", **options})
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


def in_hdf5(folder, chunks, **options):
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=values(), chunks=chunks, **options)
    return open_collection(folder / "x.h5")


def opened(folder, kind, chunks):
    if kind in HDF5:
        return in_hdf5(folder, chunks, **HDF5[kind])
    shards = {"shards": (60, 9, 10)} if "shards" in LAYOUTS[kind] else {}
    return written(folder, chunks=chunks, **{**LAYOUTS[kind], **shards})


KINDS = [*HDF5, "compressed", "not compressed", "gzip", "sharded", "transposed", "big-endian", "format 2"]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_smaller_than_a_chunk_decode_it_once(tmp_path, chunks_decoded, kind):
    """Whatever the blocks: smaller, across the edges of chunks, or larger than one."""
    found = opened(tmp_path, kind, (30, 9, 10))
    assert found.storage.keeps
    for rows, several in ((1, [0, 30]), (7, [0, 30]), (40, [30])):  # a chunk of one block is read where it is wanted
        chunks_decoded.clear()
        with keeping():
            blocks = [found.read(slice(*block)) for block in blocks_of(Span(0, 60), rows)]
            assert not thread_cache()  # the last entry was read
        np.testing.assert_array_equal(np.concatenate(blocks), values().reshape(60, -1))
        assert chunks_decoded == [(start, 0, 0) for start in several]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["deflated", "compressed"])
def test_ranges_of_features_decode_a_chunk_of_all_samples_once(tmp_path, chunks_decoded, kind):
    found = opened(tmp_path, kind, (60, 9, 10))
    with keeping():
        ranges = [found.read(slice(0, 60), slice(*block)) for block in blocks_of(Span(0, 90), 25)]
    np.testing.assert_array_equal(np.concatenate(ranges, axis=1), values().reshape(60, -1))
    assert chunks_decoded == [(0, 0, 0)]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["deflated", "compressed"])
def test_nothing_is_kept_outside_folds(tmp_path, chunks_decoded, kind):
    found = opened(tmp_path, kind, (30, 9, 10))
    for at in (3, 4):
        np.testing.assert_array_equal(found[at], values()[at])
    assert chunks_decoded == [(0, 0, 0)] * 2
    with keeping():
        found.read(slice(0, 2))
        assert len(thread_cache()) == 1
        found.read(slice(30, 32))  # another chunk takes the place of the first
        [(chunk, _)] = thread_cache().values()
        assert chunk[0] == slice(30, 60)
    assert thread_cache() is None


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["deflated", "compressed"])
def test_of_several_files_one_chunk_is_kept(tmp_path, kind):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        opened(tmp_path / name, kind, (60, 9, 10))
    found = open_collection(sorted(map(str, tmp_path.glob("*/x.*"))))
    found._most_open = 1  # as for chunks that are large
    with keeping():
        for features in (slice(0, 25), slice(25, 50)):
            np.testing.assert_array_equal(
                found.read(slice(0, 180), features), np.tile(values().reshape(60, -1), (3, 1))[:, features]
            )
            assert len(thread_cache()) == 1


@pytest.mark.usefixtures("alone")
def test_a_chunk_never_written_is_kept_as_its_fill_value(tmp_path):
    made = zarr.create_array(tmp_path / "x.zarr", shape=(8, 4, 4), chunks=(4, 4, 4), dtype="f4", fill_value=7)
    made[:4] = np.arange(64).reshape(4, 4, 4)
    found = open_collection(tmp_path / "x.zarr")
    with keeping():
        np.testing.assert_array_equal(
            np.concatenate([found.read(slice(at, at + 1)) for at in range(8)]), made[...].reshape(8, -1)
        )


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
