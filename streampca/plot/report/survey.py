"""Survey of a collection in bounded memory: scores, how unusual samples are, and the few that are drawn.

Two measures say how unusual a sample x is under a model: Hotelling's T2 (Annals of Mathematical Statistics 2, 1931) is
its squared distance from the mean inside the subspace, each component counted in its own deviations; the squared
prediction error is its squared distance from the subspace (Jackson & Mudholkar, Technometrics 21, 1979).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ... import plot
from ...events import Listener, silent
from ...execution.decoded_chunks import keeping
from ...models.pca import PCAModel
from ...models.subspace import Subspace
from ...models.transform import applied, measure
from ...planning.blocks import Span
from ...readers.collection import Array, Collection
from ...readers.views.chosen import Places, compact
from ...readers.views.compose import choose
from .departures import as_departures
from .memory import SCORES, Share, share_of
from .sample_axis import SampleAxis, sample_axis_of
from .thumbnails import Sheet, Thumbnails, moves

Float64 = npt.NDArray[np.float64]

AXES = (1, 2)  # components whose scores are drawn
GOLDEN = 0.5 * (5**0.5 - 1)  # its multiples, modulo 1, are nowhere close together
FEWEST = 25  # samples that quantiles make sense of
LADDERED = 4  # samples drawn at a ladder of numbers of components
UNUSUAL = 4  # samples drawn for each of the two measures
MOST_RUNS = 64  # enough to meet every part of a collection, and few seeks
FEWEST_RUNS = 8


@dataclass(frozen=True)
class Unusual:
    """A sample, and how unusual it is.

    Attributes
    ----------
    position : int
        Among those examined.
    name : str
        Its date or other coordinate, else where it comes from.
    t2, spe : float
        Hotelling's T2, and the squared prediction error.
    by : {"T2", "SPE"}
        The measure it was picked for.
    """

    position: int
    name: str
    t2: float
    spe: float
    by: str


@dataclass(frozen=True)
class Survey:
    """Results of examining a collection.

    Attributes
    ----------
    model : PCAModel
        With the components that were used, in memory.
    raw : Collection
        The samples examined: a collection of its own, in the order of the whole.
    n_samples : int
        Of the whole.
    numbers : range or ndarray of int
        Those of the samples examined in the whole, ascending.
    axis : SampleAxis or None
        Coordinate of the samples examined, where they have one.
    value_range : (float, float)
        Least and greatest value of a feature, prepared.
    places : range
        Which of those examined the following are of, evenly spaced.
    scores : ndarray of shape (m, j)
        Along the first components, at most 8.
    t2, spe : ndarray of shape (m,)
        The two measures.
    labels : ndarray of shape (m,) or None
        Where the collection has any.
    pinned : ndarray of int
        Rows of `scores` nearest to the quantiles, in a square; empty where there are too few samples for them.
    laddered : tuple of int
        Positions of a few samples spread over those examined.
    unusual : tuple of Unusual
        The largest T2 first, then the largest errors.
    samples : Samples
        Raw images by position; those named above have been read.
    thumbnails : Sheet or None
        Small images of some samples; None where samples are no images, or no sums of components.
    recodes : bool
        Whether the memory allows to encode pictures again, in fewer bytes.
    """

    model: PCAModel
    raw: Collection
    n_samples: int
    numbers: Places
    axis: SampleAxis | None
    value_range: tuple[float, float]
    places: range
    scores: Array
    t2: Float64
    spe: Float64
    labels: Array | None
    pinned: npt.NDArray[np.intp]
    laddered: tuple[int, ...]
    unusual: tuple[Unusual, ...]
    samples: Samples
    thumbnails: Sheet | None
    recodes: bool

    @property
    def examined(self) -> int:
        """Number of samples examined."""
        return self.raw.n_samples

    def in_order(self) -> tuple[Array, Array]:
        """Return where the samples lie along their axis, or their numbers, ascending, and their scores.

        Between samples that do not follow each other stands one of NaN.
        """
        numbers = np.asarray(self.numbers)[self.places]
        along = numbers if self.axis is None or self.axis.is_text else self.axis.values[self.places]
        if (along[1:] < along[:-1]).any():
            order = np.argsort(along, kind="stable")
            return along[order], self.scores[order]
        gaps = np.flatnonzero(np.diff(numbers) > self.places.step) + 1
        return np.insert(along, gaps, along[gaps]), np.insert(self.scores, gaps, np.nan, axis=0)


class Samples:
    """Raw images of a collection by their position, those fetched before from memory.

    Parameters
    ----------
    raw : Collection
        The samples.
    most_bytes : int
        Largest size of the images held.
    """

    def __init__(self, raw: Collection, most_bytes: int) -> None:
        self._raw, self._left = raw, most_bytes
        self._held: dict[int, Array] = {}

    def __getitem__(self, position: int) -> Array:
        return self._held[position] if position in self._held else self._read(position)

    def fetch(self, positions: Iterable[int]) -> None:
        """Read images in the collection's order, so that a chunk or stream is decoded once, and hold those that fit."""
        with keeping():
            for position in sorted(set(positions) - set(self._held)):
                if self._raw.row_bytes > self._left:
                    return
                self._held[position] = self._read(position)
                self._left -= self._held[position].nbytes

    def _read(self, position: int) -> Array:
        found: list[Array] = []
        self._raw.each(slice(position, position + 1), lambda _, image: found.append(image.copy()))
        return found[0]


