"""Which samples of a collection are examined: runs of whole storage chunks, spread evenly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...planning.blocks import Span
from ...readers.views.chosen import Places, compact

MOST_RUNS = 64  # enough to meet every part of a collection, and few seeks
FEWEST_RUNS = 8


def runs_spread(n_samples: int, chunk: int, count: int | None = None) -> list[Span]:
    """Pick up to `count` of n samples.

    Parameters
    ----------
    n_samples : int
        n.
    chunk : int
        Samples to a storage chunk: reading any of them decodes all.
    count : int, optional
        Most samples to pick; all by default, in one run.

    Returns
    -------
    list of Span
        Ascending, of equal lengths, from the first chunk to the last, which may be shorter. They are of whole chunks
        where `FEWEST_RUNS` of these are within `count`, else the beginnings of chunks.
    """
    if count is None or count >= n_samples:
        return [Span(0, n_samples)]
    chunks = -(-n_samples // chunk)
    runs = min(count, MOST_RUNS, max(FEWEST_RUNS, count // chunk))
    if chunks < runs:  # then every chunk is decoded, whichever samples are taken
        chunk, chunks = 1, n_samples
    length = count // runs
    together = max(1, length // chunk)  # chunks to a run
    length = min(length, together * chunk)
    firsts = [run * (chunks - together) // max(1, runs - 1) * chunk for run in range(runs)]
    return [Span(first, min(first + length, n_samples)) for first in firsts]


def places_in(runs: Sequence[Span], n_samples: int) -> Places:
    """Places of the samples in runs of n."""
    return compact(np.concatenate([np.arange(*run) for run in runs]), n_samples)
