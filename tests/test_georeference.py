"""GeoTIFF scenes: where pixels lie, compared as coordinates are, held by models, and written back."""

from __future__ import annotations

import os
import re

import by_options
import numpy as np
import pytest
import tifffile
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import refused, succeeded

import streampca
from streampca import Preparation, open_collection
from streampca.errors import ModelError, SourceError
from streampca.models.export import export_components
from streampca.storage.components import StoredComponents
from streampca.storage.georeference import georeference_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6, 8)).astype("f4")
UTM = (1, 1, 0, 4, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633, 3076, 0, 1, 9001)
UTM34 = (*UTM[:15], 32634, *UTM[16:])
POINTS = (*UTM[:8], 1025, 0, 1, 2, *UTM[12:])
DEGREES = (1, 1, 0, 3, 1024, 0, 1, 2, 1025, 0, 1, 1, 2048, 0, 1, 4326)
ROTATED = (8.0, 6.0, 500_000.0, 6.0, -8.0, 5_000_000.0)  # a, b, c, d, e, f
SCENES = [f"s{number}.tif" for number in range(12)]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def geo_tags(x=500_000.0, y=5_000_000.0, pixel=10.0, *, keys=UTM, matrix=None, no_data=None, texts=None, ties=None):
    place = [(33550, "d", 3, (pixel, pixel, 0.0), False), (33922, "d", 6, (0.0, 0.0, 0.0, x, y, 0.0), False)]
    if ties is not None:
        place = [(33922, "d", len(ties), ties, False)]
    if matrix is not None:
        a, b, c, d, e, f = matrix
        place = [(34264, "d", 16, (a, b, 0.0, c, d, e, 0.0, f, *([0.0] * 7), 1.0), False)]
    tags = [*place, (34735, "H", len(keys), keys, False)]
    tags += [] if no_data is None else [(42113, "s", 0, str(no_data), False)]
    return tags if texts is None else [*tags, (34737, "s", 0, texts, False)]


def scene(path, image=X[0], *, mode="w", **place):
    with tifffile.TiffWriter(path, append=mode == "a") as file:
        interleaved = {"photometric": "minisblack", "planarconfig": "contig"} if image.ndim == 3 else {}
        file.write(image, extratags=geo_tags(**place), metadata=None, **interleaved)
    return str(path)


def scenes(images=X, **place):
    return [scene(path, image, **place) for path, image in zip(SCENES, images, strict=False)]


def refused_as(source, match, **options):
    with pytest.raises(SourceError, match=match):
        open_collection(source, **options)


# -- reading


def test_corners_and_centres_give_the_centres_of_pixels():
    one, other = scene("area.tif"), scene("point.tif", x=500_005.0, y=4_999_995.0, keys=POINTS)
    for path in (one, other, [one, other]):
        known = open_collection(path, sample_axes=("y", "x")).coordinates
        np.testing.assert_array_equal(known["x"].values, 500_005.0 + 10 * np.arange(8))
        np.testing.assert_array_equal(known["y"].values, 4_999_995.0 - 10 * np.arange(6))
        assert known["x"].attributes["standard_name"] == "projection_x_coordinate"
        assert known["y"].attributes["units"] == "metre"
        about = known["spatial_ref"].attributes
        assert (about["epsg_code"], about["spatial_ref"]) == ("EPSG:32633", "EPSG:32633")


def test_degrees_are_latitudes_and_longitudes():
    source = scenes(x=-10.0, y=60.0, pixel=0.5, keys=DEGREES)
    known = open_collection(source).coordinates
    assert known["y"].attributes["units"] == "degrees_north"
    assert known["x"].values[0] == -9.75
    weighted = streampca.fit(source, n_components=2, preparation=Preparation(scale="area"))
    assert weighted.preparation.scale[0, 0] < weighted.preparation.scale[-1, 0]
    around = {"x": 350.0, "y": 60.0, "pixel": 0.5, "keys": DEGREES}
    moved = [scene(f"m{number}.tif", image, **around) for number, image in enumerate(X)]
    np.testing.assert_array_equal(weighted.transform(moved), weighted.transform(source))  # longitudes go round


def test_plain_tiff_has_no_place():
    tifffile.imwrite("plain.tif", X)
    assert open_collection("plain.tif").coordinates == {}
    assert georeference_of(dict.fromkeys(range(60000)).get) is None


