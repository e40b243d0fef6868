"""Folders, globs and lists: all files decide how they are read, and none is left out silently."""

from __future__ import annotations

import gzip
import io
import os
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import tifffile
from contract import refused, refused_as
from PIL import Image
from shell import succeeded
from sources import save

import streampca
from streampca.readers import open_collection
from streampca.readers.views.joined import Joined


def values(shape=(8, 6), seed=0, dtype="u1"):
    return np.random.default_rng(seed).integers(0, 200, shape).astype(dtype)


def stack(path, pages):
    tifffile.imwrite(path, pages, photometric="minisblack", metadata=None)
    return path


@pytest.fixture
def images(tmp_path):
    """Six pictures in a folder."""
    for at in range(6):
        save(tmp_path / "in" / f"img{at}.png", values(seed=at))
    return tmp_path / "in"


# --- stacks and cubes among images ---


@pytest.mark.parametrize("name", ["atlas.tif", "img2b.tif", "zoom.tif"])
@pytest.mark.parametrize("source", ["{}", "{}/*"])
def test_a_stack_among_images_is_named_wherever_it_stands(images, name, source):
    path = stack(images / name, values((5, 8, 6)))
    source = source.format(images)
    refused(source, f"{path} has 5 pages", 'on_bad_file="skip"')
    found = open_collection(source, on_bad_file="skip")
    assert found.shape == (6, 8, 6)
    assert [left.path for left in found.skipped] == [str(path)]
    assert open_collection(f"{images}/*.png").n_samples == 6
    assert open_collection(path).n_samples == 5


def test_a_cube_among_images_is_named_wherever_it_stands(images):
    fits = pytest.importorskip("astropy.io.fits")
    fits.writeto(images / "a.fits", values((4, 8, 6), dtype="u1"))
    refused(images, "a.fits, HDU 0 has shape 4 x 8 x 6")
    found = open_collection(images, on_bad_file="skip")
    assert found.shape == (6, 8, 6)
    assert [os.path.basename(left.path) for left in found.skipped] == ["a.fits"]


def test_where_most_are_stacks_every_file_is_taken(tmp_path):
    pages = values((6, 8, 6))
    save(tmp_path / "a.png", pages[0])
    stack(tmp_path / "b.tif", pages[1:3])
    (tmp_path / "deeper").mkdir()
    stack(tmp_path / "deeper" / "c.tif", pages[3:6])
    found = open_collection(tmp_path)
    assert isinstance(found, Joined)
    np.testing.assert_array_equal(found.read(slice(0, 6)), pages.reshape(6, -1))
    save(tmp_path / "a.png", values((9, 6)))
    refused(tmp_path, "b.tif has images of 8 x 6", 'on_bad_file="skip"')
    kept = open_collection(tmp_path, on_bad_file="skip")
    np.testing.assert_array_equal(kept.read(slice(0, 5)), pages[1:].reshape(5, -1))
    assert [os.path.basename(left.path) for left in kept.skipped] == ["a.png"]


def test_the_parts_that_are_kept_are_those_most_are_like(tmp_path):
    np.save(tmp_path / "0.npy", values((2, 3, 3)))
    for at in range(1, 4):
        np.save(tmp_path / f"{at}.npy", values((2, 4, 5)))
    found = open_collection(tmp_path, on_bad_file="skip")
    assert found.shape == (6, 4, 5)
    assert [os.path.basename(left.path) for left in found.skipped] == ["0.npy"]
    assert "has images of 3 x 3, unlike" in found.skipped[0].reason


# --- arrays among images ---


def test_arrays_beside_folders_of_images_do_not_stand_for_them(images):
    np.save(images.parent / "scores.npy", values((3, 4)))
    assert open_collection(images.parent).shape == (6, 8, 6)


def test_more_arrays_than_images_are_refused_by_number(tmp_path):
    save(tmp_path / "plot.png", values())
    for at in range(3):
        np.save(tmp_path / f"{at}.npy", values((2, 4, 4)))
    for source in (tmp_path, f"{tmp_path}/*"):
        refused(source, "3 files of arrays (.npy (3)) and 1 of images (.png (1))")
    assert open_collection(f"{tmp_path}/*.npy").shape == (6, 4, 4)
    assert open_collection(f"{tmp_path}/*.png").shape == (1, 8, 6)


