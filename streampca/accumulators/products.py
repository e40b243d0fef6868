"""Products of blocks of samples: one interface for all of them, and its implementation by BLAS.

An accumulator passes blocks as they are stored. `Products` centres them and multiplies them, in its own workspace, and
adds the products to float64 sums that lie where it multiplies. Its results are arrays; blocks and sums are opaque.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from ..arrays import Array, Float64, is_sparse
from .blas import among, times, update_among
from .centering import centre_samples, sum_of_parts, sum_of_squares, weighted_sum
from .finite import is_finite
from .sparse_rows import add_among, centred_or_none


class Block(Protocol):
    """Matrix X of samples less a centre, (rows, p), or a view of one, ready to be multiplied."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of products."""

    @property
    def T(self) -> Block:  # noqa: N802 - as of arrays
        """The transpose, a view."""

    def __getitem__(self, rows: slice) -> Block:
        """Return some rows, a view."""

    def astype(self, dtype: Any) -> Block:
        """Return the values in another dtype, a copy."""

    def times(self, vectors: Array | Block) -> Array:
        """Return X Q, (rows, l), for Q (p, l) of the same dtype, an array or a block of the same products."""

    def combined(self, factors: Array) -> Array:
        """Return F X, (m, p), for F (m, rows) of the same dtype."""

    def twice(self, vectors: Array) -> Array:
        """Return X^T (X Q), (p, l), for Q (p, l) of the same dtype."""

    def less(self, row: Float64) -> Block:
        """Subtract a row, (p,), from all rows, in place; return the block."""

    def pairs(self) -> Block:
        """Return the products of all pairs of columns, (rows, p (p + 1) / 2), in the order of the upper triangle."""

    def sum(self, factors: Float64 | None = None) -> Float64:
        """Return the sum of the rows times their factors, if any, (p,), to more digits than float32 has."""

    def sum_of_squares(self) -> float:
        """Return the sum of the squares of all values, to more digits than float32 has."""


class Sum(Protocol):
    """Running float64 sum of products, which lies where products are computed."""

    values: Float64
    """The sum as an array of this process, up to date; it can be written to."""

    def add(self, rows: slice, block: Any, vectors: Array | Block) -> None:
        """Add X Q to some rows of the sum, (rows, l), for a block X and Q as in `Block.times`."""

    def is_finite(self) -> bool:
        """Return whether the sum holds neither NaN nor infinity."""


OwnBlock = TypeVar("OwnBlock", bound=Block)
OwnSum = TypeVar("OwnSum", bound=Sum)


class Products(Protocol[OwnBlock, OwnSum]):
    """Centring and multiplication of blocks in a workspace, for one thread; the latest product is pending in it."""

    dtype: np.dtype[Any]
    """Dtype of products."""
    one_thread: bool
    """True if other threads compute at the same time."""

    def reserve(self, values: int, product: tuple[int, int] = (0, 0)) -> None:
        """Allocate workspace for blocks of so many values and products of this shape."""

    def release(self) -> None:
        """Free the workspace; it is allocated again when it is needed."""

    def sum(self, values: Float64) -> OwnSum:
        """Return a sum that starts from these values, which it takes over."""

    def centre(self, stored: Array, parts: tuple[Array, ...], roots: Float64 | None = None) -> OwnBlock:
        """Return samples less a centre (`centering.split`), each times its root, until the next call."""

    def half_squares(self, distances: Array, mean: Float64 | None = None) -> OwnBlock:
        """Return -1/2 times squared distances, less the mean of their columns, if any, until the next call."""

    def block(self, values: Array) -> OwnBlock:
        """Return values that are centred already as a block; in memory they are not copied if their dtype is that."""

    def symmetric(self, block: OwnBlock, total: OwnSum) -> Array:
        """Multiply rows with one another, X X^T, of which the upper triangle counts; return the diagonal, (rows,).

        The product is pending (`add`) in float32; in float64 it has been added to the total.
        """

    def twice(self, block: OwnBlock, vectors: Array) -> bool:
        """Multiply Q^T X^T X, (l, p), for Q (p, l), pending (`add`); return whether it is finite."""

    def add(self, total: OwnSum) -> None:
        """Add the pending product, or as many of its rows as the total has."""

    def pending(self, start: int) -> Array:
        """Return rows of the pending product, from row `start` on, until the next product."""


def products_on(device: str, dtype: np.dtype[Any], *, one_thread: bool = False) -> Products[Any, Any]:
    """Return the products of a device: BLAS's on the processor, "", and otherwise torch's, such as "cuda:1"."""
    if not device:
        return BlasProducts(dtype, one_thread=one_thread)
    from .torch_products import TorchProducts  # torch takes seconds to load

    return TorchProducts(dtype, device.removeprefix("torch:"))


def double_products(device: str | None) -> Callable[[], Products[Any, Any]] | None:
    """Return what makes the float64 products of a device, and can be pickled; None for the processor."""
    return partial(products_on, device, np.dtype(np.float64)) if device else None


