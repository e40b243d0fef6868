"""Models and results with names: xarray in, xarray out, against a plain SVD."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import streampca
from streampca.errors import ModelError, RequestError
from streampca.models.data_arrays import NamedSamples
from streampca.models.load import load_model

K = 3


@pytest.fixture(scope="module")
def field():
    """A field (lat, time, lon), time not first, with a continent where nothing is known."""
    rng = np.random.default_rng(0)
    lat, lon = np.linspace(-60, 60, 9), np.arange(0.0, 360, 30)
    time = np.arange("2000-01", "2004-01", dtype="datetime64[M]").astype("datetime64[ns]")
    waves = [np.outer(np.cos(np.radians(i * lat)), np.sin(np.radians(i * lon))) for i in (1, 2, 3)]
    values = 280 + np.tensordot(rng.normal(size=(len(time), 3)) * [5, 3, 1], waves, 1)
    values += rng.normal(0, 0.1, values.shape)
    values[:, 3:6, 2:5] = np.nan
    values = np.moveaxis(values, 0, 1)
    values.flags.writeable = False
    return xr.DataArray(
        values,
        coords={"lat": ("lat", lat, {"units": "degrees_north"}), "time": time, "lon": lon,
                "month": ("time", np.arange(len(time)) % 12), "area": (("lat", "lon"), np.ones((9, 12))), "run": 7},
        dims=("lat", "time", "lon"), name="sst", attrs={"units": "K"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(field):
    collection = streampca.open_collection(field, sample_axes=("lat", "lon"))
    return streampca.fit(
        collection,
        streampca.PCA(K, precision="double"),
        preparation=streampca.Preparation(mask="valid"),
        memory="128MiB",
    )


def by_svd(field):
    """Mean, EOFs and time series of the pixels that are known, by numpy."""
    rows = field.transpose("time", "lat", "lon").values.reshape(field.sizes["time"], -1)
    known = np.isfinite(rows).all(axis=0)
    rows = rows[:, known]
    mean = rows.mean(axis=0)
    u, s, vt = np.linalg.svd(rows - mean, full_matrices=False)
    return known.reshape(field.sizes["lat"], field.sizes["lon"]), mean, vt[:K], (u * s)[:, :K]


def test_eofs_and_time_series_are_those_of_an_svd(field, model):
    known, mean, eofs, series = by_svd(field)
    found, scores = model.to_xarray(), model.transform(field)
    assert isinstance(scores, xr.DataArray)
    signs = np.sign(np.sum(found["components"].values[:, known] * eofs, axis=1))
    np.testing.assert_allclose(found["components"].values[:, known], eofs * signs[:, None], atol=1e-6)
    np.testing.assert_allclose(scores.values, series * signs, atol=1e-4)
    np.testing.assert_allclose(found["mean"].values[known], mean)
    assert np.isnan(found["components"].values[:, ~known]).all()
    assert scores.dims == ("time", "component")
    np.testing.assert_array_equal(scores["component"], [1, 2, 3])
    assert scores["month"].dims == ("time",)
    assert {"run", "time"} < set(scores.coords)
    assert "area" not in scores.coords
    assert scores.attrs["units"] == "K"


def test_a_model_as_a_dataset(field, model):
    found = model.to_xarray()
    assert found["components"].dims == ("component", "lat", "lon")
    np.testing.assert_array_equal(found["lat"], field["lat"])
    assert found["lat"].attrs["units"] == "degrees_north"
    assert (found["mean"].attrs["units"], found["explained_variance"].attrs["units"]) == ("K", "(K)^2")
    assert int(found["n_samples"]) == 48
    assert found["components"].sel(component=2, lat=60, lon=330).item() == model.components[1, -1, -1]
    assert found["mask"].dtype == bool


def test_components_on_disk_stay_there(model, tmp_path):
    model.save(tmp_path / "m.zarr")
    found = load_model(tmp_path / "m.zarr", memory="1B").to_xarray()
    assert isinstance(found["components"].data, da.Array)
    np.testing.assert_array_equal(found["components"].compute(), model.components)
    with xr.open_zarr(tmp_path / "m.zarr") as stored:
        assert set(stored.variables) == set(found.variables)
        assert all(stored[name].dims == found[name].dims for name in stored.variables)


def test_back_from_scores_and_from_samples(field, model):
    scores = model.transform(field)
    rebuilt, left = model.reconstruct(field), model.residual(field)
    for found in (rebuilt, left, model.inverse_transform(scores)):
        assert found.dims == ("time", "lat", "lon")
        assert found["month"].dims == ("time",)
        xr.testing.assert_equal(found["lat"], field["lat"])
        xr.testing.assert_equal(found["time"], field["time"])
    assert rebuilt.name == "sst"
    assert rebuilt.attrs == left.attrs == field.attrs
    together = (rebuilt + left).transpose(*field.dims)
    xr.testing.assert_allclose(together.drop_vars("area"), field.drop_vars("area"))
    np.testing.assert_allclose(model.inverse_transform(scores.T), rebuilt, equal_nan=True)
    np.testing.assert_allclose(
        model.inverse_transform(scores.sel(component=[1])), model.reconstruct(field, 1), equal_nan=True
    )
    errors, t2 = model.reconstruction_error(field), model.hotelling_t2(field)
    assert errors.dims == t2.dims == ("time",)
    np.testing.assert_allclose(errors, (left**2).sum(("lat", "lon")), rtol=1e-4)
    assert t2.mean() == pytest.approx(K * 47 / 48)


def test_lazy_in_lazy_out(field, model, tmp_path):
    chunked = model.transform(field.chunk({"time": 10}))
    assert isinstance(chunked.data, da.Array)
    np.testing.assert_allclose(chunked, model.transform(field))
    field.drop_vars(["area", "run"]).to_netcdf(tmp_path / "x.nc")
    with xr.open_dataset(tmp_path / "x.nc") as opened:  # nothing is read before it is asked for
        found = model.transform(opened["sst"])
        assert isinstance(found.data, da.Array)
        np.testing.assert_allclose(found, model.transform(field), rtol=1e-6)


def test_several_axes_of_samples(field, model):
    both = xr.concat([field, field + 1], "member").transpose("lat", "member", "lon", "time")
    scores = model.transform(both)
    assert scores.dims == ("member", "time", "component")
    np.testing.assert_allclose(scores.isel(member=0), model.transform(field), atol=1e-4)
    assert model.reconstruct(both).dims == ("member", "time", "lat", "lon")


def test_names_of_other_axes_and_steps_that_change_them():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, 8, 6, 3)).astype(np.uint8)
    model = streampca.fit(x, n_components=2, preparation=streampca.Preparation(grey=True, bin=2), memory="128MiB")
    named = xr.DataArray(x, dims=("shot", "row", "column", "colour"), coords={"shot": np.arange(20) * 10})
    np.testing.assert_array_equal(model.transform(named), model.transform(x))
    assert model.reconstruct(named).dims == ("shot", *model.sample_dims)
    by_name = named.rename(row="y", column="x").transpose("y", "colour", "shot", "x").transpose(..., "colour")
    np.testing.assert_array_equal(model.transform(by_name), model.transform(x))


def test_fields_from_north_to_south_are_put_in_order(field, model):
    turned = field.sortby("lat", ascending=False)
    xr.testing.assert_identical(model.transform(turned), model.transform(field))
    left = (turned - model.reconstruct(turned)).sortby("lat")  # by the coordinates that both have
    xr.testing.assert_allclose(left, model.residual(field).transpose(*field.dims))
    collection = streampca.open_collection(turned, sample_axes=("lat", "lon"))
    np.testing.assert_array_equal(model.transform(collection), model.transform(field))


def test_scores_in_another_order_are_put_in_order(field, model):
    scores = model.transform(field)
    xr.testing.assert_identical(
        model.inverse_transform(scores.isel(component=[2, 0, 1])), model.inverse_transform(scores)
    )
    by_place = model.inverse_transform(scores.isel(component=[2, 0, 1]), coordinates="ignore")
    np.testing.assert_array_equal(by_place, model.inverse_transform(scores.values[:, [2, 0, 1]]))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("numbers", [[1, 3], [3, 1], [2, 3], [3], 3, 1])
def test_scores_of_some_components_are_images_of_these(field, model, numbers, lazy):
    """The others are at their mean; nothing is computed early."""
    scores = model.transform(field.chunk(time=20) if lazy else field)
    found = model.inverse_transform(scores.sel(component=numbers))
    others = scores.where(scores["component"].isin(numbers), 0)
    assert (found.chunks is not None) == lazy
    assert found.dtype == scores.dtype
    np.testing.assert_allclose(found, model.inverse_transform(others).transpose(*found.dims), atol=1e-5)
    assert found.dims == ("time", "lat", "lon")
    rest = model.inverse_transform(
        scores.sel(component=[n for n in (1, 2, 3) if n not in np.atleast_1d(numbers)] or [1])
    )
    assert np.abs(rest - found).max() > 0.1


def test_whitened_scores_of_some_components_are_unwhitened_by_theirs(field, model):
    plain, whitened = (model.transform(field, whiten=whiten).sel(component=[1, 3]) for whiten in (False, True))
    found = model.inverse_transform(whitened, whiten=True)
    np.testing.assert_allclose(found, model.inverse_transform(plain), rtol=1e-5, atol=1e-4)


def test_scores_by_place_have_no_numbers(field, model):
    scores = model.transform(field).sel(component=[2, 3])
    found = model.inverse_transform(scores, coordinates="ignore")
    np.testing.assert_array_equal(found, model.inverse_transform(scores.values))


@pytest.mark.parametrize("numbers", [[0, 1, 2], [1, 1, 2], [2, 3, 4], [0.5, 1, 1.5], [np.nan, 2, np.inf]])
def test_scores_numbered_otherwise_lose_nothing_by_the_remedy(field, model, numbers):
    scores = model.transform(field).assign_coords(component=numbers)
    with pytest.raises(
        RequestError, match=r"1 to 3, each once; .*so: scores\.assign_coords\(component=range\(1, 4\)\)\.$"
    ):
        model.inverse_transform(scores)
    again = model.inverse_transform(scores.assign_coords(component=range(1, 4)))
    xr.testing.assert_equal(again, model.inverse_transform(model.transform(field)))


def test_scores_of_one_component_are_not_taken_for_several(field, model):
    members = xr.concat([field, field + 1], "member")
    one = model.transform(members).sel(component=1).transpose("time", "member")  # as if it were two components
    found = model.inverse_transform(one)
    xr.testing.assert_identical(found, model.inverse_transform(one.expand_dims("component")))
    np.testing.assert_allclose(found.transpose("member", ...), model.reconstruct(members, 1), atol=1e-3)


def test_axes_of_which_only_some_have_the_models_names_are_not_guessed(field, model):
    square = field.isel(time=slice(9)).rename(lon="longitude")  # (lat, time, longitude), as many times as latitudes
    with pytest.raises(ModelError, match=r"has lat and not lon of .* array\.rename\(\{'longitude': 'lon'\}\)\.$"):
        model.transform(square)
    found = model.transform(square.rename({"longitude": "lon"}))
    xr.testing.assert_identical(found, model.transform(field.isel(time=slice(9))))


def test_axes_of_other_names_are_told_apart_by_place(field, model):
    other = field.transpose("time", "lat", "lon").rename(lat="latitude", lon="longitude")
    np.testing.assert_array_equal(model.transform(other), model.transform(field))
    np.testing.assert_array_equal(model.reconstruct(other)["lat"], field["lat"])
    turned = other.sortby("latitude", ascending=False)
    np.testing.assert_array_equal(model.transform(turned), model.transform(field))
    with pytest.raises(ModelError, match="lat of the DataArray is -59 degrees_north in place 1 and that of"):
        model.transform(other.assign_coords(latitude=other["latitude"] + 1))


def test_images_bear_the_coordinates_of_their_samples(field, model, tmp_path):
    moved = field.assign_coords(lat=field["lat"] + 10)
    with pytest.raises(
        ModelError, match=r"lat of the DataArray is -50 degrees_north in place 1 .* with coordinates='ignore'\.$"
    ):
        model.reconstruct(moved)
    by_place = {"coordinates": "ignore"}
    for found in (model.reconstruct(moved, **by_place), model.residual(moved, **by_place)):
        xr.testing.assert_identical(found["lat"].drop_vars("run"), moved["lat"].drop_vars("run"))
    assert (moved - model.reconstruct(moved, **by_place)).sizes == field.sizes
    np.testing.assert_array_equal(model.reconstruct(moved.drop_vars("lat"))["lat"], field["lat"])  # of those fitted
    collection = streampca.open_collection(moved, sample_axes=("lat", "lon"), coordinates="ignore")
    model.write_reconstruction(collection, tmp_path / "i.zarr")
    with xr.open_zarr(tmp_path / "i.zarr") as written:
        np.testing.assert_array_equal(written["lat"], moved["lat"])


def test_coordinates_are_cut_and_averaged_as_the_pixels_are(field):
    sea = field.isel(lat=slice(6, None))
    collection = streampca.open_collection(sea, sample_axes=("lat", "lon"))
    steps = streampca.Preparation(crop=((0, 2), (2, 8)), bin=2)
    model = streampca.fit(collection, n_components=2, preparation=steps, memory="128MiB")
    moved = sea.assign_coords(lon=sea["lon"] + 5)
    with pytest.raises(ModelError, match="lon of the DataArray is 80 in place 1 and that of the model 75; "):
        model.reconstruct(moved)
    found = model.reconstruct(moved, coordinates="ignore")
    np.testing.assert_array_equal(found["lat"], [sea["lat"][:2].mean()])
    np.testing.assert_array_equal(found["lon"], np.array([75.0, 135, 195]) + 5)
    assert found["lat"].attrs["units"] == "degrees_north"


@pytest.mark.parametrize(
    ("steps", "of_scores", "of_images"),
    [
        ({}, "K", "K"),
        ({"scale": 0.5}, None, "K"),
        ({"normalize": "mean"}, "K", "K"),
        ({"normalize": "norm"}, None, None),
    ],
)
def test_units_of_scores_and_of_what_they_stand_for(field, steps, of_scores, of_images):
    sea = field.isel(lat=slice(6, None))
    collection = streampca.open_collection(sea, sample_axes=("lat", "lon"))
    model = streampca.fit(collection, n_components=2, preparation=streampca.Preparation(**steps), memory="128MiB")
    scores = model.transform(sea)
    assert (scores.attrs.get("units"), model.inverse_transform(scores).attrs.get("units")) == (of_scores, of_images)


def test_a_file_with_several_axes_of_samples_is_read_in_small_chunks(field, model, tmp_path):
    row, limit = 8 * 9 * 12, 10_000
    both = xr.concat([field, field + 1], "member").transpose("member", "time", "lat", "lon").drop_vars(["area", "run"])
    both.to_netcdf(tmp_path / "x.nc")
    with dask.config.set({"array.chunk-size": limit}), xr.open_dataset(tmp_path / "x.nc") as opened:
        values = NamedSamples.samples(opened["sst"], model.sample_dims, model.raw_shape).values
        assert max(values.chunks[0]) * row <= limit
        assert values.chunks[1:] == ((9,), (12,))
        np.testing.assert_allclose(model.transform(opened["sst"]), model.transform(both), rtol=1e-6)


def test_rows_of_features_have_no_names_to_go_by(field, model):
    sea = field.isel(lat=slice(6, None))
    model = streampca.fit(sea.transpose("time", "lat", "lon").values, n_components=2, memory="128MiB")
    rows = sea.stack(pixel=("lat", "lon"))
    with pytest.raises(ModelError, match=r"no axis of samples .*, or array\.data of samples that are rows of features"):
        model.transform(rows)
    np.testing.assert_array_equal(
        model.transform(rows.data), model.transform(sea.transpose("time", "lat", "lon").values)
    )


def test_what_has_no_samples_is_refused(field, model):
    with pytest.raises(ModelError, match=r"no axis of samples .*expand_dims") as refused:
        model.transform(field.isel(time=0))
    assert model.transform(field.isel(time=0).expand_dims("sample")).sizes == {"sample": 1, "component": K}
    assert "\n" not in str(refused.value)
    with pytest.raises(RequestError, match="scores of axes component have none of samples"):
        model.inverse_transform(model.transform(field).isel(time=0))


# -- coordinates that are not named after an axis


@pytest.fixture(scope="module")
def curvilinear():
    """Field on a grid of two-dimensional latitudes and longitudes that crosses longitude 0, with named columns."""
    rng = np.random.default_rng(0)
    y, x = np.arange(7)[:, None], np.arange(10)
    return xr.DataArray(
        rng.normal(size=(30, 7, 10)) + 5,
        coords={"time": np.arange("2000-01-01", "2000-01-31", dtype="M8[D]").astype("M8[ns]"),
                "lat": (("y", "x"), 40.0 + 5 * y + x, {"units": "degrees_north"}),
                "lon": (("y", "x"), (350.0 + 3 * x - y) % 360, {"units": "degrees_east"}),
                "station": ("x", [f"station {letter}" for letter in "abcdefghij"])},
        dims=("time", "y", "x"), name="sst",
    )  # fmt: skip


def sources_of(field, tmp_path):
    """Return the field as an object and as files that xarray writes."""
    field.to_netcdf(tmp_path / "x.nc")
    field.drop_vars("station").to_netcdf(tmp_path / "classic.nc", engine="scipy")
    texts = field.assign_coords(station=field["station"].astype(object))  # Zarr warns of texts of fixed length
    texts.to_zarr(tmp_path / "x.zarr", consolidated=False)
    return field, tmp_path / "x.nc", tmp_path / "classic.nc", tmp_path / "x.zarr"


def test_two_dimensional_latitudes_weigh_by_area_and_stay_with_the_model(curvilinear, tmp_path):
    factors = np.sqrt(np.cos(np.radians(curvilinear["lat"].values)))
    rows = ((curvilinear - curvilinear.mean("time")).values * factors).reshape(30, -1)
    _, s, vt = np.linalg.svd(rows, full_matrices=False)
    for source in sources_of(curvilinear, tmp_path):
        model = streampca.fit(
            source, streampca.PCA(2, precision="double"), preparation=streampca.Preparation(scale="area")
        )
        np.testing.assert_allclose(model.singular_values, s[:2], rtol=1e-10)
        found = np.abs(model.components.reshape(2, -1) @ vt[:2].T)
        np.testing.assert_allclose(found, np.eye(2), atol=1e-10)
        model.save(tmp_path / "model.zarr", overwrite=True)
        loaded = load_model(tmp_path / "model.zarr")
        scores = loaded.transform(curvilinear)
        back = tmp_path / "back.zarr"
        loaded.write_reconstruction(source, back, overwrite=True)
        for made in (
            loaded.to_xarray()["components"], xr.open_zarr(tmp_path / "model.zarr")["components"],
            loaded.inverse_transform(scores), loaded.reconstruct(curvilinear), xr.open_zarr(back)["images"],
        ):  # fmt: skip
            for name in ("lat", "lon"):
                np.testing.assert_array_equal(made[name], curvilinear[name])
                assert made[name].attrs["units"] == curvilinear[name].attrs["units"]
            if "classic" not in str(source):
                assert [*map(str, made["station"].values)] == curvilinear["station"].values.tolist()


def test_another_curvilinear_grid_is_refused(curvilinear, tmp_path):
    model = streampca.fit(curvilinear, n_components=2)
    moved = curvilinear.assign_coords(lat=curvilinear["lat"] + 0.5)
    with pytest.raises(ModelError, match=r"lat of .* 40.5 degrees_north in place 1, 1 and that of the model 40 "):
        model.transform(moved)
    xr.testing.assert_allclose(
        model.transform(moved, coordinates="ignore"), model.transform(curvilinear).assign_coords()
    )
    around = curvilinear.assign_coords(lon=curvilinear["lon"].astype(np.float32) - 360)
    np.testing.assert_array_equal(model.transform(around), model.transform(curvilinear))
    other_names = curvilinear.assign_coords(station=curvilinear["station"].str.upper())  # names are not positions
    np.testing.assert_array_equal(model.transform(other_names), model.transform(curvilinear))
    curvilinear.isel(time=slice(15)).to_netcdf(tmp_path / "0.nc")
    moved.isel(time=slice(15, None)).to_netcdf(tmp_path / "1.nc")
    with pytest.raises(streampca.errors.SourceError, match=r"lat of .*1\.nc is 40.5 .*same grid"):
        streampca.open_collection(tmp_path / "*.nc")


def test_curvilinear_coordinates_are_cut_binned_and_turned_as_pixels_are(curvilinear):
    steps = streampca.Preparation(crop=((1, 7), (0, 8)), bin=2)
    model = streampca.fit(curvilinear, n_components=2, preparation=steps)
    cut = curvilinear.isel(y=slice(1, 7), x=slice(0, 8))
    lat = cut["lat"].drop_vars("station").coarsen(y=2, x=2).mean()
    np.testing.assert_allclose(model.to_xarray()["lat"], lat)
    first = model.to_xarray()["lon"].values % 360
    np.testing.assert_allclose(first[0], [350, 356, 2, 8])  # the mean of 359 and 2 must not be 180
    with_axes = curvilinear.assign_coords(y=np.arange(7), x=np.arange(10))
    model = streampca.fit(with_axes, n_components=2)
    turned = with_axes.isel(y=slice(None, None, -1))
    xr.testing.assert_equal(model.reconstruct(turned), model.reconstruct(with_axes))


def test_a_multi_index_of_features_and_one_of_samples_come_back(curvilinear, tmp_path):
    plain = curvilinear.drop_vars(["lat", "lon"]).rename(x="column").assign_coords(y=np.arange(7) / 2)
    plain = plain.drop_vars("station").assign_coords(column=list("abcdefghij"))
    stacked = plain.stack(feature=("y", "column"))
    streampca.fit(stacked, streampca.PCA(2, precision="double")).save(tmp_path / "model.zarr")
    model, by_image = load_model(tmp_path / "model.zarr"), streampca.fit(plain, streampca.PCA(2, precision="double"))
    assert model.to_xarray()["components"].indexes["feature"].equals(stacked.indexes["feature"])
    unstacked = model.to_xarray()["components"].unstack("feature")
    np.testing.assert_allclose(unstacked.transpose("component", "y", "column"), by_image.components, atol=1e-10)
    scores = model.transform(stacked)
    assert "feature" not in scores.dims
    for made in (model.reconstruct(stacked), model.inverse_transform(scores)):
        np.testing.assert_allclose(made.unstack("feature").transpose(*plain.dims), by_image.reconstruct(plain))
    other = plain.isel(column=slice(None, None, -1)).stack(feature=("y", "column"))
    with pytest.raises(ModelError, match=r"column of the DataArray is 'j' in place 1 and that of .* 'a'"):
        model.transform(other)

    runs = plain.expand_dims(run=["first", "second"]).stack(sample=("time", "run"))
    collection = streampca.open_collection(runs, sample_axes=("y", "column"))
    scores = streampca.fit(collection, n_components=2).transform(runs)
    assert scores.indexes["sample"].equals(runs.indexes["sample"])
    assert dict(scores.unstack("sample").sizes) == {"component": 2, "time": 30, "run": 2}
    by_image.write_scores(collection, tmp_path / "scores.zarr")
    stored = xr.open_zarr(tmp_path / "scores.zarr").compute().set_index(sample=["time", "run"])["scores"]
    np.testing.assert_allclose(stored, by_image.transform(runs), atol=1e-5)
    assert stored.indexes["sample"].get_level_values("time").equals(runs.indexes["sample"].get_level_values("time"))


def test_months_of_a_multi_index_come_back_as_dates(tmp_path):
    months = np.arange("2000-01", "2001-01", dtype="M8[M]").astype("M8[ns]")
    values = np.random.default_rng(0).normal(size=(20, 12, 3))
    years = xr.DataArray(values, coords={"month": months, "site": list("abc")}, dims=("year", "month", "site"))
    stacked = years.stack(feature=("month", "site"))
    streampca.fit(stacked, n_components=2).save(tmp_path / "model.zarr")
    found = load_model(tmp_path / "model.zarr").to_xarray()["mean"].unstack("feature")
    np.testing.assert_array_equal(found["month"], months)


def test_coordinates_called_like_an_array_of_the_model_are_kept(curvilinear, tmp_path):
    taken = curvilinear.assign_coords(mask=(("y", "x"), np.ones((7, 10))), scale=("y", np.arange(7)))
    model = streampca.fit(taken, n_components=2)
    assert {*model.coordinates} == {"lat", "lon", "station", "mask", "scale"}
    model.save(tmp_path / "model.zarr")
    assert load_model(tmp_path / "model.zarr").coordinates.keys() == model.coordinates.keys()
    assert {"mask_", "scale_"} <= {*model.to_xarray().coords}
