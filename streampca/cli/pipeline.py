"""One run from its first check to its last output: open, plan, fit or load, save, transform, reconstruct, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RESUMABLE, ModelError, RequestError, Stopped
from ..events import Event, FileSkipped, Listener, Planned, Warned, silent
from ..execution import Executor
from ..execution.checkpoint import FOLDER, Checkpointing, clear_finished
from ..execution.executor import executing
from ..fitting.fit import Place, fit_collection
from ..fitting.follow import Pace, follow_source
from ..fitting.open_fit import Opened, drop_misfit_images, open_fit, prepare
from ..fitting.update import is_in_place, load_to_update, update_model
from ..models.compression import Compression
from ..models.pca import PCAModel, load_model
from ..models.store import are_held
from ..models.transform import check_foreseen
from ..planning import Plan
from ..planning.blocks import part_of
from ..planning.embedding import EmbeddingRequest
from ..planning.neighbors import plan_neighbors
from ..planning.registry import MAPPING_KINDS
from ..preprocessing import Preparation, Prepared
from ..preprocessing.copy import copy_collection, foresee_copy
from ..preprocessing.sizes_for_planning import problem_of, problem_of_scores, this_machine
from ..readers import Collection, open_collection
from ..readers.target import check_target
from ..storage.components import StoredComponents
from ..storage.disk import expanded
from ..storage.free_space import check_free_spaces
from ..storage.locks import output_lock
from ..storage.outputs import UNCOMPRESSED, partial_bytes, recover
from ..units import parse_bytes
from .earlier_model import load_earlier
from .from_config import (
    cluster_of,
    embedding_of,
    neighbors_request_of,
    open_run,
    plan_embedding,
    plan_graph,
    plan_run,
    preparation_of,
    request_of,
    request_to_update,
)
from .options import Run
from .output_paths import OutputPaths
from .run_record import Record, recorded

# Manifolds (half of scipy) and reports are imported where a run asks for them: for most that is half of all imports.
if TYPE_CHECKING:
    from ..manifold.neighbor_graph import NeighborGraph


@dataclass
class Result:
    """Outcome of a run.

    Attributes
    ----------
    model : PCAModel or None
        The model fitted or applied.
    plan : Plan or None
        Of the fit, where there was one.
    written : list of str
        Paths, in the order in which they were written.
    compression : Compression or None
        Of the images, where these were reconstructed from samples.
    graph : NeighborGraph or None
        Graph of nearest neighbours, where one was made.
    """

    model: PCAModel | None
    plan: Plan | None = None
    written: list[str] = field(default_factory=list)
    compression: Compression | None = None
    graph: NeighborGraph | None = None


def execute(run: Run, listener: Listener = silent) -> Result:
    """Carry out a run.

    Parameters
    ----------
    run : Run
        The run; outputs that exist are refused before anything is computed, but for those that the same run left in
        its directory: they are used again.
    listener : callable
        Called with each event.

    Returns
    -------
    Result

    Raises
    ------
    StreampcaError
        One line saying what is wrong; outputs finished before stay.
    """
    outputs = OutputPaths.of(run)
    cluster_of(run)  # refuses settings of a cluster that do not go together
    _check_embedding(run)
    if run.follow.enabled:
        return _followed(run, outputs, listener)
    with ExitStack() as stack:
        for path in outputs.claimed:
            stack.enter_context(output_lock(path))
        try:
            return _carried_out(run, outputs, listener)
        except Stopped as error:
            if outputs.directory and any(map(os.path.lexists, outputs.files)):
                error.exit_code = RESUMABLE  # what is complete in the directory is used again
            raise


def _carried_out(run: Run, outputs: OutputPaths, listener: Listener) -> Result:
    """Carry out a run whose outputs no other process writes; see `execute`."""
    for path in outputs.files:
        recover(path.rstrip("/"))
        clear_finished(path)
    if run.model is None and run.fit.update is None:
        check_target(run.fit.target, request_of(run).kind)
    job = _open(run, outputs, listener)
    scores = outputs.scores
    record = Record(outputs.directory, run, outputs.recorded)
    earlier = _earlier(job)
    if earlier is not None:
        job.model = earlier
        outputs = job.outputs = outputs.without(record.reusable(earlier.provenance))
    outputs.check(overwrite=run.output.overwrite, model=earlier is None and not job.is_in_place)
    events_of_run = recorded(outputs.directory, listener) if outputs.directory else nullcontext(listener)
    with events_of_run as events, job.stack:
        job.listener = events
        if earlier is not None:
            events(Warned(f"{outputs.model} was fitted by an earlier run with the same options; it is used again."))
        for item in job.raw.skipped:
            events(FileSkipped(*item))
        _check_feasible(job)
        if earlier is not None or not any(map(os.path.lexists, outputs.files)):
            record.start()  # else the record is of the outputs there, until the first of them is replaced
        result = _fitted(job) if job.model is None and outputs.need_model else Result(job.model)
        provenance = None if result.model is None else result.model.provenance

        def note(path: str) -> None:
            result.written.append(path)
            record.note(path, provenance)

        if job.model is None and outputs.model:
            note(outputs.model)
        if outputs.collection:
            copy_collection(
                job.collection,
                outputs.collection,
                memory=run.fit.memory,
                overwrite=run.output.overwrite,
                executor=job.executor,
                listener=events,
            )
            note(outputs.collection)
        if result.model is not None:
            _apply(job, result, result.model, note)
        if outputs.graph:
            result.graph = _graph(job, outputs.graph, scores)
            note(outputs.graph)
        if summary := record.note(None, provenance):
            result.written.append(summary)
        return result


def foresee(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what a run would do, as headings and texts; reads headers and refuses what `execute` refuses at once.

    Raises
    ------
    StreampcaError
        As `execute`, for what is wrong with the run itself, its plan or its outputs.
    """
    outputs = OutputPaths.of(run)
    cluster_of(run)
    _check_embedding(run)
    if outputs.directory is None:  # what stands in a run directory may be used again
        outputs.check(overwrite=run.output.overwrite, model=run.fit.update is None)
    if run.embed.kind is not None:
        yield from plan_embedding(run).lines()
    elif run.model is None and run.fit.update is None and outputs.need_model:
        yield from plan_run(run, measured=False).lines()
    else:
        yield "collection", open_run(run.collection).facts()["samples"]
        yield from ((word, path) for word, path in (("model", run.model), ("updating", run.fit.update)) if path)
    if outputs.graph and not outputs.need_model:
        yield from plan_graph(run).lines()
    written = [*outputs.files, *filter(None, (outputs.report,))]
    for index, path in enumerate(written):
        yield "" if index else "writes", path


