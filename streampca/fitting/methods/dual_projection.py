"""The last read of the dual method: components, made of samples and eigenvectors, as tasks that executors run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ...events import BlockDone
from ...execution.threads import map_in_threads
from ...planning.blocks import Span, blocks_of
from .dual_components import Basis, Factors, Range, project
from .features_task import FeatureRanges
from .gram_pairs import Pairs
from .job import Array


class Making:
    """Finished components, and the eigenpairs they are computed from: a checkpoint needs no Gram matrix to resume."""

    def __init__(self, basis: Basis, pairs: Pairs) -> None:
        self.basis, self._pairs = basis, pairs

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Everything as plain arrays; without `copy` those that are worked on."""
        parts = {"pairs": self._pairs.state(), "basis": self.basis.state()}
        return {
            f"{part}.{name}": array.copy(order="K") if copy else array
            for part, arrays in parts.items()
            for name, array in arrays.items()
        }


def part_of_state(state: dict[str, Array], part: str) -> dict[str, Array]:
    """Return the pairs or the basis from the state of a `Making`."""
    return {name.partition(".")[2]: array for name, array in state.items() if name.startswith(f"{part}.")}


@dataclass(frozen=True)
class RangesTask:
    """Make components of ranges with all samples, a tile of features at a time.

    A block is a position in `order`, the ranges one after another.
    """

    source: FeatureRanges
    order: tuple[Span, ...]
    factors: Factors
    threads: int
    basis: Basis
    pairs: Pairs
    _benches: list[Array] = field(default_factory=list, repr=False)

    def start(self) -> Making:
        """Return what has no components yet."""
        return Making(self.basis, self.pairs)

    def restore(self, state: dict[str, Array]) -> Making:
        """Return what was made before."""
        self.basis.restore(part_of_state(state, "basis"))
        return self.start()

    def blocks(self, span: Span) -> Iterable[Span]:
        """One range at a time."""
        return blocks_of(span, 1)

    def counts(self, block: Span) -> BlockDone:
        """The share of all samples that a range is."""
        return self.source.done(self.order[block.start])

    def fetch(self, block: Span) -> Array:
        """Read a range."""
        return self.source.read(self.order[block.start])

    def feed(self, accumulator: Making, block: Span, fetched: Array) -> None:
        """Make the components of a range."""
        wide = self.order[block.start]
        tile = min(self.factors.tile, self.source.collection.n_features)
        while len(self._benches) < self.threads:
            self._benches.append(np.empty(len(fetched) * tile, self.factors.dtype))

        def made(features: Span, bench: Array) -> tuple[Range, Array]:
            stored = fetched[:, features.start - wide.start : features.stop - wide.start]
            return project(self.factors, features, stored, bench), bench

        tasks = (partial(made, features) for features in blocks_of(wide, self.factors.tile))
        for found, bench in map_in_threads(lambda task: task(self._benches.pop()), tasks, self.threads):
            accumulator.basis.take(found)
            self._benches.append(bench)
