"""Where samples come from.

One format a file, one protocol (`Collection`), one table. `open_collection` asks each row of the table in turn whether
it knows the source; the first that does opens it. Third parties add rows through the entry-point group
``streampca.readers``: each entry is a `Format`. Readers return values as stored and never scale, convert or guess;
that is `prepare`'s work. Errors name the file.

A reader of files describes them as a `StoredArray` (`array.py`): shape, dtype, chunks, and one method that fills a box
of a buffer. `ArrayCollection` makes samples of it, with `sample_axes`, `select` and ranges of features, once for all.
Whatever holds a collection must pass `streampca.testing.CollectionContract`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from ..collection import Chunks, Collection
from ..errors import SourceError, nearest
from . import sniff

__all__ = ["FORMATS", "Chunks", "Collection", "Format", "open_collection"]


@dataclass(frozen=True)
class Format:
    """One row of the table.

    Attributes
    ----------
    name : str
        What people call the format.
    matches : callable
        ``matches(source) -> bool``; source is a path as text, a list of paths, or an object. Cheap; may look at a
        file's first bytes.
    module, function : str
        Where ``function(source, *, key, sample_axes, select) -> Collection`` lives; imported on first use.
    options : tuple of str
        Further options of `open_collection` that the function takes by name.
    """

    name: str
    matches: Callable[[Any], bool]
    module: str
    function: str
    options: tuple[str, ...] = ()

    def open(self, source: Any, **options: Any) -> Collection:
        """Open `source` with this format's function."""
        function = getattr(import_module(self.module, __package__), self.function)
        collection: Collection = function(source, **options)
        return collection


FORMATS: list[Format] = [
    Format("array", sniff.is_array, ".array", "open_array"),
    Format("npy", sniff.is_npy, ".npy", "open_npy"),
    Format("npz", sniff.is_npz, ".npy", "open_npz"),
    Format("idx", sniff.is_idx, ".idx", "open_idx"),
    Format("zarr", sniff.is_zarr, ".zarr", "open_zarr"),
    Format("tiff", sniff.is_tiff, ".tiff", "open_tiff"),
    Format("images", sniff.is_files, ".images", "open_images"),
]


@cache
def _formats() -> tuple[Format, ...]:
    """Third parties' rows first, so that they can take over a format, then ours."""
    return (*(entry.load() for entry in entry_points(group="streampca.readers")), *FORMATS)


def open_collection(
    source: Any,
    *,
    key: str | None = None,
    sample_axes: Sequence[int | str] | None = None,
    select: Mapping[int | str, int | slice] | None = None,
) -> Collection:
    """Open anything that holds images as a collection: n samples read in pieces.

    Parameters
    ----------
    source : path, glob, list of paths, or object
        A ``.npy`` or ``.npz`` file, a Zarr array or group (v2 or v3), an IDX file (plain or gzipped), a TIFF file of
        many pages, a folder, glob or list of image files, ``@list.txt`` (one path a line, from that file's folder),
        or an object with shape, dtype and slicing (numpy, dask, zarr, h5py, xarray). A collection is returned as it
        is.
    key : str, optional
        Which array, where the source holds several.
    sample_axes : sequence of int or str, optional
        The axes that make one image, wherever they lie; by default y, x and colour where the axes have such names,
        else all but the first. The others are flattened into samples in order.
    select : mapping of axis to int or slice, optional
        What to take of an axis: an integer drops it, a slice narrows it.

    Returns
    -------
    Collection
        Nothing but headers has been read.

    Raises
    ------
    SourceError
        If the source is missing, broken, ambiguous or of an unknown format.
    RequestError
        If an axis or key does not exist.
    """
    if isinstance(source, Collection):
        return source
    source = _named(source)
    for row in _formats():
        if row.matches(source):
            return row.open(source, key=key, sample_axes=sample_axes, select=select)
    raise SourceError(
        f"a {type(source).__name__} is not a collection; give a path, a glob, a list of image files, or an array "
        "with shape, dtype and slicing."
    )


def _named(source: Any) -> Any:
    """Turn paths into text, a list file into its list, a glob of one thing into that thing; refuse what is missing."""
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, (list, tuple)) and all(isinstance(item, (str, os.PathLike)) for item in source):
        return [os.path.expanduser(os.fspath(item)) for item in source]
    if not isinstance(source, str) or "://" in source:
        return source
    source = os.path.expanduser(source)
    if os.path.exists(source):
        return source
    if source.startswith("@"):
        return _listed(source[1:])
    if not glob.has_magic(source):
        raise SourceError(f"{source} does not exist{_parent_hint(source)} Check the path.")
    matches = glob.glob(source, recursive=True)
    return matches[0] if len(matches) == 1 else source


def _listed(path: str) -> list[str]:
    """Read paths, one a line; those that are not absolute start at the list's own folder."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read as a list of paths ({error}); give a text file of them.") from error
    return [os.path.join(os.path.dirname(path), os.path.expanduser(line)) for line in lines if line]


def _parent_hint(path: str) -> str:
    """Say which part of a missing path is the first that is missing, and what there is instead."""
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(parent):
        path, parent = parent, os.path.dirname(parent)
    missing = os.path.basename(os.path.abspath(path))
    known = os.listdir(parent)[:2000] if os.path.isdir(parent) else []
    return f" (no {missing!r} in {parent}).{nearest(missing, known)}" if known else "."
