"""Matrix products by one BLAS at a time: numpy has one, scipy another.

Alternating between the two made loops 3 to 5 times slower (benchmarks/choices.py): the waiting threads of one spin on
the cores that the other needs. Products of blocks use scipy's BLAS, which can add to a matrix in place. Products inside
Python threads of one BLAS thread each use numpy's, which releases the lock of the interpreter.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
from scipy.linalg import blas

from ..arrays import Array, is_sparse
from ..execution.threads import one_blas_thread


def times(left: Array, right: Array, *, one_thread: bool = False) -> Array:
    """Return ``left @ right`` in C order. Both are float32 or both float64; other dtypes become float64.

    Contiguous matrices, in either order, are not copied. One of them may be sparse, in float64.
    """
    if is_sparse(left) or is_sparse(right):
        return np.asarray(left @ right)
    # numpy's BLAS releases the interpreter's lock.
    if one_thread or 0 in left.shape or 0 in right.shape:
        return left @ right
    single = left.dtype == right.dtype == np.float32
    gemm = blas.sgemm if single else blas.dgemm
    # The transpose of the product, in Fortran order, is the product in C order.
    (first, turned), (second, turned_too) = _fortran(right.T), _fortran(left.T)
    return gemm(1.0, first, second, trans_a=turned, trans_b=turned_too).T  # type: ignore[no-any-return]


# Longest row of a matrix, in bytes, that several threads of OpenBLAS update (12000 float64); see `update_among`.
THREADED_BYTES = 96_000


def among(rows: Array, out: Array, *, one_thread: bool = False) -> Array:
    """Return `out`, in Fortran order, with at least the upper triangle of ``rows @ rows.T``, both float32.

    The cost is that of a symmetric update.
    """
    if one_thread:
        np.dot(rows, rows.T, out=out.T)
    else:
        update_among(rows, out, beta=0.0)
    return out


def update_among(rows: Array, out: Array, *, beta: float = 1.0) -> None:
    """Set the upper triangle of `out`, in Fortran order, to ``beta * out + rows @ rows.T``; dtypes are equal.

    More than 12000 float64 rows are multiplied by one thread: two threads of OpenBLAS 0.3.30 write beyond their
    buffers, and the process dies (seen from 16000 float64 and 30000 float32 rows on).
    """
    syrk = blas.ssyrk if out.dtype == np.float32 else blas.dsyrk
    matrix, turned = _fortran(rows)
    with one_blas_thread() if len(rows) * out.itemsize > THREADED_BYTES else nullcontext():
        syrk(1.0, matrix, trans=int(turned), beta=beta, c=out, overwrite_c=1)


def _fortran(matrix: Array) -> tuple[Array, bool]:
    """Return a matrix that BLAS reads without a copy, and whether it is the transpose."""
    return (matrix.T, True) if matrix.flags.c_contiguous and not matrix.flags.f_contiguous else (matrix, False)
