"""Dates of samples: days counted in their calendar, months, and days of the year, of coordinates or labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..storage.coordinate import Coordinate
from .collection import Array
from .coordinates import GREGORIAN, JULIAN_DAY, REAL, plain, time_of

DAY = 86400
REFORM = -141427  # 1582-10-15, in days from 1970-01-01
SECOND_DIGITS = 3  # of the seconds that dates are rounded to: times are often stored as fractions of a day


class Dates(NamedTuple):
    """Dates of n samples.

    Attributes
    ----------
    days : ndarray of shape (n,)
        Days from a fixed one of the calendar: 1970-01-01 of real ones.
    calendar : str
        Name of the calendar; two of the same name count the same days.
    coordinate : Coordinate
        Times they were made of.
    """

    days: npt.NDArray[np.float64]
    calendar: str
    coordinate: Coordinate

    def number_of(self, part: str) -> npt.NDArray[np.int64]:
        """Return the ``"month"`` (1 to 12) or the ``"dayofyear"`` (1 to 366) of each date, shape (n,)."""
        if not self._is_gregorian:
            return _by_cftime(self.coordinate, part)
        days = np.floor(np.round(self.days * DAY, SECOND_DIGITS) / DAY).astype(np.int64).astype("datetime64[D]")
        whole = days.astype("datetime64[M]").astype(np.int64) % 12
        if part == "dayofyear":
            whole = (days - days.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64)
        numbers: npt.NDArray[np.int64] = whole + 1
        return numbers

    @property
    def _is_gregorian(self) -> bool:
        """True where numpy's months are those of the calendar, which may have been the Julian before October 1582."""
        name = str(self.coordinate.attributes.get("calendar", "standard")).lower()
        return name == "proleptic_gregorian" or (name in GREGORIAN and bool((self.days >= REFORM).all()))


def dates_of(known: Mapping[str, Coordinate], axis: str | None, labels: Array | None) -> Dates | None:
    """Find the dates of samples.

    Parameters
    ----------
    known : mapping of str to Coordinate
        Coordinates along the samples, n values each.
    axis : str or None
        Name of the axis that counts samples, whose own coordinate goes before others.
    labels : ndarray of shape (n,) or None
        Labels of the samples; text is taken for dates, such as ``"2001-07-23"``, where no coordinate has any.

    Returns
    -------
    Dates or None
        None where there are none, or several coordinates have dates and none is called like the axis, or "time".
    """
    found = {name: dates for name, each in known.items() if (dates := _dates(each.values, each.attributes)) is not None}
    for name in (axis, "time", *found):
        if name in found and (len(found) == 1 or name in (axis, "time")):
            return found[name]
    if found or labels is None or labels.dtype.kind != "U":
        return None
    try:
        return _dates(labels.astype("datetime64[s]"), {})
    except ValueError:
        return None


def _dates(values: Any, attributes: Mapping[str, Any]) -> Dates | None:
    numbers = plain(values, attributes)
    if numbers is None or numbers.values.dtype.kind not in "iuf" or (time := time_of(numbers)) is None:
        return None
    first = DAY * JULIAN_DAY if time.era == REAL else 0
    days = (numbers.values * float(time.seconds) + float(time.start - first)) / DAY
    return Dates(days, time.era, numbers) if np.isfinite(days).all() else None


def _by_cftime(times: Coordinate, part: str) -> npt.NDArray[np.int64]:
    """Months or days of the year in a calendar that numpy lacks."""
    from cftime import num2date

    calendar = str(times.attributes.get("calendar", "standard"))
    dates = num2date(times.values, str(times.attributes["units"]), calendar=calendar)
    name = "month" if part == "month" else "dayofyr"
    return np.fromiter((getattr(date, name) for date in np.ravel(dates)), np.int64, times.values.size)
