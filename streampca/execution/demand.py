"""`Demand`: tells dask's scheduler how many more workers a fold can use, so that adaptive clusters grow.

A fold gives each worker one task at a time, and an adaptive cluster wants as many workers as there are tasks. So what
waits for further workers is shown to it as tasks that ask for a resource which no worker has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distributed import Client, Future

from .task_keys import Key

RESOURCE = "streampca-waits"


class Demand:
    """Tasks that stand for missing workers, on one cluster.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    key : callable
        Returns a new key; what dask knows about the duration of tasks of the same prefix decides how many workers it
        starts for them.
    """

    def __init__(self, client: Client, key: Callable[[], Key]) -> None:
        self._client, self._key = client, key
        self._waiting: list[Future] = []

    def ask(self, workers: int) -> None:
        """Ask for so many more workers than there are, unless the cluster is known not to adapt."""
        if workers > 0 and self._client.cluster is not None and not _is_adaptive(self._client):
            return
        keys = [self._key() for _ in range(workers - len(self._waiting))]
        if keys:
            self._waiting += self._client.map(_nothing, keys, key=keys, resources={RESOURCE: 1}, pure=False)
        surplus = self._waiting[max(0, workers) :]
        if surplus:
            self._client.cancel(surplus, force=True)
            del self._waiting[max(0, workers) :]

    @contextmanager
    def withdrawn(self) -> Iterator[None]:
        """Ask for nothing inside the block."""
        count = len(self._waiting)
        self.ask(0)
        try:
            yield
        finally:
            if self._client.status == "running":
                self.ask(count)


@contextmanager
def demand_of(client: Client, key: Callable[[], Key]) -> Iterator[Demand]:
    """Yield a `Demand`, which is withdrawn at the end."""
    demand = Demand(client, key)
    try:
        yield demand
    finally:
        if client.status == "running":
            demand.ask(0)


def _nothing(key: Key) -> None:
    """Do nothing, and never run."""


def largest_number(client: Client) -> int | None:
    """Return the number of workers up to which an adaptive cluster grows; None for another one, or without a limit."""
    maximum = client.cluster._adaptive.maximum if _is_adaptive(client) else math.inf
    return int(maximum) if maximum < math.inf else None


def _is_adaptive(client: Client) -> bool:
    """Return whether dask starts and stops workers of a client's cluster by what there is to do."""
    adaptive = getattr(client.cluster, "_adaptive", None)  # dask has no public name for it
    return adaptive is not None and bool(adaptive.periodic_callback)
