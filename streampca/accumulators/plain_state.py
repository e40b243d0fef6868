"""States of plain arrays, which checkpoints and workers hold, and the values that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def as_arrays(values: Mapping[str, Any], prefix: str = "", *, copy: bool = False) -> dict[str, Array]:
    """Return values as arrays, under their names with a prefix; None is left out."""
    arrays = {prefix + name: np.asarray(value) for name, value in values.items() if value is not None}
    return {name: array.copy() for name, array in arrays.items()} if copy else arrays


def as_values(state: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values that `as_arrays` was given under a prefix: arrays themselves, and numbers."""
    return {
        name.removeprefix(prefix): array if np.ndim(array) else np.asarray(array).item()
        for name, array in state.items()
        if name.startswith(prefix)
    }
