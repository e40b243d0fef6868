"""One run, whole: open, plan, fit or load, save, transform, reconstruct, draw."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError, OutputError, RequestError
from ..events import Event, FileSkipped, Listener, Planned, Warned, silent
from ..execution.checkpoint import FOLDER, Checkpointing, clear_finished
from ..execution.signals import Switch
from ..fitting.executor import executing
from ..fitting.fit import Place, fit_collection
from ..fitting.plan import narrowed, plan_collection, prepared
from ..models.compression import Compression
from ..models.pca import PCAModel, load_model
from ..models.store import are_held, check_model_output
from ..models.transform import check_foreseen
from ..planning import Plan, budget_of
from ..planning.blocks import part_of
from ..planning.request import HOW, Request
from ..plot.report import ReportFiles, check_room, picture_files, write_report
from ..preprocessing import Preparation, Prepared
from ..preprocessing.copy import check_copy, copy_collection, foresee_copy
from ..readers import Collection, check_apart, column_paths, paths_of
from ..readers.collection import fingerprint_of, first_change
from ..readers.weights import total_of, weights_digest, weights_of
from ..storage.components import StoredComponents
from ..storage.disk import expanded
from ..storage.outputs import check_output, check_place, recover
from ..units import parse_bytes
from .from_config import cluster_of, open_run, preparation_of, request_of
from .options import Run
from .run_record import LISTING, PICTURES, RECORDS, REPORT, Record, check_directory, recorded


@dataclass
class Result:
    """What a run made: the model, if any, the plan it followed (if it fitted), and the paths written, in order.

    Also what reconstruction kept, where images were written.
    """

    model: PCAModel | None
    plan: Plan | None = None
    written: list[str] = field(default_factory=list)
    compression: Compression | None = None


def execute(run: Run, listener: Listener = silent, switch: Switch | None = None) -> Result:
    """Carry out a run.

    Parameters
    ----------
    run : Run
        What to do; outputs that exist are refused before anything is computed, but for those that the same run left
        in its directory: they are used again.
    listener : callable
        Told what happens.
    switch : Switch, optional
        Ends the run when it is turned, at the end of a block; the same run goes on from there.

    Returns
    -------
    Result

    Raises
    ------
    StreampcaError
        One line saying what is wrong; outputs finished before are kept.
    """
    switch = switch or Switch()
    listener = switch.watched(listener)
    outputs = _outputs(run)
    cluster_of(run)  # refuses what does not go together
    _check_part(run, outputs)
    _check_apart(run, outputs)
    for path in outputs.files:
        recover(path.rstrip("/"))
        clear_finished(path)
    given = _model_given(run)
    raw = open_run(run.collection, listing=_listing(run, outputs), like=given, listener=listener)
    preparation = preparation_of(run.prepare)
    if run.model is None:
        raw = narrowed(raw, preparation)
    task = _Fit(run, raw, preparation, listener, switch, given)
    record = Record(outputs.directory, run, outputs.made)
    earlier = _earlier_model(task, outputs)
    kept = record.made_before(earlier.provenance) if earlier else set()
    _check_outputs(run, outputs, {*kept, outputs.model or ""} if earlier else kept)
    with recorded(outputs.directory, listener) if outputs.directory else nullcontext(listener) as told:
        if earlier:
            told(Warned(f"{outputs.model} is there from an earlier run of the same request; it is used again."))
        task.listener = told
        for item in raw.skipped:
            told(FileSkipped(*item))
        _foresee(task, outputs, earlier or given, kept)
        if earlier or not any(map(os.path.lexists, outputs.files)):
            record.begin()  # else what is recorded is of what lies there, until the first of that is replaced
        result = _made(task, outputs, earlier or given)
        provenance = None if result.model is None else result.model.provenance

        def note(path: str) -> None:
            result.written.append(path)
            record.note(path, provenance)

        if result.plan and outputs.model:
            note(outputs.model)
        if outputs.collection and outputs.collection not in kept:
            _copy(task, outputs.collection)
            note(outputs.collection)
        if result.model is not None:
            _apply(task, result, result.model, outputs, kept, note)
        if summary := record.note(None, provenance):
            result.written.append(summary)
        return result


def _model_given(run: Run) -> PCAModel | None:
    """Load the model to apply, where one is; its images are to be read as those it was fitted on."""
    try:
        return load_model(run.model, memory=run.fit.memory) if run.model else None
    except ModelError:
        open_run(run.collection)  # what is wrong with the source is said first: the two may stand in the other's place
        raise


def _copy(task: _Fit, path: str) -> None:
    memory, overwrite = task.run.fit.memory, task.run.output.overwrite
    copy_collection(task.collection, path, memory=memory, overwrite=overwrite, listener=task.listener)


def _foresee(task: _Fit, outputs: _Outputs, model: PCAModel | None, kept: Set[str]) -> None:
    """Refuse what cannot be made, of a model that is there or of the one to be fitted, before anything is replaced."""
    run, raw = task.run, task.raw
    if outputs.collection and outputs.collection not in kept:
        memory, overwrite = run.fit.memory, run.output.overwrite
        foresee_copy(task.collection, outputs.collection, memory=memory, overwrite=overwrite)
    if model is not None:
        _check_images(task, outputs, model, kept)
    if outputs.report:
        check_room(run.fit.memory, model.prepared(raw) if model is not None else task.collection)
    if model is None and (outputs.scores or outputs.images):
        _check_applying(task, outputs)


def _check_images(task: _Fit, outputs: _Outputs, model: PCAModel, kept: Set[str]) -> None:
    """Refuse images that a model cannot make, before its scores are written."""
    run = task.run
    if outputs.images and outputs.images not in kept:
        asked: dict[str, Any] = {"n_components": run.output.n_components, "residual": run.output.residual}
        collection = model.check_reconstruction(task.raw, **asked, whole=run.output.whole)
        if outputs.scores:
            count, components = run.output.n_components or model.n_components, model.components
            how: dict[str, Any] = {"dtype": components.dtype, "stored": isinstance(components, StoredComponents)}
            how |= {"residual": run.output.residual, "whole": run.output.whole, "memory": run.fit.memory}
            check_foreseen(collection, model.frame, count, makes_images=True, **how)


@dataclass
class _Fit:
    """What a run fits, or the model it applies; the preparation is read off the data once, and only if it is needed."""

    run: Run
    raw: Collection
    preparation: Preparation
    listener: Listener
    switch: Switch
    model: PCAModel | None

    @cached_property
    def collection(self) -> Prepared:
        """The run's collection, prepared."""
        return prepared(self.raw, self.preparation, self.listener)

    @cached_property
    def weights(self) -> Any:
        """Of the samples, or None."""
        return weights_of(self.run.fit.sample_weight, self.raw)


