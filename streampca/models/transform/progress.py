"""`Progress`: how far what is made in pieces is, step by step, and where a run before it was."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ...events import BlockDone
from ...planning.blocks import Span
from ...readers import Collection
from .resume import Recorder

Arrays = dict[str, npt.NDArray[Any]]
Step = tuple[int, ...]


class Progress:
    """Counts samples done, where each is done in parts, and the steps of these; knows what a run before it did.

    A step is a tuple of integers, and steps are done in their order. Those of a run of samples make two stages,
    ``"scores"`` and ``"output"``, each with the arrays in memory that it fills or works from.

    Parameters
    ----------
    recorder : Recorder
        Told of every step.
    collection : Collection
        Whose samples are counted.

    Attributes
    ----------
    squares : float
        Sum of the squared errors of the samples that have their scores.
    """

    def __init__(self, recorder: Recorder, collection: Collection) -> None:
        before = recorder.position
        self.squares = float(before.get("squares", 0.0))
        self._recorder, self._samples, self._row_bytes = recorder, collection.n_samples, collection.row_bytes
        self._done, self._told = before.get("done", 0.0), before.get("samples", 0)
        self._before, self._arrays_before = (before.get("run", 0), before.get("stage")), recorder.arrays
        self._step_before = tuple(before.get("step", ()))
        self._stage, self._step, self._arrays = self._before, self._step_before, self._arrays_before
        recorder.arrays = {}

    @property
    def start(self) -> int:
        """The first sample of the run to begin with."""
        return int(self._before[0])

    def begin(self, run: Span, stage: str, arrays: Arrays | None = None) -> Arrays:
        """Begin a stage of a run of samples; returns its arrays: those recorded, where it had begun before.

        Without `arrays` it is begun only in that case, and there are none otherwise.
        """
        if self._before == (run.start, stage):
            self._before = (-1, None)
            self._stage, self._step, self._arrays = (run.start, stage), self._step_before, self._arrays_before
            self._arrays_before = {}
        elif arrays is not None:
            self._stage, self._step, self._arrays = (run.start, stage), (), arrays
        else:
            return {}
        return self._arrays

    def has(self, step: Step) -> bool:
        """Whether a step of this stage, and so all before it, was done."""
        return step <= self._step

    def add(self, samples: float, step: Step) -> None:
        """Count a step as done, and so many samples, a part of one for each part of it."""
        self._done, self._step = self._done + samples, step
        self._tell(min(int(self._done), self._samples))

    def finish(self, run: Span) -> None:
        """Count all of a run of samples as done, and what rounding left at the end."""
        self._stage, self._step, self._arrays = (run.stop, None), (), {}
        self._tell(self._samples if run.stop == self._samples else self._told)

    def _tell(self, done: int) -> None:
        more, self._told = done - self._told, done
        (run, stage), step = self._stage, list(self._step)
        position = {"samples": done, "done": self._done, "run": run, "stage": stage, "step": step}
        position["squares"] = self.squares
        self._recorder.done(BlockDone(more, more * self._row_bytes) if more else None, position, self._arrays)
