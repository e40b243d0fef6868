"""Small pictures of a model's mean and components, as PNG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .panels import limits_of
from .views import mean_pictures, view_of

Array = npt.NDArray[Any]

SIDE = 96  # pixels of a picture at most
COUNT = 6  # components shown


def thumbnails_of(model: Any) -> Iterator[tuple[str, bytes]]:
    """Name and PNG of a `PCAModel`'s mean and first components; of samples without two axes, none.

    Nothing is read: components on disk have no picture here.
    """
    view = view_of(model, 1)
    if view.is_line:
        return
    small = replace(view, bin=-(-max(view.shape[axis] for axis in view.axes) // SIDE))
    yield "mean", png_of(mean_pictures(model, small)[0])
    if isinstance(model.components, np.ndarray):
        for number, pictures in enumerate(small.read(model.components[:COUNT]), 1):
            yield str(number), png_of(pictures[0], signed=True)


def png_of(image: Array, *, signed: bool = False) -> bytes:
    """PNG of a picture (y, x) or (y, x, 3), blank where nothing is known.

    Signed ones are blue below zero and red above, on a scale symmetric about it; others grey, or in colours.
    """
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(_coloured(image, signed)).save(file, "PNG")
    return file.getvalue()


def _coloured(image: Array, signed: bool) -> Array:
    """Red, green, blue and alpha of an image, (y, x, 4), uint8."""
    from matplotlib import colormaps

    known = np.asarray(np.isfinite(image.reshape(*image.shape[:2], -1)).all(axis=-1, keepdims=True))
    low, high = limits_of(image)
    if signed:
        high = max(-low, high) or 1.0
        low = -high
    share = np.clip((np.nan_to_num(image) - low) / ((high - low) or 1.0), 0, 1)
    map_name = "RdBu_r" if signed else "gray"
    colours = share if share.ndim == 3 else colormaps[map_name](share)[..., :3]
    return np.concatenate([np.round(255 * colours), 255 * known], axis=-1).astype(np.uint8)
