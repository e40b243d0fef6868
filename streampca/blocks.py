"""How n samples are cut into blocks and spans: integers only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple


class Span(NamedTuple):
    """A run of consecutive samples, `start` included and `stop` not; what one task folds."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.stop - self.start


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


def spans_of(n_samples: int, count: int, rows: int = 1) -> tuple[Span, ...]:
    """Cut ``n_samples`` samples into at most `count` spans of nearly equal numbers of whole blocks of `rows`."""
    n_blocks = -(-n_samples // rows)
    count = max(1, min(count, n_blocks))
    edges = [min(i * n_blocks // count * rows, n_samples) for i in range(count + 1)]
    return tuple(Span(start, stop) for start, stop in pairwise(edges))


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