# --- other formats ---


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("x.webp", {"lossless": True}),
        ("x.jp2", {}),
        ("x.j2k", {}),
        ("x.avif", {"quality": 100, "subsampling": "4:4:4"}),
    ],
)
def test_newer_formats_are_read(images, name, options):
    pixels = values((8, 6, 3), seed=9)
    save(images / name, pixels, **options)
    assert open_collection(images).n_samples == 7
    read = open_collection([images / name]).read(slice(0, 1)).reshape(8, 6, 3)
    with Image.open(images / name) as image:
        np.testing.assert_array_equal(read, np.asarray(image.convert("RGB")))
    if name != "x.avif":
        np.testing.assert_array_equal(read, pixels)


@pytest.mark.parametrize("depth", [8, 12, 16])
@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 3)])
def test_jpeg_2000_keeps_values_as_stored(tmp_path, depth, shape):
    import imagecodecs

    pixels = np.random.default_rng(0).integers(0, 2**depth, shape).astype("u1" if depth == 8 else "u2")
    for codec in ("jp2", "j2k"):
        path = tmp_path / f"x.{codec}"
        path.write_bytes(imagecodecs.jpeg2k_encode(pixels, codecformat=codec, bitspersample=depth, reversible=True))
        found = open_collection([str(path)])
        assert (found.shape, found.dtype) == ((1, *shape), pixels.dtype)
        np.testing.assert_array_equal(found.read(slice(0, 1)).reshape(shape), pixels)
    path.write_bytes(path.read_bytes()[:60])
    refused_as([str(path)], r"x\.j2k")


def test_avif_of_more_bits_is_refused(tmp_path):
    import imagecodecs

    path = tmp_path / "x.avif"
    pixels = np.random.default_rng(0).integers(0, 1024, (16, 16, 3)).astype("u2")
    path.write_bytes(imagecodecs.avif_encode(pixels, bitspersample=10))
    refused_as([str(path)], "AVIF of more than 8 bits a channel")


def test_formats_that_are_not_read_are_counted_and_named(images):
    for at in range(3):
        (images / f"photo{at}.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(200))
    # A camera's own format: a TIFF file whose first page is a preview.
    stack(images / "raw.nef", values((1, 8, 6)))
    for source in (images, f"{images}/*"):
        refused(source, "holds 4 files of image formats that are not read (.heic (3), .nef (1)) and 6 others")
        found = open_collection(source, on_bad_file="skip")
        assert found.shape == (6, 8, 6)
        assert [os.path.basename(path) for path, _ in found.skipped] == [
            "photo0.HEIC", "photo1.HEIC", "photo2.HEIC", "raw.nef"
        ]  # fmt: skip
        assert "it is HEIF" in found.skipped[0].reason
        assert "previews" in found.skipped[3].reason


def test_packed_fits_images_are_images_too(tmp_path):
    fits = pytest.importorskip("astropy.io.fits")
    pixels = values((3, 8, 6))
    for at in range(3):
        with io.BytesIO() as file:
            fits.writeto(file, pixels[at])
            whole = file.getvalue()
        if at == 1:
            (tmp_path / "1.fits.gz").write_bytes(gzip.compress(whole))
        else:
            (tmp_path / f"{at}.fits").write_bytes(whole)
    np.testing.assert_array_equal(open_collection(tmp_path).read(slice(0, 3)), pixels.reshape(3, -1))


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (bytes(128) + b"DICM", "it is DICOM"),
        (b"\0\0\0\x20ftypheic", "it is HEIF"),
        (b"\0\0\0\x20ftypmp42", "it is a video"),
        (b"RIFF\0\0\0\0AVI LIST", "it is a video"),
        (b"", "it is empty (0 bytes); copy or save it again"),
        (bytes(200), "begins like none of"),
        (b"RIFF\0\0\0\0abcd", "begins like none of"),
        (b"\0\0\0\0\1", "begins like none of"),
    ],
)
def test_a_format_is_named_by_what_tells_it(images, start, said):
    (images / "x.png").write_bytes(start)
    refused(images, f"{images}/x.png", said)


# --- globs, lists and their remedies ---


