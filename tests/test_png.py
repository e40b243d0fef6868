"""PNG files decoded by libpng are what Pillow reads; those that say more than pixels are left to Pillow."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from contract import values
from PIL import Image, PngImagePlugin
from sources import png_chunk

from streampca.errors import SourceError
from streampca.readers.image_files import png
from streampca.readers.image_files.decode import read_header, read_picture

BANDS = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,), "I;16": ()}


def saved(path, mode, **options):
    x = values("u2" if mode == "I;16" else "u1", (7, 9, *BANDS[mode]))
    Image.fromarray(x).save(path, **options)
    return x


def without_pillow(monkeypatch):
    def refuse(file, path):
        raise AssertionError(f"Pillow was asked for {path}")

    monkeypatch.setattr(png, "open_bitmap", refuse)


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("mode", BANDS)
def test_plain_pixels_need_no_pillow(tmp_path, monkeypatch, mode, described):
    """Whatever else the file tells: text, resolution, a colour profile."""
    info = PngImagePlugin.PngInfo()
    info.add_text("title", "x" * 9000)
    options = {"pnginfo": info, "dpi": (300, 300), "icc_profile": b"profile" * 40} if described else {}
    x = saved(tmp_path / "x.png", mode, **options)
    without_pillow(monkeypatch)
    assert read_header(tmp_path / "x.png") == ((x.shape, x.dtype), None)
    np.testing.assert_array_equal(read_picture(tmp_path / "x.png"), x)


@pytest.mark.parametrize("what", ["palette", "bits", "clear", "frames"])
def test_the_others_are_pillows(tmp_path, monkeypatch, what):
    x, path = values("u1", (7, 9)), tmp_path / "x.png"
    image = Image.fromarray(x)
    if what == "palette":
        image = image.convert("P")
    elif what == "bits":
        image = image.convert("1")
    options = {"clear": {"transparency": int(x[0, 0])}, "frames": {"save_all": True, "append_images": [image]}}
    image.save(path, **options.get(what, {}))
    with path.open("rb") as file:
        assert png._plain_picture(file, path) is None
    if what != "frames":
        expected = np.asarray(Image.open(path).convert("L" if what != "clear" else None))
        np.testing.assert_array_equal(read_picture(path), expected)


def test_interlaced_files_are_pillows(tmp_path):
    """An interlaced image of one row and one column is stored like any other."""
    saved(tmp_path / "x.png", "L")
    whole = (tmp_path / "x.png").read_bytes()
    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 1)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(b"\0\x2a"), b"IEND": b""}
    body = b"".join(png_chunk(*chunk) for chunk in chunks.items())
    (tmp_path / "x.png").write_bytes(whole[:8] + body)
    with (tmp_path / "x.png").open("rb") as file:
        assert png._plain_picture(file, tmp_path / "x.png") is None
    assert read_picture(tmp_path / "x.png").tolist() == [[42]]


def test_damage_is_told_by_pillow(tmp_path):
    saved(tmp_path / "x.png", "RGB")
    whole = (tmp_path / "x.png").read_bytes()
    for length in (0, 7, 8, 12, 30, 33, 40, len(whole) // 2):
        (tmp_path / "x.png").write_bytes(whole[:length])
        with pytest.raises(SourceError, match=r"x\.png ") as caught:
            read_picture(tmp_path / "x.png")
        assert "\n" not in str(caught.value)


def test_pillow_reads_what_libpng_will_not(tmp_path):
    """An example is a wrong checksum of the stored pixels whose own is right."""
    x = saved(tmp_path / "x.png", "RGB")
    whole = bytearray((tmp_path / "x.png").read_bytes())
    whole[-14] ^= 255
    (tmp_path / "x.png").write_bytes(whole)
    np.testing.assert_array_equal(read_picture(tmp_path / "x.png"), x)


def test_a_claim_beyond_the_file_is_refused(tmp_path):
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header)
    (tmp_path / "x.png").write_bytes(start + struct.pack(">I", 9) + b"IDAT" + bytes(13))
    with pytest.raises(SourceError, match="claims 60000 x 60000 x 3 uint8 values"):
        read_picture(tmp_path / "x.png")
