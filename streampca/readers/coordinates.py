"""Coordinates compared by value: the order that puts one axis along another, and axes put one after another.

Times are numbers with units such as ``days since 2000-01-01`` in a calendar, as in section 4.4 of the CF conventions
(https://cfconventions.org); dates are counted in Julian day numbers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..errors import RequestError, StreampcaError
from ..storage.coordinate import Coordinate, Described
from ..storage.georeference import is_reference, reference_difference

Order = npt.NDArray[np.intp]

# Longer coordinates are left out: they would take more memory than the results computed from them.
MOST_VALUES = 2**22
MOST_TEXTS = 2**18

CHECK, IGNORE = "check", "ignore"
OVERRIDE = "take pixels by their places with --ignore-coordinates (coordinates='ignore')"

LATITUDES = ("lat", "latitude")
DEGREES_NORTH = ("degrees_north", "degree_north", "degrees_N", "degree_N", "degreesN", "degreeN")  # CF 1.11, 4.1
LONGITUDES = ("lon", "longitude")
DEGREES_EAST = ("degrees_east", "degree_east", "degrees_E", "degree_E", "degreesE", "degreeE")  # CF 1.11, section 4.2
_DEGREES = (None, "", "degrees", "degree")
_NO_DEGREES = ("rad", "radian", "radians", "m", "metre", "metres", "meter", "meters", "km")
# Values count as equal within their float32 rounding, but never beyond this share of a typical step.
_STEP_SHARE = 1 / 8

# Coordinates that distinguish samples of one date: members of an ensemble, and start times and lead times of forecasts.
_SERIES = frozenset(
    (
        "member", "realization", "ensemble", "ens", "number", "run", "step", "lead", "lead_time", "forecast_period",
        "reference_time", "forecast_reference_time",
    )
)  # fmt: skip
_SERIES_STANDARD = frozenset(("realization", "forecast_period", "forecast_reference_time"))
# Global attributes that identify model, experiment and member: of CMIP 5 and 6, and of CORDEX.
SERIES_ATTRIBUTES = (
    "source_id", "experiment_id", "variant_label", "member_id", "model_id", "realization", "physics_version",
    "initialization_method", "driving_model_id", "driving_experiment_name", "driving_model_ensemble_member",
)  # fmt: skip

LEVEL = "multi_index_level"  # attribute of the levels of a `pandas.MultiIndex`: their number, from 1

_SECONDS = {
    Fraction(604800): ("weeks", "week"),
    Fraction(86400): ("days", "day", "d"),
    Fraction(3600): ("hours", "hour", "hrs", "hr", "h"),
    Fraction(60): ("minutes", "minute", "mins", "min"),
    Fraction(1): ("seconds", "second", "secs", "sec", "s"),
    Fraction(1, 10**3): ("milliseconds", "millisecond", "msecs", "msec", "ms"),
    Fraction(1, 10**6): ("microseconds", "microsecond", "us"),
    Fraction(1, 10**9): ("nanoseconds", "nanosecond", "ns"),
}
_OF_NAME = {name: seconds for seconds, names in _SECONDS.items() for name in names}
_NUMPY_UNITS = {"D": "days", "h": "hours", "m": "minutes", "s": "seconds"} | {
    unit: _SECONDS[Fraction(1, 10**power)][0] for unit, power in (("ms", 3), ("us", 6), ("ns", 9))
}
_SINCE = re.compile(
    r"\s*([a-z]+)\s+since\s+(-?\d+)-(\d{1,2})-(\d{1,2})"
    r"(?:[t\s]\s*(\d{1,2})(?::(\d{1,2})(?::(\d{1,2}(?:\.\d*)?))?)?)?\s*(?:z|utc|gmt|([+-])(\d{1,2}):?(\d{2})?)?\s*",
    re.IGNORECASE,
)
_MONTHS = {"month": 1, "months": 1, "year": 12, "years": 12}  # units of unequal length, in months of the calendar
_MOST_MONTHS = 12 * 9999  # largest number of months since a date, as years have four digits
_DIGITS_OF_DATES = re.compile(r"\s*days?\s+as\s+%Y%m%d(?:\.%f)?\s*", re.IGNORECASE)  # 19790116.5 is noon of a day


class Grid(NamedTuple):
    """Names of a sample's axes in order, and the coordinates along one or several of them by name."""

    dims: tuple[str, ...]
    coordinates: Mapping[str, Coordinate]


