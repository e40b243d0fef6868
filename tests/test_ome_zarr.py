"""OME-Zarr pictures, and Zarr stores as xarray writes them: the right array, its axes, places and values."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import xarray
import zarr
from contract import WholeContract, everything, over, refused

from streampca.errors import RequestError
from streampca.readers import open_collection

AXES = [
    {"name": "t", "type": "time", "unit": "second"},
    {"name": "c", "type": "channel"},
    {"name": "z", "type": "space", "unit": "micrometer"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]


def values(shape=(2, 3, 4, 6, 10), dtype="u2"):
    return np.random.default_rng(5).integers(0, 999, shape).astype(dtype)


def scaled(*numbers):
    return {"type": "scale", "scale": list(numbers)}


def write(path, x, version="0.4", names=("0", "1"), axes=None):
    """A picture of two levels, the second of every other pixel."""
    group = zarr.open_group(path, mode="w", zarr_format=3 if version == "0.5" else 2)
    factors = (1.0, 2.0)
    for name, factor in zip(names, factors, strict=True):
        level = x[..., :: int(factor), :: int(factor)]
        group.create_array(name, data=np.ascontiguousarray(level), chunks=(1,) * (x.ndim - 3) + (2, 6, 4))
    datasets = [
        {"path": name, "coordinateTransformations": [scaled(10, 1, 2, 0.5 * factor, 0.25 * factor)][: x.ndim == 5]}
        for name, factor in zip(names, factors, strict=True)
    ]
    multiscale = {"datasets": datasets, "name": "cells"}
    if version in ("0.4", "0.5"):
        multiscale["axes"] = AXES if axes is None else axes
    elif version == "0.3":
        multiscale["axes"] = list("tczyx")
    if version == "0.5":
        group.attrs["ome"] = {"version": "0.5", "multiscales": [multiscale]}
    else:
        group.attrs["multiscales"] = [multiscale | {"version": version}]
    return group


@pytest.mark.parametrize("version", ["0.1", "0.3", "0.4", "0.5"])
def test_the_finest_level_is_opened_with_its_axes(tmp_path, version):
    x = values()
    write(tmp_path / "x.zarr", x, version)
    collection = open_collection(tmp_path / "x.zarr")
    assert collection.axes == ("c", "z", "y", "x")  # samples are counted in time
    np.testing.assert_array_equal(everything(tmp_path / "x.zarr"), x)
    one = open_collection(tmp_path / "x.zarr", sample_axes=("y", "x"), select={"c": 0})
    assert one.shape == (8, 6, 10)
    assert one.where(5) == f"sample 5 of {tmp_path}/x.zarr, array '0' (t 1, z 1)"
    np.testing.assert_array_equal(
        everything(tmp_path / "x.zarr", sample_axes=("y", "x"), select={"c": 0}), x[:, 0].reshape(8, 6, 10)
    )


@pytest.mark.parametrize(
    ("names", "key"), [(("0", "1"), "1"), (("s0", "half/res"), "1"), (("s0", "half/res"), "half/res")]
)
def test_a_level_is_named_by_number_or_path(tmp_path, names, key):
    x = values()
    write(tmp_path / "x.zarr", x, names=names)
    chosen = open_collection(tmp_path / "x.zarr", key=key)
    assert chosen.axes == ("c", "z", "y", "x")
    assert chosen.shape == (2, 3, 4, 3, 5)
    np.testing.assert_allclose(chosen.coordinates["x"].values, 0.5 * np.arange(5))
    refused(tmp_path / "x.zarr", "no array '7'", names[1], key="7", error=RequestError)


def test_places_of_pixels_come_with_their_units(tmp_path):
    x = values()
    group = write(tmp_path / "x.zarr", x)
    said = group.attrs["multiscales"]
    said[0]["datasets"][0]["coordinateTransformations"].append({"type": "translation", "translation": [0, 0, 5, 0, 1]})
    said[0]["coordinateTransformations"] = [scaled(1, 1, 1, 1, 3)]
    group.attrs["multiscales"] = said
    collection = open_collection(tmp_path / "x.zarr", sample_axes=("y", "x"), select={"c": 0, "x": slice(2, 6)})
    assert set(collection.coordinates) == {"y", "x"}
    np.testing.assert_allclose(collection.coordinates["y"].values, 0.5 * np.arange(6))
    np.testing.assert_allclose(collection.coordinates["x"].values, 3 * (0.25 * np.arange(2, 6) + 1))
    assert collection.coordinates["x"].attributes == {"units": "micrometer"}
    along = collection.sample_coordinates()
    np.testing.assert_allclose(along["t"].values, np.repeat([0.0, 10.0], 4))
    np.testing.assert_allclose(along["z"].values, np.tile(2.0 * np.arange(4) + 5, 2))


def test_unknown_transformations_leave_places_unknown(tmp_path):
    group = write(tmp_path / "x.zarr", values())
    said = group.attrs["multiscales"]
    said[0]["datasets"][0]["coordinateTransformations"] = [{"type": "affine", "affine": [[1]]}]
    group.attrs["multiscales"] = said
    assert open_collection(tmp_path / "x.zarr").coordinates == {}


def test_labels_beside_a_picture_are_opened_when_asked_for(tmp_path):
    x = values()
    group = write(tmp_path / "x.zarr", x)
    write(tmp_path / "x.zarr" / "labels" / "cells", x % 7)
    assert group["labels/cells/0"].shape == x.shape
    np.testing.assert_array_equal(everything(tmp_path / "x.zarr", key="labels/cells"), x % 7)
    assert open_collection(tmp_path / "x.zarr", key="labels/cells/1").shape == (2, 3, 4, 3, 5)
    assert open_collection(tmp_path / "x.zarr").source.endswith("array '0'")


def test_several_pictures_are_listed(tmp_path):
    """bioformats2raw's layout, with and without its notes, and the key offered works."""
    x = values()
    root = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    root.attrs["bioformats2raw.layout"] = 3
    write(tmp_path / "x.zarr" / "0", x)
    assert open_collection(tmp_path / "x.zarr").shape == x.shape
    write(tmp_path / "x.zarr" / "1", x[:1] + 1)
    for _ in range(2):
        line = refused(
            tmp_path / "x.zarr", "2 pictures", "0/0 (2 x 3 x 4 x 6 x 10 uint16), 1/0 (1 x 3 x 4 x 6 x 10 uint16)"
        )
        key = line.rpartition("key='")[2].partition("'")[0]
        assert open_collection(tmp_path / "x.zarr", key=key).axes == ("c", "z", "y", "x")
        root.require_group("OME").attrs["series"] = ["0", "1"]
    assert open_collection(tmp_path / "x.zarr", key="1").n_samples == 1
    assert open_collection(tmp_path / "x.zarr", key="1/1").shape == (1, 3, 4, 3, 5)