@dataclass(frozen=True)
class RowsOf:
    """Samples by their row among those at some places."""

    samples: Samples
    places: range

    def __getitem__(self, row: int) -> Array:
        return self.samples[self.places[row]]


def survey(
    model: PCAModel,
    raw: Collection,
    *,
    memory: int | str | None = None,
    examine: int | None = None,
    listener: Listener = silent,
) -> Survey:
    """Examine samples of a collection, and read those that are worth a look.

    Parameters
    ----------
    model : PCAModel
        The model; of components that do not fit the leading ones are used.
    raw : Collection
        Raw samples of the model's kind.
    memory : int or str, optional
        Budget, as for `fit`; less what drawing the figures takes.
    examine : int, optional
        Most samples to examine, in runs of whole storage chunks spread over the collection; all by default.
    listener : callable
        Told of progress.

    Raises
    ------
    BudgetError
        If not even one component and one sample fit.
    DataError
        If a sample is not finite.
    ModelError
        If the collection is not of the shape and kind the model was fitted on.
    """
    model, raw = as_departures(model, raw)
    whole = model.prepared(raw).raw
    runs = runs_spread(whole.n_samples, whole.chunks.samples, examine)
    raw = whole if runs[0].size == whole.n_samples else choose(whole, places_in(runs, whole.n_samples))
    share = share_of(memory, model, model.prepared(whole))
    found = _measured(share, raw, runs, listener)
    places, values, axis = found.places, found.values, sample_axis_of(raw)
    pinned, unusual = _pinned(values[:, :-2]), _unusual(share, raw, axis, found.largest)
    laddered = tuple(int(at) for at in _spread(raw.n_samples, min(LADDERED, share.together)))
    samples = Samples(raw, share.images)
    samples.fetch([*(each.position for each in unusual), *laddered, *(places[row] for row in pinned)])
    return Survey(
        model=share.model,
        raw=raw,
        n_samples=whole.n_samples,
        numbers=places_in(runs, whole.n_samples),
        axis=axis,
        value_range=found.value_range,
        places=places,
        scores=values[:, :-2],
        t2=values[:, -2],
        spe=values[:, -1],
        labels=None if raw.labels is None else raw.labels[:: places.step],
        pinned=pinned,
        laddered=laddered,
        unusual=unusual,
        samples=samples,
        thumbnails=found.thumbnails,
        recodes=share.recodes,
    )


