"""Sizes of what a method reads by blocks of samples, the counterpart of `by_features`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ..units import MIB
from .blocks import block_rows, spans_of
from .budget import MOST_BLOCK, span_count
from .plan import Plan, Sizes
from .request import Problem

BLOCKS = (MOST_BLOCK, 4 * MIB, MIB)  # bytes of a block of samples


def block_lengths(problem: Problem) -> list[int]:
    """Return numbers of samples to a block, the largest first: a storage chunk too where it is larger than all."""
    lengths = {block_rows(problem.sample_bytes, problem.chunk_samples, limit) for limit in BLOCKS}
    if problem.chunk_samples > max(lengths):  # else each is decoded several times a pass
        lengths.add(problem.chunk_samples)
    return sorted({min(rows, problem.n_samples) for rows in lengths}, reverse=True)


def concurrencies(problem: Problem, rows: int, threads: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of threads, at most `threads` or one, and of blocks that each reads ahead: the largest first."""
    counts = sorted({len(spans_of(problem.n_samples, threads, rows)), 1}, reverse=True)
    return product(counts, (1, 0) if problem.fills else (0,))


@dataclass(frozen=True, kw_only=True)
class SizesBySamples(Sizes):
    """Sizes of a method that reads blocks of samples; fields as in `Plan`."""

    block_rows: int
    threads: int = 1
    ahead: int = 0

    def planned(self, method: str, why: str, *, precision: str, solver: str) -> Plan:
        """Return the plan of a method with these sizes, and the defaults of the fields that are the method's own."""
        problem, cost = self.problem, self.cost
        return Plan(
            problem=problem,
            request=self.request,
            method=method,
            why=why,
            precision=precision,
            solver=solver,
            room=self.k,
            block_rows=self.block_rows,
            spans=spans_of(problem.n_samples, span_count(self.request.workers, self.threads), self.block_rows),
            passes=cost.passes,
            bytes_read=cost.bytes_read,
            memory_estimate=self.memory_estimate,
            block_features=problem.n_features,
            threads=self.threads,
            ahead=self.ahead,
            work=cost.work,
        )
