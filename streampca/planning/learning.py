"""Plans of the pass before a fit that learns means of groups, trends and deviations, in which nothing is multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .blocks import block_limit, block_rows
from .candidate_sizes import Sizes, refusal, search, smallest_sizes
from .memory import GROUP_PIECE, Phase, decoding_items, runtime
from .request import Problem

ROWS = 10  # of p float64 beside the means of groups: sums, what is combined with them, and what becomes of them
NAME = "means and deviations"


@dataclass(frozen=True, kw_only=True)
class Learning(Sizes):
    """Sizes with which means of so many groups could be learned: samples are read once, in blocks."""

    groups: int
    block_rows: int
    ahead: int

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of the only phase."""
        problem, groups, rows, blocks = self.problem, self.groups, self.block_rows, 1 + self.ahead
        n, p = problem.n_samples, problem.n_features
        means = f"means of {groups} groups, {groups} x {p} float64" if groups > 1 else f"mean, {p} float64"
        items = {
            means: 8 * groups * p,
            "sums of squares, and what becomes of them": 8 * ROWS * p,
            f"{blocks} blocks of {rows} samples as read": blocks * rows * problem.sample_bytes,
            "samples in float64, about their mean": 2 * 8 * max(GROUP_PIECE, p) + problem.row_bytes,
            "groups, dates and weights of samples": 3 * 8 * n,
        }
        yield Phase.of(NAME, items, decoding_items(problem, rows), runtime())


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
    rows = block_rows(problem.sample_bytes, problem.chunk_samples, block_limit(problem.machine, memory))
    cuts = [(min(rows, problem.n_samples), ahead) for ahead in ((1, 0) if problem.fills else (0,))]
    candidates = [
        [Learning(problem=problem, groups=groups, block_rows=rows, ahead=ahead)] for rows, ahead in (*cuts, (1, 0))
    ]
    return search(candidates, problem.machine.budget(memory)[0]) or smallest_sizes(candidates)


def check_learning(plan: Learning, memory: int | None) -> None:
    """Refuse means of groups that do not fit the budget; see `plan_learning`.

    Raises
    ------
    BudgetError
        Names the budget that would do.
    """
    groups, p, budget = plan.groups, plan.problem.n_features, plan.problem.machine.budget(memory)
    if not plan.fits(budget[0]):
        doing = f"taking the means of {groups} groups of samples off" if groups > 1 else "taking the mean off"
        more = ", or make the samples smaller (resize, bin, crop or mask)"
        raise refusal(f"{doing} {p} features", plan.least_budget, plan.memory_estimate, budget, more)
