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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict

from ..errors import ChangedError, RequestError, SourceError, without_secrets
from ..events import Listener, check_listener, silent
from ..signals import stopping_on_signals
from ..storage.disk import expanded
from .array_objects import refuse_several
from .collection import Collection, file_state
from .coordinates import CHECK, is_checked
from .detect import is_dataset
from .duplicates import ERROR, check_duplicates, log_repeats, times_of
from .opening_record import OpeningRecord, given_of, record_of
from .paths import check_apart, check_not_remote, column_paths, files_beside, fitted_on, paths_of, resolve_source
from .registry import READERS, Format, readers
from .storage_record import Chunks, Storage
from .stored.array import ArrayCollection
from .stored.cf import with_fill_value
from .tags import TagRules, check_reading, fitted_reading
from .views.columns import open_column
from .views.compose import composed
from .views.variables import Variables, variables_fitted, variables_in, variables_of

__all__ = [
    "READERS",
    "Chunks",
    "Collection",
    "Format",
    "Opening",
    "OpeningRecord",
    "Storage",
    "check_apart",
    "check_not_remote",
    "check_reading",
    "column_paths",
    "fitted_on",
    "fitted_reading",
    "given_of",
    "open_collection",
    "open_column",
    "paths_of",
]

_ON_BAD_FILE = ("error", "skip")


class Opening(TypedDict, total=False):
    """The options of `open_collection`, for functions that pass them on and have a listener of their own."""

    key: str | Sequence[str] | None
    sample_axes: Sequence[int | str] | None
    select: Mapping[int | str, int | slice] | None
    sel: Mapping[str, Any] | None
    patches: int | Sequence[int] | Mapping[str, Any] | None
    samples: Any
    labels: Any
    where: str | None
    fill_value: int | float | str | None
    on_bad_file: str
    keep_orientation: bool
    coordinates: str
    duplicates: str
    allow_remote: bool
    listing: str | os.PathLike[str] | None


