"""What every method returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...accumulators import Accumulator
from ...planning import Plan

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


DOUBLE_BELOW = 1e-3  # components with less of the first variance are stored as float64, whatever the products were


@dataclass(frozen=True)
class Decomposition:
    r"""Components of a collection, in the features the analysis saw.

    Attributes
    ----------
    mean : ndarray of shape (p,)
    components : ndarray of shape (k, p) or None
        Orthonormal rows, by descending variance; None where they were written as they were made.
    explained_variance : ndarray of shape (k,)
        Divided by the total weight less 1, which is n - 1 without weights.
    error_bound, angle_bound : ndarray of shape (k,)
        Bound on |C v - lambda v| / lambda; bound on the direction's angle in radians, NaN where unresolved.
    eigenvalues : ndarray or None
        All variances, descending, where known.
    total_variance : float
        Trace of the covariance.
    n_samples : int
        n, without samples of weight 0.
    total_weight : float
        Sum of the weights; n where none were given.
    exact : bool
        Whether the scatter was summed without any rounding.
    statistic : Accumulator or None
        What was accumulated, where samples can be added to it.
    passes : int or None
        Reads of the whole collection, where their number was not known beforehand.
    outside : float or None
        Bound on the largest variance of what the components leave, where it is not known.
    variance_bound : ndarray of shape (k,) or None
        Bound on the error of each variance, relative to it, where it is known to be less than `error_bound`.
    """

    mean: Float64
    components: Array | None
    explained_variance: Float64
    error_bound: Float64
    angle_bound: Float64
    eigenvalues: Float64 | None
    total_variance: float
    n_samples: int
    total_weight: float
    exact: bool
    statistic: Accumulator | None
    passes: int | None = None
    outside: float | None = None
    variance_bound: Float64 | None = None


def stored_dtype(values: Float64, plan: Plan) -> np.dtype[Any]:
    """The dtype that components of descending eigenvalues are stored in."""
    narrow = plan.request.precision != "double" and plan.problem.is_narrow
    return np.dtype(np.float32 if narrow and values[-1] >= DOUBLE_BELOW * values[0] else np.float64)


def one_span(left: object, right: object) -> None:
    """Merge what is folded in one span: there is never anything to merge."""
    raise AssertionError("two partials of one span")
