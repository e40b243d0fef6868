"""Real files read as they should, and broken, odd or ambiguous ones refused in one line that names them."""

from __future__ import annotations

import contextlib
import gc
import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import sys
import time
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import h5py
import numpy as np
import pytest
import scipy.sparse
import tifffile
import xarray
import zarr
from contract import everything, read_all, refused
from numpy.lib import format as npy_format
from PIL import Image
from shell import DATA, measured
from zarr.codecs import GzipCodec

from streampca.errors import RequestError, SourceError, StreampcaError
from streampca.readers import open_collection
from streampca.readers.idx import read_idx
from streampca.readers.npy import read_header
from streampca.units import MIB

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="references.json is not in ../shared/data")


# --- real data ---


@needs_data
def test_labels_of_mnist_are_no_images():
    labels = DATA / "mnist" / "train-labels-idx1-ubyte.gz"
    refused(labels, labels, "60000 labels", "give the images file as the source")
    assert np.bincount(read_idx(str(labels))).tolist()[:2] == [5923, 6742]


@needs_data
@pytest.mark.parametrize(
    ("name", "file", "shape", "options"),
    [
        ("orl", "orl", (400, 112, 92), {}),
        ("calcium", "calcium_imaging.tif", (1000, 30, 40), {}),
        ("zip_train", "zip_train.npz", (7291, 16, 16), {"key": "images"}),
        ("frey", "frey_faces.npy", (1965, 28, 20), {}),
        ("mnist60", "mnist/train-images-idx3-ubyte.gz", (60000, 28, 28), {}),
    ],
)
def test_real_collections_are_those_of_the_references(name, file, shape, options):
    reference = json.loads((DATA / "references.json").read_text())[name]
    collection = open_collection(DATA / file, **options)
    read = read_all(collection)
    for start, stop in ((0, 90), (300, 301), (100, len(read))):  # back and forth
        np.testing.assert_array_equal(collection.read(slice(start, stop)), read[start:stop].reshape(stop - start, -1))
    assert read.shape == shape
    assert read.dtype == reference["dtype"]
    assert hashlib.sha256(read.tobytes()).hexdigest() == reference["sha256_raw_matrix"]


# --- refused, by format ---


def test_missing_paths_say_what_there_is_instead(tmp_path):
    (tmp_path / "scans").mkdir()
    refused(tmp_path / "scan" / "x.npy", "does not exist", "no 'scan' in", "Did you mean 'scans'")
    refused(f"{tmp_path}/scans/*.png", "matches no files")
    refused("@" + str(tmp_path / "no.txt"), "cannot be read as a list")
    refused([], "list of image files is empty")
    refused([tmp_path / "no.png"], tmp_path / "no.png", "does not exist")
    refused(3, "an object of type int is not a collection")