def is_checked(coordinates: str) -> bool:
    """Return whether the option `coordinates` asks for a comparison; refuse any other value."""
    if coordinates not in (CHECK, IGNORE):
        raise RequestError(f"coordinates {coordinates!r} is not known; give {CHECK!r} or {IGNORE!r}.")
    return coordinates == CHECK


def named_coordinates(array: Any) -> dict[str, Coordinate]:
    """Return the coordinates of an `xarray.DataArray`; a MultiIndex is replaced by its levels, marked as such."""
    coords: dict[str, Coordinate] = {}
    levels: dict[str, int] = {}
    for dim in array.dims:
        index = array.indexes.get(dim)
        if getattr(index, "nlevels", 1) > 1:
            levels |= {str(name): number for number, name in enumerate(index.names, 1)} | {str(dim): 0}
    for name, coord in array.coords.items():
        if (coord.dims or is_reference(coord.attrs)) and coord.size <= MOST_VALUES and levels.get(str(name)) != 0:
            mark = {LEVEL: levels[str(name)]} if str(name) in levels else {}
            coords[str(name)] = Coordinate(coord.values, {**coord.attrs, **mark}, tuple(map(str, coord.dims)))
    return coords


def described_coordinates(array: Any) -> dict[str, Described]:
    """Return the attributes of the coordinates of an `xarray.DataArray`, with units for dates.

    One value of each date coordinate is read. Levels of a MultiIndex are left out: none describes its axis alone.
    """
    described = {}
    levels = {name for index in array.indexes.values() if getattr(index, "nlevels", 1) > 1 for name in index.names}
    for name, coord in array.coords.items():
        if name in levels:
            continue
        about = dict(coord.attrs)
        if coord.dtype.kind in "MO" and coord.ndim == 1 and coord.size:
            first = plain(coord[:1].values, about)
            about = about if first is None else dict(first.attributes)
        if coord.dims:
            described[str(name)] = Described(about, tuple(map(str, coord.dims)))
    return described


def over_axes(coordinate: Coordinate, name: str, dims: Sequence[str]) -> Coordinate | None:
    """Return a coordinate with its axes in the order of `dims`; None if it has an axis outside `dims`."""
    along = coordinate.along(name)
    if not set(along) <= set(dims):
        return None
    if len(along) == 1:
        return coordinate
    ordered = tuple(dim for dim in dims if dim in along)
    values = np.asarray(coordinate.values).transpose([along.index(dim) for dim in ordered])
    return coordinate._replace(values=values, axes=ordered)


def in_orders(
    coordinates: Mapping[str, Coordinate], dims: Sequence[str], orders: Mapping[int, Order]
) -> dict[str, Coordinate]:
    """Return coordinates reordered along axes; `orders` is keyed by an axis's number in `dims`."""
    reordered = dict(coordinates)
    for axis, order in orders.items():
        for name, coordinate in reordered.items():
            along = coordinate.along(name)
            if dims[axis] in along:
                values = np.take(np.asarray(coordinate.values), order, axis=along.index(dims[axis]))
                reordered[name] = coordinate._replace(values=values)
    return reordered


# -- comparing


def orders_between(
    grid: Grid, reference: Grid, subject: str, reference_source: str, error: type[StreampcaError]
) -> dict[int, Order]:
    """Find the order of entries along each axis that turns `grid` into `reference`.

    Returns
    -------
    dict of int to ndarray of int
        Indices into `grid` in the order of `reference`, by the number of an axis; axes in the same order are absent.
    """
    common = CommonGrid(error)
    common.add(reference, reference_source)
    return common.add(grid, subject)


