"""Entries taken by the values of their coordinates, in Python, on the command line and in run files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xarray
from shell import refused, succeeded

from streampca.cli.config import load_run
from streampca.cli.options import run_of
from streampca.cli.run_arguments import open_run
from streampca.errors import EmptySelectionError, RequestError
from streampca.readers import open_collection

LEVELS = [1000.0, 850.0, 500.0, 200.0]


def field(start="1990-01", stop="1996-01", calendar=None):
    """Monthly fields on levels, from north to south."""
    times = np.arange(start, stop, dtype="datetime64[M]").astype("datetime64[ns]")
    if calendar is not None:
        years, months = int(start[:4]), 12 * (int(stop[:4]) - int(start[:4]))
        times = xarray.date_range(f"{years}-01-01", periods=months, freq="MS", calendar=calendar, use_cftime=True)
    first = (int(start[:4]) - 1990) * 12
    values = np.arange(60 * first, 60 * (first + len(times)), dtype=np.float32).reshape(len(times), 4, 5, 3)
    coords = {"time": times, "level": np.float32(LEVELS), "lat": [60.0, 45, 30, 15, 0], "lon": [0.0, 1, 2],
              "name": ("lon", ["a", "b", "c"])}  # fmt: skip
    return xarray.DataArray(values, dims=("time", "level", "lat", "lon"), coords=coords, name="z")


def taken(source, **sel):
    return np.asarray(open_collection(source, sel=sel))


@pytest.mark.parametrize(("sel", "like"), [
    ({"level": 500}, {"level": 500}),
    ({"level": 500, "lat": slice(50, 10)}, {"level": 500, "lat": slice(50, 10)}),
    ({"level": 500, "lat": slice(10, 50)}, {"level": 500, "lat": slice(50, 10)}),  # in the order of either
    ({"level": 500, "lat": slice(30, None)}, {"level": 500, "lat": slice(None, 30)}),
    ({"level": 500, "time": slice("1991", "1992")}, {"level": 500, "time": slice("1991", "1992")}),
    ({"level": 500, "time": slice("1991-03", "1992-02-01")}, {"level": 500, "time": slice("1991-03", "1992-02-01")}),
    ({"level": 500, "time": slice(None, 1990)}, {"level": 500, "time": slice(None, "1990")}),
    ({"level": 500, "time": 1994}, {"level": 500, "time": "1994"}),
    ({"level": 500, "time": "1994-05-01T00:00"}, {"level": 500, "time": slice("1994-05", "1994-05")}),
])  # fmt: skip
def test_values_are_those_xarray_takes(sel, like):
    x = field()
    expected = x.sel(**like)
    found = taken(x, **sel)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected.values)


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_dates_of_other_calendars(calendar):
    x = field(calendar=calendar)
    found = taken(x, level=500, time=slice("1991-02", "1992"))
    np.testing.assert_array_equal(found, x.sel(level=500, time=slice("1991-02", "1992")).values)
    with pytest.raises(EmptySelectionError, match=r"in 2005; they go from 1990-01-01 to 1995-12-01\."):
        taken(x, time=2005)


def test_texts_and_other_coordinates():
    x = field().sel(level=500).drop_vars("level").transpose("lon", "time", "lat")
    collection = open_collection(x, sample_axes=("lat",), sel={"name": "b"})
    np.testing.assert_array_equal(np.asarray(collection), x.values[1])
    several = open_collection(x, sample_axes=("lat",), sel={"name": slice("b", "c")})
    assert several.n_samples == 2 * x.sizes["time"]


def test_joined_files_without_any_are_left_out(tmp_path):
    for year in range(1990, 1994):
        field(f"{year}-01", f"{year + 1}-01").to_netcdf(tmp_path / f"{year}.nc", engine="netcdf4")
    whole = field("1990-01", "1994-01").sel(level=500, time=slice("1991-07", "1992"))
    sel = {"level": 500, "time": slice("1991-07", 1992)}
    collection = open_collection(f"{tmp_path}/*.nc", key="z", sel=sel)
    np.testing.assert_array_equal(np.asarray(collection), whole.values)
    assert collection.sample_coordinates()["time"].values.shape == (18,)
    assert collection.skipped == ()
    collection.states(now=True)
    with pytest.raises(EmptySelectionError, match=r"1990.nc.* has no values in 2001; they go from"):
        open_collection(f"{tmp_path}/*.nc", key="z", sel={"level": 500, "time": 2001})
    with pytest.raises(RequestError, match=r"has no value 505; the nearest is 500.0"):
        open_collection(f"{tmp_path}/*.nc", key="z", sel={"level": 505})


@pytest.mark.parametrize(("sel", "complaint"), [
    ({"height": 3}, r"no values along an axis 'height' .*time, level, lat, lon"),
    ({"levl": 3}, r"Did you mean 'level'\?"),
    ({"level": "high"}, r"level of .* has numbers, and 'high' is none"),
    ({"time": "spring"}, r"time of .* has dates, and 'spring' is none .* such as 1990, 1990-05"),
    ({"time": "1990-13"}, r"'1990-13' is none of its calendar"),
    ({"time": 2005}, r"has no values in 2005; they go from 1990-01-01 to 1995-12-01\."),
    ({"level": slice(1000, 200, 2)}, r"without a step"),
    ({"lat": slice(70, 80)}, r"lat of .* has no values from 70 to 80; they go from 60.0 to 0.0"),
])  # fmt: skip
def test_refusals_name_what_there_is(sel, complaint):
    with pytest.raises(RequestError, match=complaint):
        open_collection(field(), sel=sel)


def test_an_axis_is_taken_once():
    with pytest.raises(RequestError, match=r"axis 'level' of .* is in select and in sel"):
        open_collection(field(), select={1: 0}, sel={"level": 500})


def test_names_that_are_missing_are_refused(tmp_path):
    x = field().sel(level=500).drop_vars("level").transpose("lon", "time", "lat")
    with pytest.raises(RequestError, match=r"name of .* has no value 'd'; it has 'a', 'b', 'c'"):
        open_collection(x, sample_axes=("lat",), sel={"name": "d"})
    np.save(tmp_path / "x.npy", x.values)
    with pytest.raises(RequestError, match=r"no values along an axis 'level' .*it has none; .*select=\{0: 0\}"):
        open_collection(tmp_path / "x.npy", sel={"level": 500})
    with pytest.raises(RequestError, match="sel was given for"):
        open_collection(open_collection(x, sample_axes=("lat",)), sel={"name": "a"})


def test_words_and_run_files_say_the_same(tmp_path):
    words = ("level=500", "name=b", "time=1990-05-01T12:00:1992", "lat=30:", "lon=-1:2.5")
    run = run_of({"collection.source": ("x.nc",), "collection.sel": words})
    assert run.collection.sel == {
        "level": 500, "name": "b", "time": ("1990-05-01T12:00", 1992), "lat": (30, None), "lon": (-1, 2.5)
    }  # fmt: skip
    field().to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    text = "collection: {source: x.nc, key: z, sel: {level: 500, time: [1991-01-01, 1991-12-31], lat: [0, 30]}}\n"
    (tmp_path / "run.yaml").write_text(text + "output: {model: m.zarr}\n")
    run = load_run(tmp_path / "run.yaml")
    found = open_run(replace(run.collection, source=str(tmp_path / "x.nc")))
    assert found.shape == (12, 3, 3)
    again = open_collection(found.opened.source, **found.opened.from_json(found.opened.to_json(), "m").options)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(found))


def test_the_command_line_takes_values(tmp_path):
    field().to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    said = succeeded("info", tmp_path / "x.nc", "--key", "z", "--sel", "level=500", "--sel", "time=1991:1992")
    assert "24 of 5 x 3 (lat, lon)" in said
    line = refused("info", tmp_path / "x.nc", "--key", "z", "--sel", "level", code=2)
    assert "--sel 'level' is not AXIS=VALUE" in line
