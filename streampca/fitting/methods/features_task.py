"""Tasks that read ranges of features with all samples, and fold them into accumulators along features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...accumulators import NotFiniteError, not_finite
from ...events import BlockDone
from ...planning.blocks import Span, blocks_of
from ...readers import Collection
from .accumulator_task import A, AccumulatorTask
from .data_checks import bad_sample
from .job import Array
from .scratch_copy import ScratchCopy


class FeatureRanges:
    """Collection that is read by ranges of features, all samples of a range at once, into the same memory.

    Parameters
    ----------
    collection : Collection
        Collection to read.
    block_rows : int
        Number of samples read at a time.
    width : int
        Largest number of features of a range. The last range is kept, and not read again immediately.
    """

    def __init__(self, collection: Collection, block_rows: int, width: int) -> None:
        self.collection = collection
        self.width, self._block_rows = min(width, collection.n_features), block_rows
        self._buffer: Array | None = None
        self._held: tuple[Span, Array] | None = None

    def __getstate__(self) -> dict[str, Any]:  # without the values that were read
        return {**vars(self), "_buffer": None, "_held": None}

    def read(self, features: Span) -> Array:
        """Return all samples of a range of features, (n, width), as stored; valid until the next read."""
        if self._held is not None and self._held[0] == features:
            return self._held[1]
        self._held = None  # there is memory for one range
        block = self._read(features)
        self._held = features, block
        return block

    def _read(self, features: Span) -> Array:
        n, whole = self.collection.n_samples, features.size == self.collection.n_features
        columns = None if whole else slice(*features)
        # One read of the reader's own array needs no copy into the buffer.
        if self._block_rows >= n and (whole or not self.collection.storage.fills):
            return self.collection.read(slice(0, n), columns)
        if self._buffer is None:  # allocated once: fresh pages of the system are no faster than reading
            self._buffer = np.empty(n * self.width, self.collection.dtype)
        block = self._buffer[: n * features.size].reshape(n, features.size)
        for rows in blocks_of(Span(0, n), self._block_rows):
            self.collection.read_into(slice(*rows), columns, block[slice(*rows)])
        return block

    def done(self, features: Span) -> BlockDone:
        """Return the share of all samples, and of all bytes, that a range amounts to."""
        n, p = self.collection.n_samples, self.collection.n_features
        # Differences of rounded cumulative shares add up to exactly n.
        shares = (n * features.stop // p - n * features.start // p, self.collection.nbytes * features.size // p)
        return BlockDone(*shares)


@dataclass(frozen=True)
class FeaturesTask(AccumulatorTask[A]):
    """Fold spans of features into an accumulator along features, a range with all samples at a time.

    Attributes
    ----------
    source : FeatureRanges
        Ranges to read.
    precision : {"single", "double"}
        Precision of products, for the remedy in messages.
    """

    source: FeatureRanges
    precision: str

    def blocks(self, span: Span) -> Iterable[Span]:
        """Return ranges that end at multiples of the plan's width."""
        return blocks_of(span, self.source.width)

    def counts(self, block: Span) -> BlockDone:
        """Return the share of all samples that a range amounts to."""
        return self.source.done(block)

    def fetch(self, block: Span) -> Array:
        """Read a range."""
        return self.source.read(block)

    def feed(self, accumulator: A, block: Span, fetched: Array) -> None:
        """Absorb a range; an error names the sample that is not finite, and its file."""
        try:
            accumulator.update(fetched, at=block.start)
        except NotFiniteError as error:  # describes a range only: describe the whole sample
            number, collection = error.sample, self.source.collection
            if isinstance(collection, ScratchCopy):
                collection = collection.copied
            row = collection.read(slice(number, number + 1))
            raise bad_sample(not_finite(row, number, self.precision), collection) from None