def runs_spread(n_samples: int, chunk: int, count: int | None = None) -> list[Span]:
    """Pick up to `count` samples in runs of equal length spread evenly from the first chunk to the last, ascending.

    Runs are whole chunks where `FEWEST_RUNS` of these are within `count`, else the beginnings of chunks; the last may
    be shorter.
    """
    if count is None or count >= n_samples:
        return [Span(0, n_samples)]
    chunks = -(-n_samples // chunk)
    runs = min(count, MOST_RUNS, max(FEWEST_RUNS, count // chunk))
    if chunks < runs:  # then every chunk is decoded, whichever samples are taken
        chunk, chunks = 1, n_samples
    length = count // runs
    together = max(1, length // chunk)  # chunks to a run
    length = min(length, together * chunk)
    firsts = [run * (chunks - together) // max(1, runs - 1) * chunk for run in range(runs)]
    return [Span(first, min(first + length, n_samples)) for first in firsts]


def places_in(runs: Sequence[Span], n_samples: int) -> Places:
    """Return the positions of the samples in runs of n."""
    return compact(np.concatenate([np.arange(*run) for run in runs]), n_samples)


class _Measured(NamedTuple):
    """Results of a pass over the samples.

    Attributes
    ----------
    places : range
        Positions of those whose values are held.
    values : ndarray of shape (len(places), first + 2)
        Their first scores, T2 and error.
    largest : two of ndarray of shape (2 * UNUSUAL, 3)
        T2, error and position of the samples with the largest T2, and of those with the largest errors, descending.
    value_range : (float, float)
        Least and greatest value of a feature.
    thumbnails : Sheet or None
        Small images of some samples.
    """

    places: range
    values: Float64
    largest: list[Float64]
    value_range: tuple[float, float]
    thumbnails: Sheet | None


def _measured(share: Share, raw: Collection, runs: Sequence[Span], listener: Listener) -> _Measured:
    """Map every sample to its first scores, T2 and error."""
    model, n = share.model, raw.n_samples
    collection, places = model.prepared(raw), range(0, n, -(-n // max(1, share.dots)))
    first = min(SCORES, model.n_components)
    held, largest = np.empty((len(places), first + 2)), [np.empty((0, 3)), np.empty((0, 3))]
    ends_of_values = np.array([np.inf, -np.inf])
    function = partial(_values, model.subspace, first=first)
    thumbnails = Thumbnails(model, collection.frame, places, share.sheet) if moves(model) else None

    def look(block: Span, read: list[Array]) -> None:
        values = applied(function, read[0], collection.named, block.start, missing=model.subspace.missing)
        rows = range(-(-block.start // places.step), -(-block.stop // places.step))
        held[rows.start : rows.stop] = values[rows.start * places.step - block.start :: places.step]
        own = np.column_stack([values[:, first:], np.arange(*block)])
        for column, found in enumerate(largest):
            both = np.concatenate([found, own])
            largest[column] = both[np.argsort(-both[:, column], kind="stable")[: 2 * UNUSUAL]]
        if thumbnails is not None:
            thumbnails.add(block, read[0])
        ends_of_values[0] = np.fmin(ends_of_values[0], np.fmin.reduce(read[0], axis=None))
        ends_of_values[1] = np.fmax(ends_of_values[1], np.fmax.reduce(read[0], axis=None))

    ends = np.cumsum([run.size for run in runs]).tolist()
    measure(
        look,
        [collection],
        share.block_rows,
        ahead=share.ahead,
        runs=[Span(stop - run.size, stop) for run, stop in zip(runs, ends, strict=True)],
        label="samples for the report",
        listener=listener,
    )
    low, high = ends_of_values.tolist()
    return _Measured(places, held, largest, (low, high), None if thumbnails is None else thumbnails.sheet())


def _values(subspace: Subspace, rows: Array, *, first: int) -> Float64:
    """Return the first scores of rows, their T2 and squared prediction error: (m, p) to (m, first + 2)."""
    scores = subspace.project(rows)
    return np.column_stack([scores[:, :first], subspace.t2(rows, scores), subspace.squared_error(rows, scores)])


def _pinned(scores: Array) -> npt.NDArray[np.intp]:
    """Return the rows nearest to the quantiles of the first two scores."""
    if len(scores) < FEWEST or scores.shape[1] < 2:
        return np.empty(0, np.intp)
    return np.asarray(plot.nearest_to_quantiles(scores, axes=AXES), np.intp).ravel()


def _spread(n: int, count: int) -> range | npt.NDArray[np.intp]:
    """Return up to `count` of n positions, one in each of equal parts: evenly spaced ones may fall in one season."""
    inside = np.mod(0.5 + GOLDEN * np.arange(count), 1)
    return range(n) if n <= count else ((np.arange(count) + inside) * n / count).astype(int)


def _unusual(share: Share, raw: Collection, axis: SampleAxis | None, largest: list[Float64]) -> tuple[Unusual, ...]:
    """Pick the largest of each measure, none twice."""
    picked: dict[int, Unusual] = {}
    for found, name in zip(largest, ("T2", "SPE"), strict=True):
        if name == "SPE" and keeps_everything(share.model):
            continue
        others = [each for each in found.tolist() if each[2] not in picked]
        for t2, spe, at in others[: min(UNUSUAL, share.together // 2)]:
            called = raw.where(int(at)) if axis is None else axis.name(int(at))
            picked[int(at)] = Unusual(int(at), called, t2, spe, name)
    return tuple(picked.values())


def keeps_everything(model: PCAModel) -> bool:
    """Return whether the components hold all variance but for rounding: errors then mean nothing."""
    return float(1 - model.explained_variance_ratio.sum()) < 1e-6  # of what float32 products make
