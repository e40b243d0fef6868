"""`ConsecutiveRows`: accumulator of arrays that have a row for each of consecutive samples, or steps, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..arrays import Array

FIRST = "first"  # name of the number of the first row in a state


class ConsecutiveRows:
    """Rows of several arrays, in order, from any number on.

    Parameters
    ----------
    forms : mapping of str to (tuple of int, dtype)
        Shape of a row and dtype of each array, by name.
    most : int
        Most rows of a span, for which memory is reserved; merged accumulators can have more.
    """

    def __init__(self, forms: Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]], most: int) -> None:
        self._first: int | None = None
        self._count = 0
        self._reserved = {name: np.empty((most, *shape), dtype) for name, (shape, dtype) in forms.items()}

    def __getitem__(self, name: str) -> Array:
        """Return the rows of an array."""
        rows = self._reserved[name]
        return rows if len(rows) == self._count else rows[: self._count]  # slicing would read one of another process

    def put(self, start: int, **rows: Array) -> None:
        """Absorb the rows of samples `start` onwards, which follow those that are here."""
        self._first = start if self._first is None else self._first
        for name, values in rows.items():
            self._count = start - self._first + len(values)
            self._reserved[name][start - self._first : self._count] = values

    def absorb(self, other: Self) -> None:
        """Absorb the rows that follow."""
        if other._first is None:
            return
        if self._first is None:
            self._first = other._first
        for name in self._reserved:
            self._reserved[name] = _joined(self[name], other[name])
        self._count += other._count

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return the rows, and the number of the first one."""
        rows = {name: self[name].copy() if copy else self[name] for name in self._reserved}
        return rows if self._first is None else {**rows, FIRST: np.array(self._first)}

    @classmethod
    def from_state(cls, state: Mapping[str, Array], most: int = 0) -> Self:
        """Return the rows with a saved state, with memory reserved for as many as `most`; they can be in its arrays."""
        new = cls({}, 0)
        arrays = {name: array for name, array in state.items() if name != FIRST}
        new._first = int(state[FIRST]) if FIRST in state else None
        new._count = max((len(array) for array in arrays.values()), default=0)
        for name, array in arrays.items():
            if most > len(array):
                reserved = np.empty((most, *array.shape[1:]), array.dtype)
                reserved[: len(array)] = array
                array = reserved
            new._reserved[name] = array
        return new


def _joined(first: Any, second: Any) -> Array:
    """Return rows one after another. Added to zeros, as arrays of other processes are read by panels for that."""
    count = len(first)
    rows: Array = np.zeros((count + len(second), *first.shape[1:]), first.dtype)
    for part, place in ((first, rows[:count]), (second, rows[count:])):
        place += part
    return rows
