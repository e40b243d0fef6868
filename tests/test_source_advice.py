"""Sources that people really give: each message names what is the matter, and what it says to do works."""

from __future__ import annotations

import glob
import gzip
import re
import shlex

import h5py
import numpy as np
import pytest
import zarr
from contract import everything, refused, said
from PIL import Image

from streampca import fit, load
from streampca.cli.config import load_run
from streampca.errors import DataError, RequestError, SourceError
from streampca.preprocessing.mask_files import read_mask
from streampca.readers import open_collection
from streampca.readers.dates import dates_in

POINTERS = {
    "git lfs pull": b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 123456\n" % 7,
    "git annex get": b"/annex/objects/SHA256E-s123--%064d.png\n" % 7,
}


# --- files that stand for others ---


@pytest.mark.parametrize("command", POINTERS)
@pytest.mark.parametrize(
    "name",
    [
        "a.npy", "a.npz", "a.h5", "a.nc", "a.nc4", "a.tif", "a.png", "a.fits.gz", "a.csv", "a.mat", "a.jp2", "a.dat",
        "a.pgm", "train-images-idx3-ubyte", "a.zarr/zarr.json", "a.zarr/.zarray",
    ],
)  # fmt: skip
def test_a_file_that_was_not_fetched_is_named_by_every_reader(tmp_path, name, command):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(POINTERS[command])
    with pytest.raises(SourceError) as caught:
        open_collection(tmp_path / name.partition("/")[0])
    said(caught, path, command)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: open_collection(np.zeros((5, 3)), labels=f"{path}.csv:label"),
        lambda path: open_collection(np.zeros((5, 3)), labels=f"{path}.npy"),
        lambda path: open_collection(f"@{path}.txt"),
        lambda path: read_mask(f"{path}.npy"),
        lambda path: load(f"{path}.zarr"),
        lambda path: load_run(f"{path}.yaml"),
        lambda path: everything(f"{path}s.zarr"),
        lambda path: everything(f"{path}s"),
    ],
    ids=["table", "labels", "list", "mask", "model", "run file", "chunk", "image"],
)
def test_a_file_beside_the_source_that_was_not_fetched_is_named(tmp_path, read):
    command = "git lfs pull"
    array = zarr.create_array(tmp_path / "as.zarr", shape=(4, 3), chunks=(1, 3), dtype="f4")
    array[:] = 1
    for folder in ("a.zarr", "as"):
        (tmp_path / folder).mkdir()
    for name in ("a.csv", "a.npy", "a.txt", "a.yaml", "a.zarr/zarr.json", "as.zarr/c/2/0", "as/1.png"):
        (tmp_path / name).write_bytes(POINTERS[command])
    with pytest.raises(SourceError) as caught:
        read(tmp_path / "a")
    said(caught, tmp_path, command)


def test_images_that_were_not_fetched_can_be_left_out(tmp_path):
    for at in range(4):
        Image.fromarray(np.full((5, 4), at, np.uint8)).save(tmp_path / f"{at}.png")
    (tmp_path / "2.png").write_bytes(POINTERS["git lfs pull"])
    (tmp_path / "notes").write_bytes(POINTERS["git lfs pull"])  # no image: nothing reads it
    refused(tmp_path, "2.png", "git lfs pull", 'on_bad_file="skip"')
    for source in (tmp_path, f"{tmp_path}/*"):
        assert open_collection(source, on_bad_file="skip").n_samples == 3


# --- formats of others ---


@pytest.mark.parametrize(
    ("name", "start", "advice"),
    [
        ("a.nii", bytes(344) + b"n+1\0", "NIfTI; save its array by nibabel"),
        ("a.nii.gz", gzip.compress(bytes(344) + b"n+1\0", mtime=0), "NIfTI; save its array by nibabel"),
        ("a.dat", bytes(4) + b"n+2\0", "NIfTI; save its array by nibabel"),
        ("a.czi", b"ZISRAWFILE", "Zeiss CZI; convert it to OME-Zarr, as by bioformats2raw"),
        ("a.nd2", b"\xda\xce\xbe\n", "Nikon ND2; convert it to OME-Zarr, as by bioformats2raw"),
        ("b.nd2", b"\0\0\0\x0cjP  \r\n", "Nikon ND2; convert it to OME-Zarr, as by bioformats2raw"),
        ("a.lif", b"p\0\0\0\x10\0\0\0*", "Leica LIF; convert it to OME-Zarr, as by bioformats2raw"),
        ("a.mrc", b"@\0\0\0" + bytes(204) + b"MAP ", "MRC; save its array by mrcfile"),
        ("a.grib2", b"GRIB\0\0\0\2", "GRIB; convert it to NetCDF, as by cdo -f nc4 copy"),
        ("a.mov", bytes(4) + b"moov", "a video; save its frames as images, as by ffmpeg -i"),
        ("a.mkv", b"\x1aE\xdf\xa3", "a video; save its frames as images, as by ffmpeg -i"),
        ("a.mpg", b"\0\0\x01\xba", "a video; save its frames as images, as by ffmpeg -i"),
    ],
)
def test_formats_that_are_not_read_are_named_with_what_converts_them(tmp_path, name, start, advice):
    path = tmp_path / "data" / name
    path.parent.mkdir()
    path.write_bytes(start + bytes(1024))
    refused(path, path, f"it is {advice}")
    if name != "a.dat":  # in a folder, known by the name alone
        refused(path.parent, advice.replace(";", ":"))


