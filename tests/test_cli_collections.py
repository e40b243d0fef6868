"""Real collections on the command line: what opens, prepares, selects and copies them, from typing to result."""

from __future__ import annotations

import json
import os
import shlex

import h5py
import numpy as np
import pytest
import xarray
import zarr
from PIL import Image
from shell import refused, succeeded, typed

import streampca
from streampca.cli.config import load_run
from streampca.errors import RequestError, SourceError
from streampca.preprocessing import Preparation


def pictures(n=60, height=12, width=10, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width), dtype=np.uint8)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """JPEG files in colour and grey, each of its own size."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(1)
    for number in range(30):
        height, width = rng.integers(20, 90, size=2)
        shape = (height, width) if number % 5 == 0 else (height, width, 3)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{number}.jpg", quality=80)
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """An array of digits, its labels and weights, and a model of it."""
    folder = tmp_path_factory.mktemp("digits")
    x = pictures(200)
    labels = np.arange(200) % 4
    np.save(folder / "x.npy", x)
    rows = "\n".join(f"{label},{1 + label % 2}" for label in labels)
    (folder / "table.csv").write_text(f"kind,weight\n{rows}\n")
    succeeded("fit", folder / "x.npy", "-k", 2, "-o", folder / "m.zarr", "-q")
    return folder, x, labels


def same_model(path, expected):
    model = streampca.load(path)
    np.testing.assert_allclose(model.explained_variance, expected.explained_variance, rtol=1e-12)
    np.testing.assert_allclose(model.total_variance, expected.total_variance, rtol=1e-12)
    return model


def test_photographs_of_all_sizes_in_one_command(photos, tmp_path):
    about = succeeded("info", photos)
    assert "30 of images of several sizes, up to" in about
    said = succeeded("fit", photos, "--resize", "64x64", "--grey", "-k", 5, "-o", tmp_path / "m.zarr", "-q")
    assert "5 components of 64 x 64" in said
    succeeded("transform", tmp_path / "m.zarr", photos, "-o", tmp_path / "s.csv", "-q")
    lines = (tmp_path / "s.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines[1:]] == [f"{number}.jpg" for number in range(30)], "natural order"


def test_photographs_of_all_sizes_without_resize_are_refused_with_it(photos, tmp_path):
    said = refused("fit", photos, "-k", 5, "-o", tmp_path / "m.zarr")
    assert "--resize 64x64 --grey" in said
    assert not (tmp_path / "m.zarr").exists()


def test_bad_files_are_skipped_and_listed(undrawn, tmp_path):
    folder = tmp_path / "scans"
    folder.mkdir()
    for number, image in enumerate(pictures(20)):
        Image.fromarray(image).save(folder / f"{number}.png")
    whole = (folder / "7.png").read_bytes()
    (folder / "7.png").write_bytes(whole[: len(whole) // 2])
    said = refused("fit", folder, "-k", 3, "-o", tmp_path / "m.zarr")
    assert "7.png" in said
    assert "--on-bad-file skip" in said
    config = tmp_path / "run.yaml"
    config.write_text(f"collection: {{source: {folder}, on_bad_file: skip}}\nmodel: {{n_components: 3}}\n"
                      f"output: {{directory: {tmp_path / 'run'}, transform: true, report: true}}\n")  # fmt: skip
    assert "skipped 1 bad file; the model lists them" in succeeded("run", config, "-q")
    model = same_model(tmp_path / "run" / "model.zarr", streampca.fit(np.delete(pictures(20), 7, 0), n_components=3))
    [(path, reason)] = model.provenance["skipped"]
    assert path == str(folder / "7.png")
    assert reason
    assert f"skipped {path}: {reason}" in (tmp_path / "run" / "run.log").read_text()
    assert (tmp_path / "run" / "files.npz").is_file()
    scores = xarray.open_zarr(tmp_path / "run" / "scores.zarr")
    assert scores.sizes["sample"] == 19
    assert "7.png" not in scores["sample"].values.tolist()
    assert "used again" in typed("run", config).err


@pytest.fixture
def both_ways(tmp_path):
    """60 landscape and 40 portrait photographs, and one that is broken."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(100):
        shape = (24, 32, 3) if number % 5 < 3 else (32, 24, 3)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{number}.jpg")
    (folder / "50b.jpg").write_bytes((folder / "50.jpg").read_bytes()[:300])
    return folder


