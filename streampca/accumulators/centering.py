"""Centring and sums of float32 values that keep what float64 would: what a product of float32 must be fed with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..planning.sizes import SQUARES

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

SUM_ROWS = 32  # rows summed in float32 before the sum is added in float64; costs 2 % of the product at 784 features
GRID = 64  # deviations: the grid of a mean of so many is 4e-6 of a deviation, and what squares lose to it below 1e-11
GRID_ROWS = 8  # that tell the deviation
TILE_ROWS = 64  # rows converted and then centred while they are in the cache: a third faster than all at once
CENTRE_ROWS = 64  # that tell the mean, spread over all: an eighth of a deviation from it, at a fifteenth of the cost


def split(centre: Float64, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Write a centre as the sum of two vectors of `dtype`, the second the rounding of the first.

    Subtracting the coarse part from float32 data near it is exact; but data with a large offset then lie on a coarse
    grid, where the squares round to one side: 1.4e-6 of the scatter's norm for a mean of 30000 and a deviation of 1.
    Subtracting the fine part as well takes them off the grid: 3e-8.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        coarse = centre.astype(dtype)
        return coarse, (centre - coarse).astype(dtype)


def centre_samples(stored: Array, parts: tuple[Array, ...], out: Array, roots: Float64 | None = None) -> None:
    """Write samples less a centre (`split`), each times the square root of its weight, to `out`, in its dtype."""
    shifts = [part for part in parts if part.any()]
    # Such values less the first part only may need more digits than `out` has: all is subtracted before it is rounded.
    wide = np.result_type(stored, out) != out.dtype
    whole = np.sum(parts, axis=0, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # the products will say so
        for start in range(0, len(stored), TILE_ROWS):
            rows = slice(start, start + TILE_ROWS)
            tile = out[rows]
            if wide:
                np.subtract(stored[rows], whole, out=tile, casting="unsafe")
            else:
                np.copyto(tile, stored[rows], casting="unsafe")
                for part in shifts:
                    tile -= part
            if roots is not None:
                tile *= roots[rows, None].astype(out.dtype)


def subtract_mean(rows: Array, out: Array, *, whole: bool | None = None) -> Float64:
    """Write ``rows`` less about their mean to ``out``, in its dtype; return what was subtracted.

    The mean is that of some rows: what it is off by is taken off in float64 in the end. Whole numbers are centred on
    whole numbers; unless `whole` says what the rows hold, their dtype does. Others are centred twice where the mean is
    so large beside what is left that they lie on a coarse grid, where squares round to one side (`split`).
    """
    mean = _mean(rows, np.result_type(rows.dtype, out.dtype))
    if whole is None:
        whole = rows.dtype.kind in "biu"
    if whole:
        mean = np.rint(mean)
    np.subtract(rows, mean, out=out, casting="unsafe")
    centre: Float64 = mean.astype(np.float64)
    if rows.dtype.kind == "f" and not whole and _is_large(mean, out):
        fine = _mean(out, out.dtype)
        out -= fine
        centre += fine
    return centre


def _mean(rows: Array, dtype: np.dtype[Any]) -> Array:
    some = rows[:: max(1, len(rows) // CENTRE_ROWS)]
    return some.sum(axis=0, dtype=dtype) / dtype.type(len(some))  # type: ignore[no-any-return]


def _is_large(mean: Array, centred: Array) -> bool:
    few = centred[:: max(1, len(centred) // GRID_ROWS)]
    spread = float(np.sqrt(np.mean(np.square(few, dtype=np.float64))))
    return not float(np.abs(mean).max(initial=0)) <= GRID * spread


def sum_of_squares(centred: Array) -> float:
    """Sum of the squares of all values, a few at a time in float32, those sums in float64.

    Right to 1e-10 of itself, 2e-8 for rare bright events; in float64 throughout it would take 4 times as long.
    """
    values = centred.reshape(-1)
    few = values[: len(values) // SQUARES * SQUARES].reshape(-1, SQUARES)
    rest = values[few.size :].astype(np.float64)
    return float(np.einsum("ij,ij->i", few, few).sum(dtype=np.float64) + rest @ rest)


def weighted_sum(rows: Array, factors: Float64 | None) -> Float64:
    """Sum of the rows times their factors, if any: float32 for a few rows at a time, those sums in float64.

    What the sum lacks is multiplied by the distance of centre and mean, and is alike in all features: with sums
    of 2048 rows it was the largest error of all, 1e-5 of the scatter's norm for data that drift by a deviation.
    """
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), SUM_ROWS):
        few = rows[start : start + SUM_ROWS]
        if factors is not None:
            few = few * factors[start : start + SUM_ROWS, None].astype(rows.dtype)
        total += few.sum(axis=0)
    return total
