"""The exact method when features outnumber samples: the n x n Gram matrix, then components by a last read.

G = X X^T of centred samples has the nonzero eigenvalues of S = X^T X; where G u = mu u the component is
X^T u / sqrt(mu). Data are read by ranges of features with all samples in memory (*sweep*), by panels of samples that
meet one another (*pairs*), or written once to a copy that is quick to read by features (*scratch*); the plan says how.

Cost: n^2 p flops for the Gram matrix, 8/3 n^3 for a dense solve, 2 n p k for the components.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import eigh

from ..accumulate import Gram
from ..blocks import Span, blocks_of, panel_steps
from ..events import BlockDone, Listener, PassFinished, PassStarted, Warned
from ..execute import Executor
from ..execute.protocol import Offer
from ..lanes import in_lanes
from ..machine import hand_back
from ..planning import Plan
from ..readers import Collection
from ..solve import Solution
from .components import Factors, Kept, Range, Sink, Written
from .faults import check_variance
from .gathering import Features, PairsTask, Products, SweepTask, spread_mean
from .leading import leading_pairs, next_value
from .protocol import Array, Decomposition, Float64, stored_dtype
from .scratch import scratch_copy

RANK = 1e-12  # of the largest variance: below lies rounding, and no direction
ROUGH_RANK = 1e-6  # ... where float32 products were not made good afterwards
LOST = (
    "components of less than a millionth of the first variance were left out: products in single precision do not tell "
    "them from rounding. Use precision='double' for them."
)

OpenSink = Callable[[int, np.dtype[Any]], Sink]


def fit_dual(
    collection: Collection,
    plan: Plan,
    executor: Executor,
    *,
    weights: Float64 | None = None,
    listener: Listener,
    offer: Offer | None = None,
    scratch: str | None = None,
    sink: OpenSink | None = None,
) -> Decomposition:
    """Carry out a plan of method 'dual'.

    Parameters
    ----------
    collection, plan, executor, weights, listener, offer
        See `streampca.methods`.
    scratch : str, optional
        Name of a file to make for a scratch copy; removed afterwards, whatever happens.
    sink : callable, optional
        ``sink(k, dtype)`` gives where components are written as they are made, where the plan says so.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, or all samples are equal.
    OutputError
        If a scratch copy cannot be written.
    """
    copies = plan.schedule == "scratch"
    with scratch_copy(collection, scratch or "", plan, listener) if copies else nullcontext(collection) as source:
        data = _Data(source, plan, listener)
        pairs = _solved(data.gram(executor, offer), collection, plan, weights, listener)
        hand_back()
        basis = data.basis(
            pairs.factors(weights, plan, in_lane=data.lanes > 1), pairs.dtype, sink if plan.stored else None
        )
    if isinstance(basis, Kept):
        pairs = _polished(basis, pairs) if pairs.polishes else pairs
        basis.fix_signs()
    asked, found = plan.request.n_components, len(pairs.solution.values)
    if pairs.lost:
        listener(Warned(LOST))
    elif isinstance(asked, int) and found < asked:
        listener(Warned(f"{collection.source} spans {found} dimensions; there are no more components."))
    return _decomposed(basis, pairs, weights, plan)


@dataclass(frozen=True)
class _Pairs:
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
        Whether there may be more, which products in single precision do not tell from rounding.
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

    def factors(self, weights: Float64 | None, plan: Plan, *, in_lane: bool) -> Factors:
        """What to multiply samples with: vectors as they are, where mixing comes later, or scaled.

        Made orthogonal once more to the roots of the weights, as centring had made them: what rounding left of that
        would be multiplied by the distance of the mean from the centre subtracted, in components and probes alike.
        """
        vectors = self.vectors if self.polishes else self.vectors @ self.mixed.T
        roots = np.ones(len(vectors)) if weights is None else np.sqrt(weights)
        share = None if weights is None else weights / weights.sum()
        left, right = (
            roots[:, None] * (found - np.outer(roots, roots @ found) / np.sum(roots**2))
            for found in (vectors, self.products)
        )
        precision = "double" if self.dtype == np.float64 else plan.precision
        return Factors(left, right, share, precision, plan.product_features, in_lane)

    @property
    def rounding_along(self) -> Float64:
        """What the measured error of X W amounts to along the components, (8, k)."""
        return ((self.rounding.T @ self.vectors) * self.sizes) @ self.mixed.T


def _solved(gram: Gram, collection: Collection, plan: Plan, weights: Float64 | None, listener: Listener) -> _Pairs:
    """The leading pairs that have a direction: those above rounding."""
    exact, centred = gram.exact, gram.centred(weights)
    hand_back()
    check_variance(centred.trace, collection, plan)
    rough = plan.precision == "single" and not exact
    solution = leading_pairs(centred, plan, listener)
    least = ROUGH_RANK if rough and plan.stored else RANK
    count = int(np.count_nonzero(solution.values > least * solution.values[0]))
    polishes = rough and not plan.stored
    lost = count < len(solution.values) and least == ROUGH_RANK
    if count < len(solution.values):
        solution = solution.first(count) if lost else replace(solution.first(count), next_value=0.0)
    mixed = np.eye(count) if polishes else np.diag(solution.values**-0.5)
    return _Pairs(
        trace=centred.trace,
        exact=exact,
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


class _Data:
    """A collection as a plan reads it: by ranges of features, or by panels of samples about a provisional mean."""

    def __init__(self, source: Collection, plan: Plan, listener: Listener) -> None:
        self._source, self._plan, self._listener = source, plan, listener
        self._n, self._p = source.n_samples, source.n_features
        self._once = plan.schedule != "pairs" and plan.block_features >= self._p
        rows = self._n if plan.schedule == "scratch" else plan.block_rows
        self._features = Features(source, rows, plan.block_features)
        self._centre = spread_mean(source) if plan.schedule == "pairs" else None
        self.lanes = Gram.lanes_for(self._n, plan.precision, plan.cores)
        self._before, self._passes = int(plan.schedule == "scratch"), 2 - self._once + (plan.schedule == "scratch")

    def gram(self, executor: Executor, offer: Offer | None) -> Gram:
        """Read and multiply: the Gram matrix, not centred yet."""
        plan, samples = self._plan, self._n
        products = Products(self._n, plan.precision, plan.product_features, self.lanes, plan.request.seed)
        task: SweepTask | PairsTask
        if self._centre is None:
            task = SweepTask(self._features, plan.block_features, products)
        else:
            steps = panel_steps(self._n, plan.panel_rows, plan.block_rows)
            task = PairsTask(self._source, steps, self._centre, products)
            samples = steps.samples
        with self._told("Gram matrix", 1, samples):
            return executor.fold(task, plan.spans, Gram.absorb, listener=self._listener, offer=offer)

    def basis(self, factors: Factors, dtype: np.dtype[Any], sink: OpenSink | None) -> Kept | Written:
        """Read again, unless everything is in memory still: components and mean."""
        plan, count = self._plan, factors.vectors.shape[1]
        shape, seed = (count, self._p), plan.request.seed
        basis: Kept | Written
        if sink is None:
            basis = Kept(shape, dtype, seed)
        else:
            basis = Written(shape, dtype, seed, sink(count, dtype), plan.component_features or self._p)
        if self._once:
            for made, _ in self._ranges(factors):
                basis.take(made)
            return basis
        passes = 1 if self._centre is None else -(-self._p // plan.component_features)
        with self._told("components", 2, self._n * passes):
            found = self._ranges(factors) if self._centre is None else self._columns(factors, self._centre)
            for made, done in found:
                basis.take(made)
                if done is not None:
                    self._listener(done)
        return basis

    def _ranges(self, factors: Factors) -> Iterator[tuple[Range, BlockDone | None]]:
        """Components of a tile of features at a time, from ranges with all samples."""
        tile, every = self._plan.product_features, Span(0, self._n)
        benches = [np.empty(self._n * min(tile, self._p), factors.dtype) for _ in range(self.lanes)]

        def made(features: Span, block: Array, bench: Array) -> tuple[Range, Array]:
            found = Range(factors, features, None)
            found.add(every, block, bench)
            return found, bench

        # What is written as it is made is written in order.
        ordered = blocks_of(Span(0, self._p), self._plan.block_features)
        for wide in ordered if self._plan.stored else self._features.ranges():
            block, left = self._features.read(wide), self._features.done(wide)
            tasks = (
                partial(made, features, block[:, features.start - wide.start : features.stop - wide.start])
                for features in blocks_of(wide, tile)
            )
            for found, bench in in_lanes(lambda task: task(benches.pop()), tasks, self.lanes):
                yield found, left if found.features.stop == wide.stop else None
                benches.append(bench)
            del block, tasks, found  # before the next is read: there is room for one

    def _columns(self, factors: Factors, centre: Float64) -> Iterator[tuple[Range, BlockDone | None]]:
        """Components of as many features at a time as are made in one read, from blocks of whole samples."""
        for features in blocks_of(Span(0, self._p), self._plan.component_features):
            made = Range(factors, features, centre[slice(*features)])
            some = None if features.size == self._p else slice(*features)
            for rows in blocks_of(Span(0, self._n), self._plan.block_rows):
                made.add(rows, self._source.read(slice(*rows), some))
                self._listener(BlockDone(rows.size, rows.size * self._source.row_bytes))
            yield made, None

    @contextmanager
    def _told(self, label: str, number: int, samples: int) -> Iterator[None]:
        """Tell the listener of a pass."""
        began = time.perf_counter()
        count = samples * self._source.row_bytes
        self._listener(PassStarted(label, self._before + number, self._passes, samples, count))
        yield
        self._listener(PassFinished(time.perf_counter() - began))


def _polished(basis: Kept, pairs: _Pairs) -> _Pairs:
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


def _decomposed(basis: Kept | Written, pairs: _Pairs, weights: Float64 | None, plan: Plan) -> Decomposition:
    solution, n = pairs.solution, plan.problem.n_samples
    weight = float(n if weights is None else weights.sum())
    spectrum = solution.spectrum
    after = next_value(solution, plan.problem.n_features)
    certificate = basis.certificate(solution.values, after, pairs.rounding_along)
    return Decomposition(
        mean=basis.mean,
        components=basis.components,
        explained_variance=solution.values / (weight - 1),
        error_bound=certificate.relative,
        angle_bound=certificate.angle,
        eigenvalues=None if spectrum is None else spectrum / (weight - 1),
        total_variance=pairs.trace / (weight - 1),
        n_samples=n if weights is None else int(np.count_nonzero(weights)),
        total_weight=weight,
        exact=pairs.exact,
        statistic=None,
    )
