"""One run from its first check to its last output: open, plan, fit or load, transform, reconstruct, copy, report.

Public functions of the package do the work. A run adds their order, a directory, and checks before the first output
that the later ones are possible.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import streampca

from ..errors import RESUMABLE, ConfigError, ModelError, RequestError, Stopped, StreampcaError
from ..events import Event, FileSkipped, Kept, Listener, Planned, Warned, silent
from ..execution.checkpoint import clear_finished
from ..execution.executor import cluster_of, executing
from ..fitting.foresee_outputs import AppliedOutputs, foresee_applying, foresee_fit, foresee_model
from ..fitting.seen import samples_added
from ..kinds.run import Run
from ..readers.collection import digest, fingerprint_of
from ..storage.locks import output_lock
from ..storage.outputs import is_present, noting_outputs, recover
from ..units import parse_bytes
from .output_paths import OutputPaths
from .run_arguments import (
    checkpoint_beside,
    columns_of,
    open_run,
    opening_of,
    plan_of,
    plan_of_graph,
    preparation_of,
)
from .run_file import RunFile
from .run_record import DATA, MASK, MODEL, SCALE, Record, identity_of_model, recorded

if TYPE_CHECKING:
    from .. import Collection, Model, NeighborGraph, PCAModel, Plan, Preparation
    from ..models.compression import Compression

# Fields of a `Run` for stages on an executor that exists already, and for stages that fit no model.
NOTHING_SHARED: dict[str, Any] = {"workers": None, "cluster_options": None, "worker_memory": None, "dashboard": False}
NOT_FITTED: dict[str, Any] = {"part": None, "scratch": None, "reuse": False, "network": None}
NOT_MULTIPLIED: dict[str, Any] = {**NOT_FITTED, "device": None}  # ... and for those that multiply nothing
OF_THE_MODEL = ("scores", "images", "report")
UPDATED = ("n_components", "half_life")  # parameters that an update can change


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
    kept : list of str
        Paths of the outputs of earlier runs that are as this one would make them.
    compression : Compression or None
        Rates and errors of images that were reconstructed from samples.
    graph : NeighborGraph or None
        Graph of nearest neighbours, if one was made.
    """

    model: Model | None
    plan: Plan | None = None
    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    compression: Compression | None = None
    graph: NeighborGraph | None = None


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
            if outputs.directory and any(map(is_present, outputs.files)):
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
        sections["model"] -= {*UPDATED}
        sections["run"] = frozenset(
            name for name in ("part", "scratch", "device", "network") if getattr(run.run, name) is not None
        )
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
    outputs.check(job.may_replace, model=not (job.is_in_place or job.may_reuse))
    with recorded(job.record, listener) as events, noting_outputs(job.record.note), job.stack:
        job.listener = events
        for item in job.raw.skipped:
            events(FileSkipped(*item))
        if not job.may_reuse:
            _check_feasible(job)
        result = job.result = _fit(job) if job.applied is None and outputs.need_model else Result(job.applied)
        _write(job)
        if summary := job.record.complete():
            result.written.append(summary)
        return result


def foresee(run: RunFile) -> tuple[list[tuple[str, str]], StreampcaError | None]:
    """Return a description of a run, as headings and texts, and the first refusal; reads headers only.

    Raises
    ------
    StreampcaError
        As `execute`, if the run itself or its plan is wrong.
    """
    outputs = OutputPaths.of(run)
    check_together(run)
    facts: list[tuple[str, str]] = []
    if run.apply is None and run.update.model is None and outputs.need_model:
        facts += plan_of(run).lines()
    else:
        facts.append(("collection", open_run(run.collection).facts()["samples"]))
        facts += [(word, path) for word, path in (("model", run.apply), ("updating", run.update.model)) if path]
    if outputs.graph and not outputs.need_model:
        facts += plan_of_graph(run).lines()
    job, refusal = _open(run, outputs, silent), None
    for path in [*outputs.files, *filter(None, (outputs.report,))]:
        try:
            fate, why = _fate_of(job, path)
        except StreampcaError as error:
            fate, why, refusal = "refused", "", refusal or error
        facts.append((fate, path + (why and f": {why}")))
    try:
        if refusal is None and not job.may_reuse:
            _check_feasible(job)
    except StreampcaError as error:
        facts, refusal = [*facts, ("refused", "the outputs together")], error
    return facts, refusal


