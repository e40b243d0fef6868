"""Survey of a collection in bounded memory: scores, measures of unusual samples, and the few samples to draw.

Two measures show how unusual a sample is under a model. Hotelling's T2 (Annals of Mathematical Statistics 2, 1931) is
its squared distance from the mean inside the subspace, in standard deviations of each component; the squared prediction
error is its squared distance from the subspace (Jackson & Mudholkar, Technometrics 21, 1979).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import plot
from ...arrays import Array, Float64
from ...events import Listener, PassStarted, reported, silent
from ...execution import Executor, LocalExecutor
from ...execution.checkpoint import StageCheckpoint
from ...execution.decoded_chunks import keeping
from ...execution.executor import planning_for
from ...execution.task import SampleBlocks
from ...models.components import ComponentsModel
from ...models.subspace import Subspace
from ...models.transform import applied
from ...planning.blocks import Span, blocks_of, span_count, spans_of
from ...preprocessing import Frame, Prepared
from ...readers.collection import Collection, unchanged
from ...readers.views.chosen import Places, compact
from ...readers.views.compose import choose
from ..series import BINS
from .departures import as_departures
from .memory import SCORES, Share, share_of
from .sample_axis import SampleAxis, sample_axis_of
from .thumbnails import Sheet, Thumbnails, moves

AXES = (1, 2)  # components whose scores are drawn
GOLDEN = 0.5 * (5**0.5 - 1)  # golden ratio, whose multiples modulo 1 are nowhere close together
FEWEST = 25  # least number of samples for quantiles
LADDERED = 4  # samples drawn with several numbers of components
UNUSUAL = 4  # samples drawn for each of the two measures
MOST_RUNS = 64  # enough to cover every part of a collection, with few seeks
FEWEST_RUNS = 8


@dataclass(frozen=True)
class Unusual:
    """Unusual sample, with its measures.

    Attributes
    ----------
    position : int
        Position among the examined samples.
    name : str
        Date or other coordinate, otherwise its origin.
    t2, spe : float
        Hotelling's T2, and the squared prediction error.
    by : {"T2", "SPE"}
        Measure for which it was selected.
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
    model : ComponentsModel
        Model with the used components, in memory.
    raw : Collection
        Examined samples, as a collection in the order of the whole.
    n_samples : int
        Number of samples of the whole collection.
    numbers : range or ndarray of int
        Positions of the examined samples in the whole, ascending.
    axis : SampleAxis or None
        Coordinate of the examined samples, if any.
    places : range
        Positions among the examined samples of the m samples below, evenly spaced.
    scores : ndarray of shape (m, j)
        Scores along the first components, at most 8.
    t2, spe : ndarray of shape (m,)
        Hotelling's T2 and the squared prediction error.
    parts : ndarray of int of shape (q,)
        Positions among the examined samples where equal parts of them begin; none spans samples not examined.
    extremes : ndarray of shape (q, 2, j)
        Smallest and largest scores of each part.
    labels : ndarray of shape (m,) or None
        Labels, if the collection has any.
    pinned : ndarray of int
        Rows of `scores` nearest to the quantiles, in a square; empty if there are too few samples.
    laddered : tuple of int
        Positions of a few samples spread over the examined ones.
    unusual : tuple of Unusual
        Samples with the largest T2, then samples with the largest errors.
    samples : Samples
        Raw images by position; the samples named above have been read.
    thumbnails : Sheet or None
        Small images of some samples; None if samples are not images, or not sums of components.
    recodes : bool
        Whether there is memory to encode pictures again, in fewer bytes.
    """

    model: ComponentsModel
    raw: Collection
    n_samples: int
    numbers: Places
    axis: SampleAxis | None
    places: range
    scores: Array
    t2: Float64
    spe: Float64
    parts: npt.NDArray[np.intp]
    extremes: Float64
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
        """Return positions along the axis of the samples, or their numbers, ascending, and scores to draw as lines.

        The scores are the smallest and the largest of each part. NaN separates samples between which others were not
        examined, as nothing is known of a line that would join them.
        """
        numbers, starts = np.asarray(self.numbers), self.parts
        along = numbers if self.axis is None or self.axis.is_text else self.axis.values
        if (along[1:] < along[:-1]).any():
            return self._sorted(along[self.places])
        gaps = np.flatnonzero(numbers[starts[1:]] - numbers[starts[1:] - 1] > 1) + 1
        along, scores = along[starts], self.extremes[:, 0]
        if len(starts) < self.examined:
            along, gaps = np.repeat(along, 2), 2 * gaps
            scores = self.extremes.reshape(len(along), -1)
        return np.insert(along, gaps, along[gaps]), np.insert(scores, gaps, np.nan, axis=0)

    def _sorted(self, along: Array) -> tuple[Array, Array]:
        """Return scores in the order of an axis that the samples do not follow; apart, unless they are all."""
        order = np.argsort(along, kind="stable")
        along, scores = along[order], self.scores[order]
        if len(along) == self.n_samples:
            return along, scores
        between = np.arange(1, len(along))
        return np.insert(along, between, along[1:]), np.insert(scores, between, np.nan, axis=0)


class Samples:
    """Raw images of a collection by position, from memory if they were fetched before.

    Parameters
    ----------
    raw : Collection
        Collection.
    most_bytes : int
        Largest size of the images in memory.
    """

    def __init__(self, raw: Collection, most_bytes: int) -> None:
        self._raw, self._left = raw, most_bytes
        self._held: dict[int, Array] = {}

    def __getitem__(self, position: int) -> Array:
        return self._held[position] if position in self._held else self._read(position)

    def fetch(self, positions: Iterable[int]) -> None:
        """Read images in the collection's order, so that chunks are decoded once, and keep those that fit in memory."""
        with keeping():
            for position in sorted(set(positions) - set(self._held)):
                if self._raw.row_bytes > self._left:
                    return
                self._held[position] = self._read(position)
                self._left -= self._held[position].nbytes

    def _read(self, position: int) -> Array:
        images: list[Array] = []
        self._raw.each(slice(position, position + 1), lambda _, image: images.append(image.copy()))
        return images[0]


