"""Conversion of values to states of plain arrays, which checkpoints and workers hold, and back; and sums by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..arrays import Array


def as_arrays(values: Mapping[str, Any], prefix: str = "", *, copy: bool = False) -> dict[str, Array]:
    """Return values as arrays, under their names with a prefix; values that are None are left out."""
    arrays = {prefix + name: np.asarray(value) for name, value in values.items() if value is not None}
    return {name: array.copy() for name, array in arrays.items()} if copy else arrays


def as_values(state: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a state under a prefix, the inverse of `as_arrays`: arrays, and plain numbers."""
    return {
        name.removeprefix(prefix): array if np.ndim(array) else np.asarray(array).item()
        for name, array in state.items()
        if name.startswith(prefix)
    }


def sums_of(holder: Any, names: Iterable[str], prefix: str = "", *, copy: bool = False) -> dict[str, Array]:
    """Return attributes of an accumulator as arrays; see `as_arrays`."""
    return as_arrays({name: getattr(holder, name) for name in names}, prefix, copy=copy)


def restore_sums(
    holder: Any, state: Mapping[str, Array], names: Iterable[str], prefix: str = "", *, copy: bool = True
) -> None:
    """Set attributes of an accumulator to the values of a state, the inverse of `sums_of`."""
    for name in names:
        array = np.array(state[prefix + name], copy=copy or None)
        setattr(holder, name, array if array.ndim else array.item())


def add_sums(holder: Any, other: Any, names: Iterable[str]) -> None:
    """Add attributes of another accumulator, arrays in place."""
    for name in names:
        total = getattr(holder, name)
        total += getattr(other, name)
        setattr(holder, name, total)
