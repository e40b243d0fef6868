"""Components larger than memory: written and read range by range, and a model that keeps them on disk."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from itertools import pairwise
from math import prod

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca.cli.commands import cli
from streampca.cli.pipeline import execute
from streampca.cli.run_file import make_run
from streampca.errors import BudgetError, DataError, ModelError, OutputError, RequestError
from streampca.models.export import export_components
from streampca.models.load import load_model
from streampca.models.store import ModelWriter
from streampca.models.transform import projection as pieces
from streampca.models.transform import write as writing
from streampca.planning import component_chunks
from streampca.planning import transform_pieces as planning_pieces
from streampca.planning.blocks import Span
from streampca.planning.boxes import box_of, flat_range, tiles_of, union_of
from streampca.planning.memory import MemoryEstimate, Phase
from streampca.planning.request import Problem
from streampca.planning.transform_pieces import Parts, Piecewise, plan_pieces
from streampca.preprocessing import Prepared
from streampca.storage.components import ComponentWriter, RowsToCome, StoredComponents, component_cut
from streampca.storage.tiling import Tiling
from streampca.units import MIB

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of a few pixels, so that small models have many."""
    monkeypatch.setattr(component_chunks, "TILE", 1024)
    monkeypatch.setattr(component_chunks, "CHUNK", 64)
    monkeypatch.setattr(component_chunks, "TOGETHER", 2)
    monkeypatch.setattr(component_chunks, "LEAST_RUN", 16)


# -- boxes and tilings


@given(shape=SHAPES, width=st.integers(1, 400), wider=st.integers(1, 900))
def test_boxes_are_ranges_that_cover_the_grid(shape, width, wider):
    box = box_of(width, shape)
    assert prod(box) <= max(1, width)
    both = union_of(wider, box, shape)
    assert prod(both) <= max(prod(box), wider)
    edges = [flat_range(tile, shape) for tile in tiles_of(shape, box)]
    for cut in (edges, [flat_range(tile, shape) for tile in tiles_of(shape, both)]):
        assert cut[0][0] == 0
        assert cut[-1][1] == prod(shape)
        assert all(one[1] == other[0] for one, other in pairwise(cut))
        assert {start for start, _ in cut} <= {start for start, _ in edges}, "whole tiles"


@given(shape=SHAPES, width=st.integers(1, 60), most=st.integers(1, 100), seed=st.none() | st.integers(0, 99))
def test_ranges_cover_the_features_by_whole_tiles(shape, width, most, seed):
    mask = None if seed is None else np.random.default_rng(seed).random(shape) < 0.4
    tiling = Tiling(shape, box_of(width, shape), mask)
    p = prod(shape) if mask is None else int(mask.sum())
    ranges = tiling.ranges(most)
    assert tiling.n_features == p
    assert [i for span in ranges for i in range(*span)] == list(range(p))
    values = np.arange(2 * p, dtype=np.float64).reshape(2, p)
    whole = np.full((2, *shape), -1.0)
    for span in ranges:
        tiles = list(tiling.within(span))
        assert (tiles[0].features.start, tiles[-1].features.stop) == span
        assert span.size <= most or len(tiles) == 1
    for tile in tiling.tiles():
        part = values[:, slice(*tile.features)]
        whole[(slice(None), *tile.box)] = tile.filled(part)
        np.testing.assert_array_equal(tile.flat(tile.filled(part)), part)
    inside = np.ones(shape, bool) if mask is None else mask
    np.testing.assert_array_equal(whole[:, inside], values)
    assert np.isnan(whole[:, ~inside]).all()


