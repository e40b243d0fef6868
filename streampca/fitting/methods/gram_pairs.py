"""Eigenpairs of the Gram matrix, and how components are made of them: what the dual method knows between its reads."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.linalg import eigh, lapack

from ...accumulators import Gram
from ...eigensolvers import Solution
from ...machine import hand_back
from .data_checks import check_variance
from .dual_components import Factors, Kept
from .job import Array, Float64, Job, stored_dtype
from .leading_pairs import leading_pairs

RANK = 1e-12  # of the largest variance: below lies rounding, and no direction
ROUGH_RANK = 1e-6  # ... where float32 products were not made good afterwards
RANKS = {"single": ROUGH_RANK, "double": RANK}
# ... where components are written as they are made, and nothing can be taken off them afterwards: their products with
# one another grow as rounding times the first variance over their own, to 1e-6 about here.
STORED_RANKS = {"single": 1e-3, "double": 1e-9}
APART = 1e-2  # of the first variance: components of more are orthogonal as they are made
ORTHONORMAL = {"float32": 5e-7, "float64": 1e-13}  # products of components with one another that need no mending


@dataclass(frozen=True)
class Pairs:
    """Eigenpairs of the Gram matrix, and how components are made of them.

    Attributes
    ----------
    trace : float
        Of the matrix.
    exact : bool
        Whether it was summed without any rounding.
    products, rounding : ndarray of shape (n, 8)
        X W, and the measured error of it.
    solution : Solution
        Its leading pairs.
    mixed : ndarray of shape (k, m)
        Components are ``mixed @ vectors^T X``.
    vectors, sizes : ndarray of shape (n, m) and (m,)
        Eigenvectors and values as they were found.
    dtype : dtype
        Components are stored in.
    polishes : bool
        Whether components are multiplied with one another, once they are made, to make rounding good.
    lost : bool
        Whether components were left out that are no rounding, but are not orthogonal to the others as they are made.
    bounds : ndarray of shape (k,) or None
        How far each of `sizes` may be from a true one, where that is known.
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

    def factors(self, job: Job, *, one_thread: bool) -> Factors:
        """What to multiply samples with: vectors as they are, where mixing comes later, or scaled.

        Made orthogonal once more to the roots of the weights, as centring had made them: what rounding left of that
        would be multiplied by the distance of the mean from the centre subtracted, in components and probes alike.
        """
        weights, plan = job.weights, job.plan
        vectors = self.vectors if self.polishes else self.vectors @ self.mixed.T
        roots = np.ones(len(vectors)) if weights is None else np.sqrt(weights)
        share = None if weights is None else weights / weights.sum()
        left, right = (
            roots[:, None] * (found - np.outer(roots, roots @ found) / np.sum(roots**2))
            for found in (vectors, self.products)
        )
        precision = "double" if self.dtype == np.float64 else plan.precision
        return Factors(left, right, share, precision, plan.product_features, one_thread)

    def state(self) -> dict[str, Array]:
        """Everything as plain arrays; what is not there is left out."""
        mine = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("solution", "dtype")
        }
        found = {field.name: getattr(self.solution, field.name) for field in fields(self.solution)}
        both = {**mine, "dtype": self.dtype.itemsize, **{f"solution_{name}": value for name, value in found.items()}}
        return {name: np.asarray(value) for name, value in both.items() if value is not None}

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> Pairs:
        """Exact inverse of `state`."""
        plain: dict[str, Any] = {name: value if value.ndim else value.item() for name, value in state.items()}
        prefix = "solution_"
        solution: dict[str, Any] = {
            name.removeprefix(prefix): plain.pop(name) for name in state if name.startswith(prefix)
        }
        dtype = np.dtype(f"f{plain.pop('dtype')}")
        return cls(**plain, dtype=dtype, solution=Solution(**solution))

    @property
    def rounding_along(self) -> Float64:
        """What the measured error of X W amounts to along the components, (8, k)."""
        return ((self.rounding.T @ self.vectors) * self.sizes) @ self.mixed.T


def solved(gram: Gram, job: Job) -> Pairs:
    """The leading pairs that have a direction: those above rounding."""
    plan = job.plan
    exact, sums_exactly, centred = gram.exact, gram.sums_exactly, gram.centred(job.weights)
    hand_back()
    check_variance(centred.trace, job.collection.source, plan)
    rough = plan.precision == "single" and not exact
    solution = leading_pairs(centred, plan, job.listener, job.total_weight)
    least = STORED_RANKS["single" if rough else "double"] if plan.stored else RANK
    count, some = (int(np.count_nonzero(solution.values > rank * solution.values[0])) for rank in (least, RANK))
    polishes = rough and not plan.stored
    lost = count < some
    if count < len(solution.values):
        solution = solution.first(count) if lost else replace(solution.first(count), next_value=0.0)
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
    )


def polished(basis: Kept, pairs: Pairs) -> Pairs:
    """Make good what float32 products did to the pairs, by the products of the components with one another.

    For Z = X^T U the matrix Z^T Z is U^T G U of the true G: its eigenpairs are the best to be had in the span of U
    (Rayleigh and Ritz), with errors of the second order, and show which of the directions are rounding alone.
    """
    values, turned = (found[..., ::-1] for found in eigh(basis.gram(), check_finite=False))
    count = int(np.count_nonzero(values > RANK * values[0]))
    values = values[:count]
    mixed = (turned[:, :count] / np.sqrt(values)).T
    basis.turn(mixed)
    solution = pairs.solution
    spectrum = solution.spectrum
    if spectrum is not None:
        spectrum = np.concatenate([values, np.minimum(spectrum[count:], values[-1])])
    after = solution.next_value if count == len(solution.values) else 0.0
    return replace(pairs, solution=replace(solution, values=values, spectrum=spectrum, next_value=after), mixed=mixed)


def orthonormal(basis: Kept, pairs: Pairs) -> Pairs:
    """Make components orthogonal to one another, as those of little variance are not when they are made.

    Of a component X^T u / sqrt(mu) the rounding of u lies along components of larger variance, magnified by sqrt of
    the ratio of the variances. So each is made orthogonal to those before it, which stay as they are, by the Cholesky
    factor L of their products: L^-1 V. What has nothing left of its own is left out.
    """
    values = pairs.solution.values
    if values[-1] >= APART * values[0]:
        return pairs
    products = basis.gram()
    if np.abs(products - np.eye(len(products))).max() <= ORTHONORMAL[pairs.dtype.name]:
        return pairs
    lower, failed = lapack.dpotrf(products, lower=1, overwrite_a=1)
    if failed:
        count = failed - 1
        basis.turn(np.eye(count, len(values)))
        solution = replace(pairs.solution.first(count), next_value=0.0)
        return orthonormal(basis, replace(pairs, solution=solution, mixed=pairs.mixed[:count]))
    turn = np.tril(lapack.dtrtri(lower, lower=1, overwrite_c=1)[0])
    basis.turn(turn)
    return replace(pairs, mixed=turn @ pairs.mixed)
