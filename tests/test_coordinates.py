"""Coordinates are compared by value wherever samples meet others: joined files, a model's samples, merged models."""

from __future__ import annotations

import cftime
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from contract import refused_as

import streampca
from streampca.cli.commands import cli
from streampca.errors import ModelError, RequestError, SourceError
from streampca.events import Warned
from streampca.fitting.open_fit import prepare
from streampca.readers import open_collection
from streampca.readers.coordinates import order_of
from streampca.readers.dates import dates_of
from streampca.readers.views.reordered import Reordered
from streampca.storage.coordinate import Coordinate

LAT, LON = np.linspace(-60, 60, 9), np.arange(0.0, 360, 30)
EAST, NORTH = {"units": "degrees_east"}, {"units": "degrees_north"}
IGNORE = {"coordinates": "ignore"}
REMEDY = r"take pixels by their places with coordinates='ignore'\.$"


def field(n=40, seed=0, start="2001-01-01"):
    """A few waves on a grid (time, lat, lon)."""
    rng = np.random.default_rng(seed)
    waves = np.random.default_rng(9).normal(size=(3, len(LAT), len(LON)))
    values = 280 + np.tensordot(rng.normal(size=(n, 3)) * [5, 3, 2], waves, 1)
    values += rng.normal(0, 0.1, values.shape)
    time = np.datetime64(start, "ns") + np.arange(n) * np.timedelta64(1, "D")
    along = {"time": time, "lat": ("lat", LAT, NORTH), "lon": ("lon", LON, EAST)}
    return xr.DataArray(values, along, ("time", "lat", "lon"), name="sst")


def westward(x):
    """The same values with longitudes from -180 on."""
    return x.assign_coords(lon=("lon", (x.lon.values + 180) % 360 - 180, EAST)).sortby("lon")


def southward(x):
    return x.sortby("lat", ascending=False)


def as_float32(x):
    return x.assign_coords({name: x[name].astype("f4") for name in ("lat", "lon")})


SAME = {"as it is": lambda x: x, "westward": westward, "southward": southward, "float32": as_float32,
        "both": lambda x: westward(southward(x))}  # fmt: skip
OTHER = {
    "shifted": lambda x: x.assign_coords(lat=("lat", LAT + 2.5, NORTH)),
    "scaled": lambda x: x.assign_coords(lat=("lat", LAT * 1.5, NORTH)),
    "one moved": lambda x: x.assign_coords(lon=("lon", np.where(LON == 60, 65, LON), EAST)),
    "no longitudes": lambda x: x.assign_coords(lon=("lon", LON - 180, {"units": "m"})),
}


@pytest.fixture(scope="module")
def x():
    return field()


@pytest.fixture(scope="module")
def model(x):
    return streampca.fit(x, n_components=3, memory="128MiB")


def stored(x, folder):
    x.to_netcdf(folder / "x.nc", engine="scipy")
    return str(folder / "x.nc")


# -- a model and samples


@pytest.mark.parametrize("kind", SAME)
def test_the_same_values_in_another_order_give_the_same_scores(x, model, kind, tmp_path):
    given, scores = SAME[kind](x), model.transform(x).values
    np.testing.assert_array_equal(model.transform(given), scores)
    np.testing.assert_array_equal(model.transform(stored(given, tmp_path)), scores)


def test_another_order_makes_no_difference_to_whatever_a_model_does(x, model, tmp_path):
    given, scores = SAME["both"](x), model.transform(x).values
    path = stored(given, tmp_path)
    model.write_scores(path, tmp_path / "s.zarr", memory="128MiB")
    model.write_scores(path, tmp_path / "s.npy", memory="128MiB")
    np.testing.assert_array_equal(np.load(tmp_path / "s.npy"), scores)
    rebuilt = model.reconstruct(given)
    model.write_reconstruction(path, tmp_path / "i.zarr")
    with xr.open_zarr(tmp_path / "i.zarr") as written:
        np.testing.assert_array_equal(written.images, rebuilt)
        np.testing.assert_array_equal(written.lon, rebuilt.lon)
    left = (given - rebuilt).transpose("time", "lat", "lon")  # xarray goes by the coordinates
    assert left.shape == x.shape
    np.testing.assert_allclose(left.sortby("lat").reindex_like(given.sortby("lat")), left.sortby("lat"))
    assert float(abs(left).max()) < 1
    for found in (model.reconstruction_error(path), model.reconstruction_error(given)):
        np.testing.assert_allclose(found, model.reconstruction_error(x), rtol=1e-9)
    np.testing.assert_allclose(model.hotelling_t2(path), model.hotelling_t2(x), rtol=1e-12)
    np.testing.assert_allclose(
        model.compression(path).rmse, model.compression(streampca.open_collection(x)).rmse, rtol=1e-9
    )


