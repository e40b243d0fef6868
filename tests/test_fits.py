"""FITS files, with astropy's values as the oracle."""

from __future__ import annotations

import os
import sys

import contract
import numpy as np
import pytest
from contract import read_all, refused_as
from sources import SKY, SOURCES

from streampca.errors import RequestError
from streampca.readers import open_collection
from streampca.readers.fits import open_fits_image

fits = pytest.importorskip("astropy.io.fits", reason="the extra streampca[fits]")

N, Y, X = SKY


def values(dtype, shape=SKY):
    return contract.values(dtype, shape)


def decoded(path, number=0):
    """Return astropy's values, in native byte order where it has scaled them."""
    with fits.open(path, memmap=False) as hdus:
        return hdus[number].data.copy()


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_every_type_is_read_exactly(tmp_path, dtype):
    """Unsigned and signed integers have no type of their own in FITS, only an offset."""
    x = values(dtype)
    fits.PrimaryHDU(x).writeto(tmp_path / "x.fits")
    read = read_all(open_collection(tmp_path / "x.fits"))
    assert read.dtype.newbyteorder("=") == x.dtype
    np.testing.assert_array_equal(read, x)


@pytest.mark.parametrize(
    ("dtype", "header"),
    [
        ("i2", {"BLANK": -1}),
        ("i4", {"BSCALE": 0.25}),
        ("i4", {"BZERO": 100.0, "BLANK": -1}),
        ("u1", {"BSCALE": 2.0, "BLANK": 255}),
        ("f4", {"BZERO": 1.5}),
    ],
)
def test_scaled_values_are_those_of_astropy(tmp_path, dtype, header):
    hdu = fits.PrimaryHDU(values(dtype))
    hdu.data.reshape(-1)[:5] = [0, 255, 3, 3, 1] if dtype == "u1" else [0, -1, 3, 3, 1]
    for name, value in header.items():
        hdu.header[name] = value
    hdu.writeto(tmp_path / "x.fits")
    expected = decoded(tmp_path / "x.fits")
    read = read_all(open_collection(tmp_path / "x.fits"))
    assert read.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(read, expected)


@pytest.mark.parametrize(("zero", "blank"), [(32768.0, 3), (100.0, 0)], ids=["unsigned", "zero"])
def test_blanks_are_missing_where_astropy_keeps_their_number(tmp_path, zero, blank):
    """By section 5.3 of the standard any BLANK is missing, also in unsigned integers."""
    x = values("i2")
    x[2, 3:5] = blank
    hdu = fits.PrimaryHDU(x)
    hdu.header["BZERO"], hdu.header["BLANK"] = zero, blank
    hdu.writeto(tmp_path / "x.fits")
    read = read_all(open_collection(tmp_path / "x.fits"))
    np.testing.assert_array_equal(read, np.where(x == blank, np.nan, x + np.float32(zero)).astype("f4"))


def several(path):
    x = values("f4")
    table = fits.BinTableHDU.from_columns([fits.Column("a", "J", array=[1])])
    hdus = [fits.PrimaryHDU(), fits.ImageHDU(x, name="SCI"), table, fits.ImageHDU(x * 2, name="ERR"), fits.ImageHDU(-x)]
    fits.HDUList(hdus).writeto(path)
    return x


def test_the_key_is_a_number_or_a_name(tmp_path):
    path = tmp_path / "x.fits"
    x = several(path)
    for key, expected in {"SCI": x, "sci": x, "1": x, "3": x * 2, "ERR": x * 2, "4": -x}.items():
        np.testing.assert_array_equal(read_all(open_collection(path, key=key)), expected)
    refused_as(path, r"holds 3 arrays, SCI \(11 x 12 x 13 .*\), ERR .*.*key='SCI'")
    refused_as(path, r"has no array 'SCO'; it holds .* Did you mean 'SCI'", error=RequestError, key="SCO")


def test_axes_have_the_names_of_the_header(tmp_path):
    hdu = fits.PrimaryHDU(values("f4", (2, 5, 6, 7)))
    hdu.header["CTYPE3"], hdu.header["CTYPE4"] = "FREQ-LSR", "STOKES"
    hdu.writeto(tmp_path / "x.fits")
    collection = open_collection(tmp_path / "x.fits")
    assert collection.dims == ("stokes", "freq", "y", "x")
    assert collection.shape == (2, 5, 6, 7)
    assert open_collection(tmp_path / "x.fits", sample_axes=("freq",)).shape == (84, 5)


def test_broken_files_are_named(tmp_path):
    path = tmp_path / "x.fits"
    fits.PrimaryHDU(values("f4")).writeto(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:5000])
    refused_as(path, r"HDU 0 has 5000 bytes and its header \(.*\) announces 9744; it was cut short")
    path.write_bytes(whole[:900])
    refused_as(path, "cannot be decoded")
    path.write_bytes(whole.replace(b"BITPIX  =                  -32", b"BITPIX  =                  -31"))
    refused_as(path, "cannot be decoded")


def test_broken_tiles_are_named(tmp_path):
    path = tmp_path / "x.fits"
    SOURCES["fits, Rice"](tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: 2880 * 3 + 100])
    refused_as(path, "x.fits")


def test_values_of_the_header_are_checked(tmp_path):
    path = tmp_path / "x.fits"
    hdu = fits.PrimaryHDU(values("i2"))
    hdu.header["BSCALE"] = 0.5
    hdu.writeto(path)
    path.write_bytes(path.read_bytes().replace(b"BSCALE  =                  0.5", b"BSCALE  = 'ab'".ljust(30)))
    refused_as(path, "HDU 0 has BSCALE 'ab', which is not a finite number")


def test_tables_alone_are_no_images(tmp_path):
    fits.BinTableHDU.from_columns([fits.Column("a", "J", array=[1])]).writeto(tmp_path / "x.fits")
    refused_as(tmp_path / "x.fits", "has no image HDU with values in it")


def test_without_astropy_the_remedy_is_named(tmp_path, monkeypatch):
    fits.PrimaryHDU(values("f4")).writeto(tmp_path / "x.fits")
    monkeypatch.setitem(sys.modules, "astropy.io", None)
    monkeypatch.setitem(sys.modules, "astropy", None)
    refused_as(tmp_path / "x.fits", r"astropy, which reads those, is not installed; pip install 'streampca\[fits\]'")


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "f4", "f8"])
def test_one_image_a_file(tmp_path, dtype):
    x = values(dtype)
    for at, image in enumerate(x):
        fits.PrimaryHDU(image[None] if at % 2 else image).writeto(tmp_path / f"{at}.fits")
    picture = open_fits_image(str(tmp_path / "3.fits"))
    assert (picture.shape, picture.dtype.newbyteorder("=")) == ((Y, X), x.dtype)
    np.testing.assert_array_equal(picture.load(), x[3])
    collection = open_collection(tmp_path)
    np.testing.assert_array_equal(read_all(collection), x)
    assert collection.where(4) == os.path.join(str(tmp_path), "4.fits")
    fits.PrimaryHDU(x).writeto(tmp_path / "11.fits")
    refused_as(tmp_path, r"11\.fits, HDU 0 has shape 11 x 12 x 13, and a file of a folder, glob or list is one image")
