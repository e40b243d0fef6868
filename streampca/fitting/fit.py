"""`fit`, the engine's story: open the collection, plan, run the method, build the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..events import Listener, Planned, Warned, check_listener, or_logged, silent
from ..execution import Executor
from ..execution.checkpoint import Checkpointing, clear_finished
from ..execution.executor import as_of
from ..execution.session import Session, run_session, session
from ..execution.threads import one_blas_thread
from ..kinds.description import Description
from ..kinds.part import Part, part_of
from ..kinds.run import Run
from ..machine import PeakMeter, hand_back
from ..models.model import Model
from ..models.store import ModelWriter, check_model_output
from ..preprocessing import Preparation, Prepared
from ..preprocessing.run_options import FitOptions
from ..readers import check_apart, column_paths, open_collection, paths_of
from ..readers.source import is_batches
from ..readers.stored.axis_roles import grid_mapping
from ..readers.target import check_target, digest_of
from ..readers.weights import weights_digest
from ..signals import stopping_on_signals
from ..storage.components import ComponentWriter, UnfinishedComponents
from ..storage.disk import expanded
from .arguments import DEFAULT, arguments_of
from .batches import fit_batches
from .build_model import coordinates_of, data_of, dims_of, model_of, provenance_of
from .earlier_model import load_earlier
from .executor import resumable_scratch_name, scratch_name, with_executor_limits
from .identity import decisive_fields, identity_of
from .kernel_residuals import with_residuals
from .methods import METHODS, Decomposition, Job
from .open_fit import Opened, open_fit
from .plan import warn_of_disk
from .preparation_rounding import with_rounding

Float64 = npt.NDArray[np.float64]

ONE_THREAD_SECONDS = 1.0  # predicted work of one core up to which BLAS has one thread


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
        What is computed, such as ``streampca.Isomap(2)``; by default ``streampca.PCA(n_components)``. It is not
        changed: the fitted model is returned.
    n_components : int, float, {"elbow", "mp", "mle"} or None, default=0.95
        Number of principal components, share of the variance, a rule that counts them, or None for all; of the default
        kind only, see `streampca.PCA`.
    target : array, path or str, optional
        Label or number of each sample, from which supervised kinds learn: anything `open_column` takes, or label
        features of shape (n, l). Of "action-respecting-embedding", the action that leads from each sample to the next.
    sample_weight : array, path or str, optional
        How often each sample counts, n numbers of at least 0: a sample of weight 2 counts as if it were there twice.
        Anything `open_column` takes.
    preparation : Preparation, optional
        Steps applied to every sample first, and stored in the model.
    **options
        ``memory``, ``output``, ``overwrite``, ``checkpoint``, ``workers``, ``cluster`` ...: how the fit is carried
        out, see `streampca.Run`, of which ``run=`` takes one. ``key``, ``sample_axes``, ``select``, ``on_bad_file``
        ...: how the source is opened, see `open_collection`.

    Returns
    -------
    PCAModel
        Of the class that belongs to the kind, with error bounds. The peak memory measured is in
        ``provenance["peak_bytes"]``.

    Raises
    ------
    SourceError
        If the source cannot be read; as a ChangedError, if it changed since it was opened.
    DataError
        If it has one sample only, NaN or infinity, or no variance.
    RequestError
        If an option is wrong for this collection, or the output is what is read, holds it or lies in it.
    BudgetError
        If the request does not fit the budget; before any data is read.
    ClusterError
        If there is no cluster, its workers lack a package, memory or the data, or it is lost.
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
    given = arguments_of(fit, kind, n_components, preparation, options)
    run, opening, listener = given.run, given.opening, given.listener
    check_listener(listener)
    check_target(target, given.model)
    place = output_of(run, source, opening.get("labels"), sample_weight, target)
    if is_batches(source):
        return fit_batches(source, given, None if place is None else place.path, sample_weight)
    opened = open_fit(
        open_collection(source, listener=listener, **opening),
        given.request(),
        given.preparation,
        sample_weight=sample_weight,
        target=target,
        shared=run.is_shared,
        listener=listener,
    )
    return carry_out(opened, run, place)


def output_of(run: Run, source: Any, *columns: Any) -> ModelOutput | None:
    """Return the folder that a run writes its model to; refuse one that holds the source or a column, or lies in it."""
    if run.output is None:
        return None
    path = expanded(run.output)
    check_apart([path], [*paths_of(source), *column_paths(*columns)])
    return ModelOutput(path, run.overwrite, run.reuse and not run.overwrite and os.path.lexists(path))


def carry_out(opened: Opened, run: Run, place: ModelOutput | None) -> Model:
    """Carry out a fit that was opened, on the executor and with the checkpoints that a run asks for.

    The model that is at the output is returned if it may be used again, and is that of this fit.
    """
    part = part_of(run.part)
    if place is not None and place.may_be_reused:
        if (earlier := load_earlier(place.path, opened, part)) is not None:
            warning = f"{place.path} was fitted by an earlier run with the same options; it is used again."
            or_logged(run.listener)(Warned(warning))
            return earlier
        check_model_output(place.path, overwrite=False)
    with run_session(name_of(opened), run, None if place is None else place.path) as current:
        return fit_in(current, opened, part=part)


@dataclass(frozen=True)
class ModelOutput:
    """Folder that a model is to be written to.

    Attributes
    ----------
    path : str
        The folder to make.
    overwrite : bool
        Whether a model that is there is replaced.
    may_be_reused : bool
        Whether a model that is there is that of an earlier run, to be compared with this one.

    Raises
    ------
    OutputError
        If something is there already, or nothing can be written there.
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
    place: ModelOutput | None = None,
    part: Part | None = None,
    executor: Executor | None = None,
    checkpoint: Checkpointing | None = None,
    listener: Listener = silent,
) -> Model:
    """Plan and carry out a fit that was opened, and write the model where there is a place for it; see `fit`."""
    where: dict[str, Any] = {} if place is None else {"output": place.path, "overwrite": place.overwrite}
    how: dict[str, Any] = {"executor": executor, "checkpointing": checkpoint, "listener": listener}
    with session(name_of(opened), **where, **how) as current:
        return fit_in(current, opened, part=part)