@pytest.mark.parametrize("kind", OTHER)
def test_another_grid_is_refused_by_name(x, model, kind, tmp_path):
    given = OTHER[kind](x)
    name = "lon" if kind in ("one moved", "no longitudes") else "lat"
    with pytest.raises(
        ModelError, match=rf"^{name} of the DataArray is .* in place \d and that of the model .*{REMEDY}"
    ):
        model.transform(given)
    with pytest.raises(ModelError, match=rf"^{name} of .*x\.nc, variable 'sst' is .*{REMEDY}"):
        model.transform(stored(given, tmp_path))


def test_another_grid_is_refused_at_every_door_of_a_model(x, model, tmp_path):
    given = OTHER["shifted"](x)
    path = stored(given, tmp_path)
    doors = [model.transform, model.reconstruct, model.residual, model.reconstruction_error, model.hotelling_t2]
    for door in doors:
        for samples in (given, path):
            with pytest.raises(ModelError, match=REMEDY):
                door(samples)
            np.testing.assert_array_equal(door(samples, **IGNORE), door(x.values))
    writers = {"s.npy": model.write_scores, "i.npy": model.write_reconstruction}
    for output, write in writers.items():
        with pytest.raises(ModelError, match=REMEDY):
            write(path, tmp_path / output)
        write(path, tmp_path / output, **IGNORE)
        write(open_collection(path, **IGNORE), tmp_path / output, overwrite=True)
    with pytest.raises(ModelError, match=REMEDY):
        model.compression(path)
    np.testing.assert_array_equal(model.compression(path, **IGNORE).rmse, model.compression(x.values).rmse)


@pytest.mark.parametrize("kind", ["time", "text"])
def test_labels_and_times_along_a_sample(kind, tmp_path):
    """Samples whose axis has text, or times in any units."""
    rng = np.random.default_rng(0)
    station = [f"station {at}" for at in range(6)]
    days = np.datetime64("2001-03-01", "ns") + np.arange(6) * np.timedelta64(1, "D")
    along = station if kind == "text" else days
    x = xr.DataArray(rng.normal(size=(20, 6)), {"site": along}, ("run", "site"), name="x")
    model = streampca.fit(open_collection(x, sample_axes=("site",)), n_components=2)
    model.save(tmp_path / "m.zarr")
    model = streampca.load(tmp_path / "m.zarr")
    mixed = x.isel(site=[3, 0, 1, 5, 4, 2])
    if kind == "time":
        mixed.to_netcdf(tmp_path / "x.nc", encoding={"site": {"units": "hours since 1999-12-31 06:00"}})
    else:
        mixed.to_netcdf(tmp_path / "x.nc")
    found = open_collection(tmp_path / "x.nc", sample_axes=("site",))
    np.testing.assert_array_equal(model.transform(mixed), model.transform(x))
    np.testing.assert_array_equal(model.transform(found), model.transform(x))
    assert model.reconstruct(mixed).site.values.tolist() == x.site.values.tolist()
    other = x.assign_coords(site=[*station[:5], "x"] if kind == "text" else days + np.timedelta64(1, "h"))
    with pytest.raises(ModelError, match=rf"^site of the DataArray is .* in place {6 if kind == 'text' else 1} "):
        model.transform(other)


