"""Refusal of NaN, infinity and values whose products overflow, naming the sample that holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array, is_sparse
from ..errors import DataError, StreampcaError
from .sparse_rows import bad_rows, first_bad_row

SAFE_SINGLE = 1e15  # sums of 2^20 squared differences of values up to here fit float32
MOST_DOUBLE = 1e70  # fourth powers of values up to here, of which a solver computes norms, fit float64


class NotFiniteError(DataError):
    """A block holds NaN or infinity, or values whose products overflow.

    Attributes
    ----------
    sample : int
        Position of the first such sample in the collection.
    problem : str
        Description of the problem, e.g. ``"holds NaN or infinity in 3 of 784 features"``.
    """

    def __init__(self, sample: int, problem: str) -> None:
        super().__init__(f"sample {sample} {problem}")
        self.sample = sample
        self.problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.sample, self.problem)


def is_finite(array: Array) -> bool:
    """Return whether an array holds neither NaN nor infinity, without a temporary array of its size."""
    return bool(np.isfinite(array.max(initial=0)) and np.isfinite(array.min(initial=0)))


def has_safe_squares(block: Array, precision: str) -> bool:
    """Return whether a block is finite, and too small for any sum of squares of its values to overflow."""
    if block.dtype.kind == "b" or (block.dtype.kind in "iu" and block.itemsize <= 2) or not block.size:
        return True
    most = MOST_DOUBLE if precision == "double" else SAFE_SINGLE
    return -most <= float(block.min()) and float(block.max()) <= most  # NaN compares as false


def check_finite(total: Array) -> None:
    """Refuse a sum of products of finite samples that is not finite, which no solver can use.

    Raises
    ------
    StreampcaError
        If it holds NaN or infinity.
    """
    if not is_finite(total):
        raise StreampcaError(
            "products of finite samples came out infinite or NaN, so the machine's memory or processor is faulty. "
            "Remove the checkpoint, if there is one, and fit again, on another machine if this is seen twice."
        )


def incomplete_rows(rows: Array) -> npt.NDArray[np.intp]:
    """Return the numbers of dense or sparse rows that hold NaN or infinity, ascending."""
    return bad_rows(rows) if is_sparse(rows) else np.flatnonzero(~np.isfinite(rows).all(axis=1))


def not_finite(block: Array, at: int | npt.NDArray[np.intp], precision: str) -> NotFiniteError:
    """Return the error that names the first invalid row; `at` is the position of the first row, or of each."""
    if is_sparse(block):
        row = first_bad_row(block)
        return not_finite(block[row : row + 1].toarray(), at + row, precision)
    places = at + np.arange(len(block)) if np.ndim(at) == 0 else np.asarray(at)
    finite = np.isfinite(block) if block.dtype.kind == "f" else np.ones(block.shape, bool)
    bad_rows = np.flatnonzero(~finite.all(axis=1))
    if len(bad_rows):
        row = int(bad_rows[0])
        missing = int(np.count_nonzero(~finite[row]))
        return NotFiniteError(int(places[row]), f"holds NaN or infinity in {missing} of its {block.shape[1]} features")
    # All values are finite: the row with the largest value overflows first.
    row = int(np.argmax(np.abs(block.astype(np.float64)).max(axis=1)))
    value = float(np.abs(block[row]).max())
    remedy = "use precision='double'" if precision == "single" and value < MOST_DOUBLE else "divide all samples by that"
    return NotFiniteError(int(places[row]), f"holds values up to {value:.3g}, whose squares overflow; {remedy}")
