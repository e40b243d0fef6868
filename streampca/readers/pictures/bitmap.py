"""PNG, JPEG, BMP and GIF files, decoded by Pillow.

Its format classes are called directly: `PIL.Image.open` tries every plugin and warns of large images by a limit of its
own, where `picture.check_size` compares with what the file can hold. Orientation tags are left unread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin

from ...collection import Array
from ...errors import SourceError
from ..stored.bytes import opened
from .picture import Picture, check_size

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

_OTHER_FORMATS = {
    b"\x89HDF": "HDF5, an array of images: give it alone",
    b"CDF": "NetCDF, an array of images: give it alone",
    b"PK": "a zip archive: unpack it and give the folder",
    b"\x1f\x8b": "gzipped: unpack it first",
    b"RIFF": "WebP or video: save the images as PNG",
    b"\0\0\0": "a video or HEIF: save the images as PNG",
    b"%PDF": "PDF: save its pages as PNG",
}


def open_bitmap(file: IO[bytes], path: str) -> Picture:
    """Open a file of one of these formats, told by its first bytes; the file stays open until it is decoded."""
    magic = file.read(8)
    file.seek(0)
    open_format = next((found for start, found in _FORMATS.items() if magic.startswith(start)), None)
    if open_format is None:
        raise SourceError(f"{path} is not of a known format: {_guess(magic)}.")
    image = open_format(file, path)
    if getattr(image, "is_animated", False):
        alone = "give it alone to make each frame a sample, or " if image.format == "GIF" else ""
        raise SourceError(
            f"{path} has several frames, and a file of a folder, glob or list is one image; {alone}save its frames as "
            "PNG files."
        )
    picture = _paletted(image) if image.mode == "P" else _valued(image, path)
    check_size(path, picture.shape, picture.dtype)
    return picture


def _guess(magic: bytes) -> str:
    for start, text in _OTHER_FORMATS.items():
        if magic.startswith(start):
            return f"it is {text}"
    known = "npy, npz, IDX, Zarr, HDF5, NetCDF, FITS, PNG, JPEG, TIFF, BMP, GIF, PBM, PGM and PPM"
    return f"it begins like none of {known}; save it as one of them; paths in a list are @list.txt or table.csv:column"


def _valued(image: Any, path: str) -> Picture:
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
            return Picture(shape, dtype, lambda: _deep_png(path))
    if image.mode == "1":
        return Picture(shape, dtype, lambda: np.asarray(image).astype("u1") * np.uint8(255))
    return Picture(shape, dtype, lambda: np.asarray(image).astype(dtype, copy=False))


def _deep_png(path: str) -> Array:
    import imagecodecs

    with opened(path) as file:
        return np.asarray(imagecodecs.png_decode(file.read()))


def _paletted(image: Any) -> Picture:
    """Describe an image of palette entries: grey where every entry is, with alpha where one is transparent."""
    layout, data = image.palette.getdata()
    order = "RGB" if layout in ("RGB", "RGB;L") else layout
    entries = np.frombuffer(bytes(data)[: len(data) // len(order) * len(order)], "u1").reshape(-1, len(order))[:256]
    table = np.zeros((256, 4), "u1")
    table[: len(entries), :3] = entries[:, [order.index(colour) for colour in "RGB"]]
    table[:, 3] = _alphas(image.info.get("transparency"))
    colours = [0] if (table[:, :1] == table[:, :3]).all() else [0, 1, 2]
    if (table[:, 3] < 255).any():
        colours.append(3)
    chosen = np.ascontiguousarray(table[:, colours] if len(colours) > 1 else table[:, 0])
    return Picture((image.height, image.width, *chosen.shape[1:]), chosen.dtype, lambda: chosen[np.asarray(image)])


def _alphas(transparency: bytes | int | None) -> Array:
    """Opacity of each palette entry, from PNG's list of them or the one clear entry GIF and PNG name."""
    alphas = np.full(256, 255, "u1")
    if isinstance(transparency, bytes):
        alphas[: len(transparency)] = np.frombuffer(transparency[:256], "u1")
    elif isinstance(transparency, int):
        alphas[transparency] = 0
    return alphas
