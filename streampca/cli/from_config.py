"""Converts the sections of a run to the engine's values: a collection, a preparation, a request, a cluster, a plan."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, cast

from ..errors import ConfigError, RequestError, StreampcaError
from ..events import Listener, logged, silent
from ..execution import ClusterOptions
from ..execution.cluster_options import CONFIGURED, LOCAL, with_address
from ..fitting.calibration import calibrated
from ..fitting.embedding_plan import plan_stages
from ..fitting.open_fit import open_fit, prepare
from ..fitting.plan import open_declared, plan_declared
from ..fitting.update import updating_request
from ..models.pca import PCAModel
from ..planning import Plan
from ..planning.embedding import EmbeddingPlan, EmbeddingRequest
from ..planning.neighbors import NeighborsPlan, NeighborsRequest, plan_neighbors
from ..planning.request import Request
from ..preprocessing import Preparation
from ..preprocessing.kernel_features import KernelOptions
from ..preprocessing.mask_files import read_mask, read_scale
from ..preprocessing.preparation import AREA, with_features
from ..preprocessing.sizes_for_planning import problem_of
from ..readers import Collection, Opening, open_collection
from ..units import parse_bytes, parse_seconds
from .options import CollectionConfig, FitConfig, PrepareConfig, Run


def open_run(
    config: CollectionConfig, *, listing: str | None = None, like: Any = None, listener: Listener = silent
) -> Collection:
    """Open the collection of a run; `listing` and `like` are as for `open_collection`."""
    options: Opening = {**opening_of(config), "listing": listing}
    return open_collection(config.source, **options, like=like, listener=listener)


def with_guessed_axes(run: Run) -> Run:
    """Return a run that says which axes make one sample, where their positions alone would decide; reads headers."""
    if run.collection.sample_axes is not None:
        return run
    try:
        guessed = open_run(run.collection).guessed_axes
    except StreampcaError:  # which is said where the run is carried out
        return run
    return run if guessed is None else run.with_sample_axes(guessed.sample)


def opening_of(config: CollectionConfig) -> Opening:
    """Return the options of `open_collection` that a run gives."""
    select = {axis: slice(*item) if isinstance(item, tuple) else item for axis, item in (config.select or {}).items()}
    sel = {axis: slice(*item) if isinstance(item, tuple) else item for axis, item in (config.sel or {}).items()}
    options = {
        **{name: value for name, value in config if name != "source"},
        "select": select or None,
        "sel": sel or None,
        "patches": None if config.patches is None else config.patches.model_dump(exclude_none=True),
        "samples": None if config.samples is None else slice(*config.samples),
    }
    return cast("Opening", options)


def preparation_of(config: PrepareConfig, fit: FitConfig | None = None, memory: int | None = None) -> Preparation:
    """Return a run's preparation, with the feature map that its fit asks for; reads the files of mask and scale."""
    memory = parse_bytes(fit.memory) if fit is not None and memory is None else memory
    arrays: dict[str, Any] = {"mask": config.mask if config.mask in (None, "valid") else read_mask(config.mask, memory)}
    for name, value in (("scale", config.scale), ("weights", config.weights)):
        arrays[name] = read_scale(value, memory) if isinstance(value, str) and value not in AREA else value
    preparation = Preparation(**dict(config) | arrays)
    if fit is None:
        return preparation
    return with_features(preparation, fit.kind, KernelOptions.of(fit), seed=fit.seed) or preparation


def request_of(run: Run) -> Request:
    """Return a run's request: the options of its fit that concern planning."""
    own = {field.name for field in fields(Request)} & set(FitConfig.model_fields)
    given = run.fit.model_dump(include=own) | {"memory": parse_bytes(run.fit.memory)}
    return Request(**given, output=bool(run.output.model or run.output.directory))


def embedding_of(run: Run) -> EmbeddingRequest | None:
    """Return the request of a run's embedding; None for a fit."""
    if run.embed.kind is None:
        return None
    return EmbeddingRequest(**run.embed.model_dump(exclude={"actions", "graph"}), memory=parse_bytes(run.fit.memory))


