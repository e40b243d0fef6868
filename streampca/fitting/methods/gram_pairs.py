"""Eigenpairs of the Gram matrix, and the factors of components: the state of the dual method between its passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...accumulators import Gram
from ...accumulators.plain_state import as_arrays, as_values
from ...accumulators.products import Block
from ...arrays import Array, Float64
from ...eigensolvers import Solution
from ...machine import hand_back
from .data_checks import check_variance, warn_of_wrong_sums
from .job import Job, stored_dtype
from .leading_pairs import leading_pairs, residual_bounds

RANK = 1e-12  # share of the largest variance below which pairs are rounding, without a direction
ROUGH_RANK = 1e-6  # the same for float32 products that are not corrected afterwards
RANKS = {"single": ROUGH_RANK, "double": RANK}
# The same for components that are written as they are computed, and cannot be corrected afterwards: products of
# different components grow as rounding times the first variance over their own, to 1e-6 about here.
STORED_RANKS = {"single": 1e-3, "double": 1e-9}
APART = 1e-2  # share of the first variance above which components are orthogonal as computed
ORTHONORMAL = {"float32": 5e-7, "float64": 1e-13}  # deviation from orthonormality that needs no correction
SOLUTION = "solution."  # prefix of the names of its arrays in a state


@dataclass(frozen=True)
class Factors:
    """Vectors that are multiplied with samples to compute components.

    Attributes
    ----------
    vectors : ndarray of shape (n, k)
        Eigenvectors of the Gram matrix, scaled, each row times the root of its sample's weight.
    along : ndarray of shape (n, 8)
        X W, each row times the same root: its product with X^T is S W.
    share : ndarray of shape (n,) or None
        Weights, adding up to 1; None if all are equal.
    precision : {"single", "double"}
        Precision of products.
    tile : int
        Number of features multiplied at a time.
    one_thread : bool
        Whether several ranges are computed at the same time (`streampca.execution.threads`).
    device : str
        Device that multiplies (`streampca.accumulators.products`).
    """

    vectors: Float64
    along: Float64
    share: Float64 | None
    precision: str
    tile: int
    one_thread: bool = False
    device: str = ""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of products."""
        return np.dtype(np.float64 if self.precision == "double" else np.float32)

    def mean_of(self, values: Block) -> Float64:
        """Return the mean of samples, (n, width)."""
        return values.sum(self.share) / (len(self.vectors) if self.share is None else 1.0)

    @cached_property
    def working(self) -> Array:
        """Vectors and ``along`` together, (k + 8, n) in the precision of products: one product instead of two."""
        together: Array = np.concatenate([self.vectors, self.along], axis=1, dtype=self.dtype).T
        together.flags.writeable = False  # a device keeps them
        return together


@dataclass(frozen=True)
class Pairs:
    """Eigenpairs of the Gram matrix, and how components are computed from them.

    Attributes
    ----------
    trace : float
        Trace of the matrix.
    exact : bool
        Whether the matrix was summed without any rounding.
    products, rounding : ndarray of shape (n, 8)
        X W, and its measured error.
    solution : Solution
        Leading pairs of the matrix.
    mixed : ndarray of shape (k, m)
        Components are ``mixed @ vectors^T X``.
    vectors, sizes : ndarray of shape (n, m) and (m,)
        Eigenvectors and eigenvalues as computed by the solver.
    dtype : dtype
        Stored dtype of components.
    polishes : bool
        Whether rounding is corrected by the products of components with one another.
    lost : bool
        Whether components above rounding were dropped because they cannot be made orthogonal to the others.
    bounds : ndarray of shape (k,) or None
        Bounds on the errors of `sizes`, if known.
    on_integer_units : bool
        Whether the matrix was computed on integer units.
    """

    trace: float
    exact: bool
    products: Float64
    rounding: Float64
    solution: Solution
    mixed: Float64
    vectors: Float64
    sizes: Float64
    dtype: np.dtype[Any]
    polishes: bool
    lost: bool
    bounds: Float64 | None = None
    on_integer_units: bool = False

    def factors(self, job: Job, *, one_thread: bool) -> Factors:
        """Return the vectors to multiply samples with: unchanged if mixing comes later, otherwise scaled.

        They are made orthogonal again to the roots of the weights, as centring made them: a part along the roots, due
        to rounding, would be multiplied by the distance of mean and subtracted centre, in components and probes.
        """
        weights, plan = job.weights, job.plan
        vectors = self.vectors if self.polishes else self.vectors @ self.mixed.T
        roots = np.ones(len(vectors)) if weights is None else np.sqrt(weights)
        share = None if weights is None else weights / weights.sum()
        left, right = (
            roots[:, None] * (columns - np.outer(roots, roots @ columns) / np.sum(roots**2))
            for columns in (vectors, self.products)
        )
        precision = "double" if self.dtype == np.float64 else plan.precision
        return Factors(left, right, share, precision, plan.product_features, one_thread, plan.request.device)

    def state(self) -> dict[str, Array]:
        """Return everything that is not None as plain arrays."""
        values = {name: value for name, value in vars(self).items() if name not in ("solution", "dtype")}
        return as_arrays({**values, "dtype": self.dtype.str}) | as_arrays(vars(self.solution), SOLUTION)

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> Pairs:
        """Return the pairs whose `state` this is."""
        values = as_values({name: array for name, array in state.items() if not name.startswith(SOLUTION)})
        return cls(**{**values, "dtype": np.dtype(values["dtype"])}, solution=Solution(**as_values(state, SOLUTION)))

    @property
    def rounding_along(self) -> Float64:
        """Measured error of X W along the components, (8, k)."""
        return ((self.rounding.T @ self.vectors) * self.sizes) @ self.mixed.T


def solved(gram: Gram, job: Job) -> Pairs:
    """Return the leading pairs of the Gram matrix whose values are above rounding."""
    plan = job.plan
    exact, agrees = gram.exact, gram.agrees
    sums_exactly, centred = gram.sums_exactly and agrees is not False, gram.centred(job.weights)
    warn_of_wrong_sums(agrees, job.listener)
    hand_back()
    check_variance(centred.trace, job.collection.source, plan)
    rough = plan.precision == "single" and not exact
    solution = leading_pairs(centred, plan, job.listener, job.total_weight)
    least = STORED_RANKS["single" if rough else "double"] if plan.stored else RANK
    count, n_resolved = (int(np.count_nonzero(solution.values > rank * solution.values[0])) for rank in (least, RANK))
    # Written components cannot be combined afterwards.
    polishes = rough and not plan.stored
    lost = count < n_resolved
    # Pairs below rounding leave nothing: the next eigenvalue is 0, unless pairs above rounding are lost.
    if count < len(solution.values):
        solution = solution.first(count) if lost else replace(solution.first(count), next_value=0.0)
    # X^T u / sqrt(mu), or unscaled vectors that are combined after their products are known.
    mixed = np.eye(count) if polishes else np.diag(solution.values**-0.5)
    return Pairs(
        trace=centred.trace,
        exact=sums_exactly,
        products=centred.products,
        rounding=centred.rounding,
        solution=solution,
        mixed=mixed,
        vectors=solution.vectors,
        sizes=solution.values,
        dtype=stored_dtype(solution.values, plan),
        polishes=polishes,
        lost=lost,
        bounds=residual_bounds(centred, solution.values, solution.vectors) if agrees and job.weights is None else None,
        on_integer_units=gram.n_on_integer_units > 0,
    )
