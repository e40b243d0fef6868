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

from ..errors import RequestError, StreampcaError
from ..storage.coordinate import Coordinate, Described
from ..storage.georeference import is_reference, reference_difference
from .collection import Array

Float64 = npt.NDArray[np.float64]
Order = npt.NDArray[np.intp]

# Coordinates of more values than this are left out: they would cost more memory than what is computed from them.
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
# Values count as equal within what writing them as float32 changes, and never beyond this share of a typical step.
_STEP_SHARE = 1 / 8

# Coordinates that tell samples of one date apart: members of an ensemble, and forecasts begun at several times.
_SERIES = frozenset(
    (
        "member", "realization", "ensemble", "ens", "number", "run", "step", "lead", "lead_time", "forecast_period",
        "reference_time", "forecast_reference_time",
    )
)  # fmt: skip
_SERIES_STANDARD = frozenset(("realization", "forecast_period", "forecast_reference_time"))
# Attributes of whole files that say of which model, experiment and member they are: of CMIP 5 and 6, and of CORDEX.
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


class Grid(NamedTuple):
    """Names of a sample's axes in order, and the coordinates along one or several of them by name."""

    dims: tuple[str, ...]
    coordinates: Mapping[str, Coordinate]


def is_checked(coordinates: str) -> bool:
    """Return whether the option `coordinates` asks for a comparison; refuse what is neither of its values."""
    if coordinates not in (CHECK, IGNORE):
        raise RequestError(f"coordinates {coordinates!r} is not known; give {CHECK!r} or {IGNORE!r}.")
    return coordinates == CHECK


def named_coordinates(array: Any) -> dict[str, Coordinate]:
    """Return the coordinates of an `xarray.DataArray` as they are; of a MultiIndex its levels, marked as such."""
    found: dict[str, Coordinate] = {}
    levels: dict[str, int] = {}
    for dim in array.dims:
        index = array.indexes.get(dim)
        if getattr(index, "nlevels", 1) > 1:
            levels |= {str(name): number for number, name in enumerate(index.names, 1)} | {str(dim): 0}
    for name, each in array.coords.items():
        if (each.dims or is_reference(each.attrs)) and each.size <= MOST_VALUES and levels.get(str(name)) != 0:
            mark = {LEVEL: levels[str(name)]} if str(name) in levels else {}
            found[str(name)] = Coordinate(each.values, {**each.attrs, **mark}, tuple(map(str, each.dims)))
    return found


def described_coordinates(array: Any) -> dict[str, Described]:
    """Return the attributes of the coordinates of an `xarray.DataArray`, of dates with their units; reads a value.

    Levels of a MultiIndex are left out: none of them alone is what its axis counts.
    """
    found, levels = (
        {},
        {name for index in array.indexes.values() if getattr(index, "nlevels", 1) > 1 for name in index.names},
    )
    for name, each in array.coords.items():
        if name in levels:
            continue
        about = dict(each.attrs)
        if each.dtype.kind in "MO" and each.ndim == 1 and each.size:
            first = plain(each[:1].values, about)
            about = about if first is None else dict(first.attributes)
        if each.dims:
            found[str(name)] = Described(about, tuple(map(str, each.dims)))
    return found


def over_axes(coordinate: Coordinate, name: str, dims: Sequence[str]) -> Coordinate | None:
    """Return a coordinate with its axes in the order of `dims`; None if it lies along others, too."""
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
    """Return coordinates with the entries along some axes, by their numbers in `dims`, in other orders."""
    found = dict(coordinates)
    for axis, order in orders.items():
        for name, each in found.items():
            along = each.along(name)
            if dims[axis] in along:
                values = np.take(np.asarray(each.values), order, axis=along.index(dims[axis]))
                found[name] = each._replace(values=values)
    return found


# -- comparing


def orders_between(
    given: Grid, wanted: Grid, subject: str, other: str, error: type[StreampcaError]
) -> dict[int, Order]:
    """Find the order of entries along each axis of one grid that makes it the other grid.

    Returns
    -------
    dict of int to ndarray of int
        Places in `given` in the order of `wanted`, by the number of an axis; axes in the same order are absent.
    """
    common = CommonGrid(error)
    common.add(wanted, other)
    return common.add(given, subject)


