"""Passes that workers of a cluster share: what they send one another, and the time that it takes.

A pass sends a block of vectors, if it multiplies with one, from worker to worker. Then each worker folds a run of spans
and keeps their sum, and sums meet along a binary tree (`streampca.execution.reduction`); the last one goes to the
process that was started. That process and the scheduler handle one task after another. So a pass takes about the sum of

- vectors sent, in rounds, each of which triples the workers that have them;
- first tasks given out one by one, and a worker's spans, each added to its sum; or all tasks, where that takes longer;
- a sum sent and added for every level of the tree, and one sent to the process that was started.

`benchmarks/scaling.py` measures the constants, and compares what is predicted here with a simulation of the schedule,
event by event, and with clusters of processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from .blocks import SPANS_A_WORKER
from .rates import RATES, Rates, Work

NETWORK = 1.25e9  # bytes a second of each worker's link, each way, unless one is given: 10 Gbit/s
LATENCY = 1e-4  # seconds of a message between two machines of one room
# Seconds of processor time (benchmarks/scaling.py): of the process that was started and the scheduler together for a
# task, which they handle one by one, and of the worker that does it.
TASK, TASK_OF_WORKER = 3e-3, 5e-3
BRANCHES = 2  # workers that each one with the vectors sends them to in a round, by dask's `replicate` ...
CROWD = 0.8  # ... and those that ask one worker at once beyond that, for every round so far, as they choose at random
LEAST_SPAN = 0.05  # seconds that a span should take, beside which a task costs little
FEWEST_WORKERS = 16  # that there are spans for, however short these are
EFFICIENCY = 0.9  # share of the workers' time in passes that goes into samples, below which more workers gain little
MOST_WORKERS = 2**20


class SharedPasses(NamedTuple):
    """Passes that workers share.

    Attributes
    ----------
    passes : float
        Number of them.
    work : Work
        Work of them all.
    vectors, partial : int
        Bytes that every worker is sent before each pass, and of the sum over some samples, as sent to another worker.
    blocks, pieces : int
        Blocks that samples, or features, are read in, and pieces that they can be cut into for spans.
    """

    passes: float
    work: Work
    vectors: int
    partial: int
    blocks: int
    pieces: int


@dataclass(frozen=True)
class Sharing:
    """Workers, their network, and the passes that they share.

    Attributes
    ----------
    shared : SharedPasses
        The passes.
    workers, cores : int
        Number of workers, and cores of each.
    network : float
        Bytes a second that a worker sends, and receives at the same time.
    rates : Rates
        Rates of a worker.
    """

    shared: SharedPasses
    workers: int
    cores: int
    network: float = NETWORK
    rates: Rates = RATES

    # -- what is done

    @property
    def n_spans(self) -> int:
        """Number of spans of a pass: as many as workers can use, by fixed rates.

        That is a few for each worker, but none for workers beyond the number with which a pass takes least time, as
        giving out tasks then takes longer than folding. Spans shorter than a block are worth a task if they take long;
        then as many for each worker.
        """
        seconds = self._folding_by(RATES)
        fastest = math.isqrt(int(seconds / ((SPANS_A_WORKER + 1) * TASK)))
        workers = min(self.workers, max(FEWEST_WORKERS, fastest))
        worthwhile = int(seconds / LEAST_SPAN)
        shorter = min(SPANS_A_WORKER, worthwhile // workers) * workers or worthwhile
        return min(SPANS_A_WORKER * workers, max(self.shared.blocks, min(self.shared.pieces, shorter)))

    @property
    def n_busy(self) -> int:
        """Number of workers that have a span to fold."""
        return min(self.workers, self.n_spans)

    @property
    def n_sums(self) -> int:
        """Number of sums that travel from worker to worker in a pass."""
        return self.n_busy - 1

    @property
    def depth(self) -> int:
        """Levels of the tree: sums that the last one is made of, one after the other."""
        runs, folded = -(-self.n_spans // SPANS_A_WORKER), -(-self.n_spans // self.n_busy)
        return (runs - 1).bit_length() + max(0, min(SPANS_A_WORKER, self.n_spans) - folded)

    @property
    def n_tasks(self) -> int:
        """Number of tasks of a pass, each of which folds a span or adds two sums."""
        return self.n_spans + self.n_sums

    # -- seconds

    @property
    def folding(self) -> float:
        """Seconds that one worker takes to fold all spans of a pass, without anything beside it."""
        return self._folding_by(self.rates)

    def _folding_by(self, rates: Rates) -> float:
        return self.shared.work.seconds(self.cores, rates) / max(1.0, self.shared.passes)

    @property
    def broadcasting(self) -> float:
        """Seconds of sending the vectors of a pass to all workers."""
        if not self.shared.vectors:
            return 0.0
        times, have, rounds = 1.0, 1, 0
        while have < self.workers:
            asking = min(self.workers - have, BRANCHES * have)
            times += max(1.0, asking / have) + CROWD * rounds
            have, rounds = have + asking, rounds + 1
        return times * (LATENCY + self.shared.vectors / self.network)

    @property
    def sending(self) -> float:
        """Seconds of sending a sum."""
        return LATENCY + self.shared.partial / self.network

    @property
    def adding(self) -> float:
        """Seconds of adding one sum to another."""
        return self.shared.partial / 8 / self.rates.adding

    @property
    def seconds_a_pass(self) -> float:
        """Seconds of a pass, from the vectors sent to the sum received."""
        between = TASK + TASK_OF_WORKER + 4 * LATENCY  # from the end of one task to the start of the worker's next
        # A span's own sum starts from zeros, which takes as long as adding.
        of_span = self.folding / self.n_spans + between + 2 * self.adding
        spans = self.n_busy * TASK + -(-self.n_spans // self.n_busy) * of_span
        levels = self.depth * (self.sending + self.adding + between)
        return self.broadcasting + max(spans, self.n_tasks * TASK) + levels + self.sending

    @property
    def seconds(self) -> float:
        """Seconds of all passes."""
        return self.shared.passes * self.seconds_a_pass

    def seconds_of(self, work: Work) -> float:
        """Return the seconds of work that has these passes in it, and the rest of which is not shared."""
        return (work - self.shared.work).seconds(self.cores, self.rates) + self.seconds

    # -- how many workers

    @property
    def efficiency(self) -> float:
        """Share of the workers' time in passes that goes into samples."""
        return self.folding / (self.workers * self.seconds_a_pass)

    def of(self, workers: int) -> Self:
        """Return the same passes shared by another number of workers."""
        return replace(self, workers=workers)

    @property
    def most_workers(self) -> int:
        """Largest number of workers that are efficient, `MOST_WORKERS` at most; 1 where not even 2 are."""
        low, high = 1, 2
        while high <= MOST_WORKERS and self.of(high).efficiency >= EFFICIENCY:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.of(middle).efficiency >= EFFICIENCY else (low, middle)
        return min(low, MOST_WORKERS)
