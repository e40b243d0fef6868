"""The protocols of execution: a task, the executor that folds it, and the checkpoint that resumes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy.typing as npt

from ..events import BlockDone, Listener
from ..planning.blocks import Span, blocks_of


class Stateful(Protocol):
    """An accumulator whose state can be saved."""

    def state(self, *, copy: bool = True) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as plain arrays; without `copy` they can be the accumulator's own."""


@runtime_checkable
class RemoteSum(Stateful, Protocol):
    """A sum that another process holds, which may save it itself."""

    def begin_save(self, save: Any, note: Callable[[Any, float], None]) -> bool:
        """Let that process begin a `RemoteSave`, which `note` is told of later; False if it cannot."""


A = TypeVar("A", bound=Stateful)


class Task(Protocol[A]):
    """Work over a span of samples, features or steps, cut into blocks; picklable, as it holds no data."""

    def start(self) -> A:
        """Return a new, empty accumulator."""

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> A:
        """Return the accumulator with a saved state."""

    def blocks(self, span: Span) -> Iterable[Span]:
        """Cut a span into the blocks that are in memory one at a time, in order.

        A block is identified by its start and stop. The rest of a span is cut at the same positions as the whole span,
        so that a resumed fold adds up the same blocks.
        """

    def counts(self, block: Span) -> BlockDone:
        """Return the number of samples of a block, and the bytes that are read for it."""

    def fetch(self, block: Span) -> Any:
        """Read a block, possibly in another thread while the previous block is absorbed."""

    def feed(self, accumulator: A, block: Span, fetched: Any) -> None:
        """Absorb a block."""


class SampleBlocks:
    """Part of a task that reads a `collection` in blocks of `block_rows` samples."""

    collection: Any
    block_rows: int

    def blocks(self, span: Span) -> Iterable[Span]:
        """Return blocks that end at multiples of the number of rows, as whole chunks of storage do."""
        return blocks_of(span, self.block_rows)

    def counts(self, block: Span) -> BlockDone:
        """Return the number of samples of a block, and their bytes."""
        return BlockDone(block.size, block.size * self.collection.row_bytes)

    def fetch(self, block: Span) -> Any:
        """Read a block."""
        return self.collection.read(slice(*block))


class SavedPartial(NamedTuple):
    """A saved accumulator, which covers spans up to `last`, the last one up to position `at`."""

    last: int
    at: int
    state: dict[str, npt.NDArray[Any]]


class Checkpointer(Protocol):
    """Storage of the partial results of a fold, from which it resumes."""

    def load(self, first: int) -> SavedPartial | None:
        """Return the saved partial of the spans from `first` on, or None."""

    def save_if_due(self, first: int, last: int, at: int, accumulator: Stateful, *, now: bool = False) -> None:
        """Save an accumulator of the spans from `first` to `last`, the last one up to `at`, if a save is due.

        Called after each block, possibly by several threads. An exception ends the fold. `now=True` forces a
        save, after the fold has failed.
        """


class Executor(Protocol):
    """Runner of tasks over spans, which merges the partials in an order that depends on nothing but the spans.

    Attributes
    ----------
    workers : int
        Number of processes that a plan is made for.
    memory, cores : int or None
        Bytes that a plan can use of each process, and cores of each; None for those of this process.
    """

    @property
    def workers(self) -> int: ...  # noqa: D102

    @property
    def memory(self) -> int | None: ...  # noqa: D102

    @property
    def cores(self) -> int | None: ...  # noqa: D102

    def check(
        self, read: Callable[[], object], memory: int, listener: Listener, *, packages: Sequence[str] = ()
    ) -> None:
        """Refuse workers that cannot do the work, before it begins.

        Parameters
        ----------
        read : callable
            Reads a part of the data; picklable.
        memory : int
            Bytes that the plan needs of each worker.
        listener : callable
            Receiver of warnings about unsuitable workers that join later.
        packages : sequence of str, optional
            Packages that workers need beside those that every fit needs.
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
            The work.
        spans : sequence of Span
            Spans in order; from the plan, as are threads and ahead.
        merge : callable
            ``merge(left, right)`` absorbs the right partial into the left in place.
        threads : int, default=1
            Spans that a process folds at the same time, each with its share of BLAS's threads.
        ahead : int, default=0
            Blocks of each span that are read ahead, 0 or 1.
        listener : callable
            Receiver of an event for every finished block, called by one thread at a time.
        checkpoint : Checkpointer, optional
            Storage from which the fold resumes, and which is offered the partial result after every block.
        """
