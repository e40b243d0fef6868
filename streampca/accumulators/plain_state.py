"""Conversion of values to states of plain arrays, which checkpoints and workers hold, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


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
