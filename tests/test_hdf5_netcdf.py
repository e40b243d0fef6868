"""HDF5 by path, NetCDF-4 and NetCDF-3, and packed numbers, with xarray's decoding as the oracle."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import logging
import os
import pickle
import sys

import h5py
import numpy as np
import pytest
import xarray
from contract import read_all, refused_as, values
from sources import SOURCES

from streampca import machine
from streampca.errors import RequestError, SourceError
from streampca.readers import open_collection
from streampca.readers.collection import State
from streampca.readers.hdf5 import Hdf5Array
from streampca.readers.stored import cf
from streampca.readers.stored.array import ArrayCollection
from streampca.readers.stored.flat import FlatArray
from streampca.readers.stored.layout import Box, largest_piece, pieces_of
from streampca.storage.coordinate import Coordinate

N, Y, X = values().shape


def decoded(path, name, **options):
    with xarray.open_dataset(path, decode_times=False, **options) as dataset:
        return dataset[name].transpose(...).values


def assert_same_values(collection, expected):
    read = read_all(collection)
    assert read.dtype == expected.dtype
    np.testing.assert_array_equal(read, expected.reshape(read.shape))


@pytest.mark.parametrize(("name", "chunks"), [("hdf5, chunked", (4, 30)), ("hdf5, cut everywhere", (7, 10))])
def test_chunks_are_told_to_the_planner(tmp_path, name, chunks):
    assert SOURCES[name](tmp_path)[0].chunks == chunks


@pytest.mark.parametrize("name", ["hdf5, contiguous", "hdf5, behind a block of the user's"])
def test_contiguous_datasets_are_read_by_position(tmp_path, name):
    assert SOURCES[name](tmp_path)[0].array._flat is not None


def climate(dtype="f4"):
    """Temperatures with land (NaN) at the same places of every map."""
    rng = np.random.default_rng(3)
    maps = rng.normal(285, 8, size=(N, Y, X)).astype(dtype)
    maps[:, 2:4, 1] = np.nan
    return xarray.Dataset(
        {
            "t2m": (("time", "lat", "lon"), maps, {"units": "K", "long_name": "temperature"}),
            "time_bounds": (("time", "bounds"), np.zeros((N, 2))),
            "count": (("time",), np.arange(N, dtype="i2")),
        },
        coords={
            "time": ("time", np.arange(N) * 6, {
                "units": "hours since 1979-01-01", "calendar": "noleap", "bounds": "time_bounds",
            }),
            "lat": ("lat", np.linspace(60, -60, Y), {"units": "degrees_north"}),
            "lon": ("lon", np.arange(X, dtype="f4"), {"units": "degrees_east"}),
        },
    )  # fmt: skip


PACKED = {
    "float64 offset": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 285.0, "_FillValue": -32767},
    "float32 factors": {
        "dtype": "i2", "scale_factor": np.float32(0.01), "add_offset": np.float32(285.0), "_FillValue": np.int16(-9),
    },
    "scale only": {"dtype": "i2", "scale_factor": np.float32(0.01), "_FillValue": np.int16(-32768)},
    "wide": {"dtype": "i4", "scale_factor": np.float32(0.0001), "add_offset": np.float32(9), "_FillValue": -2147483647},
    "bytes": {"dtype": "i1", "scale_factor": 0.5, "add_offset": 285.0, "missing_value": np.int8(-128)},
    "not packed": {"dtype": "f4", "_FillValue": np.float32(1e20)},
    "whole degrees": {"dtype": "i2", "_FillValue": np.int16(-1)},
}  # fmt: skip
FORMATS = ["NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]


@pytest.mark.parametrize(("packing", "format_", "unlimited"), [
    (packing, FORMATS[(at + len(unlimited)) % 4], unlimited)
    for at, packing in enumerate(PACKED) for unlimited in ((), ("time",))
])  # fmt: skip
def test_packed_maps_with_land_are_what_xarray_decodes(tmp_path, packing, format_, unlimited):
    """A packed int16 NetCDF-4 and a NetCDF-3 file with land: equal to xarray's decoded values, bit for bit."""
    pytest.importorskip("netCDF4", reason="writes the files")
    path = tmp_path / "t.nc"
    climate().to_netcdf(
        path, format=format_, encoding={"t2m": PACKED[packing]}, unlimited_dims=unlimited, engine="netcdf4"
    )
    collection = open_collection(path)
    expected = decoded(path, "t2m", engine="netcdf4")
    assert np.isnan(expected[:, 2:4, 1]).all()
    assert_same_values(collection, expected)
    assert collection.axes == ("lat", "lon")
    assert collection.attributes["units"] == "K"
    assert not cf.PACKING & collection.attributes.keys()