class CommonGrid:
    """The grid that several sources of samples share: that of the first source, where the others have coordinates."""

    def __init__(self, error: type[StreampcaError], *, checked: bool = True, fixed: Container[int] = ()) -> None:
        self._error, self._checked, self._fixed = error, checked, fixed
        self._dims: tuple[str, ...] | None = None
        self._first = ""
        self._known: dict[int, tuple[Coordinate, str]] = {}
        self._apart: set[int] = set()
        self._others: dict[str, tuple[Coordinate, str]] | None = None

    @property
    def coordinates(self) -> dict[str, Coordinate]:
        """Coordinates of all sources: first those of axes, by the first source's names; then those with other names."""
        dims = self._dims or ()
        along = {dims[axis]: coordinate for axis, (coordinate, _) in self._known.items() if axis not in self._apart}
        return along | {name: coordinate for name, (coordinate, _) in (self._others or {}).items()}

    def add(self, grid: Grid, source: str) -> dict[int, Order]:
        """Compare a source with the earlier ones and return its orders; see `orders_between`."""
        dims = grid.dims if self._dims is None else self._dims
        named = self._checked and self._known and grid.coordinates  # without coordinates, names may be made up
        if named and dims != grid.dims and sorted(dims) == sorted(grid.dims):
            raise self._error(
                f"samples of {source} have axes {', '.join(grid.dims)} and those of {self._first} {', '.join(dims)}; "
                f"open it with --sample-axes {','.join(dims)} (sample_axes={dims!r})."
            )
        orders: dict[int, Order] = {}
        added: dict[int, tuple[Coordinate, str]] = {}
        apart: set[int] = set()
        for axis, name in enumerate(grid.dims[: len(dims)]):
            coordinate = grid.coordinates.get(name)
            if coordinate is None or axis not in self._known:
                apart |= {axis} if coordinate is None or self._dims is not None else set()
                added |= {} if coordinate is None else {axis: (coordinate, source)}
                continue
            reference, reference_source = self._known[axis]
            order = order_of(coordinate, reference, name)
            if is_straight(order):
                continue
            if not self._checked:
                apart.add(axis)
            elif order is None or axis in self._fixed:
                same = "on the same grid" if order is None else "in the same order"
                apart_at = _first_difference(coordinate, reference, name, reference_source)
                raise self._error(f"{name} of {source} is {apart_at}; give samples {same}, or {OVERRIDE}.")
            else:
                orders[axis] = order
        self._others = self._agreeing(in_orders(grid.coordinates, grid.dims, orders), grid.dims, source)
        self._dims, self._first = dims, self._first or source  # only now: a refused source must leave no trace
        self._known |= added
        self._apart |= apart
        return orders

    def _agreeing(
        self, coordinates: Mapping[str, Coordinate], dims: Sequence[str], source: str
    ) -> dict[str, tuple[Coordinate, str]]:
        """Return the coordinates not named after an axis that agree with all earlier sources.

        Latitudes, longitudes and levels of a MultiIndex give the positions of pixels: a difference in them is refused.
        """
        if self._others is None:
            return {name: (coordinate, source) for name, coordinate in coordinates.items() if name not in dims}
        agreeing = {}
        for name, (reference, reference_source) in self._others.items():
            coordinate = coordinates.get(name)
            if coordinate is not None and np.ndim(coordinate.values) == np.ndim(reference.values) == 0:
                differ = reference_difference(coordinate.attributes, reference.attributes) if self._checked else None
                if differ is not None:
                    raise self._error(
                        f"{name} of {source} is {differ[0]} and that of {reference_source} {differ[1]}; give samples "
                        f"of one place, or {OVERRIDE}."
                    )
                agreeing[name] = reference, reference_source
                continue
            compared = None if coordinate is None else _comparable_places(coordinate, reference, name)
            if compared is not None and np.all(_agree(*compared)):
                agreeing[name] = reference, reference_source
            elif coordinate is not None and self._checked and _is_place(name, reference):
                apart_at = _first_difference(coordinate, reference, name, reference_source)
                raise self._error(
                    f"{name} of {source} is {apart_at}; give samples on the same grid, in the same order, or "
                    f"{OVERRIDE}."
                )
        return agreeing


