"""`Part`: one of nearly equal runs of a collection's samples, fitted apart and merged."""

from __future__ import annotations

from operator import index as as_index
from typing import NamedTuple

from ..errors import RequestError


class Part(NamedTuple):
    """One of `of` nearly equal runs of samples that processes analyse apart, and somebody merges; counted from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def part_of(given: str | tuple[int, int] | None) -> Part | None:
    """Read ``"3/16"`` or (3, 16); None is no part.

    Raises
    ------
    RequestError
        If it is neither, or there is no such part.
    """
    if given is None:
        return None
    try:
        number, of = map(int, given.split("/")) if isinstance(given, str) else map(as_index, given)
    except (TypeError, ValueError):
        raise RequestError(f"part {given!r} is not PART/PARTS; give for example 3/16 for the third of 16.") from None
    if not 1 <= number <= of:
        last = max(of, 1)
        raise RequestError(f"part {number}/{of} does not exist; parts count from 1, as in 1/{last} to {last}/{last}.")
    return Part(number, of)
