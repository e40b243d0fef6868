"""Products S W with a few random directions, beside a statistic S and separate from it: what error bounds are made of.

For a claimed eigenpair (v, theta) of S the numbers Y^T v - theta W^T v, with Y = S W, sketch its true residual,
whatever went wrong on the way to it (`streampca.solve.certificate`). The sketch is only as good as Y, so the rounding
of its own float32 products is measured in float64 on a sample of the rows and handed on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..products import times

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

COUNT = 8  # columns of W: bounds about 12 times the truth at a failure probability of 1e-6
CHECK_ROWS = 128  # rows of a piece whose products are repeated in float64 ...
CHECK_FEATURES = 128  # ... or features, where these are what tiles are cut along ...
CHECK_EVERY = 16  # ... in one piece of so many: about 1 % of the flops
DRAWN = 2**12  # rows of W drawn at a time, each time by a generator of their own: any part can be drawn alone
_STREAM = 0x9E3779B9  # keeps these directions apart from any start block drawn with the same seed


class Directions:
    """W, Gaussian, one row a feature and 8 columns, drawn again wherever it is wanted.

    Parameters
    ----------
    seed : int
        Of the draw; the same seed gives the same rows, whichever are asked for.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._drawn: tuple[int, Array] | None = None

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows of W for features `start` to `stop`, (stop - start, 8)."""
        parts = []
        for number in range(start // DRAWN, -(-stop // DRAWN)):
            first, last = max(start - number * DRAWN, 0), min(stop - number * DRAWN, DRAWN)
            parts.append(self._draw(number, last if first == 0 else DRAWN)[first:last])
        return np.concatenate(parts) if parts else np.empty((0, COUNT), np.float32)

    def _draw(self, number: int, count: int) -> Array:
        """At least so many rows of a run; who asks for more than its beginning will ask for the rest."""
        if self._drawn is None or self._drawn[0] != number or len(self._drawn[1]) < count:
            generator = np.random.default_rng([_STREAM, self.seed, number])
            self._drawn = number, generator.standard_normal((count, COUNT), dtype=np.float32)
        return self._drawn[1]


def probe_directions(n_features: int, seed: int) -> Float64:
    """Return W, (n_features, 8) Gaussian, rounded to float32 so that both precisions multiply the same numbers."""
    return Directions(seed).rows(0, n_features).astype(np.float64)


class Probes:
    """The running sum of x (x^T W) over centred rows x, and the rounding error of it.

    Attributes
    ----------
    products : ndarray of shape (n_features, 8)
        Y about the centre the rows were given with.
    rounding : ndarray of shape (n_features, 8)
        Sum of (float32 product - float64 product) over the checked rows.
    checked : float
        Weight of those rows.
    """

    def __init__(self, n_features: int, seed: int, precision: str, *, in_lane: bool = False) -> None:
        self.directions = np.asfortranarray(probe_directions(n_features, seed))
        self._working = self.directions if precision == "double" else self.directions.astype(np.float32)
        self.products: Float64 = np.zeros((n_features, COUNT))
        self.rounding: Float64 = np.zeros((n_features, COUNT))
        self.checked = 0.0
        self._pieces, self._in_lane = 0, in_lane

    def update(self, centred: Array, stored: Array, centre: Float64, roots: Float64 | None = None) -> None:
        """Absorb a piece: its centred rows in the working precision, the same rows as stored, and their centre.

        The centred rows have been multiplied by `roots`, the square roots of their weights.
        """
        self.products += self._multiply(centred)
        if centred.dtype != np.float64 and self._pieces % CHECK_EVERY == 0:
            exact = stored[:CHECK_ROWS] - centre
            if roots is not None:
                exact *= roots[:CHECK_ROWS, None]
            self.rounding += self._multiply(centred[:CHECK_ROWS]) - self._multiply(exact)
            self.checked += len(exact) if roots is None else float(np.sum(roots[:CHECK_ROWS] ** 2))
        self._pieces += 1

    def _multiply(self, rows: Array) -> Array:
        """X^T (X W) in the precision of the rows.

        By scipy's BLAS, as every product beside a symmetric update: numpy brings a second BLAS, and threads of the two
        spinning for each other's cores made this loop 3 times slower (benchmarks/choices.py).
        """
        directions = self.directions if rows.dtype == np.float64 else self._working
        along = times(rows, directions, in_lane=self._in_lane)
        return times(rows.T, along, in_lane=self._in_lane)

    def recentre(self, weight: float, total: Float64, shift: Float64) -> None:
        """Move the centre by `shift`, given the weight and the sum of the centred rows."""
        along_shift = shift @ self.directions
        self.products -= np.outer(total - weight * shift, along_shift) + np.outer(shift, total @ self.directions)

    def absorb(self, other: Probes) -> None:
        """Add the sums of another set of rows about the same centre."""
        self.products += other.products
        self.rounding += other.rounding
        self.checked += other.checked
        self._pieces += other._pieces

    def state(self) -> dict[str, Array]:
        """Plain arrays; the directions are made again from the seed."""
        return {
            "probe_products": self.products.copy(),
            "probe_rounding": self.rounding.copy(),
            "probe_checked": np.array(self.checked),
            "probe_pieces": np.array(self._pieces),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Take over what `state` wrote."""
        self.products = np.array(state["probe_products"], dtype=np.float64)
        self.rounding = np.array(state["probe_rounding"], dtype=np.float64)
        self.checked, self._pieces = float(state["probe_checked"]), int(state["probe_pieces"])
