"""One run, whole: open, plan, fit or load, save, transform, reconstruct, draw."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .config import CollectionConfig, PrepareConfig, Run
from .errors import ModelError, OutputError, RequestError, SourceError, first_line
from .events import Event, Finished, Listener, PassFinished, PassStarted, Planned, Warned, silent
from .fitting import fit_collection, prepared
from .model import PCAModel, load_model
from .outputs import check_output, output_problem
from .planning import Plan, make_plan, problem_of
from .prepare import Preparation, Prepared
from .readers import Collection, open_collection
from .request import Request
from .store import check_model_output
from .units import MIB, format_bytes, format_seconds, parse_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURED_SAMPLES = 4  # shown beside their reconstructions
PICTURED_SCORES = 20_000  # dots in a scatter of scores
PICTURED_BYTES = 32 * MIB  # raw samples read for pictures

log = logging.getLogger("streampca")


@dataclass
class Result:
    """What a run made: the model, the plan it followed (if it fitted), and the paths written, in order."""

    model: PCAModel
    plan: Plan | None = None
    written: list[str] = field(default_factory=list)


def open_run(config: CollectionConfig) -> Collection:
    """Open the collection a run names."""
    select = {axis: slice(*item) if isinstance(item, list) else item for axis, item in (config.select or {}).items()}
    return open_collection(config.source, key=config.key, sample_axes=config.sample_axes, select=select or None)


def preparation_of(config: PrepareConfig) -> Preparation:
    """Build a run's preparation; reads the mask's file."""
    mask = None if config.mask is None else _read_mask(config.mask)
    crop = None if config.crop is None else tuple(config.crop)
    return Preparation(crop=crop, grey=config.grey, bin=config.bin, mask=mask)


def request_of(run: Run) -> Request:
    """Build what is asked of the planner."""
    memory = None if run.fit.memory is None else parse_bytes(run.fit.memory)
    return Request(run.fit.n_components, run.fit.method, memory, run.fit.precision, run.fit.seed)


def plan_run(run: Run) -> Plan:
    """Say what a run's fit would do, reading no more than headers."""
    return make_plan(problem_of(prepared(open_run(run.collection), preparation_of(run.prepare))), request_of(run))


def execute(run: Run, listener: Listener = silent) -> Result:
    """Carry out a run.

    Parameters
    ----------
    run : Run
        What to do; outputs that exist are refused before anything is computed.
    listener : callable
        Told what happens.

    Returns
    -------
    Result

    Raises
    ------
    StreampcaError
        One line saying what is wrong; outputs finished before are kept.
    """
    outputs = _outputs(run)
    for path in filter(None, (outputs.scores, outputs.images)):
        check_output(path, overwrite=run.output.overwrite)
    with _recorded(run, outputs, listener) as told:
        result = _applied_model(run, told) if run.model else _fitted_model(run, outputs, told)
        _apply(run, result, outputs, told)
        if outputs.pictures:
            result.written += _draw(run, result.model, outputs)
        return result


@dataclass(frozen=True)
class _Outputs:
    """Where everything goes; None means it is not made."""

    directory: str | None
    model: str | None
    scores: str | None
    images: str | None
    pictures: str | None


def _outputs(run: Run) -> _Outputs:
    asked, folder = run.output, run.output.directory

    def inside(name: str, wanted: bool = True) -> str | None:
        return os.path.join(folder, name) if folder and wanted else None

    found = _Outputs(
        folder,
        None if run.model else asked.model or inside("model.zarr"),
        asked.scores or inside("scores.zarr", asked.transform),
        asked.images,
        inside("pictures", asked.report),
    )
    if not any((found.model, found.scores, found.images, found.pictures)):
        raise RequestError(
            "the run writes nothing; give output.directory, output.model, output.scores or output.images."
        )
    if (asked.transform or asked.report) and not folder:
        raise RequestError("output.transform and output.report need output.directory; add it, or give output.scores.")
    return found