@dataclass(frozen=True)
class _Outputs:
    """Where everything goes; None means it is not made."""

    directory: str | None
    model: str | None
    scores: str | None
    images: str | None
    report: str | None
    pictures: str | None
    collection: str | None

    @property
    def files(self) -> list[str]:
        """What is written in one piece each, in the order it is made."""
        return [path for path in (self.model, self.collection, self.scores, self.images) if path]

    @property
    def made(self) -> dict[str, str]:
        """What is made of the model or beside it, by name."""
        found = {"collection": self.collection, "scores": self.scores, "images": self.images}
        return {name: path for name, path in found.items() if path}

    @property
    def learns(self) -> bool:
        """Whether anything is asked for that takes a model."""
        return any((self.model, self.scores, self.images, self.report))


def _outputs(run: Run) -> _Outputs:
    asked = run.output
    folder = expanded(asked.directory) if asked.directory else None

    def inside(name: str, wanted: bool = True) -> str | None:
        return os.path.join(folder, name) if folder and wanted else None

    def place(path: str | None) -> str | None:
        return expanded(path) if path else None

    found = _Outputs(
        folder,
        None if run.model else place(asked.model) or inside("model.zarr"),
        place(asked.scores) or inside("scores.zarr", asked.transform),
        place(asked.images),
        inside(REPORT, asked.report),
        inside(PICTURES, asked.report),
        place(asked.collection),
    )
    if not found.files and not found.report:
        raise RequestError(
            "the run writes nothing; give output.directory, output.model, output.scores, output.images or "
            "output.collection."
        )
    if (asked.transform or asked.report) and not folder:
        raise RequestError("output.transform and output.report need output.directory; add it, or give output.scores.")
    return found


def _check_part(run: Run, outputs: _Outputs) -> None:
    """Refuse to apply the model of a part, which is one step on the way to that of the whole."""
    if run.fit.part is not None and any((outputs.scores, outputs.images, outputs.report)):
        raise RequestError(
            f"fit.part {run.fit.part} makes the model of a part only; leave out scores, images and report, and give "
            "them with the model that streampca merge makes."
        )