@pytest.mark.parametrize("store", ["n3.nc", "n4.nc", "v2.zarr", "v3.zarr"])
def test_text_along_a_sample_is_read_from_files(store, tmp_path):
    names = np.array(["b", "a", "délta"], object)
    x = xr.Dataset({"x": (("t", "site"), np.eye(5, 3))}, {"site": names})
    if store.endswith("nc"):
        engine, form = ("scipy", "NETCDF3_64BIT") if store == "n3.nc" else ("netcdf4", "NETCDF4")
        x.to_netcdf(tmp_path / store, engine=engine, format=form)
    else:
        x.to_zarr(tmp_path / store, zarr_format=int(store[1]), consolidated=False)
    found = open_collection(tmp_path / store, sample_axes=("site",)).coordinates["site"].values
    assert (found.tolist(), found.dtype.kind) == (names.tolist(), "U")


def test_scores_in_a_file_are_put_in_the_components_order(x, model, tmp_path):
    scores = model.transform(x).to_dataset(name="scores")
    scores.isel(component=[2, 0, 1]).to_zarr(tmp_path / "s.zarr", zarr_format=3, consolidated=False)
    scores.assign_coords(component=[2, 3, 4]).to_zarr(tmp_path / "o.zarr", zarr_format=3, consolidated=False)
    model.write_reconstruction(tmp_path / "s.zarr", tmp_path / "i.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "i.npy"), model.inverse_transform(scores["scores"]))
    with pytest.raises(
        RequestError, match=r"^component of .*o\.zarr, array 'scores' is 2 in place 1 and that of .* 1; "
    ):
        model.write_reconstruction(tmp_path / "o.zarr", tmp_path / "o.npy")
    model.write_reconstruction(tmp_path / "o.zarr", tmp_path / "o.npy", **IGNORE)
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), np.load(tmp_path / "i.npy"))


@pytest.mark.parametrize(
    "steps", [{"bin": 3}, {"crop": ((1, 7),)}, {"resize": (4, 6)}, {"mask": LAT[:, None] + 0 * LON > 0}]
)
def test_samples_are_put_in_order_before_they_are_prepared(x, steps):
    model = streampca.fit(x, n_components=2, preparation=streampca.Preparation(**steps))
    for given in (southward(x), open_collection(southward(x))):
        np.testing.assert_allclose(model.transform(given), model.transform(x), rtol=1e-5)
    shifted = OTHER["shifted"](x)
    with pytest.raises(ModelError, match=r"^lat of "):
        model.transform(shifted)
    if "bin" in steps or "resize" in steps:  # which pixels were merged is not known
        with pytest.raises(ModelError, match=r"^lon of "):
            model.transform(westward(x))
    else:
        np.testing.assert_array_equal(model.transform(westward(x)), model.transform(x))


def test_longitudes_around_greenwich_are_averaged_around_it():
    x = xr.DataArray(np.ones((3, 4, 6), "f4"), {"lon": [357.0, 358, 359, 0, 1, 2]}, ("time", "lat", "lon"))
    found = prepare(open_collection(x), streampca.Preparation(bin=2))
    np.testing.assert_allclose(np.mod(found.coordinates["lon"].values, 360), [357.5, 359.5, 1.5])


@pytest.mark.parametrize("step", ["mask", "scale"])
def test_masks_and_factors_with_names_are_put_in_the_order_of_the_samples(x, step):
    """Turned, transposed, of one axis only, and of wider grids that were cut."""
    land = xr.DataArray(np.random.default_rng(1).random((9, 12)) > 0.4, x[0].coords, ("lat", "lon"))
    values = land if step == "mask" else land + 0.5
    expected = streampca.fit(x, n_components=2, preparation=streampca.Preparation(**{step: values.values}))
    for given in (values, values.T, values.sortby("lat", ascending=False), westward(values).T):
        found = streampca.fit(x, n_components=2, preparation=streampca.Preparation(**{step: given}))
        np.testing.assert_array_equal(found.components, expected.components)
    north = streampca.Preparation(mask=x.lat > 0)
    assert streampca.fit(x, n_components=2, preparation=north).mask[x.lat.values > 0].all()
    west = streampca.fit(x, n_components=2, preparation=streampca.Preparation(mask=x.lon < 90)).mask
    np.testing.assert_array_equal(west, np.broadcast_to(x.lon.values < 90, (9, 12)))
    for wrong, said in ((values.isel(lat=slice(3)), "lat"), (values.rename(lon="x"), "'x'")):
        with pytest.raises(RequestError, match=rf"{said}.*or give its values \(\.values\), which are taken by place"):
            streampca.fit(x, n_components=2, preparation=streampca.Preparation(**{step: wrong}))


