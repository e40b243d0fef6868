"""The protocols of execution: a task, the executor that folds it, and the checkpoint that resumes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy.typing as npt

from ..events import BlockDone, Listener
from ..planning.blocks import Span


class Stateful(Protocol):
    """An accumulator, whose state can be saved."""

    def state(self, *, copy: bool = True) -> dict[str, npt.NDArray[Any]]:
        """Everything as plain arrays; without `copy` perhaps those that are worked on."""


A = TypeVar("A", bound=Stateful)


class Task(Protocol[A]):
    """Work over a span (of samples, of features, of steps), cut into blocks. Picklable: it holds no data."""

    def start(self) -> A:
        """Return a new, empty accumulator."""

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> A:
        """Return the accumulator whose state this is."""

    def blocks(self, span: Span) -> Iterable[Span]:
        """Cut a span into the blocks that are in memory one at a time, in order.

        A block is named by where it starts and stops, nothing else. The rest of a span is cut at the same places as the
        whole, so that a fold that is resumed adds up the same blocks.
        """

    def counts(self, block: Span) -> BlockDone:
        """Return the samples of a block, and the bytes that are read for it."""

    def fetch(self, block: Span) -> Any:
        """Read a block; perhaps in another thread, while the block before it is absorbed."""

    def feed(self, accumulator: A, block: Span, fetched: Any) -> None:
        """Absorb a block."""


class SavedPartial(NamedTuple):
    """A saved accumulator: it covers whole spans up to `last`, and that one up to `at`."""

    last: int
    at: int
    state: dict[str, npt.NDArray[Any]]


class Checkpointer(Protocol):
    """Saves partial results of a fold, and returns them when the fold is run again."""

    def load(self, first: int) -> SavedPartial | None:
        """Return the saved partial of the spans from `first` on, if there is one."""

    def save_if_due(self, first: int, last: int, at: int, accumulator: Stateful, *, now: bool = False) -> None:
        """Save an accumulator of the spans from `first` up to `last`, and of that one up to `at`, if it is time to.

        Called after each block, perhaps by several threads. An exception ends the fold. `now=True` forces a
        checkpoint: the fold has failed.
        """


class Executor(Protocol):
    """Runs a task over spans and merges the partials from left to right.

    Attributes
    ----------
    workers : int
        Processes that a plan is made for.
    memory, cores : int or None
        Bytes that a plan may use of each, and cores it has, where that is not what this process has.
    """

    @property
    def workers(self) -> int: ...  # noqa: D102

    @property
    def memory(self) -> int | None: ...  # noqa: D102

    @property
    def cores(self) -> int | None: ...  # noqa: D102

    def check(self, read: Callable[[], object], memory: int, listener: Listener) -> None:
        """Refuse workers that cannot do the work, before it begins.

        Parameters
        ----------
        read : callable
            Reads some of the data; picklable.
        memory : int
            Bytes that the plan needs of each.
        listener : callable
            Warned of workers that come later and are left out.
        """

    def fold(
        self,
        task: Task[A],
        spans: Sequence[Span],
        merge: Callable[[A, A], None],
        *,
        threads: int = 1,
        ahead: int = 0,
        listener: Listener,
        checkpoint: Checkpointer | None = None,
    ) -> A:
        """Fold every span and merge.

        Parameters
        ----------
        task : Task
            What to do.
        spans : sequence of Span
            Where, in order; a field of the plan, as are threads and ahead.
        merge : callable
            ``merge(left, right)`` absorbs the right partial into the left in place.
        threads : int, default=1
            Spans that a process works on at the same time, each with its share of BLAS's threads.
        ahead : int, default=0
            Blocks of each read ahead, 0 or 1.
        listener : callable
            Told of every block done, one call at a time.
        checkpoint : Checkpointer, optional
            Given the partial result after every block; loaded from first.
        """
