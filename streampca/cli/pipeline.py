"""One run from its first check to its last output: open, plan, fit or load, transform, reconstruct, copy, report.

Public functions of the package do the work. A run adds their order, a directory, and checks before the first output
that the later ones are possible.
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
from ..execution.checkpoint import clear_finished, folder_beside
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

# Fields of a `Run` for stages on an executor that exists already, and for stages that fit no model.
NOTHING_SHARED: dict[str, Any] = {"workers": None, "cluster_options": None, "worker_memory": None, "dashboard": False}
NOT_FITTED: dict[str, Any] = {"part": None, "scratch": None, "reuse": False}


@dataclass
class Result:
    """Outcome of a run.

    Attributes
    ----------
    model : Model or None
        The model fitted or applied.
    plan : Plan or None
        Plan of the fit, if there was one.
    written : list of str
        Paths of the outputs, in the order of writing.
    compression : Compression or None
        Rates and errors of images that were reconstructed from samples.
    graph : NeighborGraph or None
        Graph of nearest neighbours, if one was made.
    """

    model: Model | None
    plan: Plan | None = None
    written: list[str] = field(default_factory=list)
    compression: Compression | None = None
    graph: NeighborGraph | None = None


# -- arguments of public functions, made from a run


def opening_of(config: CollectionSection) -> OpeningOptions:
    """Return a run's options of `open_collection`."""
    options = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in COLUMNS}
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
    """Return the preparation of a run, with mask and scale read from their files."""
    memory, mask, scale = parse_bytes(run.run.memory), run.prepare.mask, run.prepare.scale
    arrays = {
        "mask": mask if mask in (None, "valid") else read_mask(mask, memory),
        "scale": read_scale(scale, memory) if isinstance(scale, str) and scale != "area" else scale,
    }
    return streampca.Preparation(**vars(run.prepare) | arrays)


def columns_of(run: RunFile) -> dict[str, Any]:
    """Return the target and the weights of a run's samples."""
    return {name: getattr(run.collection, name) for name in COLUMNS}


def with_guessed_axes(run: RunFile) -> RunFile:
    """Return a run that names the axes of a sample, if these were guessed by their positions; reads headers."""
    if run.collection.sample_axes is not None:
        return run
    try:
        guessed = open_run(run.collection).guessed_axes
    except StreampcaError:  # carrying out the run raises it again
        return run
    return run if guessed is None else replace(run, collection=replace(run.collection, sample_axes=[*guessed.sample]))


def checkpoint_beside(run: RunFile, output: str | None) -> str | None:
    """Return the folder of an output's checkpoints, beside the output."""
    return folder_beside(output) if output and run.run.checkpoint else None


# -- runs


def execute(run: RunFile, listener: Listener = silent) -> Result:
    """Carry out a run.

    Parameters
    ----------
    run : RunFile
        The run. Existing outputs are refused before anything is computed, except those that the same run left in its
        directory, which are reused.
    listener : callable
        Called with each event.

    Returns
    -------
    Result
        Model, plan and paths of the outputs.

    Raises
    ------
    StreampcaError
        In one line; outputs that were finished before stay.
    """
    outputs = OutputPaths.of(run)
    check_together(run)
    if run.follow.enabled:
        return _follow(run, outputs, listener)
    with ExitStack() as stack:
        for path in outputs.claimed:
            stack.enter_context(output_lock(path))
        try:
            return _execute_locked(run, outputs, listener)
        except Stopped as error:
            if outputs.directory and any(map(os.path.lexists, outputs.files)):
                error.exit_code = RESUMABLE  # the same command reuses the complete outputs of the directory
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
    unusable = [f"{name}.{key}" for name, keys in sections.items() for key in sorted(keys)]
    unusable += ["model.kind"] * (run.model.kind != "pca")
    if unusable:
        what = "a model is applied" if subject == "apply" else f"{run.update.model} is updated"
        raise ConfigError(f"{unusable[0]} is given, and {what} as it was fitted ({subject}); leave it out.")


def _execute_locked(run: RunFile, outputs: OutputPaths, listener: Listener) -> Result:
    """Carry out a run whose outputs are locked; see `execute`."""
    for path in outputs.files:
        recover(path.rstrip("/"))
        clear_finished(path)
    job = _open(run, outputs, listener)
    record = Record(outputs.directory, run, outputs.recorded)
    may_reuse = job.may_reuse
    if may_reuse:
        outputs = job.outputs = _without_reused(outputs, record)
    outputs.check(overwrite=run.run.overwrite, model=not may_reuse and not (run.update.model and job.is_in_place))
    with recorded(outputs.directory, listener) if outputs.directory else nullcontext(listener) as events, job.stack:
        job.listener = events
        for item in job.raw.skipped:
            events(FileSkipped(*item))
        if not may_reuse:
            _check_feasible(job)
            if not any(map(os.path.lexists, outputs.files)):
                record.start()  # an existing record describes the existing outputs until the first is replaced
        result = _fit(job) if job.applied is None and outputs.need_model else Result(job.applied)
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
    """Return the outputs without those that an earlier run made with the existing model."""
    try:
        earlier = streampca.load_model(str(outputs.model), components=False)
    except ModelError:  # it is unfinished, and will be fitted anew
        return outputs
    return outputs.without(record.reusable(earlier.provenance))


