"""Every reader passes the same contract, on small files made here."""

from __future__ import annotations

import gzip
import math
import pickle
import re
import struct
from typing import ClassVar

import dask.array as da
import h5py
import numpy as np
import pytest
import tifffile
import xarray
import zarr
from contract import Contract, values
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import streampca
from streampca.errors import SourceError
from streampca.readers import Chunks, open_collection
from streampca.readers.stored.array import ArrayCollection


class TestNumpy(Contract):
    def held_bytes(self, expected):
        return expected.nbytes

    def make(self, tmp_path):
        x = values("f4")
        x.setflags(write=False)
        return open_collection(x), x


class TestNumpyTransposed(TestNumpy):
    def make(self, tmp_path):
        x = values("i2", (4, 5, 3, 6))
        return open_collection(x, sample_axes=(3, 1)), x.transpose(0, 2, 3, 1).reshape(12, 6, 5)


class TestDask(TestNumpy):
    def make(self, tmp_path):
        x = values("f8")
        return open_collection(da.from_array(x, chunks=(7, 2, 5))), x

    def held_bytes(self, expected):
        return 4 * expected.nbytes  # as chunks in the graph


class TestXarray(TestNumpy):
    def make(self, tmp_path):
        x = values("f4", (5, 4, 6, 7))
        named = xarray.DataArray(x, dims=("lat", "time", "z", "lon"))
        return open_collection(named), x.transpose(1, 2, 0, 3).reshape(24, 5, 7)


class TestZarrObject(Contract):
    def make(self, tmp_path):
        x = values("f4")
        array = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, dtype=x.dtype, chunks=(5, 6, 2))
        array[...] = x
        return open_collection(array), x


def masked(dtype="u2", shape=(23, 6, 5)):
    """A masked array, and what is read of it: its values, NaN where it is masked."""
    x, mask = values(dtype, shape), np.random.default_rng(8).random(shape) < 0.1
    wider = x.dtype if x.dtype.kind == "f" else np.dtype("f4" if x.dtype.itemsize <= 2 else "f8")
    return np.ma.masked_array(x, mask), np.where(mask, wider.type(np.nan), x.astype(wider))


class TestMasked(TestNumpy):
    def make(self, tmp_path):
        x, expected = masked()
        return open_collection(x, sample_axes=(2, 1)), expected.transpose(0, 2, 1)


class TestMaskedDask(TestDask):
    def make(self, tmp_path):
        x, expected = masked("i4")
        return open_collection(da.from_array(x, chunks=(7, 2, 5))), expected


class TestMaskedXarray(TestDask):
    def make(self, tmp_path):
        x, expected = masked("f4")
        return open_collection(xarray.DataArray(da.from_array(x, chunks=(7, 2, 5)), dims=("time", "y", "x"))), expected


def test_masked_values_that_dask_does_not_announce():
    def unannounced(dtype):
        x = da.from_array(np.arange(24, dtype=dtype).reshape(6, 4), chunks=2)
        return x.map_blocks(lambda block: np.ma.masked_equal(block, 3), dtype=dtype, meta=np.empty((0, 0), dtype))

    with pytest.raises(SourceError, match="dask array has masked values, of which its meta"):
        open_collection(unannounced("u1")).read(slice(0, 6))
    read = open_collection(unannounced("f4")).read(slice(0, 6))
    np.testing.assert_array_equal(np.isnan(read).nonzero(), [[0], [3]])


def test_a_masked_array_without_masked_entries_is_one_of_its_values():
    x = values()
    collection = open_collection(np.ma.masked_array(x))
    assert collection.dtype == x.dtype
    assert np.shares_memory(collection.array.array, x)


class TestBigEndianArray(Contract):
    """Numpy unpickles it in the machine's own byte order."""

    def make(self, tmp_path):
        return open_collection(values(">i2")), values(">i2")


class TestBigEndianDask(Contract):
    def make(self, tmp_path):
        x = values(">i2")
        return open_collection(da.from_array(x, chunks=(5, -1, 2))), x