def order_of(coordinate: Coordinate, reference: Coordinate, name: str = "") -> Order | None:
    """Return the indices that sort the values of `coordinate` into the order of `reference`, None if values differ.

    Numbers are compared within float32 rounding, times in any units, longitudes modulo 360 degrees. If a value occurs
    twice, only the identity can be returned.
    """
    compared = _comparable(coordinate, reference, name)
    if compared is None:
        return None
    values, targets, tolerance, period = compared
    if bool(np.all(_agree(values, targets, tolerance, period))):
        return np.arange(len(values))
    if values.dtype.kind == "f":
        if not (np.isfinite(values).all() and np.isfinite(targets).all()):
            return None
        if period:  # cut the circle between two values, so that rounding moves no value past the cut
            start = targets.min() - 2 * tolerance
            values, targets = np.mod(values - start, period), np.mod(targets - start, period)
    # Values are matched in sorted order; equal ones would leave the order undetermined.
    by_value, by_target = np.argsort(values, kind="stable"), np.argsort(targets, kind="stable")
    values, targets = values[by_value], targets[by_target]
    if not np.all(_agree(values, targets, tolerance, period)) or _repeats(targets, tolerance, period):
        return None
    order = np.empty(len(values), np.intp)
    order[by_target] = by_value
    return order


def is_straight(order: Order | None) -> bool:
    """Return whether an order leaves entries where they are."""
    return order is not None and bool(np.array_equal(order, np.arange(len(order))))


def _first_difference(coordinate: Coordinate, reference: Coordinate, name: str, reference_source: str) -> str:
    shapes = np.shape(coordinate.values), np.shape(reference.values)
    if shapes[0] != shapes[1]:
        count = [" x ".join(map(str, shape)) for shape in shapes]
        return f"{count[0]} values and that of {reference_source} {count[1]}"
    compare = _comparable if len(shapes[0]) == 1 else _comparable_places
    compared = compare(coordinate, reference, name)
    place = 0 if compared is None else int(np.argmin(_agree(*compared)))
    numbers = ", ".join(str(number + 1) for number in np.unravel_index(place, shapes[0]))
    return f"{_said(coordinate, place)} in place {numbers} and that of {reference_source} {_said(reference, place)}"


def _said(coordinate: Coordinate, place: int) -> str:
    value, units = np.asarray(coordinate.values).reshape(-1)[place], coordinate.attributes.get("units")
    if isinstance(value, str):
        return repr(str(value))
    if isinstance(value, np.floating):
        value = f"{value:.8g}"
    return f"{value} {units}" if units else f"{value}"


def _comparable_places(
    coordinate: Coordinate, reference: Coordinate, name: str
) -> tuple[Array, Array, float, float] | None:
    """Return the flattened values of both, see `_comparable`; irregular grids have no typical step."""
    if np.shape(coordinate.values) != np.shape(reference.values):
        return None
    flat, flat_reference = (values._replace(values=np.ravel(values.values)) for values in (coordinate, reference))
    return _comparable(flat, flat_reference, name, regular=False)


def _comparable(
    coordinate: Coordinate, reference: Coordinate, name: str, *, regular: bool = True
) -> tuple[Array, Array, float, float] | None:
    """Return the values of both as texts or as float64 in one unit, then the tolerance and the period (0 for none).

    None if they cannot be compared: different lengths, text against numbers, or different calendars.
    """
    compared, target = plain(coordinate.values, coordinate.attributes), plain(reference.values, reference.attributes)
    if compared is None or target is None or len(compared.values) != len(target.values):
        return None
    texts = [part.values.dtype.kind == "U" for part in (compared, target)]
    if any(texts):
        return (compared.values, target.values, 0.0, 0.0) if all(texts) else None
    times = time_of(compared), time_of(target)
    scales, offset = (1.0, 1.0), 0.0
    if times[0] is not None and times[1] is not None:
        if times[0].era != times[1].era:
            return None
        scales, offset = (float(times[0].seconds), float(times[1].seconds)), float(times[0].start - times[1].start)
    rounding = max(rounding_of(part.values) * scale for part, scale in zip((compared, target), scales, strict=True))
    values = [part.values.astype(np.float64) * scale for part, scale in zip((compared, target), scales, strict=True)]
    values[0] = values[0] + offset
    period = 360.0 if all(is_longitude(name, part) for part in (compared, target)) else 0.0
    steps = np.diff(np.sort(values[1][np.isfinite(values[1])]))
    step = float(np.median(steps[steps > 0])) if regular and (steps > 0).any() else 0.0
    return values[0], values[1], min(rounding, _STEP_SHARE * step) if step else rounding, period