@pytest.mark.parametrize(
    ("shape", "itemsize"),
    [((300, 2000, 2000), 4), ((50, 784), 4), ((5000, 4096, 4096), 8), ((1, 8), 4), ((20, 2, 4000, 4000), 4)],
)
def test_how_components_are_cut(shape, itemsize):
    """Chunks divide shards; files are of a few MiB, and few."""
    cut = component_cut(shape, itemsize)
    assert all(many % one == 0 for one, many in zip(cut.chunk, cut.shard, strict=True))
    size = prod(cut.shard) * itemsize
    total = prod(shape) * itemsize
    assert size <= 10 * MIB
    assert -(-total // size) <= max(1, total / (3 * MIB))


# -- the sink


def made(folder, shape, dtype, mask=None):
    group = zarr.create_group(folder / "made.zarr", overwrite=True)
    dims = tuple(f"d{axis}" for axis in range(len(shape) - 1))
    return ComponentWriter(group, shape, dims=dims, dtype=dtype, mask=mask), group


@pytest.mark.parametrize(
    ("shape", "dtype", "masked"),
    [((7, 12, 10), "f4", True), ((5, 1, 9, 8), "f8", False), ((3, 40), "f4", False), ((4, 6, 5, 3), "f8", True)],
)
def test_what_is_written_by_ranges_is_there(small_tiles, tmp_path, shape, dtype, masked):
    mask = np.random.default_rng(1).random(shape[1:]) < 0.5 if masked else None
    sink, group = made(tmp_path, shape, dtype, mask)
    inside = np.ones(shape[1:], bool) if mask is None else mask
    values = np.random.default_rng(0).normal(size=(shape[0], int(inside.sum()))).astype(dtype)
    values.flags.writeable = False
    ranges = sink.ranges(12)
    for span in reversed(ranges):
        sink.write(span, values[:, slice(*span)])
    found = group["components"][...]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[:, inside], values)
    assert np.isnan(found[:, ~inside]).all()


def test_a_range_never_rewrites_another_ones_files(small_tiles, tmp_path):
    sink, _ = made(tmp_path, (6, 30, 20), "f4")
    ranges = sink.ranges(100)
    assert len(ranges) > 3
    files = {}
    for span in ranges:
        sink.write(span, np.ones((6, span.size), np.float32))
        now = {path: path.stat().st_mtime_ns for path in (tmp_path / "made.zarr" / "components").rglob("*")}
        now = {path: time for path, time in now.items() if path.is_file() and path.name != "zarr.json"}
        assert {path: now[path] for path in files} == files
        assert len(now) > len(files)
        files = now


# -- a model that keeps its components on disk


def images(n=60, shape=(12, 10), dtype=np.uint8):
    rng = np.random.default_rng(0)
    x = 120 + rng.normal(size=(n, 6)) @ rng.normal(size=(6, prod(shape))) * 10 + rng.normal(size=(n, prod(shape)))
    x = x.reshape(n, *shape)
    x = np.clip(x, 0, 255).astype(dtype) if np.dtype(dtype).kind == "u" else x.astype(dtype)
    x.flags.writeable = False
    return x


MASK = np.hypot(*np.meshgrid(np.arange(10) - 4.5, np.arange(12) - 5.5)) < 5
PREPARATIONS = {
    "plain": {},
    "masked": {"mask": MASK},
    "scaled": {"mask": MASK, "scale": np.linspace(0.5, 2, 120).reshape(12, 10)},
    "mean": {"normalize": "mean"},
    "ratio": {"mask": MASK, "normalize": "ratio"},
}


SAVED = {}


def fitted(x, folder, **steps):
    """A model in memory, and the same on disk, opened so that nothing of it is read; each is made once."""
    made, key = folder / "m.zarr", pickle.dumps((x, steps, component_chunks.TILE))
    if key not in SAVED:
        model = streampca.fit(x, n_components=5, memory="64MiB", preparation=streampca.Preparation(**steps))
        model.save(made)
        files = {path.relative_to(folder): path.read_bytes() for path in made.rglob("*") if path.is_file()}
        SAVED[key] = model, files
    for path, content in SAVED[key][1].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return SAVED[key][0], load_model(made, memory="1B")


@pytest.fixture
def both(small_tiles, tmp_path):
    return fitted(images(), tmp_path)


def test_small_components_are_read_and_large_ones_stay(both, tmp_path):
    held, stored = both
    assert isinstance(stored.components, StoredComponents)
    size = held.components.nbytes
    assert isinstance(load_model(tmp_path / "m.zarr").components, np.ndarray)
    assert isinstance(load_model(tmp_path / "m.zarr", memory=f"{4 * size}B").components, np.ndarray)
    assert isinstance(load_model(tmp_path / "m.zarr", memory=f"{4 * size - 1}B").components, StoredComponents)
    assert isinstance(load_model(tmp_path / "m.zarr", memory="1KiB").components, StoredComponents)


