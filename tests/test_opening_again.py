"""What opened a source for a fit opens the next source that the model is applied to, at every door."""

from __future__ import annotations

from functools import partial

import h5py
import numpy as np
import pytest
import tifffile
import yaml
import zarr
from shell import refused, succeeded

import streampca
from streampca.errors import ModelError, RequestError

RNG = np.random.default_rng(5)
FIELDS = RNG.integers(0, 99, (2, 20, 3, 6, 5)).astype("f4")  # of two sources: samples, channels, y and x


def npz(path, x):
    np.savez(f"{path}.npz", other=x + 1, tasmax=x)
    return f"{path}.npz"


def hdf5(path, x):
    with h5py.File(f"{path}.h5", "w") as file:
        file["other"], file["tasmax"] = x + 1, x
    return f"{path}.h5"


def stored(path, x):
    group = zarr.open_group(f"{path}.zarr", mode="w")
    for name, values in (("other", x + 1), ("tasmax", x)):
        group.create_array(name, data=values, dimension_names=("time", "c", "y", "x"))
    return f"{path}.zarr"


FORMATS = {"npz": npz, "hdf5": hdf5, "zarr": stored}
OPENINGS = {
    "a channel": {"sample_axes": (2, 3), "select": {1: 0}},
    "rows of a channel": {"sample_axes": (2, 3), "select": {1: 1, 2: slice(1, 5)}},
    "windows": {"sample_axes": (2, 3), "select": {1: 2}, "patches": {"size": (3, 2), "step": (2, 1)}},
    "turned": {"sample_axes": (3, 2), "select": {1: 0}, "fill_value": 7},
}


@pytest.fixture(params=FORMATS, scope="module")
def sources(request, tmp_path_factory):
    """Two sources of the same arrays, of which one is called tasmax."""
    folder = tmp_path_factory.mktemp(request.param)
    return [FORMATS[request.param](folder / name, x) for name, x in zip(("a", "b"), FIELDS, strict=True)]