class CommonGrid:
    """The grid that several sources of samples share: the first one's, as far as they have coordinates."""

    def __init__(self, error: type[StreampcaError], *, checked: bool = True, fixed: Container[int] = ()) -> None:
        self._error, self._checked, self._fixed = error, checked, fixed
        self._dims: tuple[str, ...] | None = None
        self._first = ""
        self._known: dict[int, tuple[Coordinate, str]] = {}
        self._apart: set[int] = set()
        self._others: dict[str, tuple[Coordinate, str]] | None = None

    @property
    def coordinates(self) -> dict[str, Coordinate]:
        """Coordinates that all sources have, by the first one's names of the axes; then those with other names."""
        dims = self._dims or ()
        along = {dims[axis]: known for axis, (known, _) in self._known.items() if axis not in self._apart}
        return along | {name: known for name, (known, _) in (self._others or {}).items()}

    def add(self, grid: Grid, source: str) -> dict[int, Order]:
        """Compare another source with those before it; see `orders_between`."""
        dims = grid.dims if self._dims is None else self._dims
        named = self._checked and self._known and grid.coordinates  # without coordinates, names may be made up
        if named and dims != grid.dims and sorted(dims) == sorted(grid.dims):
            raise self._error(
                f"samples of {source} have axes {', '.join(grid.dims)} and those of {self._first} {', '.join(dims)}; "
                f"open it with --sample-axes {','.join(dims)} (sample_axes={dims!r})."
            )
        orders: dict[int, Order] = {}
        found: dict[int, tuple[Coordinate, str]] = {}
        apart: set[int] = set()
        for axis, name in enumerate(grid.dims[: len(dims)]):
            given = grid.coordinates.get(name)
            if given is None or axis not in self._known:
                apart |= {axis} if given is None or self._dims is not None else set()
                found |= {} if given is None else {axis: (given, source)}
                continue
            wanted, other = self._known[axis]
            order = order_of(given, wanted, name)
            if is_straight(order):
                continue
            if not self._checked:
                apart.add(axis)
            elif order is None or axis in self._fixed:
                same = "on the same grid" if order is None else "in the same order"
                apart_at = _first_difference(given, wanted, name, other)
                raise self._error(f"{name} of {source} is {apart_at}; give samples {same}, or {OVERRIDE}.")
            else:
                orders[axis] = order
        self._others = self._agreeing(in_orders(grid.coordinates, grid.dims, orders), grid.dims, source)
        self._dims, self._first = dims, self._first or source  # nothing is kept of a source that is refused
        self._known |= found
        self._apart |= apart
        return orders

    def _agreeing(
        self, given: Mapping[str, Coordinate], dims: Sequence[str], source: str
    ) -> dict[str, tuple[Coordinate, str]]:
        """Return the coordinates not named as an axis that agree with those of all sources before.

        Latitudes, longitudes and levels of a MultiIndex say where pixels are: those that differ are refused.
        """
        if self._others is None:
            return {name: (each, source) for name, each in given.items() if name not in dims}
        agreeing = {}
        for name, (wanted, other) in self._others.items():
            each = given.get(name)
            if each is not None and np.ndim(each.values) == np.ndim(wanted.values) == 0:
                differ = reference_difference(each.attributes, wanted.attributes) if self._checked else None
                if differ is not None:
                    raise self._error(
                        f"{name} of {source} is {differ[0]} and that of {other} {differ[1]}; give samples of one "
                        f"place, or {OVERRIDE}."
                    )
                agreeing[name] = wanted, other
                continue
            compared = None if each is None else _comparable_places(each, wanted, name)
            if compared is not None and np.all(_agree(*compared)):
                agreeing[name] = wanted, other
            elif each is not None and self._checked and _is_place(name, wanted):
                apart_at = _first_difference(each, wanted, name, other)
                raise self._error(
                    f"{name} of {source} is {apart_at}; give samples on the same grid, in the same order, or "
                    f"{OVERRIDE}."
                )
        return agreeing


def order_of(given: Coordinate, wanted: Coordinate, name: str = "") -> Order | None:
    """Return the places of `given`'s values in the order of `wanted`'s, None where they are not the same values.

    Numbers are the same within the rounding of float32, times whatever their units are, longitudes modulo 360 degrees.
    Where a value occurs twice there is no other order than the one that agrees place by place.
    """
    compared = _comparable(given, wanted, name)
    if compared is None:
        return None
    one, other, tolerance, period = compared
    if bool(np.all(_agree(one, other, tolerance, period))):
        return np.arange(len(one))
    if one.dtype.kind == "f":
        if not (np.isfinite(one).all() and np.isfinite(other).all()):
            return None
        if period:  # cut between two values, so that rounding moves none past the cut
            start = other.min() - 2 * tolerance
            one, other = np.mod(one - start, period), np.mod(other - start, period)
    by_one, by_other = np.argsort(one, kind="stable"), np.argsort(other, kind="stable")
    one, other = one[by_one], other[by_other]
    if not np.all(_agree(one, other, tolerance, period)) or _repeats(other, tolerance, period):
        return None
    order = np.empty(len(one), np.intp)
    order[by_other] = by_one
    return order


