"""`ByFeatures`: application of a model whose components do not fit in memory, by ranges of features.

Scores are summed over the ranges, and images are computed range by range. The plan,
`streampca.planning.transform_pieces`, says whether samples or components stay in memory while the other streams past.
The executor folds single steps, each one product, so that a run resumes in the middle of a range.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...arrays import Array, Float64
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

NOTHING = Span(0, 0)


class Step(NamedTuple):
    """One step of a run of samples.

    ``kind`` is "product" (of a block and a range of the components), "scores" (complete the sums, or read scores) or
    "images" (of a block and a tile). Samples count from the start of the run. A `panel` is a block of whole samples
    that stays in memory.
    """

    kind: str
    block: Span
    features: Span = NOTHING
    panel: Span | None = None
    tile: int = 0


class Sums(Written):
    """State of a run of m samples, and the current piece of the components.

    `arrays` are ``total`` (m, k) and ``squares`` (m,) while they are summed, ``scores`` (m, k) afterwards, and
    ``numbers`` (m,), the means or norms of samples that are normalized here.
    """

    panel: tuple[Span, Array] | None = None
    piece: tuple[Span, Subspace] | None = None


@dataclass(frozen=True, kw_only=True)
class ByFeatures:
    """Fold the steps of runs of samples into an output; see `streampca.execution.Task`. Spans count steps.

    Attributes
    ----------
    work : Projection
        Scores or images to compute.
    plan : Piecewise
        Sizes of the pieces.
    writer : Writer
        Writer of rows, or of boxes of them.
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
        steps, last = len(self._whole_run), len(self._last_run)
        end = (-(-n // rows) - 1) * steps + last
        return tuple(
            Span(run.start // rows * steps, end if run.stop == n else run.stop // rows * steps)
            for run in spans_of(n, count, rows)
        )

    def blocks(self, span: Span) -> Iterator[Span]:
        """Yield every step as a block of its own."""
        return blocks_of(span, 1)

    def counts(self, block: Span) -> BlockDone:
        """Count a step as its share of the samples of its run."""
        run, number, steps = self._find(block)
        samples = run.size * (number + 1) // len(steps) - run.size * number // len(steps)
        return BlockDone(samples, samples * self.work.collection.row_bytes)

    def fetch(self, block: Span) -> Any:
        """Read the samples of a step: rows, and their means or norms if they are normalized here."""
        run, number, steps = self._find(block)
        step, work = steps[number], self.work
        samples = _shifted(step.block, run.start)
        if step.kind == "product" and step.panel is None:
            return self._read(samples, step.features)
        if step.kind == "images" and work.residual:
            features = self._tiles[step.tile].features
            return self._prepared(samples, features) if features.size else None
        return None

    def feed(self, accumulator: Sums, block: Span, fetched: Any) -> None:
        """Carry out a step.

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
        """Yield the steps of a run of `rows` samples, in order."""
        plan, work, run = self.plan, self.work, Span(0, rows)
        ranges = () if work.from_scores else work.subspace.ranges(plan.features)
        # With panels the samples stay in memory and the components stream past; else each range of the components stays
        # while all samples of the run stream past.
        for panel in blocks_of(run, plan.panel_rows) if plan.panel_rows else ():
            yield from (Step("product", panel, features, panel) for features in ranges)
        for features in () if plan.panel_rows else ranges:
            yield from (Step("product", block, features) for block in blocks_of(run, plan.read_rows))
        yield Step("scores", run)
        for tile in range(len(self._tiles)):
            yield from (Step("images", block, tile=tile) for block in blocks_of(run, plan.block_rows))

    def _find(self, block: Span) -> tuple[Span, int, list[Step]]:
        """Return the run of samples that a step belongs to, its number there, and all steps of the run."""
        n, rows = self.work.collection.n_samples, self.plan.scored_rows
        index = min(block.start // len(self._whole_run), (n - 1) // rows)
        run = Span(index * rows, min((index + 1) * rows, n))
        steps = self._last_run if run.stop == n else self._whole_run
        return run, block.start - index * len(self._whole_run), steps

    @cached_property
    def _tiles(self) -> list[Tile]:
        return list(tiling_of(self.work, self.plan).tiles()) if self.work.makes_images else []

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    # -- scores

    def _begin(self, sums: Sums, run: Span) -> None:
        work, count = self.work, len(self.work.subspace.components)
        sums.arrays = {"numbers": np.zeros(run.size)} if work.normalizes else {}
        sums.arrays |= {"squares": np.zeros(run.size)} if work.makes_images else {}
        sums.arrays["total"] = np.zeros((run.size, count))

    def _multiply(self, sums: Sums, run: Span, step: Step, fetched: tuple[Array, Float64 | None]) -> None:
        """Add the products of a range of features to the scores of a block."""
        if step.panel is not None:
            rows = self._panel(sums, run, step.panel)[:, slice(*step.features)]
        else:
            rows, numbers = fetched
            if numbers is not None:
                sums.arrays["numbers"][slice(*step.block)] = numbers
        piece = self._piece(sums, step.features, self.work.working)
        samples, squares = slice(*step.block), sums.arrays.get("squares")
        total = sums.arrays["total"][samples]
        squares = None if squares is None else squares[samples]
        count = product_rows(piece.n_features, self.work.working.itemsize)
        for start in range(0, len(rows), count):
            part = slice(start, start + count)
            with np.errstate(invalid="ignore"):  # infinity minus infinity; `_complete` refuses the sample by name
                total[part] += piece.part_of_scores(rows[part])
                if squares is not None:
                    squares[part] += squared_lengths(rows[part], piece.mean)

    def _panel(self, sums: Sums, run: Span, panel: Span) -> Array:
        """Return whole samples, which stay in memory while the components stream past: (panel, p)."""
        if sums.panel is not None and sums.panel[0] == panel:
            return sums.panel[1]
        sums.panel = sums.piece = None  # free the last panel before this one is allocated
        samples = np.empty((panel.size, self.work.subspace.n_features), self.work.row_dtype)
        for block in blocks_of(panel, self.plan.read_rows):
            rows, numbers = self._read(_shifted(block, run.start), None)
            samples[block.start - panel.start : block.stop - panel.start] = rows
            if numbers is not None:
                sums.arrays["numbers"][slice(*block)] = numbers
            del rows  # before the next are read
        hand_back()  # memory that decoding has freed
        sums.panel = panel, samples
        return samples

    def _read(self, samples: Span, features: Span | None) -> tuple[Array, Float64 | None]:
        """Read prepared samples, (samples, features), normalized if need be, and the numbers that normalized them."""
        work = self.work
        if not work.normalizes:
            return self._prepared(samples, features), None
        with np.errstate(invalid="ignore"), _naming(work.collection, samples):
            rows, numbers = work.frame.normalized(work.collection.read(slice(*samples)))
        return rows if features is None else rows[:, slice(*features)], numbers

    def _prepared(self, samples: Span, features: Span | None) -> Array:
        """Read prepared samples along a range of features; all features if None."""
        # The full range is read like None, without cutting columns.
        is_full = features is None or features.size == self.work.subspace.n_features
        return self.work.collection.read(slice(*samples), None if is_full or features is None else slice(*features))

    def _piece(self, sums: Sums, features: Span, dtype: np.dtype[Any]) -> Subspace:
        """Return a range of the components, converted once, not for every block, to the dtype of the product."""
        if sums.piece is None or sums.piece[0] != features:
            sums.piece = None
            hand_back()  # else a larger range would not fit in the memory of the last one, and the peak would grow
            piece = self.work.subspace.piece(features)
            components = np.asarray(piece.components).astype(dtype, copy=False)
            sums.piece = features, replace(piece, components=components)
        return sums.piece[1]

    def _complete(self, sums: Sums, run: Span) -> None:
        """Turn sums into scores; write them unless images are computed from them."""
        work, arrays = self.work, sums.arrays
        sums.panel = sums.piece = None
        if work.from_scores:
            arrays.clear()
            scores = self._read_scores(run)
            arrays["scores"] = work.subspace.unwhitened(scores) if work.whiten else scores
            return
        total = arrays.pop("total")
        bad = np.flatnonzero(~np.isfinite(total).all(axis=1))
        if work.subspace.missing == "error":
            for index in bad:
                sample = run.start + int(index)
                rows = work.collection.read(slice(sample, sample + 1))
                refuse_bad(work.collection.named, rows, sample, fills_in=work.subspace.fills_in)
        else:
            total[bad] = np.nan
        if "squares" in arrays:
            # The squared error by Pythagoras; the difference of equal numbers is rounding, which can be negative.
            squares = arrays.pop("squares")
            errors = np.maximum(squares - work.subspace.explained_squares(total), 0)
            sums.totals[1] += float(np.nansum(errors))
        scores = total.astype(work.working)
        if work.makes_images:
            arrays["scores"] = scores
        else:
            self.writer.write(run.start, work.subspace.whitened(scores) if work.whiten else scores)

    def _read_scores(self, run: Span) -> Array:
        """Read the scores of a run, block by block: (run, k)."""
        collection, count = self.work.collection, len(self.work.subspace.components)
        scores = np.empty((run.size, count), self.work.working)
        for block in blocks_of(Span(0, run.size), self.plan.read_rows):
            samples = _shifted(block, run.start)
            rows = collection.read(slice(*samples))
            if rows.dtype.kind == "f":
                refuse_bad(collection.named, rows, samples.start)
            scores[slice(*block)] = rows[:, :count]
        return scores

    # -- images

    def _write_images(self, sums: Sums, run: Span, step: Step, samples: Array | None) -> None:
        """Write the part of a block of images that lies in a tile: `samples`, if any, minus their reconstructions."""
        work, tile, block = self.work, self._tiles[step.tile], slice(*step.block)
        scores, numbers = sums.arrays["scores"], sums.arrays.get("numbers")
        first = run.start + step.block.start
        piece = self._piece(sums, tile.features, scores.dtype)
        rows = work.frame.denormalized(piece.part_of_rows(scores[block]), None if numbers is None else numbers[block])
        if samples is not None:
            rows = np.subtract(samples, rows, out=rows, casting="unsafe")
        images = work.frame.undone(rows, first, slice(*tile.features), differences=samples is not None)
        self.writer.write(first, tile.filled(images), tile.box)


@contextmanager
def _naming(collection: Collection, block: Span) -> Iterator[None]:
    try:
        yield
    except SampleError as error:
        raise error.of(collection.named, block.start) from None


def tiling_of(work: Projection, plan: Piecewise) -> Tiling:
    """Return the boxes of pixels in which images are computed: unions of boxes of the components' storage."""
    shape, components = work.frame.sample_shape, work.subspace.components
    if isinstance(components, StoredRows) and components.is_cut:
        box = union_of(plan.image_features, components.tiling.box, shape)
    else:
        box = box_of(plan.image_features, shape)
    return Tiling(shape, box, work.frame.mask)


def _shifted(span: Span, start: int) -> Span:
    return Span(span.start + start, span.stop + start)
