"""`Reduction`: which worker folds or merges what next, so that sums of spans meet along a fixed tree.

Spans are grouped into runs of `RUN`. In a run the sum of the first spans absorbs the next span, and sums of runs are
merged in pairs along a binary tree. What is added to what depends on the number of spans alone, so a plan gives the
same bits whoever does the work, and whoever dies. Pairs are best for large sums: a worker receives one sum a level.

A worker folds the spans of a run one after the other and keeps their sum, so that about as many sums travel as there
are runs. When no run is left to begin, it takes the last span of another worker's run, whose sum travels as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..planning.blocks import SPANS_A_WORKER

RUN = SPANS_A_WORKER  # spans that one worker folds, where all are equally fast
MOST_HELD = 2  # sums that a worker holds before it takes no span of another worker's run


class Node(NamedTuple):
    """Spans from `first` to `last`, whose sum is a node of the tree."""

    first: int
    last: int


class Addition(NamedTuple):
    """Work of one worker: absorb the right sum into the left one, or fold a span and absorb it into the left sum.

    With a left sum alone the worker takes it over from another one.

    Attributes
    ----------
    left, right : Node or None
        Sums that workers hold; no left one for the first span of a sum.
    span : int or None
        Number of the span to fold.
    """

    left: Node | None
    right: Node | None
    span: int | None

    @property
    def result(self) -> Node:
        """Spans of the sum that results."""
        numbers = [number for part in (self.left, self.right) if part is not None for number in part]
        numbers += [] if self.span is None else [self.span]
        return Node(min(numbers), max(numbers))

    @property
    def inputs(self) -> list[Node]:
        """Sums that are used up."""
        return [part for part in (self.left, self.right) if part is not None]


@dataclass(frozen=True)
class Tree:
    """The order in which the sums of spans from `start` to `stop`, `stop` not included, are added."""

    start: int
    stop: int

    @property
    def root(self) -> Node:
        """All spans."""
        return Node(self.start, self.stop - 1)

    def has(self, part: Node) -> bool:
        """Return whether the tree has the sum of these spans."""
        run, run_of_last = self.run_of(part.first), self.run_of(part.last)
        if run == run_of_last:
            return part.first in (run.first, part.last)
        if part.first != run.first or part.last != run_of_last.last:
            return False
        return any(node == part for node, _ in self._path_to(part))

    def partner(self, part: Node) -> tuple[Node, bool] | None:
        """Return the sum that is added to a sum, and whether that is the left one; None for the root."""
        run = self.run_of(part.first)
        if part == self.root:
            return None
        if part != run and part.last <= run.last:
            if part.first == run.first:
                return Node(part.last + 1, part.last + 1), False
            return Node(run.first, part.first - 1), True
        *_, (_, partner) = self._path_to(part)
        return partner

    def runs(self, part: Node) -> Iterator[Node]:
        """Yield the runs of a part, in order."""
        return (self.run_of(first) for first in range(part.first, part.last + 1, RUN))

    def run_of(self, span: int) -> Node:
        """Return the run that a span belongs to."""
        first = span - (span - self.start) % RUN
        return Node(first, min(first + RUN, self.stop) - 1)

    def _path_to(self, part: Node) -> Iterator[tuple[Node, tuple[Node, bool] | None]]:
        """Yield the nodes from the root down to a part, each with its partner; to a run if the tree lacks the part."""
        node, partner = self.root, None
        yield node, partner
        while node != part and node.last - node.first >= RUN:
            runs = -(-(node.last + 1 - node.first) // RUN)
            middle = node.first + RUN * 2 ** ((runs - 1).bit_length() - 1)
            left, right = Node(node.first, middle - 1), Node(middle, node.last)
            node, partner = (left, (right, False)) if part.first < middle else (right, (left, True))
            yield node, partner


class Reduction:
    """Sums that workers hold, spans to fold, and jobs that run.

    Parameters
    ----------
    tree : Tree
        The order of addition.

    Attributes
    ----------
    held : dict of Node to str
        Sums, and the worker that holds each; the inputs of running jobs are among them.
    jobs : dict of str to Addition
        What each busy worker does.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.held: dict[Node, str] = {}
        self.jobs: dict[str, Addition] = {}
        self._held_by = defaultdict[str, set[Node]](set)
        self._used: set[Node] = set()
        self._to_fold: dict[Node, set[int]] = {}  # by run; a run without such spans is left out

    @property
    def is_complete(self) -> bool:
        """True if a worker holds the sum of all spans."""
        return self.tree.root in self.held

    @property
    def waiting(self) -> int:
        """Number of spans that no worker has begun to fold."""
        return sum(map(len, self._to_fold.values()))

    def held_by(self, worker: str) -> list[Node]:
        """Return the sums that a worker holds, in order."""
        return sorted(self._held_by[worker])

    def fold(self, spans: Iterable[int]) -> None:
        """Note that spans are to be folded, for the first time or again."""
        for span in spans:
            self._to_fold.setdefault(self.tree.run_of(span), set()).add(span)

    def hold(self, part: Node, worker: str) -> None:
        """Note that a worker holds the sum of a part."""
        self.held[part] = worker
        self._held_by[worker].add(part)

    def lose(self, part: Node) -> None:
        """Note that a sum is gone."""
        self._held_by[self.held.pop(part)].discard(part)

    def move(self, part: Node, worker: str) -> None:
        """Note that a sum, which a job may use, is now with another worker."""
        self.lose(part)
        self.hold(part, worker)

    def start(self, worker: str, paused: Collection[str] = ()) -> Addition | None:
        """Give an idle worker its next job; None if there is none for it now.

        Workers that are `paused` get no jobs, and others take over what they hold.
        """
        free = sorted(self._held_by[worker] - self._used)
        job = (
            self._merge(free)
            or self._next_span(free)
            or self._sum_of_paused(worker, paused)
            or self._span_of_others(worker)
        )
        if job is not None:
            self.jobs[worker] = job
            self._used.update(job.inputs)
            if job.span is not None:
                run = self.tree.run_of(job.span)
                self._to_fold[run].discard(job.span)
                if not self._to_fold[run]:
                    del self._to_fold[run]
        return job

    def finish(self, worker: str) -> Addition:
        """Note that a worker has done its job, and holds the result."""
        job = self._end(worker)
        for part in job.inputs:
            self.lose(part)
        self.hold(job.result, worker)
        return job

    def give_back(self, worker: str) -> Addition:
        """Note that the job of a worker was not done: its inputs are as they were."""
        job = self._end(worker)
        if job.span is not None:
            self.fold([job.span])
        return job

    def _end(self, worker: str) -> Addition:
        job = self.jobs.pop(worker)
        self._used.difference_update(job.inputs)
        return job

    def _merge(self, free: list[Node]) -> Addition | None:
        """Merge two sums, one of which the worker holds: the other one travels."""
        for part in free:
            partner = self.tree.partner(part)
            if partner is not None and partner[0] in self.held and partner[0] not in self._used:
                other, is_left = partner
                return Addition(other, part, None) if is_left else Addition(part, other, None)
        return None

    def _next_span(self, free: list[Node]) -> Addition | None:
        """Go on with a run of the worker, or begin one: where it can, in the partner of a sum that it holds."""
        partners = [self.tree.partner(part) or (part, True) for part in free]
        for part, (other, is_left) in zip(free, partners, strict=True):
            if not is_left and other.first == other.last and self._is_to_fold(other.first):
                return Addition(part, None, other.first)
        near = (run.first for other, _ in partners for run in self.tree.runs(other) if self._is_to_fold(run.first))
        begun = next(near, None)
        if begun is None:
            begun = next((run.first for run, spans in self._to_fold.items() if run.first in spans), None)
        return None if begun is None else Addition(None, None, begun)

    def _sum_of_paused(self, worker: str, paused: Collection[str]) -> Addition | None:
        """Take over a sum; beyond what a worker should hold only if nobody else has anything to do."""
        if self.is_complete or (len(self._held_by[worker]) >= MOST_HELD and self.jobs):
            return None
        held = (part for other in sorted(paused) for part in sorted(self._held_by[other] - self._used))
        part = next(held, None)
        return None if part is None else Addition(part, None, None)

    def _span_of_others(self, worker: str) -> Addition | None:
        """Take the last span of the run of which most is left to fold, the last of such runs."""
        if not self._to_fold or len(self._held_by[worker]) >= MOST_HELD:
            return None
        _, most = max((len(spans), max(spans)) for spans in self._to_fold.values())
        return Addition(None, None, most)

    def _is_to_fold(self, span: int) -> bool:
        return span in self._to_fold.get(self.tree.run_of(span), ())
