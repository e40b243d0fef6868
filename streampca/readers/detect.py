"""Cheap checks that recognize the format of a source by its first bytes, its name and its surroundings."""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterable
from typing import Any

from ..errors import SourceError
from ..storage import remote
from ..storage.disk import open_regular
from .image_files.find import IMAGES, MANY, has_images
from .image_files.names import ending, natural
from .silence_decoders import quiet
from .stored.files import check_kind
from .system_folders import matching

_HDF5 = b"\x89HDF\r\n\x1a\n"
# Most files of a list whose first bytes are read because their names tell no format.
_OPENED = 8
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_array(source: Any) -> bool:
    """Return whether an object can be sliced as an array."""
    return all(hasattr(source, name) for name in ("shape", "dtype", "__getitem__"))


def is_sparse(source: Any) -> bool:
    """Return whether an object is a sparse matrix or array, of `scipy.sparse` or converted to it."""
    return all(hasattr(source, name) for name in ("shape", "dtype", "nnz", "tocsr"))


def is_lazy_frame(source: Any) -> bool:
    """Return whether an object is a data frame whose partitions are computed when they are read, like dask's."""
    return all(hasattr(source, name) for name in ("to_dask_array", "partitions", "columns", "_meta"))


def is_container(source: Any) -> bool:
    """Return whether an object holds arrays by name."""
    return all(hasattr(source, name) for name in ("keys", "__getitem__", "__iter__")) and not hasattr(source, "shape")


def is_dataset(source: Any) -> bool:
    """Return whether an object is an `xarray.Dataset`."""
    return all(hasattr(source, name) for name in ("data_vars", "coords", "to_dataarray"))


def is_data_array(source: Any) -> bool:
    """Return whether an object is an `xarray.DataArray`; xarray is not imported to find out."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(source, xarray.DataArray)


def is_npy(source: Any) -> bool:
    """Return whether a source is a `.npy` file."""
    return starts(source, b"\x93NUMPY") or _called(source, ".npy")


def is_npz(source: Any) -> bool:
    """Return whether a source is a `.npz` archive."""
    return _called(source, ".npz")


def is_idx(source: Any) -> bool:
    """Return whether a source is an IDX file, plain or gzipped."""
    if remote.is_url(source):
        if not starts(source, b"\0\0", b"\x1f\x8b"):
            return False
    elif not isinstance(source, str) or not os.path.isfile(source):
        return False
    from .idx import is_idx as looks_so

    return looks_so(source)


def is_hdf5(source: Any) -> bool:
    """Return whether a source is an HDF5 or NetCDF-4 file, possibly after a user block, as MATLAB writes it."""
    if starts(source, _HDF5) or any(_called(source, suffix) for suffix in (".h5", ".hdf5", ".he5", ".nc4")):
        return True
    if not isinstance(source, str) or not os.path.isfile(source):
        return False
    size = os.path.getsize(source)
    with open_regular(source) as file:
        places = (512 * 2**power for power in range(40))  # where HDF5 looks for its superblock
        return any(os.pread(file.fileno(), len(_HDF5), place) == _HDF5 for place in places if place < size)


def is_classic_netcdf(source: Any) -> bool:
    """Return whether a source is a classic NetCDF file: CDF-1, CDF-2 or CDF-5."""
    return starts(source, b"CDF\x01", b"CDF\x02", b"CDF\x05") or (_called(source, ".nc") and not is_hdf5(source))


def is_fits(source: Any) -> bool:
    """Return whether a source is a FITS file, plain or gzipped."""
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
    """Return whether a source is a Zarr array or group: a folder or URL with Zarr's metadata below it."""
    if not isinstance(source, str):
        return False
    metadata = ("zarr.json", ".zarray", ".zgroup")
    if remote.is_url(source):
        with remote.naming(source):
            return not remote.is_pattern(source) and any(
                remote.exists(f"{source.rstrip('/')}/{name}") for name in metadata
            )
    places = [os.path.join(source, name) for name in metadata] if os.path.isdir(source) else []
    for place in places:
        check_kind(place, "copy the store again")
    return any(os.path.isfile(place) for place in places)


def is_tiff(source: Any) -> bool:
    """Return whether a source is one TIFF file."""
    return starts(source, *_TIFF)


def is_animated_gif(source: Any) -> bool:
    """Return whether a source is one GIF file of several frames, as far as it can be decoded."""
    if remote.is_url(source) or not starts(source, b"GIF8"):
        return False
    from PIL import GifImagePlugin

    try:
        with quiet(), open_regular(source) as file:
            return bool(GifImagePlugin.GifImageFile(file).is_animated)
    except Exception:  # the reader of images reports the problem better
        return False


