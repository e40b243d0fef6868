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
from functools import partial
from typing import Any

import numpy as np

from ..accumulate import Gram
from ..blocks import Span, blocks_of, panel_steps
from ..events import Listener, PassFinished, PassStarted, Warned, silent
from ..execute import Executor, Keeper, SerialExecutor
from ..machine import hand_back
from ..planning import Plan
from ..readers import Collection
from ..resumable import Begun
from .components import Factors, Kept
from .gathering import Features, PairsTask, Products, SweepTask, spread_mean
from .leading import next_value
from .pairs import Pairs, polished, solved
from .projecting import ColumnsTask, RangesTask, part_of_state
from .protocol import Anew, Decomposition, Float64, Keep, one_span
from .scratch import scratch_copy
from .written import Sink, Written, begun_of

LOST = (
    "components of less than a millionth of the first variance were left out: products in single precision do not tell "
    "them from rounding. Use precision='double' for them."
)

GONE = "the components that were written before are not there as they were: they are made again."

COMPONENTS = "components"  # the stage of making them

OpenSink = Callable[[int, np.dtype[Any], Begun | None], Sink]


def fit_dual(
    collection: Collection,
    plan: Plan,
    executor: Executor,
    *,
    weights: Float64 | None = None,
    listener: Listener,
    keep: Keep | None = None,
    scratch: str | None = None,
    sink: OpenSink | None = None,
) -> Decomposition:
    """Carry out a plan of method 'dual'.

    Parameters
    ----------
    collection, plan, executor, weights, listener, keep
        See `streampca.methods`.
    scratch : str, optional
        Name of a file to make for a scratch copy; removed afterwards, whatever happens.
    sink : callable, optional
        ``sink(k, dtype, begun)`` gives where components are written as they are made, where the plan says so; it goes
        on with those that were begun, if it can.

    Raises
    ------
    DataError
        If a sample holds NaN or infinity, or all samples are equal.
    OutputError
        If a scratch copy cannot be written.
    """

    def find(reads: Reads) -> Pairs:
        return solved(reads.gram(executor, keep), collection, plan, weights, listener)

    how: dict[str, Any] = {"weights": weights, "listener": listener, "keep": keep, "scratch": scratch, "sink": sink}
    pairs, basis = with_components(collection, plan, find, **how)
    asked, found = plan.request.n_components, len(pairs.solution.values)
    if pairs.lost:
        listener(Warned(LOST))
    elif isinstance(asked, int) and found < asked:
        listener(Warned(f"{collection.source} spans {found} dimensions; there are no more components."))
    return decomposed(basis, pairs, weights, plan)


def with_components(
    collection: Collection,
    plan: Plan,
    find: Callable[[Reads], Pairs],
    *,
    weights: Float64 | None,
    listener: Listener,
    keep: Keep | None,
    scratch: str | None,
    sink: OpenSink | None,
) -> tuple[Pairs, Kept | Written]:
    """Find eigenpairs of the Gram matrix, reading as a plan says, and make components of them; see `fit_dual`."""
    copying = plan.schedule == "scratch"
    with (
        scratch_copy(collection, scratch or "", plan, listener, keep) if copying else nullcontext(collection) as source
    ):
        reads = Reads(source, plan, listener)
        kept, begun = _kept_pairs(keep, plan)
        pairs = kept or find(reads)
        hand_back()
        factors = pairs.factors(weights, plan, in_lane=reads.lanes > 1)
        basis = reads.basis(factors, pairs, sink if plan.stored else None, begun, keep)
    del reads, factors
    if isinstance(basis, Kept):
        pairs = polished(basis, pairs) if pairs.polishes else pairs
        basis.fix_signs()
    return pairs, basis


def _kept_pairs(keep: Keep | None, plan: Plan) -> tuple[Pairs | None, Begun | None]:
    """The pairs that components were being made of when they were last kept, and those that were written."""
    saved = keep(COMPONENTS).saved(0) if keep else None
    if saved is None:
        return None, None
    pairs = Pairs.from_state(part_of_state(saved.state, "pairs"))
    return pairs, begun_of(part_of_state(saved.state, "basis")) if plan.stored else None


