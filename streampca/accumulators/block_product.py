"""The fused product Q^T X^T X of a piece X that is in memory, and how it is told whether it was multiplied right.

Beside Q two columns are multiplied, random signs and Q times random signs, which cost next to nothing: products with
signs can be had in two ways. If they differ by more than rounding the product is made again (`made_right`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..planning.sizes import CHECK_COLUMNS
from .checksums import made_right

Array = npt.NDArray[Any]

EPS = {"single": 2.0**-23, "double": 2.0**-52}
SLACK = 64.0  # rounding that is let pass, in units of what random rounding would be; clean runs reached 10
_STREAM = 0x5851F42D  # of the random signs


class BlockProduct:
    """Multiplies pieces X, (rows, p), with a block Q and its transpose, in one precision.

    Parameters
    ----------
    vectors : ndarray of shape (p, l)
        Q; it is rounded to the precision.
    precision : {"single", "double"}
        Of the products.
    seed : int
        Of the signs.

    Attributes
    ----------
    dtype : dtype
        Of the products.
    width : int
        l.
    signs : (ndarray of shape (p,), ndarray of shape (l,))
        Of the rows and the columns of Q.
    """

    def __init__(self, vectors: Array, precision: str, seed: int) -> None:
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if precision == "double" else np.float32)
        p, self.width = vectors.shape
        rng = np.random.default_rng([_STREAM, seed])
        self.signs = [rng.choice(np.array([-1, 1], self.dtype), length) for length in (p, self.width)]
        self._eps = EPS[precision]
        self._vectors = np.empty((p, self.width + CHECK_COLUMNS), self.dtype)
        self._vectors[:, : self.width] = vectors
        self._vectors[:, -2] = self.signs[0]
        self._vectors[:, -1] = self.vectors.astype(np.float64, copy=False) @ self.signs[1]

    @property
    def vectors(self) -> Array:
        """Q as it is multiplied, (p, l)."""
        return self._vectors[:, : self.width]

    def room(self) -> Array:
        """Return memory for a product, (l, p)."""
        return np.empty((self.width, len(self._vectors)), self.dtype)

    def product(self, piece: Array, what: str, out: Array) -> tuple[Array, bool]:
        """Q^T X^T X, (l, p), in `out`, of a piece in the precision of products; and whether all of it are numbers.

        Parameters
        ----------
        piece : ndarray of shape (rows, p)
            X.
        what : str
            What it holds, in words; see `made_right`.
        out : ndarray of shape (l, p)
            See `room`.

        Raises
        ------
        FaultError
            See `made_right`.
        """
        product, signed = made_right(partial(self._multiplied, piece, out), what)
        return product, bool(np.isfinite(signed).all())

    def _multiplied(self, piece: Array, out: Array) -> tuple[tuple[Array, Array], Array]:
        """Q^T X^T X, and products with random signs that are not finite where it is not; and their excess."""
        along, product = self._multiply(piece, out)
        with np.errstate(over="ignore", invalid="ignore"):
            signed = np.concatenate([along[:, : self.width] @ self.signs[1], product @ self.signs[0]])
            return (product, signed), self._excess(along, signed)

    def _multiply(self, piece: Array, out: Array) -> tuple[Array, Array]:
        """X Q and its checks, (rows, l + 2), and Q^T X^T X, (l, p)."""
        with np.errstate(over="ignore", invalid="ignore"):
            along = piece @ self._vectors
            return along, np.matmul(along[:, : self.width].T, piece, out=out)

    def _excess(self, along: Array, signed: Array) -> Array:
        """What products with random signs are off by beyond rounding, (rows + l,); NaN where they are no numbers.

        Rounding of X Q is in proportion to the length of rows, and that of X^T (X Q) to the length of X in all, which
        products with random signs tell within a factor.
        """
        found = along[:, : self.width]
        rows = along[:, -2].astype(np.float64)
        length = float(np.linalg.norm(rows))
        off = np.abs(signed - np.concatenate([along[:, -1], found.T @ along[:, -2]]))
        lengths = self.width**0.5 * (length / len(along) ** 0.5 + np.abs(rows))
        bound = SLACK * self._eps * np.concatenate([lengths, length * np.linalg.norm(found, axis=0)])
        return np.where(off <= bound, 0.0, off - bound)