def foresee(run: RunFile) -> Iterator[tuple[str, str]]:
    """Yield a description of a run, as headings and texts; reads headers only.

    Raises
    ------
    StreampcaError
        As `execute`, if the run itself, its plan or its outputs are wrong.
    """
    outputs = OutputPaths.of(run)
    check_together(run)
    if outputs.directory is None:  # outputs in a run directory may be reused
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
    """Plan a run's fit; `others` are options of `plan`, such as the shape of data that do not exist yet."""
    # Plans of commands count on an output, to which components larger than memory can be written.
    written = run.how(output=run.output.model or run.output.directory or "model.zarr")
    options: dict[str, Any] = {**columns_of(run), **opening_of(run.collection), **others, "run": written}
    source = None if "shape" in others else run.collection.source
    return streampca.plan(source, run.model, preparation=preparation_of(run), **options)


def plan_of_graph(run: RunFile) -> Any:
    """Plan the graph of a run's collection; reads headers only."""
    options: dict[str, Any] = {**vars(run.neighbors), **opening_of(run.collection), "memory": run.run.memory}
    return streampca.plan_neighbors(run.collection.source, preparation=preparation_of(run), **options)


def _follow(run: RunFile, outputs: OutputPaths, listener: Listener) -> Result:
    """Keep a model up to date while its source is being written."""
    others = {
        "apply": run.apply, "model.kind": run.model.kind != "pca", "update.model": run.update.model,
        "run.part": run.run.part, "run.workers": run.run.workers, "run.cluster": run.run.cluster,
        **{f"collection.{name}": value for name, value in columns_of(run).items()},
        **{f"output.{name}": getattr(outputs, name)
           for name in ("scores", "images", "report", "collection", "graph", "directory")},
    }  # fmt: skip
    unusable = [name for name, value in others.items() if value]
    if unusable:
        raise RequestError(
            f"{unusable[0]}: following a source only writes a model, in this process; leave it out, and apply the "
            "stored model at any time."
        )
    assert outputs.model is not None  # noqa: S101 - it is the only output left, and a run without any is refused
    follow = run.follow
    plans = list[Any]()
    model = streampca.follow(
        run.collection.source,
        run.model,
        pace=streampca.Pace(follow.settle, follow.interval, follow.until, follow.idle),
        preparation=preparation_of(run),
        output=outputs.model,
        memory=run.run.memory,
        listener=_noting_plans(listener, plans),
        **opening_of(run.collection),
    )
    return Result(model, plans[0] if plans else None, [outputs.model])


def _noting_plans(listener: Listener, plans: list[Any]) -> Listener:
    """Return a listener that adds the plans of a fit to a list, and passes all events on."""

    def note(event: Event) -> None:
        if isinstance(event, Planned):
            plans.append(event.plan)
        listener(event)

    return note


@dataclass
class _Job:
    """An opened run, its outputs, and the model that it applies."""

    run: RunFile
    outputs: OutputPaths
    raw: Collection
    listener: Listener
    applied: Model | None
    stack: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def preparation(self) -> Preparation:
        """Preparation, whose files are read once."""
        return preparation_of(self.run)

    @property
    def is_in_place(self) -> bool:
        """True if the output is the model that is updated, which is then replaced."""
        updated, path = self.run.update.model, self.outputs.model
        return updated is not None and path is not None and os.path.realpath(updated) == os.path.realpath(path)

    @property
    def may_reuse(self) -> bool:
        """True if the directory has a model, which may be that of an earlier run of the same request."""
        run, path = self.run, self.outputs.model
        is_replaced = run.apply or run.update.model or run.run.overwrite
        return not is_replaced and bool(self.outputs.directory and path and os.path.lexists(path))

    @property
    def applied_outputs(self) -> AppliedOutputs:
        """Outputs that apply the model."""
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
        """Executor of all stages that workers share; its cluster lasts to the end of the run."""
        cluster, budget = cluster_of(self.run.how()), parse_bytes(self.run.run.memory)
        if cluster is None:
            return None
        return self.stack.enter_context(executing(cluster, budget, listener=self.listener))

    def stage(self, output: str | None, **others: Any) -> Run:
        """Return the `Run` of the stage that writes an output."""
        shared = {} if self.cluster is None else {**NOTHING_SHARED, "cluster": self.cluster}
        checkpoint = checkpoint_beside(self.run, output)
        return self.run.how(**shared, output=output, checkpoint=checkpoint, listener=self.listener, **others)

    def local_stage(self, path: str, **others: Any) -> Run:
        """Return the `Run` of a graph or a report, which is made in this process, also if workers fit the model."""
        alone = {**NOTHING_SHARED, **NOT_FITTED, "cluster": None}
        checkpoint = checkpoint_beside(self.run, path)
        return self.run.how(**{**alone, "checkpoint": checkpoint, "listener": self.listener, **others})

    def applying(self, output: str) -> dict[str, Any]:
        """Return the options of a model's methods that write an output."""
        options = {name: getattr(self.run.output, name) for name in ("whiten", "missing")}
        return {**options, "run": replace(self.stage(output), output=None, **NOT_FITTED)}


