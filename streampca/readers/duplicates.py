"""Samples that are there twice: files that are one file, and dates that several files of one series have.

A date tells the samples of a series apart. Files of several series, such as the members of an ensemble, share dates;
coordinates and attributes of the files say which series each is of.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import DuplicatesError, RequestError, without_secrets
from ..storage.coordinate import Coordinate
from ..units import counted
from .collection import Array, Collection, digest, file_and_key
from .coordinates import tells_series
from .dates import DAY, Dates, dates_in, dates_of
from .image_files.listing import Listing
from .remote import is_url

LAST_DAY = 1e11  # days from 1970; numbers beyond are no dates, and milliseconds of them no 64-bit integers
ERROR, FIRST, ALL = "error", "first", "all"
KEEP_FIRST = "keep the first of each with --duplicates first (duplicates='first')"
KEEP_ALL = "keep all with --duplicates all (duplicates='all')"
SERIES = "where they are of several series, such as members of an ensemble,"

_log = logging.getLogger("streampca")


def check_duplicates(duplicates: str) -> str:
    """Return the option `duplicates`; refuse what is none of its values."""
    if duplicates not in (ERROR, FIRST, ALL):
        raise RequestError(f"duplicates {duplicates!r} is not known; give {ERROR!r}, {FIRST!r} or {ALL!r}.")
    return duplicates


def repeats_to_leave_out(files: Listing, label: str, duplicates: str) -> dict[int, int]:
    """Return the places of files that are an earlier one again, each with that one's, where the first is to be kept.

    Raises
    ------
    DuplicatesError
        If there are any, and nothing says what to do with them.
    """
    repeats = {} if duplicates == ALL else files.repeats()
    if repeats and duplicates == ERROR:
        path, other = (files.path(at) for at in next(iter(repeats.items())))
        same = "there twice" if path == other else f"the same file as {other}"
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
    """Dates of n samples of a file, and what else tells samples of the same date apart, by name, n values each."""

    dates: Dates
    series: Mapping[str, Array]

    @property
    def keys(self) -> npt.NDArray[np.int64]:
        """Numbers that are equal for samples of one date of one series, whatever units dates are stored in, (n,)."""
        keys = self.moments.astype(np.uint64) + _number(self.dates.calendar)
        for name, values in self.series.items():
            known, places = np.unique(values, return_inverse=True)
            numbers = [_number(name, float(each) if known.dtype.kind in "biuf" else str(each)) for each in known]
            keys += np.array(numbers, np.uint64)[places.reshape(-1)]  # wraps around, as digests may
        return keys.view(np.int64)

    @property
    def moments(self) -> npt.NDArray[np.int64]:
        """Dates in whole milliseconds."""
        return np.rint(self.dates.days * (DAY * 1000)).astype(np.int64)


def _number(*parts: object) -> np.uint64:
    return np.uint64(int(digest(*parts), 16))


def times_of(collection: Collection) -> SampleTimes | None:
    """Return the dates of a collection's samples; None where they have none."""
    known = collection.sample_coordinates()
    dates = dates_of(known, collection.sample_axis, None)
    if dates is None or not (np.abs(dates.days) < LAST_DAY).all():  # NaN compares as false
        return None
    own = {name: each.values for name, each in known.items() if _tells_apart(name, each, collection.samples_along)}
    whole = {name: np.full(collection.n_samples, str(value)) for name, value in collection.series.items()}
    return SampleTimes(dates, {**whole, **own})


def _tells_apart(name: str, coordinate: Coordinate, axes: Iterable[str]) -> bool:
    return tells_series(name, coordinate.attributes) or (name in axes and dates_in(coordinate) is None)


def first_files(keys: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return for each sample of all files the number of the first file with its key, see `SampleTimes`, (n,)."""
    numbers, every = np.repeat(np.arange(len(keys)), [len(each) for each in keys]), np.concatenate(keys)
    _, first, places = np.unique(every, return_index=True, return_inverse=True)
    return numbers[first[places.reshape(-1)]]


def dates_are_shared(path: str, other: str, dates: Dates, places: Array) -> DuplicatesError:
    """Return the refusal of a file, samples of which at some places have dates that another file has."""
    return DuplicatesError(
        f"{path} has {counted(len(places), 'date')} that {other} has, too, {dates.text_of(int(places[0]))} first, and "
        f"these samples would count twice; {KEEP_FIRST}, or {SERIES} {KEEP_ALL}."
    )


def files_of(collection: Collection) -> list[str]:
    """Return every file and store that samples are read from; none of what lies in memory."""
    while (base := getattr(collection, "base", None)) is not None:
        collection = base
    for listing in (getattr(collection, "files", None), getattr(getattr(collection, "array", None), "listing", None)):
        if isinstance(listing, Listing):
            return [listing.path(at) for at in range(len(listing))]
    path, _ = file_and_key(collection.source)
    return [path] if is_url(path) or os.path.exists(path) else []


def log_repeats(source: str, files: Iterable[SampleTimes | None]) -> None:
    """Say in one line how many samples have the date and series of another one of the same file; all of them count."""
    count, total, first = 0, 0, ""
    for each in files:
        if each is None:
            continue
        keys = each.keys
        order = np.argsort(keys, kind="stable")
        again = order[1:][np.diff(keys[order]) == 0]
        first = first or (each.dates.text_of(int(again.min())) if len(again) else "")
        count, total = count + len(again), total + len(order)
    if count:
        _log.warning(
            "%d of %d samples of %s have the date of another one in the same file, %s first; all of them count.",
            count, total, without_secrets(source), first,
        )  # fmt: skip
