"""`fit`: open the collection, plan, run the method, build the model and write it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import numpy as np

from ..errors import OutputError
from ..events import Listener, Planned, Warned, check_listener, or_logged, silent
from ..execution import Executor
from ..execution.checkpoint import CheckpointFolder, Checkpointing, clear_finished, path_beside
from ..execution.executor import planning_for
from ..execution.session import Session, run_session, session
from ..execution.threads import one_blas_thread
from ..kinds.description import Description
from ..kinds.run import Part, Run, part_of
from ..machine import PeakMeter, hand_back
from ..models.model import Model
from ..models.registry import model_class
from ..models.store import ModelWriter, check_model_output, kept_coordinates, stored_axes, unstorable_coordinates
from ..planning import Plan
from ..planning.request import Request
from ..preprocessing import Preparation, Prepared
from ..preprocessing.run_options import FitOptions
from ..readers import check_apart, column_paths, open_collection, paths_of
from ..readers.collection import State, sample_dims
from ..readers.source import is_batches
from ..readers.stored.axis_roles import grid_mapping
from ..readers.target import check_target
from ..readers.weights import weights_digest
from ..signals import stopping_on_signals
from ..storage.components import ComponentWriter, UnfinishedComponents
from ..storage.disk import expanded
from ..storage.outputs import SCRATCH, is_present
from .arguments import DEFAULT, arguments_of
from .batches import fit_batches
from .build_model import data_of, model_of, provenance_of
from .earlier_model import load_earlier
from .identity import decisive_fields, identity_of
from .kernel_residuals import with_residuals
from .methods import METHODS, Decomposition, Job
from .open_fit import Opened, open_fit
from .plan import limits_of, warn_of_disk, with_executor_limits
from .preparation_rounding import with_rounding

ONE_THREAD_SECONDS = 1.0  # predicted time on one core, up to which BLAS gets one thread


@stopping_on_signals()
def fit(
    source: Any,
    kind: Description | None = None,
    *,
    n_components: int | float | str | None = DEFAULT,
    target: Any = None,
    sample_weight: Any = None,
    preparation: Preparation | None = None,
    **options: Unpack[FitOptions],
) -> Model:
    """Fit a kind of model to a collection of images.

    Parameters
    ----------
    source : path, glob, list of paths, array or Collection
        See `open_collection`. Or a generator of batches, each of which is read once: then principal components are
        fitted by method "covariance", or a sketch, as by `PCA.partial_fit`.
    kind : PCA, KernelPCA, Isomap or another kind of model, optional
        Kind of model with its options, such as ``streampca.Isomap(2)``; by default ``streampca.PCA(n_components)``. An
        estimator stays unfitted: the fitted model is returned.
    n_components : int, float, {"elbow", "mp", "mle"} or None, default=0.95
        Number of principal components, share of the variance, a rule that counts them, or None for all; only where
        `kind` is left out, see `streampca.PCA`.
    target : array, path or str, optional
        Label or number of each sample, from which supervised kinds learn: anything that `open_column` accepts, or label
        features of shape (n, l). For "action-respecting-embedding", the action that leads from each sample to the next.
    sample_weight : array, path or str, optional
        How often each sample counts, n numbers of at least 0: weight 2 is the sample given twice. Anything that
        `open_column` accepts.
    preparation : Preparation, optional
        Steps applied to every sample first, and stored in the model.
    **options
        Options of a run: ``memory``, ``output``, ``overwrite``, ``checkpoint``, ``workers``, ``cluster`` ..., or a
        whole one as ``run=``, see `streampca.Run`. Options of opening: ``key``, ``sample_axes``, ``select``,
        ``on_bad_file`` ..., see `open_collection`.

    Returns
    -------
    PCAModel
        Fitted model, of the class that belongs to the kind, with error bounds. ``provenance["peak_bytes"]`` is the
        measured peak memory.

    Raises
    ------
    SourceError
        If the source cannot be read, or, as a ChangedError, has changed since it was opened.
    DataError
        If it has one sample only, NaN or infinity, or no variance.
    RequestError
        If an option is wrong for this collection, or the output is the source, contains it or lies in it.
    BudgetError
        If the request does not fit the budget; before any data is read.
    ClusterError
        If no cluster is reached, its workers lack a package, memory or the data, or the connection is lost.
    OutputError
        If the output exists (and ``overwrite`` is false) or cannot be written, or the disk is too small for a scratch
        copy.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> model
    PCAModel(10 components of 8 x 8 samples, 73.8% of the variance of 1797 samples)
    >>> model.transform(digits).shape
    (1797, 10)
    >>> model.reconstruct(digits).shape
    (1797, 8, 8)
    """
    arguments = arguments_of(fit, kind, n_components, preparation, options)
    run, opening, listener = arguments.run, arguments.opening, or_logged(arguments.run.listener)
    check_listener(listener)
    check_target(target, arguments.model)
    # The output is checked before the source is opened, which reads every header of a folder of images.
    output = output_of(run, source, opening.get("labels"), sample_weight, target)
    if is_batches(source):
        return fit_batches(source, arguments, None if output is None else output.path, sample_weight)
    opened = open_fit(
        open_collection(source, listener=listener, **opening),
        arguments.request(),
        arguments.preparation,
        sample_weight=sample_weight,
        target=target,
        shared=run.is_shared,
        listener=listener,
    )
    return carry_out(opened, run, output)


def output_of(run: Run, source: Any, *columns: Any) -> ModelOutput | None:
    """Return the folder that a run writes its model to; refuse one inside the source or a column, or around it."""
    if run.output is None:
        return None
    path = expanded(run.output)
    check_apart([path], [*paths_of(source), *column_paths(*columns)])
    return ModelOutput(path, run.overwrite, run.reuse and is_present(path))


def carry_out(opened: Opened, run: Run, output: ModelOutput | None) -> Model:
    """Carry out an opened fit on the executor of a run, with its checkpoints.

    A model that an earlier run of the same request left at the output is returned, if it may be reused.
    """
    part = part_of(run.part)
    if output is not None and output.may_be_reused:
        how: Any = {"overwrite": output.overwrite, "listener": or_logged(run.listener)}
        if (earlier := load_earlier(output.path, opened, part, **how)) is not None:
            return earlier
    name = "embed" if opened.request.model.uses_graph else "fit"
    with run_session(name, run, None if output is None else output.path) as current:
        return fit_in(current, opened, part=part)


@dataclass(frozen=True)
class ModelOutput:
    """Folder that a model will be written to.

    Attributes
    ----------
    path : str
        Path of the folder.
    overwrite : bool
        Replace an existing model.
    may_be_reused : bool
        Compare an existing model with this fit, and return it if it is the same; else replace it with `overwrite`.

    Raises
    ------
    OutputError
        If the folder exists and is neither replaced nor reused, or cannot be written.
    """

    path: str
    overwrite: bool = False
    may_be_reused: bool = False

    def __post_init__(self) -> None:
        clear_finished(self.path)
        if not self.may_be_reused:
            check_model_output(self.path, overwrite=self.overwrite)


def fit_collection(
    opened: Opened,
    *,
    output: ModelOutput | None = None,
    part: Part | None = None,
    executor: Executor | None = None,
    checkpoint: Checkpointing | None = None,
    listener: Listener = silent,
) -> Model:
    """Carry out an opened fit on an executor that exists, as a stage of other work."""
    path, overwrite = (None, False) if output is None else (output.path, output.overwrite)
    execution: dict[str, Any] = {"executor": executor, "checkpointing": checkpoint, "listener": listener}
    with session("fit", output=path, overwrite=overwrite, **execution) as current:
        return fit_in(current, opened, part=part)


def fit_in(current: Session, opened: Opened, *, part: Part | None = None) -> Model:
    """Plan an opened fit and carry it out within a session; write the model if the session has an output."""
    if opened.request.model.uses_graph:
        from .embed import EmbeddingRun  # loads the manifolds, which other kinds do without

        with planning_for(current.executor):
            limited = with_executor_limits(opened.request, current.executor, None)
            return EmbeddingRun(replace(opened, request=limited), current).carry_out()
    collection, weights, target, states = opened.collection, opened.weights, opened.target, opened.collection.states()
    if unstorable := unstorable_coordinates(collection.coordinates, sample_dims(collection)):
        names = ", ".join(map(repr, unstorable))
        current.listener(
            Warned(f"coordinates {names} are left out of the model, as no folder can have such a name; rename them.")
        )
    plan, checkpoint, scratch = _planned(current, opened, part, states)
    meter, stage = PeakMeter(), None if checkpoint is None else checkpoint.stage
    inputs: dict[str, Any] = {"weights": weights, "listener": current.listener, "scratch": scratch, "target": target}
    job = Job(collection, plan, current.executor, stage=stage, states=states, **inputs)

    def about(decomposition: Decomposition) -> dict[str, Any]:
        data = data_of(collection, states, weights, part, target)
        return provenance_of(data, plan, decomposition, seconds=current.seconds, peak=meter.peak())

    # Threads of BLAS spin while they wait for one another: 1797 digits took twice the processor time with two.
    is_small = plan.work.seconds(1, plan.rates) < ONE_THREAD_SECONDS
    running = nullcontext() if checkpoint is None else checkpoint.running()
    with one_blas_thread() if is_small else nullcontext(), running:
        if plan.stored and current.output is not None:
            return _written(collection, job, current, about)
        decomposition = METHODS[plan.method](job).of_kind(opened.request.kind)
        # Method "kernel-matrix", which makes the map itself, knows the residuals already.
        if opened.request.model.maps_samples and decomposition.mapped is None:
            decomposition = with_residuals(job, decomposition)
        model = model_of(collection, decomposition, about(decomposition), decomposition.components)
        model = with_rounding(model, collection, weights)
        if current.output is not None:
            hand_back()  # the C library kept 27 MiB of the 80 that the passes freed, beside the buffers of writing
            model.save(current.output, overwrite=current.overwrite)
    return model


def _planned(
    current: Session, opened: Opened, part: Part | None, states: Sequence[State]
) -> tuple[Plan, CheckpointFolder | None, str | None]:
    """Return the plan of a fit, its checkpoint, and the name of a scratch copy; check workers and free space."""
    collection, request, executor, checkpoint = opened.collection, opened.request, current.executor, None
    if current.checkpointing is not None:
        of_weights, of_target = weights_digest(opened.weights), None if opened.target is None else opened.target.digest
        identity = identity_of(collection, request, of_weights, part, states, of_target)
        checkpoint = current.checkpoint(identity, scratch_folder=request.scratch)
    with planning_for(executor):
        plan = replace(opened, request=with_executor_limits(request, executor, checkpoint)).plan(part=part)
    executor.check(partial(collection.read, slice(0, 1)), plan.memory_estimate.total, current.listener)
    scratch = scratch_name(request, current.output)
    current.listener(Planned(plan, plan.assumed))
    # A run that is resumed has already written some of it.
    if (current.output or checkpoint) and (checkpoint is None or not checkpoint.record):
        warn_of_disk(plan, current.output, current.checkpoint_disk, current.listener, part=part)
    if checkpoint is not None:
        copy = resumable_scratch_name(checkpoint) if plan.schedule == "scratch" else None
        checkpoint.begin(decisive_fields(plan), scratch=copy, **limits_of(plan))
        scratch = checkpoint.scratch
    return plan, checkpoint, scratch


def _written(
    collection: Prepared, job: Job, current: Session, about: Callable[[Decomposition], dict[str, Any]]
) -> Model:
    """Fit a model whose components are written as they are computed, and stay on disk."""
    kind = job.plan.request.kind
    dims = sample_dims(collection)
    dims, coordinates, _ = stored_axes(dims, kept_coordinates(collection.coordinates, dims), model_class(kind))
    attributes = grid_mapping(dims, coordinates)
    layout: dict[str, Any] = {"dims": dims, "mask": collection.mask, "attributes": attributes}
    with ModelWriter(str(current.output), overwrite=current.overwrite, keeps=job.stage is not None) as writer:

        def sink(count: int, dtype: np.dtype[Any], unfinished: UnfinishedComponents | None) -> ComponentWriter:
            return writer.components((count, *collection.sample_shape), dtype=dtype, resume=unfinished, **layout)

        decomposition = METHODS[job.plan.method](replace(job, sink=sink)).of_kind(kind)
        model = model_of(collection, decomposition, about(decomposition), writer.stored())
        # The writer's folder has its name only when it is finished: components are read from where they are written.
        model = with_rounding(model, collection, job.weights, writer.unfinished_rows(collection.mask))
        writer.finish(model)
    return model


def scratch_name(request: Request, output: str | None) -> str | None:
    """Return the beginning of the name of a scratch copy: beside the output, or in the folder `scratch`.

    Where the output is at a URL, it is in the current directory.

    Raises
    ------
    OutputError
        If `scratch` is not a folder.
    """
    if request.scratch is None:
        return None if output is None else path_beside(output) + SCRATCH
    if not os.path.isdir(request.scratch):
        raise OutputError(
            f"scratch {request.scratch!r} is not a folder; make it, or give another by --scratch (scratch=)."
        )
    return os.path.join(request.scratch, f"streampca{SCRATCH}")


def resumable_scratch_name(checkpoint: CheckpointFolder) -> str:
    """Return a unique path of a scratch copy that outlives the process."""
    return os.path.join(checkpoint.local_folder, f"{uuid.uuid4().hex[:12]}{SCRATCH}")