def _fate_of(job: _Job, path: str) -> tuple[str, str]:
    """Return what a run will do to an output, in words, and the reason where it replaces one.

    Raises
    ------
    StreampcaError
        As the run would, if it refuses the output.
    """
    run, outputs, may_replace = job.run, job.outputs, job.may_replace(path)
    if path == outputs.model and run.update.model is None and not job.has_grown:
        stage = replace(run.how(output=path, checkpoint=checkpoint_beside(run, path)), **job.reuse)
        fate = foresee_model(job.raw, run.model, stage, **columns_of(run), preparation=job.preparation)
        job.result.model = fate.model if fate.n_components is None else None
        return _in_words(path, stands=job.result.model is not None), fate.why
    is_updated = path == outputs.model and (job.is_in_place or job.has_grown)
    outputs.check_output(path, overwrite=may_replace or is_updated)
    if is_updated:
        return "to update", ""
    if run.run.overwrite or not job.record.is_own(path):
        return _in_words(path), ""
    name, model = outputs.name_of(path), job.applied or job.result.model
    if model is None and (name in OF_THE_MODEL or (name == "graph" and outputs.scores)):
        return _in_words(path), "it is of another model"
    settings = job.settings_of(name, model)
    return _in_words(path, stands=job.record.stands(path, settings)), job.change(path, settings)


def _in_words(path: str, *, stands: bool = False) -> str:
    return "stands" if stands else "to replace" if is_present(path) else "to write"


