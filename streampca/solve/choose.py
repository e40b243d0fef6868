"""How many components: an integer, a fraction of the variance, or all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

Wanted = int | float | None


def count_components(values: Float64, total: float, wanted: Wanted) -> int | None:
    """Return the number of leading components `wanted` asks for, or None when `values` do not reach it yet.

    Parameters
    ----------
    values : ndarray of shape (m,)
        Leading eigenvalues, descending: all of them, or as many as are known.
    total : float
        Sum of all eigenvalues.
    wanted : int, float or None
        A number of components; or a fraction f, 0 < f < 1: the least k whose values sum to at least f of the total;
        or None: all values given.
    """
    if wanted is None:
        return len(values)
    if isinstance(wanted, int):
        return wanted if wanted <= len(values) else None
    reached = np.flatnonzero(np.cumsum(values) >= wanted * total)
    return int(reached[0]) + 1 if len(reached) else None
