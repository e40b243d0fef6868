"""Sparse blocks: rows of `scipy.sparse` less a centre that keeps them sparse, and their products.

Of a feature that at most half of the samples have a value of, the squared mean is at most the variance, by Cauchy and
Schwarz. So only the other features are centred, whose zeros are few; the means of all are taken off sums of products in
float64, which costs no more digits than a wrong guess of the mean by one standard deviation would.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Float64
from ..planning.memory import SPARSE_TILE

OFTEN = 0.5  # share of samples with a value of a feature, above which that feature is centred
FILLED = 1.0  # zeros that centring fills, for every stored value, beyond which a dense block is smaller or as fast


class HeldRows:
    """Sparse rows that pass after pass multiplies: their centre, and they less a centre, are computed once.

    Parameters
    ----------
    rows : sparse array of shape (n, p)
        Rows, in form CSR, of which this has all attributes.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self._centred: tuple[Float64, Float64 | None, Any] | None = None

    @classmethod
    def of(cls, rows: Any, earlier: HeldRows | None) -> HeldRows:
        """Return rows as those of an earlier pass, if they are the same."""
        return earlier if earlier is not None and earlier.rows is rows else cls(rows)

    def __getattr__(self, name: str) -> Any:
        if name == "rows":  # missing while a copy is being made
            raise AttributeError(name)
        return getattr(self.rows, name)

    def __getitem__(self, rows: Any) -> Any:
        return self.rows[rows]

    @cached_property
    def centre(self) -> Float64:
        """See `sparse_centre`."""
        return sparse_centre(self.rows)

    def centred(self, centre: Float64, roots: Float64 | None) -> Any:
        """See `centred_rows`; None where rows would not stay sparse."""
        if self._centred is None or not _are_equal((centre, roots), self._centred[:2]):
            made = centred_rows(self.rows, centre, roots) if stays_sparse(self.rows, centre) else None
            self._centred = centre.copy(), None if roots is None else roots.copy(), made
        return self._centred[2]


def _are_equal(arrays: tuple[Float64, Float64 | None], others: tuple[Float64, Float64 | None]) -> bool:
    return all(one is other or np.array_equal(one, other) for one, other in zip(arrays, others, strict=True))  # type: ignore[arg-type]


def centred_or_none(block: Any, centre: Float64, roots: Float64 | None = None) -> Any:
    """Return rows less a centre, each times the root of its weight, in float64; None where they would not be sparse."""
    if isinstance(block, HeldRows):
        return block.centred(centre, roots)
    return centred_rows(block, centre, roots) if stays_sparse(block, centre) else None


def is_often(block: Any) -> npt.NDArray[np.bool_]:
    """Return, for every feature, whether more than half of the rows have a value of it."""
    return np.asarray(np.bincount(block.indices, minlength=block.shape[1]) > OFTEN * block.shape[0])


def sparse_centre(block: Any) -> Float64:
    """Return the mean of every feature that more than half of the rows have a value of, and 0 for the others."""
    if isinstance(block, HeldRows):
        return block.centre
    often = is_often(block)
    if not often.any():
        return np.zeros(block.shape[1])
    total: Float64 = np.asarray(block.sum(axis=0, dtype=np.float64)).reshape(-1)
    return np.where(often, total / block.shape[0], 0.0)


def stays_sparse(block: Any, centre: Float64) -> bool:
    """Return whether a centre, such as one of other rows, leaves most zeros of the rows as they are."""
    shifted = centre != 0
    if not shifted.any():
        return True
    zeros = np.count_nonzero(shifted) * block.shape[0] - np.count_nonzero(shifted[block.indices])
    return bool(zeros <= FILLED * block.nnz)


def centred_rows(block: Any, centre: Float64, roots: Float64 | None = None) -> Any:
    """Return rows less a centre, each times the root of its weight, in float64.

    Without a centre, the values of float64 rows are not copied.
    """
    import scipy.sparse as sp

    n, p = block.shape
    centred = block.astype(np.float64, copy=False)
    if len(shifted := np.flatnonzero(centre)):
        ends = np.arange(0, n * len(shifted) + 1, len(shifted))
        shift = sp.csr_array((np.tile(centre[shifted], n), np.tile(shifted, n), ends), shape=(n, p))
        centred = centred - shift
    if roots is not None:
        values = centred.data * np.repeat(roots, np.diff(centred.indptr))
        centred = sp.csr_array((values, centred.indices, centred.indptr), shape=(n, p))
    return centred


def add_among(rows: Any, total: Float64) -> Float64:
    """Add ``rows @ rows.T``, (n, n), to a total in Fortran order; return the diagonal of the product.

    Cost: about 4 ns a product of two values, and 25 ns an entry that is not 0.
    """
    rows = rows.tocsr()
    others, step = rows.T.tocsr(), max(1, SPARSE_TILE // max(1, rows.shape[0]))
    diagonal = np.empty(rows.shape[0])
    for start in range(0, rows.shape[0], step):
        stop = min(start + step, rows.shape[0])
        product = (rows[start:stop] @ others).toarray()
        total[:, start:stop] += product.T
        diagonal[start:stop] = product[np.arange(stop - start), np.arange(start, stop)]
    return diagonal


def product_about(block: Any, mean: Float64, vectors: Float64) -> Float64:
    """Return the product of rows less a mean with vectors: (m, p) and (p, k) to (m, k).

    Features that most rows have a value of are centred before, so that large means cost no digits.
    """
    centre = np.where(is_often(block), mean, 0.0)
    product: Float64 = centred_rows(block, centre) @ vectors
    product -= (mean - centre) @ vectors
    return product


def bad_rows(block: Any) -> npt.NDArray[np.intp]:
    """Return the numbers of rows with a value that is not finite."""
    bad = np.flatnonzero(~np.isfinite(block.data))
    return np.unique(np.searchsorted(block.indptr, bad, side="right") - 1)


def first_bad_row(block: Any) -> int:
    """Return the first row with a value that is not finite, or if there is none the row with the largest value."""
    values = np.abs(block.data.astype(np.float64))
    bad = np.flatnonzero(~np.isfinite(values))
    at = int(bad[0]) if len(bad) else int(np.argmax(values))
    return int(np.searchsorted(block.indptr, at, side="right")) - 1
