"""How many samples fit in memory whole, beside a model's components or a range of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...errors import BudgetError
from ...planning import plan_application
from ...planning.budget import MOST_BLOCK, smallest, too_small
from ...planning.memory import RUNTIME_BYTES
from ...planning.request import Problem
from ...preprocessing import Frame
from ...preprocessing.sizes_for_planning import problem_of, this_machine
from ...readers import Collection
from ...units import parse_bytes
from ..subspace import Subspace, working_dtype
from .projection import Projection


class Rows(NamedTuple):
    """How many samples are in memory at once, and whether the components are, or are read range by range."""

    at_once: int
    are_held: bool


def rows_beside(subspace: Subspace, frame: Frame, collections: Sequence[Collection], memory: int | str | None) -> Rows:
    """Choose how many samples to work on at once.

    Parameters
    ----------
    subspace, frame : Subspace, Frame
        Of a model.
    collections : sequence of Collection
        Of prepared samples; so many of each are in memory together.
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
    try:
        like = {"problem": problem, "n_components": k, "n_features": p, "component_itemsize": dtype.itemsize}
        return Rows(plan_application(**like, out_bytes=3 * 8 * k, memory=budget).block_rows, True)  # scores
    except BudgetError:
        if subspace.is_held:
            raise
    count = _beside_ranges(subspace, frame, collections, problem, budget)
    if count < 1:
        least = smallest(lambda size: _beside_ranges(subspace, frame, collections, problem, size) > 0)
        raise too_small(f"comparing samples of {p} features with {k} components in ranges", least, (budget, source))
    return Rows(count, False)


def _together(collections: Sequence[Collection]) -> Problem:
    """Samples of all collections side by side, in integers; they are decoded one after another."""
    problems = [problem_of(each) for each in collections]
    return replace(
        problems[0],
        row_bytes=sum(each.row_bytes for each in problems),
        prepared_bytes=sum(each.prepared_bytes for each in problems),
        decode_bytes=max(each.decode_bytes for each in problems),
        scratch_bytes=max(each.scratch_bytes for each in problems),
    )


def _beside_ranges(
    subspace: Subspace, frame: Frame, collections: Sequence[Collection], problem: Problem, budget: int
) -> int:
    """Samples that fit beside a range of the components; none or less where there is no room."""
    width = max(span.size for span in subspace.ranges(0))
    dtype = max((working_dtype(each.dtype, subspace.components.dtype) for each in collections), key=_size)
    parts = Projection(subspace, frame, collections[0]).parts()
    column = parts.column_bytes + len(subspace.components) * dtype.itemsize
    held = parts.held_bytes + parts.reading_bytes + 2 * width * column
    room = budget - RUNTIME_BYTES - held - problem.decode_bytes - problem.scratch_bytes
    row = 2 * (problem.row_bytes + problem.prepared_bytes) + 2 * width * dtype.itemsize
    row += 3 * 8 * len(subspace.components) * len(collections)  # scores, their sums, and as they are compared
    return min(room // row, max(1, MOST_BLOCK // row), problem.n_samples)


def _size(dtype: np.dtype[np.generic]) -> int:
    return dtype.itemsize
