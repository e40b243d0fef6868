"""A pass of method 'randomized': the scatter matrix applied to the block that the solver wants, as a task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...accumulators import ScatterBlock
from ...execution import SavedPartial
from ...execution.task import Stateful
from .decomposition import Array, Float64
from .job import StageCheckpointer
from .samples_task import SamplesTask

NUMBER = "number"  # what the state of a fold that is kept says beside the accumulator's


@dataclass(frozen=True, kw_only=True)
class ScatterBlockTask(SamplesTask[ScatterBlock]):
    """Fold spans of a collection into an `ScatterBlock`; its parameters, beside those of every `SamplesTask`."""

    vectors: Array
    centre: Float64
    offset: Float64 | None = None
    precision: str
    product_rows: int
    seed: int

    def start(self) -> ScatterBlock:
        """Return what has absorbed nothing."""
        self.make_rooms()
        return ScatterBlock(
            self.vectors,
            self.centre,
            offset=self.offset,
            precision=self.precision,
            product_rows=self.product_rows,
            seed=self.seed,
        )

    def restore(self, state: dict[str, Array]) -> ScatterBlock:
        """Return what was absorbed before."""
        self.make_rooms()
        return ScatterBlock.from_state(state, copy=False)


@dataclass(frozen=True)
class OfPass:
    """Keeps one pass of many: what was kept of another is none of its own; see `streampca.execution.Checkpointer`.

    Attributes
    ----------
    checkpoint : StageCheckpointer
        Keeps all of them, one at a time.
    number : int
        Of the pass.
    """

    checkpoint: StageCheckpointer
    number: int

    def load(self, first: int) -> SavedPartial | None:
        """What was kept of this pass."""
        found = self.checkpoint.load(first)
        if found is None or int(found.state[NUMBER]) != self.number:
            return None
        return found._replace(state={name: value for name, value in found.state.items() if name != NUMBER})

    def save_if_due(self, first: int, last: int, at: int, accumulator: Stateful, *, now: bool = False) -> None:
        """Offer what this pass has done."""
        self.checkpoint.save_if_due(first, last, at, _Numbered(accumulator, self.number), now=now)


@dataclass(frozen=True)
class _Numbered:
    """An accumulator, and the number of the pass it is of."""

    accumulator: Stateful
    number: int

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Everything as plain arrays."""
        return {**self.accumulator.state(copy=copy), NUMBER: np.array(self.number)}
