"""Grey values of colours."""

from __future__ import annotations

import numpy as np

from ..readers.collection import Array
from .dtypes import float_of

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, what Pillow and most cameras mean by grey


def greyed(samples: Array) -> Array:
    """Weigh red, green and blue of the last axis into one grey value; a fourth channel is alpha, and left out."""
    dtype = float_of(samples.dtype)
    grey: Array = np.multiply(samples[..., 0], np.float32(LUMA[0]), dtype=dtype)
    for channel in (1, 2):
        grey += np.multiply(samples[..., channel], np.float32(LUMA[channel]), dtype=dtype)
    return grey