class MemoryBlock:
    """Block in memory, multiplied by BLAS; or of sparse rows, in float64."""

    def __init__(self, values: Array, *, one_thread: bool) -> None:
        self.values, self._one_thread = values, one_thread

    @property
    def shape(self) -> tuple[int, ...]:  # noqa: D102 - see `Block`
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:  # noqa: D102
        return self.values.dtype

    @property
    def T(self) -> MemoryBlock:  # noqa: D102, N802
        return MemoryBlock(self.values.T, one_thread=self._one_thread)

    def __getitem__(self, rows: slice) -> MemoryBlock:
        return MemoryBlock(self.values[rows], one_thread=self._one_thread)

    def astype(self, dtype: Any) -> MemoryBlock:  # noqa: D102
        return MemoryBlock(self.values.astype(dtype), one_thread=self._one_thread)

    def times(self, vectors: Array | Block) -> Array:  # noqa: D102
        others = vectors.values if isinstance(vectors, MemoryBlock) else vectors
        return times(self.values, others, one_thread=self._one_thread)  # type: ignore[arg-type] # a block of its own kind

    def combined(self, factors: Array) -> Array:  # noqa: D102
        return times(factors, self.values, one_thread=self._one_thread)

    def twice(self, vectors: Array) -> Array:  # noqa: D102
        return times(self.values.T, self.times(vectors), one_thread=self._one_thread)

    def less(self, row: Float64) -> MemoryBlock:  # noqa: D102
        self.values -= row.astype(self.dtype, copy=False)
        return self

    def pairs(self) -> MemoryBlock:  # noqa: D102
        columns = self.values
        count, width = columns.shape
        products, at = np.empty((count, width * (width + 1) // 2), columns.dtype), 0
        # One row of the triangle at a time: indexing by lists of left and right columns takes six times as long.
        for left in range(width):
            np.multiply(columns[:, left : left + 1], columns[:, left:], out=products[:, at : at + width - left])
            at += width - left
        return MemoryBlock(products, one_thread=self._one_thread)

    def sum(self, factors: Float64 | None = None) -> Float64:  # noqa: D102
        return weighted_sum(self.values, factors)

    def sum_of_squares(self) -> float:  # noqa: D102
        return sum_of_squares(self.values)


class MemorySum:
    """Sum in memory."""

    def __init__(self, values: Float64) -> None:
        self.values = values

    def add(self, rows: slice, block: MemoryBlock, vectors: Array | Block) -> None:  # noqa: D102 - see `Sum`
        self.values[rows] += block.times(vectors)

    def is_finite(self) -> bool:  # noqa: D102
        return is_finite(self.values)


class BlasProducts:
    """Products by BLAS.

    Parameters
    ----------
    dtype : dtype
        Dtype of products, float32 or float64.
    one_thread : bool
        Use one BLAS thread, because other threads compute at the same time (`streampca.execution.threads`).
    """

    def __init__(self, dtype: np.dtype[Any], *, one_thread: bool = False) -> None:
        self.dtype, self.one_thread = dtype, one_thread
        self._work: Array = np.empty(0, dtype)
        self._product: Array = np.empty((0, 0), dtype)
        self._pending: Array | None = None

    def reserve(self, values: int, product: tuple[int, int] = (0, 0)) -> None:  # noqa: D102 - see `Products`
        if self._work.size < values:
            self._work = np.empty(values, self.dtype)
        if self._product.shape != product and any(product):
            # Zeros, as a symmetric update leaves one triangle untouched.
            self._product = np.zeros(product, self.dtype)

    def release(self) -> None:  # noqa: D102
        self._work, self._product, self._pending = np.empty(0, self.dtype), np.empty((0, 0), self.dtype), None

    def sum(self, values: Float64) -> MemorySum:  # noqa: D102
        return MemorySum(values)

    def centre(  # noqa: D102
        self, stored: Array, parts: tuple[Array, ...], roots: Float64 | None = None
    ) -> MemoryBlock:
        if is_sparse(stored):
            centre = sum_of_parts(parts, stored.shape[1])
            if (rows := centred_or_none(stored, centre, roots)) is not None:
                return MemoryBlock(rows, one_thread=self.one_thread)
            stored = stored.toarray()
        self.reserve(stored.size)
        centred = self._work[: stored.size].reshape(stored.shape)
        centre_samples(stored, parts, centred, roots)
        return MemoryBlock(centred, one_thread=self.one_thread)

    def half_squares(self, distances: Array, mean: Float64 | None = None) -> MemoryBlock:  # noqa: D102
        self.reserve(distances.size)
        squares = self._work[: distances.size].reshape(distances.shape)
        np.multiply(distances, distances, out=squares, dtype=self.dtype)
        squares *= -0.5
        if mean is not None:
            squares -= mean
        return MemoryBlock(squares, one_thread=self.one_thread)

    def block(self, values: Array) -> MemoryBlock:  # noqa: D102
        return MemoryBlock(values.astype(self.dtype, copy=False), one_thread=self.one_thread)

    def symmetric(self, block: MemoryBlock, total: MemorySum) -> Array:  # noqa: D102
        rows, self._pending = block.values, None
        if is_sparse(rows):
            return add_among(rows, total.values)
        if rows.dtype == np.float64:
            # float64 needs no separate product: its diagonal is the growth of the total's.
            before = total.values.diagonal().copy()
            update_among(rows, total.values)
            return total.values.diagonal() - before
        self.reserve(0, (len(rows), len(rows)))
        self._pending = among(rows, self._product.T, one_thread=self.one_thread)
        return self._pending.diagonal()

    def twice(self, block: MemoryBlock, vectors: Array) -> bool:  # noqa: D102
        self.reserve(0, (vectors.shape[1], block.shape[1]))
        self._pending = self._product
        with np.errstate(over="ignore", invalid="ignore"):
            if is_sparse(block.values):
                self._product[...] = block.twice(vectors).T
                return is_finite(self._product)
            np.matmul((block.values @ vectors).T, block.values, out=self._product)
        return is_finite(self._product)

    def add(self, total: MemorySum) -> None:  # noqa: D102
        if self._pending is not None:
            total.values += self._pending[: len(total.values)]

    def pending(self, start: int) -> Array:  # noqa: D102
        assert self._pending is not None  # noqa: S101 - called after a product
        return self._pending[start:]
