"""Centring and sums of float32 values that lose as little as float64 would, for products in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Array, Float64, is_sparse
from ..planning.memory import SQUARES
from .sparse_rows import sparse_centre

SUM_ROWS = 32  # rows summed in float32 before the sum is added in float64; costs 2 % of the product at 784 features
# Largest mean, in standard deviations, that is centred once: its float32 grid is 4e-6 of a deviation, and squares lose
# less than 1e-11 to it.
GRID = 64
GRID_ROWS = 8  # rows from which that deviation is estimated
TILE_ROWS = 64  # rows converted and then centred while they are in the cache: a third faster than all at once
# Rows from which the mean is estimated: it is an eighth of a deviation off, at a fifteenth of the cost.
CENTRE_ROWS = 64


def split(centre: Float64, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Write a centre as the sum of two vectors of `dtype`, the second the rounding of the first.

    Subtracting the coarse part from float32 data near it is exact; but data with a large offset then lie on a coarse
    grid, where the squares round to one side: 1.4e-6 of the scatter's norm for a mean of 30000 and a deviation of 1.
    Subtracting the fine part as well takes them off the grid: 3e-8.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        coarse = centre.astype(dtype)
        return coarse, (centre - coarse).astype(dtype)


def rounded_centre(centre: Float64, spread: float, precision: str) -> Float64:
    """Return a centre that takes one subtraction, not two, where samples spread so far that they lie on no coarse grid.

    It is rounded to the precision of products; the distance from the mean is known all the same, and taken out.
    """
    largest = float(np.abs(centre).max(initial=0.0))
    if precision == "double" or not largest <= min(GRID * spread, float(np.finfo(np.float32).max)):
        return centre
    return centre.astype(np.float32).astype(np.float64)


def centre_samples(stored: Array, parts: tuple[Array, ...], out: Array, roots: Float64 | None = None) -> None:
    """Write samples less a centre (`split`), each times the square root of its weight, to `out`, in its dtype."""
    shifts = [part for part in parts if part.any()]
    # A wider dtype less only the coarse part can need more digits than `out` has: subtract everything, then round.
    wide = np.result_type(stored, out) != out.dtype
    whole: Any = np.sum(parts, axis=0, dtype=np.float64) if wide else 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # products are checked for NaN and infinity
        for start in range(0, len(stored), TILE_ROWS):
            rows = slice(start, start + TILE_ROWS)
            tile = out[rows]
            if wide:
                np.subtract(stored[rows], whole, out=tile, casting="unsafe")
            elif stored.dtype == out.dtype and shifts:
                np.subtract(stored[rows], shifts[0], out=tile)
                for part in shifts[1:]:
                    tile -= part
            else:
                np.copyto(tile, stored[rows], casting="unsafe")
                for part in shifts:
                    tile -= part
            if roots is not None:
                tile *= roots[rows, None].astype(out.dtype)


def mean_parts(rows: Array, dtype: np.dtype[Any], *, whole: bool | None = None) -> tuple[Array, ...]:
    """Return the approximate mean of rows, in one part or two (`split`), to be subtracted before products in `dtype`.

    The mean is estimated from some of the rows; its error is subtracted in float64 in the end. Whole numbers are
    centred on whole numbers; without `whole`, the dtype decides whether the rows hold them. Other rows are centred
    twice if the mean is so large compared with the spread that they lie on a coarse grid, where squares round to one
    side.
    """
    if whole is None:
        whole = rows.dtype.kind in "biu"
    if is_sparse(rows):
        return (np.rint(sparse_centre(rows)) if whole else sparse_centre(rows),)
    mean = _mean(rows, np.result_type(rows.dtype, dtype))
    if whole:
        return (np.rint(mean),)
    if rows.dtype.kind == "f" and _is_large(mean, _less(rows, mean, GRID_ROWS, dtype)):
        # The first subtraction is exact near the mean; this one takes the values off its grid.
        return mean, _mean(_less(rows, mean, CENTRE_ROWS, dtype), dtype)
    return (mean,)


def sum_of_parts(parts: tuple[Array, ...], size: int) -> Float64:
    """Return the sum of the parts of a centre, (size,); zeros without parts."""
    return np.sum([np.zeros(size), *parts], axis=0)  # type: ignore[no-any-return]


def _less(rows: Array, mean: Array, most: int, dtype: np.dtype[Any]) -> Array:
    """Return about `most` of the rows less the mean, in `dtype`."""
    return np.subtract(rows[:: max(1, len(rows) // most)], mean).astype(dtype, copy=False)


def _mean(rows: Array, dtype: np.dtype[Any]) -> Array:
    sampled = rows[:: max(1, len(rows) // CENTRE_ROWS)]
    return sampled.sum(axis=0, dtype=dtype) / dtype.type(len(sampled))  # type: ignore[no-any-return]


def _is_large(mean: Array, few: Array) -> bool:
    """Return whether a mean is large compared with the spread of a few rows about it."""
    spread = float(np.sqrt(np.mean(np.square(few, dtype=np.float64))))
    # Negated, so that NaN counts as large.
    return not float(np.abs(mean).max(initial=0)) <= GRID * spread


def sum_of_squares(centred: Array) -> float:
    """Return the sum of the squares of all values: a few at a time in float32, and these sums in float64.

    The relative error is 1e-10, or 2e-8 for rare bright events; float64 throughout would take 4 times as long.
    """
    values = centred.data if is_sparse(centred) else centred.reshape(-1)
    few = values[: len(values) // SQUARES * SQUARES].reshape(-1, SQUARES)
    rest = values[few.size :].astype(np.float64)
    return float(np.einsum("ij,ij->i", few, few).sum(dtype=np.float64) + rest @ rest)


def weighted_sum(rows: Array, factors: Float64 | None) -> Float64:
    """Return the sum of the rows times their factors, if any: a few rows in float32, and these sums in float64.

    The rounding of this sum is multiplied by the distance of centre and mean, and is similar in all features: with sums
    of 2048 rows it was the largest of all errors, 1e-5 of the scatter's norm for data that drift by a deviation.
    """
    if is_sparse(rows):
        return np.asarray((np.ones(rows.shape[0]) if factors is None else factors) @ rows)
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), SUM_ROWS):
        few = rows[start : start + SUM_ROWS]
        if factors is not None:
            few = few * factors[start : start + SUM_ROWS, None].astype(rows.dtype)
        total += few.sum(axis=0)
    return total
