"""Samples of a model that takes means of groups or trends off, as a report draws them: as their departures from these.

What a picture is drawn of is a raw image, which does not say its date. So the samples are handed on with their level
taken off, and with a model of such samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...models.pca import PCAModel
from ...planning.blocks import Span, blocks_of
from ...preprocessing import Preparation, unflatten
from ...preprocessing.learned import Learned
from ...readers.collection import Array, Chunks, Collection, State
from ...readers.views.blocks import piece_bytes, piece_rows
from ...readers.views.view import View
from ...storage.coordinate import Coordinate


class Departures(View):
    """Prepared samples less their level, in the units of the source: images, NaN outside the mask."""

    def __init__(self, model: PCAModel, raw: Collection) -> None:
        learned = model.preparation.learned
        assert learned is not None  # noqa: S101 - see `as_departures`
        off = replace(learned, deviation=None)
        steps = replace(model.preparation, standardize=False, scale=None, normalize=None, learned=off)
        self._prepared = model.prepared(raw, steps)
        super().__init__(self._prepared)

    @property
    def chunks(self) -> Chunks:
        """Storage chunks of the samples, and all features."""
        return Chunks(self._prepared.chunks.samples, self.n_features)

    @property
    def decode_bytes(self) -> int:
        """Bytes that the base holds, and a piece of it as read and as prepared."""
        own = self._prepared
        rows = piece_rows(own, None)
        held = own.decode_bytes + own.scratch_bytes + own.held_bytes
        return held + max(piece_bytes(own), rows * (own.row_bytes + own.prepared_bytes))

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of prepared samples."""
        return self._prepared.coordinates

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read samples and take their level off; see `Collection.read`."""
        some = slice(0, self.n_features) if features is None else features
        out = np.empty((rows.stop - rows.start, some.stop - some.start), self.dtype)
        for block in blocks_of(Span(rows.start, rows.stop), piece_rows(self._prepared, None)):
            images = unflatten(self._prepared.read(slice(*block)), self.sample_shape, self._prepared.mask)
            out[block.start - rows.start : block.stop - rows.start] = images.reshape(block.size, -1)[:, some]
        return out

    def states(self, *, now: bool = False) -> list[State]:
        """Return those of the prepared samples."""
        return self._prepared.states(now=now)


def as_departures(model: PCAModel, raw: Collection) -> tuple[PCAModel, Collection]:
    """Return a model and samples without dates for those that need them; others as they are."""
    learned = model.preparation.learned
    if learned is None or not learned.is_of_samples:
        return model, raw
    of_all = None
    if learned.deviation is not None:
        nothing = np.zeros((1, model.n_features))
        of_all = Learned(means=nothing, weights=np.array([learned.weights.sum()]), deviation=learned.deviation)
    own = model.preparation
    steps = Preparation(
        mask=own.mask, standardize=own.standardize, scale=own.scale, normalize=own.normalize, learned=of_all
    )
    samples = Departures(model, raw)
    return replace(model, preparation=steps, raw_shape=model.sample_shape, raw_kind="f"), samples
