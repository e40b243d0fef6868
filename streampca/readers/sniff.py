"""What a source is, told from its first bytes and its surroundings: cheap questions for the table of formats."""

from __future__ import annotations

import glob
import gzip
import os
import zlib
from itertools import islice
from typing import IO, Any

from ..errors import SourceError
from . import remote
from .pictures.files import EXTENSIONS
from .pictures.names import natural
from .quiet import quiet

_HDF5 = b"\x89HDF\r\n\x1a\n"
# Names of files that hold an image each, and of files that hold many; a folder of others is for the readers to refuse.
MANY = frozenset((".npy", ".npz", ".h5", ".hdf5", ".he5", ".nc", ".nc4", ".cdf", ".zarr"))
_STACKS, _CUBES = frozenset((".tif", ".tiff")), frozenset((".fits", ".fit", ".fts", ".fz"))
# Names looked at, and files that are opened for it where names do not tell.
_LOOKED_AT, _OPENED = 1000, 8
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_array(source: Any) -> bool:
    """Whether an object can be sliced as an array."""
    return all(hasattr(source, name) for name in ("shape", "dtype", "__getitem__"))


def is_held(source: Any) -> bool:
    """Whether an object holds arrays by name."""
    return all(hasattr(source, name) for name in ("keys", "__getitem__", "__iter__")) and not hasattr(source, "shape")


def is_npy(source: Any) -> bool:
    """Whether it is a `.npy` file."""
    return starts(source, b"\x93NUMPY") or _called(source, ".npy")


def is_npz(source: Any) -> bool:
    """Whether it is a `.npz` archive."""
    return _called(source, ".npz")


def is_idx(source: Any) -> bool:
    """Whether it is an IDX file, plain or gzipped."""
    if remote.is_url(source):
        if not starts(source, b"\0\0", b"\x1f\x8b"):
            return False
    elif not isinstance(source, str) or not os.path.isfile(source):
        return False
    from .idx import is_idx as looks_so

    return looks_so(source)


def is_hdf5(source: Any) -> bool:
    """Whether it is an HDF5 file, NetCDF-4 among them; it may begin with a block of the user's, as MATLAB's do."""
    if starts(source, _HDF5) or any(_called(source, suffix) for suffix in (".h5", ".hdf5", ".he5", ".nc4")):
        return True
    if not isinstance(source, str) or not os.path.isfile(source):
        return False
    size = os.path.getsize(source)
    with open(source, "rb") as file:
        return any(_at(file, 512 * 2**power) == _HDF5 for power in range(40) if 512 * 2**power < size)


def is_netcdf3(source: Any) -> bool:
    """Whether it is a NetCDF file of the classic formats, with offsets of 32 or 64 bits or lengths of 64."""
    return starts(source, b"CDF\x01", b"CDF\x02", b"CDF\x05") or (_called(source, ".nc") and not is_hdf5(source))


def is_fits(source: Any) -> bool:
    """Whether it is a FITS file, plain or gzipped."""
    if starts(source, b"SIMPLE  ="):
        return True
    if not starts(source, b"\x1f\x8b"):
        return False
    try:
        with gzip.open(source, "rb") as file:
            return bytes(file.read(9)) == b"SIMPLE  ="
    except (OSError, EOFError, zlib.error):
        return False


def is_zarr(source: Any) -> bool:
    """Whether it is a Zarr array or group: a folder or URL with Zarr's metadata below it."""
    if not isinstance(source, str):
        return False
    metadata = ("zarr.json", ".zarray", ".zgroup")
    if remote.is_url(source):
        return not remote.is_pattern(source) and any(remote.exists(f"{source.rstrip('/')}/{name}") for name in metadata)
    return any(os.path.isfile(os.path.join(source, name)) for name in metadata)


def is_tiff(source: Any) -> bool:
    """Whether it is one TIFF file."""
    return starts(source, *_TIFF)


def is_frames(source: Any) -> bool:
    """Whether it is one GIF file of several frames, as far as it can be decoded."""
    if remote.is_url(source) or not starts(source, b"GIF8"):
        return False
    from PIL import GifImagePlugin

    try:
        with quiet(), open(source, "rb") as file:
            return bool(GifImagePlugin.GifImageFile(file).is_animated)
    except Exception:  # whatever is wrong with it, the reader of images says it better
        return False


def is_several(source: Any) -> bool:
    """Whether it is a list, glob or folder of files that hold many samples each, not one image."""
    some = _some_files(source)
    images = [path for path in some if _suffix(path) in EXTENSIONS]
    if images:
        return _has_pages(images[0])
    if any(_suffix(path) in MANY for path in some):
        return True
    # A folder goes by names alone: what lies in a folder may be a part of something that is not read.
    inside = isinstance(source, str) and os.path.isdir(source)
    return not inside and any(is_zarr(path) or is_idx(path) for path in some[:_OPENED])


def those_of(folder: str) -> list[str]:
    """Files and stores of a folder that `is_several` calls several, in natural order: of images, TIFF or FITS, only."""
    with os.scandir(folder) as entries:
        paths = sorted((entry.path for entry in entries if not entry.name.startswith(".")), key=natural)
    kinds = (_STACKS, _CUBES, MANY)
    return next(filter(None, ([path for path in paths if _suffix(path) in kind] for kind in kinds)), [])


def is_files(source: Any) -> bool:
    """Whether it is a path, or a list of paths."""
    return isinstance(source, str) or (isinstance(source, list) and all(isinstance(item, str) for item in source))


def starts(source: Any, *magic: bytes) -> bool:
    """Whether `source` is a file beginning with one of these bytes."""
    if remote.is_url(source):
        return not remote.is_pattern(source) and remote.first_bytes(source, max(map(len, magic))).startswith(magic)
    if not isinstance(source, str) or not os.path.isfile(source):
        return False
    try:
        with open(source, "rb") as file:
            return file.read(max(map(len, magic))).startswith(magic)
    except OSError as error:
        raise SourceError(f"{source} cannot be read: {error.strerror}; check its permissions.") from error


def _some_files(source: Any) -> list[str]:
    """Some files of a list, glob or folder, in natural order as far as that takes no more than a look."""
    if isinstance(source, list):
        return [path for path in source[:_LOOKED_AT] if isinstance(path, str) and not os.path.isdir(path)] + [
            path for path in source[:1] if isinstance(path, str) and is_zarr(path)
        ]
    if remote.is_url(source):
        return remote.matching(source)[:_LOOKED_AT] if remote.is_pattern(source) else []
    if not isinstance(source, str) or os.path.isfile(source):
        return []
    pattern = os.path.join(glob.escape(source), "*") if os.path.isdir(source) else source
    return sorted(islice(glob.iglob(pattern, recursive=True), _LOOKED_AT), key=natural)


def _has_pages(path: str) -> bool:
    from .fits import has_planes
    from .tiff import has_pages

    if _suffix(path) in _STACKS:
        return is_tiff(path) and has_pages(path)
    return _suffix(path) in _CUBES and is_fits(path) and has_planes(path)


def _suffix(path: str) -> str:
    return os.path.splitext(remote.without_query(path).lower().removesuffix(".gz"))[1]


def _at(file: IO[bytes], place: int) -> bytes:
    file.seek(place)
    return file.read(len(_HDF5))


def _called(source: Any, suffix: str) -> bool:
    if not isinstance(source, str) or not remote.without_query(source).lower().endswith(suffix):
        return False
    return os.path.isfile(source) or (remote.is_url(source) and not remote.is_pattern(source))