def name_of(opened: Opened) -> str:
    """Return the name of what is done with the inputs of a fit, as events give it."""
    return "embed" if opened.request.model.uses_graph else "fit"


def fit_in(current: Session, opened: Opened, *, part: Part | None = None) -> Model:
    """Fit within a session; see `fit`."""
    if opened.request.model.uses_graph:
        from .embed import EmbeddingRun  # loads the manifolds, which other kinds do without

        return EmbeddingRun(opened, current).carried_out()
    collection, request, weights, target = opened.collection, opened.request, opened.weights, opened.target
    states, runner, listener = collection.states(), current.executor, current.listener
    saved = None
    if current.checkpointing is not None:
        identity = identity_of(collection, request, weights_digest(weights), part, states, digest_of(target))
        saved = current.checkpoint(identity, scratch_folder=request.scratch)
    with as_of(runner):
        plan = replace(opened, request=with_executor_limits(request, runner, saved)).plan(part=part)
    runner.check(partial(collection.read, slice(0, 1)), plan.memory_estimate.total, listener)
    scratch = scratch_name(request, current.output)
    listener(Planned(plan, plan.assumed))
    if saved is None or not saved.record:  # a run that is resumed has written some of it
        folder = None if saved is None else saved.folder
        warn_of_disk(plan, current.output, folder, listener, part=part)
    if saved is not None:
        copy = resumable_scratch_name(request, saved) if plan.schedule == "scratch" else None
        saved.begin(decisive_fields(plan), scratch=copy, memory=plan.memory, workers=plan.workers)
        scratch = saved.scratch
    meter = PeakMeter()
    stage = None if saved is None else saved.stage
    how: dict[str, Any] = {"weights": weights, "listener": listener, "scratch": scratch, "target": target}
    job = Job(collection, plan, runner, stage=stage, states=states, **how)

    def about(decomposition: Decomposition) -> dict[str, Any]:
        data = data_of(collection, states, weights, part, target)
        return provenance_of(data, plan, decomposition, seconds=current.seconds, peak=meter.peak())

    # Threads of BLAS spin while they wait for one another: 1797 digits took twice the processor time with two.
    is_small = plan.work.seconds(1, 1, plan.rates) < ONE_THREAD_SECONDS
    with one_blas_thread() if is_small else nullcontext(), nullcontext() if saved is None else saved.running():
        if plan.stored and current.output is not None:
            return _written(collection, job, current, about)
        decomposition = METHODS[plan.method](job).of_kind(request.kind)
        if request.model.maps_samples and decomposition.mapped is None:
            decomposition = with_residuals(job, decomposition)
        model = model_of(collection, decomposition, about(decomposition), decomposition.components)
        model = with_rounding(model, collection, weights)
        if current.output is not None:
            # The C library kept 27 MiB of the 80 that the passes freed, beside the buffers of writing.
            hand_back()
            model.save(current.output, overwrite=current.overwrite)
    return model


def _written(
    collection: Prepared, job: Job, current: Session, about: Callable[[Decomposition], dict[str, Any]]
) -> Model:
    """Return a model whose components are written as they are computed, and stay on disk."""
    kind = job.plan.request.kind
    dims, known = dims_of(collection, kind), coordinates_of(collection, kind)
    like: dict[str, Any] = {"dims": dims, "mask": collection.mask, "attributes": grid_mapping(dims, known)}
    with ModelWriter(str(current.output), overwrite=current.overwrite, keeps=job.stage is not None) as writer:

        def sink(count: int, dtype: np.dtype[Any], unfinished: UnfinishedComponents | None) -> ComponentWriter:
            return writer.components((count, *collection.sample_shape), dtype=dtype, resume=unfinished, **like)

        decomposition = METHODS[job.plan.method](replace(job, sink=sink)).of_kind(kind)
        model = model_of(collection, decomposition, about(decomposition), writer.stored())
        model = with_rounding(model, collection, job.weights, writer.begun(collection.mask))
        writer.finish(model)
    return model
