"""What a run's config asks for, as the engine's own values: a collection, a preparation, a request, a plan."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ..errors import ConfigError
from ..events import Listener, silent
from ..execution import ClusterOptions
from ..fitting.calibration import calibrated
from ..fitting.plan import declared, foreseen_weight, plan_collection, prepared
from ..planning import Plan
from ..planning.request import Request
from ..preprocessing import Preparation
from ..preprocessing.mask_files import read_mask, read_scale
from ..readers import Collection, Opening, open_collection
from ..units import parse_bytes
from .options import CollectionConfig, FitConfig, PrepareConfig, Run


def open_run(
    config: CollectionConfig, *, listing: str | None = None, like: Any = None, listener: Listener = silent
) -> Collection:
    """Open the collection a run names.

    Parameters
    ----------
    config : CollectionConfig
        What to open, and how.
    listing : str, optional
        Where the table of a folder's files is kept.
    like : PCAModel, optional
        That is to be applied: tags of image files are followed as for those it was fitted on.
    listener : callable
        Told of a pass over the files, where those that are bad are to be left out.
    """
    given = opening_of(config)
    given["listing"] = listing
    return open_collection(config.source, **given, like=like, listener=listener)


def opening_of(config: CollectionConfig) -> Opening:
    """How a run opens its collection, as options of `open_collection`."""
    select = {axis: slice(*item) if isinstance(item, tuple) else item for axis, item in (config.select or {}).items()}
    return {
        "key": config.key,
        "sample_axes": config.sample_axes,
        "select": select or None,
        "patches": None if config.patches is None else config.patches.model_dump(exclude_none=True),
        "samples": None if config.samples is None else slice(*config.samples),
        "labels": config.labels,
        "where": config.where,
        "on_bad_file": config.on_bad_file,
        "keep_orientation": config.keep_orientation,
        "coordinates": config.coordinates,
    }


def preparation_of(config: PrepareConfig) -> Preparation:
    """Build a run's preparation; reads the files of mask and scale."""
    return Preparation(
        crop=None if config.crop is None else tuple(config.crop),
        grey=config.grey,
        resize=config.resize,
        bin=config.bin,
        mask=config.mask if config.mask in (None, "valid") else read_mask(config.mask),
        scale=read_scale(config.scale) if isinstance(config.scale, str) and config.scale != "area" else config.scale,
        normalize=config.normalize,
    )


def request_of(run: Run) -> Request:
    """Build what is asked of the planner."""
    own = {field.name for field in fields(Request)} & set(FitConfig.model_fields)
    given = run.fit.model_dump(include=own) | {"memory": parse_bytes(run.fit.memory)}
    return Request(**given, output=bool(run.output.model or run.output.directory))


def cluster_of(run: Run) -> ClusterOptions | None:
    """The cluster a run asks for, if it does.

    Raises
    ------
    ConfigError
        If what it says of one does not go together.
    """
    asked = run.execution
    given = {name: value for name, value in asked if name != "kind" and value is not None}
    if problem := _what_is_odd(asked.kind, set(given)):
        raise ConfigError(f"execution: {problem}.")
    if asked.kind == "local":
        return None
    memory = parse_bytes(asked.memory)
    return ClusterOptions(asked.address, asked.cluster, asked.options or {}, asked.workers, memory, asked.wait)


def _what_is_odd(kind: str, given: set[str]) -> str:
    if kind == "local" and given:
        return f"{min(given)} is of a cluster; give kind: dask with it, or leave it out"
    if kind == "dask" and not given & {"address", "cluster", "workers"}:
        return "a cluster needs an address, a class (cluster), or a number of workers (--workers); give one"
    if given >= {"address", "cluster"}:
        return "address and cluster are two clusters; give one"
    if "options" in given and "cluster" not in given:
        return "options are of a class; give cluster with them"
    if "memory" in given and given & {"address", "cluster"}:
        return "memory (--worker-memory) is of processes of this machine; start the workers of a cluster with theirs"
    return ""


def plan_run(run: Run, *, shape: str | None = None, dtype: str = "uint8", workers: int = 1) -> Plan:
    """Say what a run's fit would do, reading no more than headers, and a few samples to predict its time.

    Parameters
    ----------
    run : Run
        Its collection, preparation and fit count.
    shape, dtype : str, optional
        Of data that are not here yet, e.g. ``"60000x28x28"``; taken instead of the run's collection.
    workers : int
        Processes that would share the work; the budget is that of each.
    """
    raw = (
        open_run(run.collection)
        if shape is None
        else open_collection(declared(shape, dtype), **opening_of(run.collection))
    )
    request = replace(request_of(run), workers=workers, output=True)  # as of a fit, whose model goes somewhere
    collection = prepared(raw, preparation_of(run.prepare))
    planned = plan_collection(collection, request, total_weight=foreseen_weight(run.fit.sample_weight, raw, shape))
    return planned if shape is not None else calibrated(planned, collection)
