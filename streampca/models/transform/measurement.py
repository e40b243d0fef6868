"""Samples measured block by block, with nothing written: the fold, and how many fit beside a model's components."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ...errors import BudgetError
from ...events import BlockDone, Listener, PassStarted, reported, silent
from ...execution import LocalExecutor
from ...execution.fold import one_span
from ...planning import plan_application
from ...planning.blocks import Span, blocks_of
from ...planning.budget import MOST_BLOCK, check_budget
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

Array = npt.NDArray[Any]
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
        ``function(block, rows)``, with the rows of each collection; adds up what it measures.
    collections : sequence of Collection
        Of as many samples each.
    block_rows, ahead : int
        Samples in memory at once, and blocks read ahead.
    listener : callable
        Told of progress.
    """
    n = collections[0].n_samples
    task = _Measuring(function, collections, block_rows)
    everything = task.counts(Span(0, n))
    with reported(listener, PassStarted("samples", 1, 1, everything.samples, everything.bytes)), ExitStack() as stack:
        for each in collections:
            stack.enter_context(unchanged(each))
        LocalExecutor().fold(task, [Span(0, n)], one_span, ahead=ahead, listener=listener)


@dataclass(frozen=True)
class _Measuring:
    """Show blocks to a function; see `streampca.execution.Task`. What is added up is the function's."""

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
        return BlockDone(block.size, block.size * sum(each.row_bytes for each in self.collections))

    def fetch(self, block: Span) -> list[Array]:
        return [each.read(slice(*block)) for each in self.collections]

    def feed(self, accumulator: Self, block: Span, fetched: list[Array]) -> None:
        self.function(block, fetched)


class Rows(NamedTuple):
    """Number of samples in memory at once, blocks read ahead, and whether the components are in memory too."""

    at_once: int
    ahead: int
    are_held: bool


def rows_beside(subspace: Subspace, frame: Frame, collections: Sequence[Collection], memory: int | str | None) -> Rows:
    """Choose how many samples to work on at once.

    Parameters
    ----------
    subspace, frame : Subspace, Frame
        Those of a model.
    collections : sequence of Collection
        Prepared samples; as many of each are in memory together.
    memory : int, str or None
        Budget; the default as for `Request`.

    Raises
    ------
    BudgetError
        If not even single samples fit, naming the budget that would do.
    """
    budget, source = this_machine().budget(parse_bytes(memory))
    problem, (k, p) = _together(collections), subspace.components.shape
    dtype = subspace.components.dtype
    if subspace.missing == "em" and any(each.dtype.kind == "f" for each in collections):
        problem = replace(problem, scratch_bytes=problem.scratch_bytes + least_squares_bytes(p, k))
    try:
        plan = plan_application(  # of scores
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
    at_once = partial(_beside_ranges, subspace, frame, collections, problem)
    what = f"comparing samples of {p} features with {k} components in ranges"
    check_budget(what, lambda size: at_once(size) > 0, budget, source)
    return Rows(at_once(budget), 0, False)


def _together(collections: Sequence[Collection]) -> Problem:
    """Return the samples of all collections side by side, in integers; they are decoded one after another."""
    problems = [problem_of(each) for each in collections]
    return replace(
        problems[0],
        row_bytes=sum(each.row_bytes for each in problems),
        prepared_bytes=sum(each.prepared_bytes for each in problems),
        decode_bytes=max(each.decode_bytes for each in problems),
        scratch_bytes=max(each.scratch_bytes for each in problems),
        held_bytes=sum(each.held_bytes for each in problems),
    )


def _beside_ranges(
    subspace: Subspace, frame: Frame, collections: Sequence[Collection], problem: Problem, budget: int
) -> int:
    """Return the samples that fit beside a range of the components; none or less where there is no room."""
    width = max(span.size for span in subspace.ranges(0))
    dtype = np.result_type(*(working_dtype(each.dtype, subspace.components.dtype) for each in collections))
    parts = Projection(subspace, frame, collections[0]).parts()
    column = parts.column_bytes + len(subspace.components) * dtype.itemsize
    held = parts.held_bytes + problem.held_bytes + parts.reading_bytes + 2 * width * column
    room = budget - RUNTIME_BYTES - held - problem.decode_bytes - problem.scratch_bytes
    row = 2 * (problem.row_bytes + problem.prepared_bytes) + 2 * width * dtype.itemsize
    row += 3 * 8 * len(subspace.components) * len(collections)  # scores, their sums, and as they are compared
    return min(room // row, max(1, MOST_BLOCK // row), problem.n_samples)