@dataclass(frozen=True)
class RowsOf:
    """Samples by their row among the samples at `places`."""

    samples: Samples
    places: range

    def __getitem__(self, row: int) -> Array:
        return self.samples[self.places[row]]


def survey(
    model: ComponentsModel,
    raw: Collection,
    *,
    memory: int | str | None = None,
    examine: int | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    checkpoint: StageCheckpoint | None = None,
    listener: Listener = silent,
) -> Survey:
    """Examine samples of a collection, and read the samples to draw.

    Parameters
    ----------
    model : ComponentsModel
        Model, of which the leading components that fit are used.
    raw : Collection
        Raw samples of the model's kind.
    memory : int or str, optional
        Budget, as for `fit`, including the drawing of figures.
    examine : int, optional
        Largest number of samples to examine, in runs of whole storage chunks spread over the collection; all by
        default.
    executor : Executor, optional
        Executor that shares the pass over the samples; by default this process makes it.
    workers : int, optional
        Number of workers that the pass is cut for, as by the run that is resumed; by default those of the executor.
    checkpoint : StageCheckpoint, optional
        Saves how far the pass over the samples is, and resumes it.
    listener : callable
        Receives progress.

    Raises
    ------
    BudgetError
        If a single component and sample do not fit.
    DataError
        If a sample is not finite.
    ModelError
        If the collection is not of the shape and kind the model was fitted on.
    """
    model, raw = as_departures(model, raw)
    whole = model.prepared(raw).raw
    runs = runs_spread(whole.n_samples, whole.chunks.samples, examine)
    raw = whole if runs[0].size == whole.n_samples else choose(whole, places_in(runs, whole.n_samples))
    # Budgets are by the whole collection, whose chunks decide the blocks.
    executor = executor or LocalExecutor()
    with planning_for(executor):
        share = share_of(memory or executor.memory, model, model.prepared(whole))
    task = _Examining(share, share.model.prepared(raw), runs, workers or executor.workers)
    measured = task.fold(executor, checkpoint, listener)
    places, values, axis = task.places, measured.values, sample_axis_of(raw)
    pinned, unusual = np.empty(0, np.intp), _unusual(share, raw, axis, measured.largest)
    if len(values) >= FEWEST and values.shape[1] >= 4:  # two scores, T2 and the error
        pinned = np.asarray(plot.nearest_to_quantiles(values[:, :-2], axes=AXES), np.intp).ravel()
    laddered = tuple(int(at) for at in _spread(raw.n_samples, min(LADDERED, share.together)))
    samples = Samples(raw, share.images)
    samples.fetch([*(sample.position for sample in unusual), *laddered, *(places[row] for row in pinned)])
    return Survey(
        model=share.model,
        raw=raw,
        n_samples=whole.n_samples,
        numbers=places_in(runs, whole.n_samples),
        axis=axis,
        places=places,
        scores=values[:, :-2],
        t2=values[:, -2],
        spe=values[:, -1],
        parts=task.parts,
        extremes=measured.extremes,
        labels=None if raw.labels is None else raw.labels[:: places.step],
        pinned=pinned,
        laddered=laddered,
        unusual=unusual,
        samples=samples,
        thumbnails=None if measured.thumbnails is None else measured.thumbnails.sheet(),
        recodes=share.recodes,
    )