def is_straight(order: Order | None) -> bool:
    """Return whether an order leaves entries where they are."""
    return order is not None and bool(np.array_equal(order, np.arange(len(order))))


def _first_difference(given: Coordinate, wanted: Coordinate, name: str, other: str) -> str:
    shapes = np.shape(given.values), np.shape(wanted.values)
    if shapes[0] != shapes[1]:
        count = [" x ".join(map(str, shape)) for shape in shapes]
        return f"{count[0]} values and that of {other} {count[1]}"
    compared = _comparable(given, wanted, name) if len(shapes[0]) == 1 else _comparable_places(given, wanted, name)
    place = 0 if compared is None else int(np.argmin(_agree(*compared)))
    numbers = ", ".join(str(number + 1) for number in np.unravel_index(place, shapes[0]))
    return f"{_said(given, place)} in place {numbers} and that of {other} {_said(wanted, place)}"


def _said(coordinate: Coordinate, place: int) -> str:
    value, units = np.asarray(coordinate.values).reshape(-1)[place], coordinate.attributes.get("units")
    if isinstance(value, str):
        return repr(str(value))
    if isinstance(value, np.floating):
        value = f"{value:.8g}"
    return f"{value} {units}" if units else f"{value}"


def _comparable_places(given: Coordinate, wanted: Coordinate, name: str) -> tuple[Array, Array, float, float] | None:
    """Return values of both, flattened, see `_comparable`; grids that are not regular have no typical step."""
    if np.shape(given.values) != np.shape(wanted.values):
        return None
    one, other = (each._replace(values=np.ravel(each.values)) for each in (given, wanted))
    return _comparable(one, other, name, regular=False)


def _comparable(
    given: Coordinate, wanted: Coordinate, name: str, *, regular: bool = True
) -> tuple[Array, Array, float, float] | None:
    """Return values of both as texts, or as float64 with the rounding of their difference and the period, if any."""
    one, other = plain(given.values, given.attributes), plain(wanted.values, wanted.attributes)
    if one is None or other is None or len(one.values) != len(other.values):
        return None
    texts = [each.values.dtype.kind == "U" for each in (one, other)]
    if any(texts):
        return (one.values, other.values, 0.0, 0.0) if all(texts) else None
    times = time_of(one), time_of(other)
    scales, offset = (1.0, 1.0), 0.0
    if times[0] is not None and times[1] is not None:
        if times[0].era != times[1].era:
            return None
        scales, offset = (float(times[0].seconds), float(times[1].seconds)), float(times[0].start - times[1].start)
    rounding = max(rounding_of(each.values) * scale for each, scale in zip((one, other), scales, strict=True))
    values = [each.values.astype(np.float64) * scale for each, scale in zip((one, other), scales, strict=True)]
    values[0] = values[0] + offset
    period = 360.0 if all(is_longitude(name, each) for each in (one, other)) else 0.0
    step = _typical_step(values[1]) if regular else 0.0
    return values[0], values[1], min(rounding, _STEP_SHARE * step) if step else rounding, period


def _agree(one: Array, other: Array, tolerance: float, period: float) -> npt.NDArray[np.bool_]:
    """Return which entries are equal; NaN equals NaN."""
    if one.dtype.kind == "U":
        return np.asarray(one == other)
    apart = np.abs(one - other)
    if period:
        apart = np.minimum(np.mod(apart, period), period - np.mod(apart, period))
    return np.asarray((apart <= tolerance) | (one == other) | (np.isnan(one) & np.isnan(other)))


def _repeats(ordered: Array, tolerance: float, period: float) -> bool:
    """Return whether two of some sorted values cannot be told apart."""
    if ordered.dtype.kind == "U":
        return bool(np.any(ordered[1:] == ordered[:-1]))
    around = bool(period) and ordered[0] + period - ordered[-1] <= 2 * tolerance
    return around or bool(np.any(np.diff(ordered) <= 2 * tolerance))


def rounding_of(values: Array) -> float:
    """Return what storing values as float32 may change; of whole numbers, computing with them as float64."""
    epsilon = np.finfo(np.float64 if values.dtype.kind in "iub" else np.float32).eps
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    return float(epsilon * finite.max(initial=0))


def _typical_step(values: Float64) -> float:
    steps = np.diff(np.sort(values[np.isfinite(values)]))
    steps = steps[steps > 0]
    return float(np.median(steps)) if len(steps) else 0.0


