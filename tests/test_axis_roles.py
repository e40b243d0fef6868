"""Which axes make one sample, against `numpy.moveaxis` on arrays made here: by attributes, by names, by position."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import netCDF4
import numpy as np
import pytest
import tifffile
import xarray as xr
import yaml
import zarr
from contract import read_all
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import refused, succeeded

import streampca
from streampca.errors import ModelError, RequestError
from streampca.readers import open_collection

# What the fields call their axes, as their manuals have it.
GRIDS = [
    ("y", "x"), ("lat", "lon"), ("Latitude", "Longitude"), ("LAT", "LON"), ("rlat", "rlon"), ("row", "col"),
    ("south_north", "west_east"), ("south_north_stag", "west_east_stag"), ("eta_rho", "xi_rho"), ("eta_u", "xi_u"),
    ("eta_v", "xi_v"), ("eta_psi", "xi_psi"), ("nav_lat", "nav_lon"), ("j", "i"), ("nj", "ni"), ("yc", "xc"),
    ("northing", "easting"), ("projection_y_coordinate", "projection_x_coordinate"), ("height", "width"),
    ("grid_latitude", "grid_longitude"), ("row", "column"),
]  # fmt: skip
COUNTING = ["time", "Time", "t", "sample", "member", "realization", "ensemble", "number", "run", "position", "scene"]
OTHERS = ["level", "z", "band", "lev", "depth", "plev"]
DATES = {"units": "days since 2001-01-01"}
# Attributes that say what an axis is, whatever its name: of y, of x, and of samples.
SAYS = {
    "y": [
        {"axis": "Y"}, {"standard_name": "latitude"}, {"standard_name": "grid_latitude", "units": "degrees"},
        {"standard_name": "projection_y_coordinate", "units": "m"}, {"units": "degrees_north"}, {"units": "degreeN"},
    ],
    "x": [
        {"axis": "X"}, {"standard_name": "longitude"}, {"standard_name": "grid_longitude", "units": "degrees"},
        {"standard_name": "projection_x_coordinate", "units": "m"}, {"units": "degrees_east"}, {"units": "degree_E"},
    ],
    "samples": [
        DATES, {"axis": "T"}, {"standard_name": "time"}, {"standard_name": "realization"},
        {"units": "hours since 1850-01-01 00:00:00", "calendar": "noleap"},
    ],
    "other": [{}, {"axis": "Z", "positive": "up"}, {"standard_name": "air_pressure", "units": "hPa"}, {"units": "m"}],
}  # fmt: skip


class Axis(NamedTuple):
    """An axis as a file has it: what it is, its name and length, and what the file says of it, if anything."""

    kind: str
    name: str
    length: int
    says: Mapping[str, Any] | None


@st.composite
def fields(draw):
    """Axes of a field in any order, named as in some field, or of no telling name and with telling attributes."""
    names = dict(zip(("y", "x"), draw(st.sampled_from(GRIDS)), strict=True))
    kinds = ["y", "x", *["samples"] * draw(st.integers(0, 2)), *["other"] * draw(st.integers(0, 2))]
    if kinds == ["y", "x"]:
        kinds.append("samples")
    axes, taken = [], set(names.values())
    for number, kind in enumerate(draw(st.permutations(kinds))):
        by_name = draw(st.booleans())
        if kind in names:
            name = names[kind]
        else:
            pool = COUNTING if kind == "samples" else OTHERS
            name = draw(st.sampled_from([each for each in pool if each.lower() not in {one.lower() for one in taken}]))
        telling = None if by_name else draw(st.sampled_from(SAYS[kind]))
        axes.append(Axis(kind, name if by_name else f"d{number}", draw(st.integers(2, 4)), telling))
        taken.add(name)
    return axes if names["y"] != "height" else [each._replace(name=each.name) for each in _together(axes)]


def _together(axes):
    """A height is a picture's beside a width; where only one of the two is named, attributes tell both."""
    sides = [each for each in axes if each.kind in ("y", "x")]
    if all(each.says is None for each in sides):
        return axes
    return [
        each._replace(name=f"s{each.kind}", says={"axis": each.kind.upper()}) if each in sides else each
        for each in axes
    ]


