"""Images as pages of a TIFF file for ImageJ, Fiji and OME's programs, whose values are contiguous and written later.

ImageJ and Fiji open the file as a hyperstack: https://imagej.net/ij/docs/guide (section 8, stacks). Their classic TIFF
ends at 4 GiB; larger files, and those with interleaved colours, are OME-TIFFs, which Fiji opens with Bio-Formats
(https://docs.openmicroscopy.org/ome-model).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from ..units import GIB, MIB
from .coordinate import Coordinate
from .georeference import geotiff_tags
from .pixel_sizes import channel_names, holds_channels, imagej_sizes, is_colour, ome_sizes, pixel_sizes

MOST_IMAGEJ = 4 * GIB - 32 * MIB  # bytes of pixels: offsets in a classic TIFF have 32 bits
ENDINGS = (".tif", ".tiff")
_IMAGEJ_ORDER = "TZCYX"


class PageLayout(NamedTuple):
    """Shape of the pages of images, samples first, with a letter for each axis; `dims` are the axes by letter."""

    shape: tuple[int, ...]
    axes: str
    dims: Mapping[str, str]


def page_layout(shape: tuple[int, ...], dims: Sequence[str]) -> PageLayout:
    """Return the layout of images of `shape`, samples first, with axes `dims`, as pages of y and x in this order."""
    inner, names = list(shape[1:]), list(dims[1:])
    if len(inner) == 1:  # rows of features become pictures of one line
        inner, names = [1, *inner], ["", *names]
    # Interleaved colours or bands are the last axis, with the letter S.
    last = "S" if len(inner) > 2 and holds_channels(names[-1]) else ""
    sides = len(inner) - 2 - len(last)
    letters = ["C" if is_colour(name) else "Z" for name in names[:sides]]
    # TIFF has one letter for each axis: several of the same become one axis.
    if len(set(letters)) < len(letters):
        inner[:sides], names[:sides], letters = [math.prod(inner[:sides])], [""], ["Z"]
    # The axis of samples is time, unless it is a stack of slices.
    outer = "Z" if dims[0].lower() == "z" and "Z" not in letters else "T"
    axes = "".join((outer, *letters, "YX", last))
    return PageLayout((shape[0], *inner), axes, dict(zip(axes, (dims[0], *names), strict=True)))


def is_ome(path: str, layout: PageLayout) -> bool:
    """Return whether a file is written as an OME-TIFF, by its name or because ImageJ's format cannot hold it."""
    fits = [letter for letter in _IMAGEJ_ORDER if letter in layout.axes] == list(layout.axes)
    return is_named_ome(path) or not fits or is_large(layout.shape)


def is_named_ome(path: str) -> bool:
    """Return whether a name has an ending of OME-TIFF."""
    return path.lower().endswith((".ome.tif", ".ome.tiff"))


def is_large(shape: tuple[int, ...]) -> bool:
    """Return whether float32 pages of a shape exceed a classic TIFF."""
    return 4 * math.prod(shape) > MOST_IMAGEJ


def scaled(layout: PageLayout, coordinates: Mapping[str, Coordinate], *, ome: bool) -> dict[str, Any]:
    """Return options of `tifffile.TiffWriter.write` that store sizes, positions and georeference of pixels, channels.

    They declare NaN as the value of missing pixels.
    """
    tags = geotiff_tags(coordinates)
    by_name = pixel_sizes([*layout.dims.values()], coordinates)
    sizes = {letter: by_name[name] for letter, name in layout.dims.items() if name in by_name}
    if ome:
        names = channel_names(layout.dims.get("C", ""), coordinates)
        about = {"axes": layout.axes, **ome_sizes(sizes)} | ({"Channel": {"Name": names}} if names else {})
        return {"metadata": about, "extratags": tags}
    about, resolution = imagej_sizes(sizes)
    return {"metadata": {"axes": layout.axes, **about}, "resolution": resolution, "extratags": tags}


def write_empty(path: str, final: str, layout: PageLayout, coordinates: Mapping[str, Coordinate]) -> None:
    """Write a file of float32 pages without their values, whose place `values_of` returns.

    Parameters
    ----------
    path, final : str
        Path of the file, and its final path, whose ending decides the format.
    layout : PageLayout
        Pages and axes.
    coordinates : mapping of str to Coordinate
        Coordinates along the axes, by name.
    """
    import tifffile

    ome = is_ome(final, layout)
    colours = layout.shape[-1] if layout.axes.endswith("S") else 0
    options = scaled(layout, coordinates, ome=ome)
    options["photometric"] = "rgb" if colours in (3, 4) else "minisblack"
    if colours:
        options["planarconfig"] = "contig"
    with tifffile.TiffWriter(path, imagej=not ome, ome=ome, bigtiff=is_large(layout.shape)) as file:
        file.write(None, shape=layout.shape, dtype=np.float32, **options)


def values_of(path: str) -> tuple[int, np.dtype[Any]]:
    """Return the offset of the values in a file of `write_empty`, and their dtype with byte order."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        assert series.dataoffset is not None  # noqa: S101 - uncompressed pages are contiguous
        return series.dataoffset, series.dtype.newbyteorder(file.byteorder)


def is_another_tiff(file: IO[bytes] | str) -> bool:
    """Return whether an open file, or one at a path, is a TIFF that was not written by `write_empty`."""
    import tifffile

    try:
        with tifffile.TiffFile(file) as tiff:
            return tiff.pages.first.dtype != np.float32 or not (tiff.is_imagej or tiff.is_ome)
    except tifffile.TiffFileError:
        return False
