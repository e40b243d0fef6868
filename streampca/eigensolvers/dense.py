"""Leading eigenpairs of a matrix held in memory, by LAPACK."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from .n_components import Wanted, count_components
from .signs import fix_signs
from .solution import Solution

Float64 = npt.NDArray[np.float64]


def solve_dense(
    fresh: Callable[[], Float64], wanted: Wanted, *, most: int, room: int | None = None, signed: bool = False
) -> Solution:
    """Find all eigenvalues, and the eigenvectors asked for, of a symmetric matrix, positive semi-definite by default.

    Parameters
    ----------
    fresh : callable
        Returns the matrix anew, shape (p, p), Fortran order, upper triangle; it is overwritten. Called twice, so that
        one copy at a time is enough.
    wanted : int, float, Rule or None
        See `count_components`; a fraction is of the trace.
    most : int
        Most eigenpairs there can be, min(n - 1, p); the rest of the spectrum is rounding and dropped.
    room : int, optional
        Most eigenvectors there is memory for; fewer are returned than asked for where they would not fit.
    signed : bool, default=False
        Whether eigenvalues may be negative. The spectrum then has all of them, the eigenpairs only those above
        rounding, of whose sum a fraction is taken.

    Returns
    -------
    Solution
        With `spectrum`. Negative eigenvalues, which are rounding unless `signed`, are raised to zero.

    Notes
    -----
    Cost: two reductions to tridiagonal form, 8/3 p^3 flops, and 2 p^2 k for the vectors; memory see `dense_bytes`.
    """
    matrix = fresh()
    total, p = float(np.trace(matrix)), len(matrix)
    options = {"lower": False, "overwrite_a": True, "check_finite": False, "driver": "evr"}
    spectrum = eigh(matrix, eigvals_only=True, **options)[::-1]
    del matrix
    positive = spectrum[:most] if signed else np.maximum(spectrum[:most], 0.0)
    if signed:
        positive = positive[positive > np.finfo(np.float64).eps * p * np.abs(spectrum).max()]
        total = float(positive.sum())
    else:
        spectrum = positive
    k = count_components(positive, total, wanted, complete=True) or len(positive)
    k = min(k, room or k)
    values, vectors = eigh(fresh(), subset_by_index=(p - k, p - 1), **options)
    if len(values) < k:  # dsyevr loses some of many equal eigenvalues; dsyev does not, and works in place too
        values, vectors = (found[..., p - k :] for found in eigh(fresh(), **options | {"driver": "ev"}))
    residuals = np.full(k, np.finfo(np.float64).eps * p**0.5 * np.abs(spectrum).max())
    return Solution(np.maximum(values[::-1], 0.0), fix_signs(vectors[:, ::-1]), residuals, spectrum)
