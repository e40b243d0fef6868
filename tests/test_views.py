"""Collections made of others: several sources joined, some samples chosen, images cut into windows."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from pathlib import Path

import by_options
import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import tifffile
import xarray
import zarr
from contract import refused_as
from PIL import Image
from sources import SOURCES

from streampca.errors import RequestError, SourceError
from streampca.readers import Chunks, Collection, Storage, open_collection
from streampca.readers.views.chosen import Chosen
from streampca.readers.views.joined import Joined
from streampca.readers.views.patches import Patches


def values(shape=(23, 6, 5), dtype="u1", seed=7):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 255, size=shape).astype(dtype)


class Recorded(Collection):
    """An array that counts what is read of it, in chunks of some samples."""

    def __init__(self, x, samples=1):
        self.source, self.shape, self.dtype, self.x = "recorded", x.shape, x.dtype, x
        self.storage, self.reads = Storage(Chunks(samples, self.n_features)), []

    def read(self, rows, features=None):
        self.reads.append((rows.start, rows.stop))
        return self.x.reshape(len(self.x), -1)[rows, features or slice(None)]


@pytest.mark.parametrize(
    ("name", "at", "place"),
    [
        ("joined images", 1, "{}/part9.zarr"),
        ("chosen files", 0, "{}/in/s1/7.png"),
        ("chosen twice", 2, "sample 1 of {}/part10.npy"),
        ("patches of a stack", 15, "{}/x.tif, page 3, rows 3:7, columns 0:3"),
        ("patches of joined", 2, "image 1 of {}/part8.npy, rows 0:3, columns 3:6"),
    ],
)
def test_samples_are_placed_in_the_words_of_their_source(tmp_path, name, at, place):
    assert SOURCES[name](tmp_path)[0].where(at) == place.format(tmp_path)


def test_views_know_chunks_names_and_axes(tmp_path):
    def of(name):
        (tmp_path / name).mkdir()
        return SOURCES[name](tmp_path / name)[0]

    assert of("joined zarr").chunks == (2, 12)
    assert list(of("joined images").sample_names()) == ["part8.zarr", "part9.zarr", "part10.zarr"]
    assert list(of("chosen files").sample_names()) == ["s1/7.png", "s0/1.png", "s0/2.png"]
    assert isinstance(of("chosen twice").base, Joined)
    assert of("patches, colour first").axes == ("y", "x", "c")


# --- joined ---


def test_what_parts_kept_open_hold_is_counted(tmp_path):
    for at in range(12):
        with h5py.File(tmp_path / f"{at}.h5", "w") as file:
            file.create_dataset("x", data=values((2, 300, 700), "u1", at), chunks=(2, 300, 700), compression="lzf")
    found = open_collection(tmp_path)
    for at in range(24):
        found.read(slice(at, at + 1))
    assert sum(part.storage.decode_bytes for part in found._open.values()) <= found.storage.decode_bytes


def test_tables_name_images_too(tmp_path):
    for at in range(3):
        Image.fromarray(values((4, 5), seed=at)).save(tmp_path / f"{at}.png")
    (tmp_path / "table.tsv").write_text("path\tdigit\n2.png\t7\n0.png\t8\n")
    found = open_collection(f"{tmp_path}/table.tsv:path", labels=f"{tmp_path}/table.tsv:digit")
    assert list(found.sample_names()) == ["2.png", "0.png"]
    assert found.labels.tolist() == [7, 8]


def test_joined_says_where(tmp_path):
    for name in "ab":
        tifffile.imwrite(tmp_path / f"{name}.tif", values((3, 4, 5)), photometric="minisblack")
    found = open_collection(f"{tmp_path}/*.tif")
    assert isinstance(found, Joined)
    assert found.where(4) == f"{tmp_path}/b.tif, page 2"
    assert found.named(4) == f"{tmp_path}/b.tif, page 2 (sample 4)"


def test_joined_holds_few_files_open(tmp_path):
    for at in range(50):
        np.save(tmp_path / f"{at}.npy", values((2, 3)))
    found = open_collection(f"{tmp_path}/*.npy")
    found.read(slice(0, 100))
    assert len(found._open) <= 32


def test_files_are_read_ahead_as_one_would_be(tmp_path):
    """Into memory that is there, across files: what is read is counted twice, and the bits are those of one array."""
    x = values((300, 12, 12), "f4")
    for number, part in enumerate(np.split(x, [70, 71, 200])):
        np.save(tmp_path / f"{number}.npy", part)
    np.save(tmp_path / "one.npy", x)
    how = {"n_components": 3, "method": "covariance", "memory": "16 MiB"}
    one, many = (by_options.fit(str(tmp_path / name), **how) for name in ("one.npy", "[0-9].npy"))
    assert many.provenance["plan"]["ahead"] == one.provenance["plan"]["ahead"] == 1
    np.testing.assert_array_equal(many.components, one.components)


def test_joined_refuses_what_does_not_fit(tmp_path):
    np.save(tmp_path / "0.npy", values((2, 3, 3)))
    np.save(tmp_path / "1.npy", values((2, 3, 3), "f4"))
    refused_as(tmp_path, r"1\.npy has values of dtype float32.*\(uint8\); give dtype='float32'")
    np.save(tmp_path / "1.npy", values((2, 3, 4)))
    refused_as(tmp_path, r"1\.npy has images of 3 x 4, unlike .*\(3 x 3\)")
    np.save(tmp_path / "1.npy", values((2, 3, 3)).astype("u1"))
    assert open_collection(tmp_path).shape == (4, 3, 3)


def test_joined_skips_bad_files(tmp_path):
    np.save(tmp_path / "0.npy", values((2, 3, 3)))
    (tmp_path / "1.npy").write_bytes(b"\x93NUMPY")
    np.save(tmp_path / "2.npy", values((2, 3, 3), "f4"))
    np.save(tmp_path / "3.npy", values((1, 3, 3)))
    refused_as(tmp_path, r"1\.npy")
    found = open_collection(tmp_path, on_bad_file="skip")
    assert found.shape == (3, 3, 3)
    assert [Path(bad.path).name for bad in found.skipped] == ["1.npy", "2.npy"]
    assert "float32" in found.skipped[1].reason
    for name in "03":
        (tmp_path / f"{name}.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "2.npy").unlink()
    refused_as(tmp_path, "has no file that can be read", on_bad_file="skip")


def test_joined_notices_a_changed_part(tmp_path):
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", values((2, 3, 3)))
    found = open_collection(tmp_path)
    before = found.fingerprint()
    np.save(tmp_path / "b.npy", values((3, 3, 3)))
    assert open_collection(tmp_path).fingerprint() != before
    with pytest.raises(SourceError, match=r"b\.npy is 3 x 3 x 3 uint8 and was 2 x 3 x 3 uint8"):
        found.read(slice(0, 4))


# --- chosen ---


def test_chosen_decodes_each_chunk_once(monkeypatch):
    monkeypatch.setattr("streampca.readers.views.blocks._PIECE", 1)
    base = Recorded(values((40, 3)), samples=8)
    Chosen(base, range(1, 40, 3)).read(slice(0, 13))
    assert base.reads == [(1, 8), (10, 14), (16, 23), (25, 32), (34, 38)]
    base.reads.clear()
    Chosen(base, range(5, 25)).read(slice(0, 20))
    assert base.reads == [(5, 25)]
    assert Chosen(base, range(5, 25)).storage.decode_bytes == 0


def test_chosen_holds_a_bounded_piece(monkeypatch):
    monkeypatch.setattr("streampca.readers.views.blocks._PIECE", 30)
    base = Recorded(values((400, 3)), samples=1)
    chosen = Chosen(base, np.sort(np.random.default_rng(0).permutation(400)[:200]).astype("i4"))
    chosen.read(slice(0, 200))
    assert max(stop - start for start, stop in base.reads) <= 10
    assert chosen.storage.decode_bytes == 30


def test_chosen_compactly():
    x = np.broadcast_to(np.uint8(0), (10_000_000, 2, 2))
    found = open_collection(x, samples=np.arange(0, 10_000_000, 100))
    assert found.places == range(0, 9_999_901, 100)
    mask = np.zeros(1000, bool)
    mask[[3, 4, 90]] = True
    found = open_collection(x[:1000], samples=mask)
    assert found.places.dtype == np.int32
    assert found.places.tolist() == [3, 4, 90]


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (slice(5, 5), "samples 5:5 takes none of the 23 samples of numpy array"),
        (slice(0, 24), "samples 0:24 reaches beyond the 23 samples"),
        (slice(0, 20, 0), "has a step below 1"),
        (slice(20, 0, -1), "has a step below 1"),
        ((0, "a"), "not whole numbers"),
        ([1, 23], "names sample 23 of numpy array; it has 23, numbered 0 to 22"),
        ([-1, 2], "names sample -1"),
        ([1, 2, 1], "names sample 1 of numpy array twice"),
        ([], "takes none"),
        ([0.5], "float64 values"),
        ([[1], [1, 2]], "give a slice"),
        (7, "give a slice"),
    ],
)
def test_choices_that_make_no_sense(samples, said):
    refused_as(values(), said, error=RequestError, samples=samples)


def test_each_of_chosen():
    x = values()
    found = Chosen(Recorded(x), np.array([2, 3, 9]))
    given = {}
    found.each(slice(1, 3), lambda at, image: given.__setitem__(at, image.copy()))
    np.testing.assert_array_equal([given[0], given[1]], x[[3, 9]])


def test_another_choice_is_another_fingerprint():
    x = open_collection(values())
    prints = [open_collection(x, samples=some).fingerprint() for some in ((0, 5), (0, 9, 2), [0, 2, 7], [0, 2, 8])]
    assert len({x.fingerprint(), *prints}) == 5


# --- patches ---


def test_patches_read_bands_only(monkeypatch):
    monkeypatch.setattr("streampca.readers.views.patches._PIECE", 1)
    monkeypatch.setattr("streampca.readers.views.patches._LARGEST", 1)
    read = []
    image = values((40, 10))[None]

    class Watched(Recorded):
        def read(self, rows, features=None):
            read.append((features.start // 10, features.stop // 10))
            return super().read(rows, features)

    found = Patches(Watched(image), {"size": 4, "step": 2})
    found.read(slice(9, 13))  # four windows to a row of them: of the third and fourth
    assert read == [(4, 8), (6, 10)]
    assert found.storage.decode_bytes == 40
    assert found.chunks == (4, 16)


def test_patches_of_a_large_image_take_little_memory():
    """A band of an image of 400 MB that exists only where it is read."""
    found = open_collection(np.broadcast_to(np.uint8(1), (20000, 20000)), patches=16)
    assert found.shape == (1250 * 1250, 16, 16)
    assert found.storage.decode_bytes <= 8 * 2**20
    assert found.read(slice(1_000_000, 1_000_010)).sum() == 2560


@pytest.mark.parametrize(
    ("patches", "said"),
    [
        (0, "not whole numbers from 1"),
        ((4, 2.5), "not whole numbers from 1"),
        ("16", "not whole numbers"),
        ({"sides": 3}, "give {size: "),
        ({"size": (3, 3), "step": (1,)}, "2 sides and 1 steps"),
        (7, "do not fit the images of numpy array, which are 6 x 5; give at most 6 x 5"),
        ((2, 2, 2, 2), "4 sides and the images of numpy array are 6 x 5"),
    ],
)
def test_patches_that_make_no_sense(patches, said):
    refused_as(values(), said, error=RequestError, patches=patches)


def test_volumes_are_not_cut_flat():
    refused_as(values((4, 10, 8, 8)), "give a side for every axis", error=RequestError, patches=4)


def test_a_single_image_is_refused_with_remedies_that_work(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=(9, 8), dtype="u1", dimension_names=("y", "x"))
    array[...] = values((9, 8))
    refused_as(array, r"single image \(axes y, x\).*by patches=4, or .* by sample_axes=\('x',\)", error=RequestError)
    assert open_collection(array, patches=4).shape == (4, 4, 4)
    assert open_collection(array, sample_axes=("x",)).shape == (9, 8)
    refused_as(values((9, 8)), "takes every axis", error=RequestError, sample_axes=(0, 1))
    assert open_collection(values((9, 8)), sample_axes=(0, 1), patches=4).shape == (4, 4, 4)


def test_compositions_pickle_small(tmp_path):
    for at in range(200):
        np.save(tmp_path / f"{at}.npy", values((2, 8, 8)))
    found = open_collection(tmp_path, patches=4, samples=(0, None, 3))
    found.read(slice(0, found.n_samples))
    assert len(pickle.dumps(found)) < 10_000


# --- objects that are computed, or hold several arrays ---


def counting(x, chunks, made):
    """A dask array that notes every chunk it makes."""

    def make(block, block_info=None):
        made.append(block_info[None]["chunk-location"])
        return block

    return da.from_array(x, chunks=chunks).map_blocks(make, dtype=x.dtype, meta=np.empty((0,) * x.ndim, x.dtype))


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: xarray.DataArray(x, dims=("time", "lat", "lon"))])
def test_dask_computes_the_chunks_asked_for_only(wrap):
    x, made = values((12, 6, 4)), []
    found = open_collection(wrap(counting(x, (3, 3, 4), made)))
    assert found.chunks == (3, 12)
    assert not made
    np.testing.assert_array_equal(found.read(slice(3, 6), slice(0, 8)), x[3:6, :2].reshape(3, -1))
    assert made == [(1, 0, 0)]
    made.clear()
    np.testing.assert_array_equal(found.read(slice(0, 12)), x.reshape(12, -1))
    assert sorted(made) == sorted(np.ndindex(4, 2, 1))
    found.read(slice(0, 3))
    assert len(made) == 10  # nothing is kept


def test_dask_is_computed_on_its_own_scheduler():
    used = []

    def scheduler(graph, keys, **options):
        used.append(True)
        return dask.get(graph, keys, **options)

    found = open_collection(da.from_array(values(), chunks=5))
    with dask.config.set(scheduler=scheduler):
        found.read(slice(0, 9))
    assert used


def test_dask_is_computed_in_pieces(monkeypatch):
    monkeypatch.setattr("streampca.readers.dask._PIECE", 60)
    x = values((40, 6, 5))
    sizes = []

    class Watched:
        shape, dtype, chunks = x.shape, x.dtype, da.from_array(x, chunks=(1, 6, 5)).chunks

        def __dask_graph__(self):
            return {"x": 1}

        def __getitem__(self, box):
            sizes.append(x[box].size)
            return x[box]

    found = open_collection(Watched())
    np.testing.assert_array_equal(found.read(slice(0, 40)), x.reshape(40, -1))
    assert max(sizes) <= 60
    assert found.storage.decode_bytes >= 120


def holders(tmp_path, opened):
    """Objects that hold arrays a (4 x 3 x 3) and b (4 x 5 x 5)."""
    a, b = np.zeros((4, 3, 3)), np.zeros((4, 5, 5))
    np.savez(tmp_path / "x.npz", a=a, b=b)
    yield opened.enter_context(np.load(tmp_path / "x.npz"))
    file = opened.enter_context(h5py.File(tmp_path / "x.h5", "w"))
    file["a"], file["b"] = a, b
    yield file
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("a", data=a)
    group.create_array("b", data=b)
    yield group
    yield xarray.Dataset({"a": (("t", "y", "x"), a), "b": (("t", "lat", "lon"), b)})
    yield {"a": a, "b": da.from_array(b)}


@pytest.mark.parametrize("which", range(5), ids=["npz", "h5py", "zarr", "xarray", "dict"])
def test_objects_of_several_arrays_ask_for_a_key(tmp_path, which):
    with ExitStack() as opened:
        source = list(holders(tmp_path, opened))[which]
        several = r"holds 2 arrays, b \(4 x 5 x 5 float64\), a \(4 x 3 x 3 float64\).*key='b'"
        refused_as(
            source, r"'b' of xarray array has samples of 5 x 5.*key='a'" if hasattr(source, "data_vars") else several
        )
        assert open_collection(source, key="a").shape == (4, 3, 3)
        refused_as(source, r"has no array 'c'; it holds [ab] ", error=RequestError, key="c")