def written(kind, folder, axes, values):
    """Write a field as one kind of file, with a coordinate for each axis of which something is said."""
    path = folder / f"x{kind}"
    about = {each.name: dict(each.says) for each in axes if each.says is not None}
    if kind in ("3.nc", "4.nc"):
        form = {"3.nc": "NETCDF3_CLASSIC", "4.nc": "NETCDF4"}[kind]
        with netCDF4.Dataset(path, "w", format=form) as file:
            for each in axes:
                file.createDimension(each.name, each.length)
            for name, says in about.items():
                coordinate = file.createVariable(name, "f8", (name,))
                coordinate.setncatts(says)
                coordinate[:] = np.arange(len(file.dimensions[name]))
            file.createVariable("v", "f8", [each.name for each in axes])[:] = values
        return path, {"key": "v"}
    if kind == ".zarr":
        group = zarr.open_group(path, mode="w", zarr_format=3)
        group.create_array("v", data=values, dimension_names=[each.name for each in axes])
        for each in axes:
            if each.says is not None:
                made = group.create_array(each.name, data=np.arange(float(each.length)), dimension_names=[each.name])
                made.attrs.update(each.says)
        return path, {"key": "v"}
    if kind == ".h5":
        with h5py.File(path, "w") as file:
            data = file.create_dataset("v", data=values)
            for axis, each in enumerate(axes):
                data.dims[axis].label = each.name
                if each.says is not None:
                    scale = file.create_dataset(each.name, data=np.arange(float(each.length)))
                    scale.attrs.update(each.says)
                    scale.make_scale(each.name)
                    data.dims[axis].attach_scale(scale)
        return path, {"key": "v"}
    coordinates = {name: (name, np.arange(float(len_of(name, axes))), says) for name, says in about.items()}
    array = xr.DataArray(values, coordinates, [each.name for each in axes])
    return (array if kind == "memory" else array.chunk(dict.fromkeys(array.dims, 2))), {}


def len_of(name, axes):
    return next(each.length for each in axes if each.name == name)


def expected(axes, values):
    """Move what counts samples to the front: all of such axes, else the first of the others."""
    outer = [at for at, each in enumerate(axes) if each.kind == "samples"]
    outer = outer or [at for at, each in enumerate(axes) if each.kind == "other"][:1]
    moved = np.moveaxis(values, outer, range(len(outer)))
    return moved.reshape(-1, *moved.shape[len(outer) :]), outer


def check_law(folder, axes, kind):
    values = np.arange(np.prod([each.length for each in axes]), dtype=float).reshape([each.length for each in axes])
    source, options = written(kind, folder, axes, values)
    found = open_collection(source, **options)
    samples, outer = expected(axes, values)
    np.testing.assert_array_equal(read_all(found), samples)
    assert found.axes == tuple(each.name for at, each in enumerate(axes) if at not in outer)
    kinds = [each.kind for each in axes]
    guessed = "samples" not in kinds and kinds.count("other") > 1
    assert (found.guessed_axes is not None) == guessed
    assert ("axes" in found.facts()) == guessed


KINDS = st.sampled_from(["3.nc", "4.nc", ".zarr", ".h5", "memory", "lazy"])


@settings(max_examples=50)
@given(axes=fields(), kind=KINDS)
def test_axes_are_what_attributes_and_names_say(tmp_path_factory, axes, kind):
    check_law(tmp_path_factory.mktemp("f"), axes, kind)


@pytest.mark.campaign
@settings(max_examples=500)
@given(axes=fields(), kind=KINDS)
def test_axes_are_what_attributes_and_names_say_at_length(tmp_path_factory, axes, kind):
    check_law(tmp_path_factory.mktemp("f"), axes, kind)