@pytest.mark.parametrize("wells", [1, 13])
def test_plates_are_told_by_their_wells(tmp_path, wells):
    root = zarr.open_group(tmp_path / "p.zarr", mode="w", zarr_format=2)
    paths = [f"A/{number}" for number in range(wells)]
    root.attrs["plate"] = {"wells": [{"path": path} for path in paths]}
    for path in paths:
        root.create_group(path).attrs["well"] = {"images": [{"path": "0"}]}
        write(tmp_path / "p.zarr" / path / "0", values((1, 2, 3, 4, 5), "u1"))
    if wells == 1:
        assert open_collection(tmp_path / "p.zarr").shape == (1, 2, 3, 4, 5)
        return
    refused(tmp_path / "p.zarr", "more than 12 pictures", "A/0/0/0 (1 x 2 x 3 x 4 x 5 uint8)", "key='A/0/0/0'")
    assert open_collection(tmp_path / "p.zarr", key="A/12").source.endswith("array 'A/12/0/0'")
    assert open_collection(tmp_path / "p.zarr", key="A/12").axes == ("c", "z", "y", "x")


@pytest.mark.parametrize(
    "broken",
    [
        {"multiscales": [{"datasets": []}]},
        {"multiscales": [{"axes": AXES}]},
        {"multiscales": {"0": 1}},
        {"multiscales": [{"axes": ["y", "y"], "datasets": [{"path": "0"}]}]},
        {"multiscales": [{"axes": AXES, "datasets": [{"path": "0", "coordinateTransformations": [scaled(1, 2)]}]}]},
    ],
)
def test_metadata_that_make_no_sense_are_refused_and_the_remedy_works(tmp_path, broken):
    x = values()
    group = write(tmp_path / "x.zarr", x)
    group.attrs.update(broken)
    line = refused(tmp_path / "x.zarr", tmp_path / "x.zarr", "cannot be understood")
    path = line.rpartition("such as ")[2].rstrip(".")
    np.testing.assert_array_equal(everything(path), x)


