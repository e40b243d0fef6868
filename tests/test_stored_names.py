"""Axes and coordinates that are called like arrays of ours, in every output, with xarray as the oracle."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import succeeded

import streampca
from streampca.errors import ModelError
from streampca.models.registry import MODEL_KINDS, model_class
from streampca.models.store import names_of_arrays
from streampca.readers import open_collection
from streampca.storage.stored_names import stored_names

RNG = np.random.default_rng(3)
SHAPE = (12, 4, 3)
VALUES = RNG.normal(size=SHAPE)
OURS = sorted(
    {"images", "scores", "sample", "component_1"}.union(*(names_of_arrays(model_class(kind)) for kind in MODEL_KINDS))
)
CLASSES = np.arange(12) % 3
GRAPH = {"n_neighbors": 5}
KINDS = {
    "pca": (streampca.PCA(2), None),
    "standardized": (streampca.PCA(2), None),
    "kernel-pca": (streampca.KernelPCA(2, kernel="rbf"), None),
    "supervised-pca": (streampca.SupervisedPCA(2), CLASSES),
    "fisher-discriminant": (streampca.FisherDiscriminant(2, shrinkage=0.5), CLASSES),
    "classical-mds": (streampca.ClassicalMDS(2), None),
    "isomap": (streampca.Isomap(2, **GRAPH), None),
    "rotated-pca": (streampca.PCA(3), None),
    "bootstrap": (streampca.PCA(2), None),
}


class Case(NamedTuple):
    """A field: the names of its axes, which have coordinates, other coordinates with their axes; what is made of it."""

    dims: tuple[str, ...]
    along: tuple[bool, ...]
    beside: dict[str, tuple[int, ...]]
    kind: str = "pca"
    output: str = "copy"
    is_file: bool = False


@st.composite
def cases(draw):
    """Names of ours in one or two roles: an axis, with a coordinate or without, or a coordinate along others."""
    roles = [(0,), (1,), (2,), (0, 0), (1, 1), (1, 2), (2, 2)]  # one number: an axis; two: a coordinate along them
    chosen = draw(st.lists(st.sampled_from(roles), min_size=1, max_size=2, unique=True))
    names = draw(st.lists(st.sampled_from(OURS), min_size=len(chosen), max_size=len(chosen), unique=True))
    dims, beside = ["time", "y", "x"], {}
    for role, name in zip(chosen, names, strict=True):
        if len(role) == 1:
            dims[role[0]] = name
        else:
            beside[name] = tuple(dict.fromkeys(role))
    if draw(st.booleans()):  # the name that ours would get
        beside[f"{names[0]}_"] = (draw(st.integers(0, 2)),)
    along = tuple(draw(st.booleans()) for _ in dims)
    kind, output = (
        draw(st.sampled_from([*names])) for names in (KINDS, ("copy", "model", "model", "scores", "images"))
    )
    return Case(tuple(dims), along, beside, kind, output, draw(st.integers(0, 9)) == 0)


def field(case):
    """Return the field as a Dataset; every coordinate has values of its own."""
    coordinates: dict[str, Any] = {}
    for number, (name, has) in enumerate(zip(case.dims, case.along, strict=True)):
        if has:
            coordinates[name] = (name, 10 * number + np.arange(SHAPE[number]) * 1.5)
    for number, (name, axes) in enumerate(case.beside.items(), 4):
        shape = tuple(SHAPE[axis] for axis in axes)
        coordinates[name] = (
            tuple(case.dims[axis] for axis in axes),
            10.0 * number + np.arange(np.prod(shape)).reshape(shape),
        )
    return xr.Dataset({"v": (case.dims, VALUES)}, coordinates)


def check_group(path, array, expected, fields, axes):
    """An array of ours in a group, and the coordinates along some axes of the field, as xarray reads them."""
    with xr.open_zarr(path) as found:
        found = found.load()
    assert found[array].shape == np.shape(expected)
    np.testing.assert_array_equal(found[array], expected)
    dims = {fields.dims[axis] for axis in axes}
    for name, coordinate in fields.data.coords.items():
        if set(coordinate.dims) <= dims:
            same = [
                other for other in found.variables
                if str(other).rstrip("_") == str(name).rstrip("_") and np.array_equal(found[other], coordinate)
            ]  # fmt: skip
            assert len(same) == 1, (name, found)
    return found


class Fields(NamedTuple):
    """A field: as a Dataset, its file or collection, what opens a file, and as it is read."""

    data: xr.Dataset
    path: Any
    how: dict[str, Any]
    read: Any

    @property
    def dims(self):
        return self.data["v"].dims


def check_read(path, fields, key=None):
    """What was written is read with the names of the field."""
    again = open_collection(path, key=key)
    assert again.axes == fields.read.axes
    assert again.sample_axis == fields.read.sample_axis
    check_coordinates(again.coordinates, fields.read.coordinates)
    check_coordinates(again.sample_coordinates(), fields.read.sample_coordinates())
    return again


def check_coordinates(found, expected):
    assert found.keys() == expected.keys()
    for name, coordinate in expected.items():
        np.testing.assert_array_equal(found[name].values, coordinate.values)
        assert found[name].along(name) == coordinate.along(name)


def fitted(fields, kind):
    description, target = KINDS[kind]
    preparation = streampca.Preparation(standardize=True) if kind == "standardized" else None
    model = streampca.fit(fields.path, description, target=target, preparation=preparation, **fields.how)
    if kind == "rotated-pca":
        return model.rotate(2)
    return streampca.bootstrap(model, model.transform(fields.path), n_replicates=3) if kind == "bootstrap" else model


def check_law(folder, case):
    """Values are those of the field, coordinates have their values in the output, and are read by their own names."""
    data = field(case)
    how, source = {"sample_axes": case.dims[1:]}, data["v"]
    if case.is_file:
        how, source = how | {"key": "v"}, folder / "x.nc"
        data.to_netcdf(source)
    read = open_collection(source, **how)
    fields = Fields(data, source, how, read) if case.is_file else Fields(data, read, {}, read)
    assert read.axes == case.dims[1:]
    OUTPUTS[case.output](folder, fields, case.kind)


def check_copy(folder, fields, kind):
    streampca.copy(fields.path, output=folder / "c.zarr", **fields.how)
    check_group(folder / "c.zarr", "images", VALUES, fields, (0, 1, 2))
    np.testing.assert_array_equal(np.asarray(check_read(folder / "c.zarr", fields)), VALUES)


def check_scores(folder, fields, kind):
    model = fitted(fields, kind)
    scores = np.asarray(model.transform(fields.path))
    model.write_scores(fields.path, folder / "s.zarr")
    check_group(folder / "s.zarr", "scores", scores, fields, (0,))
    stored = open_collection(folder / "s.zarr")
    np.testing.assert_array_equal(np.asarray(stored), scores)
    assert stored.sample_axis == fields.dims[0]
    check_coordinates(stored.sample_coordinates(), fields.read.sample_coordinates())
    named = model.to_xarray(scores, fields.path)
    np.testing.assert_array_equal(named, scores)
    assert {"component", *fields.read.sample_coordinates()} <= {str(name).rstrip("_") for name in named.coords} | {
        *map(str, named.coords)
    }


def check_images(folder, fields, kind):
    """Images of samples, and of their scores."""
    model = fitted(fields, "standardized" if kind == "standardized" else "pca")
    model.write_scores(fields.path, folder / "s.zarr")
    for number, source in enumerate((fields.path, folder / "s.zarr")):
        output = folder / f"i{number}.zarr"
        model.write_reconstruction(source, output)
        for axes in ((0,), (1, 2)):
            check_group(output, "images", np.asarray(model.reconstruct(fields.path)), fields, axes)
        check_read(output, fields)


def check_model(folder, fields, kind):
    model = fitted(fields, kind)
    model.save(folder / "m.zarr")
    loaded = streampca.load(folder / "m.zarr")
    assert loaded.sample_dims == model.sample_dims
    check_coordinates(loaded.coordinates, model.coordinates)
    if model.kind != "kernel-pca":  # whose samples are mapped to features of a kernel
        assert model.sample_dims == fields.read.axes
        check_coordinates(model.coordinates, fields.read.coordinates)
        found = check_group(folder / "m.zarr", "mean", np.asarray(model.basis.mean), fields, (1, 2))
        np.testing.assert_array_equal(found["components"], np.asarray(model.basis.components))
        assert found["components"].dims[0] == "component"
    for name in model.own_arrays():
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    np.testing.assert_array_equal(loaded.transform(fields.path), model.transform(fields.path))


OUTPUTS = {"copy": check_copy, "model": check_model, "scores": check_scores, "images": check_images}


@settings(max_examples=25)
@given(case=cases())
def test_every_name_of_ours_in_every_role_is_kept(tmp_path_factory, case):
    check_law(tmp_path_factory.mktemp("n"), case)


@pytest.mark.campaign
@settings(max_examples=500)
@given(case=cases())
def test_every_name_of_ours_in_every_role_is_kept_at_length(tmp_path_factory, case):
    check_law(tmp_path_factory.mktemp("n"), case)


def test_it_is_said_which_name_is_stored_instead(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    axes = ("time", "images", "x")
    field(Case(axes, (True, True, False), {})).to_netcdf("x.nc")
    line = "'images' is an axis or coordinate and also an array of c.zarr; the former is called 'images_' there."
    succeeded("copy", "x.nc", "--sample-axes", "images,x", "-o", "c.zarr")
    streampca.copy("x.nc", output="d.zarr", sample_axes=("images", "x"))
    assert caplog.messages == [line, line.replace("c.zarr", "d.zarr")]


def test_samples_with_an_axis_called_like_that_of_the_result_are_refused_and_the_remedy_works():
    model = streampca.fit(VALUES, n_components=2)
    array = xr.DataArray(VALUES, dims=("component", "y", "x"))
    with pytest.raises(ModelError, match=r"rename it, such as array\.rename\({'component': 'component_'}\)"):
        model.transform(array)
    renamed = array.rename({"component": "component_"})
    np.testing.assert_array_equal(model.transform(renamed), model.transform(VALUES))


def test_tables_keep_coordinates_called_like_scores(tmp_path):
    pytest.importorskip("pyarrow")
    data = field(Case(("time", "y", "x"), (True, True, True), {"component_1": (0,), "sample": (0,)}))
    data.to_netcdf(tmp_path / "x.nc")
    model = streampca.fit(tmp_path / "x.nc", n_components=2, key="v")
    model.write_scores(tmp_path / "x.nc", tmp_path / "s.parquet")
    table = pd.read_parquet(tmp_path / "s.parquet")
    np.testing.assert_array_equal(table["component_1_"], data["component_1"])
    np.testing.assert_array_equal(table["component_1"], np.asarray(model.transform(tmp_path / "x.nc"))[:, 0])
    np.testing.assert_array_equal(table["sample"], data["sample"])


def test_pictures_put_together_of_windows_and_intervals_keep_them(tmp_path):
    picture = xr.DataArray(RNG.normal(size=(12, 9)), {"images": np.arange(12.0)}, ("images", "x"))
    model = streampca.fit(picture, n_components=2, patches=3)
    model.write_reconstruction(picture, tmp_path / "i.zarr", patches=3, whole=True)
    with xr.open_zarr(tmp_path / "i.zarr") as found:
        assert found["images"].dims == ("images_", "x")
        np.testing.assert_array_equal(found["images_"], picture["images"])
    assert open_collection(tmp_path / "i.zarr", sample_axes=("x",)).sample_axis == "images"
    data = field(Case(("time", "component", "x"), (True, True, True), {"angle": (1,), "component_error": (1, 2)}))
    model = streampca.fit(data["v"], n_components=2, sample_axes=("component", "x"))
    found = streampca.bootstrap(
        model, model.transform(open_collection(data["v"], like=model)), n_replicates=3
    ).intervals()
    np.testing.assert_array_equal(found["angle_"], data["angle"])
    np.testing.assert_array_equal(found["component_error_"], data["component_error"])
    assert found["component_error"].dims == ("component", "component_", "x")
    streampca.export_components(model, tmp_path / "c.tif")


def test_names_are_free():
    assert stored_names(["a", "b", "b_"], {"b", "b__"}) == {"b": "b___"}
    assert stored_names(["b"], {"b"}, ["b_"]) == {"b": "b__"}
    assert stored_names(["a"], {"b"}) == {}
