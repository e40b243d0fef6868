"""Plans of applying a model whose components do not fit in memory, piece by piece.

Scores of many samples add up over ranges of features, and either side may be the one that stays: a *panel* of whole
samples, past which the components stream, or a *range* of the components, past which the samples stream, which is the
cheaper way where storage can be read by ranges of features. What moves fewer bytes is chosen. Images are made from
scores, range by range of features for as many samples as have their scores in memory, so that the components are read
once for all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from ..units import MIB
from .blocks import MOST_BLOCK, block_rows
from .candidate_sizes import SizesByBudget, search_or_refuse
from .device import TILE_BYTES, applied_phase, features_on_device
from .memory import RUNTIME_BYTES, MemoryEstimate, Phase
from .request import Problem
from .transform import LEAST_CHUNK

MOST_FILE = 16 * MIB  # of images written by ranges of features: encoding holds several copies of it
# Of a block of images: as multiplied, unscaled, with NaN outside the mask, and while it is encoded.
IMAGE_COPIES = 6
PRODUCT = 8 * MIB  # samples less their mean, multiplied at a time
SCORES_SHARE = 8  # of what is left of the budget: the scores of the samples worked on together
RANGE_SHARE = 3  # ... and a range of the components that images are made from
AGAIN_SHARE = 4  # ... and of the samples that these are taken from

Items = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Parts:
    """Sizes of a model that is applied in pieces, and of what is made.

    Attributes
    ----------
    n_components, n_features, nbytes : int
        k, p, and bytes of all components.
    column_bytes : int
        Bytes of all components along one feature, as read and as multiplied.
    held_bytes : int
        Bytes in memory throughout: means, scales and masks, and components where these are.
    tile_features, reading_bytes : int
        Fewest features of the components read at a time, and what that holds beside the values; (1, 0) in memory.
    value_bytes : int
        Bytes of one value of a sample as it is multiplied: of a component, or 8 where samples need more.
    sample_bytes : int
        Bytes of one prepared value of a sample, normalized if need be; 0 where the collection is of scores.
    out_bytes : int
        Bytes of one value of a result.
    makes_images : bool
        Whether images are written, or scores.
    reads_again : bool
        Whether samples are read once more while images are made, along the features of these.
    """

    n_components: int
    n_features: int
    nbytes: int
    column_bytes: int
    held_bytes: int
    tile_features: int
    reading_bytes: int
    value_bytes: int
    sample_bytes: int
    out_bytes: int
    makes_images: bool
    reads_again: bool = False


@dataclass(frozen=True)
class Piecewise:
    """Pieces in which a model is applied.

    Attributes
    ----------
    scored_rows : int
        Samples whose scores are in memory together, a whole multiple of `block_rows`.
    panel_rows : int
        Of these, samples in memory while the components stream past; 0 where samples stream past the components.
    read_rows : int
        Samples read at a time.
    features : int
        Most features of the components in memory at a time while scores are made.
    image_features, block_rows, chunk_rows : int
        Features and samples of images written at a time, and samples to a chunk of the output; scores: 0, and chunks.
    bytes_moved : int
        Read of samples and components over the whole run.
    memory_estimate : MemoryEstimate
        Memory.
    pieces : int
        Runs of samples that workers share.
    """

    scored_rows: int
    panel_rows: int
    read_rows: int
    features: int
    image_features: int
    block_rows: int
    chunk_rows: int
    bytes_moved: int
    memory_estimate: MemoryEstimate
    pieces: int = 1


def plan_pieces(problem: Problem, parts: Parts, memory: int | None) -> Piecewise:
    """Choose the pieces in which a model is applied whose components do not fit the budget.

    Parameters
    ----------
    problem : Problem
        The collection, of images or of scores.
    parts : Parts
        The model, and what is made.
    memory : int or None
        Budget in bytes; the default as for `Request`.

    Raises
    ------
    BudgetError
        If not even the smallest pieces fit, naming the budget that would do.
    """
    doing = f"applying {parts.n_components} components of {parts.n_features} features in pieces"
    routes = ROUTES if parts.sample_bytes else (_given,)
    candidates = [[PiecewiseSizes(problem=problem, parts=parts, route=route) for route in routes]]
    return search_or_refuse(doing, candidates, problem.machine.budget(memory)).plan()


@dataclass(frozen=True, kw_only=True)
class PiecewiseSizes(SizesByBudget):
    """Sizes with which a model could be applied by a route; before they are cut to a budget, the smallest."""

    parts: Parts
    route: Callable[[Problem, Parts, int, int], _Route]
    room: int = 1  # bytes for scores, and what they are made of, and for images

    @property
    def lower_bound(self) -> int:
        """Bytes below which no sizes fit; 1, as products of narrow ranges may take more than those of wider ones."""
        return 1

    @cached_property
    def _out(self) -> _Output:
        make = _images if self.parts.makes_images else _scores
        return make(self.problem, self.parts, self.room)

    @cached_property
    def _made(self) -> _Route:
        count = min(self._out.rows, self.problem.n_samples)
        return self.route(self.problem, self.parts, self.room - self._out.scores, count)

    @property
    def _always(self) -> Items:
        return (
            ("mean and what else is held of the model", self.parts.held_bytes + self.problem.held_bytes),
            ("components being decoded", self.parts.reading_bytes),
            ("storage being decoded", self.problem.decode_bytes + self.problem.scratch_bytes),
            ("BLAS and Python", RUNTIME_BYTES),
            *((("results of a tile, from the device", TILE_BYTES),) if self.problem.machine.device else ()),
        )

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device that multiplies."""
        features = max(self._made.features, self._out.features)
        yield applied_phase(self.problem.itemsize, self.parts.n_components, features, self.parts.value_bytes)

    def cut(self, memory: int) -> Self:
        """Return the sizes for what so many bytes leave."""
        return replace(self, room=max(1, memory - sum(count for _, count in self._always)))

    @property
    def rank(self) -> int:
        """Bytes of samples and components that are read."""
        times = -(-self.problem.n_samples // self._out.rows)
        components = times * (self._made.components + self.parts.makes_images) * self.parts.nbytes
        samples = int(self.problem.n_samples * self.problem.row_bytes * (self._made.samples + self._out.samples))
        return components + samples

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        scores = ("scores", self._out.scores)
        yield Phase("scores", (*self._always, scores, *self._made.items))
        if self.parts.makes_images:
            yield Phase("images", (*self._always, scores, *self._out.items))

    def plan(self) -> Piecewise:
        """Return the plan with these sizes."""
        return Piecewise(
            scored_rows=self._out.rows,
            panel_rows=self._made.panel,
            read_rows=self._made.rows,
            features=self._made.features,
            image_features=self._out.features,
            block_rows=self._out.block,
            chunk_rows=self._out.chunk,
            bytes_moved=self.rank,
            memory_estimate=self.memory_estimate,
        )


@dataclass(frozen=True)
class _Output:
    """`rows` samples whose `scores` bytes are kept, and how images are made of them; see `Piecewise` and `_Route`."""

    rows: int
    scores: int
    features: int = 0
    block: int = 0
    chunk: int = 1
    items: Items = ()
    samples: float = 0.0


def _scores(problem: Problem, parts: Parts, room: int) -> _Output:
    row = parts.n_components * (8 + parts.out_bytes)
    chunk = min(problem.n_samples, LEAST_CHUNK // (parts.n_components * parts.out_bytes), room // SCORES_SHARE // row)
    chunk = max(1, chunk)
    rows = _kept(problem, row, chunk, room)
    return _Output(rows, rows * row, chunk=chunk)


def _kept(problem: Problem, row: int, block: int, room: int) -> int:
    """Samples whose scores are kept together: whole blocks, as many as have room."""
    most = max(1, room // SCORES_SHARE // row // block)
    return min(most, -(-problem.n_samples // block)) * block


def _images(problem: Problem, parts: Parts, room: int) -> _Output:
    n, p = problem.n_samples, parts.n_features
    width = _whole_tiles(problem, parts, room // RANGE_SHARE)
    values = max(1, min(MOST_FILE, room // (4 * IMAGE_COPIES)) // parts.out_bytes // width)
    across = _across(problem, parts, width) if parts.reads_again else 0
    again = -(-(problem.sample_bytes) * across // p)
    if again:  # whole storage chunks where there are any
        values = min(values, room // AGAIN_SHARE // again)
        values = max(1, values // problem.chunk_samples * problem.chunk_samples or values)
    chunk = max(1, min(n, LEAST_CHUNK // parts.out_bytes // width, values))
    block = values // chunk * chunk
    row = parts.n_components * (8 + parts.out_bytes)
    rows = _kept(problem, row, block, room)
    items: Items = (
        (f"components, {width} features at a time", width * parts.column_bytes),
        (f"that part of {block} images, multiplied to written", block * width * IMAGE_COPIES * parts.value_bytes),
    )
    times = 0.0
    if again:
        items += ((f"of {block} samples, what is read once more", block * again),)
        times = _times(problem, parts, width) * _decodings(problem, block)
    return _Output(rows, min(rows, n) * row, width, block, chunk, items, times)


@dataclass(frozen=True)
class _Route:
    """Sizes by which scores are made, see `Piecewise`; `samples` and `components` count how often these are read."""

    panel: int
    rows: int
    features: int
    samples: float
    components: int
    items: Items


def _given(problem: Problem, parts: Parts, left: int, count: int) -> _Route:
    """Scores are read, not made."""
    rows = max(1, min(count, MOST_BLOCK // problem.row_bytes, left // (8 * problem.row_bytes)))
    return _Route(0, rows, 0, 1.0, 0, (("scores as read", 2 * rows * problem.row_bytes),))


def _panel(problem: Problem, parts: Parts, left: int, count: int) -> _Route:
    """Hold as many samples as fit; the components stream past them."""
    width = min(parts.n_features, max(parts.tile_features, PRODUCT // parts.column_bytes))
    row = problem.sample_bytes
    held = parts.n_features * parts.sample_bytes
    rows = _read_rows(problem, row, left // 8)
    beside = _piece(parts, rows, row, width)
    panel = max(1, min(count, (left - sum(size for _, size in beside)) // held))
    items = ((f"panel of {panel} samples", panel * held), *beside)
    return _Route(panel, min(rows, panel), width, _decodings(problem, rows), -(-count // panel), items)


def _range(problem: Problem, parts: Parts, left: int, count: int) -> _Route:
    """Hold as many features of the components as fit; samples stream past them."""
    p = parts.n_features
    width = _whole_tiles(problem, parts, (left - 2 * PRODUCT) * 3 // 4)
    across = _across(problem, parts, width)
    row = -(-(problem.sample_bytes) * across // p)
    beside = width * parts.column_bytes + _product_bytes(parts, width)
    rows = min(count, _read_rows(problem, row, left - beside))
    again = _times(problem, parts, width) * _decodings(problem, rows)
    return _Route(0, rows, width, again, 1, _piece(parts, rows, row, width))


def _whole_tiles(problem: Problem, parts: Parts, room: int) -> int:
    """Features of the components for so many bytes, of storage tiles, and no more than a device holds."""
    tile, most = parts.tile_features, room // parts.column_bytes
    if problem.machine.device:
        most = min(most, features_on_device(problem, parts.n_components, parts.value_bytes))
    return min(parts.n_features, max(tile, most // tile * tile))


def _piece(parts: Parts, rows: int, row: int, width: int) -> Items:
    """Bytes by name of a block of samples, of some features of the components, and of the product of both."""
    return (
        (f"block of {rows} samples as read", rows * row),
        (f"components, {width} features at a time", width * parts.column_bytes),
        ("product of a piece", _product_bytes(parts, width)),
    )


def _across(problem: Problem, parts: Parts, width: int) -> int:
    """Features of a sample that reading `width` of them decodes, at most."""
    p = parts.n_features
    return p if problem.chunk_features >= p else min(p, width + 2 * problem.chunk_features)


def _times(problem: Problem, parts: Parts, width: int) -> float:
    """Times that samples are read, by ranges of `width` features."""
    p, ranges = parts.n_features, -(-parts.n_features // width)
    return ranges if problem.chunk_features >= p else min(ranges, 1 + 2 * problem.chunk_features * (ranges - 1) / p)


ROUTES = (_panel, _range)  # of equal cost, the first


def _read_rows(problem: Problem, row: int, limit: int) -> int:
    return min(problem.n_samples, block_rows(row, problem.chunk_samples, min(MOST_BLOCK, limit)))


def _decodings(problem: Problem, rows: int) -> float:
    return max(1.0, problem.chunk_samples / rows) if rows < problem.n_samples else 1.0


def _product_bytes(parts: Parts, width: int) -> int:
    """Bytes of samples less their mean, and of their part of the scores twice, at a time."""
    return product_rows(width, parts.value_bytes) * (width * parts.value_bytes + 2 * 8 * parts.n_components)


def product_rows(width: int, value_bytes: int) -> int:
    """Samples multiplied at a time, `width` features of each."""
    return max(1, PRODUCT // (width * value_bytes))
