"""The last read of the dual method: components, made of samples and eigenvectors, as tasks that executors run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ...events import BlockDone
from ...execution.threads import map_in_threads
from ...planning.blocks import Span, blocks_of
from ...readers import Collection
from .decomposition import Array, Float64
from .dual_components import Basis, Factors, Range
from .dual_passes import Features
from .gram_pairs import Pairs


class Making:
    """Components being made: those that are, the range being added up, and the pairs they are made of.

    The pairs are part of the state, so that one that was kept needs no Gram matrix to go on.

    Attributes
    ----------
    basis : Basis
        Takes finished ranges.
    range : Range or None
        That of the read that is going on, where samples pass by more than one block to a range.
    """

    def __init__(self, basis: Basis, pairs: Pairs) -> None:
        self.basis, self._pairs = basis, pairs
        self.range: Range | None = None

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Everything as plain arrays; without `copy` those that are worked on."""
        parts = {"pairs": self._pairs.state(), "basis": self.basis.state()}
        if self.range is not None:
            parts["range"] = self.range.state()
        return {
            f"{part}.{name}": array.copy(order="K") if copy else array
            for part, arrays in parts.items()
            for name, array in arrays.items()
        }


def part_of_state(state: dict[str, Array], part: str) -> dict[str, Array]:
    """What the state of a `Making` says of its pairs, its basis or its range; nothing where there is none."""
    return {name.partition(".")[2]: array for name, array in state.items() if name.startswith(f"{part}.")}


@dataclass(frozen=True)
class RangesTask:
    """Make components of ranges with all samples, a tile of features at a time.

    A block is a position in `order`, the ranges one after another.
    """

    source: Features
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
        wide, every = self.order[block.start], Span(0, len(fetched))
        tile = min(self.factors.tile, self.source.collection.n_features)
        while len(self._benches) < self.threads:
            self._benches.append(np.empty(len(fetched) * tile, self.factors.dtype))

        def made(features: Span, bench: Array) -> tuple[Range, Array]:
            found = Range(self.factors, features, None)
            found.add(every, fetched[:, features.start - wide.start : features.stop - wide.start], bench)
            return found, bench

        tasks = (partial(made, features) for features in blocks_of(wide, self.factors.tile))
        for found, bench in map_in_threads(lambda task: task(self._benches.pop()), tasks, self.threads):
            accumulator.basis.take(found)
            self._benches.append(bench)


@dataclass(frozen=True)
class ColumnsTask:
    """Make components of as many features at a time as are made in one read, from blocks of whole samples.

    A block is a step: for every range of features, the blocks of samples in order.
    """

    collection: Collection
    block_rows: int
    range_features: int
    centre: Float64
    factors: Factors
    basis: Basis
    pairs: Pairs

    @property
    def steps(self) -> int:
        """How many there are."""
        return -(-self.collection.n_features // self.range_features) * self._blocks

    @property
    def _blocks(self) -> int:
        return -(-self.collection.n_samples // self.block_rows)

    def _step(self, number: int) -> tuple[Span, Span]:
        """Features and samples of a step."""
        range_number, block = divmod(number, self._blocks)
        features, rows = range_number * self.range_features, block * self.block_rows
        return (
            Span(features, min(features + self.range_features, self.collection.n_features)),
            Span(rows, min(rows + self.block_rows, self.collection.n_samples)),
        )

    def start(self) -> Making:
        """Return what has no components yet."""
        return Making(self.basis, self.pairs)

    def restore(self, state: dict[str, Array]) -> Making:
        """Return what was made before."""
        self.basis.restore(part_of_state(state, "basis"))
        made = self.start()
        begun = part_of_state(state, "range")
        made.range = Range.restored(self.factors, self.centre, begun) if begun else None
        return made

    def blocks(self, span: Span) -> Iterable[Span]:
        """One step at a time."""
        return blocks_of(span, 1)

    def counts(self, block: Span) -> BlockDone:
        """Samples of a step, and their bytes."""
        rows = self._step(block.start)[1]
        return BlockDone(rows.size, rows.size * self.collection.row_bytes)

    def fetch(self, block: Span) -> Array:
        """Read some features of a block of samples."""
        features, rows = self._step(block.start)
        whole = features.size == self.collection.n_features
        return self.collection.read(slice(*rows), None if whole else slice(*features))

    def feed(self, accumulator: Making, block: Span, fetched: Array) -> None:
        """Add a block of samples; take the range when it was the last."""
        features, rows = self._step(block.start)
        made = accumulator.range or Range(self.factors, features, self.centre[slice(*features)])
        made.add(rows, fetched)
        accumulator.range = made
        if rows.stop == self.collection.n_samples:
            accumulator.basis.take(made)
            accumulator.range = None