def test_coordinates_keep_names_values_and_units(tmp_path):
    for format_ in ("NETCDF3_64BIT", "NETCDF4"):
        if format_ == "NETCDF4":
            pytest.importorskip("netCDF4", reason="writes NetCDF-4")
        path = tmp_path / f"{format_}.nc"
        climate().to_netcdf(path, format=format_, engine="scipy" if "3" in format_ else "netcdf4")
        collection = pickle.loads(pickle.dumps(open_collection(path)))  # noqa: S301 - our own bytes
        lat, lon = (collection.coordinates[name] for name in ("lat", "lon"))
        np.testing.assert_array_equal(lat.values, np.linspace(60, -60, Y))
        assert (lat.attributes["units"], lon.values.dtype) == ("degrees_north", np.float32)
        time = collection.sample_coordinates()["time"]
        assert time.attributes == {"units": "hours since 1979-01-01", "calendar": "noleap", "bounds": "time_bounds"}
        np.testing.assert_array_equal(time.values, np.arange(N) * 6)
        again = xarray.decode_cf(xarray.Dataset({"time": ("time", time.values, dict(time.attributes))}))
        assert str(again.time.values[-1]) == "1979-01-06 12:00:00"
        part = open_collection(path, select={"time": slice(4, 9), "lat": slice(0, 2)})
        np.testing.assert_array_equal(part.sample_coordinates()["time"].values, np.arange(4, 9) * 6)
        np.testing.assert_array_equal(part.coordinates["lat"].values, lat.values[:2])


def test_coordinates_of_several_axes_are_repeated_over_samples():
    array = xarray.DataArray(
        values("f4", (2, 3, 4, 5)), dims=("member", "time", "y", "x"),
        coords={"time": np.array(["2001-01-01", "2001-01-02", "2001-01-04"], "M8[ns]"), "y": [1.0, 2, 4, 8],
                "member": ["a", "b"]},
    )  # fmt: skip
    collection = open_collection(array)
    assert list(collection.sample_coordinates()) == ["time", "member"]
    assert collection.sample_coordinates()["member"].values.tolist() == ["a"] * 3 + ["b"] * 3
    time = collection.sample_coordinates()["time"]
    again = xarray.decode_cf(xarray.Dataset({"t": ("n", time.values, dict(time.attributes))}))
    np.testing.assert_array_equal(again.t.values, np.tile(array.time.values, 2))
    np.testing.assert_array_equal(collection.coordinates["y"].values, [1, 2, 4, 8])
    assert collection.coordinates["y"].values.shape == (4,)


MONTHS = {"M8[ns]": ("2000-01", "2000-02", "2000-03"), "noleap": ("2001-01", "2001-02", "2001-03")}


def months(folder, engine, calendar="M8[ns]", **units):
    """Three files of daily fields, one a month, each with a time in its own units and a label a day."""
    parts = []
    for number, start in enumerate(MONTHS[calendar]):
        if calendar == "M8[ns]":
            time = np.datetime64(f"{start}-01T06:00", "ns") + np.arange(4) * np.timedelta64(1, "D")
        else:
            time = xarray.date_range(f"{start}-27", periods=4, calendar=calendar, use_cftime=True)
        x = values("f4", (4, 3, 5)) + number
        labels = [f"day {number}-{day}" for day in range(4)]
        part = xarray.DataArray(
            x, {"time": time, "day": ("time", labels), "number": ("time", np.arange(4) + 10 * number)},
            ("time", "lat", "lon"), name="sst",
        )  # fmt: skip
        encoding = {"time": {"units": units[f"u{number}"], "dtype": "f8"}} if units else {}
        part.to_netcdf(folder / f"{number}.nc", engine=engine, encoding=encoding)
        parts.append(part)
    return f"{folder}/*.nc", xarray.concat(parts, "time")


