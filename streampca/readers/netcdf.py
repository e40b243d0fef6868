"""NetCDF files of the classic formats, read by position: CDF-1, CDF-2 (64-bit offsets) and CDF-5 (64-bit data).

The layout is that of https://docs.unidata.ucar.edu/netcdf-c/current/file_format_specifications.html. NetCDF-4 files
are HDF5 and read as such.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO, Any, NamedTuple, Unpack

import numpy as np

from ..arrays import Array
from ..errors import SourceError
from ..storage import remote
from ..storage.coordinate import Coordinate, Described
from ..storage.disk import open_regular
from .collection import Collection, check_dtype, check_shape
from .coordinates import SERIES_ATTRIBUTES
from .stored import cf
from .stored.array import ArrayCollection
from .stored.default_fills import default_fill
from .stored.files import PlainFile
from .stored.flat import FlatArray
from .stored.layout import SampleAxes
from .stored.select_array import select_array

# Files are parsed here because scipy's reader holds whole files (1.2 GiB for one of 400 MiB) or maps them, and lacks
# CDF-5; netCDF4 took 2 to 4 times as long, reads missing ends as zeros, and with 600 corrupt headers crashed twice and
# took up to 2 GiB.
_TYPES = {1: "i1", 2: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8", 7: "u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8"}
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 0x0A, 0x0B, 0x0C


class HeaderVariable(NamedTuple):
    """Header of a variable; `begin` is the byte of its first value."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int
    by_record: bool
    attributes: Mapping[str, Any]

    @property
    def record_bytes(self) -> int:
        """Bytes of one record of a variable with records, else of the whole variable."""
        return math.prod(self.shape[1:] if self.by_record else self.shape) * self.dtype.itemsize


class ClassicHeader(NamedTuple):
    """Variables by name, attributes of the file, and the bytes from one record to the next.

    A record holds one entry of every variable with records.
    """

    variables: Mapping[str, HeaderVariable]
    attributes: Mapping[str, Any]
    record_stride: int


