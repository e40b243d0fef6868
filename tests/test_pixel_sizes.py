"""Sizes of pixels and names of channels, from the files of microscopes to models, and from these to other programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
import xarray
import zarr
from pyarrow import parquet

import streampca
from streampca.errors import ModelError, RequestError, SourceError
from streampca.models.export import export_components
from streampca.storage import outputs

SIZES = {"y": 0.5, "x": 0.65}
NAMES = ["DAPI", "GFP", "RFP"]


def frames(*shape):
    return np.random.default_rng(0).integers(0, 255, (6, *shape), np.uint16)


def write_ome(path, x, axes, **more):
    about = {"axes": axes, "PhysicalSizeX": 0.65, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.5,
             "PhysicalSizeYUnit": "µm", "TimeIncrement": 2.0}  # fmt: skip
    tifffile.imwrite(path, x, photometric="minisblack", metadata=about | more)
    return str(path)


def write_imagej(path, x, axes, **more):
    about = {"axes": axes, "unit": "\\u00B5m", "finterval": 2.0, "spacing": 3.0}
    tifffile.imwrite(path, x, imagej=True, resolution=(1 / 0.65, 2.0), metadata=about | more)
    return str(path)


@pytest.fixture
def channels(tmp_path):
    """A movie of three named channels."""
    return write_ome(tmp_path / "cells.ome.tif", frames(3, 9, 7), "TCYX", Channel={"Name": NAMES})


def steps(coordinates):
    """Distance between neighbours in micrometers, by axis."""
    to = {"nanometer": 1e-3, "micrometer": 1.0}
    return {
        name: np.diff(each.values).mean() * to[each.attributes["units"]]
        for name, each in coordinates.items()
        if each.values.dtype.kind == "f"
    }


@pytest.mark.parametrize("size", [{}, {"PhysicalSizeY": 500, "PhysicalSizeYUnit": "nm"}])
def test_ome_tiff_keeps_sizes_times_and_names(tmp_path, size):
    names = {"Channel": {"Name": NAMES}}
    collection = streampca.open_collection(write_ome(tmp_path / "x.ome.tif", frames(3, 9, 7), "TCYX", **size, **names))
    assert steps(collection.coordinates) == pytest.approx(SIZES)
    assert collection.coordinates["c"].values.tolist() == NAMES
    times = collection.sample_coordinates()["t"]
    assert (times.values.tolist(), times.attributes) == ([0, 2, 4, 6, 8, 10], {"units": "second"})


def test_imagej_keeps_sizes_times_and_labels_of_channels(tmp_path):
    path = write_imagej(tmp_path / "x.tif", frames(2, 3, 9, 7), "TZCYX", Labels=NAMES * 12)
    volume = streampca.open_collection(path, sample_axes=("z", "y", "x"), select={"c": 1})
    assert steps(volume.coordinates) == pytest.approx(SIZES | {"z": 3.0})
    assert volume.sample_coordinates()["t"].values[1] == 2.0
    assert streampca.open_collection(path).coordinates["c"].values.tolist() == NAMES


@pytest.mark.parametrize("unit", ["", "pixel", "furlong"])
def test_pixels_without_a_unit_have_no_size(tmp_path, unit):
    path = write_imagej(tmp_path / "x.tif", frames(9, 7), "TYX", unit=unit, finterval=0)
    assert streampca.open_collection(path).coordinates == {}


@pytest.mark.parametrize("names", [["a", "a", "b"], ["a", "b", ""]])
def test_names_that_tell_no_channels_apart_are_left_out(tmp_path, names):
    path = write_ome(tmp_path / "x.ome.tif", frames(3, 9, 7), "TCYX", Channel={"Name": names})
    assert set(streampca.open_collection(path).coordinates) == {"y", "x"}


def test_damaged_sizes_are_left_out(tmp_path):
    path = write_ome(tmp_path / "x.ome.tif", frames(9, 7), "TYX")
    text = tifffile.tiffcomment(path)
    for bad in ("-1", "nan", "1e999", "wide"):
        tifffile.tiffcomment(path, text.replace('PhysicalSizeX="0.65"', f'PhysicalSizeX="{bad}"').encode())
        assert "x" not in streampca.open_collection(path).coordinates


def test_resolution_of_printers_is_no_pixel_size(tmp_path):
    tifffile.imwrite(tmp_path / "x.tif", frames(9, 7), resolution=(72, 72), resolutionunit="INCH")
    assert streampca.open_collection(tmp_path / "x.tif").coordinates == {}


def test_files_of_other_pixels_are_refused_and_can_be_joined(tmp_path):
    write_ome(tmp_path / "a.ome.tif", frames(9, 7), "TYX")
    write_ome(tmp_path / "b.ome.tif", frames(9, 7), "TYX", PhysicalSizeX=0.325)
    with pytest.raises(SourceError, match=r"x of .*b.ome.tif is 0.325 micrometer in place 2 .*coordinates='ignore'"):
        streampca.open_collection(f"{tmp_path}/*.tif")
    assert streampca.open_collection(f"{tmp_path}/*.tif", coordinates="ignore").n_samples == 12
    model = streampca.fit(tmp_path / "a.ome.tif", n_components=2)
    with pytest.raises(ModelError, match=r"0.325 micrometer"):
        model.transform(streampca.open_collection(tmp_path / "b.ome.tif"))


def test_channels_in_another_order_are_put_in_order(tmp_path, channels):
    x = tifffile.imread(channels)
    other = write_ome(tmp_path / "b.ome.tif", x[:, ::-1], "TCYX", Channel={"Name": NAMES[::-1]})
    model = streampca.fit(channels, n_components=2)
    np.testing.assert_allclose(model.transform(other), model.transform(channels), rtol=1e-5)


def test_omero_names_the_channels_of_ome_zarr(tmp_path):
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("0", data=frames(3, 9, 7))
    axes = [{"name": name} for name in "tcyx"]
    picture = {"axes": axes, "datasets": [{"path": "0"}]}
    group.attrs["ome"] = {"multiscales": [picture], "omero": {"channels": [{"label": name} for name in NAMES]}}
    assert streampca.open_collection(tmp_path / "x.zarr").coordinates["c"].values.tolist() == NAMES
    group.attrs["ome"] = {"multiscales": [picture], "omero": {"channels": [7]}}
    assert streampca.open_collection(tmp_path / "x.zarr").coordinates == {}


# -- out again


def opened(path):
    with tifffile.TiffFile(path) as file:
        return file.series[0].axes, file.asarray(), file.imagej_metadata, file.ome_metadata, file.pages.first.resolution


def test_exported_components_keep_the_size_of_a_pixel(tmp_path, channels):
    nm = write_ome(tmp_path / "nm.ome.tif", frames(9, 7), "TYX", PhysicalSizeY=500, PhysicalSizeYUnit="nm")
    export_components(streampca.fit(nm, n_components=2), tmp_path / "c.tif")  # ImageJ has one unit
    axes, _, about, _, resolution = opened(tmp_path / "c.tif")
    assert (axes, about["unit"], about["Labels"][1][:12]) == ("CYX", "um", "component 1:")
    assert resolution == pytest.approx((1 / 0.65, 2.0))
    model = streampca.fit(streampca.open_collection(channels, select={"c": 0}), n_components=2)
    export_components(model, tmp_path / "c.ome.tif")
    text = opened(tmp_path / "c.ome.tif")[3]
    assert 'PhysicalSizeX="0.65" PhysicalSizeXUnit="µm" PhysicalSizeY="0.5"' in text
    assert 'Name="component 1: ' in text
    export_components(streampca.fit(channels, n_components=2), tmp_path / "d.tif")
    assert opened(tmp_path / "d.tif")[2]["Labels"][4].endswith(" %, GFP")


@pytest.mark.parametrize(("options", "axes", "name"), [
    ({}, "TCYX", "r.tif"), ({}, "TCYX", "r.ome.tif"),
    ({"sample_axes": ("y", "x", "c")}, "TYXS", "r.tif"), ({"select": {"c": 0, "y": 3}}, "TYX", "r.tif"),
])  # fmt: skip
def test_reconstructions_are_pages(tmp_path, channels, options, axes, name):
    """In ImageJ's order a file for ImageJ, else for OME's programs; values are those in memory."""
    if "y" in options.get("select", {}):
        options = options | {"sample_axes": ("x",)}
    collection = streampca.open_collection(channels, **options)
    model = streampca.fit(collection, n_components=3)
    model.write_reconstruction(collection, tmp_path / name)
    found, values, about, text, _ = opened(tmp_path / name)
    expected = model.reconstruct(np.asarray(collection)).astype(np.float32)
    assert found == axes
    np.testing.assert_array_equal(values.reshape(expected.shape), expected)
    assert (about is None) == (name == "r.ome.tif" or axes == "TYXS")
    if axes == "TCYX":
        assert (text is None and about["finterval"] == 2.0) or ('Name="GFP"' in text and 'SizeX="0.65"' in text)
        again = streampca.open_collection(tmp_path / name)
        assert steps(again.coordinates) == pytest.approx(SIZES)
        np.testing.assert_array_equal(np.asarray(again), expected)


def test_large_reconstructions_are_bigtiff(tmp_path, channels, monkeypatch):
    from streampca.storage import tiff_pages

    monkeypatch.setattr(tiff_pages, "MOST_IMAGEJ", 100)
    model = streampca.fit(channels, n_components=3)
    model.write_reconstruction(channels, tmp_path / "r.tif")
    with tifffile.TiffFile(tmp_path / "r.tif") as file:
        assert (file.is_bigtiff, file.is_ome, file.series[0].shape) == (True, True, (6, 3, 9, 7))


def test_scores_in_parquet(tmp_path):
    """Names of samples, dates as dates, and scores."""
    times = np.arange("2001-01", "2003-01", dtype="datetime64[M]").astype("datetime64[ns]")
    field = xarray.DataArray(np.random.default_rng(1).normal(size=(24, 5, 4)), dims=("time", "y", "x"),
                             coords={"time": times}, name="t2m")  # fmt: skip
    model = streampca.fit(field, n_components=3)
    model.write_scores(field, tmp_path / "s.parquet", memory="64MiB")
    table = parquet.read_table(tmp_path / "s.parquet")
    assert table.column_names == ["sample", "time", "component_1", "component_2", "component_3"]
    assert table["time"].to_numpy().astype("datetime64[M]").tolist() == times.astype("datetime64[M]").tolist()
    scores = np.stack([table[f"component_{j}"].to_numpy() for j in (1, 2, 3)], axis=1)
    np.testing.assert_allclose(scores, model.transform(field).values, rtol=1e-6)
    assert json.loads(table.schema.metadata[b"streampca"])["complete"] is True


def test_parquet_is_written_in_groups_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("streampca.storage.writers.GROUP_BYTES", 100)
    scores = np.random.default_rng(2).normal(size=(30, 2))
    names = [f"{at}.png" for at in range(30)]
    table = outputs.OutputArray("scores", (30, 2), ("sample", "component"), scores.dtype, names=names)
    with outputs.open_writer(str(tmp_path / "s.parquet"), table) as writer:
        for start in range(0, 30, 4):
            writer.write(start, scores[start : start + 4])
    written = parquet.ParquetFile(tmp_path / "s.parquet")
    assert written.num_row_groups == 4
    assert written.read()["sample"].to_pylist() == names
    np.testing.assert_array_equal(written.read()["component_2"].to_numpy(), scores[:, 1])


def test_parquet_without_its_package_is_refused_first(tmp_path, channels, monkeypatch):
    monkeypatch.setattr(outputs, "find_spec", lambda name: None)
    model = streampca.fit(channels, n_components=3)
    with pytest.raises(RequestError, match=r"pip install 'streampca\[parquet\]', or .*\.csv"):
        model.write_scores(channels, tmp_path / "s.parquet")
    model.write_scores(channels, tmp_path / "s.csv")


# -- models as OME-Zarr


def ome_of(path):
    return json.loads(Path(path, "zarr.json").read_text())["attributes"].get("ome")


def test_a_model_is_a_picture_of_ome_zarr(tmp_path, channels):
    model = streampca.fit(streampca.open_collection(channels, select={"c": 0}), n_components=2)
    model.save(tmp_path / "m.zarr")
    ome = ome_of(tmp_path / "m.zarr")
    [picture] = ome["multiscales"]
    assert ome["version"] == "0.5"
    assert [(axis["name"], axis["type"], axis.get("unit")) for axis in picture["axes"]] == [
        ("component", "channel", None), ("y", "space", "micrometer"), ("x", "space", "micrometer")
    ]  # fmt: skip
    [level] = picture["datasets"]
    array = zarr.open_group(tmp_path / "m.zarr", mode="r")[level["path"]]
    assert array.metadata.dimension_names == tuple(axis["name"] for axis in picture["axes"])
    assert level["coordinateTransformations"][0] == {"type": "scale", "scale": pytest.approx([1.0, 0.5, 0.65])}
    assert [each["label"][:11] for each in ome["omero"]["channels"]] == ["component 1", "component 2"]
    window = ome["omero"]["channels"][0]["window"]
    assert window["end"] == -window["start"] == pytest.approx(np.abs(model.components[0]).max())


def test_a_picture_with_channels_has_components_along_time(tmp_path, channels):
    streampca.fit(channels, n_components=2).save(tmp_path / "m.zarr")
    ome = ome_of(tmp_path / "m.zarr")
    assert [axis["type"] for axis in ome["multiscales"][0]["axes"]] == ["time", "channel", "space", "space"]
    assert [each["label"] for each in ome["omero"]["channels"]] == NAMES


@pytest.mark.parametrize("shape", [(7,), (9, 7, 3)])
def test_what_ome_zarr_has_no_place_for_has_no_such_attribute(tmp_path, shape):
    streampca.fit(frames(*shape), n_components=2).save(tmp_path / "m.zarr")
    assert ome_of(tmp_path / "m.zarr") is None or len(shape) == 3


def test_a_model_stays_no_collection(tmp_path, channels):
    """The attribute is for other programs: components are asked for by name, with the model's own axes."""
    streampca.fit(streampca.open_collection(channels, select={"c": 0}), n_components=2).save(tmp_path / "m.zarr")
    with pytest.raises(SourceError, match="is a model, not a collection"):
        streampca.open_collection(tmp_path / "m.zarr")
    components = streampca.open_collection(tmp_path / "m.zarr", key="components")
    assert (components.shape, components.axes) == ((2, 9, 7), ("y", "x"))