def _check_embedding(run: Run) -> None:
    """Refuse what a run that embeds has no use for."""
    if run.embed.kind is None:
        given = [f"embed.{name}" for name in run.embed.model_fields_set]
        if given:
            raise RequestError(f"{given[0]} is an option of embeddings; give embed.kind with it, or leave it out.")
        return
    others = [f"fit.{name}" for name in run.fit.model_fields_set if name not in ("memory", "missing")]
    others += ["model"] * (run.model is not None) + ["follow.enabled"] * run.follow.enabled
    if others:
        raise RequestError(f"{others[0]} does not go with an embedding (embed.kind); leave one of the two out.")


def _followed(run: Run, outputs: OutputPaths, listener: Listener) -> Result:
    """Keep a model up to date while its source is being written."""
    fit, path = run.fit, outputs.model
    others = {
        "model": run.model, "fit.kind": fit.kind != "pca", "fit.target": fit.target, "fit.update": fit.update,
        "fit.part": fit.part, "fit.sample_weight": fit.sample_weight,
        "execution": run.execution.kind != "local", "output.scores": outputs.scores, "output.images": outputs.images,
        "output.report": outputs.report, "output.collection": outputs.collection, "output.graph": outputs.graph,
        "output.directory": outputs.directory,
    }  # fmt: skip
    given = [name for name, value in others.items() if value]
    if given or path is None:
        raise RequestError(
            f"{given[0] if given else 'output.model'}: following a source only writes a model, in this process; "
            "leave it out, and apply the stored model at any time."
        )
    plans: list[Plan] = []

    def listen(event: Event) -> None:
        if isinstance(event, Planned):
            plans.append(event.plan)
        listener(event)

    follow = run.follow
    idle = None if follow.idle is None else float(follow.idle)
    pace = Pace(float(follow.settle), float(follow.interval), follow.until, idle)
    preparation = preparation_of(run.prepare, run.fit)
    model = follow_source(partial(open_run, run.collection), path, request_of(run), preparation, pace, listen)
    return Result(model.without_statistic(), plans[0] if plans else None, [path])