@stopping_on_signals()
def open_collection(
    source: Any,
    *,
    key: str | Sequence[str] | None = None,
    sample_axes: Sequence[int | str] | None = None,
    select: Mapping[int | str, int | slice] | None = None,
    sel: Mapping[str, Any] | None = None,
    patches: int | Sequence[int] | Mapping[str, Any] | None = None,
    samples: Any = None,
    labels: Any = None,
    where: str | None = None,
    fill_value: int | float | str | None = None,
    on_bad_file: str = "error",
    keep_orientation: bool = False,
    coordinates: str = CHECK,
    duplicates: str = ERROR,
    allow_remote: bool = False,
    listing: str | os.PathLike[str] | None = None,
    like: Any = None,
    listener: Listener = silent,
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
    key : str or sequence of str, optional
        Name of the array, if the source holds several. Several names, or one text of them such as ``"u,v"``, make one
        field of variables with the same samples, side by side along a last axis ``variable``. The default for an
        `xarray.Dataset` is all variables that can hold images.
    sample_axes : sequence of int or str, optional
        The axes that make one image, at any position; the others are flattened into samples in order. By default
        samples are counted by axes that have dates, or that attributes or names assign to time, members or the like,
        else by the first axis that is not along x, y or colours; without names, by the first axis.
    select : mapping of axis to int or slice, optional
        Part of an axis by the number of an entry: an integer drops the axis, a slice narrows it.
    sel : mapping of str to value or slice, optional
        Part of an axis by the values of its coordinate, as in xarray: a number or text drops the axis,
        ``{"level": 500, "c": "GFP"}``; a slice selects all values between its ends, both included,
        ``{"lat": slice(30, 60)}``. Dates can leave out their last parts, ``{"time": slice("1990", "2000-06")}``. Files
        without a value in the range are left out when files are joined.
    patches : int, sequence of int or mapping, optional
        Make windows of the images the samples: their side, their sides ``(16, 16)``, or also the step between them,
        ``{"size": (16, 16), "step": (8, 8)}``. Colours stay inside. The array can be a single image.
    samples : slice, (start, stop[, step]) or sequence of int, optional
        Use these samples only.
    labels : array, path or ``"folder"``, optional
        One value per sample, see `open_column`; the collection keeps them as `labels`.
    where : str, optional
        Select samples by their labels: ``"label=3"``, ``"label!=0,1"``, ``"label>=5"``; several conditions are joined
        by ``and``, as in ``"label>=1 and label<3"``.
    fill_value : int, float or "none", optional
        Stored number that represents no value, in an array that does not declare it; read as NaN. In NetCDF files
        without ``_FillValue``, the default of the format is missing among floats, and refused if it is read among
        whole numbers; with "none" it is a value like any other.
    on_bad_file : {"error", "skip"}
        Whether a file that cannot be read or prepared is an error, or is left out; see `Collection.skipped`. Images of
        another shape than most are not left out on opening, but by a preparation that does not make them fit.
    keep_orientation : bool, default=False
        Leave images as they are stored; by default they are turned by their orientation tags (Exif, TIFF).
    coordinates : {"check", "ignore"}
        Whether the coordinates of a sample's axes (latitudes, wavelengths, labels ...) are compared by value: those of
        joined files with the first file's, and later those of the collection with a model's. Samples that have the
        same coordinates in another order are put in order, samples on another grid are refused. With "ignore", pixels
        correspond by position.
    duplicates : {"error", "first", "all"}
        Whether duplicate samples are an error, or the first of each or all of them count. A file is a duplicate if
        another path, or a link, leads to the same file; a sample, if another file has its date, unless the files
        belong to several series (by a coordinate ``member``, ``realization``, ``step`` ..., or by CMIP's attributes).
        Dates repeated within a file all count, which the log reports.
    allow_remote : bool, default=False
        Fetch the URLs in a text file of paths or a table. A URL given as the source itself, or in a list, is always
        fetched.
    listing : path, optional
        Path of a table in which the files of a folder are stored for the next time.
    like : PCAModel, optional
        Follow the tags of image files as when this model was fitted, see its ``provenance["reading"]``; and read the
        variables of one field that it was fitted on, if `key` names none.
    listener : callable, optional
        Function that receives an event while files are checked.

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
    if on_bad_file not in _ON_BAD_FILE:
        raise RequestError(f"on_bad_file {on_bad_file!r} is not known; give 'error' or 'skip'.")
    given: Opening = {
        "key": key if key is None or isinstance(key, str) else ",".join(key),
        "sample_axes": sample_axes,
        "select": select,
        "sel": sel,
        "patches": patches,
        "samples": samples,
        "labels": labels,
        "where": where,
        "fill_value": fill_value,
        "on_bad_file": on_bad_file,
        "keep_orientation": keep_orientation,
        "coordinates": coordinates,
        "duplicates": check_duplicates(duplicates),
        "allow_remote": allow_remote,
    }
    checked = is_checked(coordinates)
    if isinstance(source, Collection):
        _refuse_late(source, given)
    options = {
        **given,
        "listing": None if listing is None else expanded(listing),
        "listener": listener,
        "opened": _opened,
        "reading": _reading(like, keep_orientation=keep_orientation),
    }
    fitted = (
        None if like is None or options["key"] is not None else variables_fitted(like.sample_dims, like.coordinates)
    )
    collection = _opened(source, options) if fitted is None else _opened_as_fitted(source, options, fitted)
    if collection is not source and isinstance(collection, (ArrayCollection, Variables)) and not collection.grows:
        with suppress(SourceError):  # unreadable coordinates raise an error only when they are needed
            log_repeats(collection.source, [times_of(collection)])
    if not checked and collection.compares_coordinates:
        collection = copy.copy(collection)  # it may be the caller's own
        collection.compares_coordinates = False
    made = composed(collection, sample_axes=sample_axes, patches=patches, samples=samples, labels=labels, where=where)
    if made is not source:
        before = source.opened if isinstance(source, Collection) else None
        guessed = made.guessed_axes
        if before is None and guessed is not None:  # the record holds for any later default
            given["sample_axes"] = guessed.sample
        made.opened = record_of(source, given) if before is None else before.again(**given_of(given))
        made.beside = (*made.beside, *files_beside(source), *column_paths(labels))
    return made


def _selected(collection: Collection, sel: Mapping[str, Any]) -> Collection:
    """Select entries of a collection's axes by the values of their coordinates."""
    if isinstance(collection, ArrayCollection):
        return collection.selected(sel)
    raise RequestError(f"{collection.source} has no values along its axes to take by with sel; leave it out.")


def _filled(collection: Collection, number: int | float | str) -> Collection:
    """Treat a stored number of a collection as missing."""
    if isinstance(collection, ArrayCollection):
        return collection.of_array(with_fill_value(collection.array, number, collection.source))
    raise RequestError(f"{collection.source} is no array of which numbers stand for no value; leave fill_value out.")


def _refuse_late(source: Collection, given: Opening) -> None:
    """Refuse options of reading an array for a collection that is already open."""
    late = next(
        (
            name
            for name in ("key", "select", "sel", "fill_value", "keep_orientation")
            if given[name] not in (None, False)
        ),
        None,
    )
    if late is not None:
        raise RequestError(f"{late} was given for {source.source}, which is open already; open it with {late}=.")


def _reading(like: Any, *, keep_orientation: bool) -> TagRules:
    """Return the rules for tags of image files: those of the model if there is one."""
    reading = (None if like is None else fitted_reading(like.provenance)) or TagRules()
    return reading._replace(orientation=False) if keep_orientation else reading


def _opened_as_fitted(source: Any, options: Mapping[str, Any], fitted: Sequence[str]) -> Collection:
    """Open the variables of one field that a model was fitted on, if the source holds them."""
    if isinstance(source, Collection):
        return source
    try:
        return _opened(source, {**options, "key": ",".join(fitted)})
    except RequestError as error:
        if is_dataset(source):
            raise
        try:  # scores, or an array that has the variables along an axis
            return _opened(source, options)
        except SourceError:
            raise error from None


def _opened(source: Any, options: Mapping[str, Any]) -> Collection:
    """Open a source by the first format that recognizes it, with the options that the format accepts."""
    if isinstance(source, Collection):
        return source
    source = resolve_source(source, allow_remote=options["allow_remote"])
    before = file_state(source) if isinstance(source, str) and os.path.isfile(source) else None
    for row in readers():
        if row.matches(source):
            names = variables_in(options["key"])
            if options["key"] is None and is_dataset(source):
                names = variables_of(source)
            if len(names) > 1 and row.name != "joined":  # every joined file holds the variables itself
                parts = [_opened(source, {**options, "key": name}) for name in names]
                whole = "xarray Dataset" if is_dataset(source) else None
                return Variables(parts, names, source=whole, checked=is_checked(options["coordinates"]))
            accepted = ("key", "sample_axes", "select", *row.options)
            collection = row.open(source, **{name: options[name] for name in accepted})
            if options.get("sel") and "sel" not in row.options:
                collection = _selected(collection, options["sel"])
            if options.get("fill_value") is not None and "fill_value" not in row.options:
                collection = _filled(collection, options["fill_value"])
            if before is not None and not collection.grows and file_state(source) != before:
                raise ChangedError(f"{source} was changed while it was opened; open it when it is written to its end.")
            if collection.source != (shown := without_secrets(collection.source)):  # models and outputs keep it
                collection.source = shown
            return collection
    if isinstance(source, (list, tuple)):
        refuse_several(source)
    raise SourceError(
        f"a {type(source).__name__} is not a collection; give a path, a glob, a list of image files, or an array "
        "with shape, dtype and slicing."
    )
