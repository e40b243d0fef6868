"""Product of the scatter matrix with a block, S Q = sum of (x - m)(x - m)^T Q, p x l, of a stream of samples.

S is not formed: rows are centred on a given point and multiplied twice, X^T (X Q), while they are in memory, in
one read. In single precision the products of a piece are float32 and are added up in float64.
"""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from scipy.linalg import blas

from ..arrays import Array, Float64, rows_of
from ..execution.panels import owned
from ..planning.memory import PROBES_OF_PASS
from .centering import split
from .finite import not_finite
from .moments import Moments
from .probes import Probes
from .protocol import Accumulator


class ScatterBlock(Moments, Accumulator):
    """Accumulate S Q over the samples, one block of rows after another.

    Parameters
    ----------
    vectors : ndarray of shape (p, l)
        Q; rounded to the precision of products.
    centre : ndarray of shape (p,)
        Point near the mean that is subtracted from every row.
    offset : ndarray of shape (p,), optional
        Exact mean less the centre, which has digits that a float64 mean loses where the centre is large. Without it,
        the offset is measured, together with the trace of S and products with random probes that bound errors.
    precision : {"single", "double"}
        Precision of products; sums are always float64.
    product_rows : int
        Largest number of rows multiplied at a time.
    seed : int
        Seed of the probe directions.
    device : str, default=""
        Device that multiplies (`streampca.accumulators.products`), by default the processor.

    Attributes
    ----------
    vectors : ndarray of shape (p, l)
        Q in the precision of products.

    Notes
    -----
    Cost: 4 n p l flops.
    """

    kind = "scatter_block"
    axis: Literal["samples", "features"] = "samples"
    constants = ("vectors",)

    def __init__(
        self,
        vectors: Array,
        centre: Float64,
        *,
        offset: Float64 | None = None,
        precision: str = "single",
        product_rows: int = 512,
        seed: int = 0,
        device: str = "",
    ) -> None:
        p, width = vectors.shape
        probes = Probes(p, seed, precision, one_thread=True, columns=PROBES_OF_PASS) if offset is None else None
        super().__init__(p, precision, product_rows, probes, one_thread=True, device=device)
        # One product multiplies both Q and W. They are always in C order, as the bits of products depend on the order.
        self._multiplied: Array = np.empty((p, width + (0 if probes is None else PROBES_OF_PASS)), self._dtype)
        self.seed, self.vectors = seed, self._multiplied[:, :width]
        self.vectors[...] = vectors
        if probes is not None:
            self._multiplied[:, width:] = probes.working
        self._multiplied.flags.writeable = False  # a device keeps it
        self._parts = split(centre, self._dtype)
        # The centre as rounded to the parts that are subtracted; the offset accounts for the difference.
        self._centre = self._parts[0].astype(np.float64) + self._parts[1]
        self._offset = None if offset is None else offset + (centre - self._centre)
        self._sum = self._products.sum(np.zeros((width, p)))

    def _absorb_block(self, block: Array, roots: Float64 | None, at: int) -> None:
        for start in range(0, block.shape[0], self.product_rows):
            rows = slice(start, start + self.product_rows)
            self._absorb_piece(rows_of(block, rows), None if roots is None else roots[rows], at + start)

    def _absorb_piece(self, piece: Array, roots: Float64 | None, at: int) -> None:
        """Absorb rows that are multiplied at once, given the square roots of their weights."""
        centred = self._centred(piece, self._parts, roots)
        if not self._products.twice(centred, self._multiplied):
            raise not_finite(piece, at, self.precision)
        self._products.add(self._sum)
        if self._probes is not None:
            self._total += centred.sum(roots)
            self._squares += centred.sum_of_squares()
            # The last columns of the block are W, so the product with W is already there.
            product = self._products.pending(self.vectors.shape[1]).T
            self._probes.update(centred, piece, self._centre, roots, product)

    def absorb(self, other: Self) -> None:
        """Add the samples of another accumulator of the same Q about the same centre to this one.

        Raises
        ------
        ValueError
            If blocks or centres of the two differ.
        """
        same = self.seed == other.seed and np.array_equal(self.vectors, other.vectors)
        same = same and np.array_equal(self._centre, other._centre)
        if not same or (self._probes is None) != (other._probes is None):
            raise ValueError("products with other blocks, or about other centres, cannot be added")
        self._sum.values += other._sum.values
        self._absorb_moments(other)

    def release(self) -> None:
        """Free the working memory; `update` allocates it again."""
        self._products.release()

    @property
    def offset(self) -> Float64:
        """Mean less centre, d, shape (p,)."""
        return super().offset if self._offset is None else self._offset

    def offset_from(self, centre: Float64) -> Float64:
        """Return the mean less another centre that is near it, shape (p,), to more digits than `mean` has."""
        return (self._centre - centre) + self.offset

    @property
    def drift(self) -> float:
        """Increase of the trace by the difference of centre and mean: n |d|^2."""
        return self.weight * float(self.offset @ self.offset)

    def take(self) -> Float64:
        """Return S Q about the mean, (p, l) in Fortran order; uses up the accumulator."""
        self.release()
        # S about the mean is S about the centre less w d d^T.
        along = self.offset @ self.vectors.astype(np.float64, copy=False)
        return blas.dger(-self.weight, self.offset, along, a=self._sum.values.T, overwrite_a=1)  # type: ignore[no-any-return]

    def probes(self) -> tuple[Float64, Float64] | None:
        """Return S W about the mean and its measured rounding error, (p, 16) each, if the mean is measured."""
        return None if self._probes is None else (self.probe_products, self.probe_rounding)

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays; without `copy` the sum itself, to be stored but not written to."""
        arrays = {
            **self._moments_state(),
            "seed": np.array(self.seed),
            "vectors": self.vectors.copy(),
            "product": self._sum.values.copy() if copy else self._sum.values,
        }
        return arrays if self._offset is None else {**arrays, "offset": self._offset.copy()}

    @classmethod
    def from_state(
        cls, state: dict[str, Array], *, vectors: Array | None = None, copy: bool = True, device: str = ""
    ) -> Self:
        """Return the accumulator whose `state` this is; without `copy` it takes over the sum.

        `vectors` are used instead of those of the state, which can lack them.
        """
        new = cls(
            state["vectors"] if vectors is None else vectors,
            np.array(state["centre"]),
            offset=np.array(state["offset"]) if "offset" in state else None,
            precision="double" if state["double"] else "single",
            product_rows=int(state["product_rows"]),
            seed=int(state["seed"]),
            device=device,
        )
        new._restore_moments(state)
        new._sum.values = owned(state["product"], copy=copy)
        return new