def open_netcdf(source: str, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open a variable of a NetCDF file of a classic format: the one called `key`, or the only one of images."""
    remote.refuse(source, "a NetCDF file")
    header = read_header(source)
    attributes = {name: variable.attributes for name, variable in header.variables.items()}
    describing = cf.auxiliary(attributes) | {
        name for name, variable in header.variables.items() if variable.dims == (name,)
    }
    images = [
        name for name, variable in header.variables.items() if variable.dtype.kind in "iuf" and name not in describing
    ]
    name = select_array(header.variables, key, source, images=images)
    label = f"{source}, variable {name!r}"
    check_dtype(header.variables[name].dtype, label)
    check_shape(header.variables[name].shape, label)
    array = ClassicVariable(source, name, header, label)
    values = cf.unpacked(array, attributes[name], label)
    return ArrayCollection(values, source=label, **axes)


class ClassicVariable(FlatArray):
    """A variable of a NetCDF file."""

    def __init__(self, path: str, name: str, header: ClassicHeader, label: str) -> None:
        variable = header.variables[name]
        stride = header.record_stride if variable.by_record else None
        super().__init__(PlainFile(path, variable.begin, label), variable.shape, variable.dtype, stride=stride)
        # A variable can have the same dimension twice, and names of axes must differ.
        dims = variable.dims
        self.dims = tuple(dim if dim not in dims[:axis] else f"axis_{axis}" for axis, dim in enumerate(dims))
        self.unwritten = _unwritten(variable)
        self.attributes = {key: cf.plain_value(value) for key, value in variable.attributes.items()}
        others = f"{self.attributes.get('coordinates', '')} {self.attributes.get('grid_mapping', '')}".split()
        self._path, self._record_stride = path, header.record_stride
        self._beside = {key: header.variables[key] for key in (*self.dims, *others) if key in header.variables}
        self._whole = {key: header.attributes[key] for key in SERIES_ATTRIBUTES if key in header.attributes}

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Values of the coordinate variables, by the axis's name."""
        return cf.coordinates_of(self.dims or (), self.shape, self.attributes, self._variables, self._single)

    @property
    def series(self) -> Mapping[str, Any]:
        """See `Collection`: attributes of the file, and variables without dimensions."""
        return cf.series_of(self._whole, self.attributes, self._single)

    def _single(self, name: str) -> tuple[Any, Mapping[str, Any]] | None:
        variable = self._beside.get(name)
        if variable is None or variable.shape:
            return None
        is_number = variable.dtype.kind in "iuf"
        label = f"{self._path}, variable {name!r}"
        return self._values(variable._replace(shape=(1,)), label) if is_number else 0, variable.attributes

    @property
    def described(self) -> Mapping[str, Described]:
        """Attributes of the coordinate variables."""
        return cf.described_by(self.dims or (), self.shape, self.attributes, self._variables)

    def _variables(self, name: str) -> Iterator[cf.Variable]:
        header = self._beside.get(name)
        if header is None or not header.dims:
            return
        label, text = f"{self._path}, variable {name!r}", header.dtype.kind == "S"
        axes = len(header.dims) - text  # characters have an axis
        if axes == 1 or not text:
            read, dims, shape = partial(self._values, header, label), header.dims[:axes], header.shape[:axes]
            yield cf.Variable(dims, shape, text, header.attributes, label, read, _unwritten(header))

    def _values(self, variable: HeaderVariable, label: str) -> Array:
        # FlatArray applies the stride to the first of several axes, so that a single axis gets a second one.
        shape = (*variable.shape, 1) if len(variable.shape) == 1 else variable.shape
        stride = self._record_stride if variable.by_record else None
        file = PlainFile(self._path, variable.begin, label)
        values = FlatArray(file, shape, variable.dtype, stride=stride).read_all()
        if variable.dtype.kind != "S":
            return values.reshape(variable.shape)
        return np.array([line.tobytes().rstrip(b"\0 ").decode("utf-8", "replace") for line in values], np.str_)


def _unwritten(variable: HeaderVariable) -> Any:
    """Return the number that a variable holds where no value was written, if it declares no fill value."""
    return None if "_FillValue" in variable.attributes else default_fill(variable.dtype)


def read_header(path: str) -> ClassicHeader:
    """Read and check the header of a file."""
    try:
        with open_regular(path) as file:
            header = _Parser(file, os.path.getsize(path)).header()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; check its permissions.") from error
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise SourceError(f"{path} has a broken NetCDF header ({error}); it is damaged, copy it again.") from error
    size = os.path.getsize(path)
    for name, variable in header.variables.items():
        records = variable.shape[0] if variable.by_record else 1
        end = variable.begin + (records - 1) * header.record_stride * variable.by_record + variable.record_bytes
        if records and variable.record_bytes and end > size:
            raise SourceError(
                f"{path} has {size} bytes and its variable {name!r} would end at byte {end}; it was cut short, copy it "
                "again."
            )
    return header


class _Parser:
    """Parser of a header, from front to back; the width of numbers depends on the version of the format."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size
        magic = file.read(4)
        if magic[:3] != b"CDF" or magic[3:] not in (b"\x01", b"\x02", b"\x05"):
            raise ValueError(f"it begins with {magic.hex(' ') or 'nothing'}, not CDF and version 1, 2 or 5")
        self._count = ">u8" if magic[3] == 5 else ">u4"
        self._offset = ">u4" if magic[3] == 1 else ">u8"

    def header(self) -> ClassicHeader:
        records = self._number(self._count)
        streamed = records == np.iinfo(self._count[1:]).max
        dimensions = self._list(_DIMENSIONS, lambda: (self._text(), self._number(self._count)))
        attributes = dict(self._list(_ATTRIBUTES, self._attribute))
        variables = dict(self._list(_VARIABLES, lambda: self._variable(dimensions)))
        # The part of each variable in a record is padded to 4 bytes, unless there is only one variable.
        lengths = [variable.record_bytes for variable in variables.values() if variable.by_record]
        stride = lengths[0] if len(lengths) == 1 else sum(-(-length // 4) * 4 for length in lengths)
        if streamed:  # the writer did not return to fill in the number of records
            first = min((variable.begin for variable in variables.values() if variable.by_record), default=self._size)
            records = (self._size - first) // stride if stride else 0
        return ClassicHeader(
            {
                name: variable._replace(shape=(records, *variable.shape[1:])) if variable.by_record else variable
                for name, variable in variables.items()
            },
            attributes,
            stride,
        )

    def _variable(self, dimensions: list[tuple[str, int]]) -> tuple[str, HeaderVariable]:
        name = self._text()
        ids = [self._number(self._count) for _ in range(self._plausible(self._number(self._count), 4))]
        dims, shape = tuple(dimensions[at][0] for at in ids), tuple(dimensions[at][1] for at in ids)
        attributes = dict(self._list(_ATTRIBUTES, self._attribute))
        dtype = self._dtype()
        self._number(self._count)  # the variable's size, which overflows for large ones and follows from its shape
        if 0 in shape[1:]:
            raise ValueError(f"variable {name!r} has its unlimited dimension in a place other than the first")
        return name, HeaderVariable(dims, shape, dtype, self._number(self._offset), shape[:1] == (0,), attributes)

    def _attribute(self) -> tuple[str, Any]:
        name, dtype = self._text(), self._dtype()
        count = self._number(self._count)
        data = self._padded(count * dtype.itemsize)
        if dtype.kind == "S":
            return name, data.rstrip(b"\0").decode("utf-8", "replace")
        return name, np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))

    def _list(self, tag: int, item: Any) -> list[Any]:
        first_tag, count = self._number(">u4"), self._number(self._count)
        if first_tag not in (tag, 0) or (first_tag == 0 and count):
            raise ValueError(f"a list begins with {first_tag} at byte {self._file.tell()}, not with {tag}")
        return [item() for _ in range(self._plausible(count, 8))]

    def _text(self) -> str:
        return self._padded(self._number(self._count)).decode("utf-8")

    def _dtype(self) -> np.dtype[Any]:
        code = self._number(">u4")
        if code not in _TYPES:
            raise ValueError(f"type {code} is unknown")
        return np.dtype(_TYPES[code])

    def _number(self, code: str) -> int:
        return int(np.frombuffer(self._bytes(int(code[2])), code)[0])

    def _padded(self, length: int) -> bytes:
        return self._bytes(-(-self._plausible(length, 1) // 4) * 4)[:length]

    def _plausible(self, count: int, least: int) -> int:
        """Return a count of items; refuse one that the file is too small for, before memory is allocated."""
        if count * least > self._size:
            raise ValueError(f"it announces {count} items at byte {self._file.tell()} of {self._size}")
        return count

    def _bytes(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) < length:
            raise ValueError(f"it ends inside, at byte {self._size}")
        return data
