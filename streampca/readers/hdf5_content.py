"""Contents of an HDF5 file and checks that it is complete: datasets, axis names, filters, sources of virtual datasets.

HDF5 reads unwritten values, and missing sources of a virtual dataset, as fill values; the checks find them on opening,
before they pass for data.
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
from ..storage import remote
from .hdf5_growth import mode_of, ways_to_open
from .stored import cf
from .stored.array import MOST_COUNTED, check_written
from .stored.default_fills import default_fill
from .stored.files import check_kind
from .stored.select_array import select_array

# Most datasets looked at to choose one: a file with more holds one image per dataset, which fewer show.
_MOST_DATASETS = 10_000
# Sources of a virtual dataset that are opened and checked; of further ones only the existence of the file is checked.
_MOST_OPENED = 256
# Most items of an attribute: longer ones are data of their own.
_MOST_ITEMS = 4096
# Most characters of the JSON that names axes: vigra writes about 150 for each.
_MOST_TAGS = 2**14
# Attributes by which HDF5 and NetCDF-4 tie datasets together; they do not describe the data.
_TIES = frozenset(
    (
        "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS", "CLASS", "NAME", "_NCProperties", "_Netcdf4Dimid",
        "_Netcdf4Coordinates", "_nc3_strict",
    )
)  # fmt: skip

MOST_LINKS = 16  # length of a chain of links that HDF5 follows

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
    """Open a file in a context, in which any error of h5py becomes one line that names the file."""
    with opened_file(path) as file, reading(path):
        yield file


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Turn any error of h5py for damaged metadata or values into one line."""
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
    """Return whether stored values have numpy's bytes: no enumerations, no numbers of unusual width."""
    return dtype.kind in "iuf" and bool(dataset.id.get_type() == h5py.h5t.py_create(dtype))


def select_dataset(file: Any, key: str | None, source: str) -> Any:
    """Open the dataset that `key` names, else the only one that can hold images."""
    path = (key or "").strip("/")
    if path:
        direct = _member(file, path, source)
        if isinstance(direct, h5py.Dataset):
            return direct
    try:
        datasets = dict(islice(_datasets(file), _MOST_DATASETS))
    except (KeyError, OSError, RuntimeError) as error:  # h5py's errors for a list of links that it cannot read
        raise SourceError(f"{source} is damaged ({first_line(error)}); copy the file again.") from error
    if not datasets:
        raise SourceError(f"{source} holds no datasets; give an HDF5 file with a dataset of images in it.")
    describing = cf.auxiliary({name: dataset.names for name, dataset in datasets.items()})
    images = [name for name in datasets if name not in describing]
    return file[select_array(datasets, key, source, images=images)]


def attributes_of(item: Any) -> dict[str, Any]:
    """Return the attributes in h5py's form, without those that tie datasets together or cannot be read."""
    attributes = {}
    for name in item.attrs:
        with suppress(OSError, TypeError, KeyError, ValueError, RuntimeError):  # types that numpy does not have
            value = item.attrs[name]
            if name not in _TIES and _is_plain(value):
                attributes[name] = value
    return attributes


def _is_plain(value: Any) -> bool:
    """Return whether an attribute is a text or a few texts or numbers: no references, no empty ones, no tables."""
    if isinstance(value, (str, bytes)):
        return True
    if not isinstance(value, (np.ndarray, np.generic)) or value.size > _MOST_ITEMS:
        return False
    return value.dtype.kind in "biufSU" or (
        value.dtype.kind == "O" and all(isinstance(item, (str, bytes)) for item in value.reshape(-1))
    )