@dataclass
class _Job:
    """An opened run; data are read for its preparation and weights once, and only if these are needed."""

    run: Run
    outputs: OutputPaths
    raw: Collection
    preparation: Preparation
    listener: Listener
    model: PCAModel | None
    updated: PCAModel | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def collection(self) -> Prepared:
        """The run's collection, prepared."""
        if self.fits:
            return self.opened.collection
        memory = parse_bytes(self.run.fit.memory)
        return prepare(self.raw, self.preparation, self.listener, memory=memory, missing=self.run.fit.missing)

    @property
    def fits(self) -> bool:
        """True where a model is fitted to the collection from the start."""
        is_given = self.model is not None or self.updated is not None or self.run.embed.kind is not None
        return self.outputs.need_model and not is_given

    @cached_property
    def opened(self) -> Opened:
        """The inputs of the run's fit, opened once."""
        fit = self.run.fit
        return open_fit(
            self.raw,
            request_of(self.run),
            self.preparation,
            sample_weight=fit.sample_weight,
            target=fit.target,
            shared=self.run.execution.kind != "local",
            listener=self.listener,
        )

    @property
    def samples(self) -> Collection:
        """Raw samples that the model is applied to; after a fit, those that it was fitted to."""
        return self.raw if self.run.model else self.collection.raw

    @cached_property
    def executor(self) -> Executor:
        """Executor of the fit and of applying the model; a cluster lasts from its first use to the end of the run."""
        budget = parse_bytes(self.run.fit.memory)
        return self.stack.enter_context(executing(cluster_of(self.run), budget, listener=self.listener))

    @property
    def is_in_place(self) -> bool:
        """True where the model that is updated is replaced."""
        return (
            self.updated is not None
            and self.outputs.model is not None
            and is_in_place(self.outputs.model, self.updated)
        )

    def checkpoint(self, output: str | None) -> Checkpointing | None:
        """Return where and how often an output's checkpoints are saved: in a folder beside it."""
        how = self.run.checkpoint
        if not output or not how.enabled:
            return None
        return Checkpointing(output.rstrip("/") + FOLDER, how.every, how.require_same_bits)


def _open(run: Run, outputs: OutputPaths, listener: Listener) -> _Job:
    """Open the model to apply, if there is one, and the collection as it takes it."""
    try:
        model = load_model(run.model, memory=run.fit.memory) if run.model else None
        updated = load_to_update(run.fit.update, run.fit.memory) if run.fit.update else None
    except ModelError:
        open_run(run.collection)  # a problem of the source is said first: it may stand in the model's place
        raise
    raw = open_run(run.collection, listing=outputs.listing(run), like=model or updated, listener=listener)
    preparation = preparation_of(run.prepare, run.fit) if updated is None else _preparation_of(updated, run)
    if model is None and updated is None:
        raw = drop_misfit_images(raw, preparation)
    return _Job(run, outputs, raw, preparation, listener, model, updated)


def _preparation_of(updated: PCAModel, run: Run) -> Preparation:
    """Return the preparation of a model to update; a run that gives one, or a part, asks for two things."""
    given = [f"prepare.{name}" for name in run.prepare.model_fields_set]
    if given or run.fit.part is not None:
        raise RequestError(
            f"{(given or ['fit.part'])[0]} is given, and {updated.name} is updated as it was fitted; leave it out, or "
            "fit without --update (fit.update)."
        )
    return updated.preparation