def request_to_update(model: PCAModel, run: Run) -> Request:
    """Return the request by which a run updates a model: what the run gives, else what the model was fitted with."""
    fit, given = run.fit, run.fit.model_fields_set
    fixed = (
        "kind",
        "target",
        "target_type",
        "metric",
        "method",
        "precision",
        "seed",
        "tol",
        "max_passes",
        "missing",
        "scratch",
    )
    of_kinds = ("shrinkage", "n_slices", "threshold", "n_folds")
    for name in (*fixed, *of_kinds, *(option.name for option in fields(KernelOptions))):
        if name in given:
            raise ConfigError(f"fit.{name}: {model.name} is updated as it was fitted; leave it out.")
    request = updating_request(model, half_life=fit.half_life, memory=fit.memory)
    return replace(request, n_components=fit.n_components) if "n_components" in given else request


def neighbors_request_of(run: Run) -> NeighborsRequest:
    """Return the request of a run's graph of nearest neighbours."""
    return NeighborsRequest(**run.neighbors.model_dump(), seed=run.fit.seed, memory=parse_bytes(run.fit.memory))


def plan_graph(run: Run) -> NeighborsPlan:
    """Plan the graph of a run's collection; reads headers only."""
    preparation = preparation_of(run.prepare, memory=parse_bytes(run.fit.memory))
    collection = prepare(open_run(run.collection), preparation, foreseen=True)
    return plan_neighbors(problem_of(collection), neighbors_request_of(run), collection.source)


def plan_embedding(run: Run) -> EmbeddingPlan:
    """Plan all stages of the embedding of a run's collection; reads headers, and a graph that is given."""
    from ..fitting.embed import completed  # loads the manifolds, which fits do without

    request, preparation = embedding_of(run), preparation_of(run.prepare, memory=parse_bytes(run.fit.memory))
    assert request is not None  # noqa: S101 - the command embeds
    collection = prepare(open_run(run.collection), preparation, foreseen=True, missing=run.fit.missing)
    request, graph, _ = completed(request, collection, run.embed.graph, run.embed.actions)
    return plan_stages(collection, request, missing=run.fit.missing, has_graph=graph is not None)


def cluster_of(run: Run) -> ClusterOptions | None:
    """Return the cluster of a run, if it has one, or refuse settings that do not go together."""
    config = run.execution
    given = set(config.model_dump(exclude={"kind"}, exclude_defaults=True))  # resolved run files list the defaults, too
    if config.kind == "local" and given:
        raise ConfigError(
            f"execution: {min(given)} is an option of clusters; give kind: dask with it, or leave it out."
        )
    if config.kind == "local":
        return None
    wanted = ClusterOptions(
        config.cluster or (LOCAL if config.workers else CONFIGURED),
        config.options or {},
        config.workers,
        parse_bytes(config.memory),
        parse_seconds(config.timeout),
        config.dashboard,
    )
    try:
        wanted = with_address(wanted)
    except RequestError as error:
        raise ConfigError(f"execution: {error}") from None
    if problem := _conflict(given, wanted):
        raise ConfigError(f"execution: {problem}.")
    return wanted


def _conflict(given: set[str], wanted: ClusterOptions) -> str:
    if wanted.is_submitted and wanted.workers is None:
        return f"{wanted.cluster} starts the workers that it is asked for; give their number, workers (--workers)"
    if wanted.options and not wanted.is_submitted:
        return "options are passed to the jobs of a cluster; give cluster with them (slurm, pbs, ...)"
    if "memory" in given and wanted.is_address:
        return "memory (--worker-memory) is for workers that are started; set that of a cluster where it is started"
    if "memory" in given and "memory" in wanted.options:
        return "memory (--worker-memory) and options.memory are given; leave one out"
    return ""


def plan_run(
    run: Run, *, shape: str | None = None, dtype: str = "uint8", workers: int = 1, measured: bool = True
) -> Plan:
    """Plan a run's fit, or that of data of a declared shape; reads headers, and if `measured` a few samples.

    The time to read these predicts that of the fit; else it is that of a table of rates.
    """
    fit, preparation = run.fit, preparation_of(run.prepare, run.fit)
    request = replace(request_of(run), workers=workers, output=True)  # as of a fit, whose model goes somewhere
    if shape is not None:
        raw = open_declared(shape, dtype, opening_of(run.collection), preparation)
        return plan_declared(raw, request, preparation, weighted=fit.sample_weight is not None, target=fit.target)
    opened = open_fit(
        open_run(run.collection),
        request,
        preparation,
        sample_weight=fit.sample_weight,
        target=fit.target,
        foreseen=True,
        listener=logged,
    )
    # The feature map is not there yet, so reading is measured without it.
    collection = opened.collection.unmapped or opened.collection
    return calibrated(opened.plan(), collection) if measured else opened.plan()
