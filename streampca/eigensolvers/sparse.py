"""A few eigenpairs at one end of the spectrum of a sparse symmetric matrix.

`smallest_pairs` factors the matrix; `largest_pairs` factors the shifted matrix if its factors are small, and otherwise
uses products alone (ARPACK). The size of the factors depends on the graph of the matrix: about n log n entries for
points on a surface, 0.4 n^2 for neighbours in high dimensions. `FactorFill` estimates it beforehand.

References
----------
Lehoucq, Sorensen and Yang (1998), ARPACK users' guide (shift and invert).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, SuperLU, eigsh, splu

from ..arrays import Float64
from ..errors import BudgetError
from ..planning.embedding import PART_ROWS
from ..signals import safe_point
from ..units import format_bytes
from .signs import fix_signs

DENSE = 600  # rows up to which LAPACK is as fast
RESTARTS = 40  # restarts of ARPACK with products alone; the graph of 15000 MNIST images needs 11 for 12 pairs
# Ratio of the entries of the factors to those of the matrix up to which factors are faster than products. It is 7 to 14
# for points on a surface, where eigenvalues cluster and products need hundreds of restarts, and 100 for images in 50
# dimensions.
THIN = 30
FULL = 0.25  # share of nonzero entries above which factors are practically dense, so that products are tried first
BASIS = 40  # vectors of ARPACK's basis, at least twice the pairs
SHIFT = 1e-10  # shift relative to the largest entry of the diagonal, which makes a singular matrix definite
FACTOR_BYTES = 12  # bytes of an entry of the factors: a float64 and a 32-bit index
GROWTH = (PART_ROWS // 2, PART_ROWS)  # rows of the parts from which the size of the factors is extrapolated


@dataclass(frozen=True)
class SparsePairs:
    """Eigenpairs of a sparse symmetric matrix.

    Attributes
    ----------
    values : ndarray of shape (k,)
        Eigenvalues from the requested end inwards.
    vectors : ndarray of shape (n, k)
        Unit vectors, with signs by `fix_signs`.
    residuals : ndarray of shape (k,)
        Norms of A v - value v.
    solver : {"dense", "products", "factors"}
        Solver that computed them.
    """

    values: Float64
    vectors: Float64
    residuals: Float64
    solver: str


class FactorsTooLargeError(BudgetError):
    """The factors of a matrix do not fit in the available memory.

    Attributes
    ----------
    fill : FactorFill
        Estimate of their size.
    needed : int
        Bytes of the factors by this estimate.
    """

    def __init__(self, rows: int, fill: FactorFill, room: int) -> None:
        self.fill, self.needed = fill, fill.bytes_at(rows)
        super().__init__(
            f"eigenvectors of the graph of {rows} samples need factors of about {format_bytes(self.needed)}, and "
            f"memory leaves {format_bytes(max(0, room))} for them; set more memory, or give fewer neighbours."
        )


def largest_pairs(matrix: sp.csr_array, count: int, *, seed: int, bound: float, room: int) -> SparsePairs:
    """Return the pairs of the largest eigenvalues, descending, of a matrix with none above `bound`.

    Parameters
    ----------
    matrix : sparse array of shape (n, n)
        Symmetric, with eigenvalues of at most `bound`.
    count : int
        Number of pairs, less than n.
    seed : int
        Seed of the first vector.
    bound : float
        Upper bound on the eigenvalues; where products do not separate the pairs, bound - matrix is factored.
    room : int
        Bytes available for factors.

    Raises
    ------
    FactorsTooLargeError
        If products do not separate the pairs, and factors need more than `room`.

    Notes
    -----
    Cost: up to 40 restarts of 40 products, 2 s for 60000 images with 15 neighbours; or that of `smallest_pairs`.
    """
    n = matrix.shape[0]
    if n <= max(DENSE, 2 * count):
        return _dense(matrix, (n - count, n - 1), descending=True)
    shifted = (sp.diags_array(np.full(n, bound)) - matrix).tocsr()
    fill = None if matrix.nnz > FULL * n * n else FactorFill.of(shifted)
    if fill is None or fill.bytes_at(n) > min(room, THIN * FACTOR_BYTES * matrix.nnz):
        options: dict[str, Any] = {"v0": _start(n, seed), "ncv": min(n, max(BASIS, 2 * count + 1))}
        # Clustered eigenvalues do not converge: then factors are needed after all.
        with suppress(ArpackNoConvergence):
            products = LinearOperator((n, n), matvec=_stoppable(matrix.dot), dtype=np.float64)
            values, vectors = eigsh(products, count, which="LA", maxiter=RESTARTS, **options)
            order = np.argsort(values)[::-1]
            return _checked(matrix, values[order], vectors[:, order], "products")
    pairs = smallest_pairs(shifted, count, seed=seed, room=room, fill=fill)
    # The smallest pairs of bound - matrix are the largest pairs of the matrix.
    return SparsePairs(bound - pairs.values, pairs.vectors, pairs.residuals, pairs.solver)


def smallest_pairs(
    matrix: sp.csr_array, count: int, *, seed: int, room: int, fill: FactorFill | None = None
) -> SparsePairs:
    """Return the pairs of the smallest eigenvalues, ascending, of a positive semi-definite matrix.

    Parameters
    ----------
    matrix, count, seed, room
        As for `largest_pairs`.
    fill : FactorFill, optional
        Estimate of the factors' size, if already made.

    Raises
    ------
    FactorsTooLargeError
        If the factors need more than `room`, by the estimate of `FactorFill`.

    Notes
    -----
    Cost: a sparse factorisation, and some 40 solutions with its factors.
    """
    n = matrix.shape[0]
    if n <= max(DENSE, 2 * count):
        return _dense(matrix, (0, count - 1), descending=False)
    fill = fill or FactorFill.of(matrix)
    if fill.bytes_at(n) > room:
        raise FactorsTooLargeError(n, fill, room)
    shift = SHIFT * float(matrix.diagonal().max())
    solve = _factored(matrix, shift)
    inverse = LinearOperator((n, n), matvec=_stoppable(solve), dtype=np.float64)
    options: dict[str, Any] = {"v0": _start(n, seed), "ncv": min(n, max(BASIS, 2 * count + 1))}
    values, vectors = eigsh(matrix, count, sigma=-shift, OPinv=inverse, which="LM", **options)
    order = np.argsort(values)
    return _checked(matrix, values[order], vectors[:, order], "factors")


def pairs_above(matrix: sp.csc_array, count: int, bound: float, *, seed: int) -> tuple[Float64, Float64]:
    """Return the smallest eigenvalues, ascending, and eigenvectors of a matrix with none below `bound`.

    ARPACK's own solver factors matrix - bound; for matrices whose factors are known to be small.
    """
    values, vectors = eigsh(matrix, k=count, sigma=bound, v0=_start(matrix.shape[0], seed))
    order = np.argsort(values)
    return values[order], vectors[:, order]


def _stoppable(product: Callable[[Float64], Float64]) -> Callable[[Float64], Float64]:
    """Return a product with a vector that is a safe point, as ARPACK requests thousands."""

    def multiply(vector: Float64) -> Float64:
        safe_point()
        return product(vector)

    return multiply


@dataclass(frozen=True)
class FactorFill:
    """Number of entries of the factors of a matrix, extrapolated from its parts.

    Attributes
    ----------
    rows, entries : int
        Size of the largest part that was factored, and entries of its factors.
    exponent : float
        Exponent of its growth with the rows; 1.1 for points on a surface, 2 for neighbours in high dimensions.
    """

    rows: int
    entries: int
    exponent: float

    @classmethod
    def of(cls, matrix: sp.csr_array, part: Callable[[int], sp.csr_array] | None = None) -> FactorFill:
        """Factor two parts of a matrix; `part` returns one with some number of rows, by default near each other."""
        n = matrix.shape[0]
        part = part or _Near(matrix)
        sizes = [min(n, rows) for rows in GROWTH]
        parts = [part(rows) for rows in sizes]
        small, large = (int(_factors(each, SHIFT * float(each.diagonal().max())).nnz) for each in parts)
        # A matrix no larger than the parts is factored whole, and needs no extrapolation.
        exponent = float(np.log(large / small) / np.log(sizes[1] / sizes[0])) if sizes[1] > sizes[0] else 2.0
        return cls(sizes[1], large, float(np.clip(exponent, 1.0, 2.0)))

    def bytes_at(self, rows: int) -> int:
        """Return the bytes of the factors of a matrix of `rows` rows."""
        return int(FACTOR_BYTES * self.entries * (rows / self.rows) ** self.exponent)

    def rows_in(self, room: int) -> int:
        """Return the largest number of rows whose factors fit in `room` bytes."""
        return int(self.rows * (max(0, room) / (FACTOR_BYTES * self.entries)) ** (1 / self.exponent))


class _Near:
    """Principal submatrices of rows near each other, in the graph of the matrix' entries."""

    def __init__(self, matrix: sp.csr_array) -> None:
        self._matrix = matrix
        self._order = sp.csgraph.breadth_first_order(matrix, 0, directed=False, return_predecessors=False)

    def __call__(self, rows: int) -> sp.csr_array:
        nearest = np.sort(self._order[:rows])
        return self._matrix[nearest][:, nearest]


