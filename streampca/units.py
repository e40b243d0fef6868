"""Bytes, times, counts and lists of facts as people write and read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Integral
from textwrap import wrap
from typing import Any, overload

from .errors import RequestError, worded

KIB, MIB, GIB = 2**10, 2**20, 2**30
HEADING, SIZE = 12, 11  # columns of a heading, and of a size before the name of its item

_FACTORS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 10**3,
    "m": MIB, "mib": MIB, "mb": 10**6,
    "g": GIB, "gib": GIB, "gb": 10**9,
    "t": 2**40, "tib": 2**40, "tb": 10**12,
}  # fmt: skip


@overload
def parse_bytes(text: str | float) -> int: ...
@overload
def parse_bytes(text: str | float | None) -> int | None: ...
def parse_bytes(text: str | float | None) -> int | None:
    """Read a number of bytes such as ``"2 GiB"``, ``"512MiB"``, ``"1.5 GB"`` or ``2**30``.

    Parameters
    ----------
    text : str, number or None
        Binary units (KiB, MiB, GiB, TiB, also K, M, G, T) are powers of 1024; decimal ones (kB, MB, GB, TB) of 1000.
        A number without a unit counts bytes, and is accepted from 1 MiB: a smaller one almost certainly lacks its unit.

    Returns
    -------
    int or None
        Bytes, at least 1; None of None.

    Raises
    ------
    RequestError
        If it is not a positive number with one of these units, or lacks the unit.
    """
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", str(text))
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None or float(match[1]) * factor < 1:
        raise RequestError(f"memory size {text!r} is not understood; write a positive size such as 512MiB or 2GiB.")
    if not match[2] and float(match[1]) < MIB:
        number = match[1]
        raise RequestError(
            f"memory size {text!r} has no unit and would be less than 1 MiB; write {number}GiB or {number}MiB, or "
            f"{math.ceil(float(number))}B if bytes are meant."
        )
    return int(float(match[1]) * factor)


def parse_rate(text: str) -> float:
    """Read bytes a second, such as ``"10Gbit"``, ``"25 Gbit/s"`` or ``"1.2 GB/s"``.

    Parameters
    ----------
    text : str
        Bits (bit, b) or bytes (B), each a second whether that is written or not. Binary units (Ki, Mi, Gi) are powers
        of 1024, others (k, M, G, T) of 1000.

    Raises
    ------
    RequestError
        If it is not a positive number with one of these units.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kKMGT]?)(i?)(bit|b|B)(?:/s|ps)?\s*", str(text))
    if match is None or float(match[1]) == 0 or (match[3] and not match[2]):
        raise RequestError(
            f"rate {text!r} is not understood; write bits or bytes a second, such as 10Gbit or 1.2GB/s (case counts)."
        )
    factor: float = (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " ")
    return float(match[1]) * factor / (1 if match[4] == "B" else 8)


def whole_number(value: Any, name: str, *, least: int, example: str) -> int:
    """Return an option that counts something as an int; numpy's whole numbers are accepted, booleans are not.

    Parameters
    ----------
    value
        As given by the user.
    name : str
        Of the option.
    least : int
        Smallest number allowed.
    example : str
        Remedy shown, completing "use for example ...".

    Raises
    ------
    RequestError
        If it is not a whole number, or is less than `least`.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least:
        return int(value)
    raise RequestError(f"{name} {value!r} is not a whole number of at least {least}; use for example {example}.")


def budget_size(count: int) -> str:
    """Write the least round budget that holds so many bytes, e.g. ``"62MiB"``: GiB from 100 of them, TiB likewise."""
    name, unit = next((pair for pair in (("TiB", 2**40), ("GiB", GIB)) if count >= 100 * pair[1]), ("MiB", MIB))
    return f"{-(-count // unit)}{name}"


def format_bytes(count: float) -> str:
    """Write bytes in the largest binary unit that keeps the number at 1 or more, e.g. ``"1.5 GiB"``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def format_rate(rate: float) -> str:
    """Write bytes a second as networks are sold: ``"10 Gbit/s"``."""
    bits = 8 * rate
    power = next((power for power in (9, 6, 3) if bits >= 10**power), 0)
    return f"{bits / 10**power:.3g} {dict(zip((9, 6, 3, 0), ('G', 'M', 'k', ''), strict=True))[power]}bit/s"


def format_seconds(seconds: float) -> str:
    """Write a duration in seconds: ``"0.02 s"``, ``"0.4 s"``, ``"12 s"``, ``"3 min 20 s"``, ``"2 h 05 min"``."""
    if seconds < 0.1:
        return f"{max(seconds, 0.001):.1g} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: ``"1 sample"``, ``"2 samples"``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def counted_passes(number: float) -> str:
    """Write a number of passes, which may be a fraction: ``"1 pass"``, ``"2.75 passes"``."""
    return "1 pass" if number == 1 else f"{number:g} passes"


def facts_as_text(facts: Iterable[tuple[str, str]], width: int = 80) -> str:
    """Write headings and texts as lines of two columns; a text that is wider than its column is wrapped within it.

    Facts about one subject have an empty heading from the second one on, and sizes in memory begin with spaces.
    """
    lines: list[str] = []
    for heading, text in facts:
        hang = HEADING + (SIZE if text.startswith(" ") else 0)
        lines += wrap(
            worded(text), max(width, 2 * hang), initial_indent=f"{heading:<{HEADING}}", subsequent_indent=" " * hang,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


def format_shape(shape: tuple[int, ...]) -> str:
    """Write a shape as people say it: ``"60000 x 28 x 28"``, or ``"()"`` without axes."""
    return " x ".join(str(length) for length in shape) or "()"


def parse_seconds(text: str | float) -> float:
    """Read a duration such as ``"5"`` (seconds), ``"30s"``, ``"10 min"`` or ``"2h"``.

    Raises
    ------
    RequestError
        If it is not a number of at least 0, with a unit or without.
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(s|min|h)?\s*", str(text))
    if found is None:
        raise RequestError(f"{text!r} is not a duration; write seconds, or such as 30s, 10min or 2h.")
    return float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2] or "s"]


def parse_shape(text: str) -> tuple[int, ...]:
    """Read a shape such as ``"60000x28x28"`` or ``"60000 x 28 x 28"``.

    Raises
    ------
    RequestError
        If it is not two or more positive whole numbers joined by ``x``.
    """
    parts = [part.strip() for part in re.split(r"[x,]", text.lower())]
    if len(parts) < 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise RequestError(f"shape {text!r} is not understood; write samples and image lengths, such as 60000x28x28.")
    return tuple(int(part) for part in parts)