RESIZED = Preparation(resize=(16, 16), grey=True)


def test_skipping_leaves_out_no_image_that_resizing_makes_fit(both_ways, tmp_path):
    resized = ("--resize", "16x16", "--grey", "-k", 4, "-q")
    succeeded("fit", both_ways, *resized, "--on-bad-file", "skip", "-o", tmp_path / "skip.zarr")
    [(path, reason)] = streampca.load(tmp_path / "skip.zarr").provenance["skipped"]
    assert path == str(both_ways / "50b.jpg")
    assert f"skipped     {path}: {reason}" in succeeded("inspect", tmp_path / "skip.zarr")
    (both_ways / "50b.jpg").unlink()
    succeeded("fit", both_ways, *resized, "-o", tmp_path / "all.zarr")
    model = same_model(tmp_path / "skip.zarr", streampca.load(tmp_path / "all.zarr"))
    assert model.n_samples == 100
    photos = streampca.open_collection(both_ways, on_bad_file="skip", labels=np.arange(100))
    assert photos.n_samples == 100
    assert streampca.fit(photos, n_components=4, preparation=RESIZED).n_samples == 100


def test_skipping_leaves_out_what_no_preparation_makes_fit(undrawn, both_ways, tmp_path):
    skips = ("--on-bad-file", "skip", "-q")
    succeeded("fit", both_ways, *skips, "-k", 4, "-o", tmp_path / "m.zarr")
    model = streampca.load(tmp_path / "m.zarr")
    assert model.raw_shape == (24, 32, 3)
    assert model.n_samples == 60
    left = [os.path.basename(path) for path, _ in model.provenance["skipped"]]
    assert len(left) == 41
    assert left[:3] == ["3.jpg", "4.jpg", "8.jpg"]
    assert left[20:22] == ["50b.jpg", "53.jpg"]  # in the order of the files
    assert "is 32 x 24 x 3 uint8, unlike most images of" in model.provenance["skipped"][0][1]
    succeeded("report", tmp_path / "m.zarr", "-o", tmp_path / "r.html", "-q")
    assert (tmp_path / "r.html").read_text().count("<figure") > 4  # those drawn without samples
    said = succeeded("inspect", tmp_path / "m.zarr")
    assert said.count("skipped  ") == 10
    assert "... and 31 more (--json lists all)" in said
    assert len(json.loads(succeeded("inspect", tmp_path / "m.zarr", "--json"))["provenance"]["skipped"]) == 41
    # The samples that fit the model are taken, though most files of this folder are others.
    for number in range(60):
        if number % 5 < 3:
            (both_ways / f"{number}.jpg").unlink()
    succeeded("transform", tmp_path / "m.zarr", both_ways, *skips, "-o", tmp_path / "s.npy")
    assert np.load(tmp_path / "s.npy").shape == (24, 4)
    assert "of 32 x 24 x 3" in refused("transform", tmp_path / "m.zarr", both_ways / "3.jpg", "-o", tmp_path / "t.npy")


def test_a_run_lists_what_its_preparation_left_out(both_ways, tmp_path):
    for number in range(3):
        Image.fromarray(np.full((9, 9, 3), number, np.uint8)).save(both_ways / f"small{number}.jpg")
    config = tmp_path / "run.yaml"
    config.write_text(f"collection: {{source: {both_ways}, on_bad_file: skip}}\n"
                      "prepare: {crop: [[2, 22], [2, 22]], resize: [8, 8]}\nmodel: {n_components: 2}\n"
                      f"output: {{directory: {tmp_path / 'run'}, transform: true}}\n")  # fmt: skip
    assert "skipped 4 bad files" in succeeded("run", config, "-q")
    log = (tmp_path / "run" / "run.log").read_text()
    assert log.count("skipped ") == 4
    assert f"skipped {both_ways / 'small1.jpg'}: crop 2:22 lies outside an axis of 9 pixels" in log
    assert xarray.open_zarr(tmp_path / "run" / "scores.zarr").sizes["sample"] == 100
    assert "used again" in typed("run", config).err


