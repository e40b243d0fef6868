"""Samples that are there twice count once, or are refused by name: the same file by any path, dates of one series."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from pathlib import Path

import by_options
import netCDF4
import numpy as np
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from shell import refused, succeeded

import streampca
from streampca import open_collection
from streampca.errors import DuplicatesError, ModelError, RequestError
from streampca.events import Warned

RNG = np.random.default_rng(0)
X = RNG.integers(0, 255, (60, 6, 5), np.uint8)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# -- the law: files of dates, their members and links, judged by netCDF4 and np.concatenate

UNITS = (
    "days since 2000-01-01",
    "hours since 1999-12-31 12:00",
    "seconds since 1970-01-01",
    "minutes since 2000-01-02",
)
MEMBERS = (None, "realization", "variant_label")
FORMATS = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF4")


@st.composite
def a_file(draw):
    days = draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))  # a day may come twice: a burst
    return {
        "days": sorted(days),
        "units": draw(st.sampled_from(UNITS)),
        "member": draw(st.integers(1, 2)),
        "again": draw(st.sampled_from(["", "", "", "path", "symlink", "hard link"])),
    }


def written(folder, number, told, by, form):
    """Write a file; return the paths by which it is given."""
    path = folder / f"{number}.nc"
    with netCDF4.Dataset(path, "w", format=form) as file:
        for name, length in (("time", None), ("y", 3), ("x", 2)):
            file.createDimension(name, length)
        time = file.createVariable("time", "f8", ("time",))
        time.units, time.calendar = told["units"], "standard"
        dates = np.array(["2000-01-01"], "M8[D]") + np.array(told["days"])
        time[:] = netCDF4.date2num(dates.astype("M8[us]").tolist(), told["units"], calendar="standard")
        values = file.createVariable("v", "f4", ("time", "y", "x"))
        values[:] = np.random.default_rng(number).normal(size=(len(dates), 3, 2))
        if by == "realization":
            member = file.createVariable("realization", "i4", ())
            member[...], values.coordinates = told["member"], "realization"
        elif by == "variant_label":
            file.variant_label = f"r{told['member']}i1p1f1"
    if told["again"] in ("", "path"):
        return [path] * (1 + (told["again"] == "path"))
    link = folder / f"{number}_link.nc"
    link.symlink_to(path) if told["again"] == "symlink" else os.link(path, link)
    return [path, link]


def judged(paths):
    """Values of all samples, of the first of each, and whether these differ, by netCDF4."""
    every, firsts, owners = [], [], {}
    files = {}
    for path in paths:
        with netCDF4.Dataset(path) as file:
            values, time = np.asarray(file["v"][:]), file["time"]
            dates = netCDF4.num2date(time[:], time.units, calendar="standard", only_use_cftime_datetimes=False)
            member = int(file["realization"][...]) if "realization" in file.variables else None
            member = (member, getattr(file, "variant_label", None))
        every.append(values)
        is_new = files.setdefault(os.path.realpath(path), path) == path and not any(
            os.path.samefile(path, other) for other in paths[: len(every) - 1]
        )
        keys = [(member, date.isoformat()[:19]) for date in dates]
        kept = [is_new and owners.setdefault(key, len(every)) == len(every) for key in keys]
        firsts.append(values[kept])
    return np.concatenate(every), np.concatenate(firsts)


def law(told, by, form):
    with tempfile.TemporaryDirectory() as folder:
        paths = [path for number, each in enumerate(told) for path in written(Path(folder), number, each, by, form)]
        every, first = judged(paths)
        names = [str(path) for path in paths]
        found = open_collection(names, duplicates="all")
        np.testing.assert_array_equal(found.read(slice(0, len(found))), every.reshape(len(every), -1))
        found = open_collection(names, duplicates="first")
        np.testing.assert_array_equal(found.read(slice(0, len(found))), first.reshape(len(first), -1))
        assert len(found.sample_coordinates()["time"].values) == len(first)
        if len(first) == len(every):
            np.testing.assert_array_equal(
                open_collection(names).read(slice(0, len(every))), found.read(slice(0, len(every)))
            )
        else:
            with pytest.raises(DuplicatesError, match=re.escape(folder)):
                open_collection(names)


SERIES = given(st.lists(a_file(), min_size=2, max_size=4), st.sampled_from(MEMBERS), st.sampled_from(FORMATS))
test_a_sample_counts_once = settings(max_examples=25)(SERIES(law))
test_a_sample_counts_once_at_length = pytest.mark.campaign(settings(max_examples=500)(SERIES(law)))


# -- the same file


def npy(path, x=X):
    np.save(path, x)
    return path


def images(folder, x=X[:8]):
    os.makedirs(folder)
    for number, image in enumerate(x):
        Image.fromarray(image).save(f"{folder}/{number}.png")
    return folder


def listed(*paths):
    Path("list.txt").write_text("\n".join(paths))
    return "@list.txt"


def hard_linked():
    images("a")
    os.link("a/3.png", "a/other.png")
    return "a"


def linked_folder():
    images("a")
    os.symlink("a", "b")
    return ["a", "b"]


def stores():
    npy("a.npy")
    succeeded("copy", "a.npy", "-o", "a.zarr", "-q")
    os.symlink("a.zarr", "b.zarr")
    return ["a.zarr", "b.zarr"]


SAME = {
    "arrays": lambda: [npy("a.npy"), "./a.npy"],
    "a list in a file": lambda: listed(npy("a.npy"), "a.npy"),
    "a glob and a path": lambda: [npy("a.npy") and "*.npy", "a.npy"],
    "a folder and a path": lambda: os.mkdir("d") or ["d", npy("d/a.npy")],
    "stores": stores,
    "images": lambda: [images("a") and "a/1.png", "a/2.png", "a/1.png"],
    "images in a list in a file": lambda: listed(images("a") and "a/1.png", "a/2.png", "a/1.png"),
    "a folder with a hard link": hard_linked,
    "a glob with a hard link": lambda: hard_linked() + "/*.png",
    "a folder and one of its images": lambda: [images("a"), "a/1.png"],
    "a folder and a link to it": linked_folder,
}


@pytest.mark.parametrize("kind", SAME)
def test_a_file_that_is_there_twice_is_refused_with_a_remedy_that_works(kind):
    source = SAME[kind]()
    with pytest.raises(
        DuplicatesError, match=r"(is there twice|is the same file as .*), and its samples would .* twice"
    ):
        open_collection(source)
    twice, once = open_collection(source, duplicates="all"), open_collection(source, duplicates="first")
    rows = twice.read(slice(0, len(twice)))
    distinct = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
    np.testing.assert_array_equal(once.read(slice(0, len(once))), distinct)
    assert len(distinct) < len(rows)
    given = source if isinstance(source, list) else [source]
    line = refused("fit", *given, "-k", 1, "-o", "m.zarr", "-q", code=2)
    remedy = re.search(r"--duplicates \w+", line)[0].split()
    succeeded("fit", *given, "-k", 1, "-o", "m.zarr", "-q", *remedy)
    assert streampca.load("m.zarr").n_samples == len(distinct)
    assert streampca.load("m.zarr").provenance["opened"]["options"]["duplicates"] == "first"


def test_copies_are_files_of_their_own_and_a_folder_is_searched_once():
    images("a")
    Image.fromarray(X[1]).save("a/copy.png")
    os.symlink("../a", "a/again")
    assert len(open_collection("a")) == 9


def test_labels_of_all_files_fit_the_first_of_each():
    source = [images("a") and "a/1.png", "a/2.png", "a/1.png", "a/3.png"]
    np.save("labels.npy", np.array([1, 2, 1, 3]))
    assert open_collection(source, duplicates="first", labels="labels.npy").labels.tolist() == [1, 2, 3]
    dated("b.nc", 0, 4), dated("c.nc", 2, 4)
    found = open_collection(["b.nc", "c.nc", "./b.nc"], duplicates="first", labels=np.arange(12))
    assert found.labels.tolist() == [0, 1, 2, 3, 6, 7]


def test_a_table_of_a_folder_holds_all_of_its_files():
    for _ in range(2):
        found = open_collection(hard_linked() if not os.path.exists("a") else "a", duplicates="first", listing="t.npz")
        assert len(found) == 8
    with pytest.raises(DuplicatesError):
        open_collection("a", listing="t.npz")
    assert len(open_collection("a", duplicates="all", listing="t.npz")) == 9


def test_what_duplicates_may_be():
    with pytest.raises(RequestError, match="duplicates = 'last': give 'error', 'first' or 'all'"):
        open_collection(npy("a.npy"), duplicates="last")


# -- dates


def dated(path, start, count, **coordinates):
    """File of days from 2000-01-01 on, whose values are those of the days."""
    days = np.datetime64("2000-01-01", "ns") + np.arange(start, start + count) * np.timedelta64(1, "D")
    x = xarray.DataArray(
        X[start : start + count].astype("f4"), {"time": days, **coordinates}, ("time", "lat", "lon"), "v"
    )
    x.to_netcdf(path, engine="netcdf4")
    return path


@pytest.mark.parametrize("door", ["command", "run file", "estimator"])
def test_dates_of_two_files_are_refused_with_a_remedy_that_works(door):
    source = [dated("a.nc", 0, 30), dated("b.nc", 20, 40)]
    said = (
        r"^b\.nc has 10 dates that a\.nc has, too, 2000-01-21 first, and these samples would count twice; keep the "
        r"first of each with duplicates='first', or where they are of several series, such as "
        r"members of an ensemble, keep all with duplicates='all'\.$"
    )
    with pytest.raises(DuplicatesError, match=said):
        open_collection(source)
    expected = streampca.fit(X.astype("f4"), n_components=3)
    if door == "command":
        succeeded("fit", *source, "-k", 3, "-o", "m.zarr", "-q", "--duplicates", "first")
        model = streampca.load("m.zarr")
    elif door == "run file":
        shown = succeeded("fit", *source, "-k", 3, "-o", "m.zarr", "--duplicates", "first", "--print-config")
        assert "duplicates: first" in shown
        Path("run.yaml").write_text(shown)
        succeeded("run", "run.yaml", "-q")
        model = streampca.load("m.zarr")
    else:
        model = streampca.PCA(3).fit(open_collection(source, duplicates="first")).model_
    np.testing.assert_allclose(model.explained_variance, expected.explained_variance, rtol=1e-6)
    assert len(open_collection(source, duplicates="all")) == 70


@pytest.mark.parametrize("store", ["nc", "zarr"])
def test_files_of_several_members_share_dates(store):
    for member in (1, 2):
        x = xarray.open_dataset(dated("a.nc", 0, 20)).load().assign_coords(member=member)
        x.to_netcdf(f"m{member}.nc", engine="netcdf4") if store == "nc" else x.to_zarr(f"m{member}.zarr", zarr_format=2)
    assert len(open_collection([f"m1.{store}", f"m2.{store}"])) == 40
    with pytest.raises(DuplicatesError, match="has 20 dates that"):
        open_collection(["a.nc", dated("b.nc", 0, 20)])


def test_files_of_several_levels_share_dates():
    for level in (500, 850):
        x = xarray.open_dataarray(dated("a.nc", 0, 20)).load().expand_dims(level=[level])
        x.to_netcdf(f"l{level}.nc", engine="netcdf4")
    axes = {"sample_axes": ("lat", "lon")}
    assert len(open_collection(["l500.nc", "l850.nc"], **axes)) == 40
    x.to_netcdf("again.nc", engine="netcdf4")
    with pytest.raises(DuplicatesError, match="has 20 dates that"):
        open_collection(["l850.nc", "again.nc"], **axes)


def test_dates_that_a_file_repeats_count_and_are_told_of_in_one_line(caplog):
    x = xarray.open_dataarray(dated("a.nc", 0, 20)).load()
    burst = xarray.concat([x, x[5:8]], "time")
    burst.to_netcdf("burst.nc", engine="netcdf4")
    for source in ("burst.nc", ["burst.nc", dated("b.nc", 20, 20)], burst):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "streampca"):
            found = open_collection(source)
        assert len(found) in (23, 43)
        (line,) = [record.getMessage() for record in caplog.records]
        assert re.match(
            r"3 of (23|43) samples of .* have the date of another one in the same file, 2000-01-06 first;", line
        )


def test_a_file_none_of_whose_dates_are_new_is_left_out():
    found = open_collection([dated("a.nc", 0, 30), dated("b.nc", 10, 10), dated("c.nc", 25, 10)], duplicates="first")
    np.testing.assert_array_equal(found.read(slice(0, 35)), X[:35].reshape(35, -1))
    assert found.where(30) == "sample 5 of c.nc, dataset 'v'"
    np.testing.assert_array_equal(found.read(slice(28, 32), slice(3, 9)), X[28:32].reshape(4, -1)[:, 3:9])


def test_what_is_left_out_belongs_to_the_state():
    first = open_collection([dated("a.nc", 0, 30), dated("b.nc", 20, 20)], duplicates="first").fingerprint()
    assert open_collection(["a.nc", "b.nc"], duplicates="first").fingerprint() == first
    assert open_collection(["a.nc", "b.nc"], duplicates="all").fingerprint() != first


# -- what a model has absorbed


def fitted(source, **options):
    return by_options.fit(source, n_components=3, method="covariance", output="m.zarr", overwrite=True, **options)


def test_an_update_by_another_path_or_options_is_refused():
    fitted(npy("a.npy", X[:40]))
    os.symlink("a.npy", "link.npy")
    os.link("a.npy", "hard.npy")
    npy("b.npy", X[40:])
    for source, options in (
        ("link.npy", {}), ("hard.npy", {}), (["b.npy", "a.npy"], {}), (["link.npy", "b.npy"], {}), ("@l.txt", {}),
        ("a.npy", {"samples": slice(30, 40)}), ("hard.npy", {"samples": [0, 5]}),
    ):  # fmt: skip
        Path("l.txt").write_text("hard.npy\nb.npy")
        with pytest.raises(
            DuplicatesError, match=r"is among the files that m\.zarr was fitted to, .* leave it out, or"
        ):
            streampca.update("m.zarr", source, **options)
    line = refused("fit", "hard.npy", "--update", "m.zarr", "-q", code=2)
    remedy = re.search(r"--duplicates all", line)[0].split()
    succeeded("fit", "hard.npy", "--update", "m.zarr", "-q", *remedy)
    assert streampca.load("m.zarr").n_samples == 80
    assert streampca.update("m.zarr", "b.npy").n_samples == 100


def test_other_samples_of_a_file_are_added():
    fitted(npy("a.npy"), samples=slice(0, 30))
    assert streampca.update("m.zarr", "a.npy", output="m.zarr", samples=slice(40, 60)).n_samples == 50
    assert streampca.update("m.zarr", "a.npy", samples=slice(30, 40)).n_samples == 60
    with pytest.raises(DuplicatesError):
        streampca.update("m.zarr", "a.npy", samples=slice(35, 45))
    with pytest.raises(DuplicatesError):
        streampca.update("m.zarr", "a.npy")
    events = []
    streampca.update("m.zarr", "a.npy", patches=(6, 5), listener=events.append)
    assert any("opened with other options" in event.message for event in events if isinstance(event, Warned))


def test_an_array_that_was_added_is_known_again():
    model = streampca.fit(X[:40], streampca.PCA(3, method="covariance"))
    with pytest.raises(DuplicatesError, match="has the values of samples that the model was fitted to"):
        streampca.update(model, X[:40].copy())
    model = streampca.update(model, X[40:])
    with pytest.raises(DuplicatesError):
        streampca.update(model, X[40:])
    assert streampca.update(model, X[40:], duplicates="all").n_samples == 80


def test_lists_of_as_many_files_are_not_the_same_source():
    for number in range(4):
        npy(f"{number}.npy", X[15 * number : 15 * (number + 1)])
    fitted(["0.npy", "1.npy"])
    updated = streampca.update("m.zarr", ["2.npy", "3.npy"], output="m.zarr")
    whole = streampca.fit(X, streampca.PCA(3, method="covariance"))
    np.testing.assert_array_equal(updated.explained_variance, whole.explained_variance)
    assert streampca.update("m.zarr", ["0.npy", "1.npy"]).n_samples == 60  # nothing new


def test_dates_that_were_added_are_refused_or_left_out():
    fitted(dated("a.nc", 0, 30))
    dated("b.nc", 20, 40)
    with pytest.raises(
        DuplicatesError, match=r"b\.nc.* has 10 samples of dates that m\.zarr was fitted to, .* first, and"
    ):
        streampca.update("m.zarr", "b.nc")
    updated = streampca.update("m.zarr", "b.nc", output="m.zarr", duplicates="first")
    whole = streampca.fit(X.astype("f4"), streampca.PCA(3, method="covariance"))
    np.testing.assert_allclose(updated.explained_variance, whole.explained_variance, rtol=1e-6)
    assert streampca.update("m.zarr", "b.nc").n_samples == 60  # nothing new
    assert streampca.update("m.zarr", dated("c.nc", 0, 10, member=3)).n_samples == 70
    assert streampca.update("m.zarr", dated("d.nc", 0, 10), duplicates="all").n_samples == 70


def test_a_series_that_is_followed_into_its_own_dates_stops():
    os.mkdir("s")
    dated("s/0.nc", 0, 20), dated("s/1.nc", 20, 20)
    streampca.follow("s/*.nc", output="m.zarr", n_components=3, pace=streampca.Pace(settle=0, until=40))
    dated("s/2.nc", 35, 20)
    with pytest.raises(DuplicatesError, match=r"2\.nc has 5 dates that s/1\.nc has, too"):
        streampca.follow("s/*.nc", output="m.zarr", n_components=3, pace=streampca.Pace(settle=0, idle=0.1))
    assert streampca.load("m.zarr").n_samples == 40
    with pytest.raises(DuplicatesError, match="is there twice"):
        streampca.follow(["s/0.nc", "s/1.nc", "s/0.nc"], output="n.zarr", pace=streampca.Pace(settle=0, idle=0.1))


def test_models_of_the_same_files_are_not_merged():
    npy("a.npy"), npy("b.npy", X[::-1])
    options = {"n_components": 3, "method": "covariance"}
    one, other = by_options.fit("a.npy", **options), by_options.fit(["a.npy", "b.npy"], **options)
    with pytest.raises(ModelError, match="were fitted to samples of the same files; leave one of them out"):
        streampca.merge([one, other])
    some, others = (by_options.fit("a.npy", samples=part, **options) for part in (slice(0, 30), slice(30, 60)))
    merged = streampca.merge([some, others])
    assert merged.n_samples == 60
    with pytest.raises(DuplicatesError):
        streampca.update(merged, "a.npy", samples=slice(10, 20))
    parts = [by_options.fit("a.npy", part=f"{number}/2", **options) for number in (1, 2)]
    with pytest.raises(ModelError, match="part 1/2 is given twice"):
        streampca.merge([*parts, parts[0]])
    os.link("a.npy", "hard.npy")
    with pytest.raises(DuplicatesError, match="hard"):
        streampca.update(streampca.merge(parts), "hard.npy")


def test_models_that_share_dates_are_merged_with_a_word():
    events, options = [], {"n_components": 3, "method": "covariance"}
    models = [by_options.fit(path, **options) for path in (dated("a.nc", 0, 30), dated("b.nc", 20, 20))]
    assert streampca.merge(models, listener=events.append).n_samples == 50
    assert any("share 10 dates" in event.message for event in events if isinstance(event, Warned))


def test_records_that_a_variable_lacks_have_dates_too(tmp_path):
    """NetCDF-4 has as many records as the longest variable; those that others lack are missing, and dated."""
    for name, first in (("a.nc", 0), ("b.nc", 0), ("c.nc", 8)):
        with netCDF4.Dataset(tmp_path / name, "w") as file:
            file.createDimension("time", None)
            file.createDimension("x", 4)
            time = file.createVariable("time", "f8", ("time",))
            time.units = "days since 2000-01-01"
            time[:] = np.arange(8) + first
            file.createVariable("v", "f4", ("time", "x"))[0:6] = np.random.default_rng(first).random((6, 4))
    assert len(open_collection(tmp_path / "a.nc").sample_coordinates()["time"].values) == 8
    with pytest.raises(DuplicatesError, match=r"b\.nc has 8 dates that .*a\.nc has, too"):
        open_collection([tmp_path / "a.nc", tmp_path / "b.nc"])
    assert open_collection([tmp_path / "a.nc", tmp_path / "c.nc"]).n_samples == 16


def test_numbers_beyond_all_dates_are_not_compared(tmp_path):
    for name, last in (("a.nc", 1e300), ("b.nc", 1e290)):
        time = ("time", [0.0, 1.0, last], {"units": "days since 2000-01-01"})
        values = np.random.default_rng(0).random((3, 4))
        xarray.Dataset({"v": (("time", "x"), values)}, {"time": time}).to_netcdf(tmp_path / name)
    assert open_collection([tmp_path / "a.nc", tmp_path / "b.nc"]).n_samples == 6


def test_samples_told_apart_by_another_axis_repeat_no_date(caplog):
    dates = np.arange("2000-01-01", "2000-01-07", dtype="M8[D]")
    field = xarray.DataArray(
        np.random.default_rng(0).random((6, 4, 5)), {"time": dates, "lon": np.arange(5.0)}, ("time", "lat", "lon")
    )
    streampca.fit(field, sample_axes=["lat"], n_components=2)
    assert "date of another" not in caplog.text
