"""Chunks of gzip HDF5 decoded outside HDF5 are what HDF5 itself reads, whatever was done to them."""

from __future__ import annotations

import tempfile
import zlib
from functools import partial
from itertools import permutations
from pathlib import Path

import h5py
import imagecodecs
import numpy as np
import pytest
from contract import values
from hypothesis import given
from hypothesis import strategies as st

from streampca import machine
from streampca.errors import SourceError
from streampca.readers import open_collection, threads
from streampca.readers.hdf5 import Hdf5Array
from streampca.readers.hdf5_chunks import chunk_decoder, whole_chunks

DEFLATED = {"compression": "gzip", "compression_opts": 1}
DTYPES = ["u1", "i1", "<u2", ">i2", "<f2", ">f4", "<f4", "<i8", ">f8"]


@pytest.fixture(autouse=True)
def small_chunks_too(monkeypatch):
    """Chunks of a few bytes go the way of those that pay, and through threads."""
    monkeypatch.setattr("streampca.readers.hdf5_chunks._LEAST", 1)
    monkeypatch.setattr(threads, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(machine, "cores", lambda: 3)


def written(path, x, chunks, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, chunks=chunks, **(DEFLATED | options))
    return path


def array_of(path):
    """The reader's array, told from one that has fallen back to HDF5."""
    with h5py.File(path, "r") as file:
        array = Hdf5Array(file["x"], f"{path}, dataset 'x'")
    assert array._decoder is not None
    return array


def whole_of(array):
    return tuple(slice(0, length) for length in array.shape)


def read(array, box=None):
    box = box or whole_of(array)
    out = np.zeros([part.stop - part.start for part in box], array.dtype)
    array.read_into(box, out)
    return out


def only_here(monkeypatch):
    """From now on, HDF5 decodes nothing for us."""

    def refuse(self, dataset, box, out):
        raise AssertionError(f"HDF5 was asked for {box}")

    monkeypatch.setattr(Hdf5Array, "_read_by_hdf5", refuse)


@st.composite
def stored(draw):
    """Shape, chunks, a box inside, and how it is stored."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=2, max_size=4)))
    chunks = tuple(draw(st.integers(1, length)) for length in shape)
    starts = [draw(st.integers(0, length - 1)) for length in shape]
    box = tuple(slice(start, draw(st.integers(start + 1, length))) for start, length in zip(starts, shape, strict=True))
    options = {"shuffle": draw(st.booleans()), "fletcher32": draw(st.booleans())}
    return shape, chunks, box, options, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**16))


@given(case=stored(), order=st.sampled_from("CF"), missing=st.booleans())
def test_any_box_is_what_h5py_reads(case, order, missing):
    """Shape, chunks, filters, dtype and strides are arbitrary, and some chunks were never written."""
    shape, chunks, box, options, dtype, seed = case
    x = np.random.default_rng(seed).integers(0, 120, shape).astype(dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.h5"
        with h5py.File(path, "w") as file:
            data = file.create_dataset("x", shape, dtype, chunks=chunks, fillvalue=7, **DEFLATED, **options)
            data[: max(1, shape[0] // 2) if missing else shape[0]] = x[: max(1, shape[0] // 2) if missing else shape[0]]
        with h5py.File(path, "r") as file:
            expected = file["x"][box]
        out = np.zeros(expected.shape, dtype, order=order)
        array_of(path).read_into(box, out)
    assert out.tobytes() == expected.tobytes()


@given(case=stored())
def test_parts_hold_every_value_once_and_no_chunk_twice(case):
    shape, chunks, box, *_ = case
    seen, owner = np.zeros(shape, int), np.zeros([-(-n // c) for n, c in zip(shape, chunks, strict=True)], int)
    for part, whole in whole_chunks(box, chunks, shape):
        seen[part] += 1
        owner[tuple(slice(p.start // c, -(-p.stop // c)) for p, c in zip(part, chunks, strict=True))] += 1
        ends = [
            p.start % c == 0 and (p.stop % c == 0 or p.stop == n) for p, c, n in zip(part, chunks, shape, strict=True)
        ]
        assert all(ends) or not whole
    expected = np.zeros(shape, int)
    expected[box] = 1
    np.testing.assert_array_equal(seen, expected)
    assert owner.max() == 1


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"fletcher32": True}], ids=str)
def test_whole_chunks_are_not_decoded_by_hdf5(tmp_path, monkeypatch, options):
    x = values("f4")
    array = array_of(written(tmp_path / "x.h5", x, (4, 6, 2), **options))
    only_here(monkeypatch)
    np.testing.assert_array_equal(read(array), x)
    np.testing.assert_array_equal(read(array, (slice(4, 12), slice(0, 6), slice(4, 5))), x[4:12, :, 4:5])
    with pytest.raises(AssertionError, match="HDF5 was asked"):
        read(array, (slice(3, 12), slice(0, 6), slice(0, 5)))


@pytest.mark.parametrize("skipped", range(8))
def test_skipped_filters_are_skipped(tmp_path, monkeypatch, skipped):
    """HDF5 stores a chunk without a filter that gained nothing, and says so with the chunk."""
    x = values("u2")[:8]
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset(
            "x", x.shape, x.dtype, chunks=(4, *x.shape[1:]), shuffle=True, fletcher32=True, **DEFLATED
        )
        data[:4] = x[:4]
        encoded = x[4:].tobytes()
        if not skipped & 1:
            encoded = x[4:].reshape(-1, 1).view("u1").T.tobytes()
        if not skipped & 2:
            encoded = zlib.compress(encoded)
        if not skipped & 4:
            encoded += np.array(imagecodecs.h5checksum_fletcher32(encoded), "<u4").tobytes()
        data.id.write_direct_chunk((4, 0, 0), encoded, skipped)
    with h5py.File(path, "r") as file:
        np.testing.assert_array_equal(file["x"][...], x)
    array = array_of(path)
    only_here(monkeypatch)
    np.testing.assert_array_equal(read(array), x)


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">f4", "f8"])
@pytest.mark.parametrize("order", [*permutations("sdf"), ("f", "d"), ("d", "s")], ids="".join)
def test_filters_in_any_order(tmp_path, monkeypatch, order, dtype):
    """NetCDF's library puts the checksum first."""
    x = values(dtype)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((5, *x.shape[1:]))
    for letter in order:
        {"s": plist.set_shuffle, "d": partial(plist.set_deflate, 4), "f": plist.set_fletcher32}[letter]()
    with h5py.File(tmp_path / "x.h5", "w") as file:
        space = h5py.h5s.create_simple(x.shape)
        h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(x.dtype), space, plist))[...] = x
    array = array_of(tmp_path / "x.h5")
    only_here(monkeypatch)
    np.testing.assert_array_equal(read(array), x)


