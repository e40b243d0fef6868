"""`Chosen`: some samples of another collection, by a range with a step or by a list of indices, in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import index as as_index
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arrays import Array
from ...errors import RequestError
from ...storage.coordinate import Coordinate
from ..collection import Collection, State, digest, with_ends
from ..image_files.names import FileNames
from ..storage_record import Chunks, Storage
from ..stored.array import ArrayCollection
from ..stored.flat import FlatArray
from .blocks import piece_bytes, piece_rows
from .view import View

Places = range | Array

# Bytes that are faster to read whole than in parts: every second sample of MNIST took 0.56 s one by one, 0.05 s so.
_CLOSE = 2**16


class Chosen(View):
    """Samples of another collection, each at most once, in any order."""

    def __init__(self, base: Collection, places: Places) -> None:
        super().__init__(base.base if isinstance(base, Chosen) else base)
        self.places: Places = _through(base.places, places) if isinstance(base, Chosen) else places
        self.labels, self.kept = None if base.labels is None else base.labels[_key(places)], None
        self.mixed, self.shape = base.mixed, (len(places), *base.sample_shape)
        self._ascends = isinstance(self.places, range) or bool((np.diff(self.places) > 0).all())
        self.storage = self._storage()

    def _storage(self) -> Storage:
        """Return the storage of the base, with the mean number of chosen samples in a chunk."""
        stored, (samples, features) = self.base.storage, self.base.chunks
        # A read that skips samples holds a piece of the base; one that reorders samples holds two.
        apart = len(self.places) > 1 and self.places[-1] - self.places[0] >= len(self.places)
        pieces = (1 if apart else 0) if self._ascends else 2
        return Storage(
            Chunks(max(1, min(self.n_samples, samples * self.n_samples // self.base.n_samples)), features),
            stored.decode_bytes + pieces * piece_bytes(self.base),
            stored.converted_bytes,
            stored.encoded,
            keeps=self._ascends and stored.keeps,
        )

    @property
    def n_features(self) -> int:
        """Features of the base, which can be fewer than its pixels."""
        return self.base.n_features

    def as_images(self, rows: Array) -> Array:
        """Reshape rows to samples, as the base does."""
        return self.base.as_images(rows)

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return the coordinates of the chosen samples."""
        key = _key(self.places)
        return {
            name: coord._replace(values=coord.values[key]) for name, coord in self.base.sample_coordinates().items()
        }

    def sample_keys(self) -> npt.NDArray[np.int64] | None:
        """Return the keys of the chosen samples."""
        keys = self.base.sample_keys()
        return None if keys is None else keys[_key(self.places)]

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read runs of the base, each storage chunk once if one fits a piece; see `Collection.read`."""
        places = np.asarray(self.places[rows.start : rows.stop], np.int64)
        start = int(places[0]) if len(places) else 0
        if not len(places) or (self._ascends and places[-1] - start == len(places) - 1):
            return self.base.read(slice(start, start + len(places)), features)
        width = self.n_features if features is None else features.stop - features.start
        out = np.empty((len(places), width), self.dtype)
        order = None if self._ascends else np.argsort(places)
        places = places if order is None else places[order]
        # Samples read for any of them: a storage chunk, or nearby samples of plain bytes.
        plain = isinstance(self.base, ArrayCollection) and isinstance(self.base.array, FlatArray)
        together = max(self.base.chunks.samples, _CLOSE // self.base.row_bytes if plain else 1)
        for part in _runs(places, together, piece_rows(self.base, features)):
            first, last = int(places[part.start]), int(places[part.stop - 1])
            block = self.base.read(slice(first, last + 1), features)
            if order is None:
                # The default mode would buffer `out`; "clip" does not, and no index is out of range.
                np.take(block, places[part] - first, axis=0, out=out[part], mode="clip")
            else:
                out[order[part]] = block[places[part] - first]
        return out

    def each(self, rows: slice, function: Callable[[int, Array], None]) -> None:
        """Call the function for images of the base, run by run; see `Collection.each`."""
        places = np.asarray(self.places[rows.start : rows.stop], np.int64)
        order = np.argsort(places)
        places = places[order]
        for part in _runs(places, 1, len(places)):
            first = int(places[part.start])

            def numbered(at: int, image: Array, start: int = part.start) -> None:
                function(int(order[start + at]), image)

            self.base.each(slice(first, first + part.stop - part.start), numbered)

    def where(self, index: int) -> str:
        """Return the origin of the sample in the base."""
        return self.base.where(int(self.places[index]))

    def named(self, index: int) -> str:
        """Return the origin of the sample in the base, and its number there."""
        return self.base.named(int(self.places[index]))

    def sample_names(self) -> Sequence[str] | None:
        """Return the names of the chosen samples."""
        names = self.base.sample_names()
        chosen = None if names is None else [names[int(place)] for place in self.places]
        return FileNames(chosen) if chosen is not None and isinstance(names, FileNames) else chosen

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the base's groups that have chosen samples, each combined with the choice."""
        places, states = np.sort(np.asarray(self.places, np.int64)), []
        turned = () if self._ascends else (hashlib.sha256(np.asarray(self.places, np.int64).tobytes()).hexdigest(),)
        for (first, what, state), end in with_ends(self.base.states(now=now), self.base.n_samples):
            start, stop = np.searchsorted(places, (first, end)).tolist()
            if stop > start:
                chosen = hashlib.sha256((places[start:stop] - first).tobytes()).hexdigest()
                states.append(State(start, what, digest(state, chosen, *turned)))
        return states