def test_a_factor_may_be_a_data_array_of_no_axes(x):
    scale = 1 / x.std()
    one, other = (
        streampca.fit(x, n_components=2, preparation=streampca.Preparation(scale=s)) for s in (scale, float(scale))
    )
    np.testing.assert_array_equal(one.components, other.components)


def test_latitudes_are_in_degrees():
    lat = xr.Variable("lat", np.deg2rad([-75.0, 0, 75]), {"units": "radians", "standard_name": "latitude"})
    x = xr.DataArray(np.random.default_rng(0).random((9, 3, 4)), {"lat": lat}, ("time", "lat", "lon"))
    with pytest.raises(RequestError, match="needs latitudes in degrees"):
        streampca.fit(x, n_components=2, preparation=streampca.Preparation(scale="area"))


def test_one_side_without_coordinates_is_taken_by_place(x, model):
    bare = x.drop_vars(["lat", "lon"])
    for given in (
        bare,
        open_collection(bare),
        southward(x).values,
        southward(bare.assign_coords(lat=-LAT)).drop_vars("lat"),
    ):
        assert model.transform(given).shape == (40, 3)
    np.testing.assert_array_equal(model.transform(bare), model.transform(x))
    unnamed = streampca.fit(x.values, n_components=3)
    np.testing.assert_array_equal(unnamed.transform(southward(x)), unnamed.transform(southward(x).values))


def test_axes_are_compared_by_place_whatever_their_names(x, model, tmp_path):
    renamed = southward(x).rename(lat="y", lon="x")
    np.testing.assert_array_equal(model.transform(open_collection(renamed)), model.transform(x))
    square = x.isel(lon=slice(0, 9))
    model = streampca.fit(square, n_components=2)
    turned = open_collection(square, sample_axes=("lon", "lat"))
    with pytest.raises(
        ModelError, match=r"axes lon, lat and those of the model lat, lon; open it with sample_axes=\('lat', 'lon'\)\.$"
    ):
        model.transform(turned)
    model.transform(open_collection(square, sample_axes=("lat", "lon")))


def test_what_coordinates_may_be():
    for door in (lambda: open_collection(np.eye(3), coordinates="no"), lambda: streampca.merge([], coordinates="no")):
        with pytest.raises(RequestError, match=r"coordinates .*'no'.* give 'check' or 'ignore'"):
            door()


def test_coordinates_that_cannot_be_folders_are_named_and_left_out(x, tmp_path):
    """Others are stored; renaming keeps them all."""
    odd, good = (
        {"zone/no": ("lat", np.arange(9)), "..": ("lon", LON), "": ("lat", LAT)},
        {"zone": ("lat", np.arange(9))},
    )
    for named, told in ((x.assign_coords(odd | good), [True]), (x.assign_coords(good), [])):
        events = []
        streampca.fit(named, n_components=2, output=tmp_path / "m.zarr", overwrite=True, listener=events.append)
        warned = [event.message for event in events if isinstance(event, Warned)]
        assert ["'zone/no', '..', '' are left out" in text for text in warned] == told
        assert {*streampca.load(tmp_path / "m.zarr").coordinates} == {"lat", "lon", "zone"}


# -- files


def thirds(folder, *changes, **how):
    """Three files, one after another in time."""
    parts = [field(12, seed, f"2001-0{seed + 1}-01") for seed in range(3)]
    for number, (part, change) in enumerate(zip(parts, changes, strict=True)):
        change(part).to_netcdf(folder / f"{number}.nc", **{"engine": "scipy", **how})
    return f"{folder}/*.nc", np.concatenate([part.values for part in parts])


