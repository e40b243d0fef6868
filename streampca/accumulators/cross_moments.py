"""`CrossMoments`: sums over pairs of mapped rows that give the Hilbert-Schmidt independence criterion.

If the inner products of mapped rows are the kernels' values, tr(K H L H) is the squared norm of their cross-scatter.
The unbiased estimate also needs the diagonals of the centred kernel matrices. They are squared distances from the
means, and their contribution follows from the moments accumulated here.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from ..arrays import Array, Float64
from .cross_scatter import CrossScatter
from .kernel_sums import Estimates
from .plain_state import add_sums, as_arrays, restore_sums, sums_of

SUMS = ("squares", "product", "along", "other_along")
CROSS = "cross_"


class CrossMoments:
    """Accumulate the cross-scatter of pairs of rows x and y, and moments of a = |x - c|^2 and b = |y - d|^2.

    Parameters
    ----------
    centre, other_centre : ndarray of shape (p,) and (l,)
        Points c and d near the means; the same in all parts that are merged.

    Attributes
    ----------
    cross : CrossScatter
        Cross-scatter of the rows less these points.
    squares : ndarray of shape (2,)
        Sums of a and of b.
    product : float
        Sum of a b.
    along : ndarray of shape (l,)
        Sum of a (y - d).
    other_along : ndarray of shape (p,)
        Sum of b (x - c).

    Notes
    -----
    Cost: 2 n p l flops. Memory: that of the cross-scatter, and two copies of the rows that are added.
    """

    def __init__(self, centre: Float64, other_centre: Float64) -> None:
        self.centres = centre, other_centre
        self.cross = CrossScatter(len(centre), len(other_centre))
        self.squares, self.product = np.zeros(2), 0.0
        self.along, self.other_along = np.zeros(len(other_centre)), np.zeros(len(centre))

    def update(self, rows: Float64, others: Float64, *, at: int = 0) -> None:
        """Absorb finite rows x, shape (rows, p), and y, (rows, l)."""
        x, y = rows - self.centres[0], others - self.centres[1]
        self.cross.update(x, y, at=at)
        a, b = np.einsum("ij,ij->i", x, x), np.einsum("ij,ij->i", y, y)
        self.squares += a.sum(), b.sum()
        self.product += float(a @ b)
        self.along += a @ y
        self.other_along += b @ x

    def absorb(self, other: Self) -> None:
        """Add the pairs of another with the same centres."""
        self.cross.absorb(other.cross)
        add_sums(self, other, SUMS)

    def estimates(self) -> Estimates:
        """Return both estimates of the criterion, for the kernels that inner products of the rows give."""
        n, products = self.cross.n_samples, self.cross.products
        u, v = self.cross.mean, self.cross.other_mean  # means of rows less the centres
        # tr(K H L H), by the kernel trick on both sides.
        norm, (a, b) = float(np.vdot(products, products)), self.squares
        apart, other_apart = float(u @ u), float(v @ v)
        # Product of the sums of |x - mean|^2 and |y - mean|^2, and sum of their products, from moments about the
        # centres.
        traces = (a - n * apart) * (b - n * other_apart)
        diagonal = self.product + other_apart * a + apart * b + n * apart * other_apart
        diagonal += 4 * float(u @ products @ v) - 2 * float(v @ self.along + u @ self.other_along)
        apart = traces / ((n - 1) * (n - 2)) - n / (n - 2) * diagonal
        return Estimates(norm / (n - 1) ** 2, (norm + apart) / (n * (n - 3)))

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return sums and centres as plain arrays."""
        centres = as_arrays({"centre": self.centres[0], "other_centre": self.centres[1]}, copy=copy)
        return centres | sums_of(self, SUMS, copy=copy) | as_arrays(self.cross.state(copy=copy), CROSS)

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> Self:
        """Return the moments whose `state` this is."""
        new = cls(np.array(state["centre"]), np.array(state["other_centre"]))
        cross = {name.removeprefix(CROSS): array for name, array in state.items() if name.startswith(CROSS)}
        new.cross = CrossScatter.from_state(cross)
        restore_sums(new, state, SUMS)
        return new
