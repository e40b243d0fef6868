"""Values that nobody wrote into NetCDF files, and numbers said to stand for none, with netCDF4 as the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from contract import read_all, refused_as
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import refused, succeeded

import streampca
from streampca.errors import DataError, RequestError, SourceError
from streampca.readers import open_collection

CLASSIC = ["i1", "i2", "i4", "f4", "f8"]
DTYPES = {
    "NETCDF3_CLASSIC": CLASSIC,
    "NETCDF3_64BIT_OFFSET": CLASSIC,
    "NETCDF3_64BIT_DATA": [*CLASSIC, "u1", "u2", "u4", "i8", "u8"],
    "NETCDF4": [*CLASSIC, "u1", "u2", "u4", "i8", "u8"],
    "NETCDF4_CLASSIC": CLASSIC,
}
SHAPE = (6, 2, 3)


class Case(NamedTuple):
    """A variable: which of its records are written, in what form, and what its file declares."""

    form: str
    dtype: str
    records: tuple[int, ...]
    declares: str
    filled: bool
    scale: float | None
    hit: bool
    longer: int


@st.composite
def cases(draw):
    form = draw(st.sampled_from([*DTYPES]))
    filled = draw(st.booleans()) or not form.startswith("NETCDF4")  # classic files do not say that they were not filled
    records = tuple(sorted(draw(st.sets(st.integers(0, 5), min_size=1))))
    return Case(
        form,
        draw(st.sampled_from(DTYPES[form])),
        records if filled else tuple(range(6)),  # others hold whatever there was in memory
        draw(st.sampled_from(["nothing", "nothing", "_FillValue", "missing_value"])),
        filled,
        draw(st.sampled_from([None, None, 0.5])),
        draw(st.booleans()),
        draw(st.sampled_from([0, 0, 4, 8])) if form.startswith("NETCDF4") else 0,  # classic files fill records up
    )


def write(path, case):
    """Write a file by netCDF4; where asked, among its values is the number that stands for none by default."""
    default = np.dtype(case.dtype).type(netCDF4.default_fillvals[case.dtype])
    with netCDF4.Dataset(path, "w", format=case.form) as file:
        for name, length in zip(("time", "y", "x"), (None, *SHAPE[1:]), strict=True):
            file.createDimension(name, length)
        own = {"fill_value": np.dtype(case.dtype).type(99)} if case.declares == "_FillValue" else {}
        variable = file.createVariable(
            "v", case.dtype, ("time", "y", "x"), **({} if case.filled else {"fill_value": False}) | own
        )
        variable.set_auto_maskandscale(False)
        if case.declares == "missing_value":
            variable.missing_value = np.dtype(case.dtype).type(7)
        if case.scale is not None:
            variable.scale_factor = case.scale
        values = np.arange(np.prod(SHAPE)).reshape(SHAPE).astype(case.dtype)
        for record in case.records:
            variable[record] = values[record]
        if case.hit:
            variable[case.records[-1], 1, 1] = default
        if case.longer:  # another variable with as many records
            file.createVariable("w", "f4", ("time", "y"))[: case.longer] = 1.0


def is_longer(stored, case):
    """Whether another variable has more records than were written."""
    return len(stored) > case.records[-1] + 1


def oracle(path, case):
    """Return the stored numbers as netCDF4 has them, and which of them are missing."""
    with netCDF4.Dataset(path) as file:
        variable = file["v"]
        variable.set_auto_maskandscale(False)
        stored = np.array(variable[:])
        # Records that only another variable has read as the default, whether the variable is filled or not.
        takes_default = is_longer(stored, case) or not case.form.startswith("NETCDF4")
        fill = netCDF4.default_fillvals[case.dtype] if takes_default else variable.get_fill_value()
        missing = np.zeros(stored.shape, bool)
        if case.declares == "_FillValue":
            missing |= stored == 99
        elif case.dtype[1:] != "1" and fill is not None:
            missing |= stored == np.dtype(case.dtype).type(fill)
        if case.declares == "missing_value":
            missing |= stored == 7
        if case.filled and case.dtype[1:] != "1":  # else netCDF4 masks what no one said is missing
            variable.set_auto_maskandscale(True)
            np.testing.assert_array_equal(np.ma.getmaskarray(variable[:]), missing)
    return stored, missing


def check_law(path, case):
    write(path, case)
    stored, missing = oracle(path, case)
    found, select = open_collection(path, key="v"), None
    assert found.shape == stored.shape
    if is_longer(stored, case) and case.dtype[1:] == "1" and case.declares != "_FillValue":
        count = case.records[-1] + 1
        with pytest.raises(
            SourceError, match=rf"has {count} of the {len(stored)} entries of its file along time, and "
        ):
            found.read(slice(0, found.n_samples))
        select = {"time": slice(0, count)}  # which the message names
        found, stored, missing = open_collection(path, key="v", select=select), stored[:count], missing[:count]
    floats = case.dtype[0] == "f" or case.declares != "nothing" or case.scale is not None
    if missing.any() and not floats:
        first = int(missing.reshape(len(missing), -1).any(axis=1).argmax())
        assert found.dtype == stored.dtype.newbyteorder(found.dtype.byteorder)
        with pytest.raises(SourceError, match=rf"^sample {first} of {path}, .* has values {stored[missing][0]}, "):
            found.read(slice(0, found.n_samples))
        found = open_collection(path, key="v", fill_value=stored[missing][0].item(), select=select)
    expected = stored.astype(found.dtype) * (1 if case.scale is None else case.scale)
    expected[missing] = np.nan if found.dtype.kind == "f" else 0
    np.testing.assert_array_equal(read_all(found), expected)
    if not (floats or missing.any()):
        assert found.dtype.kind == stored.dtype.kind
    every = open_collection(path, key="v", fill_value="none", select=select)
    if case.declares == "nothing":
        np.testing.assert_array_equal(read_all(every), stored * (1 if case.scale is None else case.scale))


@settings(max_examples=50)
@given(case=cases())
def test_what_was_never_written_is_missing_or_refused(tmp_path_factory, case):
    check_law(tmp_path_factory.mktemp("f") / "x.nc", case)


@pytest.mark.parametrize("late", ["v", "time", "named by none"])
def test_a_variable_has_the_records_of_its_file_with_their_dates(tmp_path, caplog, late):
    """Ten records, of which the variable has six; those of the other are found by its dates, or by itself alone."""
    path, values = tmp_path / "x.nc", np.arange(120.0).reshape(10, 3, 4)
    with netCDF4.Dataset(path, "w") as file:
        for name, length in zip(("time", "y", "x"), (None, 3, 4), strict=True):
            file.createDimension(name, length)
        if late != "named by none":
            time = file.createVariable("time", "f8", ("time",))
            time.units = "days since 2000-01-01"
            time[: 6 if late == "time" else 10] = np.arange(6 if late == "time" else 10)
        for name, count in (("v", 6), ("w", 10)):
            variable = file.createVariable(name, "f8", ("time", "y", "x"), chunksizes=(4, 3, 4), zlib=True)
            variable[:count] = values[:count]
    found = open_collection(path, key="v")
    rows = read_all(found)
    np.testing.assert_array_equal(rows[:6], values[:6])
    assert np.isnan(rows[6:]).all()
    np.testing.assert_array_equal(read_all(open_collection(path, key="v", select={"time": slice(5, 8)})), rows[5:8])
    assert caplog.messages[0] == f"{path}, dataset 'v' has 6 of the 10 records of its file; the others are missing."
    if late == "v":
        assert len(found.sample_coordinates()["time"].values) == 10
    assert open_collection(path, key="v,w").shape == (10, 3, 4, 2)
    with pytest.raises(DataError, match=r"sample 6 of .*missing"):
        streampca.fit(path, key="v", n_components=2)
    model = streampca.fit(path, streampca.PCA(2, missing="drop-samples"), key="v")
    np.testing.assert_array_equal(model.mean, streampca.fit(values[:6], n_components=2).mean)


@pytest.mark.campaign
@settings(max_examples=500)
@given(case=cases())
def test_what_was_never_written_is_missing_or_refused_at_length(tmp_path_factory, case):
    check_law(tmp_path_factory.mktemp("f") / "x.nc", case)


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Six records of a classic file, of which four are written: floats, and whole numbers."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    with netCDF4.Dataset("x.nc", "w", format="NETCDF3_CLASSIC") as file:
        for name, length in (("time", None), ("x", 5)):
            file.createDimension(name, length)
        time = file.createVariable("time", "f8", ("time",))
        time.units = "days since 2001-01-01"
        time[:4] = np.arange(4)
        file.createVariable("f", "f4", ("time", "x"))[:4] = rng.normal(size=(4, 5))
        file.createVariable("h", "i2", ("time", "x"))[:4] = rng.integers(0, 99, (4, 5))
        file.createVariable("last", "i4", ("time",))[5] = 1
    return Path("x.nc")


def test_floats_that_were_never_written_are_missing(short):
    with netCDF4.Dataset(short) as file:
        theirs = file["f"][:].filled(np.nan)
    np.testing.assert_array_equal(read_all(open_collection(short, key="f")), theirs)
    assert np.isnan(theirs[4:]).all()
    model = streampca.fit(short, streampca.PCA(2, missing="drop-samples", precision="double"), key="f")
    assert model.n_samples == 4
    assert model.total_variance == pytest.approx(theirs[:4].var(axis=0, ddof=1).sum(), rel=1e-5)
    assert np.isnan(open_collection(short, key="f").sample_coordinates()["time"].values[4:]).all()


def test_whole_numbers_that_were_never_written_are_refused_and_both_remedies_work(short):
    line = refused("fit", short, "--key", "h", "-k", 2, "-o", "m.zarr")
    assert "sample 4 of x.nc, variable 'h' has values -32767" in line
    for remedy in ("--fill-value -32767", "--missing drop-samples", "--fill-value none"):
        assert remedy in line
    taken = ("--fill-value", -32767, "--missing", "drop-samples")
    succeeded("fit", short, "--key", "h", "-k", 2, "-o", "m.zarr", *taken)
    assert streampca.load("m.zarr").n_samples == 4
    succeeded("fit", short, "--key", "h", "-k", 2, "-o", "n.zarr", "--fill-value", "none")
    assert streampca.load("n.zarr").n_samples == 6
    succeeded("fit", short, "--key", "h", "-k", 2, "-o", "o.zarr", "--samples", ":4")  # what is not read is not refused
    printed = succeeded("fit", short, "--key", "h", *taken, "-o", "p.zarr", "--print-config")
    assert "fill_value: -32767\n" in printed


def test_a_run_file_and_an_estimator_take_the_same_option(short):
    Path("run.yaml").write_text(
        "collection: {source: x.nc, key: h, fill_value: -32767}\nmodel: {missing: drop-samples, n_components: 2}\n"
        "output: {model: r.zarr}\n"
    )
    succeeded("run", "run.yaml")
    direct = streampca.fit(short, streampca.PCA(2, missing="drop-samples"), key="h", fill_value=-32767)
    np.testing.assert_array_equal(streampca.load("r.zarr").explained_variance, direct.explained_variance)
    assert direct.provenance["opened"]["options"]["fill_value"] == -32767


def test_files_that_are_joined_have_it_each(short):
    how = {"key": "h", "fill_value": -32767, "coordinates": "ignore", "duplicates": "all"}
    whole = open_collection([str(short), str(short.absolute())], **how)
    assert np.isnan(read_all(whole)[[4, 5, 10, 11]]).all()


def test_the_fill_property_of_hdf5_decides(tmp_path):
    """A number of its own, none where no one set it, and plain HDF5 files are as they were."""
    path = tmp_path / "x.nc"
    xr.Dataset({"v": (("time", "x"), np.ones((4, 3), np.int16))}).to_netcdf(path, engine="netcdf4")
    with h5py.File(path, "a") as file:
        for name, fill in (("own", -1), ("unset", None)):
            made = file.create_dataset(name, (4, 3), "i2", fillvalue=fill, chunks=(1, 3))
            for axis, scale in enumerate(("time", "x")):
                if scale in file:
                    made.dims[axis].attach_scale(file[scale])
            made[0] = 5
            made[1] = -32767
    with netCDF4.Dataset(path) as file:
        assert (file["own"].get_fill_value(), file["unset"].get_fill_value()) == (-1, None)
    with pytest.raises(SourceError, match=r"^sample 2 of .*has values -1,"):
        open_collection(path, key="own").read(slice(0, 4))
    np.testing.assert_array_equal(open_collection(path, key="unset").read(slice(1, 3))[:, 0], [-32767, 0])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("v", (4, 3), "i2", fillvalue=-1, chunks=(1, 3))[0] = 5
    np.testing.assert_array_equal(open_collection(tmp_path / "x.h5").read(slice(0, 2))[:, 0], [5, -1])


def test_any_array_may_have_a_fill_value(tmp_path):
    x = np.arange(24).reshape(4, 3, 2).astype(np.int16)
    np.save(tmp_path / "x.npy", x)
    for source in (tmp_path / "x.npy", x):
        found = open_collection(source, fill_value=13)
        np.testing.assert_array_equal(read_all(found), np.where(x == 13, np.float32(np.nan), x))
        assert found.dtype == np.float32
    for wrong, words in ((1.5, "no number"), (70000, "which has int16"), ("word", "no number"), (np.nan, "no number")):
        refused_as(x, f"fill_value .*{words}", error=RequestError, fill_value=wrong)
    with pytest.raises(RequestError, match=r"fill_value was given for .*, which is open already"):
        open_collection(open_collection(x), fill_value=3)