def test_npy_headers_are_read_by_threads():
    """Collections of garbage between the steps of parsing let other threads parse, which Python 3.11 cannot bear."""

    class Yielding:
        """Garbage that lets another thread run when it is collected."""

        def __init__(self):
            self.cycle = self

        def __del__(self):
            time.sleep(0)

    file = io.BytesIO()
    np.save(file, np.zeros((3, 4, 5)))

    def parse(_):
        Yielding()
        return read_header(io.BytesIO(file.getvalue()), "x.npy").shape

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(5)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert {*threads.map(parse, range(6000))} == {(3, 4, 5)}
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def test_npy_refusals(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((10, 4)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    refused(path, path, f"has {len(whole) - 1} bytes", f"announces {len(whole)}", "cut short")
    path.write_bytes(whole[:20])
    refused(path, path, "broken .npy header")
    path.write_bytes(b"")
    refused(path, path, "broken .npy header")
    np.save(path, np.array([{"a": 1}] * 3, dtype=object), allow_pickle=True)
    refused(path, path, "dtype object", "never unpickled")
    np.save(path, np.array(["a", "b"]))
    refused(path, path, "dtype <U1")
    np.save(path, np.zeros((3, 2), complex))
    refused(path, path, "dtype complex128", "real part")
    np.save(path, np.zeros(3, [("a", "i4")]))
    refused(path, path, "save it again with a numeric dtype")
    np.save(path, np.zeros(7))
    refused(path, path, "shape (7,)", "axis of samples")
    np.save(path, np.zeros((0, 7)))
    refused(path, path, "shape (0, 7)", "no values")
    np.save(path, np.zeros((2, 7)))
    refused(path, "key 'x' was given", "leave key out", error=RequestError, key="x")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_npy(tmp_path, version):
    x = np.arange(12.0).reshape(3, 4)
    with (tmp_path / "x.npy").open("wb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy advises against versions that old programs cannot read
        npy_format.write_array(file, x, version)
    np.testing.assert_array_equal(everything(tmp_path / "x.npy"), x)


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((100, 100)))
    collection = open_collection(path)
    os.truncate(path, 5000)
    with pytest.raises(SourceError, match=r"x\.npy ends at byte 5000, \d+ bytes short"):
        collection.read(slice(0, 100))
    path.unlink()
    with pytest.raises(SourceError, match=r"x\.npy cannot be opened"):
        pickle.loads(pickle.dumps(collection)).read(slice(0, 1))  # noqa: S301 - made here


def test_npz_refusals(tmp_path):
    path = tmp_path / "x.npz"
    x = np.arange(600, dtype="u1").reshape(20, 30)
    np.savez(path, a=x, b=x.astype("f4"), c=np.arange(3))
    message = refused(path, "holds 2 arrays, a (20 x 30 uint8), b (20 x 30 float32);", "key='a'")
    np.testing.assert_array_equal(everything(path, key=message.split("key='")[1].split("'")[0]), x)
    refused(path, "no array 'd'", "it holds a (20 x 30", error=RequestError, key="d")
    np.savez(path, images=x, labels=np.arange(20))
    np.testing.assert_array_equal(everything(path), x)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, path, "not a whole .npz archive")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "no arrays")
    refused(path, path, "holds no arrays")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", "nonsense")
    refused(path, path, "broken .npy header")
    noise = np.random.default_rng(0).integers(0, 255, (50, 1000), dtype="u1")
    np.savez_compressed(path, images=noise)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)
    refused(path, path, "array 'images' cannot be decoded", "damaged")


def idx_bytes(*shape, code=8, body=None):
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape) + (
        bytes(np.prod(shape)) if body is None else body
    )


