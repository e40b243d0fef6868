"""Read ranges of features with all samples, and fold them into what is accumulated along features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...accumulators import NotFiniteError, not_finite
from ...errors import DataError
from ...events import BlockDone
from ...planning.blocks import Span, blocks_of
from ...readers import Collection
from .accumulator_task import A, AccumulatorTask
from .data_checks import bad_sample
from .job import Array
from .scratch_copy import ScratchCopy


class FeatureRanges:
    """A collection read by ranges of features, all samples of a range at once, into the same memory.

    Parameters
    ----------
    collection : Collection
        What is read.
    block_rows : int
        Samples read at a time.
    width : int
        Most features to a range. The last one read stays, and is not read again while it does.
    """

    def __init__(self, collection: Collection, block_rows: int, width: int) -> None:
        self.collection = collection
        self.width, self._block_rows = min(width, collection.n_features), block_rows
        self._buffer: Array | None = None
        self._held: tuple[Span, Array] | None = None

    def __getstate__(self) -> dict[str, Any]:  # what was read stays here
        return {**vars(self), "_buffer": None, "_held": None}

    def read(self, features: Span) -> Array:
        """All samples of a range of features, (n, width), as stored; valid until the next is read."""
        if self._held is not None and self._held[0] == features:
            return self._held[1]
        self._held = None  # there is room for one
        block = self._read(features)
        self._held = features, block
        return block

    def _read(self, features: Span) -> Array:
        n, whole = self.collection.n_samples, features.size == self.collection.n_features
        some = None if whole else slice(*features)
        if self._block_rows >= n and (whole or not self.collection.fills):
            return self.collection.read(slice(0, n), some)
        if self._buffer is None:  # once: the system hands out fresh pages at the rate of reading, or less
            self._buffer = np.empty(n * self.width, self.collection.dtype)
        block = self._buffer[: n * features.size].reshape(n, features.size)
        for rows in blocks_of(Span(0, n), self._block_rows):
            self.collection.read_into(slice(*rows), some, block[slice(*rows)])
        return block

    def done(self, features: Span) -> BlockDone:
        """Return the share of all samples, and of the bytes, that a range is."""
        n, p = self.collection.n_samples, self.collection.n_features
        shares = (n * features.stop // p - n * features.start // p, self.collection.nbytes * features.size // p)
        return BlockDone(*shares)


@dataclass(frozen=True)
class FeaturesTask(AccumulatorTask[A]):
    """Fold spans of features into an accumulator along them, a range with all samples at a time.

    Attributes
    ----------
    source : FeatureRanges
        What is read.
    precision : {"single", "double"}
        Of products, which a remedy depends on.
    """

    source: FeatureRanges
    precision: str

    def blocks(self, span: Span) -> Iterable[Span]:
        """Ranges that end at multiples of the plan's."""
        return blocks_of(span, self.source.width)

    def counts(self, block: Span) -> BlockDone:
        """The share of all samples that a range is."""
        return self.source.done(block)

    def fetch(self, block: Span) -> Array:
        """Read a range."""
        return self.source.read(block)

    def feed(self, accumulator: A, block: Span, fetched: Array) -> None:
        """Absorb a range; name the sample and its file when it holds no number."""
        try:
            accumulator.update(fetched, at=block.start)
        except NotFiniteError as error:  # of a range; what is wrong with the whole sample is worth knowing
            raise self._bad_sample(error.sample) from None

    def _bad_sample(self, number: int) -> DataError:
        collection = self.source.collection
        if isinstance(collection, ScratchCopy):
            collection = collection.copied
        row = collection.read(slice(number, number + 1))
        return bad_sample(not_finite(row, number, self.precision), collection)
