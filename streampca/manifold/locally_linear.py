"""Locally linear embedding: points that their neighbours rebuild with the same weights as the samples.

References
----------
Roweis and Saul (2000), Nonlinear dimensionality reduction by locally linear embedding.
Saul and Roweis (2003), Think globally, fit locally: unsupervised learning of low dimensional manifolds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh, svd

from ..arrays import Array, Float64
from ..eigensolvers import fix_signs
from ..eigensolvers.sparse import smallest_pairs
from ..signals import safe_point

BLOCK = 2**21  # numbers of a block of differences between rows and their neighbours


def barycentric_weights(rows: Array, references: Array, indices: Array, reg: float) -> Float64:
    """Return the weights, (n, k), adding up to 1, with which neighbours best rebuild rows.

    Parameters
    ----------
    rows : ndarray of shape (n, p)
    references : ndarray of shape (r, p)
    indices : ndarray of shape (n, k)
        Numbers of each row's neighbours among the references.
    reg : float
        Regularisation: this share of the trace of the k x k Gram matrix of differences is added to its diagonal. It
        matters in high dimensions: the trustworthiness of 60000 MNIST images is 0.73, 0.77, 0.84 with 1e-3, 1e-2, 1e-1.

    Notes
    -----
    Cost: n (2 k^2 p + k^3) flops.
    """
    n, k = indices.shape
    weights = np.empty((n, k))
    step = max(1, BLOCK // max(1, k * max(rows.shape[1], k)))
    for start in range(0, n, step):
        safe_point()
        block = slice(start, start + step)
        differences = references[indices[block]].astype(np.float64)
        differences -= rows[block, None]
        gram = differences @ differences.transpose(0, 2, 1)
        trace = np.einsum("ijj->i", gram)
        # Equal neighbours leave a Gram matrix of 0, which needs a regularisation of its own.
        gram[:, np.arange(k), np.arange(k)] += np.where(trace > 0, reg * trace, reg)[:, None]
        solutions = np.linalg.solve(gram, np.ones((len(gram), k, 1)))[..., 0]
        weights[block] = solutions / solutions.sum(axis=1, keepdims=True)
    return weights


@dataclass(frozen=True, eq=False)
class LocallyLinear:
    """Eigenvectors of (I - W)^T (I - W) for the barycentric weights W, except the constant one.

    Attributes
    ----------
    coordinates : ndarray of shape (n, d)
        Orthonormal columns.
    eigenvalues : ndarray of shape (d,)
        Errors of reconstruction, ascending.
    residuals : ndarray of shape (d,)
    solver : str
    """

    coordinates: Float64
    eigenvalues: Float64
    residuals: Float64
    solver: str


def locally_linear_embedding(
    scores: Array, indices: Array, count: int, *, reg: float, seed: int, room: int
) -> LocallyLinear:
    """Embed samples by the weights of their neighbours.

    Parameters
    ----------
    scores : ndarray of shape (n, p)
    indices : ndarray of shape (n, k)
        Neighbours.
    count : int
        Number of axes.
    reg : float
        See `barycentric_weights`.
    seed, room
        See `smallest_pairs`.

    Raises
    ------
    FactorsTooLargeError
        If the factors do not fit.
    """
    errors = error_matrix(scores, indices, reg)
    pairs = smallest_pairs(errors, count + 1, seed=seed, room=room)
    # If other eigenvalues are about 0 too, the constant vector is mixed with their vectors: project it out of all.
    centred = svd(pairs.vectors - pairs.vectors.mean(axis=0), full_matrices=False)[0][:, :count]
    values, turned = eigh(centred.T @ (errors @ centred))
    vectors = fix_signs(centred @ turned)
    residuals = np.linalg.norm(errors @ vectors - vectors * values, axis=0)
    return LocallyLinear(vectors, values, residuals, pairs.solver)


def error_matrix(scores: Array, indices: Array, reg: float) -> sp.csr_array:
    """Return (I - W)^T (I - W), sparse, (n, n)."""
    n, k = indices.shape
    weights = barycentric_weights(scores, scores, indices, reg)
    whole = sp.csr_array((weights.ravel(), indices.ravel(), np.arange(n + 1) * k), shape=(n, n))
    errors = (sp.eye_array(n) - whole).tocsr()
    products: sp.csr_array = (errors.T @ errors).tocsr()
    return products
