"""The ways of cutting the data for method 'dual' that come into question: for each list of small sizes, the large ones.

The lists do not depend on the budget and every large size is the largest that fits it, evened out: so what there is to
choose from only grows with the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from .. import machine
from ..units import MIB
from .blocks import block_rows
from .budget import MOST_BLOCK, most_that_fits
from .dual_memory import Arithmetic, Cutting, components_phase, dual_memory, gram_phase, read_bytes, written_features
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
    """For each tile and block, the largest ranges or panels that fit, one by one."""
    found = _panels_that_fit(attempt, memory) if attempt.schedule == "pairs" else _ranges_that_fit(attempt, memory)
    return (cutting for cutting in found if attempt.memory_estimate(cutting).total <= memory)


def smallest_cuttings(attempt: Attempt) -> Iterator[Cutting]:
    """Those with the least of everything, one of which needs least memory."""
    for tile in TILES:
        if attempt.schedule == "pairs":
            wide = _least_made(attempt, tile)
            yield from (_paneled(attempt, tile, rows, rows, wide) for rows in _block_lengths(attempt.problem))
        else:
            unit = _unit(attempt, tile)
            yield from (_ranged(attempt, tile, rule, unit) for rule in _block_rules(attempt.problem))


def _ranges_that_fit(attempt: Attempt, memory: int) -> Iterator[Cutting]:
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


def _panels_that_fit(attempt: Attempt, memory: int) -> Iterator[Cutting]:
    problem, arithmetic = attempt.problem, attempt.arithmetic
    n, p = problem.n_samples, problem.n_features
    for tile, rows in product(TILES, _block_lengths(problem)):
        wide = _least_made(attempt, tile)
        cut = partial(_paneled, attempt, tile, rows)

        def panels_fit(count: int, cut: Callable[[int, int], Cutting] = cut, rows: int = rows) -> bool:
            return gram_phase(problem, arithmetic, cut(count * rows, 1)).total <= memory

        def ranges_fit(count: int, cut: Callable[[int, int], Cutting] = cut, wide: int = wide) -> bool:
            return components_phase(problem, arithmetic, cut(1, count * wide), attempt.k).total <= memory

        panels, ranges = most_that_fits(panels_fit, -(-n // rows)), most_that_fits(ranges_fit, -(-p // wide))
        if panels and ranges:
            yield cut(_even(n, rows, panels), _even(p, wide, ranges))


def _ranged(attempt: Attempt, tile: int, rows_of: RowRule, width: int) -> Cutting:
    """A cutting by ranges of features."""
    problem, schedule = attempt.problem, attempt.schedule
    gathered = written_features(problem, attempt.k) if attempt.stored else 0
    one = Cutting(schedule, 1, min(width, problem.n_features), tile, 0, gathered, attempt.stored)
    rows = rows_of(read_bytes(problem, one, wide=schedule == "scratch"))
    return replace(one, block_rows=min(rows, problem.n_samples))


def _paneled(attempt: Attempt, tile: int, rows: int, panel: int, width: int) -> Cutting:
    """A cutting by panels of samples, and ranges of components."""
    n, p = attempt.problem.n_samples, attempt.problem.n_features
    return Cutting("pairs", rows, p, tile, min(panel, n), min(width, p), attempt.stored)


def _least_made(attempt: Attempt, tile: int) -> int:
    """Features of components that a read makes a multiple of: what is written together, where they are stored."""
    return max(tile, written_features(attempt.problem, attempt.k)) if attempt.stored else tile


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
    return (lambda row_bytes: problem.n_samples, lambda row_bytes: chunk * machine.cores(), *within)


def _rows_within(chunk: int, limit: int, row_bytes: int) -> int:
    return block_rows(row_bytes, chunk, limit)


def _block_lengths(problem: Problem) -> list[int]:
    """Samples to a block that passes by a panel: storage chunks by fours, and parts of one where it is large."""
    n, chunk = problem.n_samples, min(problem.chunk_samples, problem.n_samples)
    lengths = [chunk * 4**power for power in range(12) if chunk * 4**power <= n]
    return [max(1, chunk // 16**power) for power in range(1, 5) if chunk >= 16**power] + lengths


def _even(length: int, unit: int, count: int) -> int:
    """Multiples of `unit` that cut a length into as few pieces as `count` of them do, of nearly one size."""
    pieces = -(-length // (unit * count))
    return -(-length // (unit * pieces)) * unit
