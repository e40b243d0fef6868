"""Components that are separated from their neighbours by more than the error of computation, or of sampling.

If the residuals of neighbouring pairs leave no gap, neither direction is known, but the subspace of both is: within
|R|_F / gap, for R the residuals of the group and gap its distance from the other eigenvalues (Davis and Kahan, 1970).

Sampling errors are another matter: n independent samples determine a variance lambda up to about lambda sqrt(2/n). By
North's rule of thumb, a component with a neighbour within this distance is a mixture of the two, and other samples
would give another mixture (North, Bell, Cahalan, Moeng, Monthly Weather Review 110, 1982).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arrays import Float64
from .error_bounds import lengths


@dataclass(frozen=True)
class Cluster:
    """Neighbouring components that are only defined together.

    Attributes
    ----------
    first, last : int
        First and last component, counted from 0.
    angle : float
        Bound on the largest angle between their subspace and the true one, radians; NaN if that is not resolved either,
        for example if the neighbour of the last component is unknown.
    """

    first: int
    last: int
    angle: float


def clusters(values: Float64, residual: Float64, next_value: float | None) -> list[Cluster]:
    """Return groups of two or more neighbours that residuals do not separate, in order.

    Two neighbours are in a group if the gap between them does not resolve the direction of either; see
    `streampca.eigensolvers.error_bounds.angle_bounds`.

    Parameters
    ----------
    values, residual : ndarray of shape (k,)
        Claimed eigenvalues, descending, and the bounds on their residuals.
    next_value : float or None
        Upper bound on eigenvalue k + 1, if known.
    """
    gaps = values[:-1] - residual[:-1] - values[1:] - residual[1:]
    apart = np.flatnonzero(gaps > np.maximum(residual[:-1], residual[1:]))
    firsts, lasts = [0, *(apart + 1).tolist()], [*apart.tolist(), len(values) - 1]
    below = np.append(gaps, -np.inf if next_value is None else values[-1] - residual[-1] - next_value)
    groups = []
    for first, last in zip(firsts, lasts, strict=True):
        if last > first:
            gap = float(min(below[first - 1] if first else np.inf, below[last]))
            joint = float(lengths(residual[first : last + 1, None])[0])
            angle = float(np.arcsin(joint / gap)) if 0 <= joint < gap else np.nan
            groups.append(Cluster(first, last, angle))
    return groups


def unseparated(values: Float64, n_samples: float, next_value: float | None) -> npt.NDArray[np.bool_]:
    """Return which components have a neighbour within lambda sqrt(2/n), and are mixed with it by North's rule of thumb.

    Parameters
    ----------
    values : ndarray of shape (k,)
        Variances, descending.
    n_samples : float
        Number of independent samples.
    next_value : float or None
        Variance k + 1, if known; otherwise the last is compared with the one before it only.
    """
    spacing = np.append(values[:-1] - values[1:], np.inf if next_value is None else values[-1] - next_value)
    nearest = np.minimum(np.append(np.inf, spacing[:-1]), spacing)
    return np.asarray(nearest <= values * np.sqrt(2 / n_samples))