@settings(max_examples=10)
@given(order=st.permutations(range(4)), data=st.data())
def test_orders_and_names_do_not_change_the_answer(order, data):
    values = np.random.default_rng(0).normal(size=(6, 2, 3, 4))
    names = ("time", "level", *data.draw(st.sampled_from(GRIDS[:3])))
    field = xr.DataArray(values, dims=names)
    plain = streampca.fit(values, n_components=3)
    model = streampca.fit(field.transpose(*(names[at] for at in order)), n_components=3)
    np.testing.assert_allclose(model.explained_variance, plain.explained_variance, rtol=1e-10)
    dims = [name for name in names if name != "time"]
    components = model.to_xarray()["components"].transpose("component", *dims).values
    np.testing.assert_allclose(np.abs(components), np.abs(plain.components.reshape(3, 2, 3, 4)), atol=1e-8)


# -- files of which it is known how they were taken wrongly


@pytest.mark.parametrize(("dims", "attributes", "samples"), [
    (("lat", "lon", "time"), {}, ["time"]),
    (("rlat", "rlon", "time"), {"time": DATES}, ["time"]),
    (("time", "lev", "lat", "lon"), {}, ["time"]),
    (("time", "lev", "rlat", "rlon"), {}, ["time"]),
    (("bottom_top", "south_north", "west_east", "Time"), {}, ["Time"]),
    (("s_rho", "eta_rho", "xi_rho", "ocean_time"), {"ocean_time": DATES}, ["ocean_time"]),
    (("deptht", "y", "x", "time_counter"), {"time_counter": DATES}, ["time_counter"]),
    (("member", "y", "x", "time"), {}, ["member", "time"]),
    (("height", "lat", "lon"), {}, ["height"]),
    (("height", "width", "number"), {}, ["number"]),
    (("lat", "lon", "a"), {"a": {"axis": "T"}}, ["a"]),
    (("stokes", "freq", "y", "x"), {}, ["freq"]),  # of the others, one that has several entries
    (("t", "c", "z", "y", "x"), {}, ["t"]),
    (("c", "z", "y", "x"), {}, ["z"]),
    (("x", "feature"), {}, ["x"]),  # a table, in which nothing else can count
    (("feature", "y"), {}, ["y"]),
    (("time", "mode"), {}, ["time"]),
    (("level", "component"), {}, ["level"]),
    (("component", "y", "x"), {}, ["component"]),  # pictures
], ids=lambda value: "-".join(value) if isinstance(value, tuple) else "")  # fmt: skip
def test_fields_known_to_be_taken_wrongly(tmp_path, dims, attributes, samples):
    lengths = {"stokes": 1}
    axes = [Axis("", name, lengths.get(name, 3), attributes.get(name)) for name in dims]
    values = np.random.default_rng(0).normal(size=[each.length for each in axes])
    for kind in ("3.nc", "4.nc", ".zarr", "memory"):
        source, options = written(kind, tmp_path, axes, values)
        found = open_collection(source, **options)
        outer = [dims.index(name) for name in samples]
        moved = np.moveaxis(values, outer, range(len(outer)))
        np.testing.assert_array_equal(read_all(found), moved.reshape(-1, *moved.shape[len(outer) :]))


def test_dates_beside_an_axis_and_grids_over_two_tell_too(tmp_path):
    """Dates along an axis of another name count samples; latitudes over two axes make these a picture's."""
    values = np.random.default_rng(0).normal(size=(3, 4, 5, 2))
    grid = np.ones((3, 4))
    field = xr.DataArray(
        values,
        {"north": (("a", "b"), grid, {"units": "degrees_north"}), "when": ("e", np.arange(2.0), DATES)},
        ("a", "b", "k", "e"),
        name="v",
    )
    field.to_dataset().to_netcdf(tmp_path / "x.nc", engine="scipy")
    for source in (tmp_path / "x.nc", field, xr.decode_cf(field.to_dataset())["v"]):
        assert open_collection(source).axes == ("a", "b", "k")
    undated = field.drop_vars("when").isel(e=0)
    assert open_collection(undated).axes == ("a", "b")


def test_pages_of_a_tiff_stay_samples(tmp_path):
    x = np.random.default_rng(0).integers(0, 9, (2, 3, 2, 5, 6), np.uint8)
    tifffile.imwrite(tmp_path / "x.ome.tif", x, metadata={"axes": "TZCYX"})
    found = open_collection(tmp_path / "x.ome.tif")
    assert found.axes == ("c", "y", "x")
    assert found.n_samples == 6


