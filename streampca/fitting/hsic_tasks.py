"""Tasks over pairs of samples of two collections: tiles of their kernel matrices, and moments of their features."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..accumulators import CrossMoments, KernelSums
from ..arrays import Array, Float64
from ..events import BlockDone
from ..planning.blocks import Span, blocks_of
from ..planning.hsic import tile_count
from .kernel_sides import KernelSide, SideMap

Strips = tuple[Array, Array]  # the same samples of both collections
Tiles = tuple[Span, Span, tuple[Float64, Float64]]  # both kernels between two runs of samples


@dataclass(frozen=True)
class PairsTask:
    """Common part of tasks over pairs of samples; see `streampca.execution.Task`.

    Attributes
    ----------
    sides : (KernelSide, KernelSide)
    rows : int
        Samples that are read at a time; along the side of a tile.
    """

    sides: tuple[KernelSide, KernelSide]
    rows: int

    @property
    def n_samples(self) -> int:
        """Number of pairs."""
        return self.sides[0].collection.n_samples

    @property
    def row_bytes(self) -> int:
        """Bytes of a pair of samples as stored."""
        return sum(side.collection.row_bytes for side in self.sides)

    def read(self, span: Span) -> Strips:
        """Read the same samples of both collections."""
        first, second = self.sides
        return first.read(slice(*span)), second.read(slice(*span))


@dataclass(frozen=True)
class KernelTiles(PairsTask):
    """Fold tiles of the upper triangles of two kernel matrices. Spans count tiles."""

    _thread: threading.local = field(default_factory=threading.local, repr=False)

    def __reduce__(self) -> Any:  # without the strips that threads have read
        return KernelTiles, (self.sides, self.rows)

    @property
    def n_tiles(self) -> int:
        """Number of tiles."""
        return tile_count(self.n_samples, self.rows)

    def start(self) -> KernelSums:
        """Return empty sums."""
        return KernelSums(self.n_samples)

    def restore(self, state: dict[str, Array]) -> KernelSums:
        """Return the sums with a saved state."""
        return KernelSums.from_state(state)

    def blocks(self, span: Span) -> Iterable[Span]:
        """Yield the tiles of a span one by one."""
        return blocks_of(span, 1)

    def counts(self, block: Span) -> BlockDone:
        """Count a tile as its share of all samples."""
        n, count = self.n_samples, self.n_tiles
        samples = n * block.stop // count - n * block.start // count
        return BlockDone(samples, samples * self.row_bytes)

    def fetch(self, block: Span) -> tuple[Span, Span, Strips, Strips]:
        """Read the two strips of samples of a tile; the first is read once for all tiles of its line."""
        first, second = self._samples_of(block.start)
        held, strip = getattr(self._thread, "strip", (None, None))
        if held != first or strip is None:
            strip = self.read(first)
            self._thread.strip = first, strip
        return first, second, strip, strip if first == second else self.read(second)

    def feed(self, accumulator: KernelSums, block: Span, fetched: tuple[Span, Span, Strips, Strips]) -> None:
        """Absorb a tile of both kernels."""
        accumulator.update(*self._tiles(*fetched))

    def all_tiles(self) -> Iterator[Tiles]:
        """Yield the tiles of both kernels, with their two runs of samples."""
        for block in self.blocks(Span(0, self.n_tiles)):
            yield self._tiles(*self.fetch(block))

    def _tiles(self, first: Span, second: Span, strip: Strips, other: Strips) -> Tiles:
        x, y = (side.matrix(rows, others) for side, rows, others in zip(self.sides, strip, other, strict=True))
        # Kernels are centred later; a level near their mean, subtracted first, keeps digits from cancelling then.
        x -= self.sides[0].level
        y -= self.sides[1].level
        return first, second, (x, y)

    def _samples_of(self, number: int) -> tuple[Span, Span]:
        """Return the two runs of samples of a tile, which are numbered line by line of the upper triangle."""
        n, line = self.n_samples, 0
        strips = -(-n // self.rows)
        while number >= strips - line:
            number -= strips - line
            line += 1
        first, second = line * self.rows, (line + number) * self.rows
        return Span(first, min(first + self.rows, n)), Span(second, min(second + self.rows, n))


@dataclass(frozen=True)
class MappedPairs(PairsTask):
    """Fold features of pairs of samples into their moments.

    Attributes
    ----------
    maps : (SideMap, SideMap)
    centres : (ndarray, ndarray)
        Points near the means of the features.
    piece : int
        Number of samples that are mapped at a time.
    """

    maps: tuple[SideMap, SideMap]
    centres: tuple[Float64, Float64]
    piece: int

    def start(self) -> CrossMoments:
        """Return empty moments."""
        return CrossMoments(*self.centres)

    def restore(self, state: dict[str, Array]) -> CrossMoments:
        """Return the moments with a saved state."""
        return CrossMoments.from_state(state)

    def blocks(self, span: Span) -> Iterable[Span]:
        """Yield blocks that end at multiples of the plan's block length."""
        return blocks_of(span, self.rows)

    def counts(self, block: Span) -> BlockDone:
        """Return the number of samples of a block, and their bytes in both collections."""
        return BlockDone(block.size, block.size * self.row_bytes)

    def fetch(self, block: Span) -> Strips:
        """Read a block of both collections."""
        return self.read(block)

    def feed(self, accumulator: CrossMoments, block: Span, fetched: Strips) -> None:
        """Absorb a block, `piece` rows at a time."""
        for start in range(0, block.size, self.piece):
            x, y = (map_(rows[start : start + self.piece]) for map_, rows in zip(self.maps, fetched, strict=True))
            accumulator.update(x, y, at=block.start + start)
