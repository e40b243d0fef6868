"""Scores and images of a collection written to an output within a budget."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import BudgetError
from ...events import BlockDone, Listener, PassFinished, PassStarted
from ...planning import Application, plan_application
from ...planning.blocks import Span, blocks_of
from ...planning.memory import MemoryEstimate, Phase
from ...planning.transform_pieces import Piecewise, are_possible
from ...preprocessing import Frame
from ...preprocessing.problem import problem_of
from ...readers import Collection
from ...readers.collection import counting_dim
from ...storage.coordinate import Coordinate
from ...storage.disk import expanded
from ...storage.locks import alone_in
from ...storage.writers import OutputArray
from ...units import parse_bytes
from ..subspace import Subspace, working_dtype
from .by_features import Pieces, write_pieces
from .finite import RowMap, applied
from .patches import Together, patches_of, table_of
from .resume import EVERY, Recorder, digest_of, numbers_of
from .row_maps import Rebuilding, images_of, scores_of

Array = npt.NDArray[Any]


def write_scores(
    subspace: Subspace, frame: Frame, collection: Collection, path: str, *, model: str, whiten: bool, **how: Any
) -> None:
    """Write the scores of a prepared collection; see `PCAModel.write_scores`."""
    k = len(subspace.components)
    table = OutputArray(
        "scores",
        (collection.n_samples, k),
        (counting_dim(collection, ("component",)), "component"),
        working_dtype(collection.dtype, subspace.components.dtype),
        names=collection.sample_names(),
        attributes={"source": collection.source, "model": model, "whiten": whiten},
        coordinates={"component": Coordinate(np.arange(1, k + 1))},
        sample_coordinates=collection.sample_coordinates(),
    )
    work = Pieces(subspace, frame, collection, table.dtype, whiten=whiten)
    _write(work, partial(scores_of, whiten=whiten), table, path, **how)


def write_images(
    subspace: Subspace,
    frame: Frame,
    collection: Collection,
    path: str,
    *,
    model: str,
    dims: tuple[str, ...],
    coordinates: Mapping[str, Coordinate],
    whitened: bool | None = None,
    residual: bool = False,
    whole: bool = False,
    **how: Any,
) -> float | None:
    """Write images made of a collection's samples, or of scores; see `PCAModel.write_reconstruction`.

    `whitened` says of scores whether they are whitened, and is None where samples are given, not normalized yet.
    `whole` puts windows together into the pictures they were cut from.
    Returns the sum of squared errors of features as analysed; of scores, which do not say, None.
    """
    given = whitened is not None
    normalized = frame.preparation.normalize if given else None
    about = {"source": collection.source, "model": model, "n_components": len(subspace.components)}
    about |= {"residual": True} if residual else {}
    table = OutputArray(
        "images",
        (collection.n_samples, *frame.sample_shape),
        (counting_dim(collection, dims), *dims),
        working_dtype(collection.dtype, subspace.components.dtype),
        names=collection.sample_names(),
        attributes=about if normalized is None else {**about, "normalized": normalized},
        coordinates=coordinates,
        sample_coordinates=collection.sample_coordinates(),
    )
    made: dict[str, Any] = {"whiten": bool(whitened), "given": given, "makes_images": True, "residual": residual}
    if whole:
        patches = patches_of(collection, frame)
        table, made["windows"] = table_of(patches, table), patches.windows
    work = Pieces(subspace, frame, collection, table.dtype, **made)
    function: Any = partial(images_of, whiten=bool(whitened), frame=frame) if given else None
    squares = _write(work, function, table, path, **how)
    return None if given else squares


def _write(
    work: Pieces,
    function: Callable[[Subspace, Array], Array] | None,
    table: OutputArray,
    path: str,
    *,
    checkpoint: str | None = None,
    **how: Any,
) -> float:
    """Write, while no other process writes the same; returns the squared error of images made of samples."""
    folder = None if checkpoint is None else expanded(checkpoint)
    with alone_in(folder):
        return _write_alone(work, function, table, path, checkpoint=folder, **how)


def _write_alone(
    work: Pieces,
    function: Callable[[Subspace, Array], Array] | None,
    table: OutputArray,
    path: str,
    *,
    memory: int | str | None,
    overwrite: bool,
    listener: Listener,
    checkpoint: str | None,
    checkpoint_every: float = EVERY,
) -> float:
    """Write block by block with the components in memory, or piece by piece where they do not fit beside."""
    budget = parse_bytes(memory)
    asked = {} if checkpoint is None else _asked(work, table, path, budget)
    how: Any = {"collection": work.collection, "every": checkpoint_every, "listener": listener}
    recorder = Recorder(checkpoint, table.name, asked, **how)
    plan = _planned_before(recorder.plan) or _planned(work, budget)
    began = time.perf_counter()
    listener(PassStarted(table.name, 1, 1, work.collection.n_samples, work.collection.nbytes))
    if isinstance(plan, Piecewise):
        squares = write_pieces(work, plan, table, path, recorder, overwrite=overwrite)
    else:
        squares = _write_whole(work, plan, function, table, path, recorder, overwrite=overwrite)
    listener(PassFinished(time.perf_counter() - began))
    return squares


def _write_whole(
    work: Pieces,
    plan: Application,
    function: Callable[[Subspace, Array], Array] | None,
    table: OutputArray,
    path: str,
    recorder: Recorder,
    *,
    overwrite: bool,
) -> float:
    """Write what is made of whole samples, images of themselves where there is no function, or go on with it."""
    numbers, held, windows = numbers_of(plan), work.subspace.held(), work.windows
    table = table if windows else replace(table, chunk_rows=plan.chunk_rows)
    with recorder.output(path, table, numbers, overwrite=overwrite) as sink:
        together = None if windows is None else Together(sink, table, windows, recorder.arrays)
        start, squares = recorder.position.get("samples", 0), recorder.position.get("squares", 0.0)
        rebuilding = Rebuilding(held, work.frame, residual=work.residual, squares=squares)
        whole = rebuilding if function is None else partial(function, held)
        for block, result, read in mapped_blocks(work.collection, whole, plan.block_rows, start):
            position = {"samples": block.stop, "squares": rebuilding.squares}
            if together is None:
                sink.write(block.start, result)
            else:
                together.write(block.start, result)
            recorder.done(BlockDone(block.size, read), position, together.state() if together else {})
    return rebuilding.squares


def _asked(work: Pieces, table: OutputArray, path: str, budget: int | None) -> dict[str, Any]:
    """What tells one call from another, by name."""
    return {
        "output": os.path.abspath(path),
        "source": work.collection.source,
        "model": digest_of(work.subspace, work.frame),
        "n_components": len(work.subspace.components),
        "whiten": work.whiten,
        "shape": table.shape,
        "dtype": table.dtype.str,
        "memory": budget,
    } | ({"residual": True} if work.residual else {})


def _planned_before(numbers: Mapping[str, int] | None) -> Application | Piecewise | None:
    """Return the plan of a partial output; its memory estimate was checked when the output was begun."""
    if numbers is None:
        return None
    if "scored_rows" in numbers:
        return Piecewise(**numbers, memory_estimate=MemoryEstimate(()))
    return Application(**numbers, memory_estimate=Phase("apply", ()))


def fits(work: Pieces, budget: int) -> bool:
    """Whether something can be written within a budget in bytes, whole or in pieces; reads no sample."""
    return _whole(work, budget) is not None or (
        work.windows is None and are_possible(work.problem(), work.parts(), budget)
    )


def _planned(work: Pieces, memory: int | None) -> Application | Piecewise:
    """In which blocks or pieces something is written; pictures are put together from whole windows only."""
    if work.windows is not None:
        return _in_blocks(work, memory)
    return _whole(work, memory) or work.plan(memory)


def _whole(work: Pieces, memory: int | None) -> Application | None:
    """In which blocks samples are mapped whole, or None where all components do not fit beside one."""
    try:
        return _in_blocks(work, memory)
    except BudgetError:
        return None


def _in_blocks(work: Pieces, memory: int | None) -> Application:
    components, problem = work.subspace.components, problem_of(work.collection)
    shape = work.frame.sample_shape if work.makes_images else (len(components),)
    if work.windows is not None:
        problem = replace(problem, scratch_bytes=problem.scratch_bytes + work.windows.open_bytes)
    return plan_application(
        problem=problem,
        n_components=len(components),
        n_features=work.subspace.n_features,
        component_itemsize=components.dtype.itemsize,
        out_bytes=math.prod(shape) * work.dtype.itemsize,
        memory=memory,
    )


def mapped_blocks(
    collection: Collection, function: RowMap, block_rows: int, start: int = 0, stop: int | None = None
) -> Iterator[tuple[Span, Array, int]]:
    """Read samples start to stop block by block and map each; yields (which samples, result, bytes read).

    Raises
    ------
    DataError
        If a result is not finite because a sample is not, or a sample cannot be prepared; names the sample.
    """
    for block in blocks_of(Span(start, collection.n_samples if stop is None else stop), block_rows):
        result = applied(function, collection.read(slice(*block)), collection.named, block.start)
        yield block, result, block.size * collection.row_bytes