def test_stored_components_are_like_an_array(both):
    held, stored = both[0].components, both[1].components
    assert (stored.shape, stored.dtype, stored.ndim, len(stored), stored.nbytes) == (
        held.shape, held.dtype, held.ndim, len(held), held.nbytes,
    )  # fmt: skip
    for key in (
        0,
        -1,
        slice(1, 3),
        (slice(None), 2),
        (2, slice(3, 7), 4),
        ...,
        (slice(0, 2), slice(2, 9), slice(1, 5)),
    ):
        np.testing.assert_array_equal(stored[key], held[key])
    np.testing.assert_array_equal(np.asarray(stored), held)
    np.testing.assert_array_equal(np.asarray(stored, np.float64), held.astype(np.float64))
    np.testing.assert_array_equal(np.stack(list(stored)), held)
    with pytest.raises(ValueError, match="makes a copy"):
        np.asarray(stored, copy=False)
    copy = pickle.loads(pickle.dumps(stored))  # noqa: S301 - our own bytes
    np.testing.assert_array_equal(copy[...], held)
    assert len(pickle.dumps(stored)) < 1000


def test_rows_of_features_are_read_by_ranges(small_tiles, tmp_path):
    held, stored = fitted(images(), tmp_path, mask=MASK)
    rows, expected = stored.components.rows, held.subspace.components
    assert (rows.shape, rows.dtype, len(rows)) == (expected.shape, expected.dtype, 5)
    assert len(rows.ranges()) > 2
    for start, stop in ((0, 1), (3, 50), (17, 17), (0, expected.shape[1]), *rows.ranges()):
        np.testing.assert_array_equal(rows.read(Span(start, stop)), expected[:, start:stop])
        np.testing.assert_array_equal(rows.first(2).read(Span(start, stop)), expected[:2, start:stop])
    rows = pickle.loads(pickle.dumps(rows))  # noqa: S301 - our own bytes
    np.testing.assert_array_equal(np.asarray(rows), expected)
    assert len(pickle.dumps(rows)) < 1000


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("steps", "dtype"), [("scaled", np.uint8), ("mean", np.uint8), ("ratio", np.float32), ("masked", np.float64)]
)
def test_everything_a_model_does_is_the_same(small_tiles, tmp_path, steps, dtype):
    x = images(30, dtype=dtype)
    held, stored = fitted(x, tmp_path, **PREPARATIONS[steps])
    tolerance = {"rtol": 1e-5, "atol": 2e-4 if dtype != np.float64 else 1e-10}
    lazy = da.from_array(x, chunks=(20, 12, 10))
    collection = streampca.open_collection(x)
    for name, other in (("transform", lazy), ("reconstruct", collection), ("reconstruction_error", lazy)):
        expected = getattr(held, name)(x)
        for samples in (x, other):
            found = getattr(stored, name)(samples)
            assert isinstance(found, np.ndarray) == isinstance(samples, np.ndarray)
            found = np.asarray(found)
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, **tolerance)
    scores = held.transform(x)
    np.testing.assert_allclose(stored.transform(x, whiten=True), held.transform(x, whiten=True), **tolerance)
    for part in (scores, scores[:, :2], da.from_array(scores, chunks=(20, 5))):
        found = np.asarray(stored.inverse_transform(part))
        np.testing.assert_allclose(found, np.asarray(held.inverse_transform(part)), **tolerance)
    np.testing.assert_allclose(stored.reconstruct(x, n_components=2), held.reconstruct(x, n_components=2), **tolerance)
    assert stored.summary() == held.summary()
    assert repr(stored) == repr(held)


def test_one_piece_is_bit_for_bit_the_same(tmp_path):
    """Components in one tile are read and multiplied at once, like components in memory."""
    held, stored = fitted(images(), tmp_path)
    assert isinstance(stored.components, StoredComponents)
    for name in ("transform", "reconstruct", "reconstruction_error"):
        np.testing.assert_array_equal(getattr(stored, name)(images()), getattr(held, name)(images()))


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_stored_model_is_copied_in_pieces(small_tiles, tmp_path, elsewhere):
    """To another place, or over itself."""
    held, stored = fitted(images(), tmp_path, mask=MASK)
    path = tmp_path / ("copy.zarr" if elsewhere else "m.zarr")
    stored.save(path, overwrite=True)
    copy = load_model(path)
    np.testing.assert_array_equal(copy.components, held.components)
    np.testing.assert_array_equal(stored.components[...], held.components)
    assert copy.summary() == held.summary()
    assert sorted(os.listdir(tmp_path)) == sorted({"m.zarr", path.name})


