"""Products of matrices by one BLAS at a time: numpy brings one, scipy another.

Alternating between the two made loops 3 to 5 times slower (benchmarks/choices.py), as the threads of one wait,
spinning, on the cores that the other wants. What multiplies block by block goes through scipy's, which adds to a matrix
in place; what runs in lanes of a thread each through numpy's, which lets other threads of Python go on meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

Array = npt.NDArray[Any]


def times(left: Array, right: Array, *, in_lane: bool = False) -> Array:
    """``left @ right`` in C order, of two matrices both float32 or both float64; others become float64.

    Contiguous matrices, in either order, are not copied.
    """
    if in_lane or 0 in left.shape or 0 in right.shape:
        return left @ right
    single = left.dtype == right.dtype == np.float32
    gemm = blas.sgemm if single else blas.dgemm
    # The transpose of the product, in Fortran order, is the product in C order.
    (first, turned), (second, turned_too) = _fortran(right.T), _fortran(left.T)
    return gemm(1.0, first, second, trans_a=turned, trans_b=turned_too).T  # type: ignore[no-any-return]


def among(rows: Array, out: Array | None, *, in_lane: bool = False) -> Array:
    """``rows @ rows.T``, at least the upper triangle of it, float32, into `out` where it has the right shape.

    In Fortran order; the cost is that of a symmetric update.
    """
    count = len(rows)
    if out is None or len(out) != count:
        out = np.zeros((count, count), np.float32, order="F")
    if in_lane:
        np.dot(rows, rows.T, out=out.T)
    else:
        matrix, turned = _fortran(rows)
        blas.ssyrk(1.0, matrix, trans=int(turned), beta=0.0, c=out, overwrite_c=1)
    return out


def _fortran(matrix: Array) -> tuple[Array, bool]:
    """A matrix as BLAS takes it without a copy: in Fortran order, or transposed."""
    return (matrix.T, True) if matrix.flags.c_contiguous and not matrix.flags.f_contiguous else (matrix, False)