# --- one image ---

IMAGES = {  # values, names of axes; what messages offer besides more images, and the number of samples that it gives
    "grey": ((40, 30), "yx", {"patches": (16, 2), "sample_axes": (("x",), 40)}),
    "channels first": ((5, 40, 30), "cyx", {"patches": (16, 2), "sample_axes": (("y", "x"), 5)}),
    "channels last": ((40, 30, 5), "yxc", {"patches": (16, 2), "sample_axes": (("y", "x"), 5)}),
    "levels": ((1, 5, 40, 30), "tzyx", {"sample_axes": (("y", "x"), 5)}),
    "one level": ((1, 1, 40, 30), "tzyx", {"sample_axes": (("x",), 40)}),
    "small": ((3, 4), "yx", {"patches": (2, 2), "sample_axes": (("x",), 3)}),
    "too small": ((3, 2, 3), "cyx", {"sample_axes": (("y", "x"), 3)}),
    "colours": ((1, 40, 30, 3), None, {"patches": (16, 2), "sample_axes": ((1, 2), 3)}),
    "without names": ((1, 40, 30), None, {"patches": (16, 2), "sample_axes": ((2,), 40)}),
}


@pytest.mark.parametrize(("shape", "names", "offered"), IMAGES.values(), ids=IMAGES)
def test_one_image_is_offered_what_makes_samples_of_it(tmp_path, shape, names, offered):
    pixels = np.random.default_rng(0).random(shape)
    zarr.create_array(tmp_path / "a.zarr", data=pixels, dimension_names=names and list(names))
    with pytest.raises((RequestError, DataError)) as caught:
        fit(str(tmp_path / "a.zarr"), n_components=1)
    message = said(caught, "a.zarr")
    for option in ("patches", "sample_axes"):
        value, count = offered.get(option, (None, 0))
        assert (f" by {option}={value!r}" in message) == bool(count), message
        if count:
            assert open_collection(tmp_path / "a.zarr", **{option: value}).n_samples == count
            assert fit(str(tmp_path / "a.zarr"), n_components=1, **{option: value}).n_samples == count


