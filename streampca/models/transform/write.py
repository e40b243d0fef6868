"""Writing of scores and images of a collection to an output, within a budget."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from ... import machine
from ...errors import BudgetError, without_secrets
from ...events import PassStarted, reported
from ...execution import LocalExecutor
from ...execution.checkpoint import CheckpointFolder
from ...execution.executor import planning_for
from ...execution.resumable_output import resumable_output
from ...execution.session import Session, run_session
from ...kinds.run import Run
from ...planning import Application, plan_application
from ...planning.blocks import SPANS_A_WORKER
from ...planning.component_chunks import Cut
from ...planning.transform_pieces import Piecewise
from ...readers import Collection
from ...readers.collection import counting_dim, unchanged
from ...readers.dates import timestamps
from ...storage.coordinate import Coordinate
from ...storage.remote import is_in_memory, is_url
from ...storage.writers import IN_ORDER, PARQUET, OutputArray, Writer
from ..least_squares import least_squares_bytes
from .by_features import ByFeatures, tiling_of
from .by_samples import BySamples, Written
from .patches import patches_of, table_of
from .projection import Projection
from .resume import identity_of, saved_plan


def write_projection(
    work: Projection,
    path: str,
    *,
    model: str,
    dims: tuple[str, ...],
    coordinates: Mapping[str, Coordinate],
    run: Run,
) -> float:
    """Write scores or images to an output that no other process writes at the same time.

    See `PCAModel.write_scores` and `PCAModel.write_reconstruction`.

    Returns
    -------
    float
        Sum of the squared errors of features as analysed, for images reconstructed from samples.
    """
    table = _table(work, model, dims, coordinates)
    if _ending(path) == PARQUET:  # a partial Parquet file cannot be appended to: no checkpoint
        run, table = replace(run, checkpoint=None), _with_dates(table)
    with run_session("", run) as current:  # the output is locked where it is opened
        if work.windows is not None or _is_of_one_process(path):
            current = replace(current, executor=LocalExecutor())
        executor, saved = current.executor, None
        if current.checkpointing is not None:
            saved = current.checkpoint(identity_of(work, table, path, run.budget))
        with planning_for(executor):
            plan = saved_plan(saved) or planned(work, path, run.budget or executor.memory, executor.workers)
        return _write_by(current, work, plan, table, path, saved)


def _table(work: Projection, model: str, dims: tuple[str, ...], coordinates: Mapping[str, Coordinate]) -> OutputArray:
    """Describe the output: a row for each sample, or the pictures that are assembled from windows."""
    collection, k = work.collection, work.subspace.n_scores
    attributes: dict[str, Any] = {"source": collection.source, "model": without_secrets(model)}
    if work.makes_images:
        attributes |= {"n_components": work.subspace.n_components, **({"residual": True} if work.residual else {})}
        if work.from_scores and work.frame.preparation.normalize is not None:
            attributes["normalized"] = work.frame.preparation.normalize
    else:
        attributes["whiten"] = work.whiten
    table = OutputArray(
        "images" if work.makes_images else "scores",
        (collection.n_samples, *(work.frame.sample_shape if work.makes_images else (k,))),
        (counting_dim(collection), *dims),
        work.dtype,
        ours=() if work.makes_images else dims,
        names=collection.sample_names(),
        attributes=attributes,
        coordinates=coordinates,
        sample_coordinates=collection.sample_coordinates(),
    )
    return table if work.windows is None else table_of(patches_of(collection, work.frame), table)


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _is_of_one_process(path: str) -> bool:
    """Return whether only one process can write: rows in order, a file that is sent to a URL, or into its memory."""
    return _ending(path) in IN_ORDER or (is_url(path) and (_ending(path) != ".zarr" or is_in_memory(path)))


def _with_dates(table: OutputArray) -> OutputArray:
    """Return a table with CF times along the samples converted to dates, which readers of tables understand."""
    coordinates = {
        name: coordinate if (dates := timestamps(coordinate)) is None else Coordinate(dates)
        for name, coordinate in table.sample_coordinates.items()
    }
    return replace(table, sample_coordinates=coordinates)


def _write_by(
    current: Session,
    work: Projection,
    plan: Application | Piecewise,
    table: OutputArray,
    path: str,
    saved: CheckpointFolder | None,
) -> float:
    """Fold the collection into its output: by blocks of samples, or by ranges of features if components do not fit."""
    collection, stored = work.collection, _chunked(work, plan, table)
    executor, listener = current.executor, current.listener
    numbers = {item.name: getattr(plan, item.name) for item in fields(plan) if item.name != "memory_estimate"}
    with (
        reported(listener, PassStarted(table.name, 1, 1, collection.n_samples, collection.nbytes)),
        resumable_output(current, saved, numbers, path, stored) as (writer, checkpoint),
        unchanged(collection),
    ):
        executor.check(partial(_read_one, collection, writer), plan.memory_estimate.total, listener)
        task: Any
        if isinstance(plan, Piecewise):
            task = ByFeatures(work=work, plan=plan, writer=writer)
            spans, threads, ahead = task.spans(plan.pieces), 1, 0
        else:
            task = BySamples(work=work, writer=writer, block_rows=plan.block_rows)
            spans, threads, ahead = plan.spans(collection.n_samples), plan.threads, plan.ahead
        written: Written = executor.fold(
            task, spans, Written.absorb, threads=threads, ahead=ahead, listener=listener, checkpoint=checkpoint
        )
    return float(written.totals[1])


def _read_one(collection: Collection, writer: Writer) -> None:
    """Read a sample on a worker; unpickling the writer checks there that the output can be written."""
    collection.read(slice(0, 1))


def _chunked(work: Projection, plan: Application | Piecewise, table: OutputArray) -> OutputArray:
    """Return the table with the chunks of a plan; assembled pictures keep the chunks of their lines."""
    if work.windows is not None:
        return table
    table = replace(table, chunk_rows=plan.chunk_rows)
    if isinstance(plan, Application) or not work.makes_images:
        return table
    box = tiling_of(work, plan).box
    return replace(table, cut=Cut((plan.chunk_rows, *box), (plan.block_rows, *box)))


def fits(work: Projection, budget: int) -> bool:
    """Return whether an output can be written within a budget in bytes; reads no sample."""
    try:
        planned(work, "", budget, workers=1)
    except BudgetError:
        return False
    return True


def planned(work: Projection, path: str, memory: int | None, workers: int) -> Application | Piecewise:
    """Plan the blocks or pieces in which an output is written; pictures are assembled from whole windows only."""
    if work.windows is not None:
        return _plan_blocks(work, memory)
    threads = 1 if _ending(path) in IN_ORDER or workers > 1 or work.subspace.device else machine.cores()
    try:
        return _plan_blocks(work, memory, threads, workers)
    except BudgetError:  # the components do not fit in memory beside a sample
        if not work.subspace.works_by_parts:
            raise
        pieces = work.plan(memory)
    if workers == 1:
        return pieces
    # Each worker reads the components once for each run of samples: no run may be longer than a worker's share.
    unit, share = pieces.block_rows or pieces.chunk_rows, -(-work.collection.n_samples // workers)
    rows = min(pieces.scored_rows, -(-share // unit) * unit)
    return replace(pieces, scored_rows=rows, panel_rows=min(pieces.panel_rows, rows), pieces=SPANS_A_WORKER * workers)


def _plan_blocks(work: Projection, memory: int | None, threads: int = 1, workers: int = 1) -> Application:
    """Plan blocks of whole samples, with all components in memory."""
    components, problem = work.subspace.components, work.sizes()
    shape = work.frame.sample_shape if work.makes_images else (work.subspace.n_scores,)
    if work.windows is not None:
        problem = replace(problem, scratch_bytes=problem.scratch_bytes + work.windows.open_bytes)
    if work.subspace.missing == "em" and problem.kind == "f":
        p, k = work.subspace.n_features, len(components)
        scratch = problem.scratch_bytes + least_squares_bytes(p, k)
        problem = replace(problem, scratch_bytes=scratch, prepared_bytes=problem.prepared_bytes + p)
    return plan_application(
        problem=problem,
        components_shape=(len(components), work.subspace.n_features),
        component_itemsize=components.dtype.itemsize,
        out_bytes=math.prod(shape) * work.dtype.itemsize,
        memory=memory,
        threads=threads,
        ahead=1,
        workers=workers,
    )