def test_pictures_and_exports(both, tmp_path):
    held, stored = both
    for suffix in ("npy", "tif"):
        paths = [tmp_path / f"{name}.{suffix}" for name in ("held", "stored", "folder")]
        for path, model in zip(paths, (held, stored, tmp_path / "m.zarr"), strict=True):
            export_components(model, path)
        assert paths[0].read_bytes() == paths[1].read_bytes() == paths[2].read_bytes()
    for model in both:
        streampca.plot.mean_and_components(model)
    samples, ladder = images()[:2], (1, 3)
    for ours, theirs in zip(
        streampca.plot.reconstructions(stored, samples, ladder).ravel(),
        streampca.plot.reconstructions(held, samples, ladder).ravel(),
        strict=True,
    ):
        np.testing.assert_allclose(ours.images[0].get_array(), theirs.images[0].get_array(), rtol=1e-4, atol=1e-3)


def test_damage_is_named_when_it_is_met(small_tiles, tmp_path):
    _, stored = fitted(images(), tmp_path)
    files = sorted(path for path in (tmp_path / "m.zarr" / "components" / "c").rglob("*") if path.is_file())
    whole = files[1].read_bytes()
    files[1].write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="damaged in components"):
        stored.transform(images())
    os.remove(files[1])
    with pytest.raises(ModelError, match="damaged in components: values are missing"):
        stored.transform(images())
    files[1].write_bytes(whole)
    stored.transform(images())