def _agree(one: Array, other: Array, tolerance: float, period: float) -> npt.NDArray[np.bool_]:
    """Return a mask of the entries that are equal; NaN equals NaN."""
    if one.dtype.kind == "U":
        return np.asarray(one == other)
    apart = np.abs(one - other)
    if period:
        apart = np.minimum(np.mod(apart, period), period - np.mod(apart, period))
    return np.asarray((apart <= tolerance) | (one == other) | (np.isnan(one) & np.isnan(other)))


def _repeats(ordered: Array, tolerance: float, period: float) -> bool:
    """Return whether two of the sorted values are equal within the tolerance."""
    if ordered.dtype.kind == "U":
        return bool(np.any(ordered[1:] == ordered[:-1]))
    around = bool(period) and ordered[0] + period - ordered[-1] <= 2 * tolerance
    return around or bool(np.any(np.diff(ordered) <= 2 * tolerance))


def rounding_of(values: Array) -> float:
    """Return the error of storing the largest value as float32, or for whole numbers, of computing in float64."""
    epsilon = np.finfo(np.float64 if values.dtype.kind in "iub" else np.float32).eps
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    return float(epsilon * finite.max(initial=0))


def _is_place(name: str, coordinate: Coordinate) -> bool:
    """Return whether a coordinate gives the position of pixels: on the earth, or in a MultiIndex."""
    return LEVEL in coordinate.attributes or is_latitude(name, coordinate) or is_longitude(name, coordinate)


def has_dates(attributes: Mapping[str, Any]) -> bool:
    """Return whether a coordinate holds dates, by its units: ``days since 2000-01-01``, or ``day as %Y%m%d.%f``."""
    units = attributes.get("units")
    return isinstance(units, str) and (" since " in units.lower() or _DIGITS_OF_DATES.fullmatch(units) is not None)


def is_latitude(name: str, coordinate: Coordinate) -> bool:
    """Return whether a coordinate is a latitude in degrees, by its name or its attributes."""
    about = coordinate.attributes
    named = name.lower() in LATITUDES or about.get("standard_name") == "latitude"
    return about.get("units") in DEGREES_NORTH or (named and about.get("units") not in _NO_DEGREES)


def is_longitude(name: str, coordinate: Coordinate) -> bool:
    """Return whether a coordinate is a longitude in degrees, by its name or its attributes."""
    about = coordinate.attributes
    named = name.lower() in LONGITUDES or about.get("standard_name") == "longitude"
    return about.get("units") in DEGREES_EAST or (named and about.get("units") in _DEGREES)


def tells_series(name: str, attributes: Mapping[str, Any]) -> bool:
    """Return whether a coordinate identifies the series of a sample, where several series share dates."""
    return name.lower() in _SERIES or attributes.get("standard_name") in _SERIES_STANDARD


# -- plain values


def plain(values: Any, attributes: Mapping[str, Any], axes: tuple[str, ...] = ()) -> Coordinate | None:
    """Return a coordinate with numbers or text; times become numbers with CF units; None for other objects.

    Times in months or years, or as the digits of dates, become days.
    """
    values = np.asarray(values)
    if values.dtype.kind in "biuf":
        return _in_days(Coordinate(values, attributes, axes))
    if values.dtype.kind == "U":
        return Coordinate(values, attributes, axes)
    if values.dtype.kind == "S":
        return Coordinate(np.char.decode(values, "utf-8", "replace"), attributes, axes)
    if values.dtype.kind in "OT":
        return _of_objects(values, attributes, axes)
    if values.dtype.kind not in "mM" or np.isnat(values).any():
        return None
    unit, step = np.datetime_data(values.dtype)
    if unit not in _NUMPY_UNITS or step != 1:
        return None
    units = _NUMPY_UNITS[unit] if values.dtype.kind == "m" else f"{_NUMPY_UNITS[unit]} since 1970-01-01"
    calendar = {} if values.dtype.kind == "m" else {"calendar": "proleptic_gregorian"}
    return Coordinate(values.astype(np.int64), {**attributes, "units": units, **calendar}, axes)