def _listing(run: Run, outputs: _Outputs) -> str | None:
    """Where the table of the files of a folder is kept, for the next time: in a run directory, else not.

    Beside a lone output it is only worth a file of its own where every file was decoded for it.
    """
    source, skips = run.collection.source, run.collection.on_bad_file == "skip"
    place = os.path.join(outputs.directory, LISTING) if outputs.directory else f"{outputs.files[0]}.{LISTING}"
    if not isinstance(source, str) or not os.path.isdir(expanded(source)) or not (outputs.directory or skips):
        return None
    inside = Path(os.path.realpath(place)).is_relative_to(os.path.realpath(expanded(source)))
    return None if inside else place


def _check_apart(run: Run, outputs: _Outputs) -> None:
    """Refuse outputs that would replace what the run reads or one another, lie in it, or become part of it."""
    drawn = picture_files(outputs.pictures) if outputs.pictures else []
    files = [*outputs.files, *filter(None, [outputs.report]), *drawn]
    own = [os.path.join(outputs.directory, name) for name in RECORDS] if outputs.directory else []
    prepare, collection = run.prepare, run.collection
    columns = column_paths(collection.labels, run.fit.sample_weight, prepare.mask, prepare.scale)
    model = [expanded(run.model)] if run.model else []
    check_apart([*files, *own], [*paths_of(collection.source), *model, *columns])
    places = [os.path.realpath(path) for path in files]
    for number, path in enumerate(places):
        other = next(
            (one for one in places[:number] if f"{path}/".startswith(f"{one}/") or one.startswith(f"{path}/")), ""
        )
        if other:
            raise RequestError(f"output {path} and output {other} are one, or lie in one another; choose others.")


def _check_outputs(run: Run, outputs: _Outputs, kept: Set[str]) -> None:
    """Refuse what is in the way, before anything is computed."""
    overwrite, folder = run.output.overwrite, outputs.directory
    for path, kind in ((outputs.scores, "scores"), (outputs.images, "images")):
        if path and path not in kept:
            check_output(path, kind, overwrite=overwrite)
    if outputs.collection and outputs.collection not in kept:
        check_copy(outputs.collection, overwrite=overwrite)
    if outputs.model and outputs.model not in kept:
        check_model_output(outputs.model, overwrite=overwrite)
        check_place(outputs.model)
    if outputs.report:
        ReportFiles(outputs.report, outputs.pictures, "png", overwrite=True).check()
    if folder:
        check_directory(folder)


def _made(task: _Fit, outputs: _Outputs, given: PCAModel | None) -> Result:
    """The model that is there, or fit one and save it; nothing where none is asked for."""
    run = task.run
    if given is not None or not outputs.learns:
        return Result(given)
    plans: list[Plan] = []

    def told(event: Event) -> None:
        if isinstance(event, Planned):
            plans.append(event.plan)
        task.listener(event)

    place = Place(outputs.model, run.output.overwrite) if outputs.model else None
    how: dict[str, Any] = {"weights": task.weights, "place": place, "part": part_of(run.fit.part)}
    folder = _checkpoint(run, outputs.model)
    if folder is not None:
        how["checkpoint"] = Checkpointing(folder, run.checkpoint.every, task.switch)
    request = request_of(run)
    with executing(cluster_of(run), request.memory, listener=told) as executor:
        model = fit_collection(task.collection, request, **how, executor=executor, listener=told)
    if outputs.model and not are_held(model.components.nbytes, _budget(run)):
        model = load_model(outputs.model, memory=run.fit.memory)  # leaves memory to what follows
    return Result(model.without_statistic(), plans[0])


def _checkpoint(run: Run, output: str | None) -> str | None:
    """The folder where an output is kept as it is made, beside it."""
    return output.rstrip("/") + FOLDER if output and run.checkpoint.enabled else None


def _budget(run: Run) -> int:
    memory = run.fit.memory
    return budget_of(parse_bytes(memory))[0]


