"""Unpacking of packed numbers by scales, offsets, fill values and valid ranges.

Attributes are those of the CF conventions (https://cfconventions.org, sections 2.5.1 and 8.1), and ``_Unsigned`` of the
NetCDF User's Guide. Result dtypes and rounding equal those of xarray's ``decode_cf``, bit for bit. There are two
differences: values outside the valid range are missing, too, and a fill value of 0 in Zarr's second format, which is
its default, does not make zeros missing. Missing values become NaN.
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

from ...arrays import Array
from ...errors import RequestError, SourceError
from ...storage.coordinate import PACKING, Coordinate, Described
from ...storage.georeference import is_reference
from ...units import MIB
from ..collection import State, digest, with_nan
from ..coordinates import MOST_TEXTS, MOST_VALUES, SERIES_ATTRIBUTES, tells_series
from .array import StoredArray
from .layout import Box, largest_piece, lengths, pieces_of

# Attributes that name the variables describing this one.
NAMING = ("bounds", "climatology", "coordinates", "grid_mapping")

# Packed bytes converted at a time: with their result they fit the second-level cache of common processors.
_PIECE = MIB


@dataclass(frozen=True)
class Packing:
    """Packing of values as stored numbers: ``value = stored * scale + offset``, or NaN.

    Attributes
    ----------
    stored : numpy.dtype
        Dtype that the stored bytes are interpreted as.
    dtype : numpy.dtype
        Dtype of the values, in native byte order.
    scale, offset : numpy number, optional
        Factor and summand, applied in that order, each rounded to `dtype`; whole numbers wrap around.
    missing : tuple of numpy numbers
        Stored numbers that represent no value; needs a floating `dtype`.
    lowest, highest : numpy number, optional
        Valid range; values outside are missing.
    unpacked_limits : bool
        Whether the valid range is in the units of the values rather than of the stored numbers.
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
        with np.errstate(over="ignore", invalid="ignore"):  # the check of data finds values that become infinite
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
    """A stored array of packed numbers, read as values; floats that were never written are missing."""

    def __init__(self, stored: StoredArray, packing: Packing) -> None:
        self.stored, self.declared = stored, packing
        if stored.unwritten is not None:
            number = _as_stored(stored.unwritten, stored.dtype, packing.stored)
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
        # A piece as stored, and the mask of its missing values.
        piece = largest_piece(self.shape, self.chunk_shape, self._most)
        self.decode_bytes = stored.decode_bytes + piece * (stored.dtype.itemsize + 1)

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Delegate to the stored array."""
        return self.stored.coordinates

    @property
    def described(self) -> Mapping[str, Described]:
        """Delegate to the stored array."""
        return self.stored.described

    @property
    def series(self) -> Mapping[str, Any]:
        """Delegate to the stored array."""
        return self.stored.series

    def names(self, axis: str) -> Sequence[str] | None:
        """Delegate to the stored array."""
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
        """Return the states of the stored array, combined with the packing."""
        return self._with_packing(self.stored.states(now=now))

    def begun(self, first: int = 0) -> int:
        """Delegate to the stored array."""
        return self.stored.begun(first)

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Delegate to the stored array."""
        return self.stored.settled(seconds, first, before)

    def states_of_first(self, length: int, *, now: bool = False) -> list[State] | None:
        """Return the states of the stored array's first entries, combined with the packing."""
        states = self.stored.states_of_first(length, now=now)
        return None if states is None else self._with_packing(states)

    def _with_packing(self, states: list[State]) -> list[State]:
        packing = repr(self._packing)
        return [state._replace(state=digest(state.state, packing)) for state in states]


def unpacked(stored: StoredArray, attributes: Mapping[str, Any], label: str = "the array") -> StoredArray:
    """Return the array unpacked by its attributes; the array itself if nothing is packed or missing."""
    packing = packing_of(attributes, stored.dtype, label)
    return stored if packing is None else Unpacked(stored, packing)


