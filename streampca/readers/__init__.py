"""Readers of collections: `open_collection`, and one file per format.

`registry.py` lists the formats: each row holds the function that recognizes a source (`detect.py`) and the function
that opens it; the first row that recognizes a source opens it. Other packages add rows by the entry-point group
``streampca.readers``. A reader returns a `Collection` (`collection.py`) with values as stored, or converted by the tags
of image files and packed arrays; any further conversion is left to `preprocessing`. Errors name the file.

A format of arrays describes them as a `StoredArray` (`stored`), from which `stored` makes samples; image files, one
sample each, are read by `image_files`. `views` holds collections made of collections: concatenated sources, some of the
samples, windows of images, another order of pixels. `weights.py` checks sample weights, `target.py` reads the targets
of supervised models, `paths.py` keeps outputs apart from sources. Every collection passes
`streampca.testing.CollectionContract`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Unpack

from ..errors import RequestError, SourceError, nearest
from ..events import Listener, check_listener, silent
from ..kinds.opening import Opening, OpeningOptions
from ..signals import stopping_on_signals
from .collection import Collection
from .coordinates import IGNORE
from .duplicates import log_repeats, times_of
from .opener import Opener
from .opening_record import MOST_KEPT, OpeningRecord, given_of, record_of, shared_record
from .paths import check_apart, check_not_remote, column_paths, files_beside, fitted_on, paths_of
from .registry import READERS, Format
from .source import text_columns
from .storage_record import Chunks, Storage
from .stored.array import ArrayCollection
from .tags import check_reading, fitted_reading
from .views.columns import open_column
from .views.compose import composed
from .views.converted import Converted
from .views.variables import Variables

__all__ = [
    "READERS",
    "Chunks",
    "Collection",
    "Format",
    "OpeningRecord",
    "Storage",
    "check_apart",
    "check_columns",
    "check_names",
    "check_not_remote",
    "check_reading",
    "column_paths",
    "fitted_on",
    "fitted_reading",
    "given_of",
    "open_collection",
    "open_column",
    "paths_of",
    "shared_record",
]


@stopping_on_signals()
def open_collection(
    source: Any, *, like: Any = None, listener: Listener = silent, **options: Unpack[OpeningOptions]
) -> Collection:
    """Open anything that holds images as a collection: n samples read in pieces.

    Parameters
    ----------
    source : path, glob, list of paths, or object
        A ``.npy`` or ``.npz`` file, a Zarr array or group (v2 or v3), an HDF5, NetCDF or FITS file, an IDX file (plain
        or gzipped), a TIFF file of many pages; a folder or glob of these, a list, ``@list.txt`` (one path a line, from
        that file's folder) or ``table.csv:column`` (paths from the table's folder), one after another; image files in
        any of these ways, one sample per file; or an object with shape, dtype and slicing (numpy, dask, zarr, h5py,
        xarray), or a sparse matrix. A collection is used as it is.
    like : PCAModel, optional
        Open the source as the samples that this model was fitted to: with the `key`, `sample_axes`, `fill_value`,
        `dtype`, `patches`, and entries of `select` and `sel`, that its fit was given, unless they are given here, or
        the source takes none or holds samples as the model takes them; and by the same tags of image files. Parts of
        axes that count samples, `samples`, `labels` and `where` are of one source, and are not taken over.
    listener : callable, optional
        Function that receives an event while files are checked.
    **options
        ``key``, ``sample_axes``, ``select``, ``samples``, ``labels``, ``on_bad_file`` ...: see `Opening`.

    Returns
    -------
    Collection
        The collection, of which only headers and labels have been read.

    Raises
    ------
    SourceError
        If the source is missing, broken, ambiguous or of an unknown format.
    RequestError
        If an axis or key does not exist, or an option makes no sense for this source.
    DuplicatesError
        If there are duplicate samples and `duplicates` is "error"; a RequestError.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> movie = np.zeros((50, 3, 16, 16), np.uint8)  # time, channel, y, x
    >>> collection = streampca.open_collection(movie, sample_axes=(2, 3), select={1: 0})
    >>> collection.shape
    (50, 16, 16)
    >>> collection[10:20].shape
    (10, 16, 16)
    """
    check_listener(listener)
    check_names(options)
    if isinstance(source, Collection):
        collection, opener = source, Opener.of(options, listener, None)
        if options:
            _refuse_late(source, opener.options)
    else:
        collection, opener = Opener.of(options, listener, like).opened(source)
    columns = () if isinstance(source, (str, os.PathLike, Collection)) else text_columns(source)
    if like is not None:
        check_columns(source, like)
    given = opener.options
    single = isinstance(collection, (ArrayCollection, Converted, Variables)) and not collection.grows
    if collection is not source and single:
        with suppress(SourceError):  # unreadable coordinates raise an error only when they are needed
            if (times := times_of(collection)) is not None:
                log_repeats(collection.source, [times])
    if given.coordinates == IGNORE and collection.compares_coordinates:
        collection = copy.copy(collection)  # it may be the caller's own
        collection.compares_coordinates = False
    made = composed(collection, given)
    if made is not source:
        before = source.opened if isinstance(source, Collection) else None
        axes = made.guessed_axes, made.array_axes
        made.opened = record_of(source, given, *axes) if before is None else before.again(given)
        if columns and len(columns) <= MOST_KEPT:
            made.opened = replace(made.opened, columns=columns)
        labels = () if given.labels is None else column_paths(given.labels)
        made.beside = (*made.beside, *files_beside(source), *labels)
    return made


def check_columns(source: Any, model: Any) -> None:
    """Refuse a table, or a collection opened from one, whose columns are not those of a model's fit in their order.

    Raises
    ------
    ModelError
    """
    is_open = isinstance(source, Collection)
    columns = (source.opened.columns if source.opened else ()) if is_open else text_columns(source)
    if columns and (data := model.provenance.get("opened")) is not None:
        OpeningRecord.from_json(data, model.name).check_columns(columns, model.name)


def check_names(options: Mapping[str, Any]) -> None:
    """Refuse keywords that are no options of opening.

    Raises
    ------
    TypeError
    """
    if unknown := next((name for name in options if name not in OpeningOptions.__annotations__), None):
        raise TypeError(f"{unknown!r} is not an option.{nearest(unknown, [*OpeningOptions.__annotations__])}")


def _refuse_late(source: Collection, options: Opening) -> None:
    """Refuse options of reading an array for a collection that is already open."""
    of_reading = ("key", "select", "sel", "fill_value", "dtype", "keep_orientation")
    late = next((name for name in of_reading if name in options.given), None)
    if late is not None:
        raise RequestError(f"{late} was given for {source.source}, which is open already; open it with {late}=.")