def _of_objects(values: Array, attributes: Mapping[str, Any], axes: tuple[str, ...]) -> Coordinate | None:
    items = values.reshape(-1).tolist()
    if items and all(isinstance(item, str) for item in items):
        return Coordinate(np.array(items, np.str_).reshape(values.shape), attributes, axes)
    cftime = sys.modules.get("cftime")  # whoever holds its dates has imported it
    if cftime is None or not items or not all(isinstance(item, cftime.datetime) for item in items):
        return None
    about = {"units": "microseconds since 1970-01-01", "calendar": items[0].calendar}
    numbers = np.asarray(cftime.date2num(values, about["units"], calendar=about["calendar"]))
    return Coordinate(numbers, {**attributes, **about}, axes)


# -- times, and one after another


class _Time(NamedTuple):
    """Unit in seconds, reference time in seconds from a fixed day of the calendar, and the calendar's family."""

    seconds: Fraction
    start: Fraction
    era: str
    reference: str


def one_after_another(parts: Sequence[Coordinate]) -> Coordinate | None:
    """Concatenate coordinates in the units of the first; None if their units cannot be converted.

    Whole-number times that would become fractions are given in the largest unit that keeps all of them whole.
    Attributes that differ between parts are left out.
    """
    first = parts[0]
    texts = [part.values.dtype.kind in "UOST" for part in parts]
    units: Mapping[str, Any] = {key: first.attributes[key] for key in ("units", "calendar") if key in first.attributes}
    if any(texts):
        converted = [part.values for part in parts] if all(texts) else None
    elif all(_units(part) == _units(first) for part in parts):
        converted = [part.values for part in parts]
    else:
        converted, units = _converted(parts, units)
    if converted is None:
        return None
    shared = {
        key: value
        for key, value in first.attributes.items()
        if all(key in part.attributes and np.array_equal(part.attributes[key], value) for part in parts)
    }
    return first._replace(values=np.concatenate(converted), attributes={**shared, **units})


def _units(coordinate: Coordinate) -> tuple[Any, Any]:
    return coordinate.attributes.get("units"), coordinate.attributes.get("calendar")


def _converted(parts: Sequence[Coordinate], units: Mapping[str, Any]) -> tuple[list[Array] | None, Mapping[str, Any]]:
    parts = [_in_days(part) for part in parts]
    units = {key: parts[0].attributes.get(key, value) for key, value in units.items()}
    times = [time_of(part) for part in parts]
    parsed = [time for time in times if time is not None]
    if len(parsed) < len(parts) or len({time.era for time in parsed}) > 1:
        return None, units
    whole = all(part.values.dtype.kind in "iu" for part in parts)
    first = parsed[0]
    unit, exact = first.seconds, False
    if whole:  # keep the first part's unit if all times stay whole in it, else try from the largest unit on
        # Units of the parts, and distances of their references from the first one's, are to be multiples of it.
        lengths = [length for time in parsed for length in (time.seconds, time.start - first.start)]
        fitting = (
            seconds for seconds in (unit, *_SECONDS) if all((part / seconds).denominator == 1 for part in lengths)
        )
        unit, exact = next(((seconds, True) for seconds in fitting), (unit, False))
    values: list[Array] = []
    for part, time in zip(parts, parsed, strict=True):
        factor, offset = time.seconds / unit, (time.start - first.start) / unit
        if exact:
            values.append(part.values.astype(np.int64) * int(factor) + int(offset))
        else:
            values.append(part.values.astype(np.float64) * float(factor) + float(offset))
    if unit != first.seconds:
        units = {**units, "units": f"{_SECONDS[unit][0]} since {first.reference}"}
    return values, units


def _in_days(coordinate: Coordinate) -> Coordinate:
    """Return times in months or years, or as the digits of dates, as days since a date; others as they are.

    A month begins at the day of its reference date, or the last day of a shorter month, and a fraction of a month is
    that share of its days; a year is twelve months.
    """
    units, calendar = coordinate.attributes.get("units"), str(coordinate.attributes.get("calendar", "standard")).lower()
    values = np.asarray(coordinate.values)
    if not isinstance(units, str) or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        return coordinate
    match = _SINCE.fullmatch(units)
    if match is not None and match[1].lower() in _MONTHS:
        months = values.astype(np.float64) * _MONTHS[match[1].lower()]
        days, reference = _days_of_months(months, match, calendar), units[match.start(2) :]
    elif _DIGITS_OF_DATES.fullmatch(units) and values.dtype != np.float32:  # which lacks digits for them
        days, reference = _days_of_digits(values.astype(np.float64), calendar), "1970-01-01"
    else:
        return coordinate
    if days is None:  # no dates of the calendar
        return coordinate
    return coordinate._replace(
        values=days, attributes={**coordinate.attributes, "units": f"days since {reference}", "calendar": calendar}
    )


