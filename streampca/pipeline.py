"""One run, whole: open, plan, fit or load, save, transform, reconstruct, draw."""

from __future__ import annotations

import os
from collections.abc import Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .config import CollectionConfig, PrepareConfig, Run
from .errors import ModelError, OutputError, RequestError, SourceError, first_line
from .events import Event, Listener, Planned, Warned, silent
from .fitting import declared, fit_collection, plan_collection, prepared
from .model import PCAModel, load_model
from .outputs import check_output, check_place, discard, writing
from .planning import Plan
from .prepare import Preparation
from .readers import Collection, open_collection
from .record import PICTURES, check_directory, recorded, recorded_run, write_summary
from .request import Request
from .store import check_model_output
from .units import MIB, parse_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURED_SAMPLES = 4  # shown beside their reconstructions
PICTURED_SCORES = 20_000  # dots in a scatter of scores
PICTURED_BYTES = 32 * MIB  # raw samples read for pictures


@dataclass
class Result:
    """What a run made: the model, the plan it followed (if it fitted), and the paths written, in order."""

    model: PCAModel
    plan: Plan | None = None
    written: list[str] = field(default_factory=list)


def open_run(config: CollectionConfig) -> Collection:
    """Open the collection a run names."""
    return _opened(config.source, config)


def _opened(source: Any, config: CollectionConfig) -> Collection:
    select = {axis: slice(*item) if isinstance(item, tuple) else item for axis, item in (config.select or {}).items()}
    return open_collection(source, key=config.key, sample_axes=config.sample_axes, select=select or None)


def preparation_of(config: PrepareConfig) -> Preparation:
    """Build a run's preparation; reads the mask's file."""
    mask = None if config.mask is None else _read_mask(config.mask)
    crop = None if config.crop is None else tuple(config.crop)
    return Preparation(crop=crop, grey=config.grey, bin=config.bin, mask=mask)


def request_of(run: Run) -> Request:
    """Build what is asked of the planner."""
    memory = None if run.fit.memory is None else parse_bytes(run.fit.memory)
    return Request(run.fit.n_components, run.fit.method, memory, run.fit.precision, run.fit.seed)


def plan_run(run: Run, *, shape: str | None = None, dtype: str = "uint8") -> Plan:
    """Say what a run's fit would do, reading no more than headers.

    Parameters
    ----------
    run : Run
        Its collection, preparation and fit count.
    shape, dtype : str, optional
        Of data that are not here yet, e.g. ``"60000x28x28"``; taken instead of the run's collection.
    """
    raw = open_run(run.collection) if shape is None else _opened(declared(shape, dtype), run.collection)
    return plan_collection(prepared(raw, preparation_of(run.prepare)), request_of(run))


def execute(run: Run, listener: Listener = silent) -> Result:
    """Carry out a run.

    Parameters
    ----------
    run : Run
        What to do; outputs that exist are refused before anything is computed, but for those that the same run left
        in its directory: they are used again.
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
    outputs, raw = _outputs(run), open_run(run.collection)
    _check_apart(run, outputs)
    earlier = _earlier_model(run, outputs, raw)
    kept = _kept(run, outputs) if earlier else set()
    _check_outputs(run, outputs, {*kept, outputs.model or ""} if earlier else kept)
    if outputs.directory and run.output.overwrite:
        for path in filter(None, (outputs.scores, outputs.images)):
            discard(path)  # were this run stopped, those of the replaced one could be taken for its own
    with recorded(outputs.directory, run, listener) if outputs.directory else nullcontext(listener) as told:
        if earlier:
            told(Warned(f"{outputs.model} is there from an earlier run of the same request; it is used again."))
        result = Result(earlier) if earlier else _made(run, outputs, raw, told)
        _apply(run, result, raw, outputs, kept, told)
        if outputs.pictures:
            result.written += _draw(result.model, raw, outputs.pictures)
        if outputs.directory:
            result.written.append(write_summary(outputs.directory, result.model.provenance))
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
        inside(PICTURES, asked.report),
    )
    if not any((found.model, found.scores, found.images, found.pictures)):
        raise RequestError(
            "the run writes nothing; give output.directory, output.model, output.scores or output.images."
        )
    if (asked.transform or asked.report) and not folder:
        raise RequestError("output.transform and output.report need output.directory; add it, or give output.scores.")
    return found


def _check_apart(run: Run, outputs: _Outputs) -> None:
    """Refuse outputs that would replace what the run reads, or become part of it."""
    source = run.collection.source
    sources = {os.path.realpath(path) for path in ([source] if isinstance(source, str) else source)}
    read = sources | {os.path.realpath(run.model)} if run.model else sources
    for path in filter(None, (outputs.model, outputs.scores, outputs.images)):
        if os.path.realpath(path) in read:
            raise RequestError(f"output {path} is what the run reads; choose another output.")
    if outputs.pictures and sources & {str(folder) for folder in Path(os.path.realpath(outputs.pictures)).parents}:
        raise RequestError(
            f"pictures in {outputs.pictures} would become part of the collection; choose an output.directory outside "
            "the source."
        )


def _check_outputs(run: Run, outputs: _Outputs, kept: Set[str]) -> None:
    """Refuse what is in the way, before anything is computed."""
    overwrite, folder = run.output.overwrite, outputs.directory
    for path, kind in ((outputs.scores, "scores"), (outputs.images, "images")):
        if path and path not in kept:
            check_output(path, kind, overwrite=overwrite)
    if outputs.model and outputs.model not in kept:
        check_model_output(outputs.model, overwrite=overwrite)
        check_place(outputs.model)
    if folder:
        check_directory(folder, overwrite=overwrite)


def _made(run: Run, outputs: _Outputs, raw: Collection, listener: Listener) -> Result:
    """Load the run's model, or fit it and save it."""
    if run.model:
        return Result(load_model(run.model))
    plans: list[Plan] = []

    def told(event: Event) -> None:
        if isinstance(event, Planned):
            plans.append(event.plan)
        listener(event)

    model = fit_collection(prepared(raw, preparation_of(run.prepare)), request_of(run), listener=told)
    result = Result(model.without_statistic(), plans[0])
    if outputs.model:
        model.save(outputs.model, overwrite=run.output.overwrite)
        result.written.append(outputs.model)
    return result