def runs_spread(n_samples: int, chunk: int, count: int | None = None) -> list[Span]:
    """Select up to `count` samples in runs of equal length spread evenly from the first chunk to the last, ascending.

    Runs are whole chunks if `FEWEST_RUNS` chunks are within `count`, otherwise the beginnings of chunks; the last run
    can be shorter.
    """
    if count is None or count >= n_samples:
        return [Span(0, n_samples)]
    chunks = -(-n_samples // chunk)
    runs = min(count, MOST_RUNS, max(FEWEST_RUNS, count // chunk))
    if chunks < runs:  # every chunk is decoded anyway
        chunk, chunks = 1, n_samples
    length = count // runs
    together = max(1, length // chunk)  # chunks to a run
    length = min(length, together * chunk)
    firsts = [run * (chunks - together) // max(1, runs - 1) * chunk for run in range(runs)]
    return [Span(first, min(first + length, n_samples)) for first in firsts]


def places_in(runs: Sequence[Span], n_samples: int) -> Places:
    """Return the positions of the samples in runs of a collection."""
    return compact(np.concatenate([np.arange(*run) for run in runs]), n_samples)


class _Measured:
    """Accumulator of a pass over the samples.

    Parameters
    ----------
    share : Share
        Model and memory.
    frame : Frame
        Frame of the samples.
    places : range
        Positions of the samples whose values are kept.
    parts : ndarray of int of shape (q,)
        Positions where the parts begin whose extreme scores are kept.

    Attributes
    ----------
    extremes : ndarray of shape (q, 2, first)
        Smallest and largest first scores of each part.
    values : ndarray of shape (len(places), first + 2)
        First scores, T2 and error of these samples.
    largest : list of two ndarray of shape (2 * UNUSUAL, 3)
        T2, error and position of the samples with the largest T2, and of the samples with the largest errors,
        descending.
    thumbnails : Thumbnails or None
        Small images of some samples.
    """

    def __init__(self, share: Share, frame: Frame, places: range, parts: npt.NDArray[np.intp]) -> None:
        self._places, self._parts, self._first = places, parts, min(SCORES, share.model.n_components)
        self._seen = Span(0, 0)  # samples so far
        self.extremes = np.full((len(parts), 2, self._first), np.nan)
        self.values = np.empty((len(places), self._first + 2))
        self.largest = [np.empty((0, 3)), np.empty((0, 3))]
        self.thumbnails = Thumbnails(share.model, frame, places, share.sheet) if moves(share.model) else None

    def update(self, block: Span, rows: Array, values: Float64) -> None:
        """Absorb a block of prepared samples, with their first scores, T2 and errors."""
        step, kept = self._places.step, self._kept(block)
        self._seen = Span(self._seen.start if self._seen.size else block.start, block.stop)
        self.values[kept] = values[kept.start * step - block.start :: step]
        self._add_extremes(block, values[:, : self._first])
        measures = np.column_stack([values[:, self._first :], np.arange(*block)])
        self._rank(measures, measures)
        if self.thumbnails is not None:
            self.thumbnails.add(block, rows)

    def absorb(self, other: _Measured) -> None:
        """Absorb what was measured of the samples that follow."""
        kept = self._kept(other._seen)
        self.values[kept] = other.values[kept]
        for end, extreme in enumerate((np.fmin, np.fmax)):
            extreme(self.extremes[:, end], other.extremes[:, end], out=self.extremes[:, end])
        self._rank(*other.largest)
        if self.thumbnails is not None and other.thumbnails is not None:
            self.thumbnails.absorb(other.thumbnails, other._seen)
        self._seen = Span(self._seen.start if self._seen.size else other._seen.start, other._seen.stop)

    def _kept(self, samples: Span) -> slice:
        """Return the places of consecutive samples among those whose values are kept."""
        step = self._places.step
        return slice(-(-samples.start // step), -(-samples.stop // step))

    def _rank(self, *measured: Float64) -> None:
        """Compare samples, measured by row, with the most unusual ones by T2 and by their errors."""
        for column, (ranked, measures) in enumerate(zip(self.largest, measured, strict=True)):
            both = np.concatenate([ranked, measures])
            # Twice as many as are drawn, as both measures can select the same samples.
            self.largest[column] = both[np.argsort(-both[:, column], kind="stable")[: 2 * UNUSUAL]]

    def _add_extremes(self, block: Span, scores: Float64) -> None:
        first, last = np.searchsorted(self._parts, [block.start, block.stop - 1], side="right") - 1
        starts = np.maximum(self._parts[first : last + 1] - block.start, 0)
        for end, extreme in enumerate((np.fmin, np.fmax)):
            extremes = self.extremes[first : last + 1, end]
            extreme(extremes, extreme.reduceat(scores, starts, axis=0), out=extremes)

    def _arrays(self) -> dict[str, Array]:
        arrays = {"values": self.values, "extremes": self.extremes}
        return arrays if self.thumbnails is None else arrays | self.thumbnails.arrays

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays."""
        arrays = {"t2": self.largest[0], "spe": self.largest[1], "seen": np.array(self._seen), **self._arrays()}
        return {name: array.copy() for name, array in arrays.items()} if copy else arrays

    def restore(self, state: dict[str, Array]) -> None:
        """Take over a state."""
        self.largest, self._seen = [np.array(state["t2"]), np.array(state["spe"])], Span(*state["seen"].tolist())
        for name, array in self._arrays().items():
            array[...] = state[name]


@dataclass(frozen=True)
class _Examining(SampleBlocks):
    """Measure samples, in runs that no block goes beyond; see `streampca.execution.Task`."""

    share: Share
    collection: Prepared
    runs: Sequence[Span]
    workers: int

    @property
    def places(self) -> range:
        """Positions of the samples whose values are kept."""
        n = self.collection.n_samples
        return range(0, n, -(-n // max(1, self.share.dots)))

    @cached_property
    def parts(self) -> npt.NDArray[np.intp]:
        """Positions where parts of about equal size begin, each within a run; with gaps as many as a line shows."""
        n, start, starts = self.collection.n_samples, 0, []
        step = 1 if n <= BINS else n / (BINS - MOST_RUNS)
        for run in self.runs:
            count = max(1, int(run.size / step))
            starts.append(start + np.linspace(0, run.size, count, endpoint=False).astype(np.intp))
            start += run.size
        return np.concatenate(starts)

    def start(self) -> _Measured:
        return _Measured(self.share, self.collection.frame, self.places, self.parts)

    def restore(self, state: dict[str, Array]) -> _Measured:
        measured = self.start()
        measured.restore(state)
        return measured

    def blocks(self, span: Span) -> Iterator[Span]:
        stop = 0
        for run in self.runs:
            start, stop = stop, stop + run.size  # the samples of runs are examined one after another
            if min(stop, span.stop) > max(start, span.start):
                yield from blocks_of(Span(max(start, span.start), min(stop, span.stop)), self.share.block_rows)

    def feed(self, accumulator: _Measured, block: Span, fetched: Array) -> None:
        subspace = self.share.model.subspace
        function = partial(_values, subspace, first=min(SCORES, self.share.model.n_components))
        values = applied(function, fetched, self.collection.named, block.start, missing=subspace.missing)
        accumulator.update(block, fetched, values)

    def fold(self, executor: Executor, checkpoint: StageCheckpoint | None, listener: Listener) -> _Measured:
        """Measure all samples; what is measured is saved in the end, as drawing takes its time."""
        collection, share = self.collection, self.share
        whole = Span(0, collection.n_samples)
        spans = spans_of(whole.stop, span_count(self.workers), share.block_rows)
        started = PassStarted("samples for the report", 1, 1, whole.size, whole.size * collection.row_bytes)
        executor.check(partial(collection.read, slice(0, 1)), share.examining, listener)
        how: dict[str, Any] = {"ahead": share.ahead, "listener": listener, "checkpoint": checkpoint}
        with reported(listener, started), unchanged(collection):
            measured = executor.fold(self, spans, _Measured.absorb, **how)
        if checkpoint is not None:
            checkpoint.save_if_due(0, len(spans) - 1, whole.stop, measured, now=True)
        return measured


def _values(subspace: Subspace, rows: Array, *, first: int) -> Float64:
    """Return the first scores of rows, their T2 and squared prediction error: (m, p) to (m, first + 2)."""
    scores = subspace.project(rows)
    return np.column_stack([scores[:, :first], subspace.t2(rows, scores), subspace.squared_error(rows, scores)])


def _spread(n: int, count: int) -> range | npt.NDArray[np.intp]:
    """Return up to `count` of n positions, one in each of equal parts: evenly spaced ones could share a season."""
    # Position in each part: irregular, but the same in every report.
    inside = np.mod(0.5 + GOLDEN * np.arange(count), 1)
    return range(n) if n <= count else ((np.arange(count) + inside) * n / count).astype(int)


def _unusual(share: Share, raw: Collection, axis: SampleAxis | None, largest: list[Float64]) -> tuple[Unusual, ...]:
    """Select the samples with the largest values of each measure, without repetition."""
    picked: dict[int, Unusual] = {}
    for ranked, name in zip(largest, ("T2", "SPE"), strict=True):
        if name == "SPE" and keeps_everything(share.model):
            continue
        candidates = [row for row in ranked.tolist() if row[2] not in picked]
        for t2, spe, at in candidates[: min(UNUSUAL, share.together // 2)]:
            label = raw.where(int(at)) if axis is None else axis.name(int(at))
            picked[int(at)] = Unusual(int(at), label, t2, spe, name)
    return tuple(picked.values())


def keeps_everything(model: ComponentsModel) -> bool:
    """Return whether the components hold all variance up to rounding, so that errors are meaningless."""
    return float(1 - model.explained_variance_ratio.sum()) < 1e-6  # rounding of float32 products
