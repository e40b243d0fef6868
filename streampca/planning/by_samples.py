"""Sizes of what a method reads by blocks of samples, the counterpart of `by_features`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ..units import MIB
from .blocks import Span, block_rows, spans_of
from .budget import MOST_BLOCK, span_count
from .candidate_sizes import MethodSizes
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
class SizesBySamples(MethodSizes):
    """Sizes of a method that reads blocks of samples; fields as in `Plan`."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans of samples, one for each thread or several for each worker."""
        return spans_of(self.problem.n_samples, span_count(self.request.workers, self.threads), self.block_rows)