def axis_names(dataset: Any) -> tuple[str, ...] | None:
    """Return the labels of the axes, or the names of their dimension scales; None if no axis has either."""
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
    """Return the keys of the axes in a text of JSON; None for anything else, or a text longer than any of vigra's."""
    if not isinstance(tags, str) or len(tags) > _MOST_TAGS:
        return None
    try:
        keys = [axis["key"] for axis in json.loads(tags)["axes"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return keys if all(isinstance(key, str) and key.isascii() and key.isalnum() for key in keys) else None


def scale_of(dataset: Any, axis: int) -> Any:
    """Return the dimension scale of an axis: of several, the one-dimensional one of its length; None without any.

    The attribute is read like any other: HDF5's own functions for scales free memory twice if the file is damaged.
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
    """Return an attribute with an entry for each axis; None if it is missing or damaged."""
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
        values = dataset.attrs.get(name)
        return values if np.shape(values)[:1] == (len(dataset.shape),) else None
    return None


def unwritten_of(dataset: Any) -> Any:
    """Return the number that a NetCDF-4 dataset holds where no value was written, if it declares no fill value.

    It is HDF5's fill value of the dataset; None if that was not set, as in files written without filling.
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
    """Return whether a dataset belongs to a NetCDF-4 file, by the attributes that the NetCDF library writes."""
    beside = (dataset, *(scale_of(dataset, axis) for axis in range(len(dataset.shape))))
    signs = ("_Netcdf4Coordinates", "_Netcdf4Dimid")
    return "_NCProperties" in dataset.file.attrs or any(
        sign in node.attrs for node in beside if node is not None for sign in signs
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
    files: dict[tuple[str, str], None] = {}
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        name = source.file_name
        if "%" in f"{name}{source.dset_name}":
            continue
        beside = dataset.file.filename if name == "." else os.path.join(folder, name)
        files[beside if os.path.exists(beside) or not os.path.exists(name) else name, source.dset_name] = None
    return list(files)


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
    explicit = [source for source in dataset.virtual_sources() if "%" not in f"{source.file_name}{source.dset_name}"]
    if len(explicit) == len(dataset.virtual_sources()):
        covered, whole = sum(source.vspace.get_select_npoints() for source in explicit), math.prod(dataset.shape)
        if covered < whole:
            _log.warning(
                "%s takes %d of its %d values from other files; the others read as %s.",
                label, covered, whole, dataset.fillvalue,
            )  # fmt: skip
    return largest


def _check_numbered(dataset: Any) -> None:
    """Check the files that HDF5 opens to find the length of a virtual dataset of numbered files; %b is the number."""
    folder = glob.escape(os.path.dirname(dataset.file.filename))
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        if "%" in source.file_name:
            pattern = glob.escape(source.file_name).replace("%b", "*").replace("%%", "%")
            for path in (*glob.glob(os.path.join(folder, pattern)), *glob.glob(pattern)):
                check_kind(path)


def check_links(group: Any, path: str, links_left: int = MOST_LINKS) -> None:
    """Refuse a path whose links lead to anything but a file: HDF5 would open it, and wait for ever for a pipe."""
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        try:
            link = group.get("/".join(parts[:end]), getlink=True) if parts[end - 1] else None
        except (KeyError, OSError, RuntimeError, ValueError):  # opening the path reports the problem
            return
        if isinstance(link, h5py.SoftLink) and links_left:
            if link.path.startswith("/"):
                check_links(group.file, link.path, links_left - 1)
            else:
                check_links(group, "/".join([*parts[: end - 1], link.path]), links_left - 1)
        elif isinstance(link, h5py.ExternalLink) and links_left:
            beside = os.path.join(os.path.dirname(group.file.filename), link.filename)
            for file in (beside, link.filename):
                _check_other_file(file, link.path, links_left - 1)


def _check_other_file(path: str, inside: str, links_left: int) -> None:
    """Check the file that a link leads to, and the links inside it."""
    check_kind(path)
    try:
        file = opened_file(path)
    except SourceError:  # opening the dataset reports the problem
        return
    with file:
        check_links(file, inside, links_left)


def _datasets(group: Any, folder: str = "", seen: set[Any] | None = None) -> Iterator[tuple[str, DatasetInfo]]:
    """Yield the datasets below a group by path, each only once, even if several links lead to it."""
    seen = set() if seen is None else seen
    for name in group:
        check_links(group, name)
        try:
            item = group[name]
        except (KeyError, OSError, RuntimeError):
            if isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise  # the file is damaged; links of other kinds are allowed to lead nowhere
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
            attributes = attributes_of(item) if any(name in item.attrs for name in cf.NAMING) else {}
            naming = {name: value for name, value in attributes.items() if name in cf.NAMING}
            with suppress(TypeError):  # a type of values that numpy lacks
                yield path, DatasetInfo(item.shape, item.dtype, naming)


def _member(file: Any, path: str, source: str) -> Any:
    """Return the item at a path, None if nothing is there; refuse a link that leads nowhere."""
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
