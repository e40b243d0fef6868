"""Indexing of collections like arrays: samples by number, views of some samples, and values of some pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import index as as_index
from typing import Any

import numpy as np

from ... import machine
from ...arrays import Array
from ...errors import BudgetError, IndexingError, RequestError
from ...kinds.opening import Opening
from ...planning.blocks import Span, blocks_of
from ...planning.request import Machine
from ...units import counted, format_bytes, format_shape
from ..collection import Collection
from .blocks import fill, piece_bytes, piece_rows
from .chosen import Places
from .compose import choose_in_order


def item_of(collection: Collection, key: Any) -> Any:
    """Return a sample, a view of some samples, or values of some pixels; see `Collection.__getitem__`."""
    first, *pixels = _spelled_out(collection, key if isinstance(key, tuple) else (key,))
    if (number := _number(first)) is not None:
        image = sample_of(collection, _within(number, collection.n_samples, collection.source))
        return np.array(image[tuple(pixels)]) if pixels else image
    places = _places(first, collection.n_samples, collection.source)
    # Slicing by all samples, the usual way to take an array whole, returns the collection itself.
    is_all = isinstance(places, range) and places == range(collection.n_samples)
    view = collection if is_all else view_of(collection, places)
    lengths = zip(pixels, collection.sample_shape, strict=False)
    if all(isinstance(item, slice) and range(length)[item] == range(length) for item, length in lengths):
        return view
    return _pixels(view, pixels)


def sample_of(collection: Collection, number: int) -> Array:
    """Return one sample as a new array of its own shape."""
    if not collection.mixed:
        image: Array = values_of(collection, slice(number, number + 1))[0]
        return image
    images: list[Array] = []
    collection.each(slice(number, number + 1), lambda _, image: images.append(np.array(image)))
    return images[0]


def values_of(collection: Collection, rows: slice) -> Array:
    """Return samples as a new array (rows, *sample_shape), read a piece at a time."""
    values = np.empty((rows.stop - rows.start, collection.n_features), collection.dtype)
    if collection.storage.fills:
        collection.read_into(rows, None, values)
    else:
        fill(collection, rows, None, values)
    return collection.as_images(values)


def samples_of(collection: Collection) -> Iterator[Array]:
    """Yield the samples in order, each a new array; samples of one storage chunk are read at once."""
    rows = 1 if collection.mixed else piece_rows(collection, None)
    for span in blocks_of(Span(0, collection.n_samples), rows):
        if collection.mixed:
            yield sample_of(collection, span.start)
        else:
            yield from (image.copy() for image in values_of(collection, slice(*span)))


def view_of(collection: Collection, places: Places) -> Collection:
    """Return some samples of a collection, in the order of their places."""
    view = choose_in_order(collection, places)
    if collection.opened is not None:
        samples = slice(places.start, places.stop, places.step) if isinstance(places, range) else places
        view.opened = collection.opened.again(Opening(samples=samples))
    return view


def whole_array(collection: Collection, dtype: Any) -> Array:
    """Return all samples as an array in memory.

    Raises
    ------
    BudgetError
        If the array would exceed the memory limit.
    RequestError
        If images are of several sizes.
    """
    _check_one_size(collection)
    itemsize = np.dtype(collection.dtype if dtype is None else dtype).itemsize
    more = itemsize if dtype is not None and np.dtype(dtype) != collection.dtype else 0
    _check_fits(collection, collection.n_samples, collection.dtype.itemsize + more)
    values = values_of(collection, slice(0, collection.n_samples))
    return values if dtype is None else values.astype(dtype, copy=False)


def _spelled_out(collection: Collection, key: tuple[Any, ...]) -> list[Any]:
    """Return one item for the samples and one for each indexed axis of pixels; an ellipsis is expanded to all axes."""
    axes, dots = len(collection.shape), [at for at, item in enumerate(key) if item is Ellipsis]
    named = len(key) - len(dots)
    if len(dots) > 1 or named > axes or any(item is None for item in key):
        raise IndexingError(
            f"{collection.source} is of {format_shape(collection.shape)} and cannot be indexed by {_said(key)}; give "
            "samples and then pixels, such as collection[:10] or collection[0, 5]."
        )
    if dots:
        every = (slice(None),) * (axes - named)
        key = (*key[: dots[0]], *every, *key[dots[0] + 1 :])
    return list(key) or [slice(None)]


def _number(item: Any) -> int | None:
    """Return a whole number as an int; None for anything else."""
    if isinstance(item, (bool, np.bool_)):
        return None
    try:
        return as_index(item)
    except TypeError:
        return None


def _within(number: int, n: int, source: str) -> int:
    """Return the index of a sample; a negative number counts from the end."""
    if not -n <= number < n:
        raise IndexingError(f"sample {number} of {source} is not there: it has {n}, numbered 0 to {n - 1}.")
    return number % n


def _places(item: Any, n: int, source: str) -> Places:
    """Return the indices of the samples that a slice, a list of numbers or a list of bools selects, in its order."""
    if isinstance(item, slice):
        run = range(n)[item]
        places: Places = run if run.step > 0 else np.asarray(run)
    else:
        places = _listed(item, n, source)
    if not len(places):
        raise IndexingError(f"{_said(item)} takes none of the {n} samples of {source}; give some of them.")
    return places


def _listed(item: Any, n: int, source: str) -> Array:
    try:
        numbers = np.asarray(item)
    except ValueError:
        numbers = np.empty((), object)
    if numbers.dtype == np.bool_ and numbers.shape == (n,):
        return np.flatnonzero(numbers)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise IndexingError(
            f"samples of {source} cannot be taken by {numbers.dtype} values of shape {numbers.shape}; give a whole "
            f"number, a slice, a list of whole numbers, or {n} bools."
        )
    numbers = numbers.astype(np.int64)
    for wrong in numbers[(numbers < -n) | (numbers >= n)][:1].tolist():
        _within(wrong, n, source)
    numbers %= n
    ordered = np.sort(numbers)
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise IndexingError(
            f"sample {ordered[twice[0]]} of {source} is taken twice, and a collection has each sample once; take each "
            "once, and repeat them in an array, as by numpy.asarray(collection[numbers])[order]."
        )
    return numbers


def _said(item: Any) -> str:
    """Return the index of a collection as one line of text for messages."""
    text = " ".join(repr(item).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _pixels(view: Collection, pixels: list[Any]) -> Array:
    """Return values of some pixels of samples; only the features between the outermost pixels are read."""
    _check_one_size(view)
    shape = view.sample_shape
    if view.n_features != math.prod(shape):
        raise IndexingError(
            f"{view.source} is masked, and its pixels cannot be indexed; take samples first, as an array: "
            "numpy.asarray(collection[:10])."
        )
    items = [*pixels, *[slice(None)] * (len(shape) - len(pixels))]
    if not all(isinstance(item, slice) or _number(item) is not None for item in items):
        raise IndexingError(
            f"pixels of {view.source} are taken by whole numbers and slices; take samples first, as an array: "
            "numpy.asarray(collection[:10])."
        )
    places = []
    for item, length in zip(items, shape, strict=True):
        whole = np.arange(length)
        if isinstance(item, slice):
            places.append(whole[item])
        else:
            number = as_index(item)
            if not -length <= number < length:
                raise IndexingError(
                    f"pixel {number} of {view.source} is not there: its samples are {format_shape(shape)}."
                )
            places.append(whole[[number]])
    lengths = [len(indices) for indices, item in zip(places, items, strict=True) if isinstance(item, slice)]
    features = np.ravel_multi_index(np.ix_(*places), shape).ravel()
    _check_fits(view, view.n_samples, view.dtype.itemsize, len(features))
    values = np.empty((view.n_samples, len(features)), view.dtype)
    if len(features):
        first, last = int(features.min()), int(features.max())
        run = slice(first, last + 1)
        for span in blocks_of(Span(0, view.n_samples), piece_rows(view, run)):
            values[slice(*span)] = view.read(slice(*span), run)[:, features - first]
    return values.reshape(view.n_samples, *lengths)


def _check_one_size(collection: Collection) -> None:
    if collection.mixed:
        raise RequestError(
            f"{collection.source} holds images of several sizes, which make no array; take them one by one, as "
            "collection[0], or prepare them, as by Preparation(resize=(64, 64))."
        )


def _check_fits(collection: Collection, samples: int, itemsize: int, features: int | None = None) -> None:
    """Refuse an array of samples that would exceed the memory limit."""
    budget, source = Machine(machine.cores(), *machine.memory_limit()).budget(None)
    row = (collection.n_features if features is None else features) * itemsize
    stored = collection.storage
    beside = stored.decode_bytes + (0 if stored.fills and features is None else piece_bytes(collection))
    needed = samples * row + beside
    if needed <= budget:
        return
    most = (budget - beside) // row
    advice = f"take some samples at a time, such as collection[:{most}], or " if most > 0 else ""
    raise BudgetError(
        f"{counted(samples, 'sample')} of {collection.source} as an array need {format_bytes(needed)} and memory "
        f"allows {format_bytes(budget)} ({source}); {advice}use collection.to_dask(), a lazy array."
    )