@pytest.mark.parametrize("on_bad_file", ["error", "skip"])
def test_grey_alone_makes_colours_of_one_size_fit(tmp_path, on_bad_file):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((9, 7), (9, 7, 3), (9, 7, 4), (9, 7, 3)) * 3]
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    model = streampca.fit(tmp_path, n_components=3, preparation=Preparation(grey=True), on_bad_file=on_bad_file)
    grey = [image if image.ndim == 2 else image[..., :3] @ np.array([0.299, 0.587, 0.114]) for image in images]
    same = streampca.fit(np.array(grey, np.float32), n_components=3)
    np.testing.assert_allclose(model.explained_variance, same.explained_variance, rtol=1e-5)
    scores = np.asarray(model.transform(tmp_path))
    np.testing.assert_allclose(np.asarray(model.transform(f"{tmp_path}/[159].png")), scores[[1, 5, 9]], rtol=1e-4)
    with pytest.raises(SourceError, match=r"several sizes, .*grey=True"):
        streampca.fit(tmp_path, n_components=3)
    with pytest.raises(RequestError, match=r"grey needs 3 or 4 colour channels last; samples are 9 x 7\. Leave it out"):
        streampca.fit(f"{tmp_path}/[048].png", n_components=1, preparation=Preparation(grey=True))


def test_weights_and_labels_of_all_files_fit_those_that_are_left(both_ways):
    numbers = np.arange(101)
    weights = np.where(numbers % 2, 1.0, 2.0)
    model = streampca.fit(both_ways, n_components=2, sample_weight=weights, on_bad_file="skip", labels=numbers)
    assert model.n_samples == 60
    photos = streampca.open_collection(both_ways, on_bad_file="skip", labels=numbers, where="label<20")
    assert photos.n_samples == 20
    fitted = streampca.fit(photos, n_components=2, sample_weight=weights)
    assert fitted.n_samples == 12
    x = np.stack([np.asarray(Image.open(both_ways / f"{n}.jpg")) for n in range(20) if n % 5 < 3])
    kept = [n for n in range(20) if n % 5 < 3]
    by_hand = streampca.fit(x, n_components=2, sample_weight=weights[kept])
    np.testing.assert_allclose(fitted.explained_variance, by_hand.explained_variance, rtol=1e-6)


def test_windows_are_cut_from_those_of_one_size(both_ways):
    found = streampca.open_collection(both_ways, on_bad_file="skip", patches=8)
    assert found.shape == (60 * 12, 8, 8, 3)
    assert len(found.skipped) == 41


def test_where_no_size_is_that_of_most_nothing_is_left_out_for_it(both_ways):
    for number in range(100):
        if number % 5 == 0:
            (both_ways / f"{number}.jpg").unlink()
    with pytest.raises(
        SourceError, match=r"several sizes, .*; give Preparation\(resize=.*, or leave out the others\.$"
    ):
        streampca.fit(both_ways, n_components=2, on_bad_file="skip")
    assert streampca.fit(both_ways, n_components=2, preparation=RESIZED, on_bad_file="skip").n_samples == 80


def test_samples_are_chosen_and_weighed(digits, tmp_path):
    folder, x, labels = digits
    table = folder / "table.csv"
    chosen = ("--labels", f"{table}:kind", "--where", "label!=0,1", "--samples", "20:180:3")
    words = (*chosen, "--sample-weight", f"{table}:weight", "--precision", "double", "-k", 2, "-o", tmp_path / "m.zarr")
    succeeded("fit", folder / "x.npy", *words, "-q")
    kept = np.arange(20, 180, 3)[labels[20:180:3] > 1]
    weights = 1 + labels[kept] % 2
    copied = streampca.fit(x[kept].repeat(weights, axis=0), streampca.PCA(2, precision="double"))
    model = same_model(tmp_path / "m.zarr", copied)
    assert model.total_weight == weights.sum()
    assert model.n_samples == len(kept)