@pytest.mark.parametrize("written", [False, True])
def test_a_model_is_where_it_was_and_what_it_was(small_tiles, tmp_path, monkeypatch, written):
    """Wherever one goes; one that was moved away is not called damaged, nor is another one taken for it."""
    held, _ = fitted(images(), tmp_path)
    monkeypatch.chdir(tmp_path)
    stored = write_made("made.zarr", held) if written else load_model("m.zarr", memory="1B")
    monkeypatch.chdir("/")
    assert isinstance(stored.components, StoredComponents)
    np.testing.assert_array_equal(stored.components, held.components)
    os.rename(stored.components.path, tmp_path / "elsewhere.zarr")
    with pytest.raises(ModelError, match=r"zarr is no longer there; load the model from where it is now"):
        stored.transform(images())
    load_model(tmp_path / "elsewhere.zarr", memory="1B").transform(images())
    other = streampca.fit(images()[::-1] // 2, n_components=5, memory="64MiB")
    assert (other.components.shape, other.components.dtype) == (held.components.shape, held.components.dtype)
    other.save(stored.components.path)
    for act in (stored.transform, stored.reconstruct):
        with pytest.raises(ModelError, match=r"is another model than was opened; load it again"):
            act(images())


def test_inspect_reads_no_components(small_tiles, tmp_path):
    fitted(images(), tmp_path)
    for path in (tmp_path / "m.zarr" / "components" / "c").rglob("*"):
        if path.is_file():
            path.write_bytes(b"nonsense")
    found = CliRunner().invoke(cli, ["inspect", str(tmp_path / "m.zarr")])
    assert (found.exit_code, "5 components" in found.output) == (0, True), found.output


def test_components_that_are_stored_whole_are_read_in_pieces(small_tiles, monkeypatch, tmp_path):
    x = np.random.default_rng(1).integers(0, 255, (40, 6, 5)).astype(np.uint8)
    streampca.fit(x, n_components=3, memory="64MiB").save(tmp_path / "m.zarr")
    monkeypatch.setattr(component_chunks, "TILE", 64)
    held, stored = load_model(tmp_path / "m.zarr"), load_model(tmp_path / "m.zarr", memory="1B")
    assert isinstance(stored.components, StoredComponents)
    rows = replace(stored.components, piece_bytes=80).rows
    assert len(rows.ranges()) > 2
    for span in rows.ranges():
        np.testing.assert_array_equal(rows.read(span), held.subspace.components[:, slice(*span)])
    x = np.random.default_rng(0).integers(0, 255, (9, 6, 5)).astype(np.uint8)
    cut = replace(stored, components=replace(stored.components, piece_bytes=80))
    np.testing.assert_allclose(cut.transform(x), held.transform(x), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(cut.reconstruct(x), held.reconstruct(x), rtol=1e-5, atol=1e-4)


# -- writing one as its components are made


def write_made(path, model, mask=None, k=5, fail=False):
    """Write a model's components range by range, as a method would that makes them so."""
    rows = model.subspace.components
    shape = (k, *model.sample_shape)
    with ModelWriter(str(path)) as writer:
        sink = writer.components(shape, dims=model.sample_dims, dtype=rows.dtype, mask=mask)
        for span in sink.ranges(30):
            sink.write(span, rows[:, slice(*span)])
        if fail:
            raise KeyboardInterrupt
        done = replace(model, components=writer.stored(), name=str(path))
        writer.finish(done)
    return done


@pytest.mark.parametrize("mask", [None, MASK])
def test_a_model_is_written_as_it_is_made(small_tiles, tmp_path, mask):
    held, _ = fitted(images(), tmp_path, **({} if mask is None else {"mask": mask}))
    done = write_made(tmp_path / "made.zarr", held, mask)
    found = load_model(tmp_path / "made.zarr")
    np.testing.assert_array_equal(found.components, held.components)
    assert found.summary() == held.summary() == done.summary()
    np.testing.assert_allclose(done.transform(images()), held.transform(images()), rtol=1e-5, atol=2e-4)
    with xarray.open_zarr(tmp_path / "made.zarr") as data:
        assert data["components"].dims == ("component", "y", "x")
        np.testing.assert_array_equal(data["components"].values, held.components)


def test_what_breaks_off_leaves_nothing(small_tiles, tmp_path):
    held, _ = fitted(images(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        write_made(tmp_path / "made.zarr", held, fail=True)
    assert os.listdir(tmp_path) == ["m.zarr"]
    with pytest.raises(OutputError, match=r"m.zarr exists already"):
        write_made(tmp_path / "m.zarr", held)


# -- applied in pieces

ROUTES = {"panel": 4, "range": 0}


@pytest.fixture
def in_pieces(small_tiles, monkeypatch):
    """``in_pieces(route)``: whatever is written is written in pieces of a few samples and features."""

    def force(route):
        def plan(problem, parts, memory):
            return Piecewise(20, ROUTES[route], 3, 13, 40, 10, 5, 0, MemoryEstimate((Phase("apply", ()),)))

        def refuse(**sizes):
            raise BudgetError("too large")

        monkeypatch.setattr(pieces, "plan_pieces", plan)
        monkeypatch.setattr(writing, "plan_application", refuse)

    return force


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("route", "steps", "dtype", "endings"),
    [
        ("panel", "masked", np.float32, {"stored": "zarr", "held": "npy"}),
        ("panel", "scaled", np.uint8, {"stored": "npy"}),
        ("range", "plain", np.float64, {"stored": "npy", "held": "zarr"}),
        ("range", "ratio", np.float32, {"stored": "zarr"}),
    ],
)
def test_written_in_pieces_is_written_whole(in_pieces, tmp_path, route, steps, dtype, endings):
    x = images(27, dtype=dtype)
    np.save(tmp_path / "x.npy", x)
    held, stored = fitted(x, tmp_path, **PREPARATIONS[steps])
    expected = {
        "scores": held.transform(x), "whitened": held.transform(x, whiten=True), "images": held.reconstruct(x, 4),
        "from scores": held.inverse_transform(held.transform(x)),
    }  # fmt: skip
    in_pieces(route)
    tolerance = {"rtol": 1e-5, "atol": 2e-4 if dtype != np.float64 else 1e-10}
    for name, ending in endings.items():
        model, paths = {"stored": stored, "held": held}[name], {key: tmp_path / f"{key}.{ending}" for key in expected}
        model.write_scores(tmp_path / "x.npy", paths["scores"])
        model.write_scores(tmp_path / "x.npy", paths["whitened"], whiten=True)
        model.write_reconstruction(tmp_path / "x.npy", paths["images"], n_components=4)
        model.write_reconstruction(paths["whitened"], paths["from scores"], whiten=True)
        for key, path in paths.items():
            array = "scores" if key in ("scores", "whitened") else "images"
            found = np.load(path) if ending == "npy" else zarr.open_group(path, mode="r")[array][...]
            assert found.dtype == expected[key].dtype
            np.testing.assert_allclose(found, expected[key], **tolerance, err_msg=f"{name} {key} {ending}")


def test_written_in_pieces_keeps_names_and_coordinates(in_pieces, tmp_path):
    rng = np.random.default_rng(0)
    maps = xarray.DataArray(
        rng.normal(size=(30, 12, 10)), dims=("time", "lat", "lon"),
        coords={"time": np.arange(30), "lat": np.linspace(0, 55, 12), "lon": np.linspace(0, 9, 10)},
    )  # fmt: skip
    model = streampca.fit(maps, n_components=3, memory="64MiB", sample_axes=("lat", "lon"))
    model.save(tmp_path / "m.zarr")
    stored = load_model(tmp_path / "m.zarr", memory="1B")
    collection = streampca.open_collection(maps, sample_axes=("lat", "lon"))
    model.write_reconstruction(collection, tmp_path / "whole.zarr")
    in_pieces("panel")
    stored.write_reconstruction(collection, tmp_path / "pieces.zarr")
    with xarray.open_zarr(tmp_path / "pieces.zarr") as found, xarray.open_zarr(tmp_path / "whole.zarr") as expected:
        xarray.testing.assert_allclose(found, expected)
        assert set(found.coords) == set(expected.coords)


@pytest.mark.parametrize("route", ROUTES)
def test_a_bad_sample_is_named_and_leaves_no_output(in_pieces, tmp_path, route):
    x = images(47, dtype=np.float64).copy()
    _, stored = fitted(x, tmp_path)
    in_pieces(route)
    x[31, 2, 1] = np.inf
    for write, name in ((stored.write_scores, "s"), (stored.write_reconstruction, "i")):
        with pytest.raises(DataError, match="sample 31 of numpy array holds NaN or infinity"):
            write(x, tmp_path / f"{name}.npy")
    assert os.listdir(tmp_path) == ["m.zarr"]


def test_every_sample_is_told_of_once(in_pieces, tmp_path):
    x = images(47)
    _, stored = fitted(x, tmp_path)
    for route in ROUTES:
        in_pieces(route)
        for write, name in ((stored.write_scores, "s"), (stored.write_reconstruction, "i")):
            events = []
            write(x, tmp_path / f"{route}{name}.npy", listener=events.append)
            done = [event for event in events if isinstance(event, streampca.events.BlockDone)]
            assert sum(event.samples for event in done) == 47
            assert sum(event.bytes for event in done) == x.nbytes
            assert len(done) > 5


# -- the plan

P = 4_000_000
PARTS = Parts(
    n_components=300, n_features=P, nbytes=300 * P * 4, column_bytes=1200, held_bytes=8 * P, tile_features=6000,
    reading_bytes=35 * MIB, value_bytes=4, sample_bytes=4, out_bytes=4, makes_images=False,
)  # fmt: skip


def layout(n=1000, chunk_features=P, row=4 * P, p=P):
    return Problem(n, p, (p,), row, 4, "f", chunk_features=chunk_features)


@given(
    makes_images=st.booleans(),
    n=st.sampled_from([1, 1000, 10**6]),
    chunk_features=st.sampled_from([2000, P]),
    memory=st.sampled_from([256, 512, 4096]),
)
def test_pieces_keep_to_the_budget(makes_images, n, chunk_features, memory):
    parts = replace(PARTS, makes_images=makes_images)
    plan = plan_pieces(layout(n, chunk_features), parts, memory * MIB)
    assert plan.memory_estimate.total <= memory * MIB
    assert plan.scored_rows >= 1
    assert plan.features <= P
    if makes_images:
        assert plan.scored_rows % plan.block_rows == 0
        assert plan.block_rows % plan.chunk_rows == 0
    reads = plan.bytes_moved - layout(n).row_bytes * n
    assert reads >= parts.nbytes
    if n == 1000 and chunk_features < P:
        assert reads <= 4 * parts.nbytes, "never once a few samples"


def test_samples_that_can_be_read_by_ranges_stream_past_the_components():
    assert plan_pieces(layout(chunk_features=2000), PARTS, 512 * MIB).panel_rows == 0
    assert plan_pieces(layout(n=20), PARTS, 512 * MIB).panel_rows > 0


@pytest.mark.parametrize(
    ("makes_images", "sample_bytes", "reads_again"),
    [(False, 0, False), (False, 4, False), (True, 0, False), (True, 4, False), (True, 4, True)],
)
def test_refused_with_the_least_budget_that_does(makes_images, sample_bytes, reads_again):
    parts = replace(PARTS, makes_images=makes_images, sample_bytes=sample_bytes, reads_again=reads_again)
    collection = layout() if sample_bytes else layout(row=1200, p=300)
    with pytest.raises(
        BudgetError, match=r"300 components of 4000000 features in pieces needs .* Set memory to"
    ) as error:
        plan_pieces(collection, parts, 32 * MIB)
    least = int(str(error.value).rsplit("at least ", 1)[1].removesuffix("MiB.")) * MIB
    assert plan_pieces(collection, parts, least).memory_estimate.total <= least
    for extra in (1, 7, 60, 500):
        plan_pieces(collection, parts, least + extra * MIB)
    with pytest.raises(BudgetError):
        plan_pieces(collection, parts, least - MIB)


@pytest.mark.parametrize("mask", [None, MASK])
def test_components_to_come_are_as_they_are_stored(small_tiles, tmp_path, mask):
    _, stored = fitted(images(), tmp_path, **({} if mask is None else {"mask": mask}))
    rows, to_come = stored.components.rows, RowsToCome.of(stored.components.shape, stored.components.dtype, mask)
    for name in ("shape", "dtype", "is_cut", "tile_features", "reading_bytes"):
        assert getattr(to_come, name) == getattr(rows, name)


@pytest.mark.slow
def test_a_run_that_could_not_apply_what_it_fits_is_refused_before_reading(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 255, (120, 256, 256), np.uint8))
    read, reads = Prepared.read, []
    monkeypatch.setattr(Prepared, "read", lambda self, *at, **how: reads.append(at) or read(self, *at, **how))

    def run(memory, **output):
        about = {"source": str(tmp_path / "x.npy")}
        asked = {"model": {"n_components": 100}, "run": {"memory": memory}}
        return execute(make_run({"collection": about, "output": output, **asked}))

    for name, asked in (("scores", {"transform": True}), ("images", {"images": str(tmp_path / "images.zarr")})):
        reads.clear()
        with pytest.raises(BudgetError, match="applying 100 components of 65536 features") as error:
            run("67MiB", directory=str(tmp_path / "refused"), **asked)
        assert reads == []
        remedy = str(error.value).rsplit("at least ", 1)[1].removesuffix(".")
        assert len(run(remedy, directory=str(tmp_path / name), **asked).written) >= 2
        assert reads
    streampca.plan(tmp_path / "x.npy", n_components=100, memory="67MiB", output="m.zarr")  # a fit alone is not refused


def test_a_run_whose_pictures_could_not_be_put_together_is_refused_before_reading(tmp_path, monkeypatch):
    """Neither of what are no patches, nor where components do not fit in memory beside a block."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 255, (4, 300, 300), np.uint8))
    monkeypatch.setattr(Prepared, "read", lambda self, *at, **how: pytest.fail("something was read"))

    def run(memory, collection, n_components):
        output = {"images": str(tmp_path / "images.zarr"), "model": str(tmp_path / "model.zarr"), "whole": True}
        about = {"source": str(tmp_path / "x.npy"), **collection}
        asked = {"model": {"n_components": n_components}, "run": {"memory": memory}}
        return execute(make_run({"collection": about, "output": output, **asked}))

    with pytest.raises(RequestError, match="is not cut into patches"):
        run("100MiB", {}, 3)
    with pytest.raises(BudgetError, match="applying 200 components of 40000 features"):
        run("76MiB", {"patches": {"size": [200, 200], "step": [6, 6]}}, 200)


def test_the_routes_are_chosen_by_bytes_moved(monkeypatch):
    for chunk_features in (2000, P):
        moved = []
        for routes in ((planning_pieces._panel,), (planning_pieces._range,)):
            monkeypatch.setattr(planning_pieces, "ROUTES", routes)
            moved.append(plan_pieces(layout(chunk_features=chunk_features), PARTS, 512 * MIB).bytes_moved)
        monkeypatch.undo()
        assert plan_pieces(layout(chunk_features=chunk_features), PARTS, 512 * MIB).bytes_moved == min(moved)