@pytest.mark.parametrize(("middle", "engine"), [*zip(SAME, ["scipy", "netcdf4"] * 3, strict=False)])
def test_files_are_put_in_the_order_of_the_first(middle, engine, tmp_path):
    source, expected = thirds(tmp_path, SAME["as it is"], SAME[middle], SAME["as it is"], engine=engine)
    found = open_collection(source)
    np.testing.assert_array_equal(found.read(slice(0, 36)), expected.reshape(36, -1))
    np.testing.assert_array_equal(found.coordinates["lat"].values, LAT)
    np.testing.assert_array_equal(found.coordinates["lon"].values, LON)
    one, other = streampca.fit(source, n_components=3), streampca.fit(expected, n_components=3)
    np.testing.assert_allclose(one.explained_variance, other.explained_variance, rtol=1e-9)


@pytest.mark.parametrize("middle", OTHER)
def test_a_file_on_another_grid_is_refused_by_name(middle, tmp_path, caplog):
    source, expected = thirds(tmp_path, SAME["as it is"], OTHER[middle], SAME["as it is"])
    refused_as(source, rf"^l(at|on) of .*1\.nc is .* and that of .*0\.nc .*{REMEDY}")
    skipped = open_collection(source, on_bad_file="skip")
    assert (skipped.n_samples, [item.path[-4:] for item in skipped.skipped]) == (24, ["1.nc"])
    found = open_collection(source, **IGNORE)
    np.testing.assert_array_equal(found.read(slice(0, 36)), expected.reshape(36, -1))
    assert len(found.coordinates) == 1  # of the axis along which all agree


def test_files_on_the_grid_of_most_are_kept(tmp_path):
    source, expected = thirds(tmp_path, OTHER["shifted"], SAME["as it is"], SAME["southward"])
    found = open_collection(source, on_bad_file="skip")
    np.testing.assert_array_equal(found.read(slice(0, 24)), expected[12:].reshape(24, -1))
    np.testing.assert_array_equal(found.coordinates["lat"].values, LAT)
    ((path, reason),) = found.skipped
    assert path.endswith("0.nc")
    assert "lies on another grid than most files of" in reason


def test_files_are_compared_though_the_first_has_no_coordinates(tmp_path):
    def bare(x):
        return x.drop_vars(["lat", "lon"])

    source, expected = thirds(tmp_path, bare, SAME["as it is"], southward)
    found = open_collection(source)
    np.testing.assert_array_equal(found.read(slice(0, 36)), expected.reshape(36, -1))
    assert found.coordinates == {}
    thirds(tmp_path, bare, SAME["as it is"], OTHER["shifted"])
    refused_as(source, r"^lat of .*2\.nc .* that of .*1\.nc")


def test_files_in_another_order_are_read_within_what_is_planned(tmp_path):
    source, _ = thirds(tmp_path, SAME["as it is"], SAME["both"], SAME["as it is"])
    found = open_collection(source)
    part = found.part(1)
    assert isinstance(part, Reordered)
    assert found.fingerprint() != open_collection(source, **IGNORE).fingerprint()
    base, reordered = part.base.storage.decode_bytes, part.storage.decode_bytes
    assert base + 2 * part.base.nbytes <= reordered <= found.storage.decode_bytes


def fitted(x, folder, name):
    streampca.fit(x, streampca.PCA(2, method="covariance"), output=folder / name)
    return folder / name


def test_models_of_other_coordinates_are_not_merged(x, tmp_path):
    later = field(30, 5)
    one = fitted(x, tmp_path, "one.zarr")
    for kind, change in {"in": southward, "on": OTHER["shifted"]}.items():
        other = fitted(change(later), tmp_path, f"{kind}.zarr")
        same = "in the same order" if kind == "in" else "on the same grid"
        with pytest.raises(ModelError, match=rf"^lat of .*{kind}\.zarr is .*; give samples {same}, or {REMEDY}"):
            streampca.merge([one, other])
        by_place = streampca.merge([one, other], **IGNORE)
        assert set(by_place.coordinates) == {"lon"}
        whole = streampca.fit(np.concatenate([x.values, change(later).values]), n_components=2)
        np.testing.assert_allclose(by_place.explained_variance, whole.explained_variance, rtol=1e-6)
    merged = streampca.merge([one, fitted(as_float32(later), tmp_path, "f4.zarr")])
    assert set(merged.coordinates) == {"lat", "lon"}
    bare = fitted(later.values, tmp_path, "bare.zarr")
    assert streampca.merge([one, bare]).n_samples == 70


# -- the command line


