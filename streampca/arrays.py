"""Types of arrays in signatures, and sparse rows; shapes and units stand in docstrings."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def is_sparse(rows: Any) -> TypeGuard[Any]:
    """Return whether rows are sparse ones of `scipy.sparse` in form CSR, or their transpose."""
    return hasattr(rows, "indptr")


def rows_of(block: Any, rows: slice) -> Any:
    """Return a range of rows; of sparse ones the block itself where that is all, as slicing copies."""
    return block if is_sparse(block) and rows.start <= 0 and rows.stop >= block.shape[0] else block[rows]
