"""Small pictures of a model's mean and components, as PNG."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .collection import Coordinate
from .panels import limits_of, picture
from .prepare.coordinates import is_latitude

Array = npt.NDArray[Any]

SIDE = 96  # pixels of a picture at most
COUNT = 6  # components shown


def thumbnails_of(model: Any) -> Iterator[tuple[str, bytes]]:
    """Name and PNG of a `PCAModel`'s mean and first components; of samples without two axes, none.

    Nothing is read: components on disk have no picture here.
    """
    if picture(model.mean).ndim < 2:
        return
    northwards = (_ascends_northwards(name, model.coordinates) for name in model.sample_dims)
    turned = tuple(axis for axis, is_so in enumerate(northwards) if is_so)
    yield "mean", png_of(np.flip(model.mean, turned))
    if isinstance(model.components, np.ndarray):
        for number, component in enumerate(model.components[:COUNT], 1):
            yield str(number), png_of(np.flip(component, turned), signed=True)


def _ascends_northwards(name: str, coordinates: Mapping[str, Coordinate]) -> bool:
    """Whether an axis is a latitude whose first row is the southernmost: drawn as it is stored, south would be up."""
    known = coordinates.get(name)
    return known is not None and is_latitude(name, known) and bool(known.values[0] < known.values[-1])


def png_of(sample: Array, *, signed: bool = False) -> bytes:
    """PNG of a sample's picture, every so many pixels of a large one; blank where nothing is known.

    Signed ones are blue below zero and red above, on a scale symmetric about it; others grey, or in colours.
    """
    from PIL import Image

    image = picture(sample)
    step = -(-max(image.shape[:2]) // SIDE)
    pixels = _coloured(np.asarray(image[::step, ::step], np.float64), signed)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
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
