"""Components that stand alone: apart from their neighbours by more than the error of computing, or of sampling.

Where the residuals of neighbouring pairs leave no gap, neither direction is known, but the subspace of both is: within
|R|_F / gap, for R the residuals of the group and gap its distance from the other eigenvalues (Davis and Kahan, 1970).

Sampling is another matter: n independent samples give a variance lambda to about lambda sqrt(2/n). North's rule of
thumb: a component whose neighbour is no further off than that is a mixture of the two, and other samples would give
another (North, Bell, Cahalan, Moeng, Monthly Weather Review 110, 1982).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .error_bounds import lengths

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cluster:
    """Neighbouring components that are only defined together.

    Attributes
    ----------
    first, last : int
        The components, counted from 0; `last` is one of them.
    angle : float
        Bound on the largest angle between their subspace and the true one, radians; NaN where that is not resolved
        either, as where the neighbour of the last is not known.
    """

    first: int
    last: int
    angle: float


def clusters(values: Float64, residual: Float64, next_value: float | None) -> list[Cluster]:
    """Groups of two and more neighbours that residuals do not tell apart, in order.

    Two neighbours are in a group where the gap between them leaves the direction of either unresolved; see
    `streampca.eigensolvers.error_bounds.angle_bounds`.

    Parameters
    ----------
    values, residual : ndarray of shape (k,)
        Claimed eigenvalues, descending, and their residuals' bounds.
    next_value : float or None
        What eigenvalue k + 1 is at most, where that is known.
    """
    gaps = values[:-1] - residual[:-1] - values[1:] - residual[1:]
    apart = np.flatnonzero(gaps > np.maximum(residual[:-1], residual[1:]))
    firsts, lasts = [0, *(apart + 1).tolist()], [*apart.tolist(), len(values) - 1]
    below = np.append(gaps, -np.inf if next_value is None else values[-1] - residual[-1] - next_value)
    found = []
    for first, last in zip(firsts, lasts, strict=True):
        if last > first:
            gap = min(below[first - 1] if first else np.inf, below[last])
            found.append(Cluster(first, last, _angle(float(lengths(residual[first : last + 1, None])[0]), float(gap))))
    return found


def unseparated(values: Float64, n_samples: float, next_value: float | None) -> npt.NDArray[np.bool_]:
    """Find components that North's rule of thumb calls mixed with a neighbour: those within lambda sqrt(2/n) of one.

    Parameters
    ----------
    values : ndarray of shape (k,)
        Variances, descending.
    n_samples : float
        How many independent samples they come from.
    next_value : float or None
        Variance k + 1, where it is known; else the last is held against the one before it alone.
    """
    spacing = np.append(values[:-1] - values[1:], np.inf if next_value is None else values[-1] - next_value)
    nearest = np.minimum(np.append(np.inf, spacing[:-1]), spacing)
    return np.asarray(nearest <= values * np.sqrt(2 / n_samples))


def _angle(residual: float, gap: float) -> float:
    """Arc sine of residual over gap; NaN where that says nothing."""
    return float(np.arcsin(residual / gap)) if 0 <= residual < gap else np.nan