def _earlier(job: _Job) -> PCAModel | None:
    """Return the model that an earlier run of the same request left in the directory."""
    run, path = job.run, job.outputs.model
    is_made_anew = run.model or run.fit.update or run.output.overwrite
    if is_made_anew or not path or not job.outputs.directory or not os.path.lexists(path):
        return None
    opened = job.opened if job.fits else Opened(job.collection, request_of(run))
    return load_earlier(path, run, opened)


def _check_feasible(job: _Job) -> None:
    """Refuse outputs that memory or disk do not allow, before any is replaced."""
    run, outputs = job.run, job.outputs
    if outputs.collection:
        foresee_copy(job.collection, outputs.collection, memory=run.fit.memory, overwrite=run.output.overwrite)
    if job.model is not None:
        _check_images(job, job.model)
        _check_disk(job, job.model.n_scores, job.model.sample_shape, job.model.components.dtype.itemsize)
    if outputs.graph and not outputs.need_model:
        plan_neighbors(problem_of(job.collection), neighbors_request_of(run), job.collection.source)
    if outputs.graph and job.model is not None:
        _check_graph(job, job.model.n_scores)
    if outputs.report:
        from ..plot.report import check_room

        check_room(run.fit.memory, job.collection if job.model is None else job.model.prepared(job.samples))
    if job.model is None and job.updated is None and (outputs.scores or outputs.images):
        _check_applying(job)


def _check_images(job: _Job, model: PCAModel) -> None:
    """Refuse images that a model cannot make, before its scores are written."""
    output = job.run.output
    if not job.outputs.images:
        return
    collection = model.check_reconstruction(
        job.samples, n_components=output.n_components, residual=output.residual, whole=output.whole
    )
    if job.outputs.scores:
        check_foreseen(
            collection,
            model.frame,
            output.n_components or model.n_components,
            dtype=model.components.dtype,
            stored=isinstance(model.components, StoredComponents),
            makes_images=True,
            residual=output.residual,
            whole=output.whole,
            memory=job.run.fit.memory,
        )


def _check_applying(job: _Job) -> None:
    """Refuse scores and images that the components to be fitted leave no memory for, before the fit reads data."""
    run, output, collection = job.run, job.run.output, job.collection
    request = request_of(run)
    if run.embed.kind is not None:
        if job.outputs.images:
            raise RequestError(f"output.images: kind {run.embed.kind!r} makes no images; leave it out.")
        return
    if job.outputs.images and (request.kind in MAPPING_KINDS or request.metric != "euclidean"):
        what = f"metric {request.metric!r}" if request.metric != "euclidean" else f"kind {request.kind!r}"
        raise RequestError(f"output.images: models of {what} write no images; leave it out.")
    plan = job.opened.plan()
    k, dtype = plan.fewest_components, np.dtype(f"f{plan.component_itemsize}")
    nbytes = dtype.itemsize * k * prod(collection.sample_shape)
    stored = plan.stored or (job.outputs.model is not None and not are_held(nbytes, plan.memory))
    _check_disk(job, k, collection.sample_shape, dtype.itemsize)
    check = partial(check_foreseen, dtype=dtype, stored=stored, memory=run.fit.memory)
    if job.outputs.scores:
        check(collection, collection.frame, k, makes_images=False)
    if job.outputs.graph:
        _check_graph(job, k)
    if job.outputs.images:
        most = k if isinstance(plan.request.n_components, int) else plan.problem.most_components
        if (output.n_components or 1) > most:
            raise RequestError(
                f"output.n_components {output.n_components} is more than the {most} components that are fitted; "
                "give no more."
            )
        made, count = Prepared(job.samples, collection.preparation.unnormalized), min(k, output.n_components or k)
        check(made, collection.frame, count, makes_images=True, residual=output.residual, whole=output.whole)


def _check_disk(job: _Job, k: int, sample_shape: tuple[int, ...], itemsize: int) -> None:
    """Refuse scores and images that the disk has no space for together, before the first of them: uncompressed ones."""
    # Pictures put together of windows are smaller than all windows, and refused when they are opened.
    images = None if job.run.output.whole else job.outputs.images
    values = {job.outputs.scores: k, images: prod(sample_shape)}
    check_free_spaces(
        {
            path: job.raw.n_samples * count * itemsize - partial_bytes(path)
            for path, count in values.items()
            if path is not None and path.lower().endswith(UNCOMPRESSED)
        }
    )


