"""A pass of method 'randomized': the scatter matrix applied to the block that the solver wants, as a task."""

from __future__ import annotations

from dataclasses import dataclass

from ...accumulators import ScatterBlock
from .decomposition import Array, Float64
from .samples_task import SamplesTask


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