def _check_applying(task: _Fit, outputs: _Outputs) -> None:
    """Refuse scores and images that the components asked for leave no memory to make, before the fit reads data."""
    run, collection = task.run, task.collection
    chosen = plan_collection(collection, request_of(run), total_weight=total_of(task.weights))
    k = _fewest(chosen)
    single = chosen.problem.is_narrow and chosen.request.precision != "double"
    dtype = np.dtype(np.float32 if single else np.float64)
    nbytes = dtype.itemsize * k * prod(collection.sample_shape)
    stored = chosen.stored or (outputs.model is not None and not are_held(nbytes, chosen.memory))
    how: dict[str, Any] = {"dtype": dtype, "stored": stored, "memory": run.fit.memory}
    if outputs.scores:
        check_foreseen(collection, collection.frame, k, makes_images=False, **how)
    if outputs.images:
        unnormalized = Prepared(task.raw, collection.preparation.unnormalized)
        used = min(k, run.output.n_components or k)
        most = k if isinstance(chosen.request.n_components, int) else chosen.problem.most_components
        if (run.output.n_components or 1) > most:
            raise RequestError(
                f"output.n_components {run.output.n_components} is more than the {most} components that are fitted; "
                "give no more."
            )
        how |= {"makes_images": True, "residual": run.output.residual, "whole": run.output.whole}
        check_foreseen(unnormalized, collection.frame, used, **how)


def _fewest(plan: Plan) -> int:
    """Components that a fit finds at least, if the data have them: of a fraction or a rule it may be one."""
    asked, most = plan.request.n_components, plan.problem.most_components
    if asked is None:
        return most
    return min(asked, most) if isinstance(asked, int) else 1


def _earlier_model(task: _Fit, outputs: _Outputs) -> PCAModel | None:
    """The model that an earlier run left in the directory; refuse it by key where it answers another request."""
    run = task.run
    if run.model or not outputs.model or not outputs.directory or run.output.overwrite:
        return None
    try:
        model = load_model(outputs.model, memory=run.fit.memory)
    except ModelError:
        return None
    changed = _change(task, model)
    if changed:
        raise OutputError(
            f"{outputs.model} was fitted with {changed}; choose another directory, or replace it with --overwrite "
            "(output.overwrite: true)."
        )
    return model


def _change(task: _Fit, model: PCAModel) -> str | None:
    """The first thing a run asks that is not what a model was fitted with, in words."""
    collection, fitted, source = task.collection, model.provenance, task.raw.source
    asked = (fitted.get("plan") or {}).get("request")
    before = {} if asked is None else {**vars(Request()), **asked}  # options that came later were at their defaults
    before |= model.preparation.to_json()
    now = {**vars(request_of(task.run)), **collection.preparation.to_json()}
    for key, value in now.items():
        if key not in HOW and before.get(key) != value:
            return f"{key} {before.get(key)!r} and this run has {value!r}"
    if not _alike(model.mask, collection.mask):
        return "another mask"
    if not _alike(model.preparation.scale, collection.preparation.scale):
        return "another scale"
    part = part_of(task.run.fit.part)
    if fitted.get("part") != (part and list(part)):
        return f"part {fitted.get('part')} and this run has {part and list(part)}"
    if fitted.get("source") != source:
        return f"source {fitted.get('source')!r} and this run has {source!r}"
    if fitted.get("sample_weight") != weights_digest(task.weights):
        return "other sample weights"
    if "states" not in fitted:
        return "an earlier version, which noted too little of the data to tell whether they have changed"
    states = collection.states()
    if fitted.get("fingerprint") != fingerprint_of(collection, states):
        changed = first_change(fitted["states"], states) or source
        return f"other data: {changed} has changed since, or is opened with other options (key, select, samples ...)"
    return None


def _alike(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def _apply(
    task: _Fit, result: Result, model: PCAModel, outputs: _Outputs, kept: Set[str], note: Callable[[str], None]
) -> None:
    """Write scores, images and pictures of the run's collection, but for those there already."""
    run, raw = task.run, task.raw
    if result.plan:  # how many components there are is known only now
        _check_images(task, outputs, model, kept)
    how: dict[str, Any] = {
        "memory": run.fit.memory,
        "overwrite": run.output.overwrite,
        "listener": task.listener,
        "whiten": run.output.whiten,
    }
    if run.checkpoint.enabled:
        how["checkpoint_every"] = run.checkpoint.every
    if outputs.scores and outputs.scores not in kept:
        model.write_scores(raw, outputs.scores, checkpoint=_checkpoint(run, outputs.scores), **how)
        note(outputs.scores)
    if outputs.images and outputs.images not in kept:
        how |= {"n_components": run.output.n_components, "checkpoint": _checkpoint(run, outputs.images)}
        how |= {"residual": run.output.residual, "whole": run.output.whole}
        result.compression = model.write_reconstruction(raw, outputs.images, **how)
        note(outputs.images)
    if outputs.report:
        told: dict[str, Any] = {"memory": run.fit.memory, "overwrite": True, "listener": task.listener}
        result.written += write_report(model, outputs.report, collection=raw, pictures=outputs.pictures, **told)
