"""Puts together what was opened and what was asked of it: windows of its images, labels, some samples only."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import RequestError
from ..collection import Collection
from ..stored.array import ArrayCollection
from ..stored.layout import Axis, image_layout
from ..windows import size_and_step
from .chosen import Chosen, Places, compact, places_of
from .columns import matching, open_column
from .patches import Patches
from .variables import Variables


def composed(
    collection: Collection,
    *,
    sample_axes: Sequence[Axis] | None,
    patches: Any,
    samples: Any,
    labels: Any,
    where: str | None,
) -> Collection:
    """Cut a collection's images into windows, then take samples by their places, then by their labels."""
    if patches is None:
        _refuse_single_image(collection, sample_axes)
    else:
        collection = Patches(_images(collection.fitting(lambda shape: shape), sample_axes, patches), patches)
    if samples is not None:
        collection = choose(collection, places_of(samples, collection.n_samples, collection.source))
    if labels is not None:
        column = open_column(labels, collection)
        collection = copy.copy(collection)  # it may be the caller's own
        collection.labels = column
    if where is not None:
        collection = choose(collection, compact(matching(where, collection), collection.n_samples))
    return collection


def choose(collection: Collection, places: Places) -> Collection:
    """Take some samples of a collection: where each is a file, those files, which are then decoded side by side."""
    kept = np.zeros(collection.n_samples, np.bool_)
    kept[np.asarray(places)] = True
    take = getattr(collection, "taken", None)
    found: Collection | None = None if take is None else take(kept)
    if found is None:
        found = Chosen(collection, places)
        found.opened = collection.opened
        return found
    found.opened, found.reading, found.beside = collection.opened, collection.reading, collection.beside
    found.labels = None if collection.labels is None else collection.labels[kept]
    found.kept = kept
    if collection.kept is not None:
        found.kept = collection.kept.copy()
        found.kept[collection.kept] = kept
    return found


def _images(collection: Collection, sample_axes: Sequence[Axis] | None, patches: Any) -> Collection:
    """Let all axes of an array make one image, where windows have as many sides and the caller named no axes."""
    if isinstance(collection, Variables):
        return collection.of_parts(lambda part: _images(part, sample_axes, patches))
    if not isinstance(collection, ArrayCollection) or sample_axes is not None:
        return collection
    sides = len(size_and_step(patches)[0])
    return collection.laid_out(image_layout(collection.layout, collection.dims, sides))


def _refuse_single_image(collection: Collection, sample_axes: Sequence[Axis] | None) -> None:
    collection = collection.base if isinstance(collection, Variables) else collection
    if not isinstance(collection, ArrayCollection) or collection.layout.outer:
        return
    if sample_axes is not None:
        raise RequestError(
            f"sample_axes {tuple(sample_axes)} takes every axis of {collection.source}; leave one to count samples, or "
            "cut the image into windows, as by patches=16."
        )
    axes = collection.axes or ()
    raise RequestError(
        f"{collection.source} is a single image (axes {', '.join(axes)}); give a collection of images, cut it into "
        f"windows, as by patches=16, or make samples of its parts by naming fewer axes, such as "
        f"sample_axes=({axes[-1]!r},)."
    )
