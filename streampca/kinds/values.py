"""Checks of values against the annotations of their fields, and descriptions of the allowed values in words."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ..errors import RequestError


@dataclass(frozen=True)
class Range:
    """Range of a number, with the closed limits `least` and `most`, or the open limits `above` and `below`."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a number lies in the range."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        lower = f"of at least {self.least:g}" if self.least is not None else ""
        lower = f"above {self.above:g}" if self.above is not None else lower
        if self.least is not None and self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        upper = f"of at most {self.most:g}" if self.most is not None else ""
        upper = f"below {self.below:g}" if self.below is not None else upper
        return " and ".join(filter(None, (lower, upper)))


@dataclass(frozen=True)
class Check:
    """A function that converts an input to the value of a field, or raises a RequestError."""

    function: Callable[[Any], Any]


@dataclass(frozen=True)
class Word:
    """Text for None in run files and on the command line."""

    text: str


@dataclass(frozen=True)
class InPython:
    """Mark of a member of a union that exists in Python only, not in a run file or on the command line."""


Fraction = Annotated[float, Range(above=0, below=1)]
Count = Annotated[int, Range(least=1)]


class RefusedValueError(ValueError):
    """A value that its field does not allow."""


def accepted(annotation: Any, value: Any) -> Any:
    """Convert a value to the type of its field: plain numbers from numpy's, floats from whole numbers.

    Raises
    ------
    RefusedValueError
        If the annotation does not allow it.
    RequestError
        From a `Check`, with its own message.
    """
    # Scalars and arrays without axes of numpy and other array libraries become plain values.
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0 and not isinstance(value, (str, bytes)):
        value = value.item()
    for member in members(annotation):
        base, marks = (get_args(member)[0], member.__metadata__) if get_origin(member) is Annotated else (member, ())
        try:
            result = _of_type(base, value)
        except RefusedValueError:
            continue
        ranges = [mark for mark in marks if isinstance(mark, Range)]
        if all(mark.holds(result) for mark in ranges):
            return result
    raise RefusedValueError


def accepted_entries(types: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of a stored record to the types of its fields; see `accepted`.

    Raises
    ------
    RefusedValueError
        If a type does not allow a value, or there is no such field; names it.
    """
    entries = {}
    for name, value in record.items():
        try:
            entries[name] = accepted(types[name], value)
        except (RefusedValueError, KeyError):
            raise RefusedValueError(f"{name} is {reprlib.repr(value)}") from None
    return entries


def _of_type(base: Any, value: Any) -> Any:
    """Convert a value to a single type, or refuse it."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if base is float and is_number and math.isfinite(value):
        return float(value)
    if base is int and is_number and isinstance(value, Integral):
        return int(value)
    if base in (None, NoneType) and value is None:
        return None
    # With types, as True equals 1.
    if get_origin(base) is Literal and any(type(value) is type(word) and value == word for word in get_args(base)):
        return value
    if base is Any or (get_origin(base) is Callable and callable(value)):
        return value
    kind, parts = get_origin(base) or base, get_args(base)
    if kind in (list, tuple, Sequence) and parts:
        return _of_entries(tuple if kind is tuple else list, parts, value)
    if kind in (dict, Mapping) and parts:
        if not isinstance(value, Mapping):
            raise RefusedValueError
        return {accepted(parts[0], key): accepted(parts[1], item) for key, item in value.items()}
    if kind not in (int, float) and isinstance(kind, type) and isinstance(value, kind):
        return value
    raise RefusedValueError


def _of_entries(kind: type, parts: tuple[Any, ...], value: Any) -> Any:
    """Convert the entries of a list, all of one type, or of a tuple, each of its own type."""
    if not isinstance(value, (list, tuple)) or (kind is tuple and len(value) != len(parts)):
        raise RefusedValueError
    types = parts if kind is tuple else parts * len(value)
    return kind(accepted(part, item) for part, item in zip(types, value, strict=True))


def written(annotation: Any) -> Any:
    """Return an annotation without the members of unions that cannot be written as text."""
    textual = [member for member in members(annotation) if InPython() not in getattr(member, "__metadata__", ())]
    return Union[tuple(textual)]  # noqa: UP007 - the number of members varies


def value_of_text(annotation: Any, text: str) -> Any:
    """Return the value of a text from the command line: a word, a number, or the text itself."""
    is_number, is_float = False, False
    for member in members(annotation):
        base, marks = (get_args(member)[0], member.__metadata__) if get_origin(member) is Annotated else (member, ())
        if get_origin(base) is Literal and text in get_args(base):
            return text
        if Word(text) in marks:
            return None
        if base is str:
            return text
        is_number, is_float = is_number or base in (int, float), is_float or base is float
    if is_number:
        for kind in (int, float) if is_float else (int,):
            with suppress(ValueError):
                return kind(text)
    return text


def members(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, or the annotation itself."""
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from members(member)
    elif get_origin(annotation) is Annotated and get_origin(get_args(annotation)[0]) in (Union, UnionType):
        yield from members(get_args(annotation)[0])
    else:
        yield annotation


def check_of(annotation: Any) -> Callable[[Any], Any] | None:
    """Return the field's own function that checks it, or None."""
    marks = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    return next((mark.function for mark in marks if isinstance(mark, Check)), None)


def literals_of(annotation: Any) -> list[str]:
    """Return the texts that a field allows by name."""
    return [word for member in members(annotation) if get_origin(member) is Literal for word in get_args(member)]


def words_of(annotation: Any, *, none: str = "None", in_python: bool = True) -> str:
    """Return the allowed values of a field in words: "a whole number of at least 1, or None"."""
    words = [*dict.fromkeys(text for member in members(annotation) for text in _words(member, none, in_python))]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _words(member: Any, none: str, in_python: bool) -> Iterator[str]:
    base, marks = (get_args(member)[0], member.__metadata__) if get_origin(member) is Annotated else (member, ())
    bounds = " ".join(str(mark) for mark in marks if isinstance(mark, Range))
    if not in_python and any(isinstance(mark, InPython) for mark in marks):
        return
    if get_origin(base) is Literal:
        yield from (repr(word) if in_python else str(word) for word in get_args(base))
    elif base in (None, NoneType):
        yield next((mark.text for mark in marks if isinstance(mark, Word)), none) if not in_python else "None"
    elif base is bool:
        yield "True or False" if in_python else "true or false"
    elif base in (int, float):
        yield f"a {'whole ' if base is int else ''}number {bounds}".strip()
    elif base is str:
        yield "a text"
    elif get_origin(base) in (list, Sequence):
        yield f"a list, of which each is {words_of(get_args(base)[0], none=none, in_python=in_python)}"
    elif get_origin(base) is tuple:
        yield f"[{', '.join(words_of(part, none=none, in_python=in_python) for part in get_args(base))}]"
    elif get_origin(base) in (dict, Mapping):
        yield "names with values"
    elif get_origin(base) is Callable:
        yield "a function"
    else:
        yield "a value"


def seed_of(value: Any) -> int:
    """Return a seed: a whole number of at least 0, or one drawn from a generator, from numpy's global one for None."""
    try:
        return int(accepted(Annotated[int, Range(least=0)], value))
    except RefusedValueError:
        pass
    import numpy as np

    if value is None:
        return int(np.random.randint(2**31 - 1))  # noqa: NPY002 - scikit-learn's meaning of None
    for draw in ("randint", "integers"):
        if hasattr(value, draw):
            return int(getattr(value, draw)(2**31 - 1))
    raise RequestError(
        f"random_state = {value!r}: give a whole number of at least 0, a RandomState, a Generator or None (seed of the "
        "random numbers)."
    )
