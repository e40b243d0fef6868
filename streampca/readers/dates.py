"""Dates of samples from coordinates or labels: days counted in their calendar, months, and days of the year."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..storage.coordinate import Coordinate
from .coordinates import GREGORIAN, JULIAN_DAY, REAL, day_number, plain, time_of

DAY = 86400
REFORM = -141427  # 1582-10-15, in days from 1970-01-01
SECOND_DIGITS = 3  # decimals of rounded seconds: times are often stored as fractions of a day

_DATE = re.compile(r"(\d{1,4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[T ](\d{1,2})(?::(\d{2})(?::(\d{2}))?)?)?)?)?")


class Dates(NamedTuple):
    """Dates of n samples.

    Attributes
    ----------
    days : ndarray of shape (n,)
        Days from a fixed day of the calendar: 1970-01-01 in calendars of real days.
    calendar : str
        Name of the calendar; two of the same name count the same days.
    coordinate : Coordinate
        Times that they were computed from.
    """

    days: npt.NDArray[np.float64]
    calendar: str
    coordinate: Coordinate

    @property
    def moments(self) -> npt.NDArray[np.datetime64] | None:
        """Dates to the second in numpy's form, shape (n,); None in a calendar that numpy lacks."""
        if not self._is_gregorian:
            return None
        with np.errstate(invalid="ignore"):  # NaN, and days beyond 64 bits of seconds, become NaT
            return np.round(self.days * DAY).astype(np.int64).astype("datetime64[s]")

    def number_of(self, part: str) -> npt.NDArray[np.int64]:
        """Return the ``"month"`` (1 to 12) or the ``"dayofyear"`` (1 to 366) of each date, shape (n,)."""
        if not self._is_gregorian:
            name = "month" if part == "month" else "dayofyr"  # attributes of cftime's dates
            dates = _of_cftime(self.coordinate)
            return np.fromiter((getattr(date, name) for date in dates.flat), np.int64, dates.size)
        days = np.floor(np.round(self.days * DAY, SECOND_DIGITS) / DAY).astype(np.int64).astype("datetime64[D]")
        whole = days.astype("datetime64[M]").astype(np.int64) % 12
        if part == "dayofyear":
            whole = (days - days.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64)
        numbers: npt.NDArray[np.int64] = whole + 1
        return numbers

    def text_of(self, place: int) -> str:
        """Return a date in ISO 8601, with its time of day unless that is midnight."""
        if (moments := self.moments) is not None:
            text = str(moments.flat[place])
        else:
            text = str(_of_cftime(self.coordinate).flat[place].isoformat())
        return text.removesuffix("T00:00:00")

    @property
    def _is_gregorian(self) -> bool:
        """True if numpy's months are those of the calendar: the standard calendar is Julian before October 1582."""
        name = str(self.coordinate.attributes.get("calendar", "standard")).lower()
        return name == "proleptic_gregorian" or (name in GREGORIAN and bool((self.days >= REFORM).all()))


def dates_of(coordinates: Mapping[str, Coordinate], axis: str | None, labels: Array | None) -> Dates | None:
    """Find the dates of samples.

    Parameters
    ----------
    known : mapping of str to Coordinate
        Coordinates along the samples, n values each.
    axis : str or None
        Name of the axis that counts samples, whose own coordinate is preferred.
    labels : ndarray of shape (n,) or None
        Labels of the samples; text such as ``"2001-07-23"`` is read as dates if no coordinate has any.

    Returns
    -------
    Dates or None
        None without dates, or if several coordinates have dates and none is named after the axis, or "time".
    """
    dated = {name: dates for name, coordinate in coordinates.items() if (dates := dates_in(coordinate)) is not None}
    for name in (axis, "time", *dated):
        if name in dated and (len(dated) == 1 or name in (axis, "time")):
            return dated[name]
    if dated or labels is None or labels.dtype.kind != "U":
        return None
    try:
        return dates_in(Coordinate(labels.astype("datetime64[s]")))
    except ValueError:
        return None


def timestamps(coordinate: Coordinate) -> npt.NDArray[np.datetime64] | None:
    """Return times along an axis in numpy's form; None for other values, and in a calendar that numpy lacks."""
    dates = dates_in(coordinate)
    if dates is None or not dates._is_gregorian:
        return None
    return np.round(dates.days * (DAY * 1e6), SECOND_DIGITS - 6).astype(np.int64).astype("datetime64[us]")


def period_of(date: Any, like: Coordinate) -> tuple[float, float] | None:
    """Return the start and end of the period that a date names, in the days of `Dates.days` along a coordinate.

    Parameters
    ----------
    date : int, str or date
        A year, or a text such as ``1990``, ``1990-05``, ``1990-05-17`` or ``1990-05-17T12:30``.
    like : Coordinate
        Times in a calendar.

    Returns
    -------
    tuple of float or None
        Days; None for a text that is not a date of that calendar.
    """
    match, numbers = _DATE.fullmatch(str(date).strip()), plain(like.values, like.attributes)
    time = None if numbers is None else time_of(numbers)
    if match is None or numbers is None or time is None:
        return None
    year, month, day, hour, minute, second = (None if part is None else int(part) for part in match.groups())
    calendar = str(numbers.attributes.get("calendar", "standard")).lower()
    first = day_number(year or 0, month or 1, day or 1, calendar)
    if first is None or (hour or 0) > 23 or (minute or 0) > 59 or (second or 0) > 59:
        return None
    start: float = first - (JULIAN_DAY if time.era == REAL else 0)
    start += (3600 * (hour or 0) + 60 * (minute or 0) + (second or 0)) / DAY
    for part, length in ((second, 1 / DAY), (minute, 60 / DAY), (hour, 3600 / DAY), (day, 1)):
        if part is not None:
            return start, start + length
    after = ((year or 0) + 1, 1) if month in (None, 12) else (year or 0, (month or 0) + 1)
    end = day_number(*after, 1, calendar)
    return None if end is None else (start, start + end - first)


def dates_in(coordinate: Coordinate) -> Dates | None:
    """Return the dates along an axis; None if its values are not dates."""
    numbers = plain(coordinate.values, coordinate.attributes)
    if numbers is None or numbers.values.dtype.kind not in "iuf" or (time := time_of(numbers)) is None:
        return None
    first = DAY * JULIAN_DAY if time.era == REAL else 0
    days = (numbers.values * float(time.seconds) + float(time.start - first)) / DAY
    return Dates(days, time.era, numbers) if np.isfinite(days).all() else None


def _of_cftime(times: Coordinate) -> Array:
    """Return dates in a calendar that numpy lacks."""
    from cftime import num2date

    calendar = str(times.attributes.get("calendar", "standard"))
    return np.asarray(num2date(times.values, str(times.attributes["units"]), calendar=calendar))
