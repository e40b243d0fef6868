"""Permutation tests of independence: the criterion of randomly paired samples, from kernels or from features.

If samples are drawn independently of each other and x of y, all pairings are equally likely. The observed criterion
then has each rank among those of B random pairings with the same probability, for any kernels and features.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Float64
from ..signals import safe_point

TIE = 1e-10  # values that differ by less, relative to the largest, count as equal: rounding separates them


class Permuted(NamedTuple):
    """The observed criterion, and that of each permutation, shape (B,)."""

    observed: float
    null: Float64

    @property
    def p_value(self) -> float:
        """(1 + number of permutations whose value is at least the observed) / (1 + B)."""
        tie = TIE * max(abs(self.observed), float(np.abs(self.null).max()))
        return (1 + int(np.count_nonzero(self.null >= self.observed - tie))) / (1 + len(self.null))


def permuted_kernels(matrices: Float64, count: int, estimator: str, random: np.random.Generator) -> Permuted:
    """Permute samples by indexing one of two kernel matrices, (2, n, n); the first is overwritten.

    Cost: about 5 n^2 operations a permutation; two more n x n arrays.
    """
    first, second = matrices
    n = len(first)
    divisor = _centre(first, estimator)
    rows, permuted = np.empty_like(second), np.empty_like(second)

    def value(order: npt.NDArray[np.intp]) -> float:
        safe_point()
        # Mode "clip": the default one, which raises for bad indices, copies through a buffer first.
        np.take(second, order, axis=0, out=rows, mode="clip")
        np.take(rows, order, axis=1, out=permuted, mode="clip")
        return float(np.vdot(first, permuted)) / divisor

    observed = value(np.arange(n))
    return Permuted(observed, np.array([value(random.permutation(n)) for _ in range(count)]))


def _centre(matrix: Float64, estimator: str) -> int:
    """Centre a symmetric matrix in place, so that its product with another is the criterion; return its divisor."""
    n = len(matrix)
    if estimator == "biased":
        means = matrix.mean(axis=0)
        matrix -= means
        matrix -= means[:, None]
        matrix += means.mean()
        return (n - 1) ** 2
    np.fill_diagonal(matrix, 0)  # Székely and Rizzo's U-centring
    sums = matrix.sum(axis=0)
    matrix -= sums / (n - 2)
    matrix -= sums[:, None] / (n - 2)
    matrix += sums.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(matrix, 0)
    return n * (n - 3)


def permuted_features(
    features: Float64, others: Float64, count: int, estimator: str, random: np.random.Generator
) -> Permuted:
    """Permute samples by their features, (n, q) and (n, l), which are centred in place.

    Cost: 2 n q l flops a permutation; one more n x l array.
    """
    n = len(features)
    for rows in (features, others):
        rows -= rows.mean(axis=0)
    a, b = (np.einsum("ij,ij->i", rows, rows) for rows in (features, others))  # diagonals of the kernels
    traces, paired = float(a.sum()) * float(b.sum()) / ((n - 1) * (n - 2)), np.empty_like(others)

    def value(order: npt.NDArray[np.intp]) -> float:
        safe_point()
        np.take(others, order, axis=0, out=paired, mode="clip")
        products = features.T @ paired
        norm = float(np.vdot(products, products))
        if estimator == "biased":
            return norm / (n - 1) ** 2
        return (norm + traces - n / (n - 2) * float(a @ b[order])) / (n * (n - 3))

    observed = value(np.arange(n))
    return Permuted(observed, np.array([value(random.permutation(n)) for _ in range(count)]))