class Reads:
    """A collection as a plan reads it: by ranges of features, or by panels of samples about a provisional mean.

    Attributes
    ----------
    features : Features
        Reads ranges.
    lanes : int
        Tiles that are multiplied at a time.
    done : int
        Passes before that of components, beside a scratch copy.
    """

    def __init__(self, source: Collection, plan: Plan, listener: Listener) -> None:
        self._source, self._plan, self._listener = source, plan, listener
        self._n, self._p = source.n_samples, source.n_features
        self._once = plan.schedule != "pairs" and plan.block_features >= self._p
        rows = self._n if plan.schedule == "scratch" else plan.block_rows
        self.features = Features(source, rows, plan.block_features)
        self.done = 1
        self._centre = spread_mean(source) if plan.schedule == "pairs" else None
        self.lanes = Gram.lanes_for(self._n, plan.precision, plan.cores)
        self._before, passes = int(plan.schedule == "scratch"), 2 - self._once + (plan.schedule == "scratch")
        self._passes = None if plan.width else passes  # how many a solver takes that asks for products nobody knows

    def gram(self, executor: Executor, keep: Keep | None) -> Gram:
        """Read and multiply: the Gram matrix, not centred yet."""
        plan, samples = self._plan, self._n
        products = Products(self._n, plan.precision, plan.product_features, self.lanes, plan.request.seed)
        task: SweepTask[Gram] | PairsTask
        if self._centre is None:
            task = SweepTask(self.features, plan.block_features, products)
        else:
            steps = panel_steps(self._n, plan.panel_rows, plan.block_rows)
            task = PairsTask(self._source, steps, self._centre, products)
            samples = steps.samples
        with self.told("Gram matrix", 1, samples):
            keeper = keep("gram") if keep else None
            return executor.fold(task, plan.spans, Gram.absorb, listener=self._listener, keeper=keeper)

    def basis(
        self, factors: Factors, pairs: Pairs, sink: OpenSink | None, begun: Begun | None, keep: Keep | None
    ) -> Kept | Written:
        """Read again, unless everything is in memory still: components and mean."""
        plan, count = self._plan, factors.vectors.shape[1]
        keeper: Keeper | None = keep(COMPONENTS) if keep else None
        basis: Kept | Written
        if sink is None:
            basis = Kept((count, self._p), pairs.dtype, plan.request.seed)
        else:
            out = sink(count, pairs.dtype, begun)
            most = plan.component_features or self._p
            basis = Written((count, self._p), pairs.dtype, plan.request.seed, out, most)
            if keeper is not None and begun is not None and not out.goes_on:
                self._listener(Warned(GONE))
                keeper = Anew(keeper)
        task, count = self._making(factors, basis, pairs)
        run = partial(SerialExecutor().fold, task, (Span(0, count),), one_span, keeper=keeper)
        if self._once:
            run(listener=silent)
            return basis
        passes = 1 if self._centre is None else -(-self._p // plan.component_features)
        with self.told("components", self.done + 1, self._n * passes):
            run(listener=self._listener)
        return basis

    def _making(self, factors: Factors, basis: Kept | Written, pairs: Pairs) -> tuple[RangesTask | ColumnsTask, int]:
        """The task that makes components, and its number of blocks."""
        plan = self._plan
        if self._centre is not None:
            rows, width = plan.block_rows, plan.component_features
            columns = ColumnsTask(self._source, rows, width, self._centre, factors, basis, pairs)
            return columns, columns.steps
        order = list(blocks_of(Span(0, self._p), plan.block_features))
        if not plan.stored:  # what is written as it is made is written in order
            order = [order[-1], *order[:-1]]  # the range read last is there still
        return RangesTask(self.features, tuple(order), factors, self.lanes, basis, pairs), len(order)

    @contextmanager
    def told(self, label: str, number: int, samples: int) -> Iterator[None]:
        """Tell the listener of a pass."""
        began = time.perf_counter()
        count = samples * self._source.row_bytes
        self._listener(PassStarted(label, self._before + number, self._passes, samples, count))
        yield
        self._listener(PassFinished(time.perf_counter() - began))


def decomposed(basis: Kept | Written, pairs: Pairs, weights: Float64 | None, plan: Plan) -> Decomposition:
    """What comes out, with what bounds the errors of components as they are stored."""
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
