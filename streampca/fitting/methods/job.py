"""`Job`, which every method is given: a collection, its plan, an executor, and what else the fit provides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...events import Listener, PassFinished, PassStarted, Warned, silent
from ...execution import Executor
from ...execution.checkpoint import StageCheckpoint
from ...planning import Plan
from ...readers import Collection
from ...readers.collection import State, unchanged
from ...storage.components import ComponentWriter, UnfinishedComponents
from .decomposition import Array, Float64

OpenSink = Callable[[int, np.dtype[Any], UnfinishedComponents | None], ComponentWriter]


@dataclass(frozen=True)
class Job:
    """One fit, as a method is given it.

    Attributes
    ----------
    collection : Collection
        The samples.
    plan : Plan
        How they are read, and what is made of them.
    executor : Executor
        Who folds tasks over the plan's spans.
    weights : ndarray of shape (n,) or None
        How often each sample counts.
    listener : callable
        Told what happens.
    stage : callable or None
        ``stage(name)`` opens the checkpoint of a stage of the method; None without checkpoints.
    scratch : str or None
        What the name of a scratch copy begins with, for plans that make one; it is gone afterwards, whatever happens.
    sink : callable or None
        ``sink(k, dtype, unfinished)`` opens where components are written as they are computed, for plans that do so;
        unfinished ones are resumed if they are there.
    states : sequence of State or None
        States of the collection that every pass must find unchanged when it ends; None where nobody asks.
    """

    collection: Collection
    plan: Plan
    executor: Executor
    weights: Float64 | None = None
    listener: Listener = silent
    stage: Callable[[str], StageCheckpoint] | None = None
    scratch: str | None = None
    sink: OpenSink | None = None
    states: Sequence[State] | None = None

    @property
    def total_weight(self) -> float | None:
        """Sum of the weights; None where there are none."""
        return None if self.weights is None else float(self.weights.sum())

    def checkpoint(self, stage: str) -> StageCheckpoint | None:
        """Return the checkpoint of a stage; None without checkpoints."""
        return None if self.stage is None else self.stage(stage)

    def saved(self, stage: str) -> dict[str, Array] | None:
        """The state that was kept of a stage without spans; None where there is none."""
        checkpoint = self.checkpoint(stage)
        saved = None if checkpoint is None else checkpoint.load(0)
        return None if saved is None else saved.state

    def warn(self, message: str) -> None:
        """Warn the user."""
        self.listener(Warned(message))

    @contextmanager
    def told(self, started: PassStarted, *, reads: bool = True) -> Iterator[None]:
        """Tell of a pass, and when it is done how long it took.

        Parameters
        ----------
        started : PassStarted
            The pass.
        reads : bool, default=True
            Whether it reads the collection, not a copy of it: the collection must be as it was then.

        Raises
        ------
        ChangedError
            If it is not.
        """
        began = time.perf_counter()
        self.listener(started)
        with unchanged(self.collection, self.states) if reads and self.states is not None else nullcontext():
            yield
        self.listener(PassFinished(time.perf_counter() - began))
