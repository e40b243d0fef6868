"""Copies equal their source whatever its storage, in the memory promised; exported components open in Fiji."""

from __future__ import annotations

import math
import re
from typing import ClassVar

import dask.array as da
import numpy as np
import pytest
import tifffile
import xarray
import zarr
from contract import WholeContract, over
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from shell import measured

import streampca
from streampca.errors import BudgetError, ModelError, OutputError, RequestError, SourceError
from streampca.events import BlockDone
from streampca.models.export import export_components
from streampca.planning import copy_plan as planning
from streampca.planning.request import Problem
from streampca.preprocessing import Preparation, Prepared
from streampca.preprocessing.copy import copy_collection, plan_copy
from streampca.readers import open_collection
from streampca.readers.stored.array import ArrayCollection
from streampca.storage import tiff_pages
from streampca.storage.coordinate import Coordinate
from streampca.storage.writers import ZarrWriter
from streampca.units import MIB


def pictures(shape=(61, 12, 10), dtype="u2", seed=0):
    return np.random.default_rng(seed).integers(0, 2000, shape).astype(dtype)


@pytest.fixture
def small_tiles(monkeypatch):
    """Sizes that cut small data as the real ones cut large data."""
    for name, size in {"MOST_SHARD": 4096, "CHUNK": 512, "LEAST_CHUNK": 64, "LATER_BLOCK": 2048}.items():
        monkeypatch.setattr(planning, name, size)


def problem(n, shape, itemsize=4, chunks=(1, 0), decode=0, prepared=0):
    p = math.prod(shape)
    return Problem(
        n_samples=n, n_features=p, sample_shape=shape, row_bytes=p * itemsize, prepared_bytes=prepared,
        itemsize=itemsize, kind="f", chunk_samples=chunks[0], chunk_features=chunks[1], decode_bytes=decode,
    )  # fmt: skip


# -- the plan


@pytest.mark.parametrize(("n", "shape", "itemsize", "chunks", "memory", "tile", "chunk"), [
    (10**6, (64, 64), 1, (1, 4096), 2048, (65536, 64, 64), (512, 64, 64)),       # files of images
    (10**6, (64, 64), 1, (1, 4096), 256, (11776, 64, 64), (512, 64, 64)),
    (10**6, (64, 64), 1, (1000, 4096), 2048, (65000, 64, 64), (500, 64, 64)),
    (10**6, (64, 64), 1, (10**6, 256), 2048, (1000090, 4, 64), (4082, 4, 64)),   # across features
    (10**6, (64, 64), 4, (10**6, 64), 2048, (1000448, 1, 64), (1024, 1, 64)),
    (10**6, (64, 64), 4, (10**6, 64), 512, (403456, 1, 64), (1024, 1, 64)),
    (500, (4096, 4096), 2, (1, 2**24), 2048, (8, 4096, 4096), (1, 512, 4096)),        # large images
    (500, (4096, 4096), 2, (1, 2**24), 64, (1, 1152, 4096), (1, 384, 4096)),
    (500, (40, 1024, 1024), 2, (1, 40 * 2**20), 4096, (3, 40, 1024, 1024), (1, 2, 1024, 1024)),
])  # fmt: skip
def test_decisions_on_named_layouts(n, shape, itemsize, chunks, memory, tile, chunk):
    found = plan_copy(problem(n, shape, itemsize, chunks), memory * MIB)
    assert (found.tile, found.chunk) == (tile, chunk)


shapes = st.lists(st.integers(1, 300), min_size=1, max_size=3).map(tuple)


@given(st.data(), st.integers(1, 10**8), shapes, st.sampled_from([1, 2, 4, 8]), st.integers(40, 4000))
def test_any_plan_keeps_its_promises(data, n, shape, itemsize, memory):
    """Within the budget, tiles of whole chunks, tiles that are ranges of flattened features."""
    p = math.prod(shape)
    chunks = data.draw(st.integers(1, n)), data.draw(st.integers(1, p))
    found = plan_copy(problem(n, shape, itemsize, chunks), memory * MIB)
    assert found.memory_estimate.total <= memory * MIB
    assert all(tile % chunk == 0 for tile, chunk in zip(found.tile, found.chunk, strict=True))
    assert all(0 < tile < 2 * length for tile, length in zip(found.tile, (n, *shape), strict=True))
    clipped = [min(run, length) for run, length in zip(found.tile[1:], shape, strict=True)]
    first = next((axis for axis, run in enumerate(clipped) if run > 1), len(shape))
    assert clipped[first + 1 :] == list(shape[first + 1 :]), "one run, then whole axes"
    cost = np.prod([float(length) for length in found.chunk]) * itemsize
    assert cost <= 4 * MIB or found.chunk[0] == 1


