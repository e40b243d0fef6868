"""Plans of the pass before a fit that learns means of groups, trends and deviations, in which nothing is multiplied."""

from __future__ import annotations

from typing import NamedTuple

from .blocks import block_rows
from .budget import block_limit, too_small
from .memory import Phase, decoding_items, runtime
from .request import Problem
from .sizes import GROUP_PIECE

ROWS = 10  # of p float64 beside the means of groups: sums, what is combined with them, and what becomes of them
NAME = "means and deviations"


class Learning(NamedTuple):
    """Blocks in which samples are read once, and the memory of that."""

    block_rows: int
    ahead: int
    memory_estimate: Phase


def plan_learning(problem: Problem, groups: int, memory: int | None) -> Learning:
    """Choose the blocks in which means of so many groups are learned.

    Parameters
    ----------
    problem : Problem
        Of samples as they are before anything is taken off.
    groups : int
        Number of groups, g.
    memory : int or None
        Budget in bytes; the default as for `Request`.

    Returns
    -------
    Learning
        The smallest blocks where none fit; see `check_learning`.
    """
    budget, _ = problem.machine.budget(memory)
    for ahead in (1, 0) if problem.fills else (0,):
        rows = block_rows(problem.sample_bytes, problem.chunk_samples, block_limit(problem.machine, memory))
        found = _learning(problem, groups, min(rows, problem.n_samples), ahead)
        if found.memory_estimate.total <= budget:
            return found
    return _learning(problem, groups, 1, 0)


def check_learning(plan: Learning, problem: Problem, groups: int, memory: int | None) -> None:
    """Refuse means of groups that do not fit the budget; see `plan_learning`.

    Raises
    ------
    BudgetError
        Names the budget that would do.
    """
    budget, needed = problem.machine.budget(memory), plan.memory_estimate.total
    if needed > budget[0]:
        what = f"taking the means of {groups} groups of samples off" if groups > 1 else "taking the mean off"
        more = ", or make the samples smaller (resize, bin, crop or mask)"
        raise too_small(f"{what} {problem.n_features} features", needed, budget, more=more)


def _learning(problem: Problem, groups: int, rows: int, ahead: int) -> Learning:
    p, n = problem.n_features, problem.n_samples
    blocks = (1 + ahead) * rows * problem.sample_bytes
    items = {
        f"means of {groups} groups, {groups} x {p} float64" if groups > 1 else f"mean, {p} float64": 8 * groups * p,
        "sums of squares, and what becomes of them": 8 * ROWS * p,
        f"{1 + ahead} blocks of {rows} samples as read": blocks,
        "samples in float64, about their mean": 2 * 8 * max(GROUP_PIECE, p) + problem.row_bytes,
        "groups, dates and weights of samples": 3 * 8 * n,
    }
    return Learning(rows, ahead, Phase.of(NAME, items, decoding_items(problem, rows), runtime()))