def is_score_table(source: Any) -> bool:
    """Return whether a source is a table of scores, .csv or .parquet, as this package writes it."""
    if not any(_called(source, suffix) for suffix in (".csv", ".parquet")):
        return False
    from .score_tables import is_score_table as is_ours

    return is_ours(source)


def is_array_files(source: Any) -> bool:
    """Return whether a source is a list, glob or folder of files of arrays, with no image file among them."""
    if isinstance(source, str) and os.path.isdir(source):
        return bool(array_files_in(source)) and not has_images(source)
    unknown: list[str] = []
    many = False
    for path in _files_of(source):
        if ending(path) in IMAGES and not os.path.isdir(path):
            return False
        many |= ending(path) in MANY
        if os.path.isdir(path) and not is_zarr(path) and has_images(path):
            return False
        if len(unknown) < _OPENED:
            unknown.append(path)
    return many or any(map(holds_arrays, unknown))


def array_files_in(source: str, left_out: list[str] | None = None) -> list[str]:
    """Return the files and stores of arrays of a folder or glob, in natural order.

    Models and results in a folder are left out unless it holds nothing else; system folders that a glob matches are
    added to `left_out`.
    """
    if os.path.isdir(source):
        # A folder is searched by names alone: other files in it can be parts of something that is not read.
        with os.scandir(source) as entries:
            paths = [entry.path for entry in entries if not entry.name.startswith(".") and ending(entry.name) in MANY]
        paths = [path for path in paths if not _is_made(path)] or paths
    else:
        matches = remote.matching(source) if remote.is_url(source) else matching(source, left_out)
        paths = [path for path in matches if ending(path) in MANY or holds_arrays(path)]
    return sorted(paths, key=natural)


def _is_made(path: str) -> bool:
    """Return whether a store is a model, or scores or images computed by one, rather than a copy of a collection."""
    kind = _kind_of(path)
    return kind is not None and (kind not in ("scores", "images") or "model" in _attributes(os.path.join(path, kind)))


def is_result(source: Any) -> bool:
    """Return whether a source is a store of scores or images that this package wrote, which holds one array."""
    if not isinstance(source, (str, os.PathLike)) or not os.path.isdir(source):
        return False
    return _kind_of(os.fspath(source)) in ("scores", "images")


def _kind_of(path: str) -> Any:
    """Return the kind of what this package wrote to a store; None for any other store."""
    about = _attributes(path).get("streampca")
    return about.get("kind") if isinstance(about, dict) else None


def _attributes(path: str) -> dict[str, Any]:
    """Return the attributes of a Zarr v3 group or array on this machine; none if they cannot be read."""
    try:
        with open_regular(os.path.join(path, "zarr.json"), "r", encoding="utf-8") as file:
            return dict(json.load(file)["attributes"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def holds_arrays(path: str) -> bool:
    """Return whether a file or store holds arrays by its first bytes, whatever its name; False if it is unreadable."""
    here = not remote.is_url(path)
    try:
        return is_zarr(path) or is_idx(path) or (here and (is_hdf5(path) or is_npy(path) or is_classic_netcdf(path)))
    except SourceError:  # reported when it is opened, if it is not left out
        return False


def is_paths(source: Any) -> bool:
    """Return whether a source is a path, or a list of paths."""
    return isinstance(source, str) or (isinstance(source, list) and all(isinstance(item, str) for item in source))


def starts(source: Any, *magic: bytes) -> bool:
    """Return whether `source` is a file that begins with one of these byte strings."""
    if remote.is_url(source):
        return not remote.is_pattern(source) and remote.first_bytes(source, max(map(len, magic))).startswith(magic)
    if not isinstance(source, str) or not os.path.isfile(source):
        return False
    try:
        with open_regular(source) as file:
            return bytes(file.read(max(map(len, magic)))).startswith(magic)
    except OSError as error:
        raise SourceError(f"{source} cannot be read: {error.strerror}; check its permissions.") from error


def _files_of(source: Any) -> Iterable[str]:
    """Return the paths of a list, or those that a glob matches."""
    if isinstance(source, list):
        return (path for path in source if isinstance(path, str))
    if remote.is_url(source):
        return remote.matching(source) if remote.is_pattern(source) else ()
    if not isinstance(source, str) or os.path.isfile(source):
        return ()
    return matching(source)


def _called(source: Any, suffix: str) -> bool:
    if not isinstance(source, str) or not remote.without_query(source).lower().endswith(suffix):
        return False
    return os.path.isfile(source) or (remote.is_url(source) and not remote.is_pattern(source))