# -- axistags


def tagged(path, keys, values, text=None):
    tags = {"axes": [{"key": key, "typeFlags": 2, "resolution": 0, "description": ""} for key in keys]}
    with h5py.File(path, "w") as file:
        file.create_dataset("volume/data", data=values).attrs["axistags"] = json.dumps(tags) if text is None else text


@pytest.mark.parametrize(("keys", "samples"), [("txyc", "t"), ("zyxc", "z"), ("xyzt", "t"), ("cyxt", "t")])
def test_axistags_name_the_axes(tmp_path, keys, samples):
    values = np.random.default_rng(0).normal(size=(4, 5, 6, 3))
    tagged(tmp_path / "x.h5", keys, values)
    found = open_collection(tmp_path / "x.h5")
    assert found.axes == tuple(keys.replace(samples, ""))
    np.testing.assert_array_equal(read_all(found), np.moveaxis(values, keys.index(samples), 0))


def test_one_tagged_image_is_no_collection(tmp_path):
    tagged(tmp_path / "x.h5", "yxc", np.zeros((73, 20, 3)))
    with pytest.raises(RequestError, match=r"is a single image \(axes y, x, c\)"):
        open_collection(tmp_path / "x.h5")
    assert open_collection(tmp_path / "x.h5", patches=5).sample_shape == (5, 5, 3)


@pytest.mark.parametrize("text", [
    "{", "[]", "{}", '{"axes": 3}', '{"axes": ["t"]}', '{"axes": [{"key": 1}, {"key": 2}, {"key": 3}]}',
    '{"axes": [{"key": "t"}, {"key": "y"}]}', "[" * 5000, " " * 2**15 + "{}", np.arange(3.0),
    '{"axes": [{"key": "t"}, {"key": ""}, {"key": "a\\u0000"}]}',
], ids=lambda text: str(text)[:20].strip())  # fmt: skip
def test_broken_axistags_are_left_out_and_said(tmp_path, caplog, text):
    values = np.random.default_rng(0).normal(size=(4, 5, 6))
    tagged(tmp_path / "x.h5", "", values, text)
    with caplog.at_level(logging.WARNING, "streampca"):
        found = open_collection(tmp_path / "x.h5")
    assert found.axes is None
    np.testing.assert_array_equal(read_all(found), values)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/x.h5, dataset 'volume/data' has axistags that do not name its 3 axes; they are left out, and axes "
        "are taken as if without names."
    ]


# -- what position decided is said, kept and compared

LINE = "samples are taken along axis 0, by its position alone; sample_axes names the axes of one sample, here 1,2"


@pytest.fixture
def stack(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).normal(size=(6, 4, 5)))
    return Path("x.npy")


def test_what_position_decided_is_said_once(stack, caplog):
    line = LINE.replace("sample_axes", "--sample-axes")
    assert line in " ".join(succeeded("info", stack).split())
    assert line in " ".join(succeeded("plan", stack, "-k", 2).split())
    assert str(streampca.plan(stack, n_components=2)).replace("\n", " ").count("by its position alone") == 1
    with caplog.at_level(logging.INFO, "streampca"):
        model = streampca.fit(stack, n_components=2)
    assert [record.getMessage() for record in caplog.records] == [LINE]
    assert model.provenance["opened"]["options"] == {"sample_axes": [1, 2]}
    caplog.clear()
    with caplog.at_level(logging.INFO, "streampca"):
        streampca.fit(stack, n_components=2, sample_axes=(1, 2))
    assert caplog.records == []
    assert "position" not in str(streampca.plan(stack, n_components=2, sample_axes=(1, 2)))
    assert "position" not in str(streampca.plan(shape="100x4x5", n_components=2))


