"""One run from its first check to its last output: open, plan, fit or load, transform, reconstruct, copy, report.

Everything is done by public functions of the package; what a run adds is their order, a directory, and refusing before
the first output what a later one could not do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import streampca

from ..errors import RESUMABLE, ConfigError, ModelError, RequestError, Stopped, StreampcaError
from ..events import Event, FileSkipped, Listener, Planned, silent
from ..execution.checkpoint import FOLDER, clear_finished
from ..execution.executor import cluster_of, executing
from ..fitting.foresee_outputs import AppliedOutputs, foresee_applying, foresee_fit
from ..kinds.run import Run
from ..preprocessing.mask_files import read_mask, read_scale
from ..storage.locks import output_lock
from ..storage.outputs import recover
from ..units import parse_bytes
from .output_paths import OutputPaths
from .run_file import RunFile
from .run_record import Record, recorded
from .sections import COLUMNS, CollectionSection

if TYPE_CHECKING:
    from .. import Collection, Model, NeighborGraph, PCAModel, Plan, Preparation
    from ..kinds.opening import OpeningOptions
    from ..models.compression import Compression

NOTHING_SHARED: dict[str, Any] = {
    "workers": None,
    "cluster_options": None,
    "worker_memory": None,
    "dashboard": False,
}  # fmt: skip - of a run on an executor that is there

NOT_FITTED: dict[str, Any] = {"part": None, "scratch": None, "reuse": False}  # of a run that fits nothing


@dataclass
class Result:
    """Outcome of a run.

    Attributes
    ----------
    model : Model or None
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

    model: Model | None
    plan: Plan | None = None
    written: list[str] = field(default_factory=list)
    compression: Compression | None = None
    graph: NeighborGraph | None = None


# -- the values that public functions take


def opening_of(config: CollectionSection) -> OpeningOptions:
    """Return the options of `open_collection` that a run gives."""
    options = {item.name: getattr(config, item.name) for item in fields(config) if item.name not in COLUMNS}
    del options["source"]
    for name in ("select", "sel"):
        ranges = {
            axis: slice(*item) if isinstance(item, tuple) else item for axis, item in (options[name] or {}).items()
        }
        options[name] = ranges or None
    options["samples"] = None if config.samples is None else slice(*config.samples)
    return cast("OpeningOptions", options)


def open_run(
    config: CollectionSection, *, listing: str | None = None, like: Any = None, listener: Listener = silent
) -> Collection:
    """Open the collection of a run; `listing` and `like` are as for `open_collection`."""
    options: OpeningOptions = {**opening_of(config), "listing": listing}
    return streampca.open_collection(config.source, **options, like=like, listener=listener)


def preparation_of(run: RunFile) -> Preparation:
    """Return the preparation of a run; reads the files of mask and scale."""
    steps, memory = vars(run.prepare), parse_bytes(run.run.memory)
    mask, scale = run.prepare.mask, run.prepare.scale
    return streampca.Preparation(
        **steps
        | {
            "mask": mask if mask in (None, "valid") else read_mask(mask, memory),
            "scale": read_scale(scale, memory) if isinstance(scale, str) and scale != "area" else scale,
        }
    )


def columns_of(run: RunFile) -> dict[str, Any]:
    """Return the target and the weights of a run's samples."""
    return {name: getattr(run.collection, name) for name in COLUMNS}


def with_guessed_axes(run: RunFile) -> RunFile:
    """Return a run that says which axes make one sample, where their positions alone would decide; reads headers."""
    if run.collection.sample_axes is not None:
        return run
    try:
        guessed = open_run(run.collection).guessed_axes
    except StreampcaError:  # which is said where the run is carried out
        return run
    return run if guessed is None else replace(run, collection=replace(run.collection, sample_axes=[*guessed.sample]))


def checkpoint_beside(run: RunFile, output: str | None) -> str | None:
    """Return the folder of an output's checkpoints, which is beside it."""
    return output.rstrip("/") + FOLDER if output and run.run.checkpoint else None


# -- runs


