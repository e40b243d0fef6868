"""Packed numbers seen as the values they stand for: scales, offsets, fill values and valid ranges.

As the CF conventions have them (https://cfconventions.org, sections 2.5.1 and 8.1), with ``_Unsigned`` of the NetCDF
User's Guide. Result dtypes and rounding are those of xarray's ``decode_cf``, bit for bit; beyond it, values outside the
valid range are missing too, and a fill value of 0 in Zarr's second format, which its arrays have unless told otherwise,
stands for zeros. Missing values become NaN.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...errors import RequestError, SourceError
from ...storage.coordinate import PACKING, Coordinate, Described
from ...storage.georeference import is_reference
from ...units import MIB
from ..collection import Array, State, digest, with_nan
from ..coordinates import MOST_TEXTS, MOST_VALUES, SERIES_ATTRIBUTES, tells_series
from .array import StoredArray
from .array_boxes import Box, largest_piece, lengths, pieces_of

# Attributes that name variables which only describe this one.
NAMING = ("bounds", "climatology", "coordinates", "grid_mapping")

# Packed values converted at a time: with their result they fit the second-level cache of common processors.
_PIECE = MIB


@dataclass(frozen=True)
class Packing:
    """Packing of values as stored numbers: ``value = stored * scale + offset``, or NaN.

    Attributes
    ----------
    stored : numpy.dtype
        Dtype that the stored bytes are read as.
    dtype : numpy.dtype
        Dtype of the values, in native byte order.
    scale, offset : numpy number, optional
        In that order of operations, each rounded to `dtype`; whole numbers wrap around.
    missing : tuple of numpy numbers
        Stored numbers that stand for no value; needs a floating `dtype`.
    lowest, highest : numpy number, optional
        Values outside are missing.
    unpacked_limits : bool
        Whether these two are in the units of the values rather than of the stored numbers.
    """

    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    scale: Any = None
    offset: Any = None
    missing: tuple[Any, ...] = ()
    lowest: Any = None
    highest: Any = None
    unpacked_limits: bool = False

    def decode(self, packed: Array, out: Array) -> None:
        """Fill `out` (of dtype `dtype`, any strides) with the values of `packed`, of its shape and contiguous."""
        packed = packed.view(self.stored)
        with np.errstate(over="ignore", invalid="ignore"):  # what becomes infinite is found where data are checked
            out[...] = packed
            for number in self.missing:
                np.copyto(out, np.nan, where=packed == number)
            if not self.unpacked_limits:
                self._limit(packed, out)
            if self.scale is not None:
                np.multiply(out, self.scale, out=out, casting="same_kind")
            if self.offset is not None:
                np.add(out, self.offset, out=out, casting="same_kind")
            if self.unpacked_limits:
                self._limit(out, out)

    def _limit(self, numbers: Array, out: Array) -> None:
        if self.lowest is not None:
            np.copyto(out, np.nan, where=numbers < self.lowest)
        if self.highest is not None:
            np.copyto(out, np.nan, where=numbers > self.highest)


class Unpacked(StoredArray):
    """A stored array of packed numbers, read as values; what was never written is missing where these are floats."""

    def __init__(self, stored: StoredArray, packing: Packing) -> None:
        self.stored, self.declared = stored, packing
        if stored.unwritten is not None:
            number = _as_taken(stored.unwritten, stored.dtype, packing.stored)
            if packing.dtype.kind == "f":
                packing = replace(packing, missing=(*packing.missing, number))
            else:
                self.unwritten = number
        self._packing = packing
        self.shape, self.dtype = stored.shape, packing.dtype
        self.chunk_shape = stored.chunk_shape or (1, *stored.shape[1:])
        self.attributes = {name: value for name, value in stored.attributes.items() if name not in PACKING}
        self.dims, self.encoded, self.grows = stored.dims, stored.encoded, stored.grows
        self.keeps, self.counts_first = stored.keeps, stored.counts_first
        # A piece as stored, and which of it is missing.
        piece = largest_piece(self.shape, self.chunk_shape, self._most)
        self.decode_bytes = stored.decode_bytes + piece * (stored.dtype.itemsize + 1)

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Return those of the stored array."""
        return self.stored.coordinates

    @property
    def described(self) -> Mapping[str, Described]:
        """Return that of the stored array."""
        return self.stored.described

    @property
    def series(self) -> Mapping[str, Any]:
        """Return that of the stored array."""
        return self.stored.series

    def names(self, axis: str) -> Sequence[str] | None:
        """Return those of the stored array."""
        return self.stored.names(axis)

    @property
    def _most(self) -> int:
        return _PIECE // self.stored.dtype.itemsize

    def read_into(self, box: Box, out: Array) -> None:
        """Read and convert the box in pieces that end at chunk edges."""
        for piece, inside in pieces_of(box, self.chunk_shape, self._most):
            packed = np.empty(lengths(piece), self.stored.dtype)
            self.stored.read_into(piece, packed)
            self._packing.decode(packed, out[inside])

    def states(self, *, now: bool = False) -> list[State]:
        """Return those of the stored array, with the packing."""
        return self._with_packing(self.stored.states(now=now))

    def begun(self, first: int = 0) -> int:
        """Return that of the stored array."""
        return self.stored.begun(first)

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Return that of the stored array."""
        return self.stored.settled(seconds, first, before)

    def states_of_first(self, length: int, *, now: bool = False) -> list[State] | None:
        """Return those of the stored array, with the packing."""
        states = self.stored.states_of_first(length, now=now)
        return None if states is None else self._with_packing(states)

    def _with_packing(self, states: list[State]) -> list[State]:
        packing = repr(self._packing)
        return [state._replace(state=digest(state.state, packing)) for state in states]


def unpacked(stored: StoredArray, attributes: Mapping[str, Any], label: str = "the array") -> StoredArray:
    """Return the array as its attributes say it is to be read: itself where nothing is packed or missing."""
    packing = packing_of(attributes, stored.dtype, label)
    return stored if packing is None else Unpacked(stored, packing)


def with_fill_value(array: StoredArray, number: float | str, label: str) -> StoredArray:
    """Return an array just opened with one more stored number taken for missing, or with "none" no default of a format.

    Raises
    ------
    RequestError
        If it is no number that the array can hold.
    """
    stored = array.stored if isinstance(array, Unpacked) else array
    packing = array.declared if isinstance(array, Unpacked) else None
    stored.unwritten = None
    if number == "none":
        return stored if packing is None else Unpacked(stored, packing)
    taken = stored.dtype if packing is None else packing.stored
    if not (_can_be(number, stored.dtype) or _can_be(number, taken)):
        raise RequestError(
            f"fill_value {number!r} is no number that {label} can hold, which has {taken.name}; give a stored number, "
            "or 'none' where every number is a value."
        )
    return Unpacked(stored, _with_missing(packing, stored.dtype, number))


def _with_missing(packing: Packing | None, stored: np.dtype[Any], number: Any) -> Packing:
    """Return a packing, or none, of stored numbers of which one more is missing."""
    packing = packing or Packing(stored, stored.newbyteorder("="))
    missing = (*packing.missing, _as_taken(number, stored, packing.stored))
    return replace(packing, dtype=with_nan(packing.dtype), missing=missing)


def _can_be(number: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype has a number, as far as it rounds numbers."""
    real = isinstance(number, (int, float, np.integer, np.floating)) and not isinstance(number, bool)
    if not real or not np.isfinite(number):
        return False
    if dtype.kind == "f":
        return bool(abs(number) <= np.finfo(dtype).max)
    return dtype.kind in "iu" and bool(np.iinfo(dtype).min <= number <= np.iinfo(dtype).max and int(number) == number)


