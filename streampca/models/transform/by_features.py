"""`ByFeatures`: a model applied whose components do not fit in memory, range by range of features.

Scores add up over the ranges, and images are made of them range by range. The plan,
`streampca.planning.transform_pieces`, says which side stays in memory and which streams past. Every product is a step,
and steps are what the executor folds: so a run resumes in the middle of a range.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...events import BlockDone
from ...machine import hand_back
from ...planning.blocks import Span, blocks_of, spans_of
from ...planning.boxes import box_of, union_of
from ...planning.transform_pieces import Piecewise, product_rows
from ...preprocessing import SampleError
from ...readers import Collection
from ...storage.components import StoredRows
from ...storage.tiling import Tile, Tiling
from ...storage.writers import Writer
from ..subspace import Subspace, squared_lengths
from .by_samples import Written
from .finite import refuse_bad
from .projection import Projection

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
NOTHING = Span(0, 0)


class Step(NamedTuple):
    """One step of a run of samples.

    ``kind`` is "product" (of a block and a range of the components), "scores" (the sums are complete, or scores are
    read) or "images" (of a block and a tile). Samples count from the beginning of the run; a `panel` is held.
    """

    kind: str
    block: Span
    features: Span = NOTHING
    panel: Span | None = None
    tile: int = 0


class Sums(Written):
    """State of a run of samples in memory, and the piece of the components that is multiplied.

    `arrays` are, of m samples, ``total`` (m, k) and ``squares`` (m,), while these add up; ``scores`` (m, k); and
    ``numbers`` (m,), means or norms of samples that are normalized here.
    """

    panel: tuple[Span, Array] | None = None
    piece: tuple[Span, Subspace] | None = None


@dataclass(frozen=True, kw_only=True)
class ByFeatures:
    """Fold the steps of runs of samples into an output; see `streampca.execution.Task`. Spans count steps.

    Attributes
    ----------
    work : Projection
        What is computed.
    plan : Piecewise
        In which pieces.
    writer : Writer
        Takes rows, or boxes of them.
    """

    work: Projection
    plan: Piecewise
    writer: Writer

    def start(self) -> Sums:
        """Return an empty sum."""
        return Sums(self.writer)

    def restore(self, state: dict[str, Array]) -> Sums:
        """Return the sum of this state."""
        return Sums.from_state(self.writer, state)

    def spans(self, count: int) -> tuple[Span, ...]:
        """Cut all steps into at most `count` spans of whole runs of samples."""
        n, rows = self.work.collection.n_samples, self.plan.scored_rows
        each, last = len(self._whole_run), len(self._last_run)
        end = (-(-n // rows) - 1) * each + last
        return tuple(
            Span(run.start // rows * each, end if run.stop == n else run.stop // rows * each)
            for run in spans_of(n, count, rows)
        )

    def blocks(self, span: Span) -> Iterator[Span]:
        """Every step."""
        return blocks_of(span, 1)

    def counts(self, block: Span) -> BlockDone:
        """A step's share of the samples of its run."""
        run, number, steps = self._find(block)
        done = run.size * (number + 1) // len(steps) - run.size * number // len(steps)
        return BlockDone(done, done * self.work.collection.row_bytes)

    def fetch(self, block: Span) -> Any:
        """Read what a step multiplies: rows, and means or norms of those that are normalized here."""
        run, number, steps = self._find(block)
        step, work = steps[number], self.work
        samples = _moved(step.block, run.start)
        if step.kind == "product" and step.panel is None:
            return self._read(samples, step.features)
        if step.kind == "images" and work.residual:
            features = self._tiles[step.tile].features
            return self._prepared(samples, features) if features.size else None
        return None

    def feed(self, accumulator: Sums, block: Span, fetched: Any) -> None:
        """Do a step.

        Raises
        ------
        DataError
            If a sample is not finite or cannot be normalized; names it.
        """
        run, number, steps = self._find(block)
        step, sums = steps[number], accumulator
        if number == 0:
            self._begin(sums, run)
        if step.kind == "product":
            self._multiply(sums, run, step, fetched)
        elif step.kind == "scores":
            self._complete(sums, run)
        else:
            self._write_images(sums, run, step, fetched)
        if number + 1 == len(steps):
            sums.arrays, sums.panel, sums.piece = {}, None, None
            hand_back()
        sums.totals[0] += self.counts(block).samples

    # -- steps

    @cached_property
    def _whole_run(self) -> list[Step]:
        return list(self._steps(min(self.plan.scored_rows, self.work.collection.n_samples)))

    @cached_property
    def _last_run(self) -> list[Step]:
        n, rows = self.work.collection.n_samples, self.plan.scored_rows
        return list(self._steps(n - (n - 1) // rows * rows))

    def _steps(self, rows: int) -> Iterator[Step]:
        """The steps of a run of so many samples, in order."""
        plan, work, run = self.plan, self.work, Span(0, rows)
        ranges = () if work.given else work.subspace.ranges(plan.features)
        for panel in blocks_of(run, plan.panel_rows) if plan.panel_rows else ():
            yield from (Step("product", panel, features, panel) for features in ranges)
        for features in () if plan.panel_rows else ranges:
            yield from (Step("product", block, features) for block in blocks_of(run, plan.read_rows))
        yield Step("scores", run)
        for tile in range(len(self._tiles)):
            yield from (Step("images", block, tile=tile) for block in blocks_of(run, plan.block_rows))

    def _find(self, block: Span) -> tuple[Span, int, list[Step]]:
        """The run of samples that a step belongs to, its number there, and all steps of the run."""
        n, rows = self.work.collection.n_samples, self.plan.scored_rows
        index = min(block.start // len(self._whole_run), (n - 1) // rows)
        run = Span(index * rows, min((index + 1) * rows, n))
        steps = self._last_run if run.stop == n else self._whole_run
        return run, block.start - index * len(self._whole_run), steps

    @cached_property
    def _tiles(self) -> list[Tile]:
        return list(self._tiling.tiles()) if self.work.makes_images else []

    @cached_property
    def _tiling(self) -> Tiling:
        return tiling_of(self.work, self.plan)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    # -- scores

    def _begin(self, sums: Sums, run: Span) -> None:
        work, count = self.work, len(self.work.subspace.components)
        sums.arrays = {"numbers": np.zeros(run.size)} if work.normalizes else {}
        sums.arrays |= {"squares": np.zeros(run.size)} if work.makes_images else {}
        sums.arrays["total"] = np.zeros((run.size, count))

    def _multiply(self, sums: Sums, run: Span, step: Step, fetched: tuple[Array, Float64 | None]) -> None:
        """Add what a range of features adds to the scores of a block."""
        if step.panel is not None:
            rows = self._panel(sums, run, step.panel)[:, slice(*step.features)]
        else:
            rows, numbers = fetched
            if numbers is not None:
                sums.arrays["numbers"][slice(*step.block)] = numbers
        piece = self._piece(sums, step.features, self.work.working)
        at, squares = slice(*step.block), sums.arrays.get("squares")
        total = sums.arrays["total"][at]
        squares = None if squares is None else squares[at]
        count = product_rows(piece.n_features, self.work.working.itemsize)
        for start in range(0, len(rows), count):
            some = slice(start, start + count)
            with np.errstate(invalid="ignore"):  # infinity less infinity; the sample is named later
                total[some] += piece.part_of_scores(rows[some])
                if squares is not None:
                    squares[some] += squared_lengths(rows[some], piece.mean)

    def _panel(self, sums: Sums, run: Span, panel: Span) -> Array:
        """Whole samples, which stay in memory while the components stream past: (panel, p)."""
        if sums.panel is not None and sums.panel[0] == panel:
            return sums.panel[1]
        sums.panel = sums.piece = None  # before there is another
        held = np.empty((panel.size, self.work.subspace.n_features), self.work.row_dtype)
        for block in blocks_of(panel, self.plan.read_rows):
            rows, numbers = self._read(_moved(block, run.start), None)
            held[block.start - panel.start : block.stop - panel.start] = rows
            if numbers is not None:
                sums.arrays["numbers"][slice(*block)] = numbers
            del rows  # before the next are read
        hand_back()  # what decoding left
        sums.panel = panel, held
        return held

    def _read(self, samples: Span, features: Span | None) -> tuple[Array, Float64 | None]:
        """Prepared samples, normalized if need be, and by what: (samples, features); all features where None."""
        work = self.work
        if not work.normalizes:
            return self._prepared(samples, features), None
        with np.errstate(invalid="ignore"), _naming(work.collection, samples):
            rows, numbers = work.frame.normalized(work.collection.read(slice(*samples)))
        return rows if features is None else rows[:, slice(*features)], numbers

    def _prepared(self, samples: Span, features: Span | None) -> Array:
        whole = features is None or features.size == self.work.subspace.n_features
        return self.work.collection.read(slice(*samples), None if whole or features is None else slice(*features))

    def _piece(self, sums: Sums, features: Span, dtype: np.dtype[Any]) -> Subspace:
        """A range of the components, converted once and not for every block to the dtype it is multiplied in."""
        if sums.piece is None or sums.piece[0] != features:
            sums.piece = None
            hand_back()  # else this range, where it is the larger, finds no room in what the last one leaves
            piece = self.work.subspace.piece(features)
            components = np.asarray(piece.components).astype(dtype, copy=False)
            sums.piece = features, replace(piece, components=components)
        return sums.piece[1]

    def _complete(self, sums: Sums, run: Span) -> None:
        """Turn sums into scores, and write them if they are what is wanted."""
        work, arrays = self.work, sums.arrays
        sums.panel = sums.piece = None
        if work.given:
            arrays.clear()
            scores = self._given(run)
            arrays["scores"] = work.subspace.unwhitened(scores) if work.whiten else scores
            return
        total = arrays.pop("total")
        bad = np.flatnonzero(~np.isfinite(total).all(axis=1))
        if work.subspace.missing == "error":
            for index in bad:
                at = run.start + int(index)
                refuse_bad(work.collection.named, work.collection.read(slice(at, at + 1)), at)
        else:
            total[bad] = np.nan
        if "squares" in arrays:  # of what lies beside the components; where that is nothing, rounding
            squares = arrays.pop("squares")
            beside = np.maximum(squares - np.square(work.subspace.along_basis(total)).sum(axis=1), 0)
            sums.totals[1] += float(np.nansum(beside))
        scores = total.astype(work.working)
        if work.makes_images:
            arrays["scores"] = scores
        else:
            self.writer.write(run.start, work.subspace.whitened(scores) if work.whiten else scores)

    def _given(self, run: Span) -> Array:
        """Read the scores of a run, block by block: (run, k)."""
        collection, count = self.work.collection, len(self.work.subspace.components)
        scores = np.empty((run.size, count), self.work.working)
        for block in blocks_of(Span(0, run.size), self.plan.read_rows):
            samples = _moved(block, run.start)
            rows = collection.read(slice(*samples))
            if rows.dtype.kind == "f":
                refuse_bad(collection.named, rows, samples.start)
            scores[slice(*block)] = rows[:, :count]
        return scores

    # -- images

    def _write_images(self, sums: Sums, run: Span, step: Step, given: Array | None) -> None:
        """Write the part of a block of images that lies in a tile."""
        work, tile, at = self.work, self._tiles[step.tile], slice(*step.block)
        scores, numbers = sums.arrays["scores"], sums.arrays.get("numbers")
        first = run.start + step.block.start
        piece = self._piece(sums, tile.features, scores.dtype)
        rows = work.frame.denormalized(piece.part_of_rows(scores[at]), None if numbers is None else numbers[at])
        if given is not None:
            rows = np.subtract(given, rows, out=rows, casting="unsafe")
        images = work.frame.undone(rows, first, slice(*tile.features), differences=given is not None)
        self.writer.write(first, tile.filled(images), tile.box)


@contextmanager
def _naming(collection: Collection, block: Span) -> Iterator[None]:
    try:
        yield
    except SampleError as error:
        raise error.of(collection.named, block.start) from None


def tiling_of(work: Projection, plan: Piecewise) -> Tiling:
    """Boxes of pixels in which images are made: whole boxes of the components' storage."""
    shape, components = work.frame.sample_shape, work.subspace.components
    if isinstance(components, StoredRows) and components.is_cut:
        box = union_of(plan.image_features, components.tiling.box, shape)
    else:
        box = box_of(plan.image_features, shape)
    return Tiling(shape, box, work.frame.mask)


def _moved(span: Span, start: int) -> Span:
    return Span(span.start + start, span.stop + start)
