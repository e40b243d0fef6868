"""Sparse blocks: rows of `scipy.sparse` less a centre that keeps them sparse, and their products.

Of a feature that at most half of the samples have a value of, the squared mean is at most the variance, by Cauchy and
Schwarz. So only the other features are centred, whose zeros are few; the means of all are taken off sums of products in
float64, which costs no more digits than a wrong guess of the mean by one standard deviation would.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Float64
from ..planning.memory import SPARSE_TILE

OFTEN = 0.5  # share of samples with a value of a feature, above which that feature is centred
FILLED = 1.0  # zeros that centring fills, for every stored value, beyond which a dense block is smaller or as fast


def is_often(block: Any) -> npt.NDArray[np.bool_]:
    """Return, for every feature, whether more than half of the rows have a value of it."""
    return np.asarray(np.bincount(block.indices, minlength=block.shape[1]) > OFTEN * block.shape[0])


def sparse_centre(block: Any) -> Float64:
    """Return the mean of every feature that more than half of the rows have a value of, and 0 for the others."""
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
