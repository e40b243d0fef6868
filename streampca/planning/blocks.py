"""How n samples are cut into blocks and spans: integers only."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import index as as_index
from typing import NamedTuple

from ..errors import RequestError


class Span(NamedTuple):
    """A run of consecutive samples, `start` included and `stop` not; what one task folds."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.stop - self.start


class Part(NamedTuple):
    """One of `of` nearly equal runs of samples that processes analyse apart, and somebody merges; counted from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def span(self, n_samples: int) -> Span:
        """The samples it is of, of `n_samples`."""
        return Span(n_samples * (self.number - 1) // self.of, n_samples * self.number // self.of)


def part_of(given: str | tuple[int, int] | None) -> Part | None:
    """Read ``"3/16"`` or (3, 16); None is no part.

    Raises
    ------
    RequestError
        If it is neither, or there is no such part.
    """
    if given is None:
        return None
    try:
        number, of = map(int, given.split("/")) if isinstance(given, str) else map(as_index, given)
    except (TypeError, ValueError):
        raise RequestError(f"part {given!r} is not PART/PARTS; give for example 3/16 for the third of 16.") from None
    if not 1 <= number <= of:
        last = max(of, 1)
        raise RequestError(f"part {number}/{of} does not exist; parts count from 1, as in 1/{last} to {last}/{last}.")
    return Part(number, of)


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
    return spans_within(Span(0, n_samples), count, rows)


def spans_within(whole: Span, count: int, rows: int = 1) -> tuple[Span, ...]:
    """Cut a span into at most `count` of nearly equal numbers of the blocks that `blocks_of` cuts it into."""
    first = whole.start // rows
    n_blocks = -(-whole.stop // rows) - first
    count = max(1, min(count, n_blocks))
    edges = [(first + i * n_blocks // count) * rows for i in range(count + 1)]
    return tuple(Span(max(start, whole.start), min(stop, whole.stop)) for start, stop in pairwise(edges))


@dataclass(frozen=True)
class PanelSteps:
    """In which order panels of samples meet what comes after them, so that every two samples meet once.

    A sequence of pairs (panel, block), the two the same where a panel meets itself. Steps are worked out, not kept, as
    of small panels there are about as many as pairs of samples. To look one up costs O(log^2 n).

    Parameters
    ----------
    n_samples : int
        n.
    panel_rows, block_rows : int
        Samples to a panel, which stays, and to a block, which passes by; both cut at multiples.
    """

    n_samples: int
    panel_rows: int
    block_rows: int

    @property
    def panels(self) -> int:
        """Number of panels."""
        return -(-self.n_samples // self.panel_rows)

    @property
    def samples(self) -> int:
        """Number of samples that are met in all steps: a panel, and all after it, for every panel."""
        panels = self.panels
        return panels * self.n_samples - self.panel_rows * panels * (panels - 1) // 2

    def __len__(self) -> int:
        return self._before(self.panels - 1) + 1 if self.n_samples else 0

    def __iter__(self) -> Iterator[tuple[Span, Span]]:
        for panel in blocks_of(Span(0, self.n_samples), self.panel_rows):
            yield panel, panel
            for block in blocks_of(Span(panel.stop, self.n_samples), self.block_rows):
                yield panel, block

    def __getitem__(self, number: int) -> tuple[Span, Span]:
        number = range(len(self))[number]
        at = bisect_right(range(self.panels), number, key=self._before) - 1
        start = at * self.panel_rows
        panel = Span(start, min(start + self.panel_rows, self.n_samples))
        passed = number - self._before(at)
        if passed == 0:
            return panel, panel
        first = (panel.stop // self.block_rows + passed - 1) * self.block_rows
        return panel, Span(max(first, panel.stop), min(first + self.block_rows, self.n_samples))

    def _before(self, panel: int) -> int:
        """Steps before the first of a panel: of each earlier one itself, and blocks from where it stops to the end."""
        blocks = -(-self.n_samples // self.block_rows)
        return panel * (1 + blocks) - floor_sum(panel + 1, self.panel_rows, self.block_rows)


def panel_steps(n_samples: int, panel_rows: int, block_rows: int) -> PanelSteps:
    """Every step of panels of `panel_rows` samples that blocks of `block_rows` pass by."""
    return PanelSteps(n_samples, panel_rows, block_rows)


def floor_sum(count: int, step: int, cut: int) -> int:
    """Sum of ``i * step // cut`` for i from 0 to ``count - 1``, in O(log) steps, as Euclid's algorithm.

    It counts the lattice points below a line. A slope under 1 is turned over: the points below the line are a rectangle
    less those above it, which lie below the line of the inverse slope; those on the line are in both.
    """
    if count < 2 or step == 0:
        return 0
    if step >= cut:
        return step // cut * (count * (count - 1) // 2) + floor_sum(count, step % cut, cut)
    top = (count - 1) * step // cut
    on_it = top // (step // math.gcd(step, cut))
    return (count - 1) * top + on_it - floor_sum(top + 1, cut, step)


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
