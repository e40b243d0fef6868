"""Several variables of a Dataset, file or store as one field, compared with xarray and numpy."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from shell import succeeded

import streampca
from streampca import PCA, Preparation
from streampca.errors import ModelError, RequestError, SourceError

K, DAYS, SHAPE = 3, 40, (6, 8)


@pytest.fixture(scope="module")
def wind():
    """Dataset of two wind components, the second ten times as strong, and a temperature."""
    rng = np.random.default_rng(0)
    time = np.arange("2000-01-01", "2000-02-10", dtype="M8[D]").astype("M8[ns]")
    found = xr.Dataset(
        {name: (("time", "lat", "lon"), factor * rng.normal(size=(DAYS, *SHAPE)) + 3, {"units": units})
         for name, factor, units in (("u", 1, "m s-1"), ("v", 10, "m s-1"), ("t", 2, "K"))},
        coords={"time": time, "lat": np.linspace(-50, 50, 6), "lon": np.arange(0.0, 360, 45)},
    )  # fmt: skip
    found["v"].attrs["long_name"] = "northward wind"
    return found


def by_svd(fields, factors=1.0):
    """Return components, singular values and scores of fields side by side, by numpy."""
    rows = np.concatenate([((each - each.mean("time")) * factors).values.reshape(DAYS, -1) for each in fields], axis=1)
    u, s, vt = np.linalg.svd(rows, full_matrices=False)
    return vt[:K].reshape(K, len(fields), *SHAPE), s[:K], (u * s)[:, :K]


def stored(wind, folder):
    """Return files of the wind that xarray writes, and a folder of two files with consecutive times."""
    wind.to_netcdf(folder / "x.nc")
    wind[["t", "v", "u"]].to_netcdf(folder / "classic.nc", engine="scipy")
    wind.chunk({"time": 7, "lon": 3}).to_zarr(folder / "x.zarr", zarr_format=2)
    (folder / "years").mkdir()
    wind.isel(time=slice(25)).to_netcdf(folder / "years" / "0.nc")
    wind[["v", "t", "u"]].isel(time=slice(25, None), lat=slice(None, None, -1)).to_netcdf(folder / "years" / "1.nc")
    return [folder / "x.nc", folder / "classic.nc", folder / "x.zarr", str(folder / "years")]


def check_is_of(model, wind, expected):
    components, singular_values, _ = expected
    np.testing.assert_allclose(model.singular_values, singular_values, rtol=1e-10)
    found = model.to_xarray()["components"].to_dataset("variable")
    rows = [np.stack([found[name] for name in "uv"], axis=1).reshape(K, -1), components.reshape(K, -1)]
    np.testing.assert_allclose(np.abs(rows[0] @ rows[1].T), np.eye(K), atol=1e-10)
    np.testing.assert_array_equal(found["lat"], wind["lat"])


def test_variables_of_any_source_are_one_field(wind, tmp_path):
    factors = np.sqrt(np.cos(np.radians(wind["lat"])))
    expected = by_svd([wind["u"], wind["v"]], factors)
    kind, preparation = PCA(K, precision="double"), Preparation(scale="area")
    in_memory = {"u": wind["u"].values, "v": wind["v"].values}
    for source in (wind[["u", "v"]], wind[["v", "u"]].chunk({"time": 9}), *stored(wind, tmp_path)):
        key = None if isinstance(source, xr.Dataset) else ("u", "v")
        check_is_of(
            streampca.fit(streampca.open_collection(source, key=key), kind, preparation=preparation), wind, expected
        )
    plain = streampca.fit(streampca.open_collection(in_memory, key="u, v"), kind)
    np.testing.assert_allclose(plain.singular_values, by_svd([wind["u"], wind["v"]])[1], rtol=1e-10)
    assert plain.sample_dims == ("y", "x", "variable")


def test_a_model_is_applied_by_name_to_whatever_holds_its_variables(wind, tmp_path):
    scores = by_svd([wind["u"], wind["v"]])[2]
    streampca.fit(wind[["u", "v"]], PCA(K, precision="double")).save(tmp_path / "model.zarr")
    model = streampca.load(tmp_path / "model.zarr")
    signs = np.sign(np.sum(model.transform(wind).values * scores, axis=0))
    for given in (wind, wind[["v", "u"]], wind.transpose("lon", "lat", "time"), wind.sortby("lat", ascending=False)):
        found = model.transform(given)
        assert found.dims == ("time", "component")
        np.testing.assert_allclose(found, scores * signs, atol=1e-10)
        np.testing.assert_array_equal(found["time"], wind["time"])
    for source in stored(wind, tmp_path):
        model.write_scores(source, tmp_path / "scores.zarr", overwrite=True)
        np.testing.assert_allclose(xr.open_zarr(tmp_path / "scores.zarr")["scores"], scores * signs, atol=1e-10)
    with xr.open_dataset(tmp_path / "x.nc") as opened:  # values are read on demand
        lazy = model.transform(opened)
        assert isinstance(lazy.data, da.Array)
        np.testing.assert_allclose(lazy, scores * signs, atol=1e-10)


def test_reconstructions_go_back_to_a_dataset(wind, tmp_path):
    model = streampca.fit(wind[["u", "v"]], PCA(K, precision="double"))
    found, left = model.reconstruct(wind), model.residual(wind)
    assert isinstance(found, xr.Dataset)
    assert [*found.data_vars] == ["u", "v"]
    assert found["v"].attrs == wind["v"].attrs
    xr.testing.assert_allclose(found + left, wind[["u", "v"]])
    from_scores = model.inverse_transform(model.transform(wind)).to_dataset("variable")
    xr.testing.assert_allclose(from_scores, found)
    wind.to_netcdf(tmp_path / "x.nc")
    model.write_scores(tmp_path / "x.nc", tmp_path / "scores.zarr")
    for source in (tmp_path / "x.nc", tmp_path / "scores.zarr"):
        model.write_reconstruction(source, tmp_path / "back.zarr", overwrite=True)
        back = xr.open_zarr(tmp_path / "back.zarr")["images"].compute().to_dataset("variable")
        xr.testing.assert_allclose(back, found)


def test_each_variable_may_be_standardized_masked_and_cut(wind):
    both = wind[["u", "v"]].copy(deep=True)
    both["v"][3, 1, 2] = np.nan
    model = streampca.fit(both, n_components=K, preparation=Preparation(mask="valid", standardize=True))
    assert model.n_features == 2 * 6 * 8 - 1
    known = (both / both.std("time")).drop_sel(lat=[])
    rows = np.concatenate([(each - each.mean("time")).values.reshape(DAYS, -1) for each in known.values()], axis=1)
    rows = rows[:, np.isfinite(rows).all(axis=0)]
    np.testing.assert_allclose(model.singular_values, np.linalg.svd(rows, compute_uv=False)[:K], rtol=1e-5)
    cut = streampca.fit(wind[["u", "v"]], n_components=K, preparation=Preparation(crop=((0, 4), (2, 6)), bin=2))
    assert cut.sample_shape == (2, 2, 2)
    factors = np.broadcast_to(1 / wind[["u", "v"]].std().to_dataarray().values, (*SHAPE, 2))
    even = streampca.fit(wind[["u", "v"]], PCA(K, precision="double"), preparation=Preparation(scale=factors))
    expected = by_svd([wind[name] / wind[name].std() for name in "uv"])
    np.testing.assert_allclose(even.singular_values, expected[1], rtol=1e-10)


def test_what_is_missing_or_unlike_is_refused_by_name(wind, tmp_path):
    model = streampca.fit(wind[["u", "v"]], n_components=K)
    with pytest.raises(ModelError, match="no variable 'v', on which the model was fitted"):
        model.transform(wind[["u", "t"]])
    wind[["u", "t"]].to_netcdf(tmp_path / "x.nc")
    with pytest.raises(RequestError, match=r"x\.nc has no array 'v'; it holds"):
        model.write_scores(tmp_path / "x.nc", tmp_path / "scores.zarr")
    other = streampca.open_collection(wind, key="u,t")
    with pytest.raises(ModelError, match=r"variable of .* is 't' in place 2 and that of the model 'v'"):
        model.write_scores(other, tmp_path / "scores.zarr")
    for unlike, message in (
        (wind["v"].isel(time=slice(30)), "'v' of xarray array has 30 samples, and 'u' has 40"),
        (wind["v"].isel(lat=slice(3)).rename(lat="y"), "'v' .* has samples of 3 x 8, and 'u' has samples of 6 x 8"),
        (wind["v"].rename(lat="y", lon="x"), "'v' .* has samples with axes y, x, and 'u' has"),
        (wind["v"].assign_coords(lat=wind["lat"].values + 1).rename(time="time"), "lat of xarray array is -49"),
    ):
        parts = {"u": wind["u"], "v": unlike}
        with pytest.raises(SourceError, match=message):
            streampca.open_collection(parts, key="u,v")
    later = wind["v"].assign_coords(time=wind["time"].values + np.timedelta64(1, "D"))
    with pytest.raises(SourceError, match=r"time of xarray array is .* in place 1"):
        streampca.open_collection({"u": wind["u"], "v": later}, key="u,v")


def test_the_command_line_and_the_estimator(wind, tmp_path):
    wind.to_netcdf(tmp_path / "wind.nc")
    model, scores = str(tmp_path / "model.zarr"), str(tmp_path / "scores.zarr")
    succeeded("fit", str(tmp_path / "wind.nc"), "--key", "u,v", "-k", "3", "--precision", "double", "-o", model)
    succeeded("transform", model, str(tmp_path / "wind.nc"), "-o", scores)
    expected = by_svd([wind["u"], wind["v"]])
    check_is_of(streampca.load(model), wind, expected)
    np.testing.assert_allclose(np.abs(xr.open_zarr(scores)["scores"]), np.abs(expected[2]), atol=1e-10)
    estimator = PCA(K, precision="double").fit(wind[["u", "v"]])
    np.testing.assert_allclose(estimator.singular_values_, expected[1], rtol=1e-10)
    again = streampca.load(model).provenance["opened"]["options"]
    assert again == {"key": "u,v"}