def _open(run: RunFile, outputs: OutputPaths, listener: Listener) -> _Job:
    """Open the model to apply or update, if there is one, and the collection with the model's options of opening."""
    path = run.apply or run.update.model
    try:
        model = streampca.load_model(path, memory=run.run.memory, components=path == run.apply) if path else None
    except ModelError:
        open_run(run.collection)  # a source given in the model's place is the likelier mistake: its error comes first
        raise
    raw = open_run(run.collection, listing=outputs.listing(run), like=model, listener=listener)
    return _Job(run, outputs, raw, listener, model if run.apply else None)


def _check_feasible(job: _Job) -> None:
    """Refuse outputs that memory or disk does not allow, before any is replaced."""
    run, outputs = job.run, job.outputs
    if job.applied is not None:
        foresee_applying(job.applied, job.raw, job.applied_outputs)
    elif run.update.model is None and outputs.need_model:
        if any((outputs.scores, outputs.images, outputs.collection, outputs.report)):
            foresee_fit(job.raw, run.model, job.applied_outputs, **columns_of(run), preparation=job.preparation)
    elif outputs.graph and not outputs.need_model:
        search = {**vars(run.neighbors), "memory": run.run.memory}
        streampca.plan_neighbors(job.raw, preparation=job.preparation, **search)


def _fit(job: _Job) -> Result:
    """Fit or update a model, and write it if there is an output for it."""
    run, path, plans = job.run, job.outputs.model, list[Any]()
    listener = _noting_plans(job.listener, plans)
    if run.update.model is None:
        stage = replace(job.stage(path, reuse=job.may_reuse), listener=listener)
        model = streampca.fit(job.raw, run.model, **columns_of(run), preparation=job.preparation, run=stage)
    else:
        changes = {name: getattr(run.model, name) for name in run.given.get("model", ()) if name != "kind"}
        if changes.get("n_components", "") is None:  # all components, which `update` calls "all"
            changes["n_components"] = "all"
        model = streampca.update(
            run.update.model,
            job.raw,
            approximate=run.update.approximate,
            sample_weight=run.collection.sample_weight,
            run=replace(job.stage(path), listener=listener),
            **changes,
        )
    if job.outputs.apply_model:
        if path is not None:  # outputs name the model by its path, and the memory of a large one is free for them
            del model
            model = streampca.load_model(path, memory=run.run.memory)
        if isinstance(model, streampca.PCAModel):
            model = model.without_statistic()  # and that of the p x p statistic
    return Result(model, plans[0] if plans else None)


def _write(job: _Job, result: Result, note: Callable[[str], None]) -> None:
    """Write the copy of the run's collection, and scores, images, graph and report of it."""
    run, outputs = job.run, job.outputs
    if outputs.collection:
        stage = replace(job.stage(outputs.collection), **NOT_FITTED)
        streampca.copy(job.raw, preparation=job.preparation, run=stage)
        note(outputs.collection)
    if result.model is not None and outputs.apply_model:
        _apply(job, result, result.model, note)
    if outputs.graph:
        scores = OutputPaths.of(run).scores  # `outputs` lacks scores that are reused
        source = job.raw if scores is None else scores
        preparation = job.preparation if scores is None else None
        stage = job.local_stage(outputs.graph, output=outputs.graph)
        result.graph = streampca.neighbors(source, **vars(run.neighbors), preparation=preparation, run=stage)
        note(outputs.graph)


def _apply(job: _Job, result: Result, model: Model, note: Callable[[str], None]) -> None:
    """Write scores, images and the report of the run's collection."""
    outputs, output = job.outputs, job.run.output
    if job.applied is None:  # `_check_feasible` knew only the fewest components that a rule may count
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
            run=job.local_stage(outputs.report, overwrite=True),
        )