def test_idx_refusals(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(idx_bytes(5, 4, 3)[:-1])
    refused(path, path, "has 75 bytes", "(5 x 4 x 3 uint8) announces 76", "cut short")
    path.write_bytes(b"hello world, not IDX")
    refused(path, path, "is not an IDX file", "68 65 6c 6c")
    path.write_bytes(idx_bytes(5, 4, 3)[:9])
    refused(path, path, "ends inside its IDX header")
    path.write_bytes(b"")
    refused(path, path, "(none)")
    zipped = tmp_path / "train-images-idx3-ubyte.gz"
    whole = gzip.compress(idx_bytes(50, 40, 30, body=os.urandom(60000)))
    zipped.write_bytes(whole[: len(whole) // 2])
    refused(zipped, zipped, "cut short")
    zipped.write_bytes(gzip.compress(idx_bytes(5000, 400, 300, body=b"")))
    refused(zipped, zipped, "gzipped", "announces 600000016")
    damaged = bytearray(whole)
    damaged[-5] ^= 0xFF
    damaged[300] ^= 0xFF
    zipped.write_bytes(damaged)
    refused(zipped, zipped, "copy it again")
    zipped.write_bytes(b"<html>not found</html>")
    refused(zipped, zipped, "is not an IDX file", "downloaded whole")


def test_idx_is_told_by_its_content(tmp_path):
    (tmp_path / "other").write_bytes(idx_bytes(5, 4, 3) + b"more")
    refused(tmp_path / "other", "not of a known format")


@pytest.mark.parametrize("form", ["h5", "zarr"])
def test_sparse_matrices_in_files_are_refused_by_name(tmp_path, form):
    """As AnnData stores them, beside a dense array that was taken in their place."""
    path, x = tmp_path / f"cells.{form}", scipy.sparse.random_array((20, 30), density=0.1, format="csr", rng=0)
    file = h5py.File(path, "w") if form == "h5" else zarr.open_group(path, mode="w")
    for name in ("data", "indices", "indptr"):
        values = getattr(x, name)
        file.create_dataset(f"X/{name}", data=values) if form == "h5" else file.create_array(f"X/{name}", data=values)
    pca = np.arange(60.0).reshape(20, 3)
    file.create_dataset("obsm/X_pca", data=pca) if form == "h5" else file.create_array("obsm/X_pca", data=pca)
    if form == "h5":
        file.close()
    message = refused(path, "holds X as a sparse matrix", "one of scipy.sparse", "key='obsm/X_pca'")
    np.testing.assert_array_equal(everything(path, key=message.split("key='")[1].split("'")[0]), pca)
    refused(path, "as a sparse matrix", key="X")
    scipy.sparse.save_npz(tmp_path / "x.npz", x)
    refused(tmp_path / "x.npz", "such as scipy.sparse.load_npz(path).")


def test_zarr_refusals(tmp_path):
    path = tmp_path / "x.zarr"
    group = zarr.open_group(path, mode="w")
    refused(path, path, "group without arrays")
    x = np.arange(600, dtype="f4").reshape(20, 30)
    group.create_array("a", data=x, chunks=(7, 30))
    group.create_array("b/c", data=x + 1, chunks=(7, 30))
    group.create_array("times", data=np.arange(20))
    message = refused(path, "holds 2 arrays, a (20 x 30 float32), b/c (20 x 30 float32);")
    np.testing.assert_array_equal(everything(path, key=message.split("key='")[1].split("'")[0]), x)
    np.testing.assert_array_equal(everything(path, key="b"), x + 1)
    refused(path, "no array 'd'", error=RequestError, key="d")
    refused(path / "a", "single Zarr array", error=RequestError, key="a")
    chunk = path / "a" / "c" / "1" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    refused(path, path, "array 'a' cannot be read at [0:20, 0:30]", "damaged", key="a")
    np.testing.assert_array_equal(open_collection(path, key="a").read(slice(14, 20)), x[14:])
    group.create_array("empty", shape=(20, 30), dtype="f4", chunks=(7, 30))
    refused(path, "array 'empty' has none of its values stored", key="empty")
    group.create_array("z", data=x.astype(complex))
    refused(path, "array 'z' has dtype complex", key="z")
    (path / "zarr.json").write_text("{")
    refused(path, path, "not a whole Zarr store")
    (path / "zarr.json").unlink()
    refused(path, path, "holds no images", "has zarr.json or .zarray")


def test_zarr_parts_that_are_not_stored_are_logged(tmp_path, caplog):
    array = zarr.create_array(tmp_path / "x.zarr", shape=(20, 30), dtype="f4", chunks=(5, 30))
    array[:10] = 1
    with caplog.at_level("WARNING", "streampca"):
        read = everything(tmp_path / "x.zarr")
    assert (read[10:] == 0).all()
    assert "has 2 of 4 chunks stored; the others read as 0.0" in caplog.text


def picture(path, shape=(8, 6), value=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, "u1")).save(path, **options)
    return path


def test_folder_refusals(tmp_path):
    folder = tmp_path / "scans"
    folder.mkdir()
    refused(folder, folder, "matches no files")
    (folder / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")
    (folder / "c").write_text("c")
    refused(folder, folder, "holds no images", ".txt (2), none (1)")
    for name in ("a", "b", "d"):
        picture(folder / f"{name}.png")
    picture(folder / "c.png", (5, 6))
    refused(folder, "several sizes", folder / "c.png (5 x 6)", "a.png (8 x 6)", "resize=(64, 64)", "on_bad_file='skip'")
    picture(folder / "c.png", (8, 6, 3))
    refused(folder, folder / "c.png (8 x 6 x 3)", "grey=True")
    Image.new("CMYK", (6, 8)).save(folder / "c.jpg")
    (folder / "c.png").unlink()
    refused(folder, folder / "c.jpg", "colours stored as CMYK", "convert('RGB')")
    (folder / "c.jpg").unlink()
    frames = [Image.new("L", (6, 8), at) for at in (1, 200)]
    frames[0].save(folder / "c.gif", save_all=True, append_images=frames[1:])
    refused(folder, folder / "c.gif", "several frames")
    (folder / "c.gif").unlink()
    tifffile.imwrite(folder / "c.tif", np.zeros((4, 8, 6), "u1"), photometric="minisblack")
    refused(folder, folder / "c.tif", "has 4 pages", "give it alone")
    assert open_collection(folder / "c.tif").shape == (4, 8, 6)
    (folder / "c.tif").unlink()
    assert open_collection(folder).shape == (3, 8, 6)


def test_a_file_not_looked_at_on_opening_is_checked_when_decoded(tmp_path):
    for at in range(200):
        picture(tmp_path / f"{at}.pgm")
    picture(tmp_path / "1.pgm", (9, 6))
    collection = open_collection(tmp_path)
    with pytest.raises(SourceError, match=r"1\.pgm is 9 x 6 uint8, unlike most images .*8 x 6 uint8"):
        collection.read(slice(0, 10))
    assert (collection.read(slice(2, 200)) == 0).all()
    (tmp_path / "5.pgm").unlink()
    with pytest.raises(SourceError, match=r"5\.pgm cannot be opened"):
        collection.read(slice(2, 10))


def test_broken_images_are_named(tmp_path):
    path = tmp_path / "x.png"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (64, 64), dtype="u1")).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:2000])
    refused(path, path, "cannot be decoded", "leave it out")
    path.write_bytes(whole[:16] + struct.pack(">II", 2**30, 2**30) + whole[24:])
    refused(path, path)
    path.write_bytes(b"\x89HDF\r\n\x1a\n")
    refused(path, path, "cannot be opened as HDF5")
    other = tmp_path / "other.png"
    Image.fromarray(np.zeros((64, 64), "u1")).save(other)
    refused([other, path], path, "it is HDF5", "give it alone")
    path.write_text("no image")
    refused(path, path, "not of a known format")
    (tmp_path / "x.pgm").write_bytes(b"P5 6 8 255\n" + bytes(47))
    refused(tmp_path / "x.pgm", "x.pgm", "47 bytes of pixels and 48 are announced")
    for text in ("P2 2 2 255\n300 1 2 3\n", "P2 2 2 255\n-1 1 2 3\n", "P1 2 2\n1 0 2 1\n"):
        (tmp_path / "x.pgm").write_text(text)
        refused(tmp_path / "x.pgm", "x.pgm", "a pixel is", "and the header says 0 to")
    Image.fromarray(np.zeros((5000, 5000), "u1")).save(path)
    assert open_collection(path).shape == (1, 5000, 5000)
    packed = gif_bomb(tmp_path / "bomb.gif")
    refused(packed, packed, "claims 60000 x 60000 uint8", "times its size")


