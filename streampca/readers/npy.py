"""NumPy's `.npy` and `.npz` files.

The headers are NumPy's own (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html); nothing is ever
unpickled. Stored members of an archive are read by position like plain files, compressed ones as streams.
"""

from __future__ import annotations

import io
import struct
import threading
import zipfile
from functools import partial
from typing import IO, Unpack

from numpy.lib import format as npy_format

from ..errors import SourceError
from ..storage import remote
from ..units import MIB, format_bytes
from .collection import Collection, check_dtype, refuse_key
from .stored.array import ArrayCollection
from .stored.files import ByteSource, StreamFile, check_kind, opened, positioned, size_of
from .stored.flat import FlatHeader
from .stored.layout import SampleAxes
from .stored.select_array import select_array

# Python 3.11 counts the depth of literals for all threads together, and fails where two parse at once
# (https://github.com/python/cpython/issues/106905).
_PARSING = threading.Lock()
_LONGEST_HEADER = MIB  # bytes; an array of plain numbers has a header of about a hundred
# A zip entry's local header: 26 bytes, then the lengths of the name and of the extra field (APPNOTE.TXT, 4.3.7).
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def open_npy(source: str, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open a `.npy` file of any version, byte order and axis order."""
    refuse_key(key, source)
    with opened(source) as file:
        header = read_header(file, source)
    check_dtype(header.dtype, source)
    header.check_length(size_of(source), source)
    return ArrayCollection(header.array(positioned(source)), source=source, **axes)


def open_npz(source: str, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open one array of a `.npz` archive: the one called `key`, or the only one of two axes or more."""
    try:
        with opened(source) as file, zipfile.ZipFile(file) as archive:
            headers = _headers(archive, source)
            name = select_array(headers, key if key is None or key in headers else key.removesuffix(".npy"), source)
            member = archive.getinfo(f"{name}.npy")
            label = f"{source}, array {name!r}"
            header = headers[name]
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise SourceError(
            f"{source} is not a whole .npz archive ({error}); it was cut short, copy it again."
        ) from error
    check_dtype(header.dtype, label)
    header.check_length(member.file_size, label)
    return ArrayCollection(header.array(_member_bytes(source, member, label)), source=label, **axes)


def read_header(file: IO[bytes], subject: str) -> FlatHeader:
    """Read the header at the start of a `.npy` stream."""
    try:
        version = npy_format.read_magic(file)
        # Version 3 differs from 2 in the encoding of field names only, and arrays with fields are refused below.
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"format version {version}")
        length = file.read(2 if version == (1, 0) else 4)
        if (count := int.from_bytes(length, "little")) > _LONGEST_HEADER:  # numpy reads all of it before it refuses
            raise ValueError(f"{format_bytes(count)} of text")
        text = file.read(count)
        with _PARSING:
            shape, fortran, dtype = read(io.BytesIO(length + text))
    except Exception as error:  # a broken literal fails in the tokenizer, a broken compressed member in zlib
        reason = str(error).partition("\n")[0]
        raise SourceError(f"{subject} has a broken .npy header ({reason}); save the array again.") from error
    if any(length < 0 for length in shape):
        raise SourceError(f"{subject} has shape {shape} in its header, a negative length; save the array again.")
    return FlatHeader(shape, dtype, file.tell(), fortran and len(shape) > 1)


def _headers(archive: zipfile.ZipFile, source: str) -> dict[str, FlatHeader]:
    members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    if not members:
        raise SourceError(f"{source} holds no arrays; give a .npz file written by numpy.savez.")
    return {
        member.filename.removesuffix(".npy"): _member_header(archive, member, f"{source}, member {member.filename}")
        for member in members
    }


def _member_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, label: str) -> FlatHeader:
    if member.flag_bits & 0x1:
        raise SourceError(f"{label} is encrypted; save the arrays again without a password.")
    with archive.open(member) as file:
        return read_header(file, label)


def _member_bytes(path: str, member: zipfile.ZipInfo, label: str) -> ByteSource:
    if member.compress_type != zipfile.ZIP_STORED:
        return StreamFile(path, partial(_open_member, path, member.filename), member.file_size, label)
    with opened(path) as file:
        file.seek(member.header_offset)
        signature, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise SourceError(f"{label} does not begin where the archive says; the file is damaged, copy it again.")
    return positioned(path, member.header_offset + _LOCAL_HEADER.size + name_length + extra_length, label)


def _open_member(path: str, name: str) -> IO[bytes]:
    if not remote.is_url(path):
        check_kind(path)
    # A file that ZipFile opened itself stays open until its last member is closed.
    with zipfile.ZipFile(opened(path) if remote.is_url(path) else path) as archive:
        return archive.open(name)
