"""`Frame`, how raw samples become rows of features and rows images again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64, is_sparse
from ..planning.blocks import Span, blocks_of
from ..units import KIB, MIB
from .dtypes import SampleError, check_digits, float_of
from .learned import SampleKeys
from .normalize import denormalized, normalized, normalizing_bytes
from .preparation import Preparation
from .sample_keys import lacking

# Raw bytes prepared at a time: what the steps hold between them then stays in the cache (1.4 to 2 times as fast as
# whole blocks of 24 MiB, on 128 x 128 colour images), and is no more for a large block than for a small one.
PIECE = 256 * KIB
SCALED = 2**16  # features of some rows set against their level and scaled at a time, in float64
BUFFERS = 3 * 8 * 2**13  # bytes in which numpy converts what it multiplies
UNDONE = 2**17  # values whose level is added at a time, in float64
MAP_PIECE = 8 * MIB  # bytes that a feature map holds for the rows it maps at a time
STREAMED_PIECE = 16 * MIB  # ... where landmarks are read again for every piece
LEAST_MAPPED = 32  # rows mapped at a time: products of fewer with landmarks are slow


@dataclass(frozen=True)
class Frame:
    """A preparation between raw samples of one shape and rows of features. Pickles small.

    Attributes
    ----------
    preparation : Preparation
        Applied to raw samples; resolved.
    raw_shape, sample_shape : tuple of int
        Shapes of a raw and of a prepared sample.
    mask : ndarray of bool or None
        Over the prepared sample.
    keys : SampleKeys or None
        Groups and dates of the samples that it is used for, by their numbers, where the preparation needs them.
    """

    preparation: Preparation
    raw_shape: tuple[int, ...]
    sample_shape: tuple[int, ...]
    mask: npt.NDArray[np.bool_] | None
    keys: SampleKeys | None = None

    @classmethod
    def of(cls, preparation: Preparation, raw_shape: tuple[int, ...]) -> Frame:
        """Frame raw samples of a shape; raises as `Preparation.shape_of`."""
        shape = preparation.shape_of(raw_shape)
        return cls(preparation, raw_shape, shape, preparation.full_mask(shape))

    @property
    def n_features(self) -> int:
        """Length of a row, p."""
        return math.prod(self.sample_shape) if self.mask is None else int(np.count_nonzero(self.mask))

    @cached_property
    def before_map(self) -> Frame:
        """Frame of the steps before the feature map."""
        return replace(Frame.of(self.preparation.unmapped, self.raw_shape), keys=self.keys)

    @property
    def _steps(self) -> Preparation:
        """Steps that are undone on features: none where features are mapped, as mapping is not undone."""
        return Preparation() if self.preparation.maps else self.preparation

    @property
    def unnormalized(self) -> Frame:
        """The frame of all steps but normalize."""
        return replace(self, preparation=self.preparation.unnormalized)

    def rows(self, raw: Array, start: int = 0) -> Array:
        """Turn raw rows of samples from number `start` on, (m, prod(raw_shape)), into rows of features, (m, p)."""
        if self.preparation.is_identity:
            if not is_sparse(raw):  # whose digits are checked where they are read
                check_digits(raw, raw.dtype)
            return raw
        if self.preparation.maps:
            return self._mapped_raw(raw, start)
        return self._rows(raw, start, self._step(raw.dtype))

    def _rows(self, raw: Array, start: int, step: int) -> Array:
        """Prepare raw rows, so many at a time."""
        out = np.empty((len(raw), self.n_features), self.row_dtype(raw.dtype))
        for at in range(0, len(raw), step):
            piece, made = raw[at : at + step], out[at : at + step]
            try:
                self._prepare(piece.reshape(len(piece), *self.raw_shape), start + at, made)
            except SampleError as error:
                raise type(error)(at + error.sample, error.problem) from None
        return out

    def _mapped_raw(self, raw: Array, start: int) -> Array:
        """Prepare and map raw rows, some at a time."""
        out, step = np.empty((len(raw), self.n_features), self.row_dtype(raw.dtype)), self.map_rows
        for at in range(0, len(raw), step):
            try:
                rows = self.before_map.rows(raw[at : at + step], start + at)
            except SampleError as error:
                raise type(error)(at + error.sample, error.problem) from None
            out[at : at + step] = self.mapped(rows)
        return out

    def mapped(self, rows: Array) -> Array:
        """Map rows of features, (m, p) to (m, q), some at a time."""
        mapping = self.preparation.mapped
        assert mapping is not None  # noqa: S101 - a preparation that maps is resolved before samples are read
        dtype = self.preparation.last_dtype(self.preparation.unmapped, rows.dtype)
        out, step = np.empty((len(rows), self.n_features), dtype), self.map_rows
        for at in range(0, len(rows), step):
            out[at : at + step] = mapping(rows[at : at + step])
        return out

    @property
    def map_rows(self) -> int:
        """Number of rows mapped at a time."""
        mapping = self.preparation.mapped
        if mapping is None:
            return 1
        return max(LEAST_MAPPED, (STREAMED_PIECE if mapping.streamed_bytes else MAP_PIECE) // mapping.row_bytes)

    @property
    def device_bytes(self) -> int:
        """Bytes of a device that maps rows; 0 if they are not mapped."""
        mapping = self.preparation.mapped
        return 0 if mapping is None else mapping.device_bytes(self.map_rows)

    def row(self, image: Array, number: int = 0) -> Array:
        """Turn a raw image, perhaps of another size (as `resize` allows) or grey among coloured ones, into a row."""
        if self.preparation.maps:
            mapped: Array = self.mapped(self.before_map.row(image, number)[None])[0]
            return mapped
        out = np.empty((1, self.n_features), self.row_dtype(image.dtype))
        self._prepare(image[None], number, out, coloured=image.ndim == len(self.raw_shape))
        row: Array = out[0]
        return row

    def _prepare(self, samples: Array, start: int, out: Array, *, coloured: bool = True) -> None:
        """Write the rows of raw samples from number `start` on to `out`."""
        working, how = self.preparation.working_dtype(samples.dtype), self.preparation.normalize
        with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite are named where they are used
            made = self.features(self.preparation.apply(samples, working, coloured=coloured))
            check_digits(made, samples.dtype)
            if self.lacks_keys:
                raise lacking(self.preparation, "what was given")
            factors = self.factors(working)
            if self.preparation.learned is not None or factors is not None:
                for some in blocks_of(Span(0, self.n_features), SCALED):
                    own = slice(*some)
                    self.scaled(made[:, own], start, own, factors, out=out[:, own])
                made = out
            if how is not None:
                normalized(made, how, out.dtype, out)
            elif made is not out:
                out[...] = made

    def features(self, images: Array) -> Array:
        """Turn prepared images, (m, *sample_shape), into rows of features, (m, p); not scaled."""
        rows = images.reshape(len(images), math.prod(self.sample_shape))
        return rows if self.mask is None else rows.compress(self.mask.ravel(), axis=1)

    def scaled(self, rows: Array, start: int, features: slice, factors: Any, *, out: Array) -> Array:
        """Write some features of rows, (m, features), less their level and times their factors, if they have any.

        Less a level, they are computed in float64 or wider; else in the dtype of `out`, which may be the rows.
        """
        factors = factors[features] if np.ndim(factors) else factors
        learned = self.preparation.learned
        if learned is None:
            return np.multiply(rows, 1 if factors is None else factors, dtype=out.dtype, out=out)
        level = learned.level(self.keys, slice(start, start + len(rows)), features)
        apart = np.subtract(rows, level, dtype=np.result_type(rows, np.float64))
        if factors is not None:
            apart *= factors
        out[...] = apart
        return out

    @property
    def lacks_keys(self) -> bool:
        """True where the level of samples depends on their groups or dates, and these are not known."""
        learned = self.preparation.learned
        return learned is not None and learned.is_of_samples and self.keys is None

    def normalized(self, rows: Array, dtype: np.dtype[Any] | None = None) -> tuple[Array, Float64 | None]:
        """Set each row against its own mean or norm, if the preparation says so; with the means or norms."""
        steps = self._steps
        if steps.normalize is None:
            return rows, None
        return normalized(rows, steps.normalize, dtype or steps.last_dtype(steps.unnormalized, rows.dtype))

    def denormalized(self, rows: Array, numbers: Float64 | None) -> Array:
        """Undo `normalized`."""
        how = self._steps.normalize
        return rows if how is None or numbers is None else denormalized(rows, how, numbers)

    def images(self, rows: Array, start: int = 0, *, differences: bool = False) -> Array:
        """Return rows of features of samples from number `start` on as images; see `undone`; NaN outside the mask."""
        return unflatten(self.undone(rows, start, differences=differences), self.sample_shape, self.mask)

    def undone(self, rows: Array, start: int = 0, features: slice = slice(None), *, differences: bool = False) -> Array:
        """Return some features of rows as they were before they were scaled and set against their level.

        The level is not added to `differences` of rows, nor where it depends on keys that the frame has not.
        """
        learned = self._steps.learned
        if learned is None:
            factors = self.factors(rows.dtype)
            own = factors[features] if np.ndim(factors) else factors
            return rows if own is None else rows / own
        factors = self.factors(np.float64)
        own = factors[features] if np.ndim(factors) else factors
        out, step = np.empty_like(rows), max(1, UNDONE // max(1, rows.shape[1]))
        for at in range(0, len(rows), step):
            piece = rows[at : at + step].astype(np.float64)
            if own is not None:
                piece /= own
            if not (differences or self.lacks_keys):
                some = slice(start + at, start + at + len(piece))
                piece += learned.level(self.keys, some, features)
            out[at : at + step] = piece
        return out

    def factors(self, dtype: npt.DTypeLike) -> Any:
        """Return the factors of features of a dtype: a row, a number, or None."""
        if self._steps.learned is not None:
            return None if self._factors is None else self._factors.astype(float_of(dtype), copy=False)
        return self._scale(float_of(dtype))

    def _scale(self, dtype: np.dtype[Any]) -> Any:
        scale = self._steps.scale
        full = self._steps.full_scale(self.sample_shape)
        if full is None:
            return None if scale is None else dtype.type(scale)
        return self.features(full[None])[0].astype(dtype, copy=False)

    @cached_property
    def _factors(self) -> Float64 | None:
        """Scale over deviation of each feature, shape (p,), where something was learned; None where neither is."""
        scale, learned = self._scale(np.dtype(np.float64)), self._steps.learned
        divisor = None if learned is None else learned.divisor
        if divisor is None:
            return None if scale is None else np.broadcast_to(scale, self.n_features)
        return np.divide(1.0 if scale is None else scale, divisor)

    def row_dtype(self, raw: npt.DTypeLike) -> np.dtype[Any]:
        """Return the dtype that `rows` gives for raw samples of a dtype."""
        return self.preparation.dtype_of(raw)

    def scratch_bytes(self, raw: npt.DTypeLike) -> int:
        """Return the most bytes that `rows` holds beside the raw rows it is given and those it returns."""
        if self.preparation.is_identity:
            return 0
        if self.preparation.mapped is not None:
            row = self.before_map.n_features * self.before_map.row_dtype(raw).itemsize
            return self.before_map.scratch_bytes(raw) + self.map_rows * row + self.mapping_bytes(self.map_rows)
        steps, rows = self.preparation, self._step(raw)
        own = BUFFERS + (normalizing_bytes() if steps.normalize else 0)
        # Rows less their level in float64, the level, and the trend's part of it.
        departing = 3 * 8 * min(SCALED, self.n_features) if steps.learns else 0
        return rows * (steps.image_bytes(self.raw_shape, raw, steps.working_dtype(raw)) + departing) + own

    def mapping_bytes(self, rows: int) -> int:
        """Return the bytes held while so many rows are mapped, beside them and the result."""
        mapping = self.preparation.mapped
        return 0 if mapping is None else min(self.map_rows, rows) * mapping.row_bytes + mapping.streamed_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of what the preparation has learned, of factors, and of groups and dates of the samples."""
        if self.preparation.mapped is not None:
            return self.before_map.held_bytes + self.preparation.mapped.held_bytes
        learned = self.preparation.learned
        if learned is None:
            return 0
        own = sum(array.nbytes for array in self.keys or () if array is not None)
        return learned.nbytes + 2 * 8 * self.n_features + own

    @property
    def undoing_bytes(self) -> int:
        """Bytes that `undone` holds beside what it is given and returns: values, levels, and the trend's part."""
        return 0 if self._steps.learned is None else 3 * 8 * max(UNDONE, self.n_features)

    def _step(self, raw: npt.DTypeLike) -> int:
        """Return the number of samples prepared at a time."""
        return max(1, PIECE // (math.prod(self.raw_shape) * np.dtype(raw).itemsize))


def unflatten(rows: Array, shape: tuple[int, ...], mask: npt.NDArray[np.bool_] | None) -> Array:
    """Shape rows (m, p) into (m, *shape), with NaN where the mask is False."""
    if mask is None:
        return rows.reshape(len(rows), *shape)
    images = np.full((len(rows), *shape), np.nan, rows.dtype)
    images[:, mask] = rows
    return images