def execute(run: RunFile, listener: Listener = silent) -> Result:
    """Carry out a run.

    Parameters
    ----------
    run : RunFile
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
    check_together(run)
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


def check_together(run: RunFile) -> None:
    """Refuse keys of a run that do not go together."""
    cluster_of(run.how())
    subject = "apply" if run.apply is not None else "update.model" if run.update.model is not None else None
    if subject is None:
        if run.update.approximate:
            raise ConfigError("update.approximate (--approximate) is an option of updating; give update.model with it.")
        return
    sections = {"model": run.given.get("model", frozenset()), "prepare": run.given.get("prepare", frozenset())}
    if subject == "update.model":
        sections["model"] -= {"n_components", "half_life"}
        sections["run"] = frozenset(name for name in ("part", "scratch") if getattr(run.run, name) is not None)
    elif run.update.model is not None:
        sections["update"] = frozenset({"model"})
    given = [f"{name}.{key}" for name, keys in sections.items() for key in sorted(keys)]
    given += ["model.kind"] * (run.model.kind != "pca")
    if given:
        what = "a model is applied" if subject == "apply" else f"{run.update.model} is updated"
        raise ConfigError(f"{given[0]} is given, and {what} as it was fitted ({subject}); leave it out.")


def _carried_out(run: RunFile, outputs: OutputPaths, listener: Listener) -> Result:
    """Carry out a run whose outputs no other process writes; see `execute`."""
    for path in outputs.files:
        recover(path.rstrip("/"))
        clear_finished(path)
    job = _open(run, outputs, listener)
    record = Record(outputs.directory, run, outputs.recorded)
    may_reuse = job.may_reuse
    if may_reuse:
        outputs = job.outputs = _without_reused(outputs, record)
    outputs.check(overwrite=run.run.overwrite, model=not job.is_in_place and not may_reuse)
    with recorded(outputs.directory, listener) if outputs.directory else nullcontext(listener) as events, job.stack:
        job.listener = events
        for item in job.raw.skipped:
            events(FileSkipped(*item))
        if not may_reuse:
            _check_feasible(job)
            if not any(map(os.path.lexists, outputs.files)):
                record.start()  # else the record is of the outputs there, until the first of them is replaced
        result = _fitted(job) if job.applied is None and outputs.need_model else Result(job.applied)
        if may_reuse:
            record.start()
        provenance = None if result.model is None else result.model.provenance

        def note(path: str) -> None:
            result.written.append(path)
            record.note(path, provenance)

        if result.plan is not None and outputs.model:
            note(outputs.model)
        _write(job, result, note)
        if summary := record.note(None, provenance):
            result.written.append(summary)
        return result


def _without_reused(outputs: OutputPaths, record: Record) -> OutputPaths:
    """Return the outputs less those that the earlier run has made of the model that is there."""
    try:
        earlier = streampca.load_model(str(outputs.model), components=False)
    except ModelError:  # it is unfinished, and made anew
        return outputs
    return outputs.without(record.reusable(earlier.provenance))


def foresee(run: RunFile) -> Iterator[tuple[str, str]]:
    """Yield what a run would do, as headings and texts; reads headers and refuses what `execute` refuses at once.

    Raises
    ------
    StreampcaError
        As `execute`, for what is wrong with the run itself, its plan or its outputs.
    """
    outputs = OutputPaths.of(run)
    check_together(run)
    if outputs.directory is None:  # what stands in a run directory may be used again
        outputs.check(overwrite=run.run.overwrite, model=run.update.model is None)
    if run.apply is None and run.update.model is None and outputs.need_model:
        yield from plan_of(run).lines()
    else:
        yield "collection", open_run(run.collection).facts()["samples"]
        yield from ((word, path) for word, path in (("model", run.apply), ("updating", run.update.model)) if path)
    if outputs.graph and not outputs.need_model:
        yield from plan_of_graph(run).lines()
    written = [*outputs.files, *filter(None, (outputs.report,))]
    for index, path in enumerate(written):
        yield "" if index else "writes", path


def plan_of(run: RunFile, **others: Any) -> Any:
    """Plan a run's fit, whose model goes somewhere; `others` are options of `plan`, such as the shape of other data."""
    how = run.how(output=run.output.model or run.output.directory or "model.zarr")
    options: dict[str, Any] = {**columns_of(run), **opening_of(run.collection), **others, "run": how}
    source = None if "shape" in others else run.collection.source
    return streampca.plan(source, run.model, preparation=preparation_of(run), **options)


def plan_of_graph(run: RunFile) -> Any:
    """Plan the graph of a run's collection; reads headers only."""
    options: dict[str, Any] = {**vars(run.neighbors), **opening_of(run.collection), "memory": run.run.memory}
    return streampca.plan_neighbors(run.collection.source, preparation=preparation_of(run), **options)