def _is_place(name: str, coordinate: Coordinate) -> bool:
    """Return whether a coordinate says where pixels are: on the earth, or in a MultiIndex."""
    return LEVEL in coordinate.attributes or is_latitude(name, coordinate) or is_longitude(name, coordinate)


def has_dates(attributes: Mapping[str, Any]) -> bool:
    """Return whether a coordinate is of dates, by its units, such as ``days since 2000-01-01``."""
    units = attributes.get("units")
    return isinstance(units, str) and " since " in units.lower()


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
    """Return whether a coordinate says of which of several series of the same dates samples are."""
    return name.lower() in _SERIES or attributes.get("standard_name") in _SERIES_STANDARD


# -- plain values


def plain(values: Any, attributes: Mapping[str, Any], axes: tuple[str, ...] = ()) -> Coordinate | None:
    """Return a coordinate of numbers or text: times become numbers with CF units; None for other objects."""
    values = np.asarray(values)
    if values.dtype.kind in "biuf":
        return Coordinate(values, attributes, axes)
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
    """Seconds to a unit, seconds from a fixed day of the calendar to the reference, and which calendars it shares."""

    seconds: Fraction
    start: Fraction
    era: str
    reference: str


def one_after_another(parts: Sequence[Coordinate]) -> Coordinate | None:
    """Put coordinates one after another in the units of the first; None where their units cannot be converted.

    Times that would not stay whole numbers in these units are given in the largest unit in which all of them do.
    Attributes that are not the same in all parts are left out.
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
    times = [time_of(part) for part in parts]
    known = [time for time in times if time is not None]
    if len(known) < len(parts) or len({time.era for time in known}) > 1:
        return None, units
    whole = all(part.values.dtype.kind in "iu" for part in parts)
    first = known[0]
    unit, exact = first.seconds, False
    if whole:
        fitting = (seconds for seconds in (unit, *_SECONDS) if all(_is_whole(time, first, seconds) for time in known))
        unit, exact = next(((seconds, True) for seconds in fitting), (unit, False))
    values: list[Array] = []
    for part, time in zip(parts, known, strict=True):
        factor, offset = time.seconds / unit, (time.start - first.start) / unit
        if exact:
            values.append(part.values.astype(np.int64) * int(factor) + int(offset))
        else:
            values.append(part.values.astype(np.float64) * float(factor) + float(offset))
    if unit != first.seconds:
        units = {**units, "units": f"{_SECONDS[unit][0]} since {first.reference}"}
    return values, units


def _is_whole(time: _Time, first: _Time, seconds: Fraction) -> bool:
    """Return whether whole units of one time are whole numbers of so many seconds since the first one's reference."""
    return all((part / seconds).denominator == 1 for part in (time.seconds, time.start - first.start))


def time_of(coordinate: Coordinate) -> _Time | None:
    """Read the units and calendar of times; None for what is no time since a date."""
    units, calendar = coordinate.attributes.get("units"), str(coordinate.attributes.get("calendar", "standard")).lower()
    found = _SINCE.fullmatch(units) if isinstance(units, str) else None
    if found is None:
        return None
    name, year, month, day, hour, minute, second, sign, hours, minutes = found.groups()
    seconds, days = _OF_NAME.get(name.lower()), day_number(int(year), int(month), int(day), calendar)
    if seconds is None or days is None:
        return None
    zone = (3600 * int(hours) + 60 * int(minutes or 0)) * (-1 if sign == "-" else 1) if hours else 0
    start = 86400 * days + 3600 * int(hour or 0) + 60 * int(minute or 0) + Fraction(second or 0) - zone
    era = REAL if calendar in _REAL else _ALIASES.get(calendar, calendar)
    return _Time(seconds, Fraction(start), era, re.split("since", str(units), flags=re.IGNORECASE)[1].strip())


REAL = "real"  # the days that passed, whichever of several calendars counts them
GREGORIAN = ("standard", "gregorian", "proleptic_gregorian")
_REAL = (*GREGORIAN, "julian")
JULIAN_DAY = 2440588  # number of the day from which numpy counts
_ALIASES = {"365_day": "noleap", "366_day": "all_leap"}


def day_number(year: int, month: int, day: int, calendar: str) -> int | None:
    """Count days in a calendar, from a day that is fixed for it; None for a date or a calendar that is not known.

    Those that numpy lacks are cftime's, which whoever writes such times has.
    """
    try:
        if calendar in GREGORIAN and year > 1582:
            return JULIAN_DAY + int(np.datetime64(f"{year:04}-{month:02}-{day:02}", "D").astype(np.int64))
        from cftime import datetime

        return int(datetime(year, month, day, calendar=calendar).toordinal())
    except (ImportError, ValueError):
        return None