def run(*words):
    return CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=True)


def test_the_command_line_has_one_option(x, tmp_path):
    path, shifted = stored(x, tmp_path), tmp_path / "shifted.nc"
    OTHER["shifted"](x).to_netcdf(shifted, engine="scipy")
    m, s = tmp_path / "m.zarr", tmp_path / "s.npy"
    assert run("fit", path, "-k", 2, "--method", "covariance", "-o", m, "-q").exit_code == 0
    refused = run("transform", m, shifted, "-o", s)
    assert isinstance(refused.exception, ModelError)
    assert not s.exists()
    assert run("transform", m, shifted, "-o", s, "--ignore-coordinates", "-q").exit_code == 0
    np.testing.assert_array_equal(np.load(s), streampca.load(m).transform(x))
    several = run("fit", path, shifted, "-k", 2, "-o", tmp_path / "n.zarr")
    assert isinstance(several.exception, SourceError)
    both = ("--ignore-coordinates", "--duplicates", "all")  # their dates are the same
    done = run("fit", path, shifted, "-k", 2, "-o", tmp_path / "n.zarr", *both, "-q")
    assert "shifted.nc --ignore-coordinates --duplicates all -o scores.zarr" in done.output.replace("\n", "")
    shown = run("fit", path, "-o", "n.zarr", "--ignore-coordinates", "--print-config").output
    assert "coordinates: ignore" in shown
    other = tmp_path / "o.zarr"
    assert run("fit", shifted, "-k", 2, "--method", "covariance", "-o", other, "-q").exit_code == 0
    assert isinstance(run("merge", m, other, "-o", tmp_path / "w.zarr").exception, ModelError)
    assert run("merge", m, other, "-o", tmp_path / "w.zarr", "--ignore-coordinates", "-q").exit_code == 0


# -- the comparison itself


def along(values, **attributes):
    return Coordinate(np.asarray(values), attributes)


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        (along([3, 1, 2]), along([1, 2, 3]), [1, 2, 0]),
        (along([1.0, 2, 3]), along(np.array([1, 2, 3], "i2")), [0, 1, 2]),
        (along([1.1, 1.2, 1.3]), along(np.array([1.1, 1.2, 1.3], "f4")), [0, 1, 2]),
        (along([1.1, 1.2, 1.3001]), along([1.1, 1.2, 1.3]), None),
        (along([5e6, 5e6 + 0.25]), along([5e6 + 0.25, 5e6 + 0.5]), None),  # a step that float32 would not show
        (along([1.0, 1, 2]), along([1.0, 1, 2]), [0, 1, 2]),
        (along([1.0, 2, 1]), along([1.0, 1, 2]), None),  # which of the two is not known
        (along([np.nan, 2]), along([np.nan, 2]), [0, 1]),
        (along([2, np.nan]), along([np.nan, 2]), None),
        (along(["b", "a"]), along(np.array(["a", "b"], object)), [1, 0]),
        (along(["b", "b"]), along(["a", "b"]), None),
        (along(["1", "2"]), along([1, 2]), None),
        (along([-180, -90, 0, 90.0], **EAST), along([0, 90, 180, 270], **EAST), [2, 3, 0, 1]),
        (along([359.99999, 90, 180], **EAST), along([0, 90, 180], **EAST), [0, 1, 2]),
        (along([0, 180, 360.0], **EAST), along([0, 180, 360], **EAST), [0, 1, 2]),
        (along([180, 0, 360.0], **EAST), along([0, 180, 360], **EAST), None),
        (along([-90, 90], units="m"), along([270, 90], units="m"), None),
        (along([24, 48], units="hours since 2000-01-01"), along([2, 1], units="days since 2000-01-01"), [1, 0]),
        (along([0, 1], units="days since 2000-03-01", calendar="noleap"),
         along([59, 60], units="days since 2000-01-01", calendar="noleap"), [0, 1]),
        (along([0, 1], units="days since 2000-03-01"), along([59, 60], units="days since 2000-01-01"), None),
        (along([0, 1], units="days since 2000-03-01", calendar="360_day"),
         along([0, 1], units="days since 2000-03-01"), None),
        (along(np.array(["2000-01-01", "2000-01-02"], "M8[ns]")),
         along([0.0, 1], units="days since 2000-01-01"), [0, 1]),
        (along([1, 2, 3]), along([1, 2]), None),
    ],
)  # fmt: skip
def test_orders(given, wanted, expected):
    order = order_of(given, wanted)
    assert (None if order is None else order.tolist()) == expected


