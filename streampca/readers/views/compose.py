"""Composition of an opened collection with the options on it: windows of images, labels, and a choice of samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import RequestError
from ...kinds.opening import Opening
from ..collection import Collection
from ..stored.array import ArrayCollection
from ..stored.layout import Axis, image_layout
from ..windows import size_and_step
from .chosen import Chosen, Places, compact, places_of
from .columns import matching, open_column
from .converted import Converted
from .patches import Patches
from .variables import Variables


def cut(collection: Collection, options: Opening) -> Collection:
    """Return a collection's images, or windows of them; refuse an array that is a single image without windows."""
    if options.patches is None:
        array = collection
        while isinstance(array, (Converted, Variables)):
            array = array.base
        if isinstance(array, ArrayCollection) and not array.layout.outer:
            raise _single_image(array, options.sample_axes)
        return collection
    images = _images(collection.fitting(lambda shape: shape), options.sample_axes, options.patches)
    return Patches(images, options.patches)


def composed(collection: Collection, options: Opening) -> Collection:
    """Cut a collection's images into windows, then choose samples by their indices, then by their labels."""
    collection = cut(collection, options)
    if options.samples is not None:
        collection = choose(collection, places_of(options.samples, collection.n_samples, collection.source))
    if options.labels is not None:
        column = open_column(options.labels, collection)
        collection = copy.copy(collection)  # it may be the caller's own
        collection.labels = column
    if options.where is not None:
        collection = choose(collection, compact(matching(options.where, collection), collection.n_samples))
    return collection


def choose(collection: Collection, places: Places) -> Collection:
    """Choose samples of a collection; of image files, the files are chosen, so that several are decoded at a time."""
    mask = np.zeros(collection.n_samples, np.bool_)
    mask[np.asarray(places)] = True
    take = getattr(collection, "taken", None)
    chosen: Collection | None = None if take is None else take(mask)
    if chosen is None:
        chosen = Chosen(collection, places)
        chosen.opened = collection.opened
        return chosen
    chosen.opened, chosen.reading, chosen.beside = collection.opened, collection.reading, collection.beside
    chosen.labels = None if collection.labels is None else collection.labels[mask]
    chosen.kept = mask
    if collection.kept is not None:
        chosen.kept = collection.kept.copy()
        chosen.kept[collection.kept] = mask
    return chosen


def _images(collection: Collection, sample_axes: Sequence[Axis] | None, patches: Any) -> Collection:
    """Treat an array as a single image if windows have as many sides and the caller named no axes."""
    if isinstance(collection, Variables):
        return collection.of_parts(lambda part: _images(part, sample_axes, patches))
    if isinstance(collection, Converted):
        return collection.of_base(lambda base: _images(base, sample_axes, patches))
    if not isinstance(collection, ArrayCollection) or sample_axes is not None:
        return collection
    sides = len(size_and_step(patches)[0])
    return collection.laid_out(image_layout(collection.layout, collection.dims, sides))


def _single_image(collection: ArrayCollection, sample_axes: Sequence[Axis] | None) -> RequestError:
    """Return the refusal of an array all of whose axes make one image."""
    if sample_axes is not None:
        return RequestError(
            f"sample_axes {tuple(sample_axes)} takes every axis of {collection.source}; leave one to count samples, or "
            "cut the image into windows, as by patches=16."
        )
    axes = collection.axes or ()
    return RequestError(
        f"{collection.source} is a single image (axes {', '.join(axes)}); give a collection of images, cut it into "
        f"windows, as by patches=16, or make samples of its parts by naming fewer axes, such as "
        f"sample_axes=({axes[-1]!r},)."
    )
