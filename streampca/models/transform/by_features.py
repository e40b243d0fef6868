"""A model applied whose components do not fit in memory: scores added up, and images made, range by range of features.

The plan, `streampca.planning.plan_pieces`, says which side stays in memory and which streams past.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...machine import hand_back
from ...planning.blocks import Span, blocks_of
from ...planning.boxes import box_of, union_of
from ...planning.component_chunks import Cut
from ...planning.request import Problem
from ...planning.transform_pieces import Parts, Piecewise, plan_pieces, product_rows
from ...preprocessing import Frame, SampleError
from ...preprocessing.normalize import normalizing_bytes
from ...preprocessing.problem import problem_of
from ...readers import Collection
from ...readers.windows import Windows
from ...storage.components import StoredRows
from ...storage.tiling import Tiling
from ...storage.writers import OutputArray, Writer
from ..subspace import Subspace, squared_lengths, working_dtype
from .finite import refuse_bad
from .progress import Arrays, Progress, Step
from .resume import Recorder, numbers_of

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pieces:
    """What is made of a collection.

    Attributes
    ----------
    subspace, frame : Subspace, Frame
        The model's numbers, and how rows become images.
    collection : Collection
        Of prepared samples, not yet normalized if images are made of them; or of scores.
    dtype : dtype
        Of the result.
    whiten : bool
        Whether scores are to be whitened, or are.
    given : bool
        Whether the collection is of scores.
    makes_images : bool
        Whether images are made, or scores.
    residual : bool
        Whether, of images, what they leave of the samples.
    windows : Windows or None
        Where the images, which are windows, lie in the pictures that are put together of them; None: in none.
    """

    subspace: Subspace
    frame: Frame
    collection: Collection
    dtype: np.dtype[Any]
    whiten: bool
    given: bool = False
    makes_images: bool = False
    residual: bool = False
    windows: Windows | None = None

    @property
    def normalizes(self) -> bool:
        """Whether samples as read still are to be normalized."""
        return self.makes_images and not self.given and self.frame.preparation.normalize is not None

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Of prepared samples, normalized if need be."""
        if not self.normalizes:
            return self.collection.dtype
        return self.frame.normalized(np.ones((1, self.subspace.n_features), self.collection.dtype))[0].dtype

    @property
    def working(self) -> np.dtype[Any]:
        """In which samples and components are multiplied."""
        if self.given:
            return np.dtype(np.float32 if self.collection.dtype == np.float32 else np.float64)
        return working_dtype(self.row_dtype, self.subspace.components.dtype)

    def problem(self) -> Problem:
        """The collection in integers, with what normalizing its samples takes."""
        problem, p = problem_of(self.collection), self.subspace.n_features
        if not self.normalizes:
            return problem
        row = problem.prepared_bytes + p * self.row_dtype.itemsize
        return replace(problem, prepared_bytes=row, scratch_bytes=problem.scratch_bytes + normalizing_bytes(p))

    def plan(self, memory: int | None) -> Piecewise:
        """The pieces in which it is made within a budget in bytes; raises as `plan_pieces`."""
        return plan_pieces(self.problem(), self.parts(), memory)

    def parts(self) -> Parts:
        """The same in integers."""
        components = self.subspace.components
        k, p = components.shape
        stored = components if isinstance(components, StoredRows) else None
        copies = 2 if stored is not None and not stored.is_cut else 1
        cast = 0 if self.working == components.dtype else self.working.itemsize
        return Parts(
            n_components=k,
            n_features=p,
            nbytes=k * p * components.dtype.itemsize,
            column_bytes=k * (copies * components.dtype.itemsize + cast),
            held_bytes=self._held_bytes(),
            tile_features=stored.tile_features if stored is not None else 1,
            reading_bytes=stored.reading_bytes if stored is not None else 0,
            value_bytes=self.working.itemsize,
            sample_bytes=0 if self.given else self.row_dtype.itemsize,
            out_bytes=self.dtype.itemsize,
            makes_images=self.makes_images,
            reads_again=self.residual,
        )

    def _held_bytes(self) -> int:
        """The model's mean, scale and mask, over pixels and again over features; components where in memory."""
        pixels, p = prod(self.frame.sample_shape), self.subspace.n_features
        masked = self.frame.mask is not None
        scaled = 0 if self.frame.preparation.scale is None else 8 * (2 * pixels + p)
        held = self.subspace.components.nbytes if isinstance(self.subspace.components, np.ndarray) else 0
        return 8 * pixels + (8 * p + 2 * pixels if masked else 0) + scaled + (1 + masked) * held