# -- along samples: what is written keeps the name of their axis


@pytest.mark.parametrize("files", ["one", "three", "a day each"])
def test_outputs_of_the_command_line_keep_the_axis_of_samples(files, tmp_path):
    (tmp_path / "in").mkdir()
    if files == "three":
        source, _ = thirds(tmp_path / "in", *[SAME["as it is"]] * 3)
        x = xr.concat([field(12, seed, f"2001-0{seed + 1}-01") for seed in range(3)], "time")
    else:
        x, source = field(8), f"{tmp_path}/in/*.nc"
        for day in range(8 if files == "a day each" else 0):
            x.isel(time=slice(day, day + 1)).to_netcdf(tmp_path / "in" / f"{day}.nc", engine="scipy")
        if files == "one":
            source = stored(x, tmp_path / "in")
    m, s, i, c = (tmp_path / f"{name}.zarr" for name in "msic")
    commands = {
        m: ("fit", source, "-k", 2),
        s: ("transform", m, source),
        i: ("reconstruct", m, source),
        c: ("copy", source),
    }
    for output, words in commands.items():
        done = run(*words, "-o", output, "-q")
        assert done.exit_code == 0, done.output
    model = streampca.load(m)
    scores, images = model.transform(x), model.reconstruct(x)
    with xr.open_zarr(s) as written, xr.open_zarr(i) as rebuilt, xr.open_zarr(c) as copied:
        assert written.scores.dims == scores.dims == ("time", "component")
        assert rebuilt.images.dims == copied.images.dims == images.dims == ("time", "lat", "lon")
        for found in (written, rebuilt, copied):
            np.testing.assert_array_equal(found.time.values.astype("M8[ns]"), x.time.values)
            assert ("sample" in found) == (files == "a day each")
        np.testing.assert_allclose(written.scores, scores, rtol=1e-6, atol=1e-6)
    again = open_collection(c)
    assert (again.shape, again.axes, again.sample_axis) == (x.shape, ("lat", "lon"), "time")
    names = again.sample_names()
    assert (names is None) == (files != "a day each")
    assert names is None or list(names) == [f"{day}.nc" for day in range(8)]
    rewritten = tmp_path / "again.zarr"
    assert run("reconstruct", m, s, "-o", rewritten, "-q").exit_code == 0
    with xr.open_zarr(rewritten) as back:
        assert back.images.dims == ("time", "lat", "lon")
        np.testing.assert_array_equal(back.time.values.astype("M8[ns]"), x.time.values)


def test_what_was_written_is_read_as_the_same_samples(tmp_path):
    """Levels stay part of a sample though they are no picture's axis, and samples are counted along time."""
    rng = np.random.default_rng(0)
    x = xr.DataArray(rng.normal(size=(12, 3, 4, 5)), dims=("time", "level", "lat", "lon"), name="x")
    x.to_netcdf(tmp_path / "x.nc", engine="scipy")
    given = open_collection(tmp_path / "x.nc", sample_axes=("level", "lat", "lon"))
    model = streampca.fit(given, n_components=2)
    model.write_reconstruction(given, tmp_path / "i.zarr")
    found = open_collection(tmp_path / "i.zarr")
    assert (found.shape, found.axes, found.sample_axis) == (x.shape, ("level", "lat", "lon"), "time")
    by_default = open_collection(tmp_path / "x.nc")  # time counts samples, and levels belong to one
    assert (by_default.shape, by_default.sample_axis) == (x.shape, "time")


def test_labels_along_samples_come_along(tmp_path):
    """Coordinates along time that are not called time, in files and in memory."""
    x = field(10).assign_coords(month=("time", np.arange(10) % 12), phase=("time", [f"p{day}" for day in range(10)]))
    x.to_netcdf(tmp_path / "x.nc")
    model = streampca.fit(x, n_components=2)
    for number, source in enumerate((tmp_path / "x.nc", open_collection(x))):
        model.write_scores(source, tmp_path / f"{number}.zarr")
        with xr.open_zarr(tmp_path / f"{number}.zarr") as written:
            assert written.phase.values.tolist() == x.phase.values.tolist()
            np.testing.assert_array_equal(written.month, x.month)
            assert written.scores.dims == ("time", "component")