@pytest.mark.every(3)
@pytest.mark.parametrize("how", OPENINGS.values(), ids=OPENINGS)
def test_a_model_opens_the_next_source_as_that_of_its_fit(sources, how, tmp_path):
    first, following = sources
    missing = {"missing": "drop-samples"} if "fill_value" in how else {}
    kind = streampca.PCA(3, method="covariance", **missing)
    model = streampca.fit(first, kind, key="tasmax", **how, output=tmp_path / "m.zarr")
    told = streampca.open_collection(following, key="tasmax", **how)
    expected = np.asarray(model.transform(told))
    for applied in (model, streampca.load(tmp_path / "m.zarr")):
        scores = applied.transform(following)
        assert hasattr(scores, "dask"), "scores of a path are lazy"
        np.testing.assert_array_equal(scores, expected)
    np.testing.assert_array_equal(model.transform(following, key="tasmax"), expected)
    np.testing.assert_array_equal(model.reconstruct(following), model.reconstruct(told))
    model.write_scores(following, tmp_path / "python.npy")
    succeeded("transform", tmp_path / "m.zarr", following, "-o", tmp_path / "command.npy")
    run = {"collection": {"source": str(following)}, "apply": str(tmp_path / "m.zarr"),
           "output": {"scores": str(tmp_path / "run.npy")}}  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    succeeded("run", tmp_path / "run.yaml")
    for name in ("python", "command", "run"):
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), expected, err_msg=name)
    if "fill_value" not in how:
        model.write_reconstruction(following, tmp_path / "python-images.npy")
        succeeded("reconstruct", tmp_path / "m.zarr", following, "-o", tmp_path / "images.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "images.npy"), np.load(tmp_path / "python-images.npy"))
        # Scores, and copies, are opened by their path alone.
        model.write_scores(following, tmp_path / "scores.zarr")
        model.write_reconstruction(tmp_path / "scores.zarr", tmp_path / "from-scores.npy")
        streampca.copy(told, output=tmp_path / "copy.zarr")
        np.testing.assert_array_equal(model.transform(tmp_path / "copy.zarr"), expected)
        updated = streampca.update(model, following)
        assert updated.n_samples == model.n_samples + told.n_samples
        np.testing.assert_array_equal(updated.transform(following).shape, expected.shape)


def test_every_method_opens_a_path_with_the_options_of_transform(sources):
    """In place of those of the fit: another channel."""
    how, last = {"key": "tasmax", "sample_axes": (2, 3), "select": {1: 0}}, {"select": {1: 2}, "samples": [7, 2, 9]}
    model = streampca.fit(sources[0], streampca.PCA(2), **how)
    numeric = streampca.fit(
        sources[0], streampca.SupervisedPrincipalComponents(1, threshold=0.1), target=np.arange(20.0), **how
    )
    opened = FIELDS[1][[7, 2, 9], 2]
    path = sources[1]
    np.testing.assert_array_equal(model.score_samples(path, **last), model.score_samples(opened))
    assert model.score(path, **last) == pytest.approx(model.score(opened))
    np.testing.assert_array_equal(model.compression(path, **last).rmse, model.compression(opened).rmse)
    clean = model.compression(path, against=path, **last)
    assert clean.given_rmse == 0
    np.testing.assert_array_equal(numeric.predict(path, **last), numeric.predict(opened))
    for call in (model.score_samples, model.score, model.compression, numeric.predict):
        with pytest.raises(TypeError, match="'seletc' is not an option"):
            call(path, seletc={1: 2})


def test_a_copy_of_another_variable_is_refused(sources, tmp_path):
    how = {"sample_axes": (2, 3), "select": {1: 0}}
    model = streampca.fit(sources[0], n_components=2, key="tasmax", **how)
    streampca.copy(sources[1], key="tasmax", **how, output=tmp_path / "same.zarr")
    streampca.copy(sources[1], key="other", **how, output=tmp_path / "other.zarr")
    streampca.copy(tmp_path / "other.zarr", output=tmp_path / "again.zarr")
    np.testing.assert_array_equal(model.transform(tmp_path / "same.zarr"), model.transform(sources[1]))
    for path in (tmp_path / "other.zarr", tmp_path / "again.zarr"):
        for use in (model.transform, lambda source: streampca.update(model, source)):
            with pytest.raises(ModelError, match="is a copy of 'other', and the model was fitted to 'tasmax'; give a"):
                use(path)
        assert model.transform(streampca.open_collection(path)).shape == (20, 2)  # the remedy


def bootstrapped(*how, **key):
    model = streampca.fit(*how, n_components=2, **key)
    return streampca.bootstrap(model, model.transform(FIELDS[0][:, 0]), n_replicates=10)


@pytest.mark.parametrize("fitted", [
    *(lambda *how, kind=kind, **key: streampca.fit(*how, kind, **key) for kind in (
        streampca.PCA(2), streampca.Isomap(2), streampca.KernelPCA(2),
    )),
    lambda *how, **key: streampca.fit(*how, streampca.PCA(2), **key).rotate(),
    bootstrapped,
], ids=["pca", "isomap", "kernel-pca", "rotated", "bootstrap"])  # fmt: skip
def test_models_of_every_class_open_the_next_source(tmp_path, fitted):
    path = npz(tmp_path / "e", FIELDS[0][:, 0])
    model = fitted(path, key="tasmax", output=tmp_path / "m.zarr")
    expected = model.transform(FIELDS[0][:, 0])
    np.testing.assert_allclose(model.transform(path), expected, rtol=1e-5, atol=1e-4)


def test_what_is_given_stands_in_place_of_what_the_model_knows(sources):
    first, following = sources
    model = streampca.fit(first, n_components=2, key="tasmax", sample_axes=(2, 3), select={1: 0})
    for more in ({"key": "other"}, {"select": {1: 2}}, {"select": {0: slice(3, 9)}}, {"samples": slice(0, 4)}):
        how = {"key": "tasmax", "sample_axes": (2, 3), **more}
        how["select"] = {1: 0, **more.get("select", {})}
        expected = model.transform(streampca.open_collection(following, **how))
        np.testing.assert_array_equal(model.transform(following, **more), expected)
        np.testing.assert_array_equal(
            streampca.open_collection(following, like=model, **more)[:], expected_raw(following, how)
        )


def expected_raw(source, how):
    return streampca.open_collection(source, **how)[:]


def test_what_a_source_of_another_sort_has_no_use_for_is_left_out(sources, tmp_path):
    how = {"key": "tasmax", "sample_axes": (2, 3), "select": {1: 0}, "fill_value": 7}
    model = streampca.fit(sources[0], streampca.PCA(2, missing="drop-samples"), **how)
    plain = np.where(FIELDS[1][:, 0] == 7, 8, FIELDS[1][:, 0])
    expected = model.transform(plain)
    np.save(tmp_path / "x.npy", plain)
    tifffile.imwrite(tmp_path / "x.tif", plain, photometric="minisblack")
    np.savez(tmp_path / "x.npz", tasmax=plain)
    for path in ("x.npy", "x.tif", "x.npz"):
        np.testing.assert_array_equal(model.transform(tmp_path / path), expected, err_msg=path)
    (tmp_path / "pages").mkdir()
    for number, page in enumerate(plain):
        tifffile.imwrite(tmp_path / "pages" / f"{number:02}.tif", page)
    np.testing.assert_array_equal(model.transform(tmp_path / "pages"), expected)


def test_what_could_suit_a_source_and_does_not_is_refused(sources, tmp_path):
    model = streampca.fit(sources[0], n_components=2, key="tasmax", sample_axes=(2, 3), select={1: 0})
    np.savez(tmp_path / "other.npz", tas=FIELDS[1])
    with pytest.raises(RequestError, match=r"has no array .*'tasmax'|holds no array .*tasmax") as error:
        model.transform(tmp_path / "other.npz")
    assert "it holds tas" in str(error.value)
    scores = model.transform(tmp_path / "other.npz", key="tas")  # the remedy
    assert scores.shape == (20, 2)
    np.savez(tmp_path / "other.npz", tasmax=FIELDS[1][..., :3])
    with pytest.raises(ModelError, match="6 x 3"):
        model.transform(tmp_path / "other.npz")
    model.save(tmp_path / "m.zarr")
    assert "6 x 3" in refused("transform", tmp_path / "m.zarr", tmp_path / "other.npz", "-o", tmp_path / "s.npy")


def ensemble(path, members, lats=6):
    xarray = pytest.importorskip("xarray")
    days = np.arange("1990-01-01", "1990-01-11", dtype="datetime64[D]").astype("datetime64[ns]")
    values = RNG.normal(size=(len(days), members, lats, 8)).astype("f4")
    axes = {"time": days, "member": np.arange(members), "lat": np.arange(lats), "lon": np.arange(8)}
    xarray.Dataset({"t": (tuple(axes), values)}, axes).to_netcdf(path)
    return path


@pytest.mark.parametrize("how", [
    {"sel": {"member": 3}}, {"select": {"member": 3}}, {"select": {1: 3}},
    {"select": {"member": 3}, "sel": {"lat": slice(1, 4)}},
], ids=str)  # fmt: skip
def test_another_axis_is_not_taken_as_samples_where_an_entry_is_missing(tmp_path, how):
    kind = streampca.PCA(3, method="covariance")
    model = streampca.fit(ensemble(tmp_path / "a.nc", 4), kind, key="t", **how)
    following = ensemble(tmp_path / "b.nc", 3)
    for use in (model.transform, lambda source: streampca.update(model, source)):
        with pytest.raises(RequestError, match="3") as error:
            use(following)
        assert "\n" not in str(error.value)
    name = "sel" if "member" in how.get("sel", {}) else "select"
    given = {name: {next(iter(how[name])): 2}}
    assert model.transform(following, **given).shape == (10, 3)  # the remedy: another member
    streampca.copy(tmp_path / "a.nc", key="t", **how, output=tmp_path / "copy.zarr")
    assert model.transform(tmp_path / "copy.zarr").shape == (10, 3)


def test_an_axis_of_which_one_entry_was_taken_never_counts_samples_later(tmp_path):
    how = {"key": "t", "select": {"member": 3, "lat": slice(2, 6)}}
    model = streampca.fit(ensemble(tmp_path / "a.nc", 4), n_components=2, **how)
    with pytest.raises(ModelError, match="2 x 8"):
        model.transform(ensemble(tmp_path / "b.nc", 4, lats=4))


@pytest.mark.parametrize("how", [
    {"select": {1: 0, -1: slice(0, 4)}}, {"select": {1: 1, 3: slice(0, 4)}}, {"select": {-3: 0, 3: slice(0, 4)}},
    {"select": {"-3": 0, "3": slice(0, 4)}, "sample_axes": ["-2", 3]},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("axes", [None, [2, 3], [-2, -1], (2, -1)], ids=str)
def test_parts_of_a_samples_axes_are_taken_over_however_an_axis_is_named(tmp_path, how, axes):
    np.savez(tmp_path / "n.npz", t=RNG.normal(size=(20, 3, 6, 8)).astype("f4"))
    xarray = pytest.importorskip("xarray")
    with np.load(tmp_path / "n.npz") as arrays:
        xarray.Dataset({"t": (("time", "member", "lat", "lon"), arrays["t"])}).to_netcdf(tmp_path / "n.nc")
    how = how if axes is None or "sample_axes" in how else {**how, "sample_axes": axes}
    if axes is None and "sample_axes" not in how:
        how = {**how, "select": {**how["select"], 0: slice(0, 15)}}  # not taken over
    for path in (tmp_path / "n.npz", tmp_path / "n.nc", [tmp_path / "n.nc"]):
        model = streampca.fit(path, n_components=2, key="t", **how)
        assert model.raw_shape == (6, 4)
        assert model.transform(path).shape == (20, 2)


def test_an_axis_that_is_given_in_another_form_replaces_that_of_the_fit(tmp_path):
    """By name or number, in place of one entry of those that the fit was given; samples that are cut need none."""
    how = {"key": "t", "select": {"member": 3, "lat": slice(2, 6)}}
    model = streampca.fit(ensemble(tmp_path / "a.nc", 4), n_components=2, **how)
    path = ensemble(tmp_path / "b.nc", 4)
    opened = {**how, "select": {**how["select"], "member": 1}}
    expected = model.transform(streampca.open_collection(path, **opened))
    for select in ({"member": 1}, {1: 1}, {-3: 1}, {"1": 1}):
        np.testing.assert_array_equal(model.transform(path, select=select), expected)
    with pytest.raises(RequestError, match=r"twice, also as 'member'; name it once"):
        model.transform(path, select={"member": 1, 1: 0})


def test_parts_are_not_given_for_samples_that_are_cut_already():
    model = streampca.fit(FIELDS[0], n_components=2, sample_axes=(2, 3), select={1: 0})
    for entry in (7, 1):
        with pytest.raises(RequestError, match=r"select=\{1: .\} was given, and .* without it; leave it out"):
            model.transform(FIELDS[1][:, 2], select={1: entry})
    assert model.transform(FIELDS[1][:, 2]).shape == (20, 2)  # the remedy
    with pytest.raises(RequestError, match="takes entry 7; it has 3 entries"):
        model.transform(FIELDS[1], select={1: 7})


@pytest.mark.parametrize("axes", [2.5, [2.5], {"y": 1}], ids=str)
def test_axes_that_are_no_names_or_numbers_are_refused(axes):
    with pytest.raises(RequestError, match="has no axis"):
        streampca.open_collection(FIELDS[0], sample_axes=axes)


def test_rows_and_columns_of_one_source_are_not_taken_over(tmp_path):
    np.save(tmp_path / "a.npy", FIELDS[0][:, 0])
    model = streampca.fit(
        tmp_path / "a.npy", n_components=2, samples=slice(0, 10), labels=np.arange(10) % 2, where="label=1",
        select={0: slice(0, 19)}, on_bad_file="skip",
    )  # fmt: skip
    np.save(tmp_path / "b.npy", FIELDS[1][:, 0])
    assert model.transform(tmp_path / "b.npy").shape == (20, 2)


def test_parts_that_were_opened_alike_are_merged_into_a_model_that_knows_it(sources):
    how = {"key": "tasmax", "sample_axes": (2, 3), "select": {1: 0}}
    kind = streampca.PCA(2, method="covariance")
    models = [streampca.fit(source, kind, **how) for source in sources]
    merged = streampca.merge(models)
    expected = merged.transform(streampca.open_collection(sources[0], **how))
    np.testing.assert_array_equal(merged.transform(sources[0]), expected)
    other = streampca.fit(sources[1], kind, **{**how, "key": "other"})
    assert streampca.merge([models[0], other]).provenance["opened"] is None


def record(options, **more):
    return {"source": None, "options": options, "not_kept": [], **more}


@pytest.mark.parametrize("opened", [
    *(record(options) for options in (
        {"key": ["tasmax"]}, {"sample_axes": "yx"}, {"sample_axes": [[2]]}, {"select": {"1": 0}},
        {"select": [[1, "a"]]},
        {"select": [[1, [0, 1]]]}, {"sel": [["c", {}]]}, {"patches": {"size": "a"}}, {"fill_value": [1]}, {"key": 3},
        {"nonsense": 1}, {"select": [[0, [1, 2, 3, 4]]]}, {"select": [[[1], 0]]}, {"samples": {"slice": []}},
        {"samples": {}}, {"patches": {"step": 2}}, {"where": 3}, {"on_bad_file": "x"}, [],
    )),
    record({}, not_kept=5), record({}, source=5), record({}, guessed="x"), [1], 5, "x", {"options": {}},
], ids=str)  # fmt: skip
def test_a_damaged_record_is_refused_in_a_line(tmp_path, opened):
    np.savez(tmp_path / "a.npz", tasmax=FIELDS[0][:, 0], other=FIELDS[0])
    model = streampca.fit(tmp_path / "a.npz", n_components=2, key="tasmax")
    model.provenance["opened"] = opened
    for use in (
        lambda: model.transform(tmp_path / "a.npz"),
        lambda: streampca.write_report(model, tmp_path / "r.html"),
        lambda: streampca.update(model, FIELDS[0][:, 0]),
        lambda: streampca.merge([model, streampca.fit(FIELDS[1][:, 0], n_components=2)]),
    ):
        with pytest.raises(
            ModelError, match=r"model( 1)? holds a damaged record of how its samples were opened; fit it again"
        ) as error:
            use()
        assert "\n" not in str(error.value)
    collection = streampca.open_collection(tmp_path / "a.npz", key="tasmax")
    assert model.transform(collection).shape == (20, 2)  # the other remedy


def test_options_that_name_paths_are_not_taken_from_a_model(tmp_path):
    np.savez(tmp_path / "a.npz", tasmax=FIELDS[0][:, 0], other=FIELDS[0])
    model = streampca.fit(tmp_path / "a.npz", n_components=2, key="tasmax")
    options = {"labels": "https://elsewhere.example/labels.npy", "allow_remote": True, "listing": "/etc/listing.npz",
               "where": "label=1", "key": "tasmax"}  # fmt: skip
    model.provenance["opened"]["options"] |= options
    assert model.transform(tmp_path / "a.npz").shape == (20, 2)


def test_scores_are_named(tmp_path):
    xarray = pytest.importorskip("xarray")
    days = np.arange("1990-01-01", "1990-01-21", dtype="datetime64[D]").astype("datetime64[ns]")
    field = xarray.Dataset(
        {name: (("time", "y", "x"), FIELDS[0][:, at]) for at, name in enumerate(("tas", "tasmax"))}, {"time": days}
    )
    field.to_netcdf(tmp_path / "a.nc")
    model = streampca.fit(tmp_path / "a.nc", n_components=2, key="tasmax")
    scores = model.transform(tmp_path / "a.nc")
    named = model.to_xarray(scores, tmp_path / "a.nc")
    assert named.dims == ("time", "component")
    assert named.chunks is not None, "they stay lazy"
    np.testing.assert_array_equal(named["time"], days)
    np.testing.assert_array_equal(named["component"], [1, 2])
    np.testing.assert_array_equal(named, scores)
    assert model.to_xarray(scores).dims == ("sample", "component")
    model.write_scores(tmp_path / "a.nc", tmp_path / "s.zarr")
    written = xarray.open_zarr(tmp_path / "s.zarr")["scores"]
    np.testing.assert_array_equal(written["time"], days)
    with pytest.raises(RequestError, match="has 20 samples and there are 3 scores"):
        model.to_xarray(scores[:3], tmp_path / "a.nc")
    with pytest.raises(RequestError, match="up to 2 columns"):
        model.to_xarray(np.ones((3, 4)))


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_columns_of_a_table_are_those_of_the_fit(package):
    frames = pytest.importorskip(package)
    values, names = np.random.default_rng(0).normal(size=(50, 4)), list("abcd")
    table = frames.DataFrame(dict(zip(names, values.T, strict=True)))
    model = streampca.fit(table, streampca.PCA(2, method="covariance"))
    turned = table[["a", "c", "b", "d"]]
    for apply in (model.transform, partial(streampca.update, model), partial(streampca.open_collection, like=model)):
        with pytest.raises(
            ModelError, match=r"has 'c' as column 2, and the model was fitted to 'b' there; give the 4 col"
        ):
            apply(turned)
    with pytest.raises(ModelError, match=r"has no column 4, and the model was fitted to 'd' there"):
        model.transform(table[["a", "b", "c"]])
    np.testing.assert_array_equal(model.transform(turned[names]), model.transform(values))
    assert streampca.update(model, table, duplicates="all").n_samples == 100


@pytest.mark.parametrize(("options", "message"), [
    ({"key": 5}, "key = 5: give a text"), ({"key": ["a", 3]}, "key = .*: give a text"),
    ({"select": 3}, "select = 3: give names with values"), ({"sel": [3]}, r"sel = \[3\]: give names with values"),
    ({"listing": 3}, "listing = 3: give a text"),
], ids=str)  # fmt: skip
def test_wrong_options_are_refused_in_a_line(tmp_path, options, message):
    path = npz(tmp_path / "a", FIELDS[0][:, 0])
    model = streampca.fit(path, n_components=2, key="tasmax", select={0: slice(0, 19)}, sample_axes=(1, 2))
    for use in (partial(streampca.fit, path, n_components=2), partial(model.transform, path)):
        with pytest.raises(RequestError, match=message):
            use(**options)


def test_keywords_that_are_no_options_of_opening_are_refused():
    model = streampca.fit(FIELDS[0][:, 0], n_components=2)
    for use in (model.transform, model.prepared, model.reconstruct):
        with pytest.raises(TypeError, match="'like' is not an option"):
            use(FIELDS[0][:, 0], like=model)