def _earlier_model(run: Run, outputs: _Outputs, raw: Collection) -> PCAModel | None:
    """The model that an earlier run left in the directory; refuse it by key where it answers another request."""
    if run.model or not outputs.model or not outputs.directory or run.output.overwrite:
        return None
    try:
        model = load_model(outputs.model)
    except ModelError:
        return None
    changed = _change(run, model, raw)
    if changed:
        raise OutputError(
            f"{outputs.model} was fitted with {changed}; choose another directory, or replace it with --overwrite "
            "(output.overwrite: true)."
        )
    return model


def _change(run: Run, model: PCAModel, raw: Collection) -> str | None:
    """The first thing a run asks that is not what a model was fitted with, in words."""
    collection = prepared(raw, preparation_of(run.prepare))
    fitted = model.provenance
    before = {**fitted.get("plan", {}).get("request", {}), **model.preparation.to_json()}
    now = {**vars(request_of(run)), **collection.preparation.to_json()}
    for key, value in now.items():
        if key != "memory" and before.get(key) != value:
            return f"{key} {before.get(key)!r} and this run has {value!r}"
    if not np.array_equal(_mask(model.mask), _mask(collection.mask)):
        return "another mask"
    if fitted.get("source") != raw.source:
        return f"source {fitted.get('source')!r} and this run has {raw.source!r}"
    if fitted.get("fingerprint") != collection.fingerprint():
        return f"other data: {raw.source} has changed since, or is read by another key, sample_axes or select"
    return None


def _mask(mask: Any) -> Any:
    return np.array(True) if mask is None else mask


def _kept(run: Run, outputs: _Outputs) -> set[str]:
    """Scores and images there already from the same run, by its record; each is whole, or would not have its name."""
    before = recorded_run(outputs.directory or "")
    if before is None or before.output.model_copy(update={"overwrite": False}) != run.output:
        return set()
    return {path for path in (outputs.scores, outputs.images) if path and os.path.lexists(path)}


def _apply(run: Run, result: Result, raw: Collection, outputs: _Outputs, kept: Set[str], listener: Listener) -> None:
    """Write scores and images of the run's collection, but for those there already."""
    model, asked = result.model, run.output
    how: dict[str, Any] = {"memory": run.fit.memory, "overwrite": asked.overwrite, "listener": listener}
    if outputs.scores and outputs.scores not in kept:
        model.write_scores(raw, outputs.scores, whiten=asked.whiten, **how)
        result.written.append(outputs.scores)
    if outputs.images and outputs.images not in kept:
        model.write_reconstruction(raw, outputs.images, n_components=asked.n_components, whiten=asked.whiten, **how)
        result.written.append(outputs.images)


def _draw(model: PCAModel, raw: Collection, folder: str) -> list[str]:
    """Write the run's pictures; returns their paths."""
    from . import plot

    samples = picked(raw, PICTURED_SAMPLES)
    scores = np.asarray(model.transform(picked(raw, min(PICTURED_SCORES, raw.n_samples))))
    drawn: dict[str, Any] = {
        "overview": plot.overview(model, scores, samples),
        "scree": plot.scree(model),
        "components": plot.mean_and_components(model),
        "reconstructions": plot.reconstructions(model, samples),
        "scores": plot.scores(model, scores),
    }
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
    written = []
    for name, picture in drawn.items():
        path = os.path.join(folder, f"{name}.png")
        try:
            plot.save(picture, path)
        except BaseException:
            discard(path)  # a picture that breaks off
            raise
        written.append(path)
    return written


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
