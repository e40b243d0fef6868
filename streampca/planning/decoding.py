"""Exact counts of what is decoded when a collection is read in boxes that its storage is not cut by.

A read that touches a chunk decodes all of it. Some readers keep the chunk that they decoded last, for the next read in
order (`Problem.keeps`), which is counted on where chunks hold whole samples, or all samples. A chunk that lies in two
spans, which are read apart, is counted once all the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .rates import Work, products
from .request import Problem

CALL = 5  # what a read by itself costs, in pieces of a plain file
PAGE = 4096  # bytes that plain files are counted in
MOST_RUNS = 32  # of samples from all over a collection, each of which costs as much as reading some samples


class Reading(NamedTuple):
    """Bytes decoded, pieces of storage touched (chunks, or runs of a plain file), and reads."""

    bytes: int
    pieces: int
    reads: int

    def plus(self, other: Reading) -> Reading:
        """Add another reading."""
        return Reading(self.bytes + other.bytes, self.pieces + other.pieces, self.reads + other.reads)

    def times(self, count: int) -> Reading:
        """Repeat the reading so many times."""
        return Reading(count * self.bytes, count * self.pieces, count * self.reads)

    def work(self, problem: Problem) -> Work:
        """Work of reading so much of a collection, and of mapping the samples if they are."""
        mapping = products(problem.mapping_flops * self.bytes / max(1, problem.row_bytes), "double")
        if not problem.encoded:
            return mapping + Work(reading=self.bytes, accesses=self.pieces + CALL * self.reads)
        together = self.pieces / max(1, self.reads)
        idle = max(1.0, problem.machine.cores / max(1.0, together))  # cores that a read has no chunk for
        return mapping + Work(decoding=self.bytes * idle, chunks=self.pieces * idle, accesses=CALL * self.reads)


def decoded(length: int, step: int, cut: int, upto: int | None = None) -> tuple[int, int]:
    """Entries decoded, and chunks touched, by reading the first entries of an axis in order.

    Parameters
    ----------
    length : int
        Of the axis.
    step : int
        Entries read at a time, ending at multiples of `step`.
    cut : int
        Entries to a chunk.
    upto : int, optional
        Read so many only, a multiple of `step`; all by default.
    """
    upto = length if upto is None else upto
    if upto == 0:
        return 0, 0
    step, cut = min(step, length), min(cut, length)
    reads = -(-upto // step)
    # A read and a chunk meet wherever a run between two edges, of either kind, lies in both.
    touched = reads + (upto - 1) // cut - (upto - 1) // math.lcm(step, cut)
    last = (length - 1) // cut * cut
    of_last = reads - last // step if upto > last else 0
    return touched * cut - (-length % cut) * of_last, touched


def read_boxes(problem: Problem, rows: int, features: int, *, width: int | None = None) -> Reading:
    """Count what reading a collection in boxes decodes.

    Parameters
    ----------
    problem : Problem
        How storage is cut.
    rows, features : int
        Samples and features to a box; boxes end at multiples of these.
    width : int, optional
        Read so many leading features only; all by default.
    """
    n, p, chunk = problem.n_samples, problem.n_features, problem.chunk_samples
    wide, alone = problem.chunk_features >= p, chunk >= n  # chunks hold all features of a sample, or all samples
    in_order_down = problem.keeps and wide
    in_order_across = problem.keeps and alone and (wide or rows >= n)
    samples, pieces = decoded(n, chunk if in_order_down else rows, chunk)
    if in_order_across:
        step = problem.chunk_features
        across, cuts = decoded(p, step, step, None if width is None else -(-width // step) * step)
    else:
        across, cuts = decoded(p, features, problem.chunk_features, width)
    blocks, ranges = -(-n // rows), -(-(p if width is None else width) // features)
    if not problem.encoded and problem.chunk_features * problem.itemsize <= PAGE:  # plain values, one after another
        pieces, cuts = blocks if features >= p else n, ranges
    return Reading(samples * across * problem.row_bytes // p, pieces * cuts, blocks * ranges)


def runs_within(count: int, chunk: int, runs: int) -> tuple[int, int]:
    """Return in how many runs `count` samples are read, and the chunks, taken together, that each lies within.

    There are `runs`, or more where chunks are short; a few of these are read together, as each read costs.
    """
    together = chunk * -(-count // (MOST_RUNS * chunk))
    return min(max(runs, -(-count // together)), count), together


def read_runs(problem: Problem, count: int, runs: int) -> Reading:
    """Count what `count` samples decode that are read in runs, see `runs_within`."""
    n, chunk = problem.n_samples, min(problem.chunk_samples, problem.n_samples)
    runs, together = runs_within(count, chunk, runs)
    cuts = -(-problem.n_features // problem.chunk_features) if problem.encoded else 1
    return Reading(min(n, runs * together) * problem.row_bytes, runs * cuts * (together // chunk), runs)
