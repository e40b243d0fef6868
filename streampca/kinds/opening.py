"""`Opening`: the options of opening a source as a collection, declared once for every door."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypedDict

from ..errors import RequestError
from .description import NamedFields
from .values import Check, Count, InPython, RefusedValueError, accepted

Value = int | float | str
Object = Annotated[Any, InPython()]
Parts = Annotated[Mapping[Any, Any], InPython()]  # of axes, with slices
DtypeName = Literal[
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"
]  # fmt: skip


def _dtype_name(value: Any) -> Any:
    """Return the name of a dtype, given as anything that numpy takes for one."""
    if value is None:
        return None
    import numpy as np

    try:
        name = np.dtype(value).name
    except TypeError:
        raise RefusedValueError from None
    return accepted(DtypeName, name)


def _check_windows(value: Any) -> Any:
    """Return windows; refuse a mapping without a size."""
    if isinstance(value, Mapping) and "size" not in value:
        raise RequestError(
            f"patches = {value!r}: give {{size: [height, width]}}, and step: [rows, columns] if need be."
        )
    return value


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Opening(NamedFields):
    """How a source is opened as a collection.

    Parameters
    ----------
    key : str or sequence of str, optional
        Name of the array, or of several variables of one field. It is needed where the source holds several arrays that
        can be images. Several names, or one text of them such as ``"u,v"``, make one field of variables with the same
        samples, side by side along a last axis ``variable``. The default for an `xarray.Dataset` is all variables that
        can hold images.
    sample_axes : sequence of int or str, optional
        Axes of one image, such as 1,2 or y,x. By default all axes that, by attributes or name, do not count samples.
        They may stand at any position; the others are flattened into samples in order. By default samples are counted
        by axes that have dates, or that attributes or names assign to time, members or the like, else by the first axis
        that is not along x, y or colours; without names, by the first axis.
    select : mapping of axis to int or slice, optional
        Entry, or [start, stop], of other axes to select. An integer drops the axis, a slice narrows it.
    sel : mapping of str to value or slice, optional
        Value, or [first, last], of other axes to select: numbers, texts or dates. They are values of the axis's
        coordinate, as in xarray: a number or text drops the axis, ``{"level": 500, "c": "GFP"}``; a slice selects all
        values between its ends, both included, ``{"lat": slice(30, 60)}``. Dates can leave out their last parts,
        ``{"time": slice("1990", "2000-06")}``. Files without a value in the range are left out when files are joined.
    patches : int, sequence of int or mapping, optional
        Windows of each image, which become the samples. Their side, their sides ``(16, 16)``, or also the step between
        them, ``{"size": (16, 16), "step": (8, 8)}``. Colours stay inside. The array can be a single image.
    samples : slice, (start, stop[, step]) or sequence of int, optional
        Samples to select: [start, stop] or [start, stop, step]. In Python also a slice, numbers or a mask. Samples come
        in the order of the numbers, each at most once.
    labels : array, path or "folder", optional
        Label of each sample: .npy, IDX, table.csv:column or folder. For where, anomaly (also that of a model) and
        reports. Anything that `open_column` accepts; the collection keeps them as `labels`.
    where : str, optional
        Samples to select by label, such as label=3 or label!=0,1. Several conditions: 'label>=1 and label<3'.
    fill_value : int, float or str, optional
        Stored number that marks missing values, or none. Give it if the file does not name it; none if every number is
        a value. The number is read as NaN. In NetCDF files without ``_FillValue``, the default of the format is
        missing among floats, and refused if it is read among whole numbers; with "none" it is a value like any other.
    dtype : str, optional
        Type of numbers to convert values to, such as float32. It joins sources whose types differ in kind, as uint8 and
        uint16 images or whole numbers and fractions do; leave it out where these may have different scales. Values are
        rounded to floating types; a value that a type of whole numbers does not hold, or that is beyond the range of
        any type, is refused when it is read. In Python also any dtype of numpy. Without it, values are read as stored,
        and sources whose types differ only in byte order or width are joined in the widest.
    on_bad_file : {"error", "skip"}, default="error"
        Stop at a file that cannot be read, or leave it out. See `Collection.skipped`. Images of another shape than most
        are not left out on opening, but by a preparation that does not make them fit.
    keep_orientation : bool, default=False
        Ignore the orientation tags of images. By default images are turned by them (Exif, TIFF).
    coordinates : {"check", "ignore"}, default="check"
        Compare latitudes and the like of files and models, or ignore them. The coordinates of a sample's axes
        (latitudes, wavelengths, labels ...) are compared by value: those of joined files with the first file's, and
        later those of the collection with a model's. Samples that have the same coordinates in another order are put in
        order, samples on another grid are refused. With "ignore", pixels correspond by position.
    duplicates : {"error", "first", "all"}, default="error"
        Stop at files or dates that come twice, use the first, or all. A file is a duplicate if another path, or a
        link, leads to the same file; a sample, if another file has its date, unless the files belong to several series
        (by a coordinate ``member``, ``realization``, ``step`` ..., or by CMIP's attributes). Dates repeated within a
        file all count, which the log reports.
    allow_remote : bool, default=False
        Read from URLs that lists, tables and models name. A URL given as the source itself, or in a list, is always
        read.
    listing : path, optional
        Path of a table in which the files of a folder are stored for the next time; by default none.
    """

    key: str | Annotated[Sequence[str], InPython()] | None = None
    sample_axes: list[int | str] | Object | None = None
    select: dict[int | str, int | tuple[int, int]] | Parts | None = None
    sel: dict[str, Value | tuple[Value | None, Value | None]] | Parts | None = None
    patches: Annotated[
        dict[Literal["size", "step"], tuple[Count, Count]] | Object | None,
        Check(_check_windows),
    ] = None
    samples: Object | None = None
    labels: str | Object | None = None
    where: str | None = None
    fill_value: Value | Object | None = None
    dtype: Annotated[DtypeName | None, Check(_dtype_name)] = None
    on_bad_file: Literal["error", "skip"] = "error"
    keep_orientation: bool = False
    coordinates: Literal["check", "ignore"] = "check"
    duplicates: Literal["error", "first", "all"] = "error"
    allow_remote: bool = False
    listing: str | Annotated[os.PathLike[str], InPython()] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        values = {item.name: (getattr(self, item.name), item.default) for item in fields(Opening)}
        return {
            name: value
            for name, (value, default) in values.items()
            if value is not default and (default is None or value != default)
        }


class OpeningOptions(TypedDict, total=False):
    """The fields of `Opening` as keywords of functions that open a source."""

    key: str | Sequence[str] | None
    sample_axes: Sequence[int | str] | None
    select: Mapping[int | str, int | slice] | None
    sel: Mapping[str, Any] | None
    patches: int | Sequence[int] | Mapping[str, Any] | None
    samples: Any
    labels: Any
    where: str | None
    fill_value: int | float | str | None
    dtype: Any
    on_bad_file: str
    keep_orientation: bool
    coordinates: str
    duplicates: str
    allow_remote: bool
    listing: str | os.PathLike[str] | None
