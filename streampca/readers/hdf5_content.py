"""Contents of an HDF5 file, and checks that all is there: datasets, axis names, filters, sources of virtual datasets.

HDF5 reads what was never written, and what a virtual dataset cannot find, as fill values; that is told here, while
opening, before any of it passes for data.
"""

from __future__ import annotations

import glob
import json
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple

import h5py
import numpy as np

from ..errors import SourceError, StreampcaError, first_line
from . import remote
from .hdf5_growth import mode_of, ways_to_open
from .stored import cf
from .stored.array import MOST_COUNTED, check_written
from .stored.default_fills import default_fill
from .stored.files import check_kind
from .stored.select_array import select_array

# Datasets looked at to choose one; files with more hold one image a dataset, and are told by fewer.
_MOST_DATASETS = 10_000
# Sources of a virtual dataset that are opened to see whether they are whole; of the others only the files are checked.
_MOST_OPENED = 256
# Longer attributes are data of their own.
_MOST_ITEMS = 4096
# Letters of JSON that names some axes: vigra writes about 150 for each.
_MOST_TAGS = 2**14
# Attributes by which HDF5 and NetCDF-4 tie datasets together; they say nothing of the data.
_TIES = frozenset(
    (
        "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS", "CLASS", "NAME", "_NCProperties", "_Netcdf4Dimid",
        "_Netcdf4Coordinates", "_nc3_strict",
    )
)  # fmt: skip

MOST_LINKS = 16  # that HDF5 follows, one after another

_log = logging.getLogger("streampca")


class DatasetInfo(NamedTuple):
    """Shape and dtype of a dataset, and the attributes that name others."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    names: dict[str, Any]


def opened_file(path: str) -> Any:
    """Open a file for reading, in SWMR mode if its writer has set that."""
    remote.refuse(path, "an HDF5 file")
    check_kind(path)
    mode, errors = mode_of(path), []
    for way in ways_to_open(mode):
        try:
            return h5py.File(path, "r", **way)
        except (OSError, RuntimeError) as error:  # h5py raises RuntimeError where file locks are not wanted
            errors.append(error)
    reason = first_line(errors[0])
    if mode.is_written and not mode.is_swmr:
        raise SourceError(
            f"{path} is marked as open for writing, and not in SWMR mode ({reason}); close it in the program that "
            "writes it, or clear the mark by 'h5clear -s' if that program has ended, or have it set file.swmr_mode = "
            "True (h5py), so that others may read."
        ) from errors[0]
    raise SourceError(
        f"{path} cannot be opened as HDF5 ({reason}); it is cut short, damaged, or open for writing elsewhere, copy it "
        "again."
    ) from errors[0]


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """Open a file for a while; whatever h5py raises meanwhile becomes one line that names it."""
    with opened_file(path) as file, reading(path):
        yield file


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Turn whatever h5py raises for damaged metadata or values into one line."""
    try:
        yield
    except (StreampcaError, MemoryError):
        raise
    except Exception as error:  # KeyError, RuntimeError, TypeError and more
        raise SourceError(
            f"{label} cannot be read ({first_line(error)}); it is damaged, copy the file again."
        ) from error


def dtype_of(dataset: Any, label: str) -> np.dtype[Any]:
    """Return the numpy dtype of a dataset's values."""
    try:
        dtype: np.dtype[Any] = dataset.dtype
    except TypeError as error:
        raise SourceError(
            f"{label} has a type of values that numpy lacks ({first_line(error)}); save it again with a numeric dtype "
            "such as uint8 or float32."
        ) from error
    return dtype