def test_one_image_is_refused_with_windows_of_it_as_remedy(tmp_path):
    image = pictures(1, 64, 48)[0]
    Image.fromarray(image).save(tmp_path / "image.png")
    fit = ("fit", tmp_path / "image.png", "-o", tmp_path / "m.zarr")
    assert "--patches 16x16" in refused(*fit)
    patches = ("--patches", "8x8/4x4", "-q")
    succeeded(*fit, "-k", 4, *patches)
    windows = np.lib.stride_tricks.sliding_window_view(image, (8, 8))[::4, ::4]
    same_model(tmp_path / "m.zarr", streampca.fit(windows.reshape(-1, 8, 8), n_components=4))
    succeeded("transform", tmp_path / "m.zarr", tmp_path / "image.png", *patches, "-o", tmp_path / "s.zarr")
    scores, (rows, columns) = xarray.open_zarr(tmp_path / "s.zarr"), np.indices(windows.shape[:2]) * 4
    np.testing.assert_array_equal(scores["row"], rows.ravel())
    np.testing.assert_array_equal(scores["column"], columns.ravel())


def test_land_is_left_out(tmp_path):
    rng = np.random.default_rng(0)
    sea = rng.random((6, 7)) > 0.4
    x = np.where(sea, rng.normal(size=(50, 6, 7)), np.nan)
    coords = {"lat": np.linspace(-60, 60, 6), "lon": np.arange(7.0), "time": np.arange(50)}
    data = xarray.DataArray(x, dims=("time", "lat", "lon"), coords=coords, name="sst")
    data.to_netcdf(tmp_path / "x.nc", format="NETCDF3_64BIT", engine="scipy")
    said = refused("fit", tmp_path / "x.nc", "-k", 3, "-o", tmp_path / "m.zarr")
    assert f"{1 - sea.mean():.0%}".replace("%", " %") in said
    assert "--mask valid" in said
    succeeded("fit", tmp_path / "x.nc", "-k", 3, "--mask", "valid", "-o", tmp_path / "m.zarr", "-q")
    model = same_model(tmp_path / "m.zarr", streampca.fit(x[:, sea], n_components=3))
    np.testing.assert_array_equal(model.mask, sea)
    stored = xarray.open_zarr(tmp_path / "m.zarr")
    np.testing.assert_array_equal(stored["lat"], coords["lat"])
    assert stored["components"].dims == ("component", "lat", "lon")
    succeeded("transform", tmp_path / "m.zarr", tmp_path / "x.nc", "-o", tmp_path / "s.zarr", "-q")
    np.testing.assert_array_equal(xarray.open_zarr(tmp_path / "s.zarr")["time"], coords["time"])


def test_options_are_printed_as_a_run_file_that_does_the_same(tmp_path):
    text = succeeded(
        "fit", "a", "b", "--patches", "8x6/4x3", "--samples", ":100:2", "--labels", "folder", "--where", "label=x",
        "--on-bad-file", "skip", "--resize", "4x4", "--scale", "area", "--normalize", "mean", "--mask", "valid",
        "--sample-weight", "w.npy", "-k", "mp", "-o", "m.zarr", "--print-config",
    )  # fmt: skip
    (tmp_path / "run.yaml").write_text(text)
    run = load_run(str(tmp_path / "run.yaml"))
    assert run.collection.patches == {"size": [8, 6], "step": [4, 3]}
    assert run.collection.samples == [None, 100, 2]
    assert (run.collection.labels, run.collection.where, run.collection.on_bad_file) == ("folder", "label=x", "skip")
    assert (run.prepare.resize, run.prepare.scale, run.prepare.normalize) == ((4, 4), "area", "mean")
    assert (run.prepare.mask, run.collection.sample_weight, run.model.n_components) == ("valid", "w.npy", "mp")
    assert run.to_yaml() == text


def test_schema_is_json_with_every_section():
    schema = json.loads(succeeded("run", "--schema"))
    assert set(schema["properties"]) == {
        "collection",
        "apply",
        "prepare",
        "model",
        "update",
        "follow",
        "neighbors",
        "run",
        "output",
    }