class TestH5py(Contract):
    def make(self, tmp_path):
        x = values(">i4")
        file = h5py.File(tmp_path / "x.h5", "w")
        return open_collection(file.create_dataset("g/x", data=x, chunks=(4, 6, 5))), x

    def test_pickles_small_and_reads_the_same(self, collection, expected):
        collection.array._dataset.file.flush()
        super().test_pickles_small_and_reads_the_same(collection, expected)


class TestNpy(Contract):
    dtype, order = "u1", "C"

    def make(self, tmp_path):
        x = values(self.dtype)
        np.save(tmp_path / "x.npy", np.asarray(x, order=self.order))
        return open_collection(tmp_path / "x.npy"), x


class TestNpyFortran(TestNpy):
    dtype, order = "f4", "F"


class TestNpyBigEndian(TestNpy):
    dtype = ">u2"


class TestNpyBool(TestNpy):
    def make(self, tmp_path):
        x = values() > 100
        np.save(tmp_path / "x.npy", x)
        return open_collection(tmp_path / "x.npy"), x


class TestNpyLongRows(Contract):
    """Rows of several pages, and gaps too wide to be read over."""

    order, cuts = "C", 6

    def make(self, tmp_path):
        x = values("f8", (11, 3, 12001))
        np.save(tmp_path / "x.npy", np.asarray(x, order=self.order))
        return open_collection(str(tmp_path / "x.npy")), x


class TestNpyLongRowsFortran(TestNpyLongRows):
    order = "F"


class TestNpyTransposed(Contract):
    order = "C"

    def make(self, tmp_path):
        x = values("u2", (4, 5, 3, 6))
        np.save(tmp_path / "x.npy", np.asarray(x, order=self.order))
        picked = open_collection(tmp_path / "x.npy", sample_axes=(-1, 0), select={1: slice(1, 4)})
        return picked, x[:, 1:4].transpose(1, 2, 3, 0).reshape(9, 6, 4)


class TestNpyTransposedFortran(TestNpyTransposed):
    order = "F"


class TestNpz(Contract):
    save, order = staticmethod(np.savez), "C"

    def make(self, tmp_path):
        x = values(">f4")
        self.save(tmp_path / "x.npz", y=np.arange(23), images=np.asarray(x, order=self.order), z=values())
        return open_collection(tmp_path / "x.npz", key="images"), x


class TestNpzDeflated(TestNpz):
    save = staticmethod(np.savez_compressed)


class TestNpzDeflatedFortran(TestNpzDeflated):
    order = "F"


def write_idx(path, x, opener=open):
    code = {"u1": 8, "i1": 9, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}[x.dtype.str[1:]]
    with opener(path, "wb") as file:
        file.write(struct.pack(f">BBBB{x.ndim}I", 0, 0, code, x.ndim, *x.shape) + x.tobytes())
    return path


class TestIdx(Contract):
    def make(self, tmp_path):
        x = values("u1")
        return open_collection(write_idx(tmp_path / "some", x)), x


class TestIdxGzipped(Contract):
    def make(self, tmp_path):
        x = values(">f4")
        return open_collection(write_idx(tmp_path / "some.gz", x, gzip.open)), x


class TestZarr3(Contract):
    chunks, shards, format = (5, 6, 5), None, 3

    def make(self, tmp_path):
        x = values("f4")
        array = zarr.create_array(
            tmp_path / "x.zarr", shape=x.shape, dtype=x.dtype, chunks=self.chunks, shards=self.shards,
            zarr_format=self.format,
        )  # fmt: skip
        array[...] = x
        return open_collection(tmp_path / "x.zarr"), x


class TestZarr2(TestZarr3):
    format = 2


class TestZarrSharded(TestZarr3):
    chunks, shards = (2, 3, 5), (10, 6, 5)


class TestZarrCutAcrossFeatures(TestZarr3):
    chunks = (23, 2, 3)


