"""Preparation of samples, block by block: crop, grey, bin, mask. Pure, picklable, part of the model.

A model stores its preparation and applies it to whatever raw collection it is given, so the same pixels are compared
for ever. The order is fixed: crop, then grey, then bin, then mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .collection import Chunks, Collection, digest
from .errors import ModelError, RequestError
from .units import format_shape

Array = npt.NDArray[Any]

CHANNELS = (3, 4)  # lengths of a last axis that `grey` takes for colours (red, green, blue, and alpha, left out)
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, what Pillow and most cameras mean by grey


@dataclass(frozen=True, eq=False)
class Preparation:
    """What is done to each raw sample before it becomes a row.

    Parameters
    ----------
    crop : sequence of (start, stop), optional
        Range kept of each leading axis of the sample, in pixels.
    grey : bool, default=False
        Weigh the last axis (3 or 4 colour channels) into one grey value; alpha is left out.
    bin : int, default=1
        Replace each q x q square of the first two axes by its mean; a remainder at the far edges is dropped.
    mask : bool ndarray, optional
        Shape of the sample after the steps above (or of its leading axes); only pixels where it is True are features.
    """

    crop: tuple[tuple[int, int], ...] | None = None
    grey: bool = False
    bin: int = 1
    mask: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if self.crop is not None:
            object.__setattr__(self, "crop", tuple((int(start), int(stop)) for start, stop in self.crop))
        if self.bin < 1:
            raise RequestError(f"bin {self.bin} is not a positive number of pixels; give a side such as 2.")
        if self.mask is not None:
            mask = np.array(self.mask, dtype=bool)
            mask.flags.writeable = False
            object.__setattr__(self, "mask", mask)

    @property
    def is_identity(self) -> bool:
        """Whether samples are left as they are."""
        return self.crop is None and not self.grey and self.bin == 1 and self.mask is None

    def to_json(self) -> dict[str, Any]:
        """Everything but the mask as plain data."""
        crop = None if self.crop is None else [list(pair) for pair in self.crop]
        return {"crop": crop, "grey": self.grey, "bin": self.bin}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], mask: Array | None = None) -> Preparation:
        """Inverse of `to_json`; keys that belong to others are left alone."""
        return cls(crop=data.get("crop"), grey=bool(data.get("grey")), bin=int(data.get("bin", 1)), mask=mask)

    def apply(self, samples: Array) -> Array:
        """Prepare samples, (m, *raw_shape) to (m, *prepared_shape); the mask is not applied here."""
        if self.crop is not None:
            samples = samples[(slice(None), *(slice(start, stop) for start, stop in self.crop))]
        if self.grey:
            red, green, blue = (np.float32(weight) * samples[..., i] for i, weight in enumerate(LUMA))
            samples = red + green + blue
        if self.bin > 1:
            samples = _binned(samples, self.bin)
        return samples

    def shape_of(self, raw_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a prepared sample.

        Raises
        ------
        RequestError
            If a step does not fit samples of `raw_shape`.
        """
        shape = self._cropped(raw_shape)
        if self.grey:
            if len(shape) < 2 or shape[-1] not in CHANNELS:
                raise RequestError(
                    f"grey needs 3 or 4 colour channels last; samples are {format_shape(shape)}. Leave it out."
                )
            shape = shape[:-1]
        if self.bin > 1:
            if len(shape) < 2 or min(shape[:2]) < self.bin:
                raise RequestError(
                    f"bin {self.bin} needs samples of at least {self.bin} x {self.bin} pixels; they are "
                    f"{format_shape(shape)}. Use a smaller bin."
                )
            shape = (shape[0] // self.bin, shape[1] // self.bin, *shape[2:])
        if self.mask is not None and self.mask.shape != shape[: self.mask.ndim]:
            raise RequestError(
                f"mask has shape {format_shape(self.mask.shape)} and prepared samples have {format_shape(shape)}; "
                "give a mask of the samples' shape."
            )
        if self.mask is not None and not self.mask.any():
            raise RequestError("mask leaves no pixel; mark the pixels to keep with True.")
        return shape

    def _cropped(self, raw_shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.crop is None:
            return raw_shape
        if len(self.crop) > len(raw_shape):
            raise RequestError(
                f"crop has {len(self.crop)} ranges and samples are {format_shape(raw_shape)}; give one an axis."
            )
        for (start, stop), length in zip(self.crop, raw_shape, strict=False):
            if not 0 <= start < stop <= length:
                raise RequestError(
                    f"crop {start}:{stop} lies outside an axis of {length} pixels; samples are "
                    f"{format_shape(raw_shape)}. Keep within it."
                )
        kept = tuple(stop - start for start, stop in self.crop)
        return (*kept, *raw_shape[len(kept) :])

    def full_mask(self, shape: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
        """Return the mask over the whole prepared sample (a mask of leading axes covers every channel)."""
        if self.mask is None:
            return None
        extra = len(shape) - self.mask.ndim
        return np.broadcast_to(self.mask.reshape(*self.mask.shape, *(1,) * extra), shape)


def _binned(samples: Array, q: int) -> Array:
    height, width = samples.shape[1] // q, samples.shape[2] // q
    cut = samples[:, : height * q, : width * q]
    squares = cut.reshape(len(cut), height, q, width, q, *cut.shape[3:])
    dtype = np.float64 if samples.dtype.itemsize > 4 or samples.dtype in (np.int32, np.uint32) else np.float32
    return squares.mean(axis=(2, 4), dtype=dtype)  # type: ignore[no-any-return]


class Prepared(Collection):
    """A collection seen through a preparation: its rows are the features the analysis sees.

    Attributes
    ----------
    raw : Collection
        What is read.
    preparation : Preparation
        What is done to it.
    mask : ndarray of bool or None
        Over the prepared sample; `n_features` counts its True pixels.
    """

    def __init__(self, raw: Collection, preparation: Preparation) -> None:
        self.raw, self.preparation, self.source = raw, preparation, raw.source
        image = preparation.shape_of(raw.sample_shape)
        self.shape = (raw.n_samples, *image)
        self.mask = preparation.full_mask(image)
        self._kept = None if self.mask is None else np.flatnonzero(self.mask)
        one = np.zeros((1, *raw.sample_shape), raw.dtype)
        self.dtype = preparation.apply(one).dtype
        same_axes = raw.axes is not None and len(raw.axes) >= len(image)
        self.axes = raw.axes[: len(image)] if same_axes and raw.axes is not None else None

    @property
    def n_features(self) -> int:
        """Pixels inside the mask, or all of them."""
        return super().n_features if self._kept is None else len(self._kept)

    @property
    def row_bytes(self) -> int:
        """Of a raw sample: what is read."""
        return self.raw.row_bytes

    @property
    def chunks(self) -> Chunks:
        """Samples to a chunk as stored; a prepared sample is always read whole."""
        return Chunks(self.raw.chunks.samples, self.n_features)

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read raw samples and prepare them; see `Collection.read`."""
        if self.preparation.is_identity:
            return self.raw.read(rows, features)
        raw = self.raw.read(rows)
        prepared = self.preparation.apply(raw.reshape(len(raw), *self.raw.sample_shape)).reshape(len(raw), -1)
        if self._kept is not None:
            prepared = prepared[:, self._kept]
        return np.ascontiguousarray(prepared if features is None else prepared[:, features])

    def where(self, index: int) -> str:
        """As the raw collection says."""
        return self.raw.where(index)

    def sample_names(self) -> Sequence[str] | None:
        """As the raw collection says."""
        return self.raw.sample_names()

    def fingerprint(self) -> str:
        """Of the raw collection and the preparation."""
        mask = None if self.mask is None else self.mask.tobytes()
        return digest(self.raw.fingerprint(), self.preparation.to_json(), mask)


def unflatten(rows: Array, shape: tuple[int, ...], mask: npt.NDArray[np.bool_] | None) -> Array:
    """Shape rows (m, p) into (m, *shape), with NaN where the mask is False."""
    if mask is None:
        return rows.reshape(len(rows), *shape)
    images = np.full((len(rows), *shape), np.nan, rows.dtype)
    images[:, mask] = rows
    return images


def check_raw(raw: Collection, shape: tuple[int, ...], kind: str, model: str) -> None:
    """Refuse a collection that is not of the raw kind a model was fitted on.

    Raises
    ------
    ModelError
        If its sample shape differs, or one holds integers and the other fractions.
    """
    if raw.sample_shape != shape:
        raise ModelError(
            f"{raw.source} has samples of {format_shape(raw.sample_shape)} and {model} was fitted on samples of "
            f"{format_shape(shape)}; give it a collection of that shape, or fit another model."
        )
    if (raw.dtype.kind == "f") != (kind == "f"):
        words = {True: "fractions", False: "whole numbers"}
        raise ModelError(
            f"{raw.source} holds {words[raw.dtype.kind == 'f']} ({raw.dtype}) and {model} was fitted on "
            f"{words[kind == 'f']}; convert it to the scale and kind of the first, or fit another model."
        )