def holds_plain_numbers(dataset: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether the bytes of stored values are those of numpy's: no enumerations, no numbers of unusual width."""
    return dtype.kind in "iuf" and bool(dataset.id.get_type() == h5py.h5t.py_create(dtype))


def select_dataset(file: Any, key: str | None, source: str) -> Any:
    """Open the dataset that `key` names, else the only one that can hold images."""
    named = (key or "").strip("/")
    if named:
        direct = _member(file, named, source)
        if isinstance(direct, h5py.Dataset):
            return direct
    try:
        found = dict(islice(_datasets(file), _MOST_DATASETS))
    except (KeyError, OSError, RuntimeError) as error:  # what h5py makes of a list of links it cannot read
        raise SourceError(f"{source} is damaged ({first_line(error)}); copy the file again.") from error
    if not found:
        raise SourceError(f"{source} holds no datasets; give an HDF5 file with a dataset of images in it.")
    names = cf.auxiliary({path: described.names for path, described in found.items()})
    numbers = [path for path, described in found.items() if described.dtype.kind in "biuf" and path not in names]
    return file[select_array(found, key, source, images=numbers)]


def attributes_of(item: Any) -> dict[str, Any]:
    """Return the attributes as h5py gives them, without those that tie datasets together or cannot be read."""
    found = {}
    for name in item.attrs:
        with suppress(OSError, TypeError, KeyError, ValueError, RuntimeError):  # types that numpy does not have
            value = item.attrs[name]
            if name not in _TIES and _is_plain(value):
                found[name] = value
    return found


def _is_plain(value: Any) -> bool:
    """Return whether an attribute is text or numbers, and few of them: no references, no empty ones, no tables."""
    if isinstance(value, (str, bytes)):
        return True
    if not isinstance(value, (np.ndarray, np.generic)) or value.size > _MOST_ITEMS:
        return False
    return value.dtype.kind in "biufSU" or (
        value.dtype.kind == "O" and all(isinstance(item, (str, bytes)) for item in value.reshape(-1))
    )


def axis_names(dataset: Any) -> tuple[str, ...] | None:
    """Return the labels of the axes, or names of their dimension scales; None where no axis has either."""
    labels = _attribute_of_axes(dataset, "DIMENSION_LABELS")
    names: list[str] = []
    for axis in range(len(dataset.shape)):
        scale = scale_of(dataset, axis)
        label = cf.plain_value(labels[axis]) if labels is not None else ""
        name = str(label or "") or (scale.name.rpartition("/")[2] if scale is not None and scale.name else "")
        names.append(name if name and name not in names else f"axis_{axis}")
    return None if all(name == f"axis_{axis}" for axis, name in enumerate(names)) else tuple(names)


def tagged_axes(dataset: Any, label: str) -> tuple[str, ...] | None:
    """Return the names of the axes that ilastik and vigra keep as JSON in the attribute ``axistags``; None without."""
    try:
        tags = cf.plain_value(dataset.attrs["axistags"]) if "axistags" in dataset.attrs else None
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # of a type that numpy lacks, or damaged
        tags = ""
    if tags is None:
        return None
    keys = _tag_keys(tags)
    if keys is None or len(keys) != len(dataset.shape):
        _log.warning(
            "%s has axistags that do not name its %d axes; they are left out, and axes are taken as if without names.",
            label, len(dataset.shape),
        )  # fmt: skip
        return None
    return tuple(key if keys.count(key) == 1 else f"axis_{axis}" for axis, key in enumerate(keys))


def _tag_keys(tags: Any) -> list[str] | None:
    """Return the keys of axes that JSON lists; None where it is anything else, or longer than any that vigra writes."""
    if not isinstance(tags, str) or len(tags) > _MOST_TAGS:
        return None
    try:
        keys = [axis["key"] for axis in json.loads(tags)["axes"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return keys if all(isinstance(key, str) and key.isascii() and key.isalnum() for key in keys) else None


def scale_of(dataset: Any, axis: int) -> Any:
    """Return the dimension scale of an axis: of several, the one-dimensional one of its length; None without any.

    The attribute is read as any other: HDF5's own functions for it free memory twice where a file is damaged.
    """
    references = _attribute_of_axes(dataset, "DIMENSION_LIST")
    scales = []
    for reference in np.atleast_1d(references[axis]) if references is not None else ():
        with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):  # datasets that were deleted
            scales.append(dataset.file[reference])
    scales = [scale for scale in scales if isinstance(scale, h5py.Dataset)]
    fitting = [scale for scale in scales if scale.shape == (dataset.shape[axis],)]
    return (fitting or scales or [None])[0]


def _attribute_of_axes(dataset: Any, name: str) -> Any:
    """Return an attribute with an entry for each axis; None where there is none, or it is damaged."""
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
        values = dataset.attrs.get(name)
        return values if np.shape(values)[:1] == (len(dataset.shape),) else None
    return None


def unwritten_of(dataset: Any) -> Any:
    """Return the number that a NetCDF-4 dataset holds where none was written, if it declares no fill value.

    It is the one that HDF5 fills it with: none where no one set it, as in files written without filling.
    """
    plist = dataset.id.get_create_plist()
    if "_FillValue" in dataset.attrs or dataset.dtype.kind not in "iuf" or dataset.dtype.itemsize == 1:
        return None
    if (
        plist.fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED
        or plist.get_fill_time() == h5py.h5d.FILL_TIME_NEVER
    ):
        return None
    number, default = dataset.fillvalue, default_fill(dataset.dtype)
    if np.isnan(number) or not (number == default or _is_netcdf(dataset)):
        return None
    return dataset.dtype.newbyteorder("=").type(number)


def record_shape(dataset: Any, label: str) -> tuple[int, ...]:
    """Return the shape that NetCDF gives a dataset: its unlimited axes are as long as those of any variable along them.

    Where it stores fewer records than another variable, the last ones are missing.
    """
    shape = tuple(map(int, dataset.shape))
    if None not in (dataset.maxshape or ()) or not _is_netcdf(dataset):
        return shape
    found = tuple(
        max(length, _records(scale_of(dataset, axis))) if most is None else length
        for axis, (length, most) in enumerate(zip(shape, dataset.maxshape, strict=True))
    )
    for length, records in zip(shape, found, strict=True):
        if length < records:
            _log.warning("%s has %d of the %d records of its file; the others are missing.", label, length, records)
    return found


def _records(scale: Any) -> int:
    """Return the length of a dimension, the largest of the variables along it, given its scale; 0 without one."""
    longest = 0
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError, IndexError):  # where the list is damaged
        longest = int(scale.shape[0])
        for reference, axis in scale.attrs["REFERENCE_LIST"][:_MOST_DATASETS]:
            longest = max(longest, int(scale.file[reference].shape[axis]))
    return longest


def _is_netcdf(dataset: Any) -> bool:
    """Return whether a dataset is of a NetCDF-4 file, by what its library writes beside it."""
    beside = (dataset, *(scale_of(dataset, axis) for axis in range(len(dataset.shape))))
    signs = ("_Netcdf4Coordinates", "_Netcdf4Dimid")
    return "_NCProperties" in dataset.file.attrs or any(
        sign in each.attrs for each in beside if each is not None for sign in signs
    )


def check_filters(dataset: Any, label: str) -> None:
    """Load the filters that a dataset was written with; name the one that is missing."""
    plist = dataset.id.get_create_plist()
    for at in range(plist.get_nfilters()):
        number, _, _, name = plist.get_filter(at)
        if h5py.h5z.filter_avail(number):
            continue
        try:
            import_module("hdf5plugin")  # registers the filters it knows
            remedy = "which hdf5plugin does not know; write the file again with h5repack -f GZIP=1"
        except ImportError:
            remedy = "which is not installed; pip install hdf5plugin, which is the extra streampca[hdf5]"
        if not h5py.h5z.filter_avail(number):
            called = name.decode("utf-8", "replace").partition(";")[0].strip() or "of no known name"
            raise SourceError(f"{label} is stored with filter {number} ({called}), {remedy}.")


def check_stored(dataset: Any, label: str) -> int:
    """Refuse a dataset whose values are elsewhere or nowhere; say so where part of them was never written.

    Returns
    -------
    int
        Bytes of the largest compressed chunk of a virtual dataset's sources, as far as they are looked at.
    """
    plist = dataset.id.get_create_plist()
    if plist.get_external_count():
        name = os.fsdecode(plist.get_external(0)[0])
        raise SourceError(
            f"{label} keeps its values in another file ({name}), in a way that hides what is missing; copy it into one "
            "file with h5repack -l CONTI."
        )
    if dataset.is_virtual:
        return _check_sources(dataset, label)
    if math.prod(dataset.shape) and dataset.id.get_storage_size() == 0:
        check_written(0, 1, dataset.fillvalue, label)
    elif dataset.chunks:
        count = math.prod(-(-length // side) for length, side in zip(dataset.shape, dataset.chunks, strict=True))
        if count <= MOST_COUNTED:
            reads_as = "missing" if unwritten_of(dataset) is not None else dataset.fillvalue
            check_written(dataset.id.get_num_chunks(), count, reads_as, label)
    return 0


def sources_of(dataset: Any) -> list[tuple[str, str]]:
    """Return the files and datasets that make up a virtual dataset, each once; patterns of names are left out."""
    folder = os.path.dirname(dataset.file.filename)
    found: dict[tuple[str, str], None] = {}
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        name = source.file_name
        if "%" in f"{name}{source.dset_name}":
            continue
        beside = dataset.file.filename if name == "." else os.path.join(folder, name)
        found[beside if os.path.exists(beside) or not os.path.exists(name) else name, source.dset_name] = None
    return list(found)


def _check_sources(dataset: Any, label: str) -> int:
    largest = 0
    for at, (path, name) in enumerate(sources_of(dataset)):
        part = f"{label} is put together from other files, and {path}"
        if not os.path.exists(path):
            raise SourceError(f"{part} is missing, which HDF5 reads as fill values; copy it there.")
        check_kind(path)
        if at < _MOST_OPENED:
            with opened_file(path) as file:
                check_links(file, name)
                source = file.get(name)
                if not isinstance(source, h5py.Dataset):
                    raise SourceError(
                        f"{part} has no dataset {name!r}, which HDF5 reads as fill values; copy it again."
                    )
                check_filters(source, f"{path}, dataset {name!r}")
                if source.chunks and source.id.get_create_plist().get_nfilters():
                    largest = max(largest, math.prod(source.chunks) * source.dtype.itemsize)
    given = [source for source in dataset.virtual_sources() if "%" not in f"{source.file_name}{source.dset_name}"]
    if len(given) == len(dataset.virtual_sources()):
        taken, whole = sum(source.vspace.get_select_npoints() for source in given), math.prod(dataset.shape)
        if taken < whole:
            _log.warning(
                "%s takes %d of its %d values from other files; the others read as %s.",
                label, taken, whole, dataset.fillvalue,
            )  # fmt: skip
    return largest


def _check_numbered(dataset: Any) -> None:
    """Check the files that HDF5 opens to find how long a virtual dataset of numbered files is; %b is the number."""
    folder = glob.escape(os.path.dirname(dataset.file.filename))
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        if "%" in source.file_name:
            pattern = glob.escape(source.file_name).replace("%b", "*").replace("%%", "%")
            for path in (*glob.glob(os.path.join(folder, pattern)), *glob.glob(pattern)):
                check_kind(path)


def check_links(group: Any, path: str, left: int = MOST_LINKS) -> None:
    """Refuse a path that leads through links to what is no file: HDF5 would open it, and wait for ever for a pipe."""
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        try:
            link = group.get("/".join(parts[:end]), getlink=True) if parts[end - 1] else None
        except (KeyError, OSError, RuntimeError, ValueError):  # who opens it says what is wrong
            return
        if isinstance(link, h5py.SoftLink) and left:
            if link.path.startswith("/"):
                check_links(group.file, link.path, left - 1)
            else:
                check_links(group, "/".join([*parts[: end - 1], link.path]), left - 1)
        elif isinstance(link, h5py.ExternalLink) and left:
            _check_other_file(os.path.join(os.path.dirname(group.file.filename), link.filename), link.path, left - 1)
            _check_other_file(link.filename, link.path, left - 1)


def _check_other_file(path: str, inside: str, left: int) -> None:
    """Check the file that a link leads to, and the links inside it."""
    check_kind(path)
    try:
        file = opened_file(path)
    except SourceError:  # who opens it says what is wrong
        return
    with file:
        check_links(file, inside, left)


def _datasets(group: Any, folder: str = "", seen: set[Any] | None = None) -> Iterator[tuple[str, DatasetInfo]]:
    """Yield the datasets below a group by their paths, each once, however many links lead there."""
    seen = set() if seen is None else seen
    for name in group:
        check_links(group, name)
        try:
            item = group[name]
        except (KeyError, OSError, RuntimeError):
            if isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise  # the file is damaged; other links may lead nowhere
            continue
        info = h5py.h5o.get_info(item.id)
        if (info.fileno, info.addr) in seen:
            continue
        seen.add((info.fileno, info.addr))
        path = f"{folder}/{name}" if folder else name
        if isinstance(item, h5py.Group):
            yield from _datasets(item, path, seen)
            continue
        if isinstance(item, h5py.Dataset):
            _check_numbered(item)
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            with suppress(TypeError):  # a type of values that numpy lacks
                yield path, DatasetInfo(item.shape, item.dtype, _naming(item))


def _naming(dataset: Any) -> dict[str, Any]:
    if not any(name in dataset.attrs for name in cf.NAMING):
        return {}
    return {name: value for name, value in attributes_of(dataset).items() if name in cf.NAMING}


def _member(file: Any, path: str, source: str) -> Any:
    """Return what lies at a path, None where there is nothing; name a link that leads nowhere."""
    check_links(file, path)
    try:
        item = file[path]
        if isinstance(item, h5py.Dataset):
            _check_numbered(item)
        return item
    except (KeyError, OSError, RuntimeError) as error:
        link = None
        with suppress(KeyError, OSError, RuntimeError):
            link = file.get(path, getlink=True)
        if isinstance(link, (h5py.ExternalLink, h5py.SoftLink)):
            place, remedy = repr(link.path), "correct the link"
            if isinstance(link, h5py.ExternalLink):
                place, remedy = f"{place} in {link.filename}", "copy that file beside this one"
            raise SourceError(
                f"{source}, dataset {path!r}, is a link to {place}, which is not there; {remedy}."
            ) from error
        if link is not None:
            raise SourceError(
                f"{source}, dataset {path!r}, cannot be opened ({first_line(error)}); it is damaged, copy the file "
                "again."
            ) from error
        return None