def packing_of(attributes: Mapping[str, Any], stored: np.dtype[Any], label: str) -> Packing | None:
    """Return the packing that attributes describe; None where stored numbers are the values."""
    if stored.kind not in "iuf" or not PACKING & attributes.keys():
        return None
    taken = _taken_for(stored, attributes, label)
    scale, offset = (_factor(attributes, name, label) for name in ("scale_factor", "add_offset"))
    declared, missing = _missing(attributes, stored, taken, label)
    packs = scale is not None or offset is not None
    lowest, highest, unpacked_limits = _limits(attributes, stored, taken, label, packs=packs, scale=scale)
    limited = lowest is not None or highest is not None
    if not (packs or missing or limited or taken != stored):
        return None
    if packs and declared and not missing and taken.kind == "f":
        dtype = taken  # as xarray: a fill value of NaN says that the numbers are values in their own dtype
    elif packs:
        dtype = _float_for(taken, scale, offset)
    else:
        dtype = with_nan(taken) if missing or limited else taken
    return Packing(taken, dtype.newbyteorder("="), scale, offset, missing, lowest, highest, unpacked_limits)


def decoded(values: Array, attributes: Mapping[str, Any], label: str, unwritten: Any = None) -> Coordinate:
    """Return the values of a small array in memory, NaN where none was written, and the attributes that still hold."""
    packing = packing_of(attributes, values.dtype, label)
    if unwritten is not None and bool((values == unwritten).any()):
        packing = _with_missing(packing, values.dtype, unwritten)
    plain = {name: plain_value(value) for name, value in attributes.items() if name not in PACKING}
    if packing is None:
        return Coordinate(values.astype(values.dtype.newbyteorder("=")), plain)
    out = np.empty(values.shape, packing.dtype)
    packing.decode(np.ascontiguousarray(values), out)
    return Coordinate(out, plain)