@pytest.mark.parametrize("kept", ["contig", "separate"])
def test_bands_are_an_axis_of_their_own_and_belong_to_the_sample(kept):
    images = RNG.integers(0, 999, (5, 6, 8, 4)).astype("u2")
    for number, image in enumerate(images):
        bands = image if kept == "contig" else np.moveaxis(image, -1, 0)
        tifffile.imwrite(
            f"b{number}.tif", bands, photometric="minisblack", planarconfig=kept, extratags=geo_tags(), metadata=None
        )
    found = open_collection("b*.tif")
    assert (found.axes, found.shape) == (("y", "x", "band"), (5, 6, 8, 4))
    np.testing.assert_array_equal(found.read(slice(0, 5)), images.reshape(5, -1))
    alone = open_collection("b0.tif")
    assert (alone.axes, alone.shape) == (("y", "x", "band"), (1, 6, 8, 4))
    assert open_collection("b0.tif", select={"band": 1}).axes == ("y", "x")
    assert open_collection("b0.tif", sample_axes=("y", "x")).shape == (4, 6, 8)
    model = streampca.fit("b*.tif", n_components=2)
    assert model.sample_dims == ("y", "x", "band")
    model.write_reconstruction("b*.tif", "r.tif")
    again = open_collection("r.tif")
    assert (again.axes, again.shape) == (("y", "x", "band"), (5, 6, 8, 4))
    export_components(model, "c.tif")
    assert tifffile.imread("c.tif").shape == (3, 4, 6, 8)


def test_no_data_are_missing_and_written_as_nan():
    images = X.copy()
    images[3, 2, 2] = -9999
    source = scenes(images, no_data=-9999)
    assert np.isnan(open_collection(source)[3][2, 2])
    model = streampca.fit(source, streampca.PCA(2, missing="drop-features"))
    model.write_reconstruction(source, "r.tif")
    with tifffile.TiffFile("r.tif") as file:
        assert file.pages[0].tags[42113].value == "nan"
    assert np.isnan(open_collection("r.tif")[0][2, 2])


# -- comparing