def _check_graph(job: _Job, k: int) -> None:
    """Refuse a graph of the scores of k components that does not fit, before they are written."""
    plan_neighbors(problem_of_scores(job.raw, k), neighbors_request_of(job.run), str(job.outputs.scores))


def _embedded(job: _Job, request: EmbeddingRequest) -> Result:
    """Embed the collection, and write the model where an output is given."""
    from ..fitting.embed import embed_collection

    path = job.outputs.model
    model = embed_collection(
        job.collection,
        request,
        actions=job.run.embed.actions,
        graph=job.run.embed.graph,
        missing=job.run.fit.missing,
        place=Place(path, job.run.output.overwrite) if path else None,
        executor=job.executor,
        checkpoint=job.checkpoint(path),
        listener=job.listener,
    )
    return Result(model)


def _fitted(job: _Job) -> Result:
    """Fit a model, and write it where an output is given."""
    run, path = job.run, job.outputs.model
    if (embedding := embedding_of(run)) is not None:
        return _embedded(job, embedding)
    plans: list[Plan] = []

    def listen(event: Event) -> None:
        if isinstance(event, Planned):
            plans.append(event.plan)
        job.listener(event)

    overwrite = run.output.overwrite or job.is_in_place
    place = Place(path, overwrite) if path else None
    how: dict[str, Any] = {"place": place, "executor": job.executor, "checkpoint": job.checkpoint(path)}
    if job.updated is None:
        model = fit_collection(job.opened, part=part_of(run.fit.part), listener=listen, **how)
    else:
        model = update_model(
            job.updated,
            job.raw,
            request_to_update(job.updated, run),
            approximate=run.fit.approximate,
            sample_weight=run.fit.sample_weight,
            listener=listen,
            **how,
        )
        job.updated = None  # its statistic is the model's, or is not needed any more
    budget, _ = this_machine().budget(parse_bytes(run.fit.memory))
    if path and not are_held(model.components.nbytes, budget):
        model = load_model(path, memory=run.fit.memory)  # leaves memory to what follows
    found = model.without_statistic()
    # Outputs name the model that they are of: by its path, as where the run is resumed and loads it.
    return Result(replace(found, name=expanded(path)) if path else found, plans[0])


def _apply(job: _Job, result: Result, model: PCAModel, note: Callable[[str], None]) -> None:
    """Write scores, images and the report of the run's collection."""
    run, outputs, output = job.run, job.outputs, job.run.output
    if result.plan:  # the number of components is known only now
        _check_images(job, model)
    if outputs.scores:
        model.write_scores(
            job.samples,
            outputs.scores,
            whiten=output.whiten,
            missing=output.missing,
            memory=run.fit.memory,
            overwrite=output.overwrite,
            checkpoint=job.checkpoint(outputs.scores),
            cluster=job.executor,
            listener=job.listener,
        )
        note(outputs.scores)
    if outputs.images:
        result.compression = model.write_reconstruction(
            job.samples,
            outputs.images,
            n_components=output.n_components,
            residual=output.residual,
            whole=output.whole,
            whiten=output.whiten,
            missing=output.missing,
            memory=run.fit.memory,
            overwrite=output.overwrite,
            checkpoint=job.checkpoint(outputs.images),
            cluster=job.executor,
            listener=job.listener,
        )
        note(outputs.images)
    if outputs.report:
        from ..plot.report import write_report

        result.written += write_report(
            model,
            outputs.report,
            collection=job.samples,
            pictures=outputs.pictures,
            memory=run.fit.memory,
            overwrite=True,
            listener=job.listener,
        )


def _graph(job: _Job, path: str, scores: str | None) -> NeighborGraph:
    """Write the graph of nearest neighbours of the run's scores, or else of its collection."""
    from ..fitting.neighbors import graph_of

    run = job.run
    return graph_of(
        job.collection if scores is None else prepare(open_collection(scores), None),
        neighbors_request_of(run),
        output=path,
        overwrite=run.output.overwrite,
        checkpoint=job.checkpoint(path),
        listener=job.listener,
    )
