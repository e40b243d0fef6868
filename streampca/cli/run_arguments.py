"""Arguments of the package's public functions, made from a run file."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

import streampca

from ..errors import StreampcaError
from ..events import Listener, silent
from ..execution.checkpoint import folder_beside
from ..preprocessing.mask_files import read_mask, read_scale
from ..units import parse_bytes
from .run_file import RunFile
from .sections import COLUMNS, CollectionSection

if TYPE_CHECKING:
    from .. import Collection, Preparation
    from ..kinds.opening import OpeningOptions


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


def plan_of(run: RunFile, **others: Any) -> Any:
    """Plan a run's fit; `others` are options of `plan`, such as the shape of data that do not exist yet."""
    # Plans of commands count on an output, to which components larger than memory can be written.
    written = run.how(output=run.output.model or run.output.directory or "model.zarr")
    options: dict[str, Any] = {**columns_of(run), **opening_of(run.collection), **others, "run": written}
    source = None if "shape" in others else run.collection.source
    return streampca.plan(source, run.model, preparation=preparation_of(run), **options)


def plan_of_graph(run: RunFile) -> Any:
    """Plan the graph of a run's collection; reads headers only."""
    options: dict[str, Any] = {**vars(run.neighbors), **opening_of(run.collection)}
    options |= {"memory": run.run.memory, "workers": run.run.workers}
    return streampca.plan_neighbors(run.collection.source, preparation=preparation_of(run), **options)
