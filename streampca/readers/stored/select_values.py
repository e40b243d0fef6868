"""Selection of entries of an array by the values of its coordinates: a number, a text, dates, or a range of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arrays import Array
from ...errors import EmptySelectionError, MissingEntryError, RequestError, nearest
from ...storage.coordinate import Coordinate
from ..coordinates import rounding_of
from ..dates import DAY, SECOND_DIGITS, Dates, dates_in, period_of

Value = int | float | str
_LISTED = 8  # values that an error lists


def places_of_values(
    sel: Mapping[str, Any], coordinates: Mapping[str, Coordinate], dims: Sequence[str], source: str
) -> dict[str, int | slice]:
    """Return the index or range of entries to select along each axis.

    Parameters
    ----------
    sel : mapping of str to value or slice
        Values to select, by the name of a coordinate along one axis. A value drops the axis; a slice selects all values
        between its ends, both included. A date without its last parts selects the whole period.
    coordinates : mapping of str to Coordinate
        Coordinates of the array along all its axes.
    dims : sequence of str
        Names of these axes.
    source : str
        Name of the array, for messages.

    Raises
    ------
    EmptySelectionError
        If no value lies within a range.
    RequestError
        If the coordinate or value does not exist, or the values in a range are not consecutive entries.
    """
    places: dict[str, int | slice] = {}
    for name, item in sel.items():
        coordinate = coordinates.get(name)
        axes = () if coordinate is None else coordinate.along(name)
        if coordinate is None or len(axes) != 1 or axes[0] not in dims:
            single = [label for label, candidate in coordinates.items() if len(candidate.along(label)) == 1]
            has = f"those it has are of {', '.join(single)}" if single else "it has none"
            axis = name if name in dims else dims[0] if dims else 0
            raise RequestError(
                f"{source} has no values along an axis {name!r} to take by, and {has}; give the number of an entry "
                f"instead, such as --select {axis}=0 (select={{{axis!r}: 0}}).{nearest(str(name), single)}"
            )
        if axes[0] in places:
            raise RequestError(f"sel takes two parts of axis {axes[0]!r} of {source}; give one.")
        places[axes[0]] = _places(item, coordinate, f"{name} of {source}")
    return places


def _places(item: Any, coordinate: Coordinate, subject: str) -> int | slice:
    values = np.asarray(coordinate.values)
    if isinstance(item, slice) and item.step is not None:
        raise RequestError(f"{subject} is taken from one value to another, without a step; got {item}.")
    ends = (item.start, item.stop) if isinstance(item, slice) else (item, item)
    dates = dates_in(coordinate)
    if dates is not None:
        inside = _between_dates(dates, ends, coordinate, subject)
    elif values.dtype.kind == "U":
        inside = _between_texts(values, ends, subject)
    else:
        inside = _between_numbers(values, ends, subject)
    places = np.flatnonzero(inside)
    if not len(places):
        raise _nothing(item, values, coordinate, dates, subject)
    if not isinstance(item, slice) and dates is None:
        if len(places) > 1:
            raise RequestError(f"{subject} is {item!r} at {len(places)} entries; take one by its number with select.")
        return int(places[0])
    if places[-1] - places[0] + 1 != len(places):
        raise RequestError(
            f"{subject} is not in order, and the values asked for are not side by side; take samples by number with "
            "samples, or sort the source."
        )
    return slice(int(places[0]), int(places[-1]) + 1)


def _between_numbers(values: Array, ends: tuple[Any, Any], subject: str) -> npt.NDArray[np.bool_]:
    """Return a mask of the numbers between two ends, within float32 rounding."""
    numbers, tolerance, limits = values.astype(np.float64), rounding_of(values), []
    for end, default in zip(ends, (-np.inf, np.inf), strict=True):
        try:
            limits.append(default if end is None else float(end))
        except (TypeError, ValueError):
            raise RequestError(f"{subject} has numbers, and {end!r} is none; give such as {values.flat[0]}.") from None
    low, high = min(limits), max(limits)
    return np.asarray((numbers >= low - tolerance) & (numbers <= high + tolerance))


def _between_texts(values: Array, ends: tuple[Any, Any], subject: str) -> npt.NDArray[np.bool_]:
    """Return a mask of the entries from one text to another, by position."""
    texts, limits = values.tolist(), []
    for end, default in zip(ends, (0, len(texts) - 1), strict=True):
        if end is not None and str(end) not in texts:
            more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
            listed = ", ".join(map(repr, texts[:_LISTED])) + more
            raise MissingEntryError(f"{subject} has no value {str(end)!r}; it has {listed}.{nearest(str(end), texts)}")
        limits.append(default if end is None else texts.index(str(end)))
    places = np.arange(len(texts))
    if ends[0] == ends[1] and ends[0] is not None:
        return np.asarray(values == str(ends[0]))
    return (places >= min(limits)) & (places <= max(limits))


def _between_dates(dates: Dates, ends: tuple[Any, Any], coordinate: Coordinate, subject: str) -> npt.NDArray[np.bool_]:
    """Return a mask of the dates from the beginning of one period to the end of another."""
    limits = [-np.inf, np.inf]
    for at, end in enumerate(ends):
        if end is None:
            continue
        period = period_of(end, coordinate)
        if period is None:
            raise RequestError(
                f"{subject} has dates, and {end!r} is none of its calendar; give such as 1990, 1990-05, 1990-05-17 or "
                "1990-05-17T12:00."
            )
        limits[at] = period[at]
    seconds = np.round(dates.days * DAY, SECOND_DIGITS)  # times are often stored as fractions of a day
    low, high = (np.round(limit * DAY, SECOND_DIGITS) for limit in limits)
    return np.asarray((seconds >= low) & (seconds < high))


def _nothing(item: Any, values: Array, coordinate: Coordinate, dates: Dates | None, subject: str) -> RequestError:
    units = coordinate.attributes.get("units")
    if isinstance(item, slice) or dates is not None:
        requested = f"from {item.start} to {item.stop}" if isinstance(item, slice) else f"in {item}"
        if dates is not None:
            between = f"they go from {dates.text_of(0)} to {dates.text_of(-1)}"
        else:
            between = f"they go from {values.flat[0]} to {values.flat[-1]}" + (f" {units}" if units else "")
        return EmptySelectionError(f"{subject} has no values {requested}; {between}.")
    closest = values.flat[int(np.nanargmin(np.abs(values.astype(np.float64) - float(item))))]
    return MissingEntryError(
        f"{subject} has no value {item}; the nearest is {closest}" + (f" {units}" if units else "") + "."
    )
