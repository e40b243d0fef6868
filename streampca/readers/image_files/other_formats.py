"""Formats that are not read: how each is recognized, and what converts it to one that is."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

LONGEST_START = 1024  # bytes at the start of a file by which formats are recognized
_GZIP = 31  # container format, as numbered by zlib


class OtherFormat(NamedTuple):
    """A format that is not read.

    Attributes
    ----------
    name, remedy : str
        Name of the format, and what makes a readable file of one.
    start : str
        Pattern of the first bytes, a regular expression of Latin-1 characters; in containers, the format inside is
        named after the first eight bytes or more. Empty if files are known by their names alone.
    endings : str
        Endings of names, without their dots.
    is_image : bool
        Whether such files are never left out silently beside images, as they can be half of a collection.
    """

    name: str
    remedy: str
    start: str = ""
    endings: str = ""
    is_image: bool = False


_AS_OME_ZARR = "convert it to OME-Zarr, as by bioformats2raw"
_FRAMES = "save its frames as images, as by ffmpeg -i film.mp4 frames/%06d.png"
_AS_PNG = "save it as PNG or JPEG"
FORMATS = (
    OtherFormat("HDF5, an array of images", "give it alone", r"\x89HDF|.{512}\x89HDF"),
    OtherFormat("NetCDF, an array of images", "give it alone", r"CDF"),
    OtherFormat("a numpy array", "give it alone", r"\x93NUMPY"),
    OtherFormat(
        "a MATLAB file of version 5 to 7", "save it with MATLAB's -v7.3, which is HDF5, or as .npy", r"MATLAB 5\.0"
    ),
    OtherFormat(
        "NIfTI", "save its array by nibabel, as numpy.save('scan.npy', numpy.asarray(nibabel.load(path).dataobj).T)",
        r".{344}n[+i]1\0|.{4}n[+i]2\0", "nii",
    ),
    OtherFormat("Zeiss CZI", _AS_OME_ZARR, r"ZISRAWFILE", "czi", is_image=True),
    OtherFormat("Nikon ND2", _AS_OME_ZARR, r"\xda\xce\xbe\n", "nd2", is_image=True),
    OtherFormat("Leica LIF", _AS_OME_ZARR, r"p\0\0\0.{4}\*", "lif", is_image=True),
    OtherFormat("a scanner's own format", _AS_OME_ZARR, endings="svs ndpi vsi", is_image=True),
    OtherFormat(
        "MRC", "save its array by mrcfile, as numpy.save('scan.npy', mrcfile.read(path))", r".{208}MAP[ \0]", "mrc mrcs"
    ),
    OtherFormat(
        "GRIB", "convert it to NetCDF, as by cdo -f nc4 copy field.grib field.nc", r"GRIB", "grib grb grib2 grb2"
    ),
    OtherFormat(
        "DICOM", "save its pixels as TIFF or .npy, as by pydicom's pixel_array", r".{128}DICM", "dcm", is_image=True
    ),
    OtherFormat("sound", "give images, as of its spectrogram", r"RIFF.{4}WAVE"),
    OtherFormat("HEIF", _AS_PNG, r".{4}ftyp(?:hei[cx]|m[is]f1)", "heic heif hif", is_image=True),
    OtherFormat(
        "a video", _FRAMES,
        r".{4}ftyp|.{4}moov|RIFF.{4}AVI |\x1aE\xdf\xa3|\0\0\x01[\xb3\xba]|FLV\x01|0&\xb2u\x8ef\xcf\x11|OggS|"
        r"G.{187}G.{187}G",
        "avi mp4 m4v mov mkv webm mpg mpeg flv wmv ogv mts m2ts",
    ),
    OtherFormat("JPEG XL", "save it as PNG", r"\xff\n|.{4}JXL ", "jxl", is_image=True),
    OtherFormat("JPEG XR", "save it as PNG", r"II\xbc", "jxr wdp", is_image=True),
    OtherFormat("Photoshop's", "save it as TIFF or PNG", r"8BPS", "psd", is_image=True),
    OtherFormat("OpenEXR", "save it as TIFF of float32", r"v/1\x01", "exr", is_image=True),
    OtherFormat("Radiance HDR", "save it as TIFF of float32", r"#\?RADIANCE", "hdr", is_image=True),
    OtherFormat("Targa", "save it as PNG", endings="tga", is_image=True),
    OtherFormat(
        "a camera's own format", "save it as TIFF", endings="dng nef cr2 cr3 arw orf rw2 raf pef", is_image=True
    ),
    OtherFormat("PDF", "save its pages as PNG", r"%PDF"),
    OtherFormat("a zip archive", "unpack it and give the folder", r"PK"),
    OtherFormat("gzipped", "unpack it first", r"\x1f\x8b"),
)  # fmt: skip
_OF_ENDING = {f".{ending}": other for other in FORMATS for ending in other.endings.split()}
UNREAD = frozenset(ending for ending, other in _OF_ENDING.items() if other.is_image)


def format_by_start(start: bytes) -> OtherFormat | None:
    """Return the format of a file that begins with some bytes, inside gzip, too; None if it is none of these."""
    if start.startswith(b"\x1f\x8b") and (packed := format_by_start(_unzipped(start))) is not None:
        return packed
    text = start.decode("latin-1")
    return next((other for other in FORMATS if other.start and re.match(other.start, text, re.DOTALL)), None)


def format_by_ending(ending: str) -> OtherFormat | None:
    """Return the format of files whose names end so, in lower case with the dot; None if it is none of these."""
    return _OF_ENDING.get(ending)


def _unzipped(start: bytes) -> bytes:
    """Return the first decoded bytes of a gzipped file; none if it is damaged."""
    try:
        return zlib.decompressobj(_GZIP).decompress(start, LONGEST_START)
    except zlib.error:
        return b""
