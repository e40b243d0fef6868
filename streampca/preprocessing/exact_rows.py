"""Rows before anything is rounded, a few features at a time: what the rounding of the steps is measured against.

The steps are those of `Frame.rows`, in long double where rows are float64 and in float64 where they are float32. Of an
image no more lines are computed at a time than make about `PIECE` values.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..planning.blocks import Span, blocks_of
from .frame import Frame
from .grey import greyed
from .normalize import against
from .resize import PIECE, LineResampler, binned

EXACT = np.dtype(np.longdouble)

Pieces = Iterator[tuple[slice, Array]]


def exact_dtype(rows: npt.DTypeLike) -> np.dtype[Any]:
    """Return a dtype in which rounding to the dtype of rows is seen."""
    return np.dtype(np.float64) if np.dtype(rows) == np.float32 else EXACT


def exact_pieces(frame: Frame, samples: Array, start: int = 0, *, coloured: bool = True) -> Pieces:
    """Yield ascending ranges of features with their values in raw samples from number `start` on, (m, features).

    `coloured` says whether the samples, (m, *raw_shape), have the colours that `grey` weighs.
    """
    mapped = frame.preparation.mapped
    if mapped is None:
        yield from _normalized(frame, samples, start, coloured=coloured)
        return
    rows = np.empty((len(samples), frame.before_map.n_features))
    for features, values in _normalized(frame.before_map, samples, start, coloured=coloured):
        rows[:, features] = values
    found = mapped(rows)
    for some in blocks_of(Span(0, frame.n_features), PIECE):
        yield slice(*some), found[:, slice(*some)]


def _normalized(frame: Frame, samples: Array, start: int, *, coloured: bool) -> Pieces:
    """Yield what all steps make of samples, in two sweeps where a step needs the whole of each."""
    how, numbers = frame.preparation.normalize, np.zeros(len(samples), exact_dtype(frame.row_dtype(samples.dtype)))
    if how is None:
        yield from _scaled(frame, samples, start, coloured=coloured)
        return
    for _, values in _scaled(frame, samples, start, coloured=coloured):
        numbers += (np.square(values) if how == "norm" else values).sum(axis=1)
    numbers = np.sqrt(numbers) if how == "norm" else numbers / frame.n_features
    with np.errstate(divide="ignore", invalid="ignore"):
        for features, values in _scaled(frame, samples, start, coloured=coloured):
            yield features, against(values, how, numbers)


def _scaled(frame: Frame, samples: Array, start: int, *, coloured: bool) -> Pieces:
    """Yield the features of samples less their level, scaled."""
    dtype, factors = exact_dtype(frame.row_dtype(samples.dtype)), frame.factors(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for features, values in _features(frame, samples, dtype, coloured=coloured):
            for some in blocks_of(Span(0, values.shape[1]), PIECE):
                own = slice(features.start + some.start, features.start + some.stop)
                piece = values[:, slice(*some)].astype(dtype)
                yield own, frame.scaled(piece, start, own, factors, out=piece)


def _features(frame: Frame, samples: Array, dtype: np.dtype[Any], *, coloured: bool) -> Pieces:
    """Yield the features in some lines of the prepared images of samples, those inside the mask."""
    if not frame.sample_shape:
        yield slice(0, 1), samples.reshape(len(samples), 1)
        return
    height, first = max(1, PIECE // max(1, prod(frame.sample_shape[1:]))), 0
    images = _Lines(frame, samples, dtype, coloured=coloured)
    for lines in blocks_of(Span(0, frame.sample_shape[0]), height):
        values = images.read(lines)
        values = values.reshape(len(values), prod(values.shape[1:]))
        if frame.mask is not None:
            values = values.compress(frame.mask[slice(*lines)].ravel(), axis=1)
        yield slice(first, first + values.shape[1]), values
        first += values.shape[1]


class _Lines:
    """Prepared images of samples, (m, *raw_shape), computed in a dtype a few lines at a time."""

    def __init__(self, frame: Frame, samples: Array, dtype: np.dtype[Any], *, coloured: bool) -> None:
        self._steps, self._dtype = frame.preparation, dtype
        self._samples = self._steps.cropped(samples)
        self._weighs = coloured and self._steps.weighs(self._samples.shape[1:])
        resize = self._steps.resize
        self._resampler = None if resize is None else LineResampler.of(self._samples.shape[1:3], resize)

    def read(self, lines: Span) -> Array:
        """Return some lines, (m, lines, ...)."""
        side = self._steps.bin
        own = Span(lines.start * side, lines.stop * side)
        resampler = self._resampler
        images = self._given(own) if resampler is None else resampler.lines(self._given, own, self._dtype)
        return images if side == 1 else binned(images, side, self._dtype)

    def _given(self, lines: Span) -> Array:
        """Return lines of the samples as they are, or grey."""
        images = self._samples[:, slice(*lines)]
        return greyed(images, self._dtype) if self._weighs else images


def exact_bytes(frame: Frame, raw: npt.DTypeLike) -> int:
    """Return the most bytes that `exact_pieces` holds for a sample, beside it and what mapping takes."""
    before = frame if frame.preparation.mapped is None else frame.before_map
    steps, width = before.preparation, exact_dtype(before.row_dtype(raw)).itemsize
    cropped = steps.cropped_shape(before.raw_shape)
    line = prod(before.sample_shape[1:])
    values = max(line, min(PIECE, prod(before.sample_shape)))
    held = 6 * width * min(values, PIECE)  # pieces, their squares, and what departures are made in
    if steps.makes_images:
        made = steps.bin**2 * values
        wide = prod(cropped[1:])
        chunk = 0 if steps.resize is None else 5 * 8 * max(PIECE, wide)
        held += width * values + (4 if steps.grey else 2) * width * made + chunk
    if before.mask is not None:
        held += (8 + width) * values
    held += steps.factor_bytes(before.sample_shape, np.float64)
    if before is not frame:
        held += 8 * (2 * before.n_features + frame.n_features)
    return held
