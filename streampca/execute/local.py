"""One process, one block after another: the specification of the other executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..blocks import Span
from ..events import Listener
from .protocol import A, Offer, Task


class SerialExecutor:
    """Runs spans in order in this process; BLAS brings the threads."""

    def fold(
        self,
        task: Task[A],
        spans: Sequence[Span],
        merge: Callable[[A, A], None],
        *,
        listener: Listener,
        offer: Offer | None = None,
    ) -> A:
        """See `Executor.fold`."""
        whole: A | None = None
        for number, span in enumerate(spans):
            part = task.start()
            for block in task.blocks(span):
                listener(task.feed(part, block))
                if offer is not None:
                    offer(number, block, part)
            if whole is None:
                whole = part
            else:
                merge(whole, part)
        return task.start() if whole is None else whole