def _follow(run: RunFile, outputs: OutputPaths, listener: Listener) -> Result:
    """Keep a model up to date while its source is being written."""
    others = {
        "apply": run.apply, "model.kind": run.model.kind != "pca", "update.model": run.update.model,
        "run.part": run.run.part, "run.device": run.run.device, "run.workers": run.run.workers,
        "run.cluster": run.run.cluster, "run.network": run.run.network,
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
    noted = list[Planned | Kept]()
    model = streampca.follow(
        run.collection.source,
        run.model,
        pace=streampca.Pace(follow.settle, follow.interval, follow.until, follow.idle),
        preparation=preparation_of(run),
        output=outputs.model,
        memory=run.run.memory,
        listener=_noting(listener, noted),
        **opening_of(run.collection),
    )
    return Result(model, _first_plan(noted), [outputs.model])


def _noting(listener: Listener, noted: list[Planned | Kept], begin: Callable[[], None] | None = None) -> Listener:
    """Return a listener that adds plans and models that are kept to a list, and passes all events on.

    The function `begin` is called before the first plan is carried out.
    """

    def note(event: Event) -> None:
        if isinstance(event, Planned | Kept):
            if begin is not None and isinstance(event, Planned) and not noted:
                begin()
            noted.append(event)
        listener(event)

    return note


def _first_plan(noted: list[Planned | Kept]) -> Any:
    return next((event.plan for event in noted if isinstance(event, Planned)), None)


@dataclass
class _Job:
    """An opened run, its outputs, and the model that it applies."""

    run: RunFile
    outputs: OutputPaths
    raw: Collection
    listener: Listener
    applied: Model | None
    record: Record
    result: Result = field(default_factory=lambda: Result(None))
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
        return not is_replaced and bool(self.outputs.directory and path and is_present(path))

    @cached_property
    def has_grown(self) -> bool:
        """True if the model of the directory is to be updated by samples that its source has gained."""
        path = self.outputs.model
        if not (self.run.update.enabled and self.may_reuse and path) or self.has_other_settings:
            return False
        with suppress(ModelError):  # an unfinished model is fitted anew
            return bool(samples_added(streampca.load(path, components=False).provenance, self.raw, path))
        return False

    @cached_property
    def has_other_settings(self) -> bool:
        """True if runs of the directory wrote its model by other settings."""
        path = self.outputs.model
        is_own = path is not None and self.record.is_own(path)
        return is_own and self.record.difference(str(path), self.settings_of_model) is not None

    @property
    def reuse(self) -> dict[str, Any]:
        """Fields of a fit's `Run` for an existing model: used again, or replaced if other settings made it."""
        path = self.outputs.model
        # Without a model there may be the checkpoint of a run with other settings.
        is_begun = path is not None and self.record.is_begun(path)
        return {"reuse": self.may_reuse, "overwrite": self.run.run.overwrite or self.has_other_settings or is_begun}

    def may_replace(self, path: str) -> bool:
        """Return whether an output or its checkpoint may be replaced: runs of this directory wrote it, or all may."""
        return self.run.run.overwrite or self.record.is_own(path) or self.record.is_begun(path)

    def change(self, path: str, settings: dict[str, Any]) -> str:
        """Return why an output that a run of this directory wrote is replaced, as a clause; empty if it stands."""
        if self.record.stands(path, settings):
            return ""
        return self.record.difference(path, settings) or "some of its files are gone or changed"

    # -- settings that decide outputs

    @cached_property
    def settings_of_model(self) -> dict[str, Any]:
        """Settings that decide the model; the data of the source are compared by the fit."""
        data, run = self.run.data(complete=True), self.run
        sections = {name: data.get(name) for name in ("collection", "prepare", "model")}
        # Not the part: one in the place of another is a mistake, which the fit refuses.
        return {**sections, **self._digests, "update.model": run.update.model}

    def settings_of(self, name: str, model: Model | None) -> dict[str, Any]:
        """Return the settings that decide an output other than the model: source, model, and keys of the run."""
        run = self.run
        keys = {
            "scores": ("whiten", "missing"),
            "images": ("n_components", "residual", "whole", "missing"),
            "report": ("examine", "figure_format", "figure_width", "figure_data"),
        }
        of_run: dict[str, Any] = {"output": {key: getattr(run.output, key) for key in keys.get(name, ())}}
        if name == "graph" and self.outputs.scores is not None:
            of_run = self.settings_of("scores", model)
        if name == "graph":
            of_run["neighbors"] = vars(run.neighbors)
        if name == "collection" or (name == "graph" and self.outputs.scores is None):
            of_run, model = {**of_run, **self._digests, "prepare": vars(run.prepare)}, None
        of_model = {} if model is None else {MODEL: identity_of_model(model.provenance)}
        return {**of_model, "collection": run.data(complete=True)["collection"], DATA: self._fingerprint, **of_run}

    @cached_property
    def _digests(self) -> dict[str, str]:
        """Digests of mask and scale, as their files can be written again at the same paths."""
        arrays = {MASK: self.preparation.mask, SCALE: self.preparation.scale}
        return {name: digest(array.tobytes()) for name, array in arrays.items() if isinstance(array, np.ndarray)}

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint_of(self.raw, self.raw.states())

    @contextmanager
    def writing(self, name: str) -> Iterator[list[str]]:
        """Record an output, of the model of the result, around its writing; the files written are put into a list."""
        path, model, files = getattr(self.outputs, name), self.result.model, list[str]()
        settings = self.settings_of(name, model)
        if self.record.is_own(path) and not self.run.run.overwrite:
            self.listener(Warned(f"{path} is replaced: {self.change(path, settings)}."))
        self.record.begin(path, settings)
        yield files
        self.record.finish(files or [path], settings, None if model is None else model.provenance)
        self.result.written += files or [path]

    def is_due(self, name: str) -> bool:
        """Return whether an output is to be written: it is asked for, and does not stand."""
        path = getattr(self.outputs, name)
        if path is None or self.run.run.overwrite:
            return path is not None
        stands = self.record.stands(path, self.settings_of(name, self.result.model))
        if stands:
            self.listener(Kept(path, "was written by an earlier run with the same settings; it is kept"))
            self.result.kept.append(path)
        return not stands

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
        overwrite = output is not None and self.may_replace(output)
        how = {"output": output, "overwrite": overwrite, "checkpoint": checkpoint, "listener": self.listener, **others}
        return self.run.how(**shared, **how)

    def applying(self, output: str) -> dict[str, Any]:
        """Return the options of a model's methods that write an output."""
        options = {name: getattr(self.run.output, name) for name in ("whiten", "missing")}
        return {**options, "run": replace(self.stage(output), output=None, **NOT_FITTED)}


def _open(run: RunFile, outputs: OutputPaths, listener: Listener) -> _Job:
    """Open the model to apply or update, if there is one, and the collection with the model's options of opening."""
    path = run.apply or run.update.model
    try:
        if path and streampca.is_graph(path):
            raise ModelError(f"{path} holds a graph of neighbours, not a model; give a fitted model.")
        model = streampca.load(path, memory=run.run.memory, components=path == run.apply) if path else None
    except ModelError:
        open_run(run.collection)  # a source given in the model's place is the likelier mistake: its error comes first
        raise
    raw = open_run(run.collection, listing=outputs.listing(run), like=model, listener=listener)
    return _Job(run, outputs, raw, listener, model if run.apply else None, Record(outputs.directory, run))


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
    """Fit or update a model, and write it if there is an output for it; a model that stands is loaded."""
    run, path, settings = job.run, job.outputs.model, job.settings_of_model
    noted = list[Planned | Kept]()
    listener = _noting(job.listener, noted, partial(job.record.begin, path, settings) if path else None)
    base = run.update.model or (path if job.has_grown else None)
    if base is not None:
        changes = {name: getattr(run.model, name) for name in UPDATED if run.is_given("model", name)}
        if changes.get("n_components", "") is None:  # all components, which `update` calls "all"
            changes["n_components"] = "all"
        model: Model = streampca.update(
            base,
            job.raw,
            approximate=run.update.approximate,
            sample_weight=run.collection.sample_weight,
            run=replace(job.stage(path), listener=listener),
            **changes,
        )
    else:
        # Other settings replace the model of an earlier run; a source that has changed since is refused by the fit.
        stage = replace(job.stage(path), listener=listener, **job.reuse)
        model = streampca.fit(job.raw, run.model, **columns_of(run), preparation=job.preparation, run=stage)
    if job.outputs.apply_model:
        if path is not None:  # outputs name the model by its path, and the memory of a large one is free for them
            del model
            model = streampca.load(path, memory=run.run.memory)
        if isinstance(model, streampca.PCAModel):
            model = model.without_statistic()  # and that of the p x p statistic
    if path is not None:
        job.record.finish([path], settings, model.provenance)
    result = Result(model, _first_plan(noted))
    if path is not None:
        is_kept = any(isinstance(event, Kept) for event in noted)
        (result.kept if is_kept else result.written).append(path)
    return result


def _write(job: _Job) -> None:
    """Write the copy of the run's collection, and scores, images, graph and report of it, but those that stand."""
    run, outputs, model = job.run, job.outputs, job.result.model
    if job.is_due("collection"):
        with job.writing("collection"):
            stage = replace(job.stage(outputs.collection), **NOT_MULTIPLIED)
            streampca.copy(job.raw, preparation=job.preparation, run=stage)
    if model is not None and outputs.apply_model:
        _apply(job, model)
    if job.is_due("graph"):
        with job.writing("graph"):
            source, preparation = (job.raw, job.preparation) if outputs.scores is None else (outputs.scores, None)
            stage = replace(job.stage(outputs.graph), **NOT_MULTIPLIED)
            job.result.graph = streampca.neighbors(source, **vars(run.neighbors), preparation=preparation, run=stage)


def _apply(job: _Job, model: Model) -> None:
    """Write scores, images and the report of the run's collection."""
    outputs, output = job.outputs, job.run.output
    if job.applied is None:  # `_check_feasible` knew only the fewest components that a rule may count
        foresee_applying(model, job.raw, job.applied_outputs)
    if job.is_due("scores"):
        with job.writing("scores"):
            model.write_scores(job.raw, str(outputs.scores), **job.applying(str(outputs.scores)))
    if job.is_due("images"):
        with job.writing("images"):
            images, path = cast("PCAModel", model), str(outputs.images)  # others were refused
            form = {name: getattr(output, name) for name in ("n_components", "residual", "whole")}
            job.result.compression = images.write_reconstruction(job.raw, path, **form, **job.applying(path))
    if job.is_due("report"):
        with job.writing("report") as files:
            files += streampca.write_report(
                model,
                str(outputs.report),
                collection=job.raw,
                figures=outputs.figures,
                data=outputs.data,
                examine=output.examine,
                figure_format=output.figure_format,
                figure_width=output.figure_width,
                run=replace(job.stage(str(outputs.report)), output=None, overwrite=True, **NOT_MULTIPLIED),
            )