@pytest.mark.parametrize(
    ("engine", "units", "found_in"),
    [
        ("scipy", {}, "days since 2000-01-01 06:00:00"),  # as xarray chooses them, another reference in each file
        ("netcdf4", {"u0": "days since 1900-01-01", "u1": "hours since 1999-12-31",
                     "u2": "seconds since 2000-01-01T06:00:00Z"}, "days since 1900-01-01"),
        ("scipy", {"u0": "days since 2000-01-01", "u1": "hours since 2000-01-01",
                   "u2": "minutes since 2000-01-01 00:30"}, "days since 2000-01-01"),
    ],
    ids=["own", "mixed", "fractions"],
)  # fmt: skip
def test_times_of_several_files_are_put_in_the_units_of_the_first(engine, units, found_in, tmp_path):
    pytest.importorskip("netCDF4", reason="writes NetCDF-4")
    source, expected = months(tmp_path, engine, **units)
    collection = open_collection(source)
    assert collection.sample_axis == "time"
    along = collection.sample_coordinates()
    assert along["time"].attributes["units"] == found_in
    again = xarray.decode_cf(
        xarray.Dataset({name: ("time", c.values, dict(c.attributes)) for name, c in along.items()})
    )
    np.testing.assert_array_equal(again.time.values.astype("M8[us]"), expected.time.values.astype("M8[us]"))
    assert along["day"].values.tolist() == expected.day.values.tolist()
    np.testing.assert_array_equal(along["number"].values, expected.number)


def test_times_in_whole_numbers_stay_whole(tmp_path):
    """Hours of files counted in days are not days any more."""
    for number, (unit, time) in enumerate({"days": [0, 1], "hours": [30, 36]}.items()):
        x = xarray.Dataset(
            {"x": (("time", "y", "x"), values("f4", (2, 3, 3)))},
            {
                "time": (
                    "time",
                    np.array(time, "i4"),
                    {"units": f"{unit} since 2000-01-01", "long_name": f"file {number}"},
                )
            },
        )
        x.to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    time = open_collection(f"{tmp_path}/*.nc").sample_coordinates()["time"]
    assert time.values.tolist() == [0, 24, 30, 36]
    assert time.values.dtype.kind == "i"
    assert time.attributes == {"units": "hours since 2000-01-01"}  # the names of the two differ


def test_times_of_a_model_calendar_are_counted_in_it(tmp_path):
    pytest.importorskip("cftime")
    source, expected = months(tmp_path, "scipy", "noleap")
    time = open_collection(source).sample_coordinates()["time"]
    assert time.attributes == {"units": "days since 2001-01-27 00:00:00.000000", "calendar": "noleap"}
    again = xarray.decode_cf(xarray.Dataset({"time": ("time", time.values, dict(time.attributes))}))
    np.testing.assert_array_equal(again.time, expected.time)
    held = open_collection(expected).sample_coordinates()["time"]
    again = xarray.decode_cf(xarray.Dataset({"time": ("time", held.values, dict(held.attributes))}))
    np.testing.assert_array_equal(again.time, expected.time)


def test_times_that_cannot_be_converted_are_missed(tmp_path, caplog):
    for number, unit in enumerate(("days since 2000-01-01", "fortnights since 2000-01-01")):
        x = xarray.Dataset(
            {"x": (("time", "y", "x"), values("f4", (2, 3, 3)))}, {"time": ("time", [0, 1], {"units": unit})}
        )
        x.to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    assert open_collection(f"{tmp_path}/*.nc").sample_coordinates() == {}
    assert "time of" in caplog.text
    assert "is left out: the units of one file cannot be converted" in caplog.text