OTHERS = {
    "east": ({"x": 505_000.0}, r"^x of .*far\.tif is 505005 metre in place 1 and that of .* 500005 metre;"),
    "south": ({"y": 4_995_000.0}, r"^y of .*far\.tif is 4994995 metre in place 1"),
    "coarser": ({"pixel": 20.0}, r"^y of .*far\.tif is "),
    "zone": ({"keys": UTM34}, r"^spatial_ref of .*far\.tif is EPSG:32634 and that of .* EPSG:32633;"),
    "rotated": ({"matrix": ROTATED}, r"^spatial_ref of .*far\.tif is GeoTransform 500000\.0 8\.0 6\.0 .* none;"),
    "half a pixel": ({"keys": POINTS}, r"^y of .*far\.tif is 5000000 metre in place 1"),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("other", OTHERS)
def test_a_scene_of_another_place_is_refused_by_name(other):
    place, said = OTHERS[other]
    source, far = scenes(), scene("far.tif", X[0], **place)
    refused_as([*source, far], said + ".*coordinates='ignore'.*")
    skipped = open_collection([*source, far], on_bad_file="skip")
    assert (len(skipped), [item.path for item in skipped.skipped]) == (12, ["far.tif"])
    taken = open_collection([*source, far], coordinates="ignore")
    assert (len(taken), taken.coordinates) == (13, {})
    model = streampca.fit(source, n_components=2, output="m.zarr")
    for each in (model, streampca.load("m.zarr")):
        with pytest.raises(ModelError, match=said):
            each.transform("far.tif")
        assert each.transform("far.tif", coordinates="ignore").shape == (1, 2)
        assert each.transform("s3.tif").shape == (1, 2)
    line = refused("transform", "m.zarr", "far.tif", "-o", "s.npy")
    remedy = re.search(r"--ignore-coordinates", line)[0]
    succeeded("transform", "m.zarr", "far.tif", "-o", "s.npy", "-q", remedy)
    refused("fit", *source, far, "-k", 2, "-o", "n.zarr")
    succeeded("fit", *source, far, "-k", 2, "-o", "n.zarr", "-q", remedy)


def test_scenes_elsewhere_are_met_when_they_are_decoded():
    for number in range(200):
        scene(f"{number}.tif", x=500_000.0 if number != 101 else 505_000.0)
    found = open_collection("*.tif")
    with pytest.raises(SourceError, match=r"^x of .*101\.tif is 505005 metre in place 1 and that of other images"):
        found.read(slice(0, 200))
    assert len(open_collection("*.tif", on_bad_file="skip")) == 199
    assert len(open_collection("*.tif", coordinates="ignore").read(slice(0, 200))) == 200


def test_most_scenes_say_where_they_are_when_others_are_skipped():
    source = [scene("far.tif", x=505_000.0), *scenes()]
    assert [item.path for item in open_collection(source, on_bad_file="skip").skipped] == ["far.tif"]
    succeeded("fit", ".", "-k", 2, "-o", "../m.zarr", "-q", "--on-bad-file", "skip")
    assert streampca.load("../m.zarr").n_samples == 12


def test_scenes_of_several_sizes_have_no_place_in_common():
    source = [*scenes(), scene("large.tif", np.zeros((12, 16), "f4"), x=700_000.0)]
    assert streampca.fit(source, n_components=2, preparation=Preparation(resize=(6, 8))).n_samples == 13
    skipped = open_collection([*source, scene("far.tif", x=505_000.0)], on_bad_file="skip")
    assert [item.path for item in skipped.skipped] == ["far.tif"]
    model = streampca.fit([*source, "far.tif"], n_components=2, on_bad_file="skip")
    assert (model.n_samples, model.coordinates["x"].values[0]) == (12, 500_005.0)


def test_pages_of_a_file_lie_at_one_place():
    scene("a.tif")
    for image in X[1:]:
        scene("a.tif", image, mode="a")
    assert "x" in open_collection("a.tif").coordinates
    scene("a.tif", X[0], mode="a", x=505_000.0)
    refused_as("a.tif", r"^x of a\.tif, page 13 is 505005 metre in place 1 and that of its first page 500005 metre")
    assert len(open_collection("a.tif", coordinates="ignore").read(slice(0, 13))) == 13


def test_stacks_are_joined_at_one_place_only():
    for path, place in (("a.tif", {}), ("b.tif", {}), ("c.tif", {"x": 505_000.0})):
        scene(path, X[0], **place)
        for image in X[1:]:
            scene(path, image, mode="a", **place)
    found = open_collection(["a.tif", "b.tif"])
    assert (len(found), found.coordinates["x"].values[0]) == (24, 500_005.0)
    refused_as(["a.tif", "b.tif", "c.tif"], r"^x of c\.tif is 505005 metre in place 1 and that of a\.tif 500005 metre")


def test_rounding_of_a_place_is_none():
    source = [*scenes(), scene("near.tif", x=500_000.0 + 1e-4)]
    assert len(open_collection(source)) == 13


def test_models_of_other_places_are_not_merged():
    options = {"n_components": 2, "method": "covariance"}
    one = by_options.fit(scenes(), **options)
    other = by_options.fit(scenes(x=505_000.0), **options)
    with pytest.raises(ModelError, match=r"^x of model 2 is 505005 metre in place 1"):
        streampca.merge([one, other])


# -- systems that no library is asked about


USER = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32767)


def test_a_system_of_its_own_is_kept_raw_and_as_text():
    wkt = 'PROJCS["mine",GEOGCS["base"],PROJECTION["Albers"],UNIT["metre",1]]'
    text = f"ESRI PE String = {wkt}|"
    keys = (*USER[:3], 4, *USER[4:], 1026, 34737, len(text), 0)
    about = open_collection(scene("a.tif", keys=keys, texts=text)).coordinates["spatial_ref"].attributes
    assert (about["crs_wkt"], about["GeoAsciiParamsTag"]) == (wkt, text)
    assert about["GeoKeyDirectoryTag"] == list(keys)
    other = scene("b.tif", keys=keys, texts=text.replace("mine", "this"))
    refused_as(["a.tif", other], r"^spatial_ref of b\.tif is PROJCS\[\"this")
    plain, another = scene("c.tif", keys=USER), scene("d.tif", keys=(*USER[:3], 4, *USER[4:], 3075, 0, 1, 11))
    assert "crs_wkt" not in open_collection(plain).coordinates["spatial_ref"].attributes
    refused_as([plain, another], r"^spatial_ref of d\.tif is \{.*3075: 11\} and that of c\.tif")


