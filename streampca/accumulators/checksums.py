"""Checksums of products: A B^T times a vector is A times (B^T times the vector), whatever the product was made by.

So a product, however it was computed, is told right or wrong row by row at the cost of a few products with a vector
(Freivalds, 1979; Huang and Abraham, 1984). The vector is random and independent of the data; what the two ways may
differ by is rounding, in proportion to the lengths of the rows multiplied. Alarms are logged as warnings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from ..errors import FaultError

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Made = TypeVar("Made")

SLACK = 2.0  # of random rounding; clean products reach 0.02, of few features or of equal rows, which round alike, 1.3
ALIKE = 4.0  # times that for sums of pieces that round alike: of equal rows they reach 4
BEYOND = 2.0  # times the product of two lengths: no inner product comes near
LARGEST = 8.0  # entries of the vectors: a Gaussian one is larger once in 1e15

logger = logging.getLogger("streampca")


def allowed(squares: Array, whole: float, inner: int, dtype: np.dtype[Any], count: int) -> Float64:
    """What rounding may part the two ways by, row by row, (rows,).

    By Cauchy and Schwarz, with errors of sums that grow like the root of their terms: eps sqrt(inner + count) |a_i|
    (sum of |b_j|^2 + |B^T u|^2)^(1/2), for P = A B^T with rows a_i and b_j, and a vector u.

    Parameters
    ----------
    squares : ndarray of shape (rows,)
        |a_i|^2, the diagonal of a product of rows with themselves.
    whole : float
        Sum of |b_j|^2, plus |B^T u|^2.
    inner : int
        Terms of an entry of P.
    dtype : dtype
        Of products and factors.
    count : int
        Entries of u.
    """
    found = np.finfo(dtype)
    lost = inner * float(found.tiny)  # squares below the smallest number are not in the sums
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.maximum(squares.astype(np.float64), 0.0) + lost)
        relative = SLACK * float(found.eps) * (inner + count) ** 0.5
        bound: Float64 = relative * lengths * (max(whole, 0.0) + count * lost) ** 0.5 + LARGEST * count * lost
        return bound


def excess(found: Array, expected: Array, bound: Array) -> Float64:
    """How far two vectors are apart where that is more than a bound, or no number; 0 elsewhere."""
    with np.errstate(over="ignore", invalid="ignore"):
        away = np.abs(found.astype(np.float64) - expected)
        return np.where((away <= bound) & np.isfinite(away), 0.0, away)


def symmetric_times(upper: Array, vector: Array, *, one_thread: bool = False) -> Array:
    """A symmetric matrix in Fortran order times a vector, of one dtype; in a thread both triangles are read.

    By the BLAS that made the matrix (`streampca.accumulators.blas`).
    """
    if one_thread:
        with np.errstate(over="ignore", invalid="ignore"):
            return upper.T @ vector
    symv = blas.ssymv if upper.dtype == np.float32 else blas.dsymv
    return symv(1.0, upper, vector)  # type: ignore[no-any-return]


def plain_times(matrix: Array, vector: Array, *, one_thread: bool = False) -> Array:
    """A contiguous matrix times a vector, of one dtype."""
    if one_thread or 0 in matrix.shape:
        with np.errstate(over="ignore", invalid="ignore"):
            return matrix @ vector
    gemv = blas.sgemv if matrix.dtype == np.float32 else blas.dgemv
    if matrix.flags.f_contiguous:
        return gemv(1.0, matrix, vector)  # type: ignore[no-any-return]
    return gemv(1.0, matrix.T, vector, trans=1)  # type: ignore[no-any-return]


def made_right(make: Callable[[], tuple[Made, Float64]], what: str) -> Made:
    """Make something together with its `excess`, and once more where there is any.

    What comes out the same twice was no accident of the machine but lies in the data (no numbers, overflow), and is
    taken: error bounds are made of other products and tell what it is worth.

    Parameters
    ----------
    make : callable
        Computes the product.
    what : str
        What is multiplied, in words, e.g. ``"samples 0 to 1023"``.

    Raises
    ------
    FaultError
        If it was wrong both times, in different ways.
    """
    made, first = make()
    if not first.any():
        return made
    made, second = make()
    if not second.any():
        logger.warning(
            "the product of %s came out wrong and was computed again; if this is seen often, the machine's memory or "
            "processor is faulty.",
            what,
        )
    elif not np.array_equal(first, second, equal_nan=True):
        raise FaultError(
            f"the product of {what} came out wrong twice, in different ways; the machine's memory or processor is "
            "faulty. Use another machine."
        )
    return made


def found_wrong(away: Float64, bound: Float64, trace: float) -> None:
    """Give the alarm where rows of a sum differ from their checksums.

    Parameters
    ----------
    away : ndarray of shape (rows,)
        By how much, 0 where rounding accounts for it; may hold NaN.
    bound : ndarray of shape (rows,)
        What rounding accounts for.
    trace : float
        Sum of all eigenvalues, from sums of its own: with more damage than that, nothing made of the sum is right.

    Raises
    ------
    FaultError
        If that is so. Less is logged as a warning.
    """
    wrong = np.flatnonzero(~(away == 0))
    if not len(wrong):
        return
    worst = int(wrong[np.argmax(np.nan_to_num(away[wrong], nan=np.inf))])
    found = (
        f"{len(wrong)} of {len(away)} rows of the scatter matrix differ from their checksums, row {worst} by "
        f"{away[worst]:.3g} where rounding allows {bound[worst]:.3g}: a product went wrong or memory was damaged"
    )
    if not away[worst] <= trace:
        raise FaultError(f"{found}. Remove what was kept of this run, if anything, and fit again.")
    logger.warning("%s; the error bounds tell what the result is worth. Fit again for a better one.", found)


def check_lengths(upper: Float64, squares: Float64) -> None:
    """Refuse inner products larger than lengths allow, of which a solver would make anything.

    Parameters
    ----------
    upper : ndarray of shape (n, n)
        Fortran order, upper triangle.
    squares : ndarray of shape (n,)
        Squares of the lengths, from sums of their own.

    Raises
    ------
    FaultError
        If one is, or is no number.
    """
    lost = float(np.finfo(np.float32).tiny) * 2**40  # squares below the smallest number, of that many features
    lengths = BEYOND * np.sqrt(np.maximum(squares, 0.0) + lost)
    for column in range(len(upper)):
        sizes = np.abs(upper[: column + 1, column])
        wrong = np.flatnonzero(~(sizes <= lengths[: column + 1] * lengths[column]))
        if len(wrong):
            row = int(wrong[0])
            raise FaultError(
                f"the inner product of samples {row} and {column} is {sizes[row]:.3g} where their lengths allow "
                f"{lengths[row] * lengths[column] / BEYOND**2:.3g}: memory was damaged. Remove what was kept of this "
                "run, if anything, and fit again."
            )
