"""`Part`: one of nearly equal runs of a collection's samples, fitted separately and merged."""

from __future__ import annotations

from operator import index as as_index
from typing import NamedTuple

from ..errors import RequestError


class Part(NamedTuple):
    """One of `of` nearly equal runs of samples, fitted separately and merged; numbered from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def part_of(value: str | tuple[int, int] | None) -> Part | None:
    """Read ``"3/16"`` or (3, 16); None for the whole.

    Raises
    ------
    RequestError
        If it is neither, or there is no such part.
    """
    if value is None:
        return None
    try:
        number, of = map(int, value.split("/")) if isinstance(value, str) else map(as_index, value)
    except (TypeError, ValueError):
        raise RequestError(f"part {value!r} is not PART/PARTS; give for example 3/16 for the third of 16.") from None
    if not 1 <= number <= of:
        last = max(of, 1)
        raise RequestError(f"part {number}/{of} does not exist; parts count from 1, as in 1/{last} to {last}/{last}.")
    return Part(number, of)
