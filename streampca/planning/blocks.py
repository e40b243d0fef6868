"""Blocks and spans that samples are cut into, and the share of the budget that a block takes: integers only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

from ..kinds.run import Part
from ..units import MIB
from .request import Machine, Problem

MOST_BLOCK = 24 * MIB  # of a block: glibc keeps the pages of up to 32 MiB for the next one (benchmarks/choices.py)
BLOCK_SHARES = (8, 16, 32, 64, 128)  # a block takes at most this fraction of the budget: the first that fits ...
SPANS_A_WORKER = 4  # a task is then short enough for the last ones to end together
CHUNK_SHARE = 4  # ... or this one, when that saves decoding a storage chunk several times
BLOCKS = (MOST_BLOCK, 4 * MIB, MIB)  # bytes of a block of samples


class Span(NamedTuple):
    """A run of consecutive samples, `start` included and `stop` not; what one task folds."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.stop - self.start


def span_of_part(part: Part, n_samples: int) -> Span:
    """Return the samples, of `n_samples`, that a part of a collection holds."""
    return Span(n_samples * (part.number - 1) // part.of, n_samples * part.number // part.of)


def blocks_of(span: Span, rows: int) -> Iterator[Span]:
    """Cut a span into blocks that end at multiples of `rows`.

    Cutting at multiples, not at ``span.start + rows``, keeps blocks aligned with storage chunks and makes the blocks
    of a long span the same as those of the shorter spans it is made of.
    """
    start = span.start
    while start < span.stop:
        stop = min((start // rows + 1) * rows, span.stop)
        yield Span(start, stop)
        start = stop


def spans_of(stop: int, count: int, rows: int = 1, *, start: int = 0) -> tuple[Span, ...]:
    """Cut samples from `start` to `stop` into at most `count` spans of nearly equal numbers of blocks of `rows`."""
    first = start // rows
    n_blocks = -(-stop // rows) - first
    count = max(1, min(count, n_blocks))
    edges = [(first + i * n_blocks // count) * rows for i in range(count + 1)]
    return tuple(Span(max(low, start), min(high, stop)) for low, high in pairwise(edges))


def block_rows(row_bytes: int, chunk_rows: int, limit_bytes: int) -> int:
    """Samples to a block: the most that fit `limit_bytes`, whole storage chunks where one fits, at least 1.

    Parameters
    ----------
    row_bytes : int
        Bytes of one sample as read.
    chunk_rows : int
        Samples to a storage chunk; 1 where storage is not cut.
    limit_bytes : int
        Most bytes a block may take.
    """
    rows = max(1, limit_bytes // max(1, row_bytes))
    return rows // chunk_rows * chunk_rows if rows >= chunk_rows else rows


def block_limit(machine: Machine, memory: int | None) -> int:
    """Return the most bytes of a block of a pass that multiplies nothing, by a budget as for `Request`."""
    return min(MOST_BLOCK, machine.budget(memory)[0] // BLOCK_SHARES[0])


def span_count(workers: int, threads: int = 1) -> int:
    """Tasks that the work is cut into: one a thread, or a few a worker."""
    return threads if workers == 1 else SPANS_A_WORKER * workers


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