def gif_bomb(path):
    path.write_bytes(b"GIF89a" + struct.pack("<HHBBB", 60000, 60000, 0x80, 0, 0) + bytes(6) + b"," +
                     struct.pack("<HHHHB", 0, 0, 60000, 60000, 0) + b"\x02\x02L\x01\0;")  # fmt: skip
    return path


def test_tiff_refusals(tmp_path):
    path = tmp_path / "x.tif"
    x = np.arange(4000, dtype="u2").reshape(5, 40, 20)
    with tifffile.TiffWriter(path) as writer:
        for page in x:
            writer.write(page, metadata=None, contiguous=False)
    np.testing.assert_array_equal(everything(path), x)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 3000])
    refused(path, path, "cut short")
    with tifffile.TiffWriter(path) as writer:
        for page in (x[0], x[1], x[2, :30]):
            writer.write(page, metadata=None, contiguous=False)
    refused(path, f"{path}, page 3 is 30 x 20 uint16", "unlike its first page (40 x 20 uint16)")
    tifffile.imwrite(path, np.zeros((4, 8, 6, 4), "u1"), photometric="separated", metadata=None)
    refused(path, path, "SEPARATED")
    tifffile.imwrite(path, x.astype("c8"), metadata=None, photometric="minisblack")
    refused(path, path, "complex64")
    tifffile.imwrite(path, x, photometric="minisblack")
    path.write_bytes(path.read_bytes()[:-900])
    refused(path, path, "cut short")