def test_netcdf4_is_decoded_here_too(tmp_path, monkeypatch):
    xarray = pytest.importorskip("xarray", reason="writes the file")
    pytest.importorskip("netCDF4", reason="writes the file")
    x = values("f4")
    encoding = {"x": {"zlib": True, "shuffle": True, "fletcher32": True, "chunksizes": (4, *x.shape[1:])}}
    xarray.Dataset({"x": (("n", "y", "x_"), x)}).to_netcdf(tmp_path / "x.h5", engine="netcdf4", encoding=encoding)
    array = array_of(tmp_path / "x.h5")
    only_here(monkeypatch)
    np.testing.assert_array_equal(read(array), x)


def test_what_is_not_ours_goes_to_hdf5(tmp_path):
    x = values("u2")
    others = {
        "lzf": {"compression": "lzf"},
        "offset": {"compression": "gzip", "scaleoffset": 0},
        "plain": {"chunks": (4, 6, 5)},
        "whole": {},
    }
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, options in others.items():
            assert chunk_decoder(file.create_dataset(name, data=x, **options), x.dtype) is None
        flags = file.create_dataset("flags", data=x > 100, chunks=(4, 6, 5), **DEFLATED)
        assert chunk_decoder(flags, np.dtype(bool)) is None
        assert chunk_decoder(file.create_dataset("ours", data=x, chunks=(4, 6, 5), **DEFLATED), x.dtype) is not None


def test_a_dataset_being_written_is_read_by_hdf5(tmp_path, monkeypatch):
    """Its last values may be in HDF5's memory only; those of one opened for reading are in the file."""
    path = written(tmp_path / "x.h5", values(), (4, 6, 5))
    with h5py.File(path, "r+") as file:
        file["x"][0] = 9
        held = open_collection(file["x"])
        assert (held.read(slice(0, 1)) == 9).all()
        assert held.array._decoder is None
    with h5py.File(path, "r") as file:
        assert open_collection(file["x"]).array._decoder is not None


@pytest.mark.parametrize("fletcher32", [False, True])
@pytest.mark.parametrize("where", [10, -6, -1])
def test_a_damaged_chunk_is_named(tmp_path, where, fletcher32):
    x = np.random.default_rng(0).integers(0, 99, (20, 8, 8)).astype("u2")
    path = written(tmp_path / "x.h5", x, (5, 8, 4), shuffle=True, fletcher32=fletcher32)
    with h5py.File(path, "r") as file:
        chunk = file["x"].id.get_chunk_info(3)
    damaged = bytearray(path.read_bytes())
    damaged[chunk.byte_offset + where % chunk.size] ^= 255
    path.write_bytes(damaged)
    array = array_of(path)
    with pytest.raises(SourceError, match=r"x\.h5, dataset 'x' cannot be read at \[5:10, 0:8, 4:8\] \(") as caught:
        read(array)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(read(array, (slice(10, 20), slice(0, 8), slice(0, 8))), x[10:])


@pytest.mark.parametrize("length", [0, 1, -1, 3])
def test_a_chunk_of_another_length_is_no_data(tmp_path, length):
    """Deflated bytes that are whole, and not those of a chunk."""
    x = values("u2")[:8]
    path = written(tmp_path / "x.h5", x, (4, *x.shape[1:]))
    decoder = array_of(path)._decoder
    np.testing.assert_array_equal(decoder.decoded([zlib.compress(x[:4].tobytes())], 0), x[:4])
    other = bytes(length if length >= 0 else decoder.chunk_bytes + 1)
    for encoded, skipped in ((zlib.compress(other), 0), (other, 1)):
        with pytest.raises((ValueError, RuntimeError)):
            decoder.decoded([encoded], skipped)


def test_the_memory_estimate_counts_two_chunks_a_thread(tmp_path, monkeypatch):
    x = np.zeros((8, 512, 512), "f4")
    path, chunk = written(tmp_path / "x.h5", x, (4, 512, 512)), 4 * 512 * 512 * 4
    estimates = []
    for cores in (2, 20):
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        estimates.append(array_of(path).decode_bytes)
    assert estimates[1] - estimates[0] == 18 * array_of(path)._decoder.held_bytes
    assert 2 * chunk <= array_of(path)._decoder.held_bytes <= 2.01 * chunk
