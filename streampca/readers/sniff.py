"""What a source is, told from its first bytes and its surroundings: cheap questions for the table of formats."""

from __future__ import annotations

import os
from typing import Any

from ..errors import SourceError

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_array(source: Any) -> bool:
    """Whether an object can be sliced as an array."""
    return all(hasattr(source, name) for name in ("shape", "dtype", "__getitem__"))


def is_npy(source: Any) -> bool:
    """Whether it is a `.npy` file."""
    return starts(source, b"\x93NUMPY") or _called(source, ".npy")


def is_npz(source: Any) -> bool:
    """Whether it is a `.npz` archive."""
    return _called(source, ".npz")


def is_idx(source: Any) -> bool:
    """Whether it is an IDX file, plain or gzipped."""
    if not isinstance(source, str) or not os.path.isfile(source):
        return False
    from .idx import is_idx as looks_so

    return looks_so(source)


def is_zarr(source: Any) -> bool:
    """Whether it is a Zarr array or group: a folder with Zarr's metadata, or an URL."""
    if not isinstance(source, str):
        return False
    metadata = ("zarr.json", ".zarray", ".zgroup")
    return "://" in source or any(os.path.isfile(os.path.join(source, name)) for name in metadata)


def is_tiff(source: Any) -> bool:
    """Whether it is one TIFF file."""
    return starts(source, *_TIFF)


def is_files(source: Any) -> bool:
    """Whether it is a path, or a list of paths."""
    return isinstance(source, str) or (isinstance(source, list) and all(isinstance(item, str) for item in source))


def starts(source: Any, *magic: bytes) -> bool:
    """Whether `source` is a file beginning with one of these bytes."""
    if not isinstance(source, str) or not os.path.isfile(source):
        return False
    try:
        with open(source, "rb") as file:
            return file.read(max(map(len, magic))).startswith(magic)
    except OSError as error:
        raise SourceError(f"{source} cannot be read: {error.strerror}; check its permissions.") from error


def _called(source: Any, suffix: str) -> bool:
    return isinstance(source, str) and source.lower().endswith(suffix) and os.path.isfile(source)