def places_of(samples: Any, n: int, source: str) -> Places:
    """Resolve a choice among n samples.

    Returns
    -------
    range or ndarray of int
        In the order of a list; ascending for a slice and a mask.
    """
    if isinstance(samples, tuple):
        samples = slice(*samples) if len(samples) in (2, 3) else samples
    places = _range(samples, n, source) if isinstance(samples, slice) else _listed(samples, n, source)
    if not len(places):
        raise RequestError(f"samples {_say(samples)} takes none of the {n} samples of {source}; give some of them.")
    return places


def compact(places: Array, n: int) -> Places:
    """Return ascending indices as a range if they are evenly spaced, else in the smallest dtype that n needs."""
    steps = np.diff(places)
    if len(places) and (len(places) == 1 or (steps == steps[0]).all()):
        step = int(steps[0]) if len(steps) else 1
        return range(int(places[0]), int(places[-1]) + 1, step)
    return places.astype(np.int32 if n <= 2**31 else np.int64)


def _range(samples: slice, n: int, source: str) -> range:
    try:
        ends = [as_index(end) for end in (samples.start, samples.stop, samples.step) if end is not None]
    except TypeError:
        raise RequestError(f"samples {_say(samples)} are not whole numbers; give start, stop and step.") from None
    if samples.step is not None and ends.pop() < 1:
        raise RequestError(f"samples {_say(samples)} has a step below 1, and samples keep their order; give 1 or more.")
    if any(not -n <= end <= n for end in ends):
        raise RequestError(f"samples {_say(samples)} reaches beyond the {n} samples of {source}; give 0 to {n}.")
    return range(*samples.indices(n))


def _listed(samples: Any, n: int, source: str) -> Places:
    try:
        numbers = np.asarray(samples)
    except ValueError:
        numbers = np.empty((), object)
    if numbers.dtype == np.bool_ and numbers.shape == (n,):
        return compact(np.flatnonzero(numbers), n)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise RequestError(
            f"samples has {numbers.dtype} values of shape {numbers.shape}; give a slice, (start, stop, step), whole "
            f"numbers in one axis, or {n} bools."
        )
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < n:
        wrong = int(numbers.min() if numbers.min() < 0 else numbers.max())
        raise RequestError(f"samples names sample {wrong} of {source}; it has {n}, numbered 0 to {n - 1}.")
    ordered = np.sort(numbers)
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise RequestError(
            f"samples names sample {ordered[twice[0]]} of {source} twice; name each once, and count some more by "
            "sample weights."
        )
    return compact(ordered, n) if (numbers == ordered).all() else numbers.astype(np.int64)


def _through(outer: Places, inner: Places) -> Places:
    """Compose two choices: indices `inner` among the samples that `outer` chose from a collection."""
    if isinstance(outer, range) and not isinstance(inner, range):
        return inner.astype(np.int64) * outer.step + outer.start
    composed: Places = outer[_key(inner)]
    return composed


def _runs(places: Array, chunk: int, rows: int) -> Iterator[slice]:
    """Cut ascending indices between storage chunks where samples are skipped, and where a piece is full."""
    apart = (np.diff(places) > 1) & (np.diff(places // chunk) > 0)
    full = np.diff(places // max(1, rows)) > 0
    edges = [0, *(np.flatnonzero(apart | full) + 1).tolist(), len(places)]
    yield from (slice(start, stop) for start, stop in pairwise(edges) if stop > start)


def _key(places: Places) -> Any:
    return slice(places.start, places.stop, places.step) if isinstance(places, range) else places


def _say(samples: Any) -> str:
    if not isinstance(samples, slice):
        return repr(samples)
    ends = [samples.start, samples.stop, *([] if samples.step is None else [samples.step])]
    return ":".join("" if end is None else str(end) for end in ends)
