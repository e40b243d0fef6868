"""Leading eigenpairs of a matrix held in memory, by LAPACK.

All eigenvalues are needed, but few eigenvectors, whose number can depend on the eigenvalues. So the steps of LAPACK's
`dsyevr` are called one by one, and the matrix is reduced to tridiagonal form, which takes most of the time, only once:
`dsytrd`, all eigenvalues by `dsterf`, some eigenvectors by bisection and inverse iteration (`dstebz`, `dstein`),
transformed back by `dormqr`.

References
----------
Anderson and others (1999). LAPACK Users' Guide, third edition, section 2.4.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh, lapack

from ..arrays import Float64
from ..execution.threads import blas_threads_for
from .n_components import Wanted, count_components
from .signs import fix_signs
from .solution import Solution

FEW = 4  # inverse iteration computes at most one in so many eigenvectors: for more, `dsyevr` is faster
SAFE = 2.0**300  # entries between this and its inverse need no scaling: products cannot overflow
PART = 256  # rows or columns that are moved at a time
COLUMNS = 64  # vectors that are transformed back at a time
_BY_INDEX = 2  # dstebz: eigenvalues from one index to another
_OPTIONS = {"lower": False, "overwrite_a": True, "check_finite": False}


def solve_dense(
    fresh: Callable[[], Float64], wanted: Wanted, *, most: int, room: int | None = None, signed: bool = False
) -> Solution:
    """Compute all eigenvalues and the requested eigenvectors of a symmetric matrix, by default positive semi-definite.

    Parameters
    ----------
    fresh : callable
        Returns a new copy of the matrix, shape (p, p), Fortran order, upper triangle, which is overwritten. It is
        called again if more than a fourth of the eigenvectors are needed, so that one copy at a time is enough.
    wanted : int, float, Rule or None
        See `count_components`; a fraction is of the trace.
    most : int
        Largest possible number of eigenpairs, min(n - 1, p); the rest of the spectrum is rounding and dropped.
    room : int, optional
        Largest number of eigenvectors that fit in memory; fewer than requested are returned if they do not fit.
    signed : bool, default=False
        Whether eigenvalues can be negative. The spectrum then has all of them, the eigenpairs only those above
        rounding, and a fraction is of the sum of the latter.

    Returns
    -------
    Solution
        Solution with a `spectrum`. Negative eigenvalues, which are rounding unless `signed`, become zero.

    Notes
    -----
    Cost: a reduction to tridiagonal form, 4/3 p^3 flops, and 2 p^2 k for the vectors; two reductions where k exceeds
    p / 4. For the memory see `dense_bytes`.
    """
    matrix = fresh()
    with blas_threads_for(len(matrix)):
        total, p = float(np.trace(matrix)), len(matrix)
        reduced = _reduced(matrix)
        del matrix
        spectrum = reduced.eigenvalues()[::-1]
        positive = spectrum[:most] if signed else np.maximum(spectrum[:most], 0.0)
        if signed:
            positive = positive[positive > np.finfo(np.float64).eps * p * np.abs(spectrum).max()]
            total = float(positive.sum())
        else:
            spectrum = positive
        # Without enough eigenvalues for the request, all are returned.
        k = count_components(positive, total, wanted, complete=True) or len(positive)
        k = min(k, room or k)
        pairs = reduced.leading(k) if FEW * k <= p else None
        del reduced
        values, vectors = pairs or eigh(fresh(), subset_by_index=(p - k, p - 1), driver="evr", **_OPTIONS)
        if len(values) < k:  # dsyevr loses some of many equal eigenvalues; dsyev does not, and works in place as well
            values, vectors = (pairs[..., p - k :] for pairs in eigh(fresh(), driver="ev", **_OPTIONS))
        # LAPACK is backward stable: residuals are about the rounding of the largest eigenvalue.
        residuals = np.full(k, np.finfo(np.float64).eps * p**0.5 * np.abs(spectrum).max())
        return Solution(np.maximum(values[::-1], 0.0), fix_signs(vectors[:, ::-1]), residuals, spectrum)


class _Tridiagonal(NamedTuple):
    """Matrix reduced to tridiagonal form, Q T Q^T, and divided by a power of two.

    Attributes
    ----------
    reflectors : ndarray of shape (p, p)
        Householder vectors whose product is Q, below the first subdiagonal, Fortran order.
    factors : ndarray of shape (p - 1,)
        Scalar factors of the Householder vectors.
    diagonal, beside : ndarray of shape (p,) and (p - 1,)
        Diagonal and subdiagonal of T.
    scale : float
        Power of two.
    """

    reflectors: Float64
    factors: Float64
    diagonal: Float64
    beside: Float64
    scale: float

    def eigenvalues(self) -> Float64:
        """Return all eigenvalues, ascending, (p,)."""
        values = self.diagonal
        if len(self.beside):  # dsterf is not called for 1 x 1
            values, failed = lapack.dsterf(self.diagonal, self.beside)
            if failed:
                raise np.linalg.LinAlgError(f"dsterf: {failed} off-diagonal elements have not converged")
        return values * self.scale

    def leading(self, k: int) -> tuple[Float64, Float64] | None:
        """Return the k largest eigenvalues, ascending, and their vectors, (p, k); None if LAPACK does not find all."""
        p = len(self.diagonal)
        at = (_BY_INDEX, 0.0, 0.0, p - k + 1, p, 0.0, "B")
        count, values, blocks, splits, failed = lapack.dstebz(self.diagonal, self.beside, *at)
        if failed or count != k:
            return None
        vectors, failed = lapack.dstein(self.diagonal, self.beside, values[:k], blocks, splits)
        if failed:
            return None
        order = np.argsort(values[:k], kind="stable")  # dstebz sorts within the blocks of a decoupled matrix only
        for start in range(0, p, PART):
            vectors[start : start + PART] = vectors[start : start + PART, order]
        # Q does not change the first row, and its Householder vectors begin one row below the diagonal. Seen as a
        # matrix that starts one entry later in memory they begin on the diagonal, as dormqr requires, without a copy of
        # p x p.
        shifted = self.reflectors.T.reshape(-1)[1 : 1 + p * (p - 1)].reshape(p - 1, p).T
        for start in range(0, k, COLUMNS):
            block = np.asfortranarray(vectors[1:, start : start + COLUMNS])
            vectors[1:, start : start + COLUMNS], _, failed = lapack.dormqr(
                "L", "N", shifted, self.factors, block, 64 * block.shape[1], overwrite_c=True
            )
            if failed:
                return None
        return values[:k][order] * self.scale, vectors


def _reduced(matrix: Float64) -> _Tridiagonal:
    """Reduce a matrix, (p, p) in Fortran order, upper triangle, which is overwritten."""
    p = len(matrix)
    for start in range(0, p, PART):
        stop = start + PART
        part = matrix[start:stop, start:stop]
        part[...] = np.triu(part) + np.triu(part, 1).T
        # Fill the lower triangle, by parts, without a second matrix.
        matrix[stop:, start:stop] = matrix[start:stop, stop:].T
    largest, scale = max(float(matrix.max()), -float(matrix.min())), 1.0
    if largest > 0 and not 1 / SAFE < largest < SAFE:
        # A power of two rounds nothing.
        scale = 2.0 ** np.frexp(largest)[1]
        matrix /= scale
    reflectors, diagonal, beside, factors, _ = lapack.dsytrd(matrix, lower=True, lwork=64 * p, overwrite_a=True)
    return _Tridiagonal(reflectors, factors, diagonal, beside, scale)