@contextmanager
def _recorded(run: Run, outputs: _Outputs, listener: Listener) -> Iterator[Listener]:
    """Keep the run directory's record: its resolved config before, its log during, what it was after."""
    if not outputs.directory:
        yield listener
        return
    folder = Path(outputs.directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(run.to_yaml(), encoding="utf-8")
        with open(folder / "run.log", "a", encoding="utf-8") as file:

            def told(event: Event) -> None:
                line = describe(event)
                if line:
                    file.write(f"{datetime.now().isoformat(timespec='seconds')} {line}\n")
                    file.flush()
                listener(event)

            try:
                yield told
            except Exception as error:
                file.write(f"{datetime.now().isoformat(timespec='seconds')} failed: {first_line(error)}\n")
                raise
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(output_problem(str(folder), error)) from error


def describe(event: Event) -> str | None:
    """One line for a log, or None for events too frequent for one."""
    match event:
        case Planned(plan):
            return f"plan: {plan.method}, {plan.passes} pass, {format_bytes(plan.bill.total)} of {format_bytes(plan.memory)}"
        case PassStarted(label, samples=samples, bytes=count):
            return f"{label}: started, {samples} samples, {format_bytes(count)}"
        case PassFinished(seconds):
            return f"pass finished after {format_seconds(seconds)}"
        case Finished(what, seconds):
            return f"{what} finished after {format_seconds(seconds)}"
        case Warned(message):
            return f"warning: {message}"
    return None


def _applied_model(run: Run, listener: Listener) -> Result:
    return Result(load_model(run.model or ""))


def _fitted_model(run: Run, outputs: _Outputs, listener: Listener) -> Result:
    """Fit, or take the model a run like this one left in its directory."""
    collection = prepared(open_run(run.collection), preparation_of(run.prepare))
    request, path = request_of(run), outputs.model
    if path and outputs.directory and not run.output.overwrite:
        found = _finished_before(path, collection, request)
        if found:
            listener(Warned(f"{path} is there from an earlier run of the same request and source; it is used again."))
            return Result(found)
    if path:
        check_model_output(path, overwrite=run.output.overwrite)
    plans: list[Plan] = []

    def told(event: Event) -> None:
        if isinstance(event, Planned):
            plans.append(event.plan)
        listener(event)

    model = fit_collection(collection, request, listener=told)
    result = Result(model, plans[0])
    if path:
        model.save(path, overwrite=run.output.overwrite)
        result.written.append(path)
    result.model = model.without_statistic()
    return result


def _finished_before(path: str, collection: Prepared, request: Request) -> PCAModel | None:
    """The model at `path` if it is complete; refuse it by key where it answers another request."""
    try:
        model = load_model(path)
    except ModelError:
        return None
    plan = model.provenance.get("plan", {})
    before = dict(plan.get("request", {})) | {"source": model.provenance.get("fingerprint")}
    now = dict(vars(request)) | {"source": collection.fingerprint()}
    for key, value in now.items():
        if key != "memory" and before.get(key) != value:
            raise OutputError(
                f"{path} was fitted with {key} {before.get(key)!r} and this run has {value!r}; choose another "
                "directory, or replace it with --overwrite (output.overwrite: true)."
            )
    return model


def _apply(run: Run, result: Result, outputs: _Outputs, listener: Listener) -> None:
    """Write scores and images of the run's collection."""
    if not (outputs.scores or outputs.images):
        return
    raw, model = open_run(run.collection), result.model
    if outputs.scores:
        model.write_scores(
            raw,
            outputs.scores,
            whiten=run.output.whiten,
            memory=run.fit.memory,
            overwrite=run.output.overwrite,
            listener=listener,
        )
        result.written.append(outputs.scores)
    if outputs.images:
        model.write_reconstruction(
            raw,
            outputs.images,
            n_components=run.output.n_components,
            memory=run.fit.memory,
            overwrite=run.output.overwrite,
            listener=listener,
        )
        result.written.append(outputs.images)


def _draw(run: Run, model: PCAModel, outputs: _Outputs) -> list[str]:
    """Write the run's pictures and its summary; returns their paths."""
    from . import plot

    raw = open_run(run.collection)
    samples = picked(raw, PICTURED_SAMPLES)
    scores = np.asarray(model.transform(picked(raw, min(PICTURED_SCORES, raw.n_samples))))
    folder = outputs.pictures or ""
    os.makedirs(folder, exist_ok=True)
    drawn: dict[str, Any] = {
        "overview": plot.overview(model, scores, samples),
        "scree": plot.scree(model),
        "components": plot.mean_and_components(model),
        "reconstructions": plot.reconstructions(model, samples),
        "scores": plot.scores(model, scores),
    }
    written = []
    for name, picture in drawn.items():
        plot.save(picture, os.path.join(folder, f"{name}.png"))
        written.append(os.path.join(folder, f"{name}.png"))
    summary = os.path.join(outputs.directory or "", "run.json")
    Path(summary).write_text(json.dumps(dict(model.provenance), indent=1), encoding="utf-8")
    return [*written, summary]


def overview(model: PCAModel, raw: Collection) -> Figure:
    """Draw a model and a few samples of a raw collection in one figure."""
    from . import plot

    scores = np.asarray(model.transform(picked(raw, min(PICTURED_SCORES, raw.n_samples))))
    return plot.overview(model, scores, picked(raw, PICTURED_SAMPLES))


def picked(raw: Collection, count: int) -> Any:
    """Up to `count` raw samples spread over a collection, (count, *raw_shape).

    Many are taken in runs, so that compressed storage is not decoded once for every one of them.
    """
    n = raw.n_samples
    count = max(1, min(count, n, PICTURED_BYTES * n // max(1, raw.nbytes)))
    runs = min(count, 8)
    length = count // runs
    starts = [round(i * (n - length) / max(1, runs - 1)) for i in range(runs)]
    rows = np.concatenate([raw.read(slice(start, start + length)) for start in starts])
    return rows.reshape(len(rows), *raw.sample_shape)


def _read_mask(path: str) -> Any:
    try:
        mask = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(
            f"mask {path} cannot be read: {first_line(error)}; give a .npy file of True and False."
        ) from None
    if not isinstance(mask, np.ndarray) or mask.dtype.kind not in "bui":
        raise SourceError(f"mask {path} is not an array of True and False; save it as a boolean .npy file.")
    return mask.astype(bool)
