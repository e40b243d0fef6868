"""Every reader passes the same contract, on the small sources of `sources.py`; axes, names and places of samples."""

from __future__ import annotations

import math

import dask.array as da
import numpy as np
import pytest
import tifffile
import xarray
import zarr
from contract import WholeContract, over, refused, refused_as, values
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sources import IN_PIECES, SOURCES

import streampca
from streampca.readers import Chunks, open_collection
from streampca.readers.stored.array import ArrayCollection


@over(SOURCES)
class TestReaders(WholeContract):
    pass


@pytest.fixture(scope="class")
def small():
    """Pieces of a few bytes, and threads for what is not worth them."""
    bounds = {f"{reader}._PIECE": 200 for reader in ("zarr", "hdf5", "fits", "dask", "views.blocks")}
    bounds |= {"views.patches._PIECE": 1, "views.patches._LARGEST": 1, "views.joined._OPEN": 2}
    bounds |= {"sparse._SLICED": 7, "stored.flat._SCRATCH": 900, "hdf5_chunks._LEAST": 1, "threads._WORTH_A_THREAD": 0}
    with pytest.MonkeyPatch.context() as patch:
        for name, bound in bounds.items():
            patch.setattr(f"streampca.readers.{name}", bound)
        patch.setattr("streampca.machine.cores", lambda: 4)
        yield


@pytest.mark.usefixtures("small")
@over({name: SOURCES[name] for name in IN_PIECES})
class TestInPieces(WholeContract):
    """Reads are cut at chunk edges even where pieces are a few bytes, and decoded by threads."""


@pytest.fixture
def folder(tmp_path):
    """Twelve PNG files, in folders of four, and what they hold."""
    return SOURCES["png"](tmp_path)[1]


def test_masked_values_that_dask_does_not_announce():
    def unannounced(dtype):
        x = da.from_array(np.arange(24, dtype=dtype).reshape(6, 4), chunks=2)
        return x.map_blocks(lambda block: np.ma.masked_equal(block, 3), dtype=dtype, meta=np.empty((0, 0), dtype))

    refused_as(unannounced("u1"), "dask array has masked values, of which its meta")
    read = open_collection(unannounced("f4")).read(slice(0, 6))
    np.testing.assert_array_equal(np.isnan(read).nonzero(), [[0], [3]])


def test_a_masked_array_without_masked_entries_is_one_of_its_values():
    x = values()
    collection = open_collection(np.ma.masked_array(x))
    assert collection.dtype == x.dtype
    assert np.shares_memory(collection.array.array, x)


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
    collection, _ = SOURCES["png"](tmp_path)
    assert collection.where(11) == f"{tmp_path}/in/s2/11.png"
    assert list(collection.sample_names()) == [f"s{at // 4}/{at}.png" for at in range(12)]
    tifffile.imwrite(tmp_path / "b.tif", values("u2", (30, 8, 8)), compression="zlib")
    pages = open_collection(tmp_path / "b.tif")
    assert pages.where(11) == f"{tmp_path}/b.tif, page 12"
    assert pages.axes == ("y", "x")
    assert open_collection(tmp_path / "b.tif", select={0: slice(5, 9)}).where(0) == f"{tmp_path}/b.tif, page 6"


def test_lists_may_mix_absolute_and_relative_paths(tmp_path, folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mixed = open_collection(["in/s0/0.png", f"{tmp_path}/in/s1/4.png"])
    assert list(mixed.sample_names()) == ["s0/0.png", "s1/4.png"]
    np.testing.assert_array_equal(mixed.read(slice(0, 2)), folder[[0, 4]].reshape(2, -1))
    assert open_collection("in").where(0) == "in/s0/0.png"


def test_list_file(tmp_path, folder):
    (tmp_path / "in" / "list.txt").write_text("s0/0.png\n\ns2/11.png\n")
    listed = open_collection(f"@{tmp_path}/in/list.txt")
    np.testing.assert_array_equal(listed.read(slice(0, 2)), folder[[0, 11]].reshape(2, -1))


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
    collection, x = SOURCES["png"](tmp_path)
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


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_frames_of_a_gif_cut_short_are_refused_by_name(tmp_path, share):
    SOURCES["gif frames"](tmp_path)
    path = tmp_path / "x.gif"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    refused(path, path)


def test_a_gif_of_frames_among_others_says_how_to_read_it(tmp_path):
    SOURCES["gif frames"](tmp_path)
    Image.new("L", (10, 12)).save(tmp_path / "y.gif")
    refused_as(tmp_path, r"several frames, .* give it alone to make each frame a sample")
