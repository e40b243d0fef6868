"""Composition of an opened collection with the options on it: windows of images, labels, and a choice of samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import RequestError
from ...kinds.opening import Opening
from ...storage.pixel_sizes import holds_channels
from ..collection import COLOURS, Collection
from ..stored.array import ArrayCollection
from ..stored.axis_roles import Role, role_of_name
from ..stored.layout import Axis, image_layout
from ..windows import size_and_step
from .chosen import Chosen, Places, compact, places_of
from .columns import matching, open_column
from .converted import Converted
from .patches import Patches
from .variables import Variables

WINDOW, LEAST_WINDOW = 16, 2  # sides of the windows that errors propose


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
        collection = choose_in_order(collection, places_of(options.samples, collection.n_samples, collection.source))
    if options.labels is not None:
        column = open_column(options.labels, collection)
        collection = copy.copy(collection)  # it may be the caller's own
        collection.labels = column
    if options.where is not None:
        collection = choose(collection, compact(matching(options.where, collection), collection.n_samples))
    return collection


def choose_in_order(collection: Collection, places: Places) -> Collection:
    """Choose samples of a collection in the order of their places."""
    if isinstance(places, range) or (np.diff(places) > 0).all():
        return choose(collection, places)
    # Files are chosen first and put in order afterwards, so that several can be decoded at a time.
    ranks = np.empty(len(places), np.int64)
    ranks[np.argsort(places)] = np.arange(len(places))
    return Chosen(choose(collection, compact(np.sort(places), collection.n_samples)), ranks)


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
        cutting = "".join(f", or {way}" for way in _windows_of(collection))
        return RequestError(
            f"sample_axes {tuple(sample_axes)} takes every axis of {collection.source}; leave one to count samples"
            f"{cutting}."
        )
    return RequestError(
        f"{collection.source} is a single image (axes {', '.join(collection.axes or ())}); give a collection of images"
        f"{samples_of_image(collection)}."
    )


def samples_of_image(collection: Collection) -> str:
    """Return how one image makes several samples, for errors: windows that fit, its channels, or its lines."""
    if not isinstance(collection, ArrayCollection):
        return ""
    sides, others = _sides_of(collection)
    others = [axis for axis in others if collection.sample_shape[axis] > 1]
    kept, counted = (sides, others) if others else (sides[1:], sides[:1])
    names: Sequence[Axis] = collection.axes or collection.layout.inner
    ways = _windows_of(collection)
    if kept:
        axes, along = tuple(names[axis] for axis in kept), " and ".join(str(names[axis]) for axis in counted)
        words = ",".join(map(str, axes))
        ways.append(f"count samples along axis {along} by --sample-axes {words} (sample_axes={axes!r})")
    return "".join(f", or {way}" for way in ways)


def _windows_of(collection: ArrayCollection) -> list[str]:
    """Return the option that cuts an image into windows, if it takes windows and two fit."""
    sides, others = _sides_of(collection)
    shape, names = collection.sample_shape, collection.axes
    is_plain = not others or (len(others) == 1 and (holds_channels(names[others[0]]) if names else others[0] == 2))
    lengths = [shape[axis] for axis in sides]
    side = min(WINDOW, max(lengths, default=0) // 2, *lengths)
    if len(sides) != 2 or not is_plain or side < LEAST_WINDOW:
        return []
    return [f"cut it into windows by --patches {side}x{side} (patches={side})"]


def _sides_of(collection: ArrayCollection) -> tuple[list[int], list[int]]:
    """Return which axes of a sample are the sides of its images, and which are others."""
    shape, names = collection.sample_shape, [name.lower() for name in collection.axes or ()]
    sides = [axis for axis, name in enumerate(names) if role_of_name(name, names) in (Role.Y, Role.X)]
    if len(sides) != 2:
        is_coloured = not names and len(shape) > 2 and shape[-1] in COLOURS
        sides = [*range(len(shape))][-3:-1] if is_coloured else [*range(len(shape))][-2:]
    return sides, [axis for axis in range(len(shape)) if axis not in sides]