class TestZarrInPieces(TestZarr3):
    """Reads are cut at chunk edges even where pieces are a few bytes."""

    chunks = (4, 4, 2)

    @pytest.fixture(autouse=True)
    def small_pieces(self, monkeypatch):
        monkeypatch.setattr("streampca.readers.zarr._PIECE", 200)


class TestZarrGroup(Contract):
    def make(self, tmp_path):
        x = values(">i2", (3, 7, 4, 5))
        group = zarr.open_group(tmp_path / "x.zarr", mode="w")
        names = ("t", "x", "y", "channel")
        group.create_array("deep/data", shape=x.shape, dtype=x.dtype, chunks=(2, 3, 4, 5), dimension_names=names)[
            ...
        ] = x
        group.create_array("t", shape=(3,), dtype="f8")[...] = [1, 2, 3]
        (tmp_path / "x.zarr" / "notes.txt").write_text("not Zarr's")
        collection = open_collection(tmp_path / "x.zarr", sample_axes=("y", "x"))
        return collection, x.transpose(0, 3, 2, 1).reshape(15, 4, 7).astype("i2")  # Zarr 3 dtypes have no byte order


class TestFolder(Contract):
    """Image files: the pixels that Pillow reads."""

    extension, mode, dtype = "png", "L", "u1"

    def make(self, tmp_path):
        bands = {"RGB": (3,), "LA": (2,), "RGBA": (4,)}.get(self.mode, ())
        x = values(self.dtype, (12, 6, 5, *bands))
        for at, pixels in enumerate(x):
            path = tmp_path / "in" / f"s{at // 4}" / f"{at}.{self.extension}"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.write(path, pixels)
        (tmp_path / "in" / "readme.txt").write_text("no image")
        (tmp_path / "in" / ".hidden.png").write_text("no image")
        return open_collection(tmp_path / "in"), self.stored(x, tmp_path)

    def write(self, path, pixels):
        Image.fromarray(pixels).save(path)

    def stored(self, x, tmp_path):
        return x


def use_threads(monkeypatch):
    """Decode in threads what is too small to be worth it."""
    monkeypatch.setattr("streampca.readers.threads._WORTH_A_THREAD", 0)
    monkeypatch.setattr("streampca.machine.cores", lambda: 4)


class TestFolderInThreads(TestFolder):
    @pytest.fixture(autouse=True)
    def threads(self, monkeypatch):
        use_threads(monkeypatch)


class TestPngColour(TestFolder):
    mode = "RGB"


class TestPngAlpha(TestFolder):
    mode = "RGBA"


class TestPng16(TestFolder):
    dtype = "u2"


