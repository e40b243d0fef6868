"""Product of a piece with a block of vectors and then with the piece itself, Q^T X^T X."""

from __future__ import annotations

import numpy as np

from ..arrays import Array, is_sparse
from .finite import is_finite


def block_product(piece: Array, vectors: Array, out: Array) -> bool:
    """Write Q^T X^T X to `out`, (l, p), for X (rows, p) and Q (p, l) of one dtype; return whether it is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if is_sparse(piece):
            out[...] = (piece.T @ (piece @ vectors)).T
            return is_finite(out)
        np.matmul((piece @ vectors).T, piece, out=out)
    return is_finite(out)