def test_tie_points_that_are_no_map_are_kept_and_compared():
    ties = (0.0, 0.0, 0.0, 5e5, 5e6, 0.0, 8.0, 0.0, 0.0, 5.1e5, 5e6, 0.0, 0.0, 6.0, 0.0, 5e5, 4.9e6, 0.0)
    one = scene("a.tif", ties=ties)
    known = open_collection(one).coordinates
    assert set(known) == {"spatial_ref"}
    assert known["spatial_ref"].attributes["ModelTiepointTag"] == list(ties)
    refused_as([one, scene("b.tif", ties=(*ties[:-1], 1.0))], r"^spatial_ref of b\.tif is tie points")
    model = streampca.fit(scenes(ties=ties), n_components=2)
    export_components(model, "c.tif")
    with tifffile.TiffFile("c.tif") as file:
        assert file.pages[0].tags[33922].value == ties


# -- rotated


def map_of(collection):
    return np.array(collection.coordinates["spatial_ref"].attributes["GeoTransform"].split(), float)


def test_rotated_maps_are_kept_and_compared_whole():
    a, b, c, d, e, f = ROTATED
    source = scenes(matrix=ROTATED)
    found = open_collection(source)
    assert set(found.coordinates) == {"spatial_ref"}
    np.testing.assert_array_equal(map_of(found), (c, a, b, f, d, e))
    refused_as(
        [*source, scene("far.tif", matrix=(a, b, c + 5000, d, e, f))], r"^spatial_ref of far\.tif is GeoTransform 50"
    )
    refused_as(
        [*source, scene("far.tif", matrix=(a, b + 0.1, c, d, e, f))], r"^spatial_ref of far\.tif is GeoTransform 50"
    )
    near = scene("near.tif", matrix=(a, b, c + 1e-4, d, e, f))
    assert len(open_collection([*source, near])) == 13
    model = streampca.fit(source, n_components=2, output="m.zarr")
    with pytest.raises(ModelError, match=r"spatial_ref of far\.tif"):
        streampca.load("m.zarr").transform("far.tif")
    model.write_reconstruction(source, "r.tif")
    np.testing.assert_array_equal(map_of(open_collection("r.tif")), (c, a, b, f, d, e))


def test_rotated_maps_are_cut_and_merged_as_pixels_are():
    """The corner of a prepared pixel lies where that of the raw pixels it is made of lies."""
    a, b, c, d, e, f = ROTATED
    source = scenes(matrix=ROTATED)

    def corner(row, column):
        return c + a * column + b * row, f + d * column + e * row

    selected = open_collection("s0.tif", select={"y": slice(1, 5), "x": slice(2, 8)})
    assert (map_of(selected)[0], map_of(selected)[3]) == corner(1, 2)
    for steps, row, column, high, wide in (
        ({"crop": [(2, 6), (1, 7)]}, 2, 1, 1, 1), ({"bin": 2}, 0, 0, 2, 2),
        ({"crop": [(2, 6), (0, 8)], "bin": 2}, 2, 0, 2, 2),
        ({"resize": (3, 2)}, 0, 0, 2, 4),
    ):  # fmt: skip
        model = streampca.fit(source, n_components=2, preparation=Preparation(**steps))
        found = np.array(model.coordinates["spatial_ref"].attributes["GeoTransform"].split(), float)
        expected = corner(row, column)
        np.testing.assert_allclose(found, (expected[0], wide * a, high * b, expected[1], wide * d, high * e))


# -- models and outputs


def test_a_model_holds_the_reference_as_a_scalar_variable():
    streampca.fit(scenes(), n_components=2, output="m.zarr")
    opened = xarray.open_zarr("m.zarr")
    assert opened["spatial_ref"].dims == ()
    assert opened["spatial_ref"].attrs["epsg_code"] == "EPSG:32633"
    model = streampca.load("m.zarr")
    assert model.coordinates["spatial_ref"].attributes["GeoKeyDirectoryTag"] == list(UTM)
    assert model.to_xarray()["mean"].coords["spatial_ref"].attrs["epsg_code"] == "EPSG:32633"


LAT_LON = {"y": "lat", "x": "lon", "spatial_ref": "crs"}