def _days_of_months(months: Float64, since: re.Match[str], calendar: str) -> Float64 | None:
    """Return the days since a date that months since then are; None if there is no such date or calendar."""
    year, month, day = map(int, since.group(2, 3, 4))
    first = day_number(year, month, day, calendar)
    if first is None or not np.abs(months).max(initial=0) < _MOST_MONTHS:
        return None
    whole, place = np.unique(np.floor(months), return_inverse=True)

    def start_of(count: int) -> int | None:
        there = divmod(12 * year + month - 1 + count, 12)
        starts = (day_number(there[0], there[1] + 1, last, calendar) for last in range(day, min(day, 28) - 1, -1))
        return next((start for start in starts if start is not None), None)

    starts = [start_of(int(count) + more) for count in whole for more in (0, 1)]
    if None in starts:
        return None
    begin, end = (np.array(starts, np.float64) - first).reshape(-1, 2).T
    place = place.reshape(months.shape)
    days: Float64 = begin[place] + (months - np.floor(months)) * (end - begin)[place]
    return days


def _days_of_digits(numbers: Float64, calendar: str) -> Float64 | None:
    """Return the days since 1970-01-01 of dates written as numbers, such as 19790116.5; None if one is no date."""
    whole, place = np.unique(np.floor(numbers), return_inverse=True)
    dates = [day_number(at // 10_000, at // 100 % 100, at % 100, calendar) for at in map(int, whole)]
    first = day_number(1970, 1, 1, calendar)
    if first is None or None in dates:
        return None
    days: Float64 = (np.array(dates, np.float64) - first)[place.reshape(numbers.shape)] + (numbers - np.floor(numbers))
    return days


def time_of(coordinate: Coordinate) -> _Time | None:
    """Parse the units and calendar of times; None if they are not times since a date."""
    units, calendar = coordinate.attributes.get("units"), str(coordinate.attributes.get("calendar", "standard")).lower()
    match = _SINCE.fullmatch(units) if isinstance(units, str) else None
    if match is None:
        return None
    name, year, month, day, hour, minute, second, sign, hours, minutes = match.groups()
    seconds, days = _OF_NAME.get(name.lower()), day_number(int(year), int(month), int(day), calendar)
    if seconds is None or days is None:
        return None
    zone = (3600 * int(hours) + 60 * int(minutes or 0)) * (-1 if sign == "-" else 1) if hours else 0
    start = 86400 * days + 3600 * int(hour or 0) + 60 * int(minute or 0) + Fraction(second or 0) - zone
    era = REAL if calendar in _REAL else _ALIASES.get(calendar, calendar)
    return _Time(seconds, Fraction(start), era, re.split("since", str(units), flags=re.IGNORECASE)[1].strip())


REAL = "real"  # calendars that count the days that really passed
GREGORIAN = ("standard", "gregorian", "proleptic_gregorian")
_REAL = (*GREGORIAN, "julian")
JULIAN_DAY = 2440588  # number of the day from which numpy counts
_ALIASES = {"365_day": "noleap", "366_day": "all_leap"}


def day_number(year: int, month: int, day: int, calendar: str) -> int | None:
    """Count days in a calendar, from a fixed day of it; None for an invalid date or an unknown calendar.

    Calendars that numpy lacks are counted by cftime, which is optional.
    """
    try:
        if calendar in GREGORIAN and year > 1582:
            return JULIAN_DAY + int(np.datetime64(f"{year:04}-{month:02}-{day:02}", "D").astype(np.int64))
        from cftime import datetime

        return int(datetime(year, month, day, calendar=calendar).toordinal())
    except (ImportError, ValueError):
        return None
