"""Sums over samples less a centre, which give the mean, the total variance and probes about the mean."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from ..arrays import Array, Float64, is_sparse
from .finite import NotFiniteError
from .probes import Probes
from .products import Block, Products, products_on

FIRST_ROWS = 256  # rows of working memory that are allocated at least, as later pieces can be longer


class Moments(abc.ABC):
    """Number, weight, mean and squares of samples that are absorbed in blocks of rows.

    Parameters
    ----------
    n_features : int
        p.
    precision : {"single", "double"}
        Precision of products.
    product_rows : int
        Largest number of rows multiplied at a time.
    probes : Probes or None
        W and its products; None to measure none.
    one_thread : bool, default=False
        Use one BLAS thread, because other threads compute at the same time (`streampca.execution.threads`).
    device : str, default=""
        Device that multiplies (`products.products_on`), by default the processor.

    Attributes
    ----------
    n_samples : int
        Number of rows absorbed, except those of weight 0.
    weight : float
        Sum of the weights of these rows; n_samples if none were given.
    measured : Probes
        W and its products; missing where none are measured.
    """

    measured: Probes

    def __init__(
        self,
        n_features: int,
        precision: str,
        product_rows: int,
        probes: Probes | None,
        *,
        one_thread: bool = False,
        device: str = "",
    ) -> None:
        self.n_features, self.n_samples, self.weight = n_features, 0, 0.0
        self.precision, self.product_rows = precision, product_rows
        self._dtype = np.dtype(np.float64 if precision == "double" else np.float32)
        self._centre: Float64 = np.zeros(n_features)
        self._total: Float64 = np.zeros(n_features)
        self._squares = 0.0
        self._probes = probes
        if probes is not None:
            self.measured = probes
        self._products: Products[Any, Any] = products_on(device, self._dtype, one_thread=one_thread)

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb rows, shape (rows, p), any real dtype.

        Parameters
        ----------
        block : ndarray or sparse array of shape (rows, p)
            Samples; sparse rows (CSR) are multiplied in float64.
        at : int
            Position of the first row, for error messages.
        weights : ndarray of shape (rows,), optional
            Weight of each row, at least 0: weight 2 counts it twice, weight 0 skips it.

        Raises
        ------
        NotFiniteError
            If a row holds NaN or infinity, or the products overflow. The accumulator must then be discarded.
        """
        kept = None
        if weights is not None and not weights.all():
            # Rows of weight 0 can hold NaN or infinity: multiplying these by 0 would not remove them.
            kept = np.flatnonzero(weights)
            block, weights = block[kept], weights[kept]
        if block.shape[0] == 0:
            return
        roots = None if weights is None or (weights == 1).all() else np.sqrt(weights)
        try:
            self._absorb_block(block, roots, at if kept is None else 0)
        except NotFiniteError as error:
            if kept is None:
                raise
            # The block was compressed: name the sample by its position in the collection.
            raise NotFiniteError(at + int(kept[error.sample]), error.problem) from None
        self.n_samples += block.shape[0]
        self.weight += block.shape[0] if weights is None else float(np.sum(weights))

    @abc.abstractmethod
    def _absorb_block(self, block: Array, roots: Float64 | None, at: int) -> None:
        """Absorb rows; `roots` are the square roots of their weights, or None if all weights are 1."""

    def _centred(self, piece: Array, parts: tuple[Array, ...], roots: Float64 | None) -> Block:
        """Return rows less a centre (`split`), each times the root of its weight, in working memory or sparse."""
        if not is_sparse(piece):
            # Grown to the longest piece so far, and kept for the next ones.
            self._products.reserve(min(self.product_rows, max(len(piece), FIRST_ROWS)) * self.n_features)
        return self._products.centre(piece, parts, roots)  # type: ignore[no-any-return]

    @property
    def offset(self) -> Float64:
        """Mean less centre, d, shape (p,): a scatter S about the centre becomes S - w d d^T about the mean."""
        return self._total / (self.weight or 1.0)

    @property
    def mean(self) -> Float64:
        """Mean of the samples, shape (p,)."""
        return self._centre + self.offset

    @property
    def trace(self) -> float:
        """Sum of squared distances from the mean: n - 1 times the total variance.

        Its squares are added up separately: a float32 product loses small squares that follow large ones, and always
        rounds them down (1e-6 of the trace for a recording of rare bright events).
        """
        return max(0.0, self._squares - self.weight * float(self.offset @ self.offset))

    @property
    def probe_products(self) -> Float64:
        """Y = S W about the mean, shape (p, q)."""
        offset = self.offset
        return self.measured.products - self.weight * np.outer(offset, offset @ self.measured.directions)

    @property
    def probe_rounding(self) -> Float64:
        """Rounding error of `probe_products`, measured on a sample of rows and scaled to all, shape (p, q)."""
        return self.measured.rounding * (self.weight / (self.measured.checked or 1.0))

    def _absorb_moments(self, other: Moments) -> None:
        """Add the counts, sums and probes of samples less the same centre."""
        self.n_samples += other.n_samples
        self.weight += other.weight
        self._total += other._total
        self._squares += other._squares
        if self._probes is not None and other._probes is not None:
            self._probes.absorb(other._probes)

    def _discount_moments(self, factor: float) -> None:
        """Multiply the weights of all samples so far, and so all sums over them, by a factor."""
        self.weight *= factor
        self._total *= factor
        self._squares *= factor
        if self._probes is not None:
            self._probes.discount(factor)

    def _moments_state(self) -> dict[str, Array]:
        """Return the centre, counts, sums and probes as plain arrays."""
        return {
            "n_samples": np.array(self.n_samples),
            "weight": np.array(self.weight),
            "product_rows": np.array(self.product_rows),
            "double": np.array(self.precision == "double"),
            "squares": np.array(self._squares),
            "centre": self._centre.copy(),
            "total": self._total.copy(),
            **({} if self._probes is None else self._probes.state()),
        }

    def _restore_moments(self, state: dict[str, Array]) -> None:
        """Restore counts, sums and probes from a state."""
        self.n_samples, self._squares = int(state["n_samples"]), float(state["squares"])
        self.weight = float(state["weight"])
        self._total = np.array(state["total"], dtype=np.float64)
        if self._probes is not None:
            self._probes.restore(state)