@pytest.mark.parametrize("method", ["covariance", "randomized"])
@pytest.mark.parametrize("names", [{}, LAT_LON], ids=["y, x", "lat, lon"])
def test_arrays_of_models_and_outputs_over_y_and_x_name_their_reference(names, method):
    """As CF says it, so that xarray and rioxarray find it: by ``grid_mapping``, of these arrays and no others."""
    source = field(crs_wkt=WKT).rename(names)
    grid = names.get("spatial_ref", "spatial_ref")
    kind, steps = streampca.PCA(2, method=method), Preparation(standardize=True)
    streampca.fit(source, kind, output="m.zarr", preparation=steps)
    model = streampca.load("m.zarr")
    model.save("again.zarr")
    model.write_reconstruction(source, "r.zarr")
    model.write_scores(source, "s.zarr")
    for path in ("m.zarr", "again.zarr", "r.zarr", "s.zarr"):
        opened = xarray.open_zarr(path, decode_coords="all")
        found = {name for name, each in opened.data_vars.items() if each.encoding.get("grid_mapping") == grid}
        assert found == {name for name, each in opened.data_vars.items() if {*source.dims[1:]} <= {*each.dims}}
        assert found == set() if path == "s.zarr" else opened[grid].attrs["crs_wkt"] == WKT
    for name in ("mean", "components", "deviation"):
        assert model.to_xarray()[name].attrs["grid_mapping"] == grid
    assert "grid_mapping" not in model.to_xarray()["explained_variance"].attrs


def test_components_that_are_written_as_they_are_computed_name_their_reference():
    source = scenes(RNG.normal(size=(12, 400, 400)).astype("f4"))
    model = streampca.fit(source, streampca.PCA(11, method="dual"), memory="72 MiB", output="m.zarr")
    assert isinstance(model.components, StoredComponents)
    assert xarray.open_zarr("m.zarr", decode_coords="all")["components"].encoding["grid_mapping"] == "spatial_ref"


def test_series_of_pixels_lie_on_no_grid():
    streampca.fit(field(crs_wkt=WKT), n_components=2, sample_axes=("time",), output="m.zarr")
    assert "grid_mapping" not in xarray.open_zarr("m.zarr")["mean"].attrs


@pytest.mark.parametrize("keys", [UTM, POINTS, DEGREES])
@pytest.mark.parametrize("output", ["r.tif", "r.ome.tif"])
def test_tiff_outputs_lie_where_the_samples_do(keys, output):
    pixel = 0.25 if keys is DEGREES else 10.0
    source = scenes(x=50.0, y=60.0, pixel=pixel, keys=keys)
    model = streampca.fit(source, n_components=2)
    model.write_reconstruction(source, output)
    export_components(model, "c.tif")
    for path in (output, "c.tif"):
        with tifffile.TiffFile(path) as file:
            for page in file.pages:
                assert page.tags[33550].value == (pixel, pixel, 0.0)
                assert page.tags[33922].value == (0.0, 0.0, 0.0, 50.0, 60.0, 0.0)
                assert page.tags[34735].value == keys
                assert page.tags[42113].value == "nan"
    assert model.transform(output).shape == (12, 2)


def test_prepared_pixels_are_written_where_they_lie():
    source = scenes()
    model = streampca.fit(source, n_components=2, preparation=Preparation(crop=[(2, 6), (4, 8)], bin=2))
    export_components(model, "c.tif")
    with tifffile.TiffFile("c.tif") as file:
        assert file.pages[0].tags[33550].value == (20.0, 20.0, 0.0)
        assert file.pages[0].tags[33922].value[3:5] == (500_040.0, 4_999_980.0)


def test_rows_that_go_north_are_written_as_a_matrix():
    source = scenes(matrix=(10.0, 0.0, 5e5, 0.0, 10.0, 4e6))
    model = streampca.fit(source, n_components=2)
    assert model.coordinates["y"].values[0] == 4_000_005.0
    export_components(model, "c.tif")
    with tifffile.TiffFile("c.tif") as file:
        assert file.pages[0].tags[34264].value[:8] == (10.0, 0.0, 0.0, 5e5, 0.0, 10.0, 0.0, 4e6)