def test_text_beside_arrays_is_no_part_of_them(tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    for at in range(2):
        data = xarray.DataArray(values((3, 4, 5), at, "f4"), dims=("time", "lat", "lon"), name="sst")
        data.to_netcdf(tmp_path / f"{at}.nc")
    (tmp_path / "README.txt").write_text("sea surface temperature")
    for source in (tmp_path, f"{tmp_path}/*"):
        assert open_collection(source).shape == (6, 4, 5)
    assert "samples     6" in succeeded("info", f"{tmp_path}/*")


def test_a_list_of_arrays_and_text_names_the_text(tmp_path):
    np.save(tmp_path / "a.npy", values((3, 4, 5)))
    (tmp_path / "notes.txt").write_text("notes")
    paths = [tmp_path / "a.npy", tmp_path / "notes.txt"]
    refused(paths, "notes.txt is not of a known format")
    assert open_collection(paths, on_bad_file="skip").shape == (3, 4, 5)


def test_a_glob_of_folders_finds_images_beside_other_files(tmp_path):
    for at in range(4):
        save(tmp_path / "cls" / "ab"[at % 2] / f"{at}.png", values(seed=at))
    (tmp_path / "cls" / "notes.txt").write_text("notes")
    found = open_collection(f"{tmp_path}/cls/*", labels="folder")
    assert list(found.sample_names()) == ["a/0.png", "a/2.png", "b/1.png", "b/3.png"]
    save(tmp_path / "cls" / "cover.png", values(seed=4))
    np.save(tmp_path / "cls" / "labels.npy", np.arange(5))
    assert open_collection(f"{tmp_path}/cls/*").n_samples == 5
    assert open_collection(f"{tmp_path}/cls/**/*.png").n_samples == 5


def test_images_without_an_ending_are_refused_with_a_remedy_that_works(tmp_path):
    folder = tmp_path / "gifs"
    for at in range(3):
        save(folder / f"subject{at}.normal", values(seed=at), format="GIF")
        save(folder / f"subject{at}", values(seed=at), format="GIF")
    refused(folder, ".normal (3), none (3)", "@list.txt, or a list of paths")
    paths = sorted(folder.iterdir())
    (tmp_path / "list.txt").write_text("".join(f"gifs/{path.name}\n" for path in paths))
    for source in (paths, f"@{tmp_path}/list.txt"):
        assert open_collection(source).shape == (6, 8, 6)


def test_a_folder_of_idx_files_is_refused_with_a_remedy_that_works(tmp_path):
    for name, shape in (("train-labels-idx1-ubyte.gz", (5,)), ("t10k-images-idx3-ubyte.gz", (5, 4, 3))):
        start = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
        (tmp_path / name).write_bytes(gzip.compress(start + bytes(int(np.prod(shape)))))
    (tmp_path / "notes").write_text("notes")
    given = f"{tmp_path}/t10k-images-idx3-ubyte.gz"
    refused(tmp_path, "t10k-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz)", f"such as {given}.")
    assert open_collection(given).shape == (5, 4, 3)


def test_brackets_of_a_name_are_no_pattern_in_brackets(tmp_path):
    for at in range(2):
        save(tmp_path / "day [1]" / f"{at}.png", values(seed=at))
    refused(f"{tmp_path}/day [1]/*.png", "matches no files, as [ ] of a pattern", f"'{tmp_path}/day [[]1]/*.png'")
    assert open_collection(f"{tmp_path}/day [[]1]/*.png").n_samples == 2
    refused(f"{tmp_path}/day [[]2]/*.png", "matches no files; give a folder or glob")


def matlab_7_3(path, pixels):
    """Write a file as MATLAB's -v7.3 does, HDF5 behind 512 bytes of text."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file["x"] = pixels
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file")
    return path


def test_matlab_files_are_read_or_refused_with_a_remedy_that_works(tmp_path):
    folder = tmp_path / "mats"
    folder.mkdir()
    for at in range(2):
        matlab_7_3(folder / f"{at}.mat", values((3, 4, 5), at))
    for source in (folder, f"{folder}/*.mat", sorted(folder.iterdir())):
        assert open_collection(source).shape == (6, 4, 5)
    old = tmp_path / "old.mat"
    scipy.io.savemat(old, {"x": values()})
    refused(old, "MATLAB file of version 5 to 7", "-v7.3")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_list_may_begin_with_a_byte_order_mark(images, mark, ends):
    path = images.parent / "list.txt"
    path.write_bytes(mark + "".join(f"in/img{at}.png{ends}" for at in (3, 1)).encode())
    assert list(open_collection(f"@{path}").sample_names()) == ["img3.png", "img1.png"]


def test_a_missing_entry_of_a_list_is_skipped_on_request(images):
    path = images.parent / "list.txt"
    path.write_text("in/img3.png\nin/gone.png\nin/img1.png\n")
    refused(f"@{path}", "gone.png does not exist", 'on_bad_file="skip"')
    found = open_collection(f"@{path}", on_bad_file="skip")
    assert list(found.sample_names()) == ["img3.png", "img1.png"]
    ((left, reason),) = found.skipped
    assert left == str(images / "gone.png")
    assert "No such file" in reason
    table = Path(images.parent / "table.csv")
    table.write_text("file\nin/img3.png\nin/gone.png\nin/img1.png\n")
    assert streampca.open_collection(f"{table}:file", on_bad_file="skip").n_samples == 2
