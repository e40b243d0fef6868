"""`Frame`, how raw samples become rows of features and rows images again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..readers.collection import Array
from ..units import KIB
from .dtypes import SampleError, check_digits, float_of
from .normalize import Float64, denormalized, normalized, normalizing_bytes
from .preparation import Preparation

# Raw bytes prepared at a time: what the steps hold between them then stays in the cache (1.4 to 2 times as fast as
# whole blocks of 24 MiB, on 128 x 128 colour images), and is no more for a large block than for a small one.
PIECE = 256 * KIB


@dataclass(frozen=True)
class Frame:
    """A preparation between raw samples of one shape and rows of features. Pickles small.

    Attributes
    ----------
    preparation : Preparation
        Applied to raw samples; resolved.
    raw_shape, sample_shape : tuple of int
        Of a raw and of a prepared sample.
    mask : ndarray of bool or None
        Over the prepared sample.
    """

    preparation: Preparation
    raw_shape: tuple[int, ...]
    sample_shape: tuple[int, ...]
    mask: npt.NDArray[np.bool_] | None

    @classmethod
    def of(cls, preparation: Preparation, raw_shape: tuple[int, ...]) -> Frame:
        """Frame raw samples of a shape; raises as `Preparation.shape_of`."""
        shape = preparation.shape_of(raw_shape)
        return cls(preparation, raw_shape, shape, preparation.full_mask(shape))

    @property
    def n_features(self) -> int:
        """Length of a row, p."""
        return math.prod(self.sample_shape) if self.mask is None else int(np.count_nonzero(self.mask))

    @property
    def unnormalized(self) -> Frame:
        """The frame of all steps but normalize."""
        return replace(self, preparation=self.preparation.unnormalized)

    def rows(self, raw: Array) -> Array:
        """Raw rows, (m, prod(raw_shape)), as rows of features, (m, p)."""
        if self.preparation.is_identity:
            check_digits(raw, raw.dtype)
            return raw
        out = np.empty((len(raw), self.n_features), self.row_dtype(raw.dtype))
        step = self._step(raw.dtype)
        for start in range(0, len(raw), step):
            piece = raw[start : start + step]
            try:
                out[start : start + step] = self._prepared(piece.reshape(len(piece), *self.raw_shape))
            except SampleError as error:
                raise type(error)(start + error.sample, error.problem) from None
        return out

    def row(self, image: Array) -> Array:
        """One raw image, perhaps of another size (as `resize` allows) or grey among coloured ones, as a row, (p,)."""
        row: Array = self._prepared(image[None], coloured=image.ndim == len(self.raw_shape))[0]
        return row

    def _prepared(self, samples: Array, *, coloured: bool = True) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite are named where they are used
            features = self.features(self.preparation.apply(samples, coloured=coloured))
            check_digits(features, samples.dtype)
            return self.normalized(self._scaled(features))[0]

    def features(self, images: Array) -> Array:
        """Prepared images, (m, *sample_shape), as rows of features, (m, p); not scaled."""
        rows = images.reshape(len(images), math.prod(self.sample_shape))
        return rows if self.mask is None else rows.compress(self.mask.ravel(), axis=1)

    def _scaled(self, rows: Array) -> Array:
        factors = self.factors(rows.dtype)
        return rows if factors is None else np.multiply(rows, factors, dtype=float_of(rows.dtype))

    def normalized(self, rows: Array) -> tuple[Array, Float64 | None]:
        """Set each row against its own mean or norm, if the preparation says so; with the means or norms."""
        how = self.preparation.normalize
        return (rows, None) if how is None else normalized(rows, how)

    def denormalized(self, rows: Array, numbers: Float64 | None) -> Array:
        """Undo `normalized`."""
        how = self.preparation.normalize
        return rows if how is None or numbers is None else denormalized(rows, how, numbers)

    def images(self, rows: Array) -> Array:
        """Rows of features as images, scale undone; NaN outside the mask."""
        factors = self.factors(rows.dtype)
        return unflatten(rows if factors is None else rows / factors, self.sample_shape, self.mask)

    def factors(self, dtype: npt.DTypeLike) -> Any:
        """Return the factors of features of a dtype: a row, a number, or None."""
        scale, dtype = self.preparation.scale, float_of(dtype)
        full = self.preparation.full_scale(self.sample_shape)
        if full is None:
            return None if scale is None else dtype.type(scale)
        return self.features(full[None])[0].astype(dtype)

    def row_dtype(self, raw: npt.DTypeLike) -> np.dtype[Any]:
        """The dtype `rows` gives for raw samples of a dtype."""
        return self.preparation.dtype_of(raw)

    def scratch_bytes(self, raw: npt.DTypeLike) -> int:
        """Most bytes `rows` holds beside the raw rows it is given and those it returns."""
        if self.preparation.is_identity:
            return 0
        own = normalizing_bytes(self.n_features) if self.preparation.normalize else 0
        return self._step(raw) * self.preparation.image_bytes(self.raw_shape, raw) + own

    def _step(self, raw: npt.DTypeLike) -> int:
        """Samples prepared at a time."""
        return max(1, PIECE // (math.prod(self.raw_shape) * np.dtype(raw).itemsize))


def unflatten(rows: Array, shape: tuple[int, ...], mask: npt.NDArray[np.bool_] | None) -> Array:
    """Shape rows (m, p) into (m, *shape), with NaN where the mask is False."""
    if mask is None:
        return rows.reshape(len(rows), *shape)
    images = np.full((len(rows), *shape), np.nan, rows.dtype)
    images[:, mask] = rows
    return images