def test_next_command_opens_the_collection_alike(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["raw"] = pictures(40).reshape(20, 2, 12, 10)
        file["other"] = pictures(40)
    np.save(tmp_path / "label.npy", np.arange(20) % 2)
    opened = ("--key", "raw", "--select", "1=0", "--samples", "0:19", "--labels", tmp_path / "label.npy",
              "--where", "label=1")  # fmt: skip
    said = succeeded("fit", tmp_path / "x.h5", *opened, "-k", 2, "-o", tmp_path / "m.zarr", "-q")
    report, words = (shlex.split(line.removeprefix("next: streampca ")) for line in said.splitlines()[-2:])
    assert report == ["report", str(tmp_path / "m.zarr"), "--labels", str(tmp_path / "label.npy"), "-o", "report.html"]
    assert words[-2:] == ["-o", "scores.zarr"]
    succeeded(*words[:-1], tmp_path / "s.npy", "-q")
    assert np.load(tmp_path / "s.npy").shape == (9, 2)


def test_info_says_types_and_not_their_byte_order(tmp_path):
    np.save(tmp_path / "x.npy", pictures(5).astype(">f4"))
    assert "values      float32, 120 features" in succeeded("info", tmp_path / "x.npy")


def test_several_arrays_are_told_apart_as_the_message_says(tmp_path):
    for name, open_file in (("x.npz", np.savez), ("x.h5", _hdf5), ("x.zarr", _zarr)):
        open_file(tmp_path / name, one=pictures(5), two=pictures(7))
        said = refused("info", tmp_path / name)
        assert "--key two." in said, "the largest"
        assert "7 of 12 x 10" in succeeded("info", tmp_path / name, "--key", "two")


def _hdf5(path, **arrays):
    with h5py.File(path, "w") as file:
        file.update(arrays)


def _zarr(path, **arrays):
    group = zarr.open_group(path, mode="w")
    for name, values in arrays.items():
        group.create_array(name, data=values)


def test_models_are_no_collections(digits, tmp_path):
    said = refused("transform", digits[0] / "x.npy", digits[0] / "m.zarr", "-o", tmp_path / "s.npy")
    assert "m.zarr is a model, not a collection" in said
    assert "where a command takes a model, too, it comes first" in said
    assert "2 of 12 x 10" in succeeded("info", digits[0] / "m.zarr", "--key", "components")


@pytest.mark.parametrize(("option", "remedy"), [
    ("--mask", "or give 'valid'"),
    ("--scale", "or give 'area'"),
    ("--sample-weight", "check the path"),
])  # fmt: skip
def test_missing_files_of_options_are_said_to_be_missing(digits, option, remedy, tmp_path):
    for name in ("nope.npy", "nope.fits"):
        said = refused("fit", digits[0] / "x.npy", option, tmp_path / name, "-o", tmp_path / "m.zarr")
        assert f"{name} does not exist" in said
        assert "Errno" not in said
    assert remedy in refused("fit", digits[0] / "x.npy", option, tmp_path / "nope.npy", "-o", tmp_path / "m.zarr")


def test_missing_lists_and_unknown_formats(tmp_path):
    said = refused("info", f"@{tmp_path / 'nope.txt'}")
    assert "(No such file or directory)" in said
    for name, words in (("list.txt", "HDF5, NetCDF, FITS"), ("list.csv", "list.csv is a table")):
        (tmp_path / name).write_text("file\n1.png\n")
        said = refused("info", tmp_path / name)
        assert words in said
        assert "table.csv:column" in said


@pytest.mark.parametrize("command", ["fit", "copy"])
def test_outputs_at_urls_are_refused_before_anything_is_read(digits, command):
    said = typed(command, digits[0] / "x.npy", "-o", "http://127.0.0.1:9/m.zarr", "-q")
    assert "cannot be written" in said.complaint


def test_servers_that_do_not_answer_are_named(tmp_path):
    said = refused("info", "ftp://127.0.0.1:9/x.npy")
    assert said.startswith("ftp://127.0.0.1:9/x.npy cannot be opened (")
    assert "check the address" in said


def test_scores_of_another_model(digits, tmp_path):
    source, model = digits[0] / "x.npy", digits[0] / "m.zarr"
    succeeded("fit", source, "-k", 3, "-o", tmp_path / "m3.zarr", "-q")
    succeeded("transform", model, source, "-o", tmp_path / "s.zarr", "-q")
    said = refused("reconstruct", tmp_path / "m3.zarr", tmp_path / "s.zarr", "-o", tmp_path / "r.zarr")
    assert f"scores of 2 components by the model {model}" in said
    succeeded("reconstruct", model, tmp_path / "s.zarr", "-o", tmp_path / "r.zarr", "-q")


def test_outputs_do_not_become_part_of_what_was_read(tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    for number in range(3):
        np.save(parts / f"{number}.npy", pictures(20, seed=number))
    succeeded("fit", parts, "-k", 2, "-o", tmp_path / "m.zarr", "-q")
    for words in (
        ("copy", parts, "-o", parts / "copy.zarr"),
        ("transform", tmp_path / "m.zarr", parts / "*.npy", "-o", parts / "scores.npy"),
    ):
        assert "would become part of the collection" in refused(*words, code=2)
    succeeded("copy", parts, "-o", tmp_path / "copy.zarr", "-q")
    assert streampca.open_collection(parts).n_samples == 60


def test_copies_and_scores_keep_names_and_times(photos, tmp_path):
    copy = ("copy", photos, "--resize", "8x8", "--grey", "-o", tmp_path / "p.zarr")
    succeeded(*copy, "-q")
    assert "exists already" in refused(*copy)
    assert xarray.open_zarr(tmp_path / "p.zarr")["images"].shape == (30, 8, 8)
    succeeded("fit", tmp_path / "p.zarr", "-k", 2, "-o", tmp_path / "m.zarr", "-q")
    export = ("export", tmp_path / "m.zarr", "-o", tmp_path / "m.tif")
    succeeded(*export)
    assert "exists already" in refused(*export)
    with Image.open(tmp_path / "m.tif") as pages:
        assert (pages.n_frames, pages.mode, pages.size) == (3, "F", (8, 8))
    some = ("--samples", "10:20")
    succeeded("transform", tmp_path / "m.zarr", tmp_path / "p.zarr", *some, "-o", tmp_path / "s.csv", "-q")
    lines = (tmp_path / "s.csv").read_text().splitlines()[1:]
    assert [line.partition(",")[0] for line in lines] == [f"{number}.jpg" for number in range(10, 20)]
    x = np.random.default_rng(0).normal(size=(30, 4, 5))
    time = xarray.DataArray(np.arange(30) * 6, dims="time", attrs={"units": "hours since 2000-01-01"})
    data = xarray.DataArray(x, dims=("time", "lat", "lon"), coords={"time": time, "lat": np.arange(4.0)}, name="sst")
    data.to_netcdf(tmp_path / "x.nc", format="NETCDF3_64BIT", engine="scipy")
    succeeded("copy", tmp_path / "x.nc", "-o", tmp_path / "x.zarr", "-q")
    succeeded("fit", tmp_path / "x.zarr", "-k", 2, "-o", tmp_path / "m.zarr", "-q", "--overwrite")
    succeeded("transform", tmp_path / "m.zarr", tmp_path / "x.zarr", "-o", tmp_path / "s.zarr", "-q")
    succeeded("reconstruct", tmp_path / "m.zarr", tmp_path / "s.zarr", "-o", tmp_path / "r.zarr", "-q")
    for made in ("x.zarr", "s.zarr", "r.zarr"):
        opened = xarray.open_zarr(tmp_path / made)
        assert opened["time"].values[-1] == np.datetime64("2000-01-08T06:00")
        if made != "s.zarr":
            np.testing.assert_array_equal(opened["lat"], np.arange(4.0))


def test_a_run_that_copies_goes_on_where_it_was(digits, tmp_path):
    config = tmp_path / "run.yaml"
    output = f"{{directory: {tmp_path / 'run'}, collection: {tmp_path / 'c.zarr'}, transform: true}}"
    config.write_text(f"collection: {{source: {digits[0] / 'x.npy'}}}\nmodel: {{n_components: 2}}\noutput: {output}\n")
    succeeded("run", config, "-q")
    before = (tmp_path / "c.zarr" / "zarr.json").stat().st_mtime_ns
    (tmp_path / "run" / "scores.zarr").rename(tmp_path / "scores.zarr")
    succeeded("run", config, "-q")
    assert (tmp_path / "run" / "scores.zarr").is_dir()
    assert (tmp_path / "c.zarr" / "zarr.json").stat().st_mtime_ns == before
    succeeded("run", config, "-q", "--overwrite")
    assert (tmp_path / "c.zarr" / "zarr.json").stat().st_mtime_ns > before