def factors_of_definite(matrix: sp.csc_array) -> SuperLU:
    """Return factors of a symmetric positive definite sparse matrix, in the order of minimum degree."""
    # The matrix is definite: pivots stay on the diagonal, so the factors are as sparse as the order allows.
    return splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def _factors(matrix: sp.csr_array, shift: float) -> SuperLU:
    return factors_of_definite(sp.csc_array(matrix + sp.diags_array(np.full(matrix.shape[0], shift))))


def _factored(matrix: sp.csr_array, shift: float) -> Callable[[Float64], Float64]:
    """Return the function that solves (matrix + shift) x = b, with one step of refinement."""
    solve: Callable[[Float64], Float64] = _factors(matrix, shift).solve

    def refined(right: Float64) -> Float64:
        solution = solve(right)
        return solution + solve(right - (matrix @ solution + shift * solution))

    return refined


def _start(n: int, seed: int) -> Float64:
    return np.random.default_rng(seed).standard_normal(n)


def _dense(matrix: sp.csr_array, indices: tuple[int, int], *, descending: bool) -> SparsePairs:
    values, vectors = eigh(matrix.toarray(), subset_by_index=indices)
    step = -1 if descending else 1
    return _checked(matrix, values[::step], vectors[:, ::step], "dense")


def _checked(matrix: sp.csr_array, values: Float64, vectors: Float64, solver: str) -> SparsePairs:
    """Return pairs with their residuals."""
    residuals = np.linalg.norm(matrix @ vectors - vectors * values, axis=0)
    return SparsePairs(values, fix_signs(np.array(vectors)), residuals, solver)