class Stored(FlatArray):
    """Numbers in memory as if they were stored, three rows to a chunk."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.chunk_shape = x, x.shape, x.dtype, (3, *x.shape[1:])

    def read_into(self, box: Box, out):
        out[...] = self.x[box]

    def states(self, *, now=False):
        return [State(0, "in memory", "as ever")]


CASES = {
    "unsigned bytes": ("i1", {"_Unsigned": "true", "_FillValue": np.int8(-1)}),
    "unsigned and scaled": ("i2", {"_Unsigned": "true", "scale_factor": 0.5, "_FillValue": np.int16(-2)}),
    "signed": ("u1", {"_Unsigned": "false", "add_offset": np.float32(1)}),
    "unsigned only": ("i2", {"_Unsigned": "true"}),
    "scale in float64": ("i2", {"scale_factor": 0.1}),
    "scale in float32": ("i4", {"scale_factor": np.float32(0.1)}),
    "offset in float32": ("i2", {"add_offset": np.float32(0.1)}),
    "unlike factors": ("i2", {"scale_factor": np.float32(0.1), "add_offset": 3.0}),
    "one in an array": ("i2", {"scale_factor": np.array([0.1], "f4"), "_FillValue": np.array([5], "i2")}),
    "wide": ("i8", {"scale_factor": 0.1, "add_offset": 3.0}),
    "fill of NaN": ("f4", {"_FillValue": np.float32(np.nan), "scale_factor": 0.1}),
    "fill of NaN in integers": ("i2", {"_FillValue": np.nan, "scale_factor": 0.1}),
    "floats scaled": ("f8", {"scale_factor": np.float32(0.1), "add_offset": np.float32(1)}),
    "half": ("f2", {"_FillValue": np.float16(1)}),
    "big-endian": (">i2", {"_FillValue": np.int16(7)}),
    "fill that cannot be": ("i1", {"_FillValue": np.int16(-32767)}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:.*(fill|_FillValue)")
def test_unpacked_values_are_those_of_xarray(case):
    dtype, attributes = CASES[case]
    x = values(dtype, (19, 4, 5))
    if x.dtype.kind == "f":
        x[3, 1:3] = 1
    x.reshape(-1)[:4] = np.array([-1, -2, 5, 7]).astype(x.dtype)
    variable = xarray.Variable(("n", "y", "x"), x, {
        name: value.item() if name == "_FillValue" and isinstance(value, np.ndarray) else value
        for name, value in attributes.items()
    })  # fmt: skip
    if isinstance(attributes.get("scale_factor"), np.ndarray):
        variable.attrs["scale_factor"] = attributes["scale_factor"][0]
    expected = xarray.conventions.decode_cf_variable("v", variable).values
    stored = cf.unpacked(Stored(x), attributes, "v")
    assert stored.decode_bytes > 0
    with np.errstate(all="raise"):
        assert_same_values(ArrayCollection(stored, source="v"), expected.astype(expected.dtype.newbyteorder("=")))


@pytest.mark.parametrize(
    ("attributes", "gone"),
    [
        ({"valid_range": np.array([-100, 100], "i2")}, lambda x: abs(x) > 100),
        ({"valid_min": np.int16(-100)}, lambda x: x < -100),
        ({"valid_max": np.int16(100), "scale_factor": 0.5}, lambda x: x > 100),
        (
            {"valid_max": np.int16(100), "missing_value": np.array([3, 5], "i2")},
            lambda x: (x > 100) | np.isin(x, (3, 5)),
        ),
        # In floats over packed integers, a range is one of values (NetCDF User's Guide).
        ({"valid_range": np.array([-1.0, 1.0]), "scale_factor": 0.01}, lambda x: abs(x * 0.01) > 1),
    ],
    ids=["range", "least", "scaled", "with fills", "of values"],
)
def test_outside_the_valid_range_is_missing(attributes, gone):
    x = values("i2", (19, 4, 5)) % 401 - 200
    unlimited = {
        name: value for name, value in attributes.items() if name not in ("valid_range", "valid_min", "valid_max")
    }
    variable = xarray.Variable(("n", "y", "x"), x, {k: v for k, v in unlimited.items() if k != "missing_value"})
    expected = xarray.conventions.decode_cf_variable("v", variable).values
    expected = expected.astype("f4") if expected.dtype == "i2" else expected
    expected[gone(x.astype("f8"))] = np.nan
    assert np.isnan(expected).any()
    assert_same_values(ArrayCollection(cf.unpacked(Stored(x), attributes, "v"), source="v"), expected)


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_a_bound_of_values_holds_the_number_that_it_names(kind):
    x = np.arange(1, 1000, dtype="i2").reshape(-1, 3)
    for low, high in ((1, 999), (3, 7), (57, 580)):
        kinds = np.dtype(kind).type
        limits = {"valid_min": kinds(low / 100), "valid_max": kinds(high / 100), "scale_factor": np.float64(0.01)}
        found = ArrayCollection(cf.unpacked(Stored(x), limits, "v"), source="v").read(slice(0, len(x)))
        np.testing.assert_array_equal(np.isfinite(found), (x >= low) & (x <= high))


@pytest.mark.parametrize("bound", [0.1, np.float64(0.1)], ids=["JSON", "double"])
def test_a_bound_in_float64_holds_the_float32_that_it_names(bound):
    x = np.array([[0.1, -0.1, 0.2]], "f4")
    attributes = {"valid_max": bound, "valid_min": -bound}
    found = ArrayCollection(cf.unpacked(Stored(x), attributes, "v"), source="v").read(slice(0, 1))
    np.testing.assert_array_equal(found, np.where(abs(x) < 0.15, x, np.nan))


def test_arrays_without_packing_stay_as_stored():
    stored = Stored(values("u1"))
    for attributes in (
        {}, {"units": "K"}, {"valid_range": np.array([0, 255], "u1")}, {"_Unsigned": "true"},
        {"_FillValue": np.nan}, {"valid_max": np.int16(300)},
    ):  # fmt: skip
        assert cf.unpacked(stored, attributes, "v") is stored


def test_fill_values_of_zarr_are_read():
    """xarray writes them into JSON as text."""
    x = values("f4")
    x[2, 3] = 4
    stored = cf.unpacked(Stored(x), {"_FillValue": "AAAAAAAAEEA="}, "v")  # 4.0, a double in base 64
    assert np.isnan(read_all(ArrayCollection(stored, source="v"))[2, 3]).all()


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [
        ({"scale_factor": "0.1 K"}, "v has scale_factor '0.1 K', which is not a number that can be used"),
        ({"scale_factor": 0.0}, "v has scale_factor 0.0"),
        ({"scale_factor": np.array([1.0, 2.0])}, r"v has scale_factor \[1.0, 2.0\]"),
        ({"add_offset": np.nan}, "v has add_offset nan"),
        ({"_FillValue": "none"}, "v has _FillValue 'none'"),
        ({"valid_range": np.array([1, 2, 3])}, r"v has valid_range \[1, 2, 3\], which is not two numbers"),
        ({"valid_min": "low"}, "v has valid_min 'low'"),
        ({"_Unsigned": "maybe"}, "v has _Unsigned 'maybe', neither 'true' nor 'false'"),
    ],
)
def test_wrong_attributes_are_named(attributes, complaint):
    with pytest.raises(SourceError, match=complaint) as caught:
        cf.unpacked(Stored(values("i2")), attributes, "v")
    assert "\n" not in str(caught.value)


def test_unpacking_is_cut_at_chunks_and_holds_what_it_says():
    stored = cf.unpacked(Stored(values("i2")), {"scale_factor": 0.5}, "v")
    assert stored.decode_bytes == values("i2").size * 3
    boxes = list(pieces_of((slice(2, 20), slice(1, 6)), (3, 4), 24))
    assert len(boxes) > 2
    covered = np.zeros((20, 6), int)
    for piece, inside in boxes:
        covered[piece] += 1
        assert [part.start for part in inside] == [piece[0].start - 2, piece[1].start - 1]
        touched = [-(-part.stop // side) - part.start // side for part, side in zip(piece, (3, 4), strict=True)]
        assert touched[0] * 3 * touched[1] * 4 <= largest_piece((20, 6), (3, 4), 24)
    assert (covered[2:20, 1:6] == 1).all()
    assert covered.sum() == 18 * 5


def h5(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            file[name] = data
    return path


def test_the_key_chooses(tmp_path):
    path = h5(tmp_path / "x.h5", a=values(), b=values("f4"), labels=np.arange(N), names=np.array([b"x", b"y"]))
    refused_as(path, r"holds 2 arrays, a \(23 x 6 x 5 uint8\), b .*.*key='a'")
    np.testing.assert_array_equal(read_all(open_collection(path, key="/b")), values("f4"))
    refused_as(path, r"has no array 'labls'; it holds a .*\. Did you mean 'labels'\?", error=RequestError, key="labls")


def test_a_group_may_be_the_key(tmp_path):
    path = h5(tmp_path / "x.h5", **{"one/x": values(), "one/t": np.arange(N), "two/x": values("f4")})
    np.testing.assert_array_equal(read_all(open_collection(path, key="one")), values())


def test_links_to_the_same_data_count_once(tmp_path):
    path = h5(tmp_path / "x.h5", x=values(), alias=h5py.SoftLink("/x"), gone=h5py.SoftLink("/y"))
    np.testing.assert_array_equal(read_all(open_collection(path)), values())
    np.testing.assert_array_equal(read_all(open_collection(path, key="alias")), values())
    refused_as(path, "dataset 'gone', is a link to '/y', which is not there", key="gone")


def test_what_describes_images_is_not_taken_for_them(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["sst"] = values("f4")
        file["sst"].attrs["coordinates"] = "lat lon"
        file["lat"], file["lon"] = np.zeros((Y, X)), np.zeros((Y, X))
        file["text"] = np.array([[b"a", b"b"]])
    assert open_collection(tmp_path / "x.h5").source.endswith("dataset 'sst'")


def test_dimension_scales_and_labels_name_the_axes(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("x", data=values())
        file["wavelength"] = np.arange(X) * 10.0
        file["wavelength"].make_scale("wavelength")
        file["wavelength"].attrs["units"] = "nm"
        data.dims[2].attach_scale(file["wavelength"])
        data.dims[0].label = "t"
    collection = open_collection(tmp_path / "x.h5")
    assert collection.axes == ("axis_1", "wavelength")
    coordinate = collection.coordinates["wavelength"]
    assert isinstance(coordinate, Coordinate)
    assert coordinate.attributes == {"units": "nm"}
    np.testing.assert_array_equal(coordinate.values, np.arange(X) * 10)


def test_held_datasets_are_unpacked_too(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("x", data=values("i2"))
        data.attrs["scale_factor"] = 0.5
        assert_same_values(open_collection(data), values("i2") * 0.5)


@pytest.mark.parametrize("dtype", ["c8", "S3", [("a", "u1"), ("b", "f4")], h5py.string_dtype()], ids=str)
def test_what_is_no_number_is_refused(tmp_path, dtype):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (3, 4), dtype, data=np.zeros((3, 4), dtype) if dtype != h5py.string_dtype() else None)
    refused_as(tmp_path / "x.h5", r"dataset 'x' has dtype .*, which is not a real number")


def test_broken_files_are_named(tmp_path):
    path = h5(tmp_path / "x.h5", x=values(shape=(2000, 6, 5)))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused_as(path, "cannot be opened as HDF5 .*truncated")
    path.write_bytes(b"no such thing" * 50)
    refused_as(path, "cannot be opened as HDF5")
    path.write_bytes(b"")
    refused_as(path, "cannot be opened as HDF5")


def test_broken_chunks_are_named(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=values(), chunks=(5, Y, X), compression="gzip", fletcher32=True)
        where = data.id.get_chunk_info(2).byte_offset
    damaged = bytearray(path.read_bytes())
    damaged[where + 40] ^= 255
    path.write_bytes(damaged)
    assert "dataset 'x'" in refused_as(path, r"cannot be read at \[0:23, 0:6, 0:5\] .*copy the file again")
    np.testing.assert_array_equal(open_collection(path).read(slice(0, 5)), values()[:5].reshape(5, -1))


def test_what_was_never_written_is_refused(tmp_path, caplog):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("plain", (N, Y, X), "f4")
        file.create_dataset("chunked", (N, Y, X), "f4", chunks=(5, Y, X))
        part = file.create_dataset("part", (N, Y, X), "f4", chunks=(5, Y, X))
        part[:10] = 1
    for name in ("plain", "chunked"):
        refused_as(tmp_path / "x.h5", f"dataset '{name}' has none of its values stored", key=name)
    with caplog.at_level(logging.WARNING):
        open_collection(tmp_path / "x.h5", key="part")
    assert "has 2 of 5 chunks stored; the others read as 0.0" in caplog.text


def test_missing_sources_are_named(tmp_path):
    SOURCES["hdf5, virtual"](tmp_path)
    os.remove(tmp_path / "part1.h5")
    refused_as(tmp_path / "all.h5", "part1.h5 is missing, which HDF5 reads as fill values")
    h5(tmp_path / "part1.h5", y=values())
    refused_as(tmp_path / "all.h5", "part1.h5 has no dataset 'x'")
    SOURCES["hdf5, linked"](tmp_path)
    os.remove(tmp_path / "data.h5")
    refused_as(
        tmp_path / "index.h5", "dataset 'images', is a link to '/x' in data.h5, which is not there", key="images"
    )


def test_values_in_raw_files_are_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (4, 5), "u1", external=[(str(tmp_path / "raw"), 0, 20)])
    refused_as(tmp_path / "x.h5", r"keeps its values in another file \(.*raw\).*h5repack -l CONTI")


def test_filters_of_hdf5plugin(tmp_path):
    hdf5plugin = pytest.importorskip("hdf5plugin", reason="has the filters")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=values(), chunks=(5, Y, X), **hdf5plugin.Zstd())
    np.testing.assert_array_equal(read_all(open_collection(tmp_path / "x.h5")), values())


def test_a_missing_filter_is_named_with_its_remedy(tmp_path, monkeypatch):
    """The filter is missing without hdf5plugin, and may be unknown to hdf5plugin."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=values(), chunks=(5, Y, X), compression="gzip")
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda number: False)
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    refused_as(tmp_path / "x.h5", r"filter 1 \(deflate\), which is not installed; pip install hdf5plugin")
    monkeypatch.setitem(sys.modules, "hdf5plugin", builtins)
    refused_as(tmp_path / "x.h5", r"filter 1 \(deflate\), which hdf5plugin does not know; .*h5repack -f GZIP=1")
    assert importlib.import_module("hdf5plugin") is builtins