def _followed(run: RunFile, outputs: OutputPaths, listener: Listener) -> Result:
    """Keep a model up to date while its source is being written."""
    others = {
        "apply": run.apply, "model.kind": run.model.kind != "pca", "update.model": run.update.model,
        "run.part": run.run.part, "run.workers": run.run.workers, "run.cluster": run.run.cluster,
        **{f"collection.{name}": value for name, value in columns_of(run).items()},
        **{f"output.{name}": getattr(outputs, name)
           for name in ("scores", "images", "report", "collection", "graph", "directory")},
    }  # fmt: skip
    given = [name for name, value in others.items() if value]
    if given or outputs.model is None:
        raise RequestError(
            f"{given[0] if given else 'output.model'}: following a source only writes a model, in this process; "
            "leave it out, and apply the stored model at any time."
        )
    follow = run.follow
    heard = _Heard(listener)
    model = streampca.follow(
        run.collection.source,
        run.model,
        pace=streampca.Pace(follow.settle, follow.interval, follow.until, follow.idle),
        preparation=preparation_of(run),
        output=outputs.model,
        memory=run.run.memory,
        listener=heard,
        **opening_of(run.collection),
    )
    return Result(_without_statistic(model), heard.plan, [outputs.model])


def _without_statistic(model: Model) -> Model:
    """Return a model without the p x p statistic, where it has one, whose memory is given back."""
    return model.without_statistic() if isinstance(model, streampca.PCAModel) else model


class _Heard:
    """A listener that keeps the first plan it is told of, and passes everything on."""

    def __init__(self, listener: Listener) -> None:
        self.plan: Any = None
        self._listener = listener

    def __call__(self, event: Event) -> None:
        if isinstance(event, Planned) and self.plan is None:
            self.plan = event.plan
        self._listener(event)


@dataclass
class _Job:
    """An opened run, and what it writes."""

    run: RunFile
    outputs: OutputPaths
    raw: Collection
    listener: Listener
    applied: Model | None
    stack: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def preparation(self) -> Preparation:
        """Steps before the model, with the arrays of their files."""
        return preparation_of(self.run)

    @property
    def is_in_place(self) -> bool:
        """True where the model that is updated is replaced."""
        updated, path = self.run.update.model, self.outputs.model
        return updated is not None and path is not None and os.path.realpath(updated) == os.path.realpath(path)

    @property
    def may_reuse(self) -> bool:
        """True where an earlier run of the same request may have left its model in the directory."""
        run, path = self.run, self.outputs.model
        is_made_anew = run.apply or run.update.model or run.run.overwrite
        return not is_made_anew and bool(self.outputs.directory and path and os.path.lexists(path))

    @property
    def applied_outputs(self) -> AppliedOutputs:
        """Outputs that the model is applied for."""
        outputs, output = self.outputs, self.run.output
        return AppliedOutputs(
            outputs.scores,
            outputs.images,
            outputs.collection,
            outputs.graph,
            has_report=outputs.report is not None,
            is_stored=outputs.model is not None,
            n_components=output.n_components,
            residual=output.residual,
            whole=output.whole,
            search=vars(self.run.neighbors),
            run=self.run.how(),
        )

    @cached_property
    def cluster(self) -> Any:
        """Executor of all stages, where workers share them: a cluster lasts to the end of the run."""
        wanted, budget = cluster_of(self.run.how()), parse_bytes(self.run.run.memory)
        if wanted is None:
            return None
        return self.stack.enter_context(executing(wanted, budget, listener=self.listener))

    def how(self, output: str | None, **others: Any) -> Run:
        """Return how one stage is carried out."""
        shared = {} if self.cluster is None else {**NOTHING_SHARED, "cluster": self.cluster}
        checkpoint = checkpoint_beside(self.run, output)
        return self.run.how(**shared, output=output, checkpoint=checkpoint, listener=self.listener, **others)

    def here(self, path: str, **others: Any) -> Run:
        """Return how a graph or a report is made: in this process, whoever fits the model."""
        unused = {**NOTHING_SHARED, **NOT_FITTED, "cluster": None}
        checkpoint = checkpoint_beside(self.run, path)
        return self.run.how(**{**unused, "checkpoint": checkpoint, "listener": self.listener, **others})

    def applying(self, output: str) -> dict[str, Any]:
        """Return the options of a model's methods that write an output."""
        own = {name: getattr(self.run.output, name) for name in ("whiten", "missing")}
        return {**own, "run": replace(self.how(output), output=None, **NOT_FITTED)}


