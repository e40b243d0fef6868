"""Readers of the texts of structured options on the command line, such as ``--crop 10:100,20:200``."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Container
from contextlib import suppress

from ..errors import RequestError

_RANGE = re.compile(
    r"(?!(?<=T\d\d):\d\d\b)(?!(?<=T\d\d:\d\d):\d\d\b):"
)  # the colon of a range, and not those of a time


def one_or_list(words: tuple[str, ...]) -> str | list[str]:
    """Return the words of a source: a single one as text, several as a list."""
    return words[0] if len(words) == 1 else list(words)


def read_count(text: str) -> int | None:
    """Read a number of samples, or ``all``, which is None."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise RequestError(f"--examine {text!r} is not a number of samples; give one such as 20000, or all.")
    return int(text)


def read_axes(text: str) -> list[int | str]:
    """Read ``1,2`` or ``y,x``."""
    return [_axis(name) for name in text.split(",")]


def read_selections(texts: tuple[str, ...]) -> dict[int | str, int | list[int]]:
    """Read ``c=0`` and ``z=10:20``, one text for each axis."""
    selections: dict[int | str, int | list[int]] = {}
    for text in texts:
        axis, entry = _selection(text)
        _check_new(axis, selections, "--select")
        selections[axis] = entry
    return selections


def read_values(texts: tuple[str, ...]) -> dict[str, int | float | str | list[int | float | str | None]]:
    """Read ``level=500``, ``c=GFP`` and ``time=1990:2000``, one text for each axis."""
    values: dict[str, int | float | str | list[int | float | str | None]] = {}
    for text in texts:
        axis, equals, value = text.partition("=")
        if not equals or not value.strip():
            raise RequestError(f"--sel {text!r} is not AXIS=VALUE; write for example level=500 or time=1990:2000.")
        ends = [part.strip() for part in _RANGE.split(value)]
        if len(ends) > 2:
            raise RequestError(f"--sel {text!r} has more than two ends; write for example time=1990:2000.")
        _check_new(axis.strip(), values, "--sel")
        values[axis.strip()] = _value(ends[0]) if len(ends) == 1 else [_value(end) if end else None for end in ends]
    return values


def read_patches(text: str) -> dict[str, list[int]]:
    """Read ``16x16``, or ``16x16/8x8`` with a step."""
    size, slash, step = text.partition("/")
    sides = {"size": _sides(size, "--patches")}
    return sides | {"step": _sides(step, "--patches")} if slash else sides


def read_samples(text: str) -> list[int | None]:
    """Read ``START:STOP`` or ``START:STOP:STEP``."""
    return _ends(text, 3, f"--samples {text!r} is not START:STOP or START:STOP:STEP; write for example 0:1000:2.")


def read_crop(text: str) -> list[list[int | None]]:
    """Read ``10:100,5:-5``, one range for each axis."""
    example = "write for example 10:100, or 10:-10 for all but the edges."
    return [_ends(axis, 2, f"--crop {axis!r} is not START:STOP; {example}") for axis in text.split(",")]


def read_size(text: str) -> list[int]:
    """Read ``64x64``."""
    return _sides(text, "--resize")


def read_options(texts: tuple[str, ...]) -> dict[str, int | str | list[int | str]]:
    """Read ``cores=4`` and ``queue=long``; several values of one option become a list."""
    options = defaultdict[str, list[int | str]](list)
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise RequestError(f"--cluster-option {text!r} is not NAME=VALUE; write for example queue=long.")
        options[name].append(int(value) if value.isdecimal() else value)
    return {name: values[0] if len(values) == 1 else values for name, values in options.items()}


def number_or_word(text: str) -> float | str:
    """Read a number; return a word or the name of a file unchanged."""
    try:
        return float(text)
    except ValueError:
        return text


def read_fill_value(text: str) -> int | float | str:
    """Read a number, a whole one without rounding; return a word unchanged."""
    try:
        return int(text)
    except ValueError:
        return number_or_word(text)


def _check_new(axis: int | str, axes: Container[int | str], option: str) -> None:
    if axis in axes:
        raise RequestError(f"{option} takes two parts of axis {axis}; give one.")


def _value(text: str) -> int | float | str:
    """Read a number; return texts that are not written as numbers are, such as 01, unchanged: they may be names."""
    for number in (int, float):
        with suppress(ValueError):
            if str(number(text)) == text:
                return number(text)
    return text


def _axis(name: str) -> int | str:
    name = name.strip()
    return int(name) if name.removeprefix("-").isdecimal() else name


def _selection(text: str) -> tuple[int | str, int | list[int]]:
    axis, equals, entry = text.partition("=")
    if not equals:
        raise RequestError(f"--select {text!r} is not AXIS=ENTRY; write for example c=0 or z=10:20.")
    if entry.strip().removeprefix("-").isdecimal():
        return _axis(axis), int(entry)
    start, colon, stop = entry.partition(":")
    if not (colon and start.strip().isdecimal() and stop.strip().isdecimal()):
        by_value = f"; to select by value, give --sel {shlex.quote(text)}" if isinstance(_axis(axis), str) else ""
        raise RequestError(f"--select {text!r} is neither AXIS=NUMBER nor AXIS=START:STOP, such as c=10:100{by_value}.")
    return _axis(axis), [int(start), int(stop)]


def _ends(text: str, most: int, problem: str) -> list[int | None]:
    """Read up to `most` numbers as in a slice; each can be left out or negative."""
    parts = [part.strip() for part in text.split(":")]
    if not 2 <= len(parts) <= most or not all(part.removeprefix("-").isdecimal() or not part for part in parts):
        raise RequestError(problem)
    return [int(part) if part else None for part in parts]


def _sides(text: str, option: str) -> list[int]:
    sides = [side.strip() for side in text.lower().split("x")]
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise RequestError(f"{option} {text!r} is not HEIGHTxWIDTH; write for example 64x64.")
    return [int(sides[0]), int(sides[-1])]