# Function that returns the value of a variable of no axis, and its attributes; None where there is none by that name.
Single = Callable[[str], tuple[Any, Mapping[str, Any]] | None]


class Variable(NamedTuple):
    """A small array beside another one: its axes, their lengths, if it holds texts, and the function that reads it.

    `unwritten` is as of a `StoredArray`.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    is_text: bool
    attributes: Mapping[str, Any]
    label: str
    read: Callable[[], Array]
    unwritten: Any = None


def coordinates_of(
    dims: Sequence[str],
    shape: tuple[int, ...],
    attributes: Mapping[str, Any],
    variables: Callable[[str], Iterable[Variable]],
    single: Single,
) -> dict[str, Coordinate]:
    """Return the coordinates along the axes of an array, see `variables_along`; and of no axis, its reference system.

    That is what its attribute ``grid_mapping`` names, as `single` returns it.
    """
    found = {
        name: decoded(each.read(), each.attributes, each.label, each.unwritten)._replace(axes=each.axes)
        for name, each in variables_along(dims, shape, attributes, variables).items()
        if math.prod(each.shape) <= (MOST_TEXTS if each.is_text else MOST_VALUES)
    }
    for name in str(attributes.get("grid_mapping", "")).replace(":", " ").split()[:1]:
        reference = None if name in found else single(name)
        about = {} if reference is None else {key: plain_value(value) for key, value in reference[1].items()}
        if is_reference(about):
            found[name] = Coordinate(np.array(0), about)
    return found


def described_by(
    dims: Sequence[str],
    shape: tuple[int, ...],
    attributes: Mapping[str, Any],
    variables: Callable[[str], Iterable[Variable]],
) -> dict[str, Described]:
    """Return what the attributes of the coordinates along the axes of an array say; see `variables_along`."""
    return {
        name: Described({key: plain_value(value) for key, value in each.attributes.items()}, each.axes)
        for name, each in variables_along(dims, shape, attributes, variables).items()
    }


def variables_along(
    dims: Sequence[str],
    shape: tuple[int, ...],
    attributes: Mapping[str, Any],
    variables: Callable[[str], Iterable[Variable]],
) -> dict[str, Variable]:
    """Return those `variables` that have a name and lie along axes of an array.

    They are the first that fits of those called as an axis, and of those along one or several that the array's
    attribute ``coordinates`` names (CF conventions, section 5).
    """
    found: dict[str, Variable] = {}
    lengths_of = dict(zip(dims, shape, strict=False))
    for name in (*dims, *str(attributes.get("coordinates", "")).split()):
        for each in variables(name) if name not in found else ():
            along = each.axes == (name,) if name in dims else len(set(each.axes)) == len(each.axes)
            if along and each.shape == tuple(lengths_of.get(axis) for axis in each.axes):
                found[name] = each
                break
    return found


def series_of(whole: Mapping[str, Any], attributes: Mapping[str, Any], single: Single) -> dict[str, Any]:
    """Return what tells the series that an array is of from others, as plain values by name.

    Parameters
    ----------
    whole : mapping
        Attributes of the file, of which some name a model and member.
    attributes : mapping
        Attributes of the array; ``coordinates`` names coordinates, of which those of no axis hold for all of it.
    single : callable
        See `Single`.
    """
    found = {name: whole[name] for name in SERIES_ATTRIBUTES if name in whole}
    for name in str(attributes.get("coordinates", "")).split():
        each = single(name)
        if each is not None and tells_series(name, each[1]):
            found[name] = each[0]
    return {name: plain_value(value) for name, value in found.items()}


def auxiliary(attributes: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the names of variables that only describe others: bounds of cells, coordinates in several dimensions."""
    found = set()
    for path, own in attributes.items():
        folder = path.rpartition("/")[0]
        for name in NAMING:
            text = plain_value(own.get(name, ""))
            found |= {f"{folder}/{word}".lstrip("/") for word in (text.split() if isinstance(text, str) else ())}
    return found