def test_axes_that_do_not_fit_are_refused_and_the_remedy_works(tmp_path):
    x = values()
    write(tmp_path / "x.zarr", x, axes=AXES[1:3])
    group = zarr.open_group(tmp_path / "x.zarr")
    said = group.attrs["multiscales"]
    for dataset in said[0]["datasets"]:
        dataset["coordinateTransformations"] = []
    group.attrs["multiscales"] = said
    line = refused(tmp_path / "x.zarr", "has 5 axes", "name 2 (c, z)")
    np.testing.assert_array_equal(everything(line.rpartition(", as ")[2].rstrip(".")), x)


@pytest.mark.parametrize("form", [2, 3])
def test_an_unknown_codec_is_named(tmp_path, form):
    zarr.create_array(tmp_path / "x.zarr", data=values(), zarr_format=form)
    place = tmp_path / "x.zarr" / (".zarray" if form == 2 else "zarr.json")
    metadata = json.loads(place.read_text())
    if form == 2:
        metadata["compressor"] = {"id": "nosuch"}
    else:
        metadata["codecs"][-1] = {"name": "nosuch", "configuration": {}}
    place.write_text(json.dumps(metadata))
    refused(tmp_path / "x.zarr", "codec", "nosuch", "not installed")


# --- as xarray writes them ---


def written(path, dataset, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata are not part of the standard of Zarr 3 yet
        dataset.to_zarr(path, **options)
    return path


def climate():
    rng = np.random.default_rng(3)
    x = rng.normal(280, 5, (6, 4, 5))
    x[0, 0, 0] = np.nan
    return xarray.Dataset(
        {"t2m": (("time", "lat", "lon"), x), "time_bnds": (("time", "nv"), np.zeros((6, 2)))},
        {
            "time": ("time", np.arange(6.0), {"units": "days since 2000-01-01", "bounds": "time_bnds"}),
            "lat": ("lat", np.linspace(40, 43, 4), {"units": "degrees_north"}),
            "lon": ("lon", np.linspace(5, 9, 5, dtype="f4")),
        },
    )


ENCODINGS = {
    "packed": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.0, "_FillValue": -32767},
    "plain": {},
    "filled": {"dtype": "f4", "_FillValue": -9999.0},
}


@pytest.mark.parametrize("form", [2, 3])
@pytest.mark.parametrize("kind", ENCODINGS)
def test_values_are_those_of_xarray(tmp_path, kind, form):
    path = written(tmp_path / "x.zarr", climate(), encoding={"t2m": ENCODINGS[kind]}, zarr_format=form)
    collection = open_collection(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with xarray.open_zarr(path, decode_times=False) as opened:
            expected = opened["t2m"].to_numpy()
    read = collection.read(slice(0, 6)).reshape(collection.shape)
    assert np.isnan(read[0, 0, 0])
    assert read.dtype == expected.dtype
    np.testing.assert_array_equal(read, expected)
    assert collection.axes == ("lat", "lon")


@pytest.mark.parametrize("form", [2, 3])
def test_coordinates_are_kept(tmp_path, form):
    path = written(tmp_path / "x.zarr", climate(), zarr_format=form)
    collection = open_collection(path, select={"lat": slice(1, 3)})
    np.testing.assert_array_equal(collection.coordinates["lat"].values, [41, 42])
    assert collection.coordinates["lat"].attributes["units"] == "degrees_north"
    assert collection.coordinates["lon"].values.dtype == np.float32
    time = collection.sample_coordinates()["time"]
    np.testing.assert_array_equal(time.values, np.arange(6))
    assert time.attributes["units"] == "days since 2000-01-01"


def test_zero_is_a_value_unless_it_is_said_not_to_be(tmp_path):
    """Zarr 2 fills with zero by itself, and pictures have black pixels."""
    x = values((5, 3, 4), "u1") % 3
    array = zarr.create_array(tmp_path / "x.zarr", data=x, zarr_format=2, fill_value=0)
    array.attrs["_ARRAY_DIMENSIONS"] = ["t", "y", "x"]
    read = everything(tmp_path / "x.zarr")
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, x)


def pictures_of(version):
    def make(folder):
        x = values()
        write(folder / "x.zarr", x, version)
        return open_collection(folder / "x.zarr", sample_axes=("y", "x"), select={"c": 1}), x[:, 1].reshape(8, 6, 10)

    return make


def packed(folder):
    encoding = {"t2m": ENCODINGS["packed"] | {"chunks": (2, 3, 2)}}
    path = written(folder / "x.zarr", climate(), encoding=encoding, zarr_format=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with xarray.open_zarr(path) as opened:
            return open_collection(path), opened["t2m"].to_numpy()


@over({"Zarr 2": pictures_of("0.4"), "Zarr 3": pictures_of("0.5"), "packed": packed})
class TestPictures(WholeContract):
    cuts = 3