# -- dates of samples


@pytest.mark.parametrize(
    ("units", "calendar"),
    [
        ("days since 1800-01-01", "standard"),
        ("hours since 1900-06-15 12:00", "gregorian"),
        ("minutes since 1600-02-29", "proleptic_gregorian"),
        ("days since 0001-01-01", "standard"),  # counted through the reform of the calendar
        ("days since 1500-01-01", "proleptic_gregorian"),
        ("days since 1850-01-01", "noleap"),
        ("days since 1850-01-01", "360_day"),
        ("days since 1850-01-01", "julian"),
    ],
)
def test_months_and_days_of_the_year_are_cftimes(units, calendar):
    values = np.random.default_rng(0).uniform(0, 5e5, 300)
    values[:100] = np.rint(values[:100])
    found = dates_of({"time": Coordinate(values, {"units": units, "calendar": calendar})}, None, None)
    dates = cftime.num2date(values, units, calendar=calendar)
    assert found.number_of("month").tolist() == [date.month for date in dates]
    assert found.number_of("dayofyear").tolist() == [date.dayofyr for date in dates]


def test_days_are_counted_alike_in_all_units():
    """Dates are numpy's, stored in other units, or text."""
    times = np.arange("1999-12-28", "2001-03-02", dtype="datetime64[D]")
    texts = dates_of({}, None, times.astype(str))
    for values, about in [
        (times, {}),
        (times.astype("datetime64[ns]"), {}),
        ((times - np.datetime64("1850-01-01")).astype("f8"), {"units": "days since 1850-01-01"}),
        ((times - np.datetime64("1850-01-01")).astype("i8") * 24, {"units": "hours since 1850-01-01 00:00"}),
    ]:
        found = dates_of({"time": Coordinate(values, about)}, "time", None)
        np.testing.assert_allclose(found.days, times.astype("i8"), rtol=1e-15)  # nanoseconds are not float64s
        assert found.calendar == texts.calendar
        np.testing.assert_array_equal(found.number_of("dayofyear"), texts.number_of("dayofyear"))
    year = xr.DataArray(times.astype("datetime64[ns]"), dims="t").dt.dayofyear
    np.testing.assert_array_equal(texts.number_of("dayofyear"), year)


def test_an_hour_stored_as_a_fraction_of_a_day_falls_on_its_day():
    hours = np.arange(24 * 400) / 24
    found = dates_of({"time": Coordinate(hours, {"units": "days since 1955-01-01"})}, None, None)
    np.testing.assert_array_equal(found.number_of("dayofyear"), np.tile(np.arange(1, 366), 2).repeat(24)[: len(hours)])


def test_which_coordinate_has_the_dates():
    def days(first):
        return Coordinate(np.arange(3) + first, {"units": "days since 2000-01-01"})

    steps = Coordinate(np.arange(3), {"units": "m"})
    labels = np.array(["2000-01-05", "2000-01-06", "2000-01-07"])
    for known, axis, text, first in [
        ({"depth": steps, "when": days(1)}, None, None, 1),
        ({"start": days(1), "valid": days(2)}, "valid", None, 2),
        ({"start": days(1), "time": days(2)}, "step", None, 2),
        ({"time": days(1), "valid": days(2)}, "valid", None, 2),
        ({"depth": steps}, "depth", labels, 4),
        ({"time": days(1)}, "time", labels, 1),
    ]:
        assert dates_of(known, axis, text).days[0] == 10957 + first
    for known, text in [
        ({"start": days(1), "valid": days(2)}, labels),
        ({"depth": steps}, None),
        ({}, np.array(["a", "b", "c"])),
        ({}, np.arange(3)),
        ({"time": Coordinate(np.array([0, np.nan, 2]), {"units": "days since 2000-01-01"})}, None),
    ]:
        assert dates_of(known, None, text) is None