class TestPngPalette(TestFolder):
    def write(self, path, pixels):
        paletted = Image.new("P", pixels.shape[::-1])
        paletted.putdata(list((pixels // 64).ravel()))
        paletted.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120])
        paletted.save(path)

    def stored(self, x, tmp_path):
        return np.arange(10, 130, 10, dtype="u1").reshape(4, 3)[x // 64]


class TestPngBits(TestFolder):
    def write(self, path, pixels):
        Image.fromarray(pixels > 99).save(path)

    def stored(self, x, tmp_path):
        return (x > 99) * np.uint8(255)


class TestJpeg(TestFolder):
    extension = "jpg"

    def stored(self, x, tmp_path):
        return np.stack([np.asarray(Image.open(tmp_path / "in" / f"s{at // 4}" / f"{at}.jpg")) for at in range(len(x))])


class TestPgm(TestFolder):
    extension = "pgm"


class TestPpm(TestFolder):
    extension, mode = "ppm", "RGB"


class TestPgm12Bits(TestFolder):
    """Kept as stored, not stretched to 16 bits."""

    extension, dtype = "pgm", "u2"

    def write(self, path, pixels):
        header = f"P5\n# twelve bits\n{pixels.shape[1]} {pixels.shape[0]}\n4095\n".encode()
        path.write_bytes(header + (pixels % 4096).astype(">u2").tobytes())

    def stored(self, x, tmp_path):
        return x % 4096


class TestPlainPgm(TestFolder):
    extension = "pgm"

    def write(self, path, pixels):
        path.write_text(f"P2\n5 6 # size\n255\n{' '.join(map(str, pixels.ravel()))}\n")


class TestPbm(TestPngBits):
    extension = "pbm"


class TestBmp(TestFolder):
    extension, mode = "bmp", "RGB"


class TestBmpPalette(TestPngPalette):
    extension = "bmp"


class TestGif(TestFolder):
    extension = "gif"


class TestFolderOfTiff(TestFolder):
    extension, dtype = "tif", "f4"

    def write(self, path, pixels):
        tifffile.imwrite(path, pixels, compression="zlib")


class TestTiffColour(TestFolder):
    extension, mode, dtype = "tif", "RGB", "u2"

    def write(self, path, pixels):
        tifffile.imwrite(path, np.moveaxis(pixels, -1, 0), photometric="rgb", planarconfig="separate")


class TestGlob(TestFolder):
    def make(self, tmp_path):
        _, x = super().make(tmp_path)
        return open_collection(f"{tmp_path}/in/**/*.png"), x


class TestList(TestFolder):
    def make(self, tmp_path):
        _, x = super().make(tmp_path)
        paths = sorted((tmp_path / "in").rglob("[0-9]*.png"), key=lambda path: -int(path.stem))
        return open_collection(paths), x[::-1]


class TestFolderPicked(TestFolder):
    mode = "RGB"

    def make(self, tmp_path):
        _, x = super().make(tmp_path)
        picked = open_collection(tmp_path / "in", select={"channel": 1, "sample": slice(2, 9), "y": slice(1, 4)})
        return picked, x[2:9, 1:4, :, 1]


class TestTiffPages(Contract):
    """Many pages, one of them at a time."""

    options: ClassVar = {"compression": "lzw", "predictor": True}

    def make(self, tmp_path):
        x = values("u2")
        tifffile.imwrite(tmp_path / "x.tif", x, photometric="minisblack", metadata=None, **self.options)
        return open_collection(tmp_path / "x.tif"), x


class TestTiffPagesInThreads(TestTiffPages):
    @pytest.fixture(autouse=True)
    def threads(self, monkeypatch):
        use_threads(monkeypatch)


class TestTiffZstd(TestTiffPages):
    options: ClassVar = {"compression": "zstd", "tile": (16, 16)}


class TestTiffUncompressed(TestTiffPages):
    options: ClassVar = {"byteorder": ">"}


class TestTiffContiguous(Contract):
    """Written by tifffile in one run of bytes: read like a flat array."""

    def make(self, tmp_path):
        x = values("u2")
        tifffile.imwrite(tmp_path / "x.tif", x, photometric="minisblack")
        return open_collection(tmp_path / "x.tif"), x


class TestTiffNamedAxes(Contract):
    def make(self, tmp_path):
        x = values("u2", (2, 3, 4, 6, 5))
        tifffile.imwrite(tmp_path / "x.tif", x, imagej=True, metadata={"axes": "TZCYX"})
        picked = open_collection(tmp_path / "x.tif", select={"c": 2})
        return picked, x[:, :, 2].reshape(6, 6, 5)


class TestTiffOme(Contract):
    def make(self, tmp_path):
        x = values("u2", (2, 3, 4, 6, 5))
        path = tmp_path / "x.ome.tif"
        tifffile.imwrite(path, x, metadata={"axes": "TZCYX"}, compression="zlib", photometric="minisblack")
        return open_collection(path), x.reshape(6, 4, 6, 5)


# --- sample_axes and select, against numpy ---


@st.composite
def layouts(draw):
    """A small array, axes of one sample, and picks on some axes, with what they should give."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
    picks = {}
    for axis, length in enumerate(shape):
        choice = draw(st.sampled_from(["all", "one", "range"]))
        if choice == "one" and len(shape) - len([p for p in picks.values() if isinstance(p, int)]) > 2:
            picks[axis] = draw(st.integers(-length, length - 1))
        elif choice == "range":
            start = draw(st.integers(0, length - 1))
            picks[axis] = slice(start, draw(st.integers(start + 1, length)))
    kept = [axis for axis in range(len(shape)) if not isinstance(picks.get(axis), int)]
    inner = draw(st.permutations(kept))[: draw(st.integers(1, len(kept) - 1))]
    return shape, picks, kept, inner


@settings(max_examples=60)
@given(layouts(), st.sampled_from(["numpy", "dask", "npy C", "npy F", "zarr"]), st.data())
def test_sample_axes_and_select_agree_with_numpy(tmp_path_factory, layout, kind, data):
    shape, picks, kept, inner = layout
    x = np.arange(math.prod(shape), dtype="i4").reshape(shape)
    picked = x[tuple(picks.get(axis, slice(None)) for axis in range(len(shape)))]
    outer = [axis for axis in kept if axis not in inner]
    picked = picked.transpose([kept.index(axis) for axis in (*outer, *inner)])
    count = math.prod(picked.shape[: len(outer)])
    expected = picked.reshape(count, *picked.shape[len(outer) :])
    source = stored(x, kind, tmp_path_factory.mktemp("layout"))
    collection = open_collection(source, sample_axes=inner, select=picks)
    assert collection.shape == expected.shape
    rows = slice(*sorted(data.draw(st.tuples(*[st.integers(0, count)] * 2))))
    features = slice(*sorted(data.draw(st.tuples(*[st.integers(0, collection.n_features)] * 2))))
    np.testing.assert_array_equal(collection.read(rows, features), expected.reshape(count, -1)[rows, features])


def stored(x, kind, folder):
    if kind == "dask":
        return da.from_array(x, chunks=2)
    if kind.startswith("npy"):
        np.save(folder / "x.npy", np.asarray(x, order=kind[-1]))
        return folder / "x.npy"
    if kind == "zarr":
        zarr.create_array(folder / "x.zarr", data=x + 1, chunks=tuple(-(-n // 2) for n in x.shape))[...] = x
        return folder / "x.zarr" if x.any() else x
    return x


def test_names_of_axes_choose_the_sample():
    scene = xarray.DataArray(values(shape=(4, 5, 6)), dims=("band", "y", "x"))
    assert open_collection(scene).shape == (4, 5, 6)
    pixels = open_collection(scene, sample_axes=("band",))
    assert pixels.shape == (30, 4)
    assert pixels.axes == ("band",)
    assert pixels.where(7) == "sample 7 of xarray array (y 1, x 1)"
    coloured = xarray.DataArray(values(shape=(4, 5, 6, 3)), dims=("y", "x", "time", "channel"))
    assert open_collection(coloured).shape == (6, 4, 5, 3)
    assert open_collection(coloured, select={"channel": 0}).axes == ("y", "x")


def test_an_array_in_memory_is_not_copied():
    x = values()
    assert np.shares_memory(open_collection(x).read(slice(3, 9)), x)


def test_dask_computes_only_the_slice():
    computed = []

    def look(block, block_info=None):
        computed.append(block_info[0]["chunk-location"][0])
        return block

    lazy = da.from_array(values(), chunks=(5, 6, 5)).map_blocks(look, dtype="u1", meta=np.empty((0, 0, 0), "u1"))
    collection = open_collection(lazy)
    assert collection.chunks == Chunks(5, 30)
    collection.read(slice(6, 9))
    assert set(computed) == {1}


@pytest.mark.parametrize(
    ("chunks", "shards", "expected"),
    [
        ((5, 6, 5), None, (5, 30)),
        ((23, 6, 2), None, (23, 30)),
        ((23, 2, 5), None, (23, 10)),
        ((23, 1, 2), None, (23, 2)),
        ((2, 6, 5), (4, 6, 5), (2, 30)),
        ((100, 100, 100), None, (23, 30)),
    ],
)
def test_zarr_chunks_are_told_to_the_planner(tmp_path, chunks, shards, expected):
    zarr.create_array(tmp_path / "x.zarr", data=None, shape=(23, 6, 5), dtype="u1", chunks=chunks, shards=shards)[:] = 1
    assert open_collection(tmp_path / "x.zarr").chunks == expected


def test_npy_chunks_say_which_axis_is_fastest(tmp_path):
    np.save(tmp_path / "c.npy", np.zeros((40, 100, 100)))
    np.save(tmp_path / "f.npy", np.zeros((40, 100, 100), order="F"))
    assert open_collection(tmp_path / "c.npy").chunks == Chunks(1, 500)  # pages of 4096 bytes, in whole rows
    assert open_collection(tmp_path / "f.npy").chunks == Chunks(40, 1)


def test_zarr_reads_decode_only_what_they_touch(tmp_path, monkeypatch):
    zarr.create_array(tmp_path / "x.zarr", data=values(shape=(64, 8, 8)), chunks=(4, 8, 8))
    collection = open_collection(tmp_path / "x.zarr")
    monkeypatch.setattr("streampca.readers.zarr._PIECE", 4 * 64)
    boxes = []
    read = type(collection.array._handle).__getitem__
    monkeypatch.setattr(
        type(collection.array._handle), "__getitem__", lambda self, box: boxes.append(box) or read(self, box)
    )
    collection.read(slice(3, 9))
    assert [(box[0].start, box[0].stop) for box in boxes] == [(3, 4), (4, 8), (8, 9)]


def test_where_and_names(tmp_path):
    collection, _ = TestFolder().make(tmp_path)
    assert collection.where(11) == f"{tmp_path}/in/s2/11.png"
    assert list(collection.sample_names()) == [f"s{at // 4}/{at}.png" for at in range(12)]
    tifffile.imwrite(tmp_path / "b.tif", values("u2", (30, 8, 8)), compression="zlib")
    pages = open_collection(tmp_path / "b.tif")
    assert pages.where(11) == f"{tmp_path}/b.tif, page 12"
    assert pages.axes == ("y", "x")
    assert open_collection(tmp_path / "b.tif", select={0: slice(5, 9)}).where(0) == f"{tmp_path}/b.tif, page 6"


def test_natural_order():
    from streampca.readers.image_files.find import natural

    names = ["s10/1.pgm", "s2/10.pgm", "s2/9.pgm", "s1/1.pgm", "s2b/1.pgm", "a.pgm"]
    assert sorted(names, key=natural) == ["a.pgm", "s1/1.pgm", "s2/9.pgm", "s2/10.pgm", "s2b/1.pgm", "s10/1.pgm"]


def test_a_list_of_names_is_small():
    from streampca.readers.image_files.find import FileNames

    names = FileNames(f"folder/{at}.png" for at in range(10_000))
    assert names[9_999] == "folder/9999.png"
    assert names[-1] == names[9_999]
    assert names[3:5] == ["folder/3.png", "folder/4.png"]
    assert len(pickle.dumps(names)) < 250_000
    with pytest.raises(IndexError):
        names[10_000]


def test_lists_may_mix_absolute_and_relative_paths(tmp_path, monkeypatch):
    _, x = TestFolder().make(tmp_path)
    monkeypatch.chdir(tmp_path)
    mixed = open_collection(["in/s0/0.png", f"{tmp_path}/in/s1/4.png"])
    assert list(mixed.sample_names()) == ["s0/0.png", "s1/4.png"]
    np.testing.assert_array_equal(mixed.read(slice(0, 2)), x[[0, 4]].reshape(2, -1))
    assert open_collection("in").where(0) == "in/s0/0.png"


def test_list_file(tmp_path):
    _, x = TestFolder().make(tmp_path)
    (tmp_path / "in" / "list.txt").write_text("s0/0.png\n\ns2/11.png\n")
    listed = open_collection(f"@{tmp_path}/in/list.txt")
    np.testing.assert_array_equal(listed.read(slice(0, 2)), x[[0, 11]].reshape(2, -1))


def test_a_glob_of_one_thing_is_that_thing(tmp_path):
    np.save(tmp_path / "only.npy", values())
    assert open_collection(f"{tmp_path}/*.npy").shape == (23, 6, 5)


def test_palettes(tmp_path):
    grey = Image.new("P", (3, 2))
    grey.putdata([0, 1, 2, 2, 1, 0])
    grey.putpalette([0, 0, 0, 100, 100, 100, 200, 200, 200])
    grey.save(tmp_path / "grey.png")
    one = open_collection(tmp_path / "grey.png")
    assert one.shape == (1, 2, 3)
    assert one.read(slice(0, 1)).tolist() == [[0, 100, 200, 200, 100, 0]]
    grey.save(tmp_path / "clear.png", transparency=1)
    clear = open_collection(tmp_path / "clear.png")
    assert clear.shape == (1, 2, 3, 2)
    assert clear.read(slice(0, 1)).reshape(6, 2)[1].tolist() == [100, 0]


def test_deep_colour_png_keeps_16_bits(tmp_path):
    import imagecodecs

    x = values("u2", (6, 5, 3))
    (tmp_path / "deep.png").write_bytes(imagecodecs.png_encode(x))
    deep = open_collection(tmp_path / "deep.png")
    assert deep.dtype == "u2"
    np.testing.assert_array_equal(deep.read(slice(0, 1)), x.reshape(1, -1))


def test_fingerprints_change_with_the_source(tmp_path):
    path = tmp_path / "x.npy"
    prints = set()
    for array in (values(), values()[:20], values("f4")):
        np.save(path, array)
        prints.add(open_collection(path).fingerprint())
    prints |= {open_collection(values()).fingerprint(), open_collection(values() + 1).fingerprint()}
    assert len(prints) == 5
    collection, x = TestFolder().make(tmp_path)
    before = collection.fingerprint()
    Image.fromarray(x[3][::-1]).save(tmp_path / "in" / "s0" / "3.png", compress_level=0)
    assert open_collection(tmp_path / "in").fingerprint() != before


def test_collections_are_passed_through_and_third_parties_come_first(monkeypatch):
    from streampca import readers

    opened = open_collection(values())
    assert open_collection(opened) is opened
    assert isinstance(opened, ArrayCollection)
    assert isinstance(opened, streampca.Collection)
    row = readers.Format("odd", lambda source: source == {"odd"}, "streampca.readers.stored.array", "open_array")

    class Entry:
        load = staticmethod(lambda: row)

    monkeypatch.setattr(readers.registry, "entry_points", lambda group: [Entry()])
    readers.registry.readers.cache_clear()
    assert readers.registry.readers()[0] is row
    readers.registry.readers.cache_clear()


class TestGifFrames(Contract):
    """Also partly redrawn frames: most of a picture stays from one to the next."""

    cuts = 8

    def make(self, tmp_path):
        x = values("u1", (9, 12, 10))
        x[3:6, 4:] = x[2, 4:]
        first, *others = [Image.fromarray(image) for image in x]
        first.save(tmp_path / "x.gif", save_all=True, append_images=others, duration=40)
        return open_collection(tmp_path / "x.gif"), np.repeat(x[..., None], 3, axis=-1)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_frames_of_a_gif_cut_short_are_refused_by_name(tmp_path, share):
    TestGifFrames().make(tmp_path)
    path = tmp_path / "x.gif"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(SourceError, match=re.escape(str(path))) as caught:
        open_collection(path)
    assert "\n" not in str(caught.value)


def test_a_gif_of_frames_among_others_says_how_to_read_it(tmp_path):
    TestGifFrames().make(tmp_path)
    Image.new("L", (10, 12)).save(tmp_path / "y.gif")
    with pytest.raises(SourceError, match=r"several frames, .* give it alone to make each frame a sample"):
        open_collection(tmp_path)