def with_fill_value(array: StoredArray, number: float | str, label: str) -> StoredArray:
    """Return a newly opened array in which one more stored number is missing; "none" turns off the format's default.

    Raises
    ------
    RequestError
        If the array cannot hold the number.
    """
    stored = array.stored if isinstance(array, Unpacked) else array
    packing = array.declared if isinstance(array, Unpacked) else None
    stored.unwritten = None
    if number == "none":
        return stored if packing is None else Unpacked(stored, packing)
    read_as = stored.dtype if packing is None else packing.stored
    if not (_can_be(number, stored.dtype) or _can_be(number, read_as)):
        raise RequestError(
            f"fill_value {number!r} is no number that {label} can hold, which has {read_as.name}; give a stored "
            "number, or 'none' where every number is a value."
        )
    return Unpacked(stored, _with_missing(packing, stored.dtype, number))


def _with_missing(packing: Packing | None, stored: np.dtype[Any], number: Any) -> Packing:
    """Return a packing, given one or none, in which one more stored number is missing."""
    packing = packing or Packing(stored, stored.newbyteorder("="))
    missing = (*packing.missing, _as_stored(number, stored, packing.stored))
    return replace(packing, dtype=with_nan(packing.dtype), missing=missing)


def _can_be(number: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype can represent a number, exactly or by rounding to a float."""
    real = isinstance(number, (int, float, np.integer, np.floating)) and not isinstance(number, bool)
    if not real or not np.isfinite(number):
        return False
    if dtype.kind == "f":
        return bool(abs(number) <= np.finfo(dtype).max)
    return dtype.kind in "iu" and bool(np.iinfo(dtype).min <= number <= np.iinfo(dtype).max and int(number) == number)


def packing_of(attributes: Mapping[str, Any], stored: np.dtype[Any], label: str) -> Packing | None:
    """Return the packing that attributes describe; None if stored numbers are the values."""
    if stored.kind not in "iuf" or not PACKING & attributes.keys():
        return None
    read_as = _dtype_read_as(stored, attributes, label)
    scale, offset = (_factor(attributes, name, label) for name in ("scale_factor", "add_offset"))
    declared, missing = _missing(attributes, stored, read_as, label)
    packs = scale is not None or offset is not None
    lowest, highest, unpacked_limits = _limits(attributes, stored, read_as, label, packs=packs, scale=scale)
    limited = lowest is not None or highest is not None
    if not (packs or missing or limited or read_as != stored):
        return None
    if packs and declared and not missing and read_as.kind == "f":
        dtype = read_as  # like xarray: with a fill value of NaN, values keep the dtype of the stored numbers
    elif packs:
        dtype = _float_for(read_as, scale, offset)
    else:
        dtype = with_nan(read_as) if missing or limited else read_as
    return Packing(read_as, dtype.newbyteorder("="), scale, offset, missing, lowest, highest, unpacked_limits)


def decoded(values: Array, attributes: Mapping[str, Any], label: str, unwritten: Any = None) -> Coordinate:
    """Unpack a small array in memory, with NaN where no value was written, and keep the attributes that still hold."""
    packing = packing_of(attributes, values.dtype, label)
    if unwritten is not None and bool((values == unwritten).any()):
        packing = _with_missing(packing, values.dtype, unwritten)
    plain = {name: plain_value(value) for name, value in attributes.items() if name not in PACKING}
    if packing is None:
        return Coordinate(values.astype(values.dtype.newbyteorder("=")), plain)
    out = np.empty(values.shape, packing.dtype)
    packing.decode(np.ascontiguousarray(values), out)
    return Coordinate(out, plain)


# Function that returns value and attributes of a variable without axes, given its name; None if it does not exist.
Single = Callable[[str], tuple[Any, Mapping[str, Any]] | None]


class Variable(NamedTuple):
    """A small array beside another one: its axes, their lengths, whether it holds texts, and a function to read it.

    For `unwritten` see `StoredArray`.
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
    """Return the coordinates along the axes of an array, see `variables_along`, and its reference system.

    The reference system is the variable without axes that the attribute ``grid_mapping`` names, read by `single`.
    """
    coordinates = {
        name: decoded(coord.read(), coord.attributes, coord.label, coord.unwritten)._replace(axes=coord.axes)
        for name, coord in variables_along(dims, shape, attributes, variables).items()
        if math.prod(coord.shape) <= (MOST_TEXTS if coord.is_text else MOST_VALUES)
    }
    for name in str(attributes.get("grid_mapping", "")).replace(":", " ").split()[:1]:
        reference = None if name in coordinates else single(name)
        about = {} if reference is None else {key: plain_value(value) for key, value in reference[1].items()}
        if is_reference(about):
            coordinates[name] = Coordinate(np.array(0), about)
    return coordinates


def described_by(
    dims: Sequence[str],
    shape: tuple[int, ...],
    attributes: Mapping[str, Any],
    variables: Callable[[str], Iterable[Variable]],
) -> dict[str, Described]:
    """Return the attributes and axes of the coordinates along the axes of an array; see `variables_along`."""
    return {
        name: Described({key: plain_value(value) for key, value in variable.attributes.items()}, variable.axes)
        for name, variable in variables_along(dims, shape, attributes, variables).items()
    }


def variables_along(
    dims: Sequence[str],
    shape: tuple[int, ...],
    attributes: Mapping[str, Any],
    variables: Callable[[str], Iterable[Variable]],
) -> dict[str, Variable]:
    """Return the variables that are coordinates along axes of an array, by name.

    They have the name of an axis, or one in the array's attribute ``coordinates`` (CF conventions, section 5). Of
    several `variables` with a name, the first whose axes and lengths fit is returned.
    """
    along_axes: dict[str, Variable] = {}
    lengths_of = dict(zip(dims, shape, strict=False))
    for name in (*dims, *str(attributes.get("coordinates", "")).split()):
        for variable in variables(name) if name not in along_axes else ():
            fits = variable.axes == (name,) if name in dims else len(set(variable.axes)) == len(variable.axes)
            if fits and variable.shape == tuple(lengths_of.get(axis) for axis in variable.axes):
                along_axes[name] = variable
                break
    return along_axes


def series_of(whole: Mapping[str, Any], attributes: Mapping[str, Any], single: Single) -> dict[str, Any]:
    """Return the plain values, by name, that identify the series of an array.

    Parameters
    ----------
    whole : mapping
        Attributes of the file, some of which name a model and member.
    attributes : mapping
        Attributes of the array; ``coordinates`` names coordinates, which hold for the whole array if they have no axis.
    single : callable
        See `Single`.
    """
    identifiers = {name: whole[name] for name in SERIES_ATTRIBUTES if name in whole}
    for name in str(attributes.get("coordinates", "")).split():
        scalar = single(name)
        if scalar is not None and tells_series(name, scalar[1]):
            identifiers[name] = scalar[0]
    return {name: plain_value(value) for name, value in identifiers.items()}


def auxiliary(attributes: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the names of variables that describe others, such as bounds of cells and two-dimensional coordinates."""
    names = set()
    for path, attributes_of_one in attributes.items():
        folder = path.rpartition("/")[0]
        for name in NAMING:
            text = plain_value(attributes_of_one.get(name, ""))
            names |= {f"{folder}/{word}".lstrip("/") for word in (text.split() if isinstance(text, str) else ())}
    return names


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


def _dtype_read_as(stored: np.dtype[Any], attributes: Mapping[str, Any], label: str) -> np.dtype[Any]:
    """Return the dtype of the stored bytes by the attribute ``_Unsigned``."""
    unsigned = attributes.get("_Unsigned")
    if unsigned is None or stored.kind not in "iu":
        return stored
    text = str(plain_value(unsigned)).lower()
    if text not in ("true", "false"):
        raise SourceError(f"{label} has _Unsigned {text!r}, neither 'true' nor 'false'; correct the attribute.")
    kind = "u" if text == "true" else "i"
    return np.dtype(f"{kind}{stored.itemsize}").newbyteorder(stored.byteorder)


def _factor(attributes: Mapping[str, Any], name: str, label: str) -> Any:
    """Return a scale or an offset with the type of its attribute, None without the attribute."""
    number = _bound(attributes, name, label)
    if number is None:
        return None
    if not np.isfinite(number) or (name == "scale_factor" and number == 0):
        raise _wrong(attributes[name], name, label)
    if isinstance(attributes[name], float):
        return attributes[name]  # numpy rounds a Python float, from JSON, to the values' dtype, but not its own floats
    # With a factor of whole numbers xarray would compute in them, and overflow.
    return number if number.dtype.kind == "f" else np.float64(number)


def _missing(
    attributes: Mapping[str, Any], stored: np.dtype[Any], read_as: np.dtype[Any], label: str
) -> tuple[bool, tuple[Any, ...]]:
    """Return whether a fill value of the dtype is declared, and the fill values other than NaN as stored numbers."""
    declared, missing = False, []
    for name in ("_FillValue", "missing_value"):
        if name in attributes:
            numbers = _numbers(_zarr_fill(attributes[name], stored), name, label)
            real = [number for number in numbers if not np.isnan(number)]
            declared |= bool(real) or stored.kind == "f"
            missing += [_as_stored(number, stored, read_as) for number in real]
    return declared, tuple(dict.fromkeys(missing))


def _zarr_fill(value: Any, stored: np.dtype[Any]) -> Any:
    """Return the number that xarray stores in attributes of a Zarr array as a text: a double in base 64."""
    if stored.kind == "f" and isinstance(value, str):
        try:
            return np.float64(struct.unpack("<d", base64.standard_b64decode(value))[0])
        except (binascii.Error, struct.error):
            return value
    return value


def _as_stored(number: Any, stored: np.dtype[Any], read_as: np.dtype[Any]) -> Any:
    """Convert an attribute's number to a stored one; a number out of range is returned as is, and equals nothing."""
    if read_as.kind == "f":
        with np.errstate(over="ignore"):
            return read_as.type(number)
    for dtype in (read_as, stored):
        limits = np.iinfo(dtype)
        if limits.min <= number <= limits.max and int(number) == number:
            return np.array(int(number), dtype.newbyteorder("=")).view(read_as.newbyteorder("="))[()]
    return number


def _limits(
    attributes: Mapping[str, Any],
    stored: np.dtype[Any],
    read_as: np.dtype[Any],
    label: str,
    *,
    packs: bool,
    scale: Any,
) -> tuple[Any, Any, bool]:
    """Return the least and largest valid number, None without effect, and whether they are in units of the values."""
    low, high = _bound(attributes, "valid_min", label), _bound(attributes, "valid_max", label)
    if "valid_range" in attributes:
        numbers = _numbers(attributes["valid_range"], "valid_range", label)
        if len(numbers) != 2:
            raise SourceError(
                f"{label} has valid_range {plain_value(attributes['valid_range'])!r}, which is not two numbers; "
                "correct the attribute or take it off."
            )
        low, high = numbers
    # By the NetCDF User's Guide, a range of floats for packed whole numbers applies to the unpacked values.
    in_values = packs and read_as.kind in "iu" and any(np.asarray(bound).dtype.kind == "f" for bound in (low, high))
    if in_values:  # widened by an eighth of a step, as 7 * 0.1 exceeds 0.7
        steps = 0.0 if scale is None else abs(float(scale)) / 8
        low, high = (
            None if bound is None else np.float64(bound) + end for bound, end in ((low, -steps), (high, steps))
        )
    else:  # rounded to the stored dtype: 0.1 in float32 exceeds 0.1 in float64
        low, high = (None if bound is None else _as_stored(bound, stored, read_as) for bound in (low, high))
    if read_as.kind in "iu" and not in_values:
        limits = np.iinfo(read_as)
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
    """Return an attribute as a flat array of real numbers of its own dtype."""
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


def _float_for(read_as: np.dtype[Any], scale: Any, offset: Any) -> np.dtype[Any]:
    """Return the dtype of unpacked values: the scale's; with an offset float64, unless both share a float dtype.

    Integers of 4 bytes always need float64 with an offset.
    """
    kinds = [np.dtype(type(factor)) for factor in (scale, offset) if factor is not None]
    agreed = len(kinds) == 2 and kinds[0] == kinds[1] and kinds[0] in (np.float32, np.float64)
    if offset is None or (agreed and not (read_as.itemsize == 4 and read_as.kind in "iu")):
        return kinds[0]
    return np.dtype(np.float64)
