"""Products S W of a statistic with a few random directions, computed apart from S, from which errors are bounded.

For a claimed eigenpair (v, theta) of S the numbers Y^T v - theta W^T v, with Y = S W, sketch its true residual,
whatever went wrong in computing it (`streampca.eigensolvers.error_bounds`). The sketch is only as accurate as Y, so the
rounding of its float32 products is measured in float64 on a sample of the rows. Where S is applied to a block, W is
multiplied as further columns of the block, in the same product.
"""

from __future__ import annotations

from copy import copy

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..planning.memory import CHECK_ROWS, PROBES, check_rows
from .plain_state import add_sums, restore_sums, sums_of
from .products import Block, MemoryBlock

SUMS = ("products", "rounding", "checked", "pieces")
CHECK_EVERY = 16  # rounding is measured in one of so many pieces: about 1 % of the flops
DRAWN = 2**12  # rows of W drawn at a time, by a separate generator each: any part can be drawn alone
_STREAM = 0x9E3779B9  # separates these directions from a start block drawn with the same seed


class Directions:
    """Gaussian directions W, a row for each feature and a few columns, drawn again wherever they are needed.

    Parameters
    ----------
    seed : int
        Seed of the draw; the same seed gives the same rows, in whatever ranges they are requested.
    columns : int, default=8
        Number of directions.
    """

    def __init__(self, seed: int, columns: int = PROBES) -> None:
        self.seed, self.columns = seed, columns
        self._drawn: tuple[int, Array] | None = None

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Return rows of W for features `start` to `stop`, (stop - start, columns)."""
        parts = []
        # Runs are drawn one by one, so that a range needs no rows of other runs.
        for number in range(start // DRAWN, -(-stop // DRAWN)):
            first, last = max(start - number * DRAWN, 0), min(stop - number * DRAWN, DRAWN)
            count = last if first == 0 else DRAWN
            if self._drawn is None or self._drawn[0] != number or len(self._drawn[1]) < count:
                self._drawn = number, self._draw(number, count)  # kept for the next call
            parts.append(self._drawn[1][first:last])
        return np.concatenate(parts) if parts else np.empty((0, self.columns), np.float32)

    def _draw(self, number: int, count: int) -> npt.NDArray[np.float32]:
        """Draw the first rows of a run; columns in groups by separate generators, so that fewer are the first ones."""
        groups = []
        for first in range(0, self.columns, PROBES):
            key = [_STREAM, self.seed, number] + ([first] if first else [])
            drawn = np.random.default_rng(key).standard_normal((count, PROBES), dtype=np.float32)
            groups.append(drawn[:, : self.columns - first])
        return groups[0] if len(groups) == 1 else np.concatenate(groups, axis=1)


def probe_directions(n_features: int, seed: int, columns: int = PROBES) -> Float64:
    """Return W, (n_features, columns) Gaussian, rounded to float32: both precisions multiply the same numbers."""
    return Directions(seed, columns).rows(0, n_features).astype(np.float64)


class Probes:
    """Running sum of x (x^T W) over centred rows x, and its rounding error.

    Attributes
    ----------
    working : ndarray of shape (n_features, q)
        W in the working precision.
    products : ndarray of shape (n_features, q)
        Y about the centre of the rows.
    rounding : ndarray of shape (n_features, q)
        Sum of (float32 product - float64 product) over the checked rows.
    checked : float
        Weight of the checked rows.
    pieces : int
        Updates.
    """

    def __init__(
        self, n_features: int, seed: int, precision: str, *, one_thread: bool = False, columns: int = PROBES
    ) -> None:
        self.directions = np.asfortranarray(probe_directions(n_features, seed, columns))
        self.working = self.directions if precision == "double" else self.directions.astype(np.float32)
        self.directions.flags.writeable = self.working.flags.writeable = False  # a device keeps them
        self.products: Float64 = np.zeros((n_features, columns))
        self.rounding: Float64 = np.zeros((n_features, columns))
        self.checked = 0.0
        self.pieces, self._one_thread = 0, one_thread

    def update(
        self,
        centred: Block,
        stored: Array,
        centre: Float64,
        roots: Float64 | None = None,
        product: Array | None = None,
    ) -> None:
        """Absorb a piece, given its centred rows in the working precision, the rows as stored, and their centre.

        The centred rows are already multiplied by `roots`, the square roots of their weights. Their product with W is
        computed here unless it is given.
        """
        self.products += self.multiply(centred) if product is None else product
        if centred.dtype != np.float64 and self.pieces % CHECK_EVERY == 0:
            # Compare with float64 products of the same rows, by small parts that need little memory.
            count, step = min(CHECK_ROWS, len(stored)), check_rows(stored.shape[1])
            for rows in (slice(start, min(start + step, count)) for start in range(0, count, step)):
                exact = stored[rows] - centre
                if roots is not None:
                    exact *= roots[rows, None]
                product = self.multiply(MemoryBlock(exact, one_thread=self._one_thread))
                self.rounding += np.subtract(self.multiply(centred[rows]), product, out=product)
            self.checked += count if roots is None else float(np.sum(roots[:count] ** 2))
        self.pieces += 1

    def multiply(self, rows: Block) -> Array:
        """Return X^T (X W), (n_features, q), in the precision of the rows.

        The product uses scipy's BLAS, as the symmetric update does. Threads of numpy's BLAS would compete with it for
        the cores, which made this loop 3 times slower (benchmarks/choices.py).
        """
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the product of the rows
            return rows.twice(self.directions if rows.dtype == np.float64 else self.working)

    def recentre(self, weight: float, total: Float64, shift: Float64) -> None:
        """Move the centre by `shift`, given the weight and the sum of the centred rows."""
        # The terms t d^T + d t^T - w d d^T of a moved centre (see `Scatter._shift`), times W.
        along_shift = shift @ self.directions
        self.products -= np.outer(total - weight * shift, along_shift) + np.outer(shift, total @ self.directions)

    def absorb(self, other: Probes) -> None:
        """Add the sums of another set of rows about the same centre, of as many directions as both have."""
        columns = min(self.directions.shape[1], other.directions.shape[1])
        add_sums(self.narrow(columns), other.first(columns), SUMS)

    def narrow(self, columns: int) -> Probes:
        """Drop all directions but the first ones; return self."""
        if columns < self.directions.shape[1]:
            self.directions, self.working = self.directions[:, :columns], self.working[:, :columns]
            self.products, self.rounding = self.products[:, :columns].copy(), self.rounding[:, :columns].copy()
        return self

    def first(self, columns: int) -> Probes:
        """Return these sums with the first directions only; unchanged, but not a copy where these are all."""
        return self if columns == self.directions.shape[1] else copy(self).narrow(columns)

    def discount(self, factor: float) -> None:
        """Multiply the weights of all rows so far by a factor."""
        self.products *= factor
        self.rounding *= factor
        self.checked *= factor

    def state(self) -> dict[str, Array]:
        """Return the sums as plain arrays; directions follow from the seed."""
        return sums_of(self, SUMS, "probe_", copy=True)

    def restore(self, state: dict[str, Array]) -> None:
        """Restore the sums from a state."""
        restore_sums(self, state, SUMS, "probe_")
