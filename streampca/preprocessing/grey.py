"""Grey values of colours."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..readers.collection import Array

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, what Pillow and most cameras mean by grey


def greyed(samples: Array, dtype: np.dtype[Any]) -> Array:
    """Weigh red, green and blue of the last axis into one grey value of a dtype; alpha, the fourth, is left out."""
    grey: Array = np.multiply(samples[..., 0], dtype.type(LUMA[0]), dtype=dtype)
    for channel in (1, 2):
        grey += np.multiply(samples[..., channel], dtype.type(LUMA[channel]), dtype=dtype)
    return grey
