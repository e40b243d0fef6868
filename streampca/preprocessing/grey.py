"""Conversion of colours to grey values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Array

LUMA = (0.299, 0.587, 0.114)  # weights of ITU-R BT.601, which Pillow and most cameras use


def greyed(samples: Array, dtype: np.dtype[Any]) -> Array:
    """Return the weighted sum of red, green and blue along the last axis, in a dtype; alpha, the fourth, is ignored."""
    grey: Array = np.multiply(samples[..., 0], dtype.type(LUMA[0]), dtype=dtype)
    for channel in (1, 2):
        grey += np.multiply(samples[..., channel], dtype.type(LUMA[channel]), dtype=dtype)
    return grey