def test_the_command_says_it_and_writes_it(stack):
    printed = yaml.safe_load(succeeded("fit", stack, "-k", 2, "-o", "m.zarr", "--print-config"))
    assert printed["collection"] == {"source": "x.npy", "sample_axes": [1, 2]}
    Path("run.yaml").write_text(yaml.safe_dump(printed))
    succeeded("run", "run.yaml")
    assert streampca.load("m.zarr").provenance["opened"]["options"] == {"sample_axes": [1, 2]}
    array = xr.DataArray(np.zeros((3, 4, 5)), dims=("time", "y", "x"), name="v")
    array.to_netcdf("v.nc", engine="scipy")
    named = yaml.safe_load(succeeded("fit", "v.nc", "-k", 2, "-o", "n.zarr", "--print-config"))
    assert named["collection"] == {"source": "v.nc"}


def test_a_model_refuses_another_layout_by_name(tmp_path):
    """Of axes that only position tells apart, and of a y that lies where x did; the remedy works."""
    values = np.random.default_rng(0).normal(size=(5, 5, 5))
    model = streampca.fit(xr.DataArray(values, dims=("a", "b", "k")), n_components=2)
    turned = xr.DataArray(values, dims=("a", "b", "k")).transpose("b", "a", "k")
    turned.to_dataset(name="v").to_netcdf(tmp_path / "x.nc", engine="scipy")
    with pytest.raises(ModelError, match=r"have axes a, k \(samples are counted along b\).*fitted on b, k \(along a\)"):
        model.transform(tmp_path / "x.nc")
    refused("transform", saved(model, tmp_path), tmp_path / "x.nc", "-o", tmp_path / "s.zarr")
    again = open_collection(tmp_path / "x.nc", sample_axes=("b", "k"))
    np.testing.assert_allclose(model.transform(again), model.transform(values), atol=1e-12)
    model.transform(tmp_path / "x.nc", coordinates="ignore")
    across = xr.DataArray(values, dims=("time", "lat", "lon"))
    model = streampca.fit(across, n_components=2)
    other = across.rename(lat="x", lon="y")
    with pytest.raises(ModelError, match=r"axes x, y .* fitted on lat, lon"):
        model.transform(open_collection(other))
    model.transform(open_collection(across.rename(lat="y", lon="x")))


def test_a_model_of_axes_given_by_number_opens_arrays_by_them(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((4, 4, 4)))
    first = streampca.fit(tmp_path / "x.npy", n_components=2)
    np.testing.assert_array_equal(first.transform(tmp_path / "x.npy"), first.transform(np.load(tmp_path / "x.npy")))
    for axes in ((0, 1), (2, 1)):
        given = {"sample_axes": axes}
        model = streampca.fit(tmp_path / "x.npy", n_components=2, **given)
        with pytest.raises(ModelError, match=r"taken along axis 0 by its position alone.*sample_axes=\(\d, \d\)"):
            model.transform(open_collection(tmp_path / "x.npy"))
        expected = np.asarray(model.transform(open_collection(tmp_path / "x.npy", **given)))
        np.testing.assert_array_equal(model.transform(tmp_path / "x.npy"), expected)
        assert model.transform(open_collection(tmp_path / "x.npy", sample_axes=(1, 2))).shape == (4, 2)
        scores = tmp_path / f"scores{axes[0]}.npy"
        succeeded("transform", saved(model, tmp_path / str(axes)), tmp_path / "x.npy", "-o", scores)
        np.testing.assert_array_equal(np.load(scores), expected)


def saved(model, folder):
    model.save(folder / "m.zarr")
    return folder / "m.zarr"


def test_a_data_array_of_other_names_is_told_apart_by_what_its_axes_are():
    field = xr.DataArray(np.random.default_rng(0).normal(size=(4, 4, 4)), dims=("time", "lat", "lon"))
    model = streampca.fit(field, n_components=2)
    other = field.rename(lat="latitude", lon="longitude", time="date").transpose("longitude", "latitude", "date")
    np.testing.assert_allclose(model.transform(other), model.transform(field), atol=1e-12)


def test_pictures_of_x_and_y_are_drawn_upright(tmp_path):
    from streampca.models.sample_images import sample_view

    assert sample_view((7, 5, 3), ("x", "y", "c"), {}).swapped
    assert not sample_view((7, 5, 3), ("y", "x", "c"), {}).swapped