def test_reading_holds_what_it_says(tmp_path):
    """Chunks of many samples: the memory estimate grows with the chunk, and stays put however long the file is."""
    estimates = []
    for n in (64, 640):
        with h5py.File(tmp_path / f"{n}.h5", "w") as file:
            file.create_dataset("x", (n, 256, 256), "u1", chunks=(16, 256, 256), compression="gzip", data=None)[0] = 1
            data = file["x"]
        with h5py.File(tmp_path / f"{n}.h5", "r") as file:
            estimates.append(Hdf5Array(file["x"], "x").decode_bytes)
    chunk = 16 * 256 * 256
    assert estimates[0] == estimates[1]
    assert 4 * chunk < estimates[0] < (8 + 2 * machine.cores()) * chunk + 4 * 2**20
    assert data is not None


def classic(tmp_path):
    path = tmp_path / "t.nc"
    climate().to_netcdf(path, engine="scipy", format="NETCDF3_CLASSIC")
    return path


def test_broken_classic_files_are_named(tmp_path):
    path = classic(tmp_path)
    whole = path.read_bytes()
    for length in (0, 3, 10, 40, 200, 400):
        path.write_bytes(whole[:length])
        refused_as(path, "broken NetCDF header|cannot be opened as HDF5")
    path.write_bytes(whole[:-500])
    refused_as(path, r"has \d+ bytes and its variable '.*' would end at byte \d+; it was cut short")
    for at in range(4, 400, 3):
        damaged = bytearray(whole)
        damaged[at] ^= 0x7F
        path.write_bytes(damaged)
        with contextlib.suppress(SourceError, RequestError):  # some bytes are only values
            read_all(open_collection(path))
    path.write_bytes(whole[:4] + b"\x7f" * 2000)
    refused_as(path, "broken NetCDF header")


def test_streamed_record_count_is_counted(tmp_path):
    path = tmp_path / "t.nc"
    climate().to_netcdf(path, engine="scipy", format="NETCDF3_CLASSIC", unlimited_dims=["time"])
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 4 + whole[8:])
    assert open_collection(path, key="t2m").n_samples == N


def test_variables_are_chosen_by_key(tmp_path):
    path = classic(tmp_path)
    refused_as(path, r"has no array 't2n'; it holds .*Did you mean 't2m'", error=RequestError, key="t2n")
    assert open_collection(path, key="time_bounds").shape == (N, 2)