@pytest.mark.parametrize("decode", [0, 300 * MIB])
def test_refused_with_a_budget_that_does(decode):
    large = problem(500, (4096, 4096), chunks=(1, 4096**2), decode=decode)
    with pytest.raises(BudgetError, match="the largest share is the") as caught:
        plan_copy(large, 4 * MIB)
    least = int(str(caught.value).split("at least ")[1].removesuffix("MiB."))
    assert plan_copy(large, least * MIB).memory_estimate.total <= least * MIB
    with pytest.raises(BudgetError):
        plan_copy(large, (least - 1) * MIB)


# -- copies


def stored(tmp_path, x, chunks, **options):
    zarr.create_array(tmp_path / "source.zarr", data=x, chunks=chunks, **options)
    return open_collection(tmp_path / "source.zarr")


def as_npy(tmp_path, x):
    np.save(tmp_path / "source.npy", x)
    return open_collection(tmp_path / "source.npy")


def as_files(tmp_path, x):
    (tmp_path / "files").mkdir()
    for number, image in enumerate(x):
        Image.fromarray(image).save(tmp_path / "files" / f"{number:03d}.png")
    return open_collection(tmp_path / "files")


LAYOUTS = {
    "npy": as_npy,
    "Fortran order": lambda tmp_path, x: as_npy(tmp_path, np.asfortranarray(x)),
    "files": as_files,
    "numpy": lambda tmp_path, x: open_collection(x),
    "dask": lambda tmp_path, x: open_collection(da.from_array(x, chunks=(17, 5, 10))),
    "a sample a chunk": lambda tmp_path, x: stored(tmp_path, x, (1, 12, 10)),
    "samples": lambda tmp_path, x: stored(tmp_path, x, (7, 12, 10)),
    "both": lambda tmp_path, x: stored(tmp_path, x, (13, 4, 3)),
    "across": lambda tmp_path, x: stored(tmp_path, x, (61, 3, 10)),
    "a pixel a chunk": lambda tmp_path, x: stored(tmp_path, x, (61, 1, 1)),
    "sharded": lambda tmp_path, x: stored(tmp_path, x, (5, 12, 5), shards=(20, 12, 10)),
}


@pytest.mark.parametrize(
    ("layout", "size"), [*((layout, "small") for layout in LAYOUTS), ("npy", "large"), ("a pixel a chunk", "large")]
)
def test_copy_equals_source(tmp_path, layout, size, request):
    if size == "small":
        request.getfixturevalue("small_tiles")
    x = pictures()
    source = LAYOUTS[layout](tmp_path, x)
    assert source.shape == x.shape
    events = []
    copy_collection(source, tmp_path / "copy.zarr", listener=events.append)
    copied = open_collection(tmp_path / "copy.zarr")
    assert (copied.shape, copied.dtype) == (x.shape, x.dtype)
    np.testing.assert_array_equal(copied.read(slice(0, len(x))).reshape(x.shape), x)
    done = [event for event in events if isinstance(event, BlockDone)]
    assert (len(done) > 3) == (size == "small")
    assert sum(event.samples for event in done) == len(x)
    assert sum(event.bytes for event in done) == pytest.approx(x.nbytes, abs=len(done))
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.zarr"]


def copy_of(folder):
    x = pictures((40, 4, 6, 5), "i4")
    copy_collection(stored(folder, x, (40, 2, 3, 5)), folder / "copy.zarr")
    return open_collection(folder / "copy.zarr"), x


@pytest.mark.usefixtures("small_tiles")
@over({"copy": copy_of})
class TestCopyIsACollection(WholeContract):
    pass


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", ">u2", "i8", "f2", "f4", ">f8"])
def test_dtypes_stay(tmp_path, dtype):
    x = pictures(dtype=dtype)
    copy_collection(as_npy(tmp_path, x), tmp_path / "copy.zarr")
    copied = open_collection(tmp_path / "copy.zarr")
    assert copied.dtype == x.dtype.newbyteorder("="), "Zarr keeps the order of bytes to itself"
    np.testing.assert_array_equal(copied.read(slice(0, len(x))).reshape(x.shape), x)


