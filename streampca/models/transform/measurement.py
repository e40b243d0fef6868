"""Measurement of samples block by block, without an output: the fold, and the number of samples in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from ...arrays import Array
from ...errors import BudgetError
from ...events import BlockDone, Listener, PassStarted, reported, silent
from ...execution import LocalExecutor
from ...execution.fold import one_span
from ...planning import plan_application
from ...planning.blocks import MOST_BLOCK, Span, blocks_of
from ...planning.candidate_sizes import check_budget
from ...planning.memory import RUNTIME_BYTES
from ...planning.request import Problem
from ...preprocessing import Frame
from ...preprocessing.sizes_for_planning import problem_of, this_machine
from ...readers import Collection
from ...readers.collection import unchanged
from ...units import parse_bytes
from ..least_squares import least_squares_bytes
from ..subspace import Subspace, working_dtype
from .projection import Projection

Measure = Callable[[Span, list[Array]], None]


def measure(
    function: Measure,
    collections: Sequence[Collection],
    block_rows: int,
    *,
    ahead: int = 0,
    listener: Listener = silent,
) -> None:
    """Call a function with every block of prepared samples, in order, and refuse sources that change meanwhile.

    Parameters
    ----------
    function : callable
        ``function(block, rows)``, with the rows of each collection; it adds up the measurements.
    collections : sequence of Collection
        Collections with the same number of samples.
    block_rows, ahead : int
        Samples in memory at once, and blocks read ahead.
    listener : callable
        Receiver of progress events.
    """
    n = collections[0].n_samples
    task = _Measuring(function, collections, block_rows)
    total = task.counts(Span(0, n))
    with reported(listener, PassStarted("samples", 1, 1, total.samples, total.bytes)), ExitStack() as stack:
        for collection in collections:
            stack.enter_context(unchanged(collection))
        LocalExecutor().fold(task, [Span(0, n)], one_span, ahead=ahead, listener=listener)


@dataclass(frozen=True)
class _Measuring:
    """Task that passes blocks to a function, which keeps the sums itself; see `streampca.execution.Task`."""

    function: Measure
    collections: Sequence[Collection]
    block_rows: int

    def start(self) -> Self:
        return self

    def restore(self, state: dict[str, Array]) -> Self:
        return self

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        return {}

    def blocks(self, span: Span) -> Iterable[Span]:
        return blocks_of(span, self.block_rows)

    def counts(self, block: Span) -> BlockDone:
        return BlockDone(block.size, block.size * sum(collection.row_bytes for collection in self.collections))

    def fetch(self, block: Span) -> list[Array]:
        return [collection.read(slice(*block)) for collection in self.collections]

    def feed(self, accumulator: Self, block: Span, fetched: list[Array]) -> None:
        self.function(block, fetched)


class Rows(NamedTuple):
    """Number of samples in memory at once, of blocks read ahead, and whether the components are in memory too."""

    at_once: int
    ahead: int
    are_held: bool


def rows_beside(subspace: Subspace, frame: Frame, collections: Sequence[Collection], memory: int | str | None) -> Rows:
    """Choose how many samples are in memory at once, beside the components of a model or ranges of them.

    Parameters
    ----------
    subspace, frame : Subspace, Frame
        Subspace and frame of the model.
    collections : sequence of Collection
        Prepared samples; the same number of each is in memory.
    memory : int, str or None
        Budget; the default as for `Request`.

    Raises
    ------
    BudgetError
        If not even single samples fit; names a sufficient budget.
    """
    budget, source = this_machine().budget(parse_bytes(memory))
    problem, (k, p) = _combined_problem(collections), subspace.components.shape
    dtype = subspace.components.dtype
    if subspace.missing == "em" and any(collection.dtype.kind == "f" for collection in collections):
        problem = replace(problem, scratch_bytes=problem.scratch_bytes + least_squares_bytes(p, k))
    try:
        # Three arrays of scores: as projected, their sums, and as compared.
        plan = plan_application(
            problem=problem,
            components_shape=(k, p),
            component_itemsize=dtype.itemsize,
            out_bytes=3 * 8 * k,
            memory=budget,
            ahead=1,
        )
        return Rows(plan.block_rows, plan.ahead, True)
    except BudgetError:
        if subspace.is_held:
            raise
    # The components do not fit: they are read range by range for every block, so blocks are as large as possible.
    at_once = partial(_rows_beside_ranges, subspace, frame, collections, problem)
    subject = f"comparing samples of {p} features with {k} components in ranges"
    check_budget(subject, lambda size: at_once(size) > 0, budget, source)
    return Rows(at_once(budget), 0, False)


def _combined_problem(collections: Sequence[Collection]) -> Problem:
    """Return the sizes of reading all collections together; they are decoded one after another."""
    problems = [problem_of(collection) for collection in collections]
    return replace(
        problems[0],
        row_bytes=sum(problem.row_bytes for problem in problems),
        prepared_bytes=sum(problem.prepared_bytes for problem in problems),
        decode_bytes=max(problem.decode_bytes for problem in problems),
        scratch_bytes=max(problem.scratch_bytes for problem in problems),
        held_bytes=sum(problem.held_bytes for problem in problems),
    )


def _rows_beside_ranges(
    subspace: Subspace, frame: Frame, collections: Sequence[Collection], problem: Problem, budget: int
) -> int:
    """Return the number of samples that fit beside a range of the components; 0 or less if none fit."""
    width = max(span.size for span in subspace.ranges(0))
    dtype = np.result_type(*(working_dtype(collection.dtype, subspace.components.dtype) for collection in collections))
    parts = Projection(subspace, frame, collections[0]).parts()
    column = parts.column_bytes + len(subspace.components) * dtype.itemsize
    held = parts.held_bytes + problem.held_bytes + parts.reading_bytes + 2 * width * column
    remaining = budget - RUNTIME_BYTES - held - problem.decode_bytes - problem.scratch_bytes
    row = 2 * (problem.row_bytes + problem.prepared_bytes) + 2 * width * dtype.itemsize
    row += 3 * 8 * len(subspace.components) * len(collections)  # scores, their sums, and scores as compared
    return min(remaining // row, max(1, MOST_BLOCK // row), problem.n_samples)