def write_pieces(
    work: Pieces, plan: Piecewise, table: OutputArray, path: str, recorder: Recorder, *, overwrite: bool
) -> float:
    """Write what is made of a collection, piece by piece, or go on with it; returns the images' squared errors."""
    tiling = _tiling(work, plan) if work.makes_images else None
    table = replace(table, chunk_rows=plan.chunk_rows)
    if tiling is not None:
        table = replace(table, cut=Cut((plan.chunk_rows, *tiling.box), (plan.block_rows, *tiling.box)))
    with recorder.output(path, table, numbers_of(plan), overwrite=overwrite) as sink:
        progress = Progress(recorder, work.collection)
        for run in blocks_of(Span(progress.start, work.collection.n_samples), plan.scored_rows):
            share = 0.5 if tiling is not None and not work.given else 1.0
            scored = progress.begin(run, "output")
            if not scored:
                scored = progress.begin(run, "output", _Scoring(work, plan, progress, share).scores(run))
            if tiling is None:
                sink.write(run.start, scored["scores"])
            else:
                _write_images(work, plan, tiling, run, scored, sink, progress)
            progress.finish(run)
        return progress.squares


class _Scoring:
    """Makes the scores of a run of samples.

    Parameters
    ----------
    work, plan : Pieces, Piecewise
        What is made, and how.
    progress : Progress
        Told of samples.
    share : float
        What scores are of all that is done for a sample.
    """

    def __init__(self, work: Pieces, plan: Piecewise, progress: Progress, share: float) -> None:
        self._work, self._plan, self._progress, self._share = work, plan, progress, share
        self._components = work.subspace.ranges(plan.features) if plan.features else []

    def scores(self, run: Span) -> Arrays:
        """``scores`` (run, k) and, where samples are normalized here, ``numbers``, their means or norms (run,)."""
        work = self._work
        if work.given:
            return {"scores": self._given(run)}
        found: Arrays = {"numbers": np.zeros(run.size)} if work.normalizes else {}
        found |= {"squares": np.zeros(run.size)} if work.makes_images else {}
        found["total"] = np.zeros((run.size, len(work.subspace.components)))
        found = self._progress.begin(run, "scores", found)
        for number, panel in enumerate(_cut(run, self._plan.panel_rows or run.size)):
            at = slice(panel.start - run.start, panel.stop - run.start)
            self._add(number, panel, {name: array[at] for name, array in found.items()})
        total = found["total"]
        self._check(total, run)
        if "squares" in found:  # of what lies beside the components; where that is nothing, rounding
            self._progress.squares += float(np.maximum(found["squares"] - np.square(total).sum(axis=1), 0).sum())
        scores = total.astype(work.working)
        scores = work.subspace.whitened(scores) if work.whiten and not work.makes_images else scores
        return {"scores": scores} | ({"numbers": found["numbers"]} if work.normalizes else {})

    def _given(self, run: Span) -> Array:
        work, count = self._work, len(self._work.subspace.components)
        scores = np.empty((run.size, count), work.working)
        for block in _cut(run, self._plan.read_rows):
            rows = work.collection.read(slice(*block))
            if rows.dtype.kind == "f":
                refuse_bad(work.collection.named, rows, block.start)
            scores[block.start - run.start : block.stop - run.start] = rows[:, :count]
        return work.subspace.unwhitened(scores) if work.whiten else scores

    def _add(self, number: int, panel: Span, found: Arrays) -> None:
        """Add up the scores of samples over the features."""
        work, held, numbers = self._work, None, found.get("numbers")
        blocks = 1 if self._plan.panel_rows else -(-panel.size // self._plan.read_rows)
        if self._progress.has((number, len(self._components) - 1, blocks - 1)):
            return
        if self._plan.panel_rows:
            held = np.empty((panel.size, work.subspace.n_features), work.row_dtype)
            for block in _cut(panel, self._plan.read_rows):
                at = slice(block.start - panel.start, block.stop - panel.start)
                held[at] = self._read(block, None, None if numbers is None else numbers[at])
            hand_back()  # what decoding left
        for index, features in enumerate(self._components):
            if not self._progress.has((number, index, blocks - 1)):
                self._add_range((number, index), panel, features, held, found)

    def _add_range(self, step: Step, panel: Span, features: Span, held: Array | None, found: Arrays) -> None:
        """Add what a range of features adds; a function, so that its components are gone before the next are read."""
        work, numbers = self._work, found.get("numbers")
        piece = _as_dtype(work.subspace.piece(features), work.working)
        for index, block in enumerate(_cut(panel, panel.size if held is not None else self._plan.read_rows)):
            if self._progress.has((*step, index)):
                continue
            at = slice(block.start - panel.start, block.stop - panel.start)
            own = None if numbers is None else numbers[at]
            rows = held[:, slice(*features)] if held is not None else self._read(block, features, own)
            self._multiply(piece, rows, found["total"][at], found["squares"][at] if "squares" in found else None)
            self._progress.add(self._share * block.size * features.size / work.subspace.n_features, (*step, index))
            del rows  # before the next are read
        del piece
        hand_back()  # else the next range, where it is the larger, finds no room in what this one leaves

    def _multiply(self, piece: Subspace, rows: Array, total: Array, squares: Array | None) -> None:
        step = product_rows(piece.n_features, self._work.working.itemsize)
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            with np.errstate(invalid="ignore"):  # infinity less infinity; the sample is named later
                total[some] += piece.part_of_scores(rows[some])
                if squares is not None:
                    squares[some] += squared_lengths(rows[some], piece.mean)

    def _read(self, block: Span, features: Span | None, numbers: Float64 | None) -> Array:
        """Prepared samples, normalized if need be: (block, features); all features where None."""
        work = self._work
        cut = None if features is None or features.size == work.subspace.n_features else slice(*features)
        if numbers is None:
            return work.collection.read(slice(*block), cut)
        with np.errstate(invalid="ignore"), _naming(work.collection, block):
            rows, own = work.frame.normalized(work.collection.read(slice(*block)))
        numbers[:] = own
        return rows if cut is None else rows[:, cut]

    def _check(self, total: Array, run: Span) -> None:
        """Name a sample that has no scores because it is not finite."""
        for index in np.flatnonzero(~np.isfinite(total).all(axis=1)):
            at = run.start + int(index)
            refuse_bad(self._work.collection.named, self._work.collection.read(slice(at, at + 1)), at)


@contextmanager
def _naming(collection: Collection, block: Span) -> Iterator[None]:
    try:
        yield
    except SampleError as error:
        raise error.of(collection.named, block.start) from None


def _tiling(work: Pieces, plan: Piecewise) -> Tiling:
    """Boxes of pixels in which images are made: whole boxes of the components' storage."""
    shape, components = work.frame.sample_shape, work.subspace.components
    if isinstance(components, StoredRows) and components.is_cut:
        box = union_of(plan.image_features, components.tiling.box, shape)
    else:
        box = box_of(plan.image_features, shape)
    return Tiling(shape, box, work.frame.mask)


def _write_images(
    work: Pieces,
    plan: Piecewise,
    tiling: Tiling,
    run: Span,
    scored: Arrays,
    sink: Writer,
    progress: Progress,
) -> None:
    """Write the images of a run of samples from their scores, box by box of pixels."""
    scores, numbers = scored["scores"], scored.get("numbers")
    factors = work.frame.factors(scores.dtype)
    share = (1.0 if work.given else 0.5) / prod(tiling.shape)
    for number, tile in enumerate(tiling.tiles()):
        if progress.has((number, -(-run.size // plan.block_rows) - 1)):
            continue
        piece = _as_dtype(work.subspace.piece(tile.features), scores.dtype)
        own = factors[slice(*tile.features)] if np.ndim(factors) else factors
        for index, block in enumerate(_cut(run, plan.block_rows)):
            if progress.has((number, index)):
                continue
            at = slice(block.start - run.start, block.stop - run.start)
            rows = work.frame.denormalized(piece.part_of_rows(scores[at]), None if numbers is None else numbers[at])
            if work.residual:
                rows = _left_over(work, block, tile.features, rows)
            images = tile.filled(rows if own is None else rows / own)
            sink.write(block.start, images, tile.box)
            progress.add(share * block.size * prod(tile.shape), (number, index))
            del rows, images  # before the next are made
        del piece
        hand_back()


def _left_over(work: Pieces, block: Span, features: Span, rows: Array) -> Array:
    """A range of features of samples, read again, less what comes back of them; in place."""
    if not features.size:
        return rows
    whole = features.size == work.subspace.n_features
    given = work.collection.read(slice(*block), None if whole else slice(*features))
    return np.subtract(given, rows, out=rows, casting="unsafe")


def _as_dtype(piece: Subspace, dtype: np.dtype[Any]) -> Subspace:
    """A piece in the dtype it is multiplied in, so that it is converted once and not for every block."""
    return replace(piece, components=np.asarray(piece.components).astype(dtype, copy=False))


def _cut(run: Span, size: int) -> Iterator[Span]:
    for start in range(run.start, run.stop, size):
        yield Span(start, min(start + size, run.stop))