def test_one_image_file_is_offered_its_channels(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 9, (12, 10, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(DataError) as caught:
        fit(str(tmp_path / "a.png"), n_components=1)
    said(caught, "patches=6, or count samples along axis channel by sample_axes=('y', 'x')")
    assert open_collection(tmp_path / "a.png", sample_axes=("y", "x")).n_samples == 3
    assert open_collection(tmp_path / "a.png", patches=6).n_samples == 2


# --- one of several arrays ---


def nwb(path):
    """A file as neurophysiology has it: texts, times and tables around the images."""
    with h5py.File(path, "w") as file:
        file["file_create_date"] = np.array([b"2020-01-01", b"2020-01-02"], h5py.string_dtype())
        file["acquisition/frames/timestamps"] = np.arange(30.0)
        file["general/electrodes/x"] = np.zeros((5, 3))
        file["acquisition/frames/data"] = np.arange(30 * 8 * 8, dtype="u2").reshape(30, 8, 8)
        file["processing/masks"] = np.zeros((2, 8, 8), "f4")


def texts_and_times(path):
    with h5py.File(path, "w") as file:
        file["file_create_date"] = np.array([b"2020-01-01", b"2020-01-02"], h5py.string_dtype())
        file["stop"], file["start"] = np.arange(3.0), np.arange(30.0)


def archive(path):
    with open(path, "wb") as file:
        np.savez(file, names=np.array([["a", "b"]] * 2), mean=np.zeros((4, 5)), images=np.zeros((9, 4, 5)))


@pytest.mark.parametrize(
    ("write", "offered", "shape"),
    [
        (nwb, ["acquisition/frames/data", "processing/masks", "general/electrodes/x"], (30, 8, 8)),
        (texts_and_times, ["start", "stop"], None),
        (archive, ["images", "mean"], (9, 4, 5)),
    ],
)
def test_arrays_of_numbers_are_offered_the_largest_first(tmp_path, write, offered, shape):
    path = tmp_path / ("a.npz" if write is archive else "a.nwb")
    write(path)
    message = refused(path, f"holds {len(offered)} arrays", f"; say which with key={offered[0]!r}.")
    assert [word for word in message.split() if word in offered] == offered
    if shape is not None:
        assert open_collection(path, key=offered[0]).shape == shape


def plate(path, wells, fields):
    root = zarr.open_group(path, mode="w", zarr_format=2)
    root.attrs["plate"] = {"wells": [{"path": well} for well in wells]}
    for number, well in enumerate(wells):
        root.create_group(well).attrs["well"] = {"images": [{"path": field} for field in fields]}
        for field in fields:
            picture = root.create_group(f"{well}/{field}")
            picture.attrs["multiscales"] = [{"axes": ["c", "y", "x"], "datasets": [{"path": "0"}], "version": "0.3"}]
            picture.create_array("0", data=np.full((2, 6, 5), number + 1, "u2"), chunks=(1, 6, 5))


@pytest.mark.parametrize("name", ["plate.zarr", "plate [1] of it.zarr"])
def test_a_plate_offers_a_field_of_every_well(tmp_path, name):
    wells = ["A/1", "A/2", "B/1"]
    plate(tmp_path / name, wells, ["0", "1"])
    message = refused(tmp_path / name, "6 pictures", "key='A/1/0/0'")
    (pattern,) = shlex.split(message.partition("every well by ")[2].removesuffix("."))
    assert pattern == f"{glob.escape(str(tmp_path / name))}/*/*/0"
    found = open_collection(pattern, sample_axes=("y", "x"))
    assert found.shape == (6, 6, 5)
    np.testing.assert_array_equal(found.read(slice(0, 6))[:, 0], [1, 1, 2, 2, 3, 3])


# --- folders of systems ---

SYSTEM_FOLDERS = (
    "$RECYCLE.BIN",
    "@eaDir",
    "System Volume Information",
    "lost+found",
    "__MACOSX",
    ".thumbnails",
    "thumbnails",
)


@pytest.mark.parametrize("folder", SYSTEM_FOLDERS)
@pytest.mark.parametrize("ending", ["png", "npy"])
def test_folders_of_systems_are_left_out_and_said_once(tmp_path, caplog, folder, ending):
    def save(path, number):
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((2, 4, 3) if ending == "npy" else (4, 3), number, np.uint8)
        np.save(path, pixels) if ending == "npy" else Image.fromarray(pixels).save(path)

    for number in range(4):
        save(tmp_path / "scans" / "ab"[number % 2] / f"{number}.{ending}", number)
    save(tmp_path / "scans" / folder / f"4.{ending}", 4)
    pattern = f"{tmp_path}/scans/*"
    sources = {"pattern": f"{pattern}/*.{ending}", "recursive": f"{tmp_path}/scans/**/*.{ending}"}
    if ending == "png":
        sources |= {
            "folder": tmp_path / "scans",
            "list": [tmp_path / "scans", tmp_path / "scans/a/0.png"],
            "*": pattern,
        }
    for name, source in sources.items():
        caplog.clear()
        found = open_collection(source, duplicates="first")
        assert found.n_samples == (8 if ending == "npy" else 4), name
        assert not any(folder in path for path in found.sample_names() or ())
        found.states(now=True)
        if not (folder.startswith(".") and "*" in str(source)):  # which no pattern matches
            assert [folder in line for line in caplog.messages if "keep for themselves" in line] == [True], name
    save(tmp_path / "scans" / folder / f"5.{ending}", 5)
    assert open_collection(f"{tmp_path}/scans/{folder}/*").n_samples == (4 if ending == "npy" else 2)


# --- tables and lists ---


@pytest.mark.parametrize(
    ("name", "text", "source", "message", "mended"),
    [
        ("a.csv", "file;label\na.npy;1\n", "{}:file", "separates its columns by semicolons", "file,label\na.npy,1\n"),
        ("a.csv", "file\tlabel\na.npy\t1\n", "{}:file", "separates its columns by tabs", "file,label\na.npy,1\n"),
        ("a.tsv", "file,label\na.npy,1\n", "{}:file", "separates its columns by commas", "file\tlabel\na.npy\t1\n"),
        ("a.csv", "file,file\na.npy,b.npy\n", "{}:file", "2 columns 'file'; give each a name", "file,b\na.npy,b.npy\n"),
        ("a.csv", "file,label\na.npy,1\n".encode("utf-16"), "{}:file", "is UTF-16; save it as UTF-8", "file\na.npy\n"),
        ("a.txt", "a.npy\n".encode("utf-16"), "@{}", "is UTF-16; save it as UTF-8", "a.npy\n"),
        ("a.txt", "a.npy\n".encode("utf-16-be"), "@{}", "as UTF-16 has; save it as UTF-8", "a.npy\n"),
        ("a.txt", "é.npy\n".encode("latin-1"), "@{}", "is not UTF-8; save it as UTF-8", "a.npy\n"),
        ("a.txt", '"a.npy"\n', "@{}", "in quotation marks, such as \"a.npy\"; write them without", "a.npy\n"),
        ("a.csv", "file,label\na.npy,1\n", "@{}", "take its column of paths by {}:COLUMN", "a.npy\n"),
    ],
)  # fmt: skip
def test_tables_and_lists_that_are_not_as_their_names_say(tmp_path, name, text, source, message, mended):
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((SourceError, RequestError)) as caught:
        open_collection(source.format(path))
    said(caught, path, message.format(path))
    path.write_text(mended)
    assert open_collection(source.format(path)).n_samples == 3


@pytest.mark.parametrize("source", ["{}", "{}:p1"])
@pytest.mark.parametrize("text", ["p1,p2\n1,2.5\n3,4\n", "p1;p2\n1;2.5\n3;4\n", "1,2.5\n3,4\n"])
def test_a_table_of_pixels_is_told_how_it_becomes_an_array(tmp_path, monkeypatch, source, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pixels.csv").write_text(text)
    if ":" in source and not text.startswith("p1,"):  # another fault is named first
        return
    message = refused(source.format("pixels.csv"))
    call = re.search(r"numpy\.save\('(.*?)', numpy\.loadtxt\('(.*?)', delimiter='(.)'(, skiprows=1)?\)\)", message)
    np.save(call[1], np.loadtxt(call[2], delimiter=call[3], skiprows=int(bool(call[4]))))
    np.testing.assert_array_equal(everything(call[1]), [[1, 2.5], [3, 4]])


# --- times ---


def test_a_table_of_blank_lines_is_no_table_of_numbers(tmp_path):
    (tmp_path / "t.tsv").write_text("\t\t\n\t\t\n")
    with pytest.raises(SourceError, match="is a table: scores are read as"):
        open_collection(tmp_path / "t.tsv")


@pytest.mark.parametrize(
    ("units", "values", "dates", "calendar"),
    [
        ("months since 1960-01-01", [0, 1, 13.5], ["1960-01-01", "1960-02-01", "1961-02-15"], None),
        ("months since 1999-11-15 12:00", [0, 1, 2], ["1999-11-15T12", "1999-12-15T12", "2000-01-15T12"], None),
        ("month since 2000-01-31", [0, 1, 2], ["2000-01-31", "2000-02-29", "2000-03-31"], None),
        ("years since 1990-01-01", [0, 1, 10.5], ["1990-01-01", "1991-01-01", "2000-07-01"], None),
        ("day as %Y%m%d.%f", [19790116.5, 19790228, 19800301], ["1979-01-16T12", "1979-02-28", "1980-03-01"], None),
        ("months since 1960-01-01", [-1, 2, 12], ["1959-12-01", "1960-03-01", "1961-01-01"], "proleptic_gregorian"),
        ("day as %Y%m%d.%f", [19790116, 19790232, 19800301], None, None),  # 32nd of February
        ("months since the flood", [0, 1, 2], None, None),
        ("months since 2000-13-01", [0, 1, 2], None, None),
        ("months since 2000-01-99", [0, 1, 2], None, None),
        ("months since 2000-01-01", [0, 1, 1e300], None, None),
    ],
)  # fmt: skip
def test_months_years_and_digits_of_dates_are_dates(tmp_path, units, values, dates, calendar):
    attributes = {"units": units} | ({} if calendar is None else {"calendar": calendar})
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["t"] = np.zeros((4, 3, 2))  # first axis of another length, so that names alone tell which one has dates
        file["z"] = np.random.default_rng(0).random((2, 3))
        file["when"] = np.array(values, "f8")
        file["when"].attrs.update(attributes)
        file["when"].make_scale("when")
        file["z"].dims[1].attach_scale(file["when"])
    found = open_collection(tmp_path / "a.nc", key="z")
    if dates is None:
        assert dates_in(found.sample_coordinates()["when"]) is None
        return
    assert found.sample_axis == "when"
    np.testing.assert_array_equal(
        dates_in(found.sample_coordinates()["when"]).moments, np.array(dates, "datetime64[s]")
    )
    assert open_collection(tmp_path / "a.nc", key="z", sel={"when": dates[1]}).n_samples == 1
