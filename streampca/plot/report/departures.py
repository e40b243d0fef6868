"""Samples of a model that subtracts means of groups or trends, drawn by a report as departures from these.

Pictures are drawn of raw images, which do not hold their dates. So the level is subtracted from samples beforehand, and
the model is replaced by one of such samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...arrays import Array
from ...models.components import ComponentsModel
from ...planning.blocks import Span, blocks_of
from ...preprocessing import Preparation, unflatten
from ...preprocessing.learned import Learned
from ...readers.collection import Collection, State
from ...readers.storage_record import Chunks, Storage
from ...readers.views.blocks import piece_bytes, piece_rows
from ...readers.views.view import View
from ...storage.coordinate import Coordinate


class Departures(View):
    """Prepared samples less their level, in the units of the source: images, NaN outside the mask."""

    def __init__(self, model: ComponentsModel, raw: Collection) -> None:
        learned = model.preparation.learned
        assert learned is not None  # noqa: S101 - see `as_departures`
        level = replace(learned, deviation=None)
        steps = replace(model.preparation, standardize=False, scale=None, normalize=None, learned=level)
        self._prepared = model.prepared(raw, steps)
        super().__init__(self._prepared)
        self.storage = self._storage()

    def _storage(self) -> Storage:
        """Return the storage of the prepared samples, with the bytes of a piece as read and as prepared."""
        prepared = self._prepared
        rows = piece_rows(prepared, None)
        sizes = prepared.preparing
        held = prepared.storage.decode_bytes + sizes.scratch_bytes + sizes.held_bytes
        decode = held + max(piece_bytes(prepared), rows * (prepared.row_bytes + sizes.prepared_bytes))
        chunks = Chunks(prepared.chunks.samples, self.n_features)
        return replace(prepared.storage, chunks=chunks, decode_bytes=decode, fills=False)

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of prepared samples."""
        return self._prepared.coordinates

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read samples less their level; see `Collection.read`."""
        columns = slice(0, self.n_features) if features is None else features
        out = np.empty((rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        for block in blocks_of(Span(rows.start, rows.stop), piece_rows(self._prepared, None)):
            images = unflatten(self._prepared.read(slice(*block)), self.sample_shape, self._prepared.mask)
            out[block.start - rows.start : block.stop - rows.start] = images.reshape(block.size, -1)[:, columns]
        return out

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the prepared samples."""
        return self._prepared.states(now=now)


def as_departures(model: ComponentsModel, raw: Collection) -> tuple[ComponentsModel, Collection]:
    """Return a model and samples that need no dates; a model without dates is not changed."""
    learned = model.preparation.learned
    if learned is None or not learned.is_of_samples:
        return model, raw
    of_all = None
    if learned.deviation is not None:
        zeros = np.zeros((1, model.n_features))
        # The level is subtracted already; the deviations still scale the samples.
        of_all = Learned(means=zeros, weights=np.array([learned.weights.sum()]), deviation=learned.deviation)
    old = model.preparation
    steps = Preparation(
        mask=old.mask, standardize=old.standardize, scale=old.scale, normalize=old.normalize, learned=of_all
    )
    samples = Departures(model, raw)
    return replace(model, preparation=steps, raw_shape=model.sample_shape, raw_kind="f"), samples
