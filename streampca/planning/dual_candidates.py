"""The ways of cutting the data for method 'dual' that come into question: for each list of small sizes, the large ones.

The lists do not depend on the budget and every large size is the largest that fits it, evened out: so what there is to
choose from only grows with the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from ..units import MIB
from .blocks import block_rows
from .budget import MOST_BLOCK, most_that_fits
from .dual_memory import Arithmetic, Cutting, dual_memory, read_bytes, written_features
from .memory import MemoryEstimate
from .request import Problem

TILES = (4096, 1024, 256)  # features multiplied at a time: adding n x n then costs little beside making it
READS = (MOST_BLOCK, 4 * MIB, MIB // 2, 1)  # bytes of a block as it is read; the last one is a single sample

RowRule = Callable[[int], int]  # samples to a block, given the bytes of one


@dataclass(frozen=True)
class Attempt:
    """What sizes are sought for: a schedule, how it is computed, and k components, `stored` as they are made or not."""

    problem: Problem
    schedule: str
    arithmetic: Arithmetic
    k: int
    stored: bool

    def memory_estimate(self, cutting: Cutting) -> MemoryEstimate:
        """Memory of all phases."""
        return dual_memory(self.problem, self.arithmetic, cutting, self.k)


def cuttings_that_fit(attempt: Attempt, memory: int) -> Iterator[Cutting]:
    """For each tile and block, the largest ranges that fit, one by one."""
    p = attempt.problem.n_features
    for tile, rows_of in product(TILES, _block_rules(attempt.problem)):
        unit = _unit(attempt, tile)
        cut = partial(_ranged, attempt, tile, rows_of)

        def fits(count: int, cut: Callable[[int], Cutting] = cut, unit: int = unit) -> bool:
            return attempt.memory_estimate(cut(count * unit)).total <= memory

        most = -(-p // unit)
        if fits(most):  # asked apart: a range of everything is kept while the eigenproblem is solved
            yield cut(p)
        elif count := most_that_fits(fits, most - 1):
            yield cut(_even(p, unit, count))


def smallest_cuttings(attempt: Attempt) -> Iterator[Cutting]:
    """Those with the least of everything, one of which needs least memory."""
    for tile in TILES:
        unit = _unit(attempt, tile)
        yield from (_ranged(attempt, tile, rule, unit) for rule in _block_rules(attempt.problem))


def _ranged(attempt: Attempt, tile: int, rows_of: RowRule, width: int) -> Cutting:
    """A cutting by ranges of features."""
    problem, schedule = attempt.problem, attempt.schedule
    gathered = written_features(problem, attempt.k) if attempt.stored else 0
    one = Cutting(schedule, 1, min(width, problem.n_features), tile, gathered, attempt.stored)
    rows = rows_of(read_bytes(problem, one, wide=schedule == "scratch"))
    return replace(one, block_rows=min(rows, problem.n_samples))


def _unit(attempt: Attempt, tile: int) -> int:
    """What a range of features is a multiple of: tiles, or storage chunks where these are wider."""
    p, chunk = attempt.problem.n_features, attempt.problem.chunk_features
    if attempt.schedule == "scratch" or chunk >= p:
        return min(tile, p)
    return chunk if chunk > tile else tile // chunk * chunk


def _block_rules(problem: Problem) -> tuple[RowRule, ...]:
    """Samples to a block: all, storage chunks enough to keep cores busy, or as many as take so many bytes."""
    chunk = problem.chunk_samples
    within = tuple(partial(_rows_within, chunk, limit) for limit in READS)
    return (lambda row_bytes: problem.n_samples, lambda row_bytes: chunk * problem.machine.cores, *within)


def _rows_within(chunk: int, limit: int, row_bytes: int) -> int:
    return block_rows(row_bytes, chunk, limit)


def _even(length: int, unit: int, count: int) -> int:
    """Multiples of `unit` that cut a length into as few pieces as `count` of them do, of nearly one size."""
    pieces = -(-length // (unit * count))
    return -(-length // (unit * pieces)) * unit
