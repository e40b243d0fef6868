"""PNG, JPEG, BMP, GIF, WebP and AVIF files, decoded by Pillow.

Its format classes are called directly: `PIL.Image.open` tries every plugin and warns of large images by a limit of its
own, whereas `opened_image.check_size` compares an image's size with its file's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from ...arrays import Array
from ...errors import SourceError
from ..stored.files import opened
from ..views.columns import array_of_table
from .names import ending
from .opened_image import OpenedImage, check_size
from .orientation import orientation_of
from .other_formats import LONGEST_START, format_by_ending, format_by_start

_FORMATS: dict[bytes, Callable[..., Any]] = {
    b"\x89PNG\r\n\x1a\n": PngImagePlugin.PngImageFile,
    b"\xff\xd8\xff": JpegImagePlugin.JpegImageFile,
    b"BM": BmpImagePlugin.BmpImageFile,
    b"GIF8": GifImagePlugin.GifImageFile,
}
_BANDS = {"1": (), "L": (), "I": (), "F": (), "I;16": (), "I;16L": (), "I;16B": (), "I;16N": ()} | {
    "LA": (2,),
    "RGB": (3,),
    "RGBA": (4,),
}
_DTYPES = {"I": "i4", "F": "f4"} | dict.fromkeys(("I;16", "I;16L", "I;16B", "I;16N"), "u2")

_TABLES = (".csv", ".tsv", ".parquet")


def open_bitmap(file: IO[bytes], path: str) -> OpenedImage:
    """Open a file of one of these formats by its first bytes; the file stays open until it is decoded."""
    start = file.read(LONGEST_START)
    file.seek(0)
    open_format = _format_of(start, path)
    if open_format is None:
        raise SourceError(f"{path} {_guess(start, path)}.")
    image = open_format(file, path)
    if getattr(image, "is_animated", False):
        alone = "give it alone to make each frame a sample, or " if image.format == "GIF" else ""
        raise SourceError(
            f"{path} has several frames, and a file of a folder, glob or list is one image; {alone}save its frames as "
            "PNG files."
        )
    picture = _paletted(image) if image.mode == "P" else _valued(image, path)
    check_size(path, picture.shape, picture.dtype)
    # For PNG, Pillow would decode the pixels to reach the chunks after them.
    return picture if image.format == "PNG" else picture._replace(orientation=orientation_of(image))


def _format_of(start: bytes, path: str) -> Callable[..., Any] | None:
    """Return Pillow's class for a file by its first bytes; None for another format."""
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return WebPImagePlugin.WebPImageFile
    if start[4:8] == b"ftyp" and start[8:12] in (b"avif", b"avis"):
        return _avif(start, path)
    return next((open_format for magic, open_format in _FORMATS.items() if start.startswith(magic)), None)


def _avif(start: bytes, path: str) -> Callable[..., Any]:
    """Return Pillow's class for AVIF, which exists from Pillow 11.3 on and reads 8 bits."""
    # The box "pixi" counts the channels and gives each one's bits (ISO/IEC 23008-12, 6.5.6).
    pixels = start.find(b"pixi")
    if pixels > 0 and max(start[pixels + 9 :][: start[pixels + 8]], default=8) > 8:
        raise SourceError(f"{path} is AVIF of more than 8 bits a channel, of which Pillow reads 8; save it as PNG.")
    try:
        from PIL import AvifImagePlugin
    except ImportError as error:
        raise SourceError(f"{path} is AVIF, which Pillow reads from version 11.3 on; pip install -U pillow.") from error
    return AvifImagePlugin.AvifImageFile


def _guess(start: bytes, path: str) -> str:
    """Return the likely format of a file that is not an image, and a remedy, for an error."""
    if not start:
        return "is not of a known format: it is empty (0 bytes); copy or save it again"
    other = format_by_start(start) or format_by_ending(ending(path))
    if other is not None:
        return f"cannot be read as an image: it is {other.name}; {other.remedy}"
    if path.lower().endswith(_TABLES):
        if not path.lower().endswith(".parquet") and (saving := array_of_table(path)) is not None:
            return f"is a table of numbers: make an array of it by {saving}"
        return "is a table: scores are read as streampca writes them, and images from paths in table.csv:column"
    return (
        "is not of a known format: it begins like none of npy, npz, IDX, Zarr, HDF5, NetCDF, FITS, PNG, JPEG, "
        "JPEG 2000, TIFF, BMP, GIF, WebP, AVIF, PBM, PGM and PPM; save it as one of them; paths in a list are "
        "@list.txt or table.csv:column"
    )


def _valued(image: Any, path: str) -> OpenedImage:
    """Describe an image whose pixels are values, not palette entries."""
    if image.mode not in _BANDS:
        raise SourceError(
            f"{path} has colours stored as {image.mode}, not grey or RGB; convert it, as by Pillow's convert('RGB')."
        )
    shape = (image.height, image.width, *_BANDS[image.mode])
    dtype = np.dtype(_DTYPES.get(image.mode, "u1"))
    if image.format == "PNG" and str(image.tile[0][3] if image.tile else "").endswith(";16B"):
        dtype = np.dtype("u2")
        if _BANDS[image.mode]:  # Pillow keeps the upper 8 bits of these
            return OpenedImage(shape, dtype, lambda: _deep_png(path))
    if image.mode == "1":
        return OpenedImage(shape, dtype, lambda: np.asarray(image).astype("u1") * np.uint8(255))
    return OpenedImage(shape, dtype, lambda: np.asarray(image).astype(dtype, copy=False))


def _deep_png(path: str) -> Array:
    import imagecodecs

    with opened(path) as file:
        return np.asarray(imagecodecs.png_decode(file.read()))


def _paletted(image: Any) -> OpenedImage:
    """Describe an image of palette entries: grey if every entry is grey, with alpha if one is transparent."""
    layout, data = image.palette.getdata()
    entries = Image.frombytes("P", (256, 1), bytes(range(256)))
    entries.putpalette(data, layout)
    if "transparency" in image.info:
        entries.info["transparency"] = image.info["transparency"]
    table = np.asarray(entries.convert("RGBA"))[0]
    colours = [0] if (table[:, :1] == table[:, :3]).all() else [0, 1, 2]
    if (table[:, 3] < 255).any():
        colours.append(3)
    chosen = np.ascontiguousarray(table[:, colours] if len(colours) > 1 else table[:, 0])
    return OpenedImage((image.height, image.width, *chosen.shape[1:]), chosen.dtype, lambda: chosen[np.asarray(image)])