def test_array_refusals():
    refused(np.zeros((3, 4), complex), "numpy array has dtype complex128")
    refused(np.float64(3), "shape ()")
    refused(scipy.sparse.eye_array(4).astype(complex), "dia matrix has dtype complex128")
    refused(scipy.sparse.coo_array(np.arange(4)), "coo matrix has shape (4,)")
    lazy = da.from_array(np.arange(12).reshape(6, 2), chunks=2)
    refused(lazy[lazy[:, 0] > 3], "not known yet", "compute_chunk_sizes")

    def fail(block):
        raise OSError("disk on fire")

    refused(lazy.map_blocks(fail, dtype="i8", meta=np.empty((0, 0), "i8")), "dask array cannot be read", "disk on fire")
    lying = da.from_array(np.zeros((6, 2))).map_blocks(np.float32, dtype="f8", meta=np.empty((0, 0)))
    refused(lying, "gave float32 values", "for a slice of float64")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sample_axes": (5,)}, "has no axis 5; its axes are numbered 0 to 2"),
        ({"sample_axes": ("why",)}, "has no axis 'why'; its axes are time, y, x"),
        ({"sample_axes": ()}, "must name at least one axis"),
        ({"sample_axes": (1, "y")}, "each once"),
        ({"sample_axes": (0, 1, 2)}, "leave one to count samples"),
        ({"sample_axes": ("y",), "select": {"y": 0}}, "is in sample_axes and in select"),
        ({"select": {"time": 0}}, "is a single image (axes y, x)"),
        ({"select": {"time": slice(3, 3)}}, "not a range with step 1"),
        ({"select": {"time": slice(0, 3, 2)}}, "not a range with step 1"),
        ({"select": {"time": 9}}, "takes entry 9; it has 4 entries, numbered 0 to 3"),
        ({"select": {"time": [1, 2]}}, "give one whole number or a slice"),
        ({"select": {"time": 1, 0: 2}}, "twice, also as 'time'; name it once"),
        ({"key": "x"}, "holds a single array"),
    ],
)
def test_axes_refusals(options, words):
    named = xarray.DataArray(np.zeros((4, 5, 6)), dims=("time", "y", "x"))
    refused(named, words, error=RequestError, **options)


def test_no_error_of_a_decoder_leaves_warnings_changed(tmp_path):
    before = list(warnings.filters)
    path = picture(tmp_path / "a.png")
    whole = path.read_bytes()

    def attempt(at):
        broken = tmp_path / f"{at}.png"
        broken.write_bytes(whole[: 20 + at % 40])
        with contextlib.suppress(StreampcaError):
            everything(broken)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(attempt, range(100)))
    assert list(warnings.filters) == before


BESIDE = """
import json, sys
from streampca.machine import PeakMeter
from streampca.readers import open_collection
collection = open_collection(sys.argv[1])
collection.read(slice(0, 1))
meter = PeakMeter()
for _ in range(2):
    block = collection.read(slice(0, collection.n_samples))
    size = block.nbytes
    del block
print(json.dumps({"peak": meter.peak(), "block": size, "promised": collection.storage.decode_bytes}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zarr", "sharded", "fortran", "compressed"])
def test_a_read_holds_little_beside_its_block(tmp_path, kind):
    # 64 MiB, which repeat themselves so that compressing them takes no time
    x = np.tile(np.random.default_rng(0).integers(0, 99, (1, 8, 64)).astype("f8"), (2048, 8, 1))
    path = tmp_path / {"fortran": "x.npy", "compressed": "x.npz"}.get(kind, "x.zarr")
    if kind == "fortran":
        np.save(path, np.asarray(x, order="F"))
    elif kind == "compressed":
        np.savez_compressed(path, x)
    else:
        zarr.create_array(path, data=x, chunks=(128, 64, 64), shards=(2048, 64, 64) if kind == "sharded" else None)
    found = measured(BESIDE, path)
    assert found["peak"] - found["block"] < found["promised"] + 16 * MIB
    assert found["promised"] <= 96 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(("codec", "chunks"), [("zstd", 3), pytest.param("gzip", 5, marks=pytest.mark.campaign)])
def test_a_read_holds_one_chunk_and_its_bytes(tmp_path, codec, chunks):
    """In any of Zarr's threads, chunks of 12 MiB held 58 to 89 MiB beside the block."""
    n = 12 * MIB // 32
    options = {"compressors": [GzipCodec(level=1)]} if codec == "gzip" else {}
    made = zarr.create_array(tmp_path / "x.zarr", shape=(n, 6, 8), dtype="f4", chunks=(n, 1, 8), **options)
    noise = np.random.default_rng(0).random((n, 8), dtype=np.float32)
    for row in range(6):
        made[:, row] = np.roll(noise, row)
    found = measured(BESIDE, tmp_path / "x.zarr")
    assert found["peak"] - found["block"] <= found["promised"] <= chunks * 12 * MIB
