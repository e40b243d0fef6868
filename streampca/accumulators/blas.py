"""Products of matrices by one BLAS at a time: numpy brings one, scipy another.

Alternating between the two made loops 3 to 5 times slower (benchmarks/choices.py), as the threads of one wait,
spinning, on the cores that the other wants. What multiplies block by block goes through scipy's, which adds to a matrix
in place; what runs in threads of a thread each through numpy's, which lets other threads of Python go on meanwhile.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from ..execution.threads import one_blas_thread

Array = npt.NDArray[Any]


def times(left: Array, right: Array, *, one_thread: bool = False) -> Array:
    """``left @ right`` in C order, of two matrices both float32 or both float64; others become float64.

    Contiguous matrices, in either order, are not copied.
    """
    if one_thread or 0 in left.shape or 0 in right.shape:
        return left @ right
    single = left.dtype == right.dtype == np.float32
    gemm = blas.sgemm if single else blas.dgemm
    # The transpose of the product, in Fortran order, is the product in C order.
    (first, turned), (second, turned_too) = _fortran(right.T), _fortran(left.T)
    return gemm(1.0, first, second, trans_a=turned, trans_b=turned_too).T  # type: ignore[no-any-return]


THREADED_BYTES = 96_000  # of a row of the matrix that threads of OpenBLAS may update together (12000 float64)


def among(rows: Array, out: Array | None, *, one_thread: bool = False) -> Array:
    """``rows @ rows.T``, at least the upper triangle of it, float32, into `out` where it has the right shape.

    In Fortran order; the cost is that of a symmetric update.
    """
    count = len(rows)
    if out is None or len(out) != count:
        out = np.zeros((count, count), np.float32, order="F")
    if one_thread:
        np.dot(rows, rows.T, out=out.T)
    else:
        update_among(rows, out, beta=0.0)
    return out


def symmetric_product(
    rows: Array, total: Array, product: Array | None, *, one_thread: bool = False
) -> tuple[Array | None, Array]:
    """Multiply rows with one another: float64 is added to the total at once, float32 goes to `product`.

    Returns
    -------
    product : ndarray or None
        See `among`; None for float64.
    diagonal : ndarray of shape (rows,)
        Diagonal of the product.
    """
    if rows.dtype == np.float64:
        before = total.diagonal().copy()
        update_among(rows, total)
        return None, total.diagonal() - before
    product = among(rows, product, one_thread=one_thread)
    return product, product.diagonal()


def update_among(rows: Array, out: Array, *, beta: float = 1.0) -> None:
    """Make `out`, in Fortran order, ``beta * out + rows @ rows.T`` in its upper triangle; all float32 or all float64.

    One thread multiplies very many rows: two of OpenBLAS 0.3.30 write beyond their buffers, and the process dies (seen
    from 16000 float64 and 30000 float32 rows on).
    """
    syrk = blas.ssyrk if out.dtype == np.float32 else blas.dsyrk
    matrix, turned = _fortran(rows)
    with one_blas_thread() if len(rows) * out.itemsize > THREADED_BYTES else nullcontext():
        syrk(1.0, matrix, trans=int(turned), beta=beta, c=out, overwrite_c=1)


def _fortran(matrix: Array) -> tuple[Array, bool]:
    """A matrix as BLAS takes it without a copy: in Fortran order, or transposed."""
    return (matrix.T, True) if matrix.flags.c_contiguous and not matrix.flags.f_contiguous else (matrix, False)