def plain_value(value: Any) -> Any:
    """Return an attribute as text, a number, or a list of them."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (np.ndarray, np.generic)):
        items = value.tolist()
        while isinstance(items, list) and len(items) == 1:
            items = items[0]
        return plain_value(items) if not isinstance(items, list) else [plain_value(item) for item in items]
    return value


def _taken_for(stored: np.dtype[Any], attributes: Mapping[str, Any], label: str) -> np.dtype[Any]:
    """Return the dtype that ``_Unsigned`` says the stored bytes are."""
    unsigned = attributes.get("_Unsigned")
    if unsigned is None or stored.kind not in "iu":
        return stored
    text = str(plain_value(unsigned)).lower()
    if text not in ("true", "false"):
        raise SourceError(f"{label} has _Unsigned {text!r}, neither 'true' nor 'false'; correct the attribute.")
    kind = "u" if text == "true" else "i"
    return np.dtype(f"{kind}{stored.itemsize}").newbyteorder(stored.byteorder)


def _factor(attributes: Mapping[str, Any], name: str, label: str) -> Any:
    """Return one number as it is typed, None where there is none."""
    number = _bound(attributes, name, label)
    if number is None:
        return None
    if not np.isfinite(number) or (name == "scale_factor" and number == 0):
        raise _wrong(attributes[name], name, label)
    if isinstance(attributes[name], float):
        return attributes[name]  # Python's own, of JSON, is rounded to the values' dtype before use; numpy's is not
    # xarray would compute in whole numbers if the factor is one, and overflow.
    return number if number.dtype.kind == "f" else np.float64(number)


def _missing(
    attributes: Mapping[str, Any], stored: np.dtype[Any], taken: np.dtype[Any], label: str
) -> tuple[bool, tuple[Any, ...]]:
    """Return whether a fill value is declared that the dtype can have, and those other than NaN, as stored numbers."""
    declared, found = False, []
    for name in ("_FillValue", "missing_value"):
        if name in attributes:
            numbers = _numbers(_zarr_fill(attributes[name], stored), name, label)
            real = [number for number in numbers if not np.isnan(number)]
            declared |= bool(real) or stored.kind == "f"
            found += [_as_taken(number, stored, taken) for number in real]
    return declared, tuple(dict.fromkeys(found))


def _zarr_fill(value: Any, stored: np.dtype[Any]) -> Any:
    """Return the number that xarray writes as text into attributes of a Zarr array: a double in base 64."""
    if stored.kind == "f" and isinstance(value, str):
        try:
            return np.float64(struct.unpack("<d", base64.standard_b64decode(value))[0])
        except (binascii.Error, struct.error):
            return value
    return value


def _as_taken(number: Any, stored: np.dtype[Any], taken: np.dtype[Any]) -> Any:
    """Return a number of an attribute as a stored one; itself where it cannot be one, so that nothing equals it."""
    if taken.kind == "f":
        with np.errstate(over="ignore"):
            return taken.type(number)
    for dtype in (taken, stored):
        limits = np.iinfo(dtype)
        if limits.min <= number <= limits.max and int(number) == number:
            return np.array(int(number), dtype.newbyteorder("=")).view(taken.newbyteorder("="))[()]
    return number


def _limits(
    attributes: Mapping[str, Any],
    stored: np.dtype[Any],
    taken: np.dtype[Any],
    label: str,
    *,
    packs: bool,
    scale: Any,
) -> tuple[Any, Any, bool]:
    """Return the least and largest valid number where they exclude any, and whether they are in units of the values."""
    low, high = _bound(attributes, "valid_min", label), _bound(attributes, "valid_max", label)
    if "valid_range" in attributes:
        numbers = _numbers(attributes["valid_range"], "valid_range", label)
        if len(numbers) != 2:
            raise SourceError(
                f"{label} has valid_range {plain_value(attributes['valid_range'])!r}, which is not two numbers; "
                "correct the attribute or take it off."
            )
        low, high = numbers
    # NetCDF User's Guide: a range in floats over packed whole numbers is one of unpacked values.
    in_values = packs and taken.kind in "iu" and any(np.asarray(bound).dtype.kind == "f" for bound in (low, high))
    if in_values:  # less an eighth of a step, as 7 * 0.1 lies above 0.7
        steps = 0.0 if scale is None else abs(float(scale)) / 8
        low, high = (
            None if bound is None else np.float64(bound) + end for bound, end in ((low, -steps), (high, steps))
        )
    else:  # of float32 too: its 0.1 lies above that of float64
        low, high = (None if bound is None else _as_taken(bound, stored, taken) for bound in (low, high))
    if taken.kind in "iu" and not in_values:
        limits = np.iinfo(taken)
        low = None if low is None or low <= limits.min else low
        high = None if high is None or high >= limits.max else high
    return low, high, in_values


def _bound(attributes: Mapping[str, Any], name: str, label: str) -> Any:
    if name not in attributes:
        return None
    numbers = _numbers(attributes[name], name, label)
    if len(numbers) != 1 or np.isnan(numbers[0]):
        raise _wrong(attributes[name], name, label)
    return numbers[0]


def _numbers(value: Any, name: str, label: str) -> Array:
    """Return an attribute as a flat array of real numbers, of the type it has."""
    try:
        numbers = np.atleast_1d(np.asarray(value)).reshape(-1)
    except ValueError:  # lists of lists of several lengths
        numbers = np.empty(0, object)
    if numbers.dtype.kind not in "iuf" or not len(numbers):
        raise _wrong(value, name, label)
    return numbers.astype(numbers.dtype.newbyteorder("="))


def _wrong(value: Any, name: str, label: str) -> SourceError:
    return SourceError(
        f"{label} has {name} {plain_value(value)!r}, which is not a number that can be used; correct the attribute or "
        "take it off."
    )


def _float_for(taken: np.dtype[Any], scale: Any, offset: Any) -> np.dtype[Any]:
    """Return the dtype of unpacked values: of the factors; with an offset float64, unless both agree on less."""
    kinds = [np.dtype(type(factor)) for factor in (scale, offset) if factor is not None]
    agreed = len(kinds) == 2 and kinds[0] == kinds[1] and kinds[0] in (np.float32, np.float64)
    if offset is None or (agreed and not (taken.itemsize == 4 and taken.kind in "iu")):
        return kinds[0]
    return np.dtype(np.float64)