def test_source_across_features_is_decoded_once(tmp_path, small_tiles, monkeypatch):
    """Values read, counted: each once, where blocks of whole samples would read all for every block."""
    source = stored(tmp_path, pictures((500, 12, 10)), (500, 2, 10))
    read = []
    one = type(source).read
    monkeypatch.setattr(
        type(source),
        "read",
        lambda self, rows, features=None: read.append((rows, features)) or one(self, rows, features),
    )
    copy_collection(source, tmp_path / "copy.zarr")
    assert len(read) == 6
    assert all(rows == slice(0, 500) and features.start % 20 == 0 for rows, features in read)


def test_zeros_are_stored(tmp_path, small_tiles, caplog):
    """A chunk that is missing from a copy has been lost, whatever it held."""
    copy_collection(open_collection(np.zeros((50, 12, 10), "u1")), tmp_path / "copy.zarr")
    assert not open_collection(tmp_path / "copy.zarr").read(slice(0, 50)).any()
    assert not caplog.records


def test_files_are_few(tmp_path):
    """100 000 images are not 100 000 files."""
    copy_collection(open_collection(np.zeros((100_000, 4, 4), "u1")), tmp_path / "copy.zarr")
    assert sum(path.is_file() for path in (tmp_path / "copy.zarr").rglob("*")) < 6


class Charted(ArrayCollection):
    """An array with names, coordinates and attributes."""

    attributes: ClassVar = {"units": "K", "levels": np.arange(3), "scale_factor": 0.1, "odd": object(), "nan": np.nan}
    coordinates: ClassVar = {
        "lat": Coordinate(np.linspace(-60, 60, 12), {"units": "degrees_north"}),
        "lon": Coordinate(np.arange(10) * 36.0, {"units": "degrees_east"}),
    }

    def sample_coordinates(self):
        days = np.arange(self.n_samples).astype("m8[D]") + np.datetime64("2001-02-03")
        stations = np.array([f"st\u00e4tion {i % 3}" for i in range(self.n_samples)])
        return {"time": Coordinate(days), "station": Coordinate(stations, {"long_name": "where"})}

    def sample_names(self):
        return [f"scan {i}" for i in range(self.n_samples)]


def test_names_coordinates_and_attributes_come_along(tmp_path):
    x = pictures(dtype="f4")
    source = Charted(x, source="charts", dims=("t", "lat", "lon"))
    copy_collection(source, tmp_path / "copy.zarr")
    with xarray.open_zarr(tmp_path / "copy.zarr") as found:
        assert found.images.dims == ("t", "lat", "lon")
        np.testing.assert_array_equal(found.images, x)
        np.testing.assert_array_equal(found.lat, np.linspace(-60, 60, 12))
        assert found.lat.attrs == {"units": "degrees_north"}
        assert list(found.sample.values[:2]) == ["scan 0", "scan 1"]
        assert set(found.coords) == {"sample", "lat", "lon", "time", "station"}
        assert found.time.values[1] == np.datetime64("2001-02-04")
        assert found.station.values[4] == "st\u00e4tion 1"
        assert found.station.attrs == {"long_name": "where"}
        about = {"source": "charts", "units": "K", "levels": [0, 1, 2], "sample_axis": "t"}
        assert found.images.attrs == about
        assert found.attrs["streampca"] == {"kind": "images", "complete": True}
    assert open_collection(tmp_path / "copy.zarr").axes == ("lat", "lon")


def test_attributes_of_packed_numbers_are_not_those_of_values(tmp_path):
    packed = {"valid_range": np.array([-100, 100], "i2"), "valid_min": np.int16(3), "_Unsigned": "true"}
    lat = xarray.Variable("lat", np.linspace(-60.0, 60, 12), packed | {"units": "degrees_north"})
    x = xarray.DataArray(pictures(dtype="f4") + 250, {"lat": lat}, ("t", "lat", "lon"), attrs=packed | {"units": "K"})
    copy_collection(open_collection(x), tmp_path / "copy.zarr")
    found = open_collection(tmp_path / "copy.zarr")
    np.testing.assert_array_equal(found.read(slice(0, len(x))), x.values.reshape(len(x), -1))
    np.testing.assert_array_equal(found.coordinates["lat"].values, lat)