def field(**about):
    """Samples as rioxarray gives them."""
    known = {"y": 4_999_995.0 - 10 * np.arange(6), "x": 500_005.0 + 10 * np.arange(8)}
    x = xarray.DataArray(X, known, ("time", "y", "x"), "v").assign_coords(spatial_ref=0)
    x["spatial_ref"].attrs.update(about)
    return x


WKT = 'PROJCRS["UTM 33",BASEGEOGCRS["WGS 84"],CONVERSION["UTM"],CS[Cartesian,2],ID["EPSG",32633]]'


@pytest.mark.parametrize("form", ["array", "classic", "netcdf", "zarr"])
def test_references_of_other_formats_are_compared(form):
    def stored(x, name):
        if form == "array":
            return x
        x.encoding["grid_mapping"] = "spatial_ref"
        if form == "zarr":
            x.to_dataset().to_zarr(f"{name}.zarr", zarr_format=2)
            return f"{name}.zarr"
        x.to_netcdf(f"{name}.nc", engine="scipy" if form == "classic" else "netcdf4")
        return f"{name}.nc"

    model = streampca.fit(scenes(), n_components=2)
    same = stored(field(crs_wkt=WKT), "same")
    np.testing.assert_allclose(np.asarray(model.transform(same)), np.asarray(model.transform(SCENES)), atol=1e-6)
    other = stored(field(crs_wkt=WKT.replace("32633", "32634")), "other")
    with pytest.raises(ModelError, match=r"^spatial_ref of .* is EPSG:32634 and that of the model EPSG:32633"):
        model.transform(other)
    own = streampca.fit(same, n_components=2)
    assert own.coordinates["spatial_ref"].attributes["crs_wkt"] == WKT
    export_components(own, "c.tif")
    about = open_collection("c.tif", sample_axes=("y", "x")).coordinates
    assert about["spatial_ref"].attributes["epsg_code"] == "EPSG:32633"
    assert about["x"].values[0] == 500_005.0


def test_text_of_a_system_without_a_code_is_written():
    wkt = 'PROJCS["mine",GEOGCS["base"],UNIT["metre",1]]'
    export_components(streampca.fit(field(crs_wkt=wkt), n_components=2), "c.tif")
    written = open_collection("c.tif", sample_axes=("y", "x"))
    assert written.coordinates["spatial_ref"].attributes["crs_wkt"] == wkt


# -- judged by GDAL

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3))
STEPS = st.floats(0.01, 1000).map(lambda x: round(x, 4))


@st.composite
def placed(draw):
    keys = draw(st.sampled_from([UTM, POINTS, DEGREES]))
    if draw(st.booleans()):
        a, b, e = (draw(STEPS) * draw(st.sampled_from([-1, 1])) for _ in range(3))
        b, d = draw(st.sampled_from([(0.0, 0.0), (b, 0.0), (b, -b * a / e)]))
        return {"matrix": (a, b, draw(NUMBERS), d, e, draw(NUMBERS)), "keys": keys}
    return {"x": draw(NUMBERS), "y": draw(NUMBERS), "pixel": draw(STEPS), "keys": keys}


@settings(max_examples=30)
@given(placed())
def test_gdal_agrees(tmp_path_factory, place):
    rasterio = pytest.importorskip("rasterio")
    os.chdir(tmp_path_factory.mktemp("gdal"))
    source = scenes(X[:4], **place)
    known = open_collection(source).coordinates
    model = streampca.fit(source, n_components=2)
    export_components(model, "c.tif")
    with rasterio.open("s0.tif") as raw, rasterio.open("c.tif") as exported:
        assert exported.crs == raw.crs
        assert exported.crs.to_epsg() == int(known["spatial_ref"].attributes["epsg_code"].partition(":")[2])
        np.testing.assert_allclose(exported.transform[:6], raw.transform[:6], rtol=1e-9, atol=1e-6)
        assert np.isnan(exported.nodata)
        if "x" in known:
            xs, ys = raw.xy(range(6), [0] * 6)[1], raw.xy([0] * 8, range(8))[0]
            np.testing.assert_allclose(known["y"].values, xs, rtol=1e-12, atol=1e-9)
            np.testing.assert_allclose(known["x"].values, ys, rtol=1e-12, atol=1e-9)
        else:
            np.testing.assert_allclose(map_of(open_collection(source)), raw.transform.to_gdal(), rtol=1e-12, atol=1e-9)
