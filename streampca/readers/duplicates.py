"""Duplicate samples: files that are listed twice, and dates that occur in several files of one series.

A date identifies a sample within its series. Files of several series, such as the members of an ensemble, share dates;
coordinates and attributes of the files tell the series of each.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..errors import DuplicatesError, without_secrets
from ..storage.remote import is_url
from ..units import counted
from .collection import Collection, digest, file_and_key
from .coordinates import tells_series
from .dates import DAY, Dates, dates_in, dates_of
from .image_files.listing import Listing

LAST_DAY = 1e11  # days from 1970; larger numbers are not dates, and their milliseconds overflow 64-bit integers
ERROR, FIRST, ALL = "error", "first", "all"
KEEP_FIRST = "keep the first of each with --duplicates first (duplicates='first')"
KEEP_ALL = "keep all with --duplicates all (duplicates='all')"
SERIES = "where they are of several series, such as members of an ensemble,"

_log = logging.getLogger("streampca")


def repeats_to_leave_out(files: Listing, label: str, duplicates: str) -> dict[int, int]:
    """Return the index of each file that repeats an earlier one, with the earlier file's index; none if all count.

    Raises
    ------
    DuplicatesError
        If files are repeated and `duplicates` is "error".
    """
    repeats = {} if duplicates == ALL else files.repeats()
    if repeats and duplicates == ERROR:
        path, earlier = (files.path(at) for at in next(iter(repeats.items())))
        same = "there twice" if path == earlier else f"the same file as {earlier}"
        raise DuplicatesError(
            f"{path} of {label} is {same}, and its samples would count twice; take one out, {KEEP_FIRST}, or "
            f"{KEEP_ALL}."
        )
    if repeats:
        _log.warning(
            "left out %s of %s that earlier ones are the same as, %s first.",
            counted(len(repeats), "file"), without_secrets(label), without_secrets(files.path(next(iter(repeats)))),
        )  # fmt: skip
    return repeats


class SampleTimes(NamedTuple):
    """Dates of a file's n samples, and by name the n values of whatever else distinguishes samples of one date."""

    dates: Dates
    series: Mapping[str, Array]

    @property
    def keys(self) -> npt.NDArray[np.int64]:
        """Numbers that are equal for samples of one date of one series, independent of the dates' units, (n,)."""
        keys = self.moments.astype(np.uint64) + _number(self.dates.calendar)
        for name, values in self.series.items():
            unique, places = np.unique(values, return_inverse=True)
            plain = float if unique.dtype.kind in "biuf" else str
            numbers = [_number(name, plain(value)) for value in unique]
            keys += np.array(numbers, np.uint64)[places.reshape(-1)]  # wraps around, which digests survive
        return keys.view(np.int64)

    @property
    def moments(self) -> npt.NDArray[np.int64]:
        """Dates in whole milliseconds."""
        return np.rint(self.dates.days * (DAY * 1000)).astype(np.int64)


def _number(*parts: object) -> np.uint64:
    return np.uint64(int(digest(*parts), 16))


def times_of(collection: Collection) -> SampleTimes | None:
    """Return the dates of a collection's samples; None if they have no dates."""
    coords = collection.sample_coordinates()
    if not coords:
        return None
    dates = dates_of(coords, collection.sample_axis, None)
    if dates is None or not (np.abs(dates.days) < LAST_DAY).all():  # NaN compares as false
        return None
    # An axis flattened into samples that has no dates, such as members, also distinguishes samples of one date.
    axes = {name for name in collection.samples_along if name in coords and dates_in(coords[name]) is None}
    varying = {n: coord.values for n, coord in coords.items() if n in axes or tells_series(n, coord.attributes)}
    constant = {name: np.full(collection.n_samples, str(value)) for name, value in collection.series.items()}
    return SampleTimes(dates, {**constant, **varying})


def first_files(keys: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return the number of the first file that has each sample's key, for all samples of all files, (n,)."""
    numbers, every = np.repeat(np.arange(len(keys)), [len(of_file) for of_file in keys]), np.concatenate(keys)
    _, first, places = np.unique(every, return_index=True, return_inverse=True)
    return numbers[first[places.reshape(-1)]]


def dates_are_shared(path: str, other: str, dates: Dates, places: Array) -> DuplicatesError:
    """Return the error for a file whose samples at `places` have dates that another file has, too."""
    return DuplicatesError(
        f"{path} has {counted(len(places), 'date')} that {other} has, too, {dates.text_of(int(places[0]))} first, and "
        f"these samples would count twice; {KEEP_FIRST}, or {SERIES} {KEEP_ALL}."
    )


def files_of(collection: Collection) -> list[str]:
    """Return every file and store that samples are read from; none for arrays in memory."""
    while (base := getattr(collection, "base", None)) is not None:
        collection = base
    for listing in (getattr(collection, "files", None), getattr(getattr(collection, "array", None), "listing", None)):
        if isinstance(listing, Listing):
            return [listing.path(at) for at in range(len(listing))]
    path, _ = file_and_key(collection.source)
    return [path] if is_url(path) or os.path.exists(path) else []


def log_repeats(source: str, files: Iterable[SampleTimes | None]) -> None:
    """Log how many samples have the date and series of another sample in the same file; all of them count."""
    count, total, first = 0, 0, ""
    for times in files:
        if times is None:
            continue
        keys = times.keys
        order = np.argsort(keys, kind="stable")
        again = order[1:][np.diff(keys[order]) == 0]
        first = first or (times.dates.text_of(int(again.min())) if len(again) else "")
        count, total = count + len(again), total + len(order)
    if count:
        _log.warning(
            "%d of %d samples of %s have the date of another one in the same file, %s first; all of them count.",
            count, total, without_secrets(source), first,
        )  # fmt: skip
