"""Comparison of two descriptions of work, which decides whether an unfinished run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Difference(NamedTuple):
    """The first entry in which two descriptions of work differ, with both its values."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} {self.before!r}, and this one has {self.now!r}"


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> Difference | None:
    """Compare two descriptions, plain data as JSON returns them, in the order of the second; None if they agree.

    An entry that one of them lacks counts as None there.
    """
    for name in {**now, **before}:
        if before.get(name) != now.get(name):
            return Difference(name, before.get(name), now.get(name))
    return None
