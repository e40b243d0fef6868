"""Survey of a collection in bounded memory: scores, how unusual samples are, and the few that are drawn.

Two measures say how unusual a sample x is under a model: Hotelling's T2 (Annals of Mathematical Statistics 2, 1931) is
its squared distance from the mean inside the subspace, each component counted in its own deviations; the squared
prediction error is its squared distance from the subspace (Jackson & Mudholkar, Technometrics 21, 1979).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ... import plot
from ...events import Listener, silent
from ...models.pca import PCAModel
from ...models.subspace import Subspace, squared_lengths, working_dtype
from ...models.transform import applied, measure
from ...planning.blocks import Span
from ...readers.collection import Array, Collection
from ...readers.views.chosen import Places, compact
from ...readers.views.compose import choose
from .memory import Share, share_of

Float64 = npt.NDArray[np.float64]

AXES = (1, 2)  # components whose scores are drawn
FEWEST = 25  # samples that quantiles make sense of
LADDERED = 4  # samples drawn at a ladder of numbers of components
UNUSUAL = 4  # samples drawn for each of the two measures
SCREENED = 4 * UNUSUAL  # ... out of so many, ranked again by exact values
MOST_RUNS = 64  # enough to meet every part of a collection, and few seeks
FEWEST_RUNS = 8
ROUNDING = float(np.finfo(np.float32).eps)  # of a squared length in the precision that samples are screened in


@dataclass(frozen=True)
class Unusual:
    """A sample, and how unusual it is.

    Attributes
    ----------
    position : int
        Among those examined.
    name : str
        Where it comes from.
    t2, spe : float
        Hotelling's T2, and the squared prediction error; exact.
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
    places : range
        Which of those examined the following are of, evenly spaced.
    scores : ndarray of shape (m, j)
        Along the first components, one or two.
    t2, spe : ndarray of shape (m,)
        The two measures, screened: the second to `ROUNDING` of the squared distance from the mean.
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
    """

    model: PCAModel
    raw: Collection
    n_samples: int
    places: range
    scores: Array
    t2: Float64
    spe: Float64
    labels: Array | None
    pinned: npt.NDArray[np.intp]
    laddered: tuple[int, ...]
    unusual: tuple[Unusual, ...]
    samples: Samples

    @property
    def examined(self) -> int:
        """Number of samples examined."""
        return self.raw.n_samples


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
        """Read images in the collection's order, so that a stream is decoded once, and hold those that fit."""
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
    whole = model.prepared(raw).raw
    runs = runs_spread(whole.n_samples, whole.chunks.samples, examine)
    raw = whole if runs[0].size == whole.n_samples else choose(whole, places_in(runs, whole.n_samples))
    share = share_of(memory, model, model.prepared(whole))
    places, values, suspects = _screen(share, raw, runs, listener)
    pinned = _pinned(values[:, :-2])
    laddered = tuple(int(at) for at in _middles(raw.n_samples, min(LADDERED, share.together)))
    samples = Samples(raw, share.images)
    samples.fetch([*suspects, *laddered, *(places[row] for row in pinned)])
    return Survey(
        model=share.model,
        raw=raw,
        n_samples=whole.n_samples,
        places=places,
        scores=values[:, :-2],
        t2=values[:, -2],
        spe=values[:, -1],
        labels=None if raw.labels is None else raw.labels[:: places.step],
        pinned=pinned,
        laddered=laddered,
        unusual=_unusual(share, raw, samples, suspects),
        samples=samples,
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


def _screen(
    share: Share, raw: Collection, runs: Sequence[Span], listener: Listener
) -> tuple[range, Float64, list[int]]:
    """Map every sample to its first scores, T2 and error.

    Returns
    -------
    places : range
        Positions of those whose values are held.
    values : ndarray of shape (len(places), first + 2)
        Their values.
    suspects : list of int
        Positions of the samples with the largest T2 and errors, ascending.
    """
    model, n = share.model, raw.n_samples
    collection, places = model.prepared(raw), range(0, n, -(-n // max(1, share.dots)))
    first = min(len(AXES), model.n_components)
    held, largest = np.empty((len(places), first + 2)), [np.empty((0, 2)), np.empty((0, 2))]
    function = partial(screened, model.subspace, first=first)

    def look(block: Span, read: list[Array]) -> None:
        values = applied(function, read[0], collection.named, block.start)
        rows = range(-(-block.start // places.step), -(-block.stop // places.step))
        held[rows.start : rows.stop] = values[rows.start * places.step - block.start :: places.step]
        for column in (0, 1):
            own = np.column_stack([values[:, first + column], np.arange(*block)])
            both = np.concatenate([largest[column], own])
            largest[column] = both[np.argsort(-both[:, 0], kind="stable")[:SCREENED]]

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
    return places, held, sorted({int(position) for found in largest for position in found[:, 1]})


def screened(subspace: Subspace, rows: Array, *, first: int) -> Float64:
    """Return the first scores of rows, their T2 and squared prediction error: (m, p) to (m, first + 2).

    The error is the squared distance from the mean less that of the projection: no rows are reconstructed.
    """
    scores = subspace.project(rows)
    squares = np.square(scores, dtype=np.float64)
    lengths = squared_lengths(rows, subspace.mean)
    errors = np.maximum(lengths - squares.sum(axis=1), ROUNDING * lengths)
    return np.column_stack([scores[:, :first], squares @ subspace.precisions(scores.dtype), errors])


def _pinned(scores: Array) -> npt.NDArray[np.intp]:
    """Return the rows nearest to the quantiles of the first two scores."""
    if len(scores) < FEWEST or scores.shape[1] < 2:
        return np.empty(0, np.intp)
    return np.asarray(plot.nearest_to_quantiles(scores, axes=AXES), np.intp).ravel()


def _middles(n: int, count: int) -> range | npt.NDArray[np.intp]:
    """Return up to `count` of n positions, each in the middle of an equal part."""
    return range(n) if n <= count else ((2 * np.arange(count) + 1) * n // (2 * count))


def _unusual(share: Share, raw: Collection, samples: Samples, suspects: list[int]) -> tuple[Unusual, ...]:
    """Measure the suspects exactly, and pick the largest of each measure, none twice."""
    model = share.model
    measured = {at: _measures(model, samples[at]) for at in suspects}
    picked: dict[int, str] = {}
    for column, name in enumerate(("T2", "SPE")):
        if name == "SPE" and keeps_everything(model):
            continue
        ranked = sorted((at for at in suspects if at not in picked), key=lambda at: (-measured[at][column], at))
        picked |= dict.fromkeys(ranked[: min(UNUSUAL, share.together // 2)], name)
    return tuple(Unusual(at, raw.where(at), *measured[at], by) for at, by in picked.items())


def keeps_everything(model: PCAModel) -> bool:
    """Return whether the components hold all variance but for rounding: errors then mean nothing."""
    return float(1 - model.explained_variance_ratio.sum()) < 1e-6  # of what float32 products make


def _measures(model: PCAModel, image: Array) -> tuple[float, float]:
    """Return T2 and squared prediction error of a raw image in double precision, by the components screening counts."""
    rows = replace(model.frame, raw_shape=image.shape).rows(image.reshape(1, -1))
    subspace, row = model.subspace, rows.astype(np.float64)
    scores = subspace.project(row)
    precisions = subspace.precisions(working_dtype(rows.dtype, subspace.components.dtype))
    return float(np.square(scores[0]) @ precisions), float(subspace.squared_error(row, scores)[0])