def _open(run: RunFile, outputs: OutputPaths, listener: Listener) -> _Job:
    """Open the model to apply or to update, if there is one, and the collection as it takes it."""
    path = run.apply or run.update.model
    try:
        model = streampca.load_model(path, memory=run.run.memory, components=path == run.apply) if path else None
    except ModelError:
        open_run(run.collection)  # a problem of the source is said first: it may stand in the model's place
        raise
    raw = open_run(run.collection, listing=outputs.listing(run), like=model, listener=listener)
    return _Job(run, outputs, raw, listener, model if run.apply else None)


def _check_feasible(job: _Job) -> None:
    """Refuse outputs that memory or disk do not allow, before any is replaced."""
    run, outputs = job.run, job.outputs
    if job.applied is not None:
        foresee_applying(job.applied, job.raw, job.applied_outputs)
    elif run.update.model is None and outputs.need_model:
        if any((outputs.scores, outputs.images, outputs.collection, outputs.report)):
            foresee_fit(job.raw, run.model, job.applied_outputs, **columns_of(run), preparation=job.preparation)
    elif outputs.graph and not outputs.need_model:
        search = {**vars(run.neighbors), "memory": run.run.memory}
        streampca.plan_neighbors(job.raw, preparation=job.preparation, **search)


def _fitted(job: _Job) -> Result:
    """Fit or update a model, and write it where an output is given."""
    run, path = job.run, job.outputs.model
    heard = _Heard(job.listener)
    if run.update.model is None:
        how = replace(job.how(path, reuse=job.may_reuse), listener=heard)
        model = streampca.fit(job.raw, run.model, **columns_of(run), preparation=job.preparation, run=how)
    else:
        asked = {name: getattr(run.model, name) for name in run.given.get("model", ()) if name != "kind"}
        model = streampca.update(
            run.update.model,
            job.raw,
            approximate=run.update.approximate,
            sample_weight=run.collection.sample_weight,
            run=replace(job.how(path), listener=heard),
            **_updated(asked),
        )
    if path is not None:  # outputs name the model by its path; large components, and its statistic, are given back
        del model
        model = streampca.load_model(path, memory=run.run.memory)
    return Result(_without_statistic(model), heard.plan)


def _updated(asked: dict[str, Any]) -> dict[str, Any]:
    """Return options of `update`, where None is what the model was fitted with."""
    return {name: "all" if value is None and name == "n_components" else value for name, value in asked.items()}


def _write(job: _Job, result: Result, note: Callable[[str], None]) -> None:
    """Write the copy of the run's collection, and scores, images, graph and report of it."""
    run, outputs = job.run, job.outputs
    if outputs.collection:
        how = replace(job.how(outputs.collection), **NOT_FITTED)
        streampca.copy(job.raw, preparation=job.preparation, run=how)
        note(outputs.collection)
    if result.model is not None:
        _apply(job, result, result.model, note)
    if outputs.graph:
        scores = OutputPaths.of(run).scores  # also where they are used again
        source = job.raw if scores is None else scores
        preparation = job.preparation if scores is None else None
        how = job.here(outputs.graph, output=outputs.graph)
        result.graph = streampca.neighbors(source, **vars(run.neighbors), preparation=preparation, run=how)
        note(outputs.graph)


def _apply(job: _Job, result: Result, model: Model, note: Callable[[str], None]) -> None:
    """Write scores, images and the report of the run's collection."""
    outputs, output = job.outputs, job.run.output
    if job.applied is None:  # the number of components is known only now
        foresee_applying(model, job.raw, job.applied_outputs)
    if outputs.scores:
        model.write_scores(job.raw, outputs.scores, **job.applying(outputs.scores))
        note(outputs.scores)
    if outputs.images:
        result.compression = cast("PCAModel", model).write_reconstruction(  # others were refused
            job.raw,
            outputs.images,
            n_components=output.n_components,
            residual=output.residual,
            whole=output.whole,
            **job.applying(outputs.images),
        )
        note(outputs.images)
    if outputs.report:
        result.written += streampca.write_report(
            model,
            outputs.report,
            collection=job.raw,
            pictures=outputs.pictures,
            run=job.here(outputs.report, overwrite=True),
        )