def test_prepared_images_are_copied_as_the_analysis_sees_them(tmp_path, small_tiles):
    x = pictures((61, 12, 10, 3), "u1")
    preparation = Preparation(crop=((2, 12), (0, 10)), grey=True, bin=2)
    copy_collection(Prepared(open_collection(x), preparation), tmp_path / "copy.zarr")
    copied = open_collection(tmp_path / "copy.zarr")
    expected = preparation.apply(x)
    assert (copied.shape, copied.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(copied.read(slice(0, 61)).reshape(expected.shape), expected)


# -- refusals


def test_refusals(tmp_path):
    x = pictures()
    source = open_collection(x)
    with pytest.raises(RequestError, match="does not end in"):
        copy_collection(source, tmp_path / "copy.npy")
    with pytest.raises(RequestError, match=r"leave mask out here"):
        copy_collection(Prepared(source, Preparation(mask=np.eye(12, 10, dtype=bool))), tmp_path / "copy.zarr")
    mixed = Charted(x, source="scans")
    mixed.mixed = True
    with pytest.raises(RequestError, match="several shapes"):
        copy_collection(mixed, tmp_path / "copy.zarr")
    with pytest.raises(BudgetError, match="Set memory to at least"):
        copy_collection(source, tmp_path / "copy.zarr", memory="1MiB")
    assert list(tmp_path.iterdir()) == []


def test_existing_copies_are_replaced_only_if_asked(tmp_path):
    copy_collection(open_collection(pictures()), tmp_path / "copy.zarr")
    other = open_collection(pictures(seed=1))
    with pytest.raises(OutputError, match="overwrite=True"):
        copy_collection(other, tmp_path / "copy.zarr")
    copy_collection(other, tmp_path / "copy.zarr", overwrite=True)
    np.testing.assert_array_equal(open_collection(tmp_path / "copy.zarr").read(slice(0, 61)), other.read(slice(0, 61)))
    with pytest.raises(RequestError, match=r"copy.zarr is what the run reads"):
        copy_collection(open_collection(tmp_path / "copy.zarr"), tmp_path / "copy.zarr", overwrite=True)
    np.testing.assert_array_equal(open_collection(tmp_path / "copy.zarr").read(slice(0, 61)), other.read(slice(0, 61)))
    zarr.save(tmp_path / "theirs.zarr", pictures())
    with pytest.raises(OutputError, match="not images written by streampca"):
        copy_collection(other, tmp_path / "theirs.zarr", overwrite=True)


def test_a_source_that_breaks_off_leaves_nothing(tmp_path, small_tiles):
    source = as_files(tmp_path, pictures(dtype="u1"))
    broken = tmp_path / "files" / "055.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(SourceError, match=r"055\.png"):
        copy_collection(source, tmp_path / "copy.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


def test_what_does_not_arrive_is_noticed(tmp_path, small_tiles, monkeypatch):
    write = ZarrWriter.write

    def forgetful(self, start, rows, inside=()):
        if start == 0:
            write(self, start, rows, inside)

    monkeypatch.setattr(ZarrWriter, "write", forgetful)
    with pytest.raises(OutputError, match="is not what was written"):
        copy_collection(open_collection(pictures((500, 12, 10))), tmp_path / "copy.zarr")
    assert list(tmp_path.iterdir()) == []


# -- memory

WORKER = """
import json, sys
import streampca
from streampca.preprocessing import copy as copying
from streampca.machine import PeakMeter

source, output, memory = sys.argv[1:]
collection = streampca.open_collection(source)
plan = copying.plan_copy(copying.problem_of(collection), copying.parse_bytes(memory))
meter = PeakMeter()
copying.copy_collection(collection, output, memory=memory)
print(json.dumps({"peak": meter.peak(), "estimate": plan.memory_estimate.total}))
"""


def noise_in(folder, layout):
    """64 MiB of values that do not compress."""
    n, shape, step = 16384, (32, 32), 2048
    noise = np.random.default_rng(0).integers(0, 2**32, (step, *shape), dtype=np.uint32)
    if layout == "npy":
        with open(folder / "s.npy", "wb") as file:
            header = {"descr": "<u4", "fortran_order": False, "shape": (n, *shape)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, n, step):
                file.write(np.roll(noise, start // step, axis=1).data)
        return folder / "s.npy"
    chunks = {"samples": (256, *shape), "across": (n, 1, 16)}[layout]
    made = zarr.create_array(folder / "s.zarr", shape=(n, *shape), dtype="u4", chunks=chunks, compressors=None)
    if layout == "samples":
        for start in range(0, n, step):
            made[start : start + step] = np.roll(noise, start // step, axis=1)
    else:
        for row in range(shape[0]):
            made[:, row] = np.concatenate([np.roll(noise[:, row], k, axis=1) for k in range(n // step)])
    return folder / "s.zarr"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["npy", "samples", "across"])
def test_peak_within_the_budget(tmp_path, layout):
    """In a fresh process; what is copied is more than the budget."""
    found = measured(WORKER, noise_in(tmp_path, layout), tmp_path / "copy.zarr", "48MiB")
    assert 0.25 * found["estimate"] < found["peak"] <= 48 * MIB


@pytest.mark.slow
def test_large_chunks_leave_nothing_in_the_pools_of_threads(tmp_path):
    """Each of 12 MiB; decoded in any of Zarr's threads, they left up to twice that in each, and room for few rows."""
    n = 12 * MIB // 32
    made = zarr.create_array(tmp_path / "s.zarr", shape=(n, 10, 8), dtype="f4", chunks=(n, 1, 8))
    noise = np.random.default_rng(0).random((n, 8), dtype=np.float32)
    for row in range(10):
        made[:, row] = np.roll(noise, row)
    found = measured(WORKER, tmp_path / "s.zarr", tmp_path / "copy.zarr", "72MiB")
    assert found["peak"] <= found["estimate"] <= 72 * MIB


# -- export


def model_of(shape, dims=None, **options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, *shape)) * np.linspace(3, 1, math.prod(shape)).reshape(shape) + 100
    source = x if dims is None else xarray.DataArray(x, dims=("t", *dims))
    return streampca.fit(source, n_components=4, **options)


def read_tiff(path):
    with tifffile.TiffFile(path) as file:
        return file.asarray(), file.series[0].axes, file.imagej_metadata


def expected_of(model):
    return np.concatenate([model.mean[None], model.components]).astype(np.float32)


SHARE = r"component {}: \d+(\.\d)? %"


@pytest.mark.parametrize("saved", [False, True])
def test_pictures_become_labelled_channels(tmp_path, saved):
    model = model_of((9, 7))
    model.save(tmp_path / "m.zarr")
    export_components(tmp_path / "m.zarr" if saved else model, tmp_path / "c.tif")
    pages, axes, about = read_tiff(tmp_path / "c.tif")
    assert axes == "CYX"
    np.testing.assert_array_equal(pages, expected_of(model))
    assert pages.dtype == np.float32
    assert about["Labels"][0] == "mean"
    assert about["Labels"][1] == f"component 1: {100 * model.explained_variance_ratio[0]:.2g} %"
    assert [bool(re.fullmatch(SHARE.format(i), label)) for i, label in enumerate(about["Labels"][1:], 1)] == [True] * 4
    assert (about["channels"], about["mode"]) == (5, "grayscale")
    low, high = about["Ranges"][2:4]
    assert high == -low == pytest.approx(np.abs(model.components[0]).max())
    assert about["Ranges"][:2] == (model.mean.min(), model.mean.max())
    with tifffile.TiffFile(tmp_path / "c.tif") as file:
        assert len(file.pages) == 5


def test_stacks_keep_their_slices(tmp_path):
    model = model_of((3, 6, 5))
    export_components(model, tmp_path / "c.tif")
    pages, axes, about = read_tiff(tmp_path / "c.tif")
    assert (axes, pages.shape) == ("TZYX", (5, 3, 6, 5))
    np.testing.assert_array_equal(pages, expected_of(model))
    assert (about["slices"], about["frames"]) == (3, 5)
    assert about["Labels"][1] == "mean, slice 2"
    assert about["Labels"][3].endswith(" %, slice 1")
    assert about["max"] == -about["min"] == pytest.approx(np.abs(model.components).max())


@pytest.mark.parametrize("dims", [("y", "x", "channel"), ("c", "y", "x"), ("z", "y", "x", "channel")])
def test_colours_become_channels(tmp_path, dims):
    lengths = {"z": 2, "y": 6, "x": 5, "channel": 3, "c": 3}
    model = model_of(tuple(lengths[dim] for dim in dims), dims, sample_axes=dims)
    export_components(model, tmp_path / "c.tif")
    pages, axes, about = read_tiff(tmp_path / "c.tif")
    assert axes == ("TZCYX" if "z" in dims else "TCYX")
    whole = np.moveaxis(expected_of(model), 1 + dims.index("c" if "c" in dims else "channel"), -3)
    np.testing.assert_array_equal(pages, whole)
    assert about["channels"] == 3
    assert about["Labels"][1] == ("mean, slice 1, green" if "z" in dims else "mean, green")
    assert len(about["Labels"]) == math.prod(pages.shape[:-2])


def test_nan_outside_the_mask_stays(tmp_path):
    mask = np.ones((9, 7), bool)
    mask[:3, :2] = False
    model = model_of((9, 7), preparation=Preparation(mask=mask))
    export_components(model, tmp_path / "c.tif", n_components=2, mean=False)
    pages, _, about = read_tiff(tmp_path / "c.tif")
    np.testing.assert_array_equal(pages, model.components[:2].astype(np.float32))
    assert np.isnan(pages[:, :3, :2]).all()
    assert np.isfinite(about["Ranges"]).all()
    assert len(about["Labels"]) == 2


def test_large_ones_are_ome(tmp_path, monkeypatch):
    """ImageJ's own format ends at 4 GiB, and would be cut there."""
    model = model_of((3, 6, 5))
    export_components(model, tmp_path / "small.ome.tif")
    monkeypatch.setattr(tiff_pages, "MOST_IMAGEJ", 4 * 5 * 90 - 1)
    export_components(model, tmp_path / "c.tif")
    for name, big in (("small.ome.tif", False), ("c.tif", True)):
        with tifffile.TiffFile(tmp_path / name) as file:
            assert (file.is_bigtiff, file.is_ome, file.series[0].axes) == (big, True, "TZYX")
            assert "component 2: " in file.ome_metadata
            np.testing.assert_array_equal(file.asarray(), expected_of(model))
    export_components(model_of((9, 7)), tmp_path / "plain.ome.tif")
    with tifffile.TiffFile(tmp_path / "plain.ome.tif") as file:
        assert file.ome_metadata.count('Name="component ') == 4


def test_npy(tmp_path):
    model = model_of((3, 6, 5))
    export_components(model, tmp_path / "c.npy", n_components=3)
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), np.concatenate([model.mean[None], model.components[:3]]))
    export_components(model, tmp_path / "d.npy", mean=False)
    assert np.load(tmp_path / "d.npy").dtype == model.components.dtype


def test_rows_of_features_are_pictures_of_one_line(tmp_path):
    model = model_of((12,))
    export_components(model, tmp_path / "c.tif")
    assert read_tiff(tmp_path / "c.tif")[0].reshape(5, 12) == pytest.approx(expected_of(model))


def test_export_refusals(tmp_path):
    model = model_of((9, 7))
    model.save(tmp_path / "m.zarr")
    with pytest.raises(RequestError, match=r"\.tif, \.tiff, \.npy"):
        export_components(model, tmp_path / "c.png")
    with pytest.raises(RequestError, match="between 1 and 4"):
        export_components(model, tmp_path / "c.tif", n_components=5)
    with pytest.raises(ModelError, match="does not exist"):
        export_components(tmp_path / "n.zarr", tmp_path / "c.tif")
    (tmp_path / "c.tif").write_text("there")
    with pytest.raises(OutputError, match="overwrite=True"):
        export_components(model, tmp_path / "c.tif")
    export_components(model, tmp_path / "c.tif", overwrite=True)
    (tmp_path / "d.tif").mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        export_components(model, tmp_path / "d.tif", overwrite=True)
    chunk = next(path for path in (tmp_path / "m.zarr" / "components" / "c").rglob("*") if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[:20])
    with pytest.raises(ModelError, match="damaged in components"):
        export_components(tmp_path / "m.zarr", tmp_path / "e.tif")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.tif", "d.tif", "m.zarr"]
