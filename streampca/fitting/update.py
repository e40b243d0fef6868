"""`update`: add samples to a model without reading again those that it was fitted to.

Samples are added to the statistic that the model keeps, as by `partial_fit`. Of a source that the model has seen and
that has grown since, only the new samples are read, after a check that the others are unchanged.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np

from ..arrays import Float64
from ..errors import RequestError
from ..events import Planned, Warned, check_listener, or_logged
from ..execution.checkpoint import CheckpointFolder
from ..execution.session import Session, run_session
from ..kinds.description import make
from ..kinds.pca import PCADescription
from ..machine import PeakMeter, hand_back
from ..models.load import load_model
from ..models.model import Model
from ..models.pca import PCAModel
from ..planning.incremental import sketch_rows
from ..planning.request import Request
from ..preprocessing import Prepared
from ..preprocessing.run_options import DEVICE, OF_FITS, FitOptions, run_and_opening
from ..readers import Collection, check_apart, column_paths, open_collection, paths_of
from ..readers.views.chosen import Chosen
from ..readers.weights import weights_digest, weights_of_batch
from ..signals import stopping_on_signals
from ..storage.disk import expanded
from ..units import parse_bytes
from .build_model import data_of
from .fit import ModelOutput
from .identity import check_adds, decisive_fields, identity_of
from .incremental import BatchExecution, IncrementalFit
from .methods import sketch_of_model
from .plan import limits_of, with_executor_limits
from .seen import Seen, places_to_add, provenance_of_sources, seen_by

PathLike = str | os.PathLike[str]


@stopping_on_signals()
def update(
    model: PathLike | PCAModel,
    source: Any,
    *,
    n_components: int | float | str | None = None,
    half_life: float | None = None,
    approximate: bool = False,
    sample_weight: Any = None,
    **options: Unpack[FitOptions],
) -> PCAModel:
    """Return a model with the samples of a collection added, as if it had been fitted to all.

    Parameters
    ----------
    model : path or PCAModel
        Model that keeps its statistic, as those of method "covariance" and of `partial_fit` do.
    source : path, glob, list of paths, array or Collection
        Further samples; or a source that the model has seen and that has grown at its end since, of which only the new
        samples are read: a Zarr array, a folder or glob of images, a series of files, a chunked HDF5 dataset.
    n_components : int, float or str, optional
        As for `fit`, "all" for all; by default as the model was fitted.
    half_life : float, optional
        Number of samples after which a sample counts half as much, from now on; by default as the model was fitted.
    approximate : bool, default=False
        Let the components of a model without a statistic stand for it, see `merge`.
    sample_weight : array, path or str, optional
        A weight for each sample of `source`, as for `fit`.
    **options
        Options of a run, see `streampca.Run`, and of opening, see `open_collection`. The output may be the folder of
        `model`, which is replaced in one step at the end.

    Returns
    -------
    PCAModel
        Model with its statistic. For whole numbers with exact products it has the bits of one fit to all samples; else
        it agrees to rounding.

    Raises
    ------
    ModelError
        If the model keeps no statistic, or the samples differ from its own in shape, kind or grid.
    ChangedError
        If samples of a source that the model has seen have changed.
    RequestError
        If a source that the model has seen has grown, and does not show whether its earlier samples are unchanged.
    DuplicatesError
        If the source shares files or dates with others that the model has seen; ``duplicates="first"`` leaves out
        samples of such dates, "all" adds all.
    DataError, BudgetError, OutputError
        As `fit`.

    Notes
    -----
    Memory: 24 p^2 bytes, and blocks of samples.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits[:1000], n_components=10, output="model.zarr")
    >>> streampca.update("model.zarr", digits[1000:])
    PCAModel(10 components of 8 x 8 samples, 73.8% of the variance of 1797 samples)
    """
    run, opening = run_and_opening(update, options, unused=(*OF_FITS, *DEVICE))
    listener = or_logged(run.listener)
    check_listener(listener)
    earlier = load_to_update(model, run.memory)
    path = None if run.output is None else expanded(run.output)
    raw = open_collection(source, like=earlier, listener=listener, **opening)
    if path is not None:
        check_apart([path], [*paths_of(source), *column_paths(opening.get("labels"), sample_weight)])
    request = updating_request(earlier, n_components=n_components, half_life=half_life, memory=run.memory)
    if path is not None:
        ModelOutput(path, run.overwrite or is_in_place(path, earlier))
    with run_session("fit", run, path) as current:
        return update_in(current, earlier, raw, request, approximate=approximate, sample_weight=sample_weight)


def is_in_place(path: str, model: PCAModel) -> bool:
    """Return whether an output is the folder that a model was loaded from."""
    return os.path.realpath(path) == os.path.realpath(model.name)


def updating_request(
    model: PCAModel,
    *,
    n_components: int | float | str | None = None,
    half_life: float | None = None,
    memory: int | str | None = None,
) -> Request:
    """Return the request of an update: that of the model's fit, with the given options in place of its own."""
    fitted = (model.provenance.get("plan") or {}).get("request") or {}
    options = {name: fitted[name] for name in ("precision", "random_state", "missing") if name in fitted}
    count = None if n_components == "all" else n_components
    options["n_components"] = fitted.get("n_components") if n_components is None else count
    options["half_life"] = fitted.get("half_life") if half_life is None else half_life
    if options.get("missing") == "em":  # samples are added as they are, and none of them may lack values
        options["missing"] = "error"
    return Request(make(PCADescription, options), memory=parse_bytes(memory))


def load_to_update(model: PathLike | Model, memory: int | str | None = None) -> PCAModel:
    """Return a model with its statistic, if it has one; refuse a kind that cannot be updated."""
    if isinstance(model, PCAModel) and model.statistic is None and os.path.isdir(model.name):
        stored = load_model(model.name, statistic=True, memory=memory, components=False)
        # Its folder may have the statistic, unless it is that of a model that contains this one.
        model = (
            stored if isinstance(stored, PCAModel) else replace(model, name=f"the principal components of {model.name}")
        )
    if not isinstance(model, Model):
        model = load_model(model, statistic=True, memory=memory, components=False)
    return check_adds(model, model.name)


def update_in(
    current: Session,
    earlier: PCAModel,
    raw: Collection,
    request: Request,
    *,
    approximate: bool,
    sample_weight: Any,
) -> PCAModel:
    """Add an opened collection to a model within a session, and write the model; see `update`."""
    listener, meter = current.listener, PeakMeter()
    if approximate and earlier.statistic is None:
        earlier = replace(earlier, statistic=sketch_of_model(earlier, sketch_rows(request, earlier.n_features)))
    whole = earlier.prepared(raw)
    seen = seen_by(earlier.provenance, earlier.name)
    before = next((source for source in seen if source.is_of(raw)), None)
    if before is not None:
        if "dropped" in earlier.provenance:
            raise RequestError(
                f"{earlier.name} was fitted to {raw.source} without samples that have missing values, so those that it "
                "has seen cannot be counted; give the new ones alone: --samples START: (samples=slice(START, None))."
            )
        before.check(whole, earlier.name)
    # The record is made before samples are read, so that a change meanwhile is found by the next update.
    places, now = places_to_add(whole, seen, before, earlier.name, listener), Seen.of(whole)
    with ExitStack() as stack:
        if len(places):
            new = Chosen(raw, places) if len(places) < raw.n_samples else raw
            weights = weights_of_batch(sample_weight, raw)
            weights = None if weights is None else weights[np.asarray(places)]
            checkpoint = _checkpoint(current, earlier, earlier.prepared(new), request, weights)
            fit = IncrementalFit.from_model(earlier, with_executor_limits(request, current.executor, checkpoint))
            execution = BatchExecution(current.executor, None if checkpoint is None else checkpoint.stage)
            plan = fit.plan_for(earlier.prepared(new), weights, execution)
            current.executor.check(partial(whole.read, slice(0, 1)), plan.memory_estimate.total, listener)
            listener(Planned(plan))
            if checkpoint is not None:
                checkpoint.begin(decisive_fields(plan), **limits_of(plan))
                stack.enter_context(checkpoint.running())
            fit.add(new, weights, listener, execution)
        else:
            fit = IncrementalFit.from_model(earlier, request)
            listener(Planned(fit.plan_for(whole, None, BatchExecution())))
            listener(Warned(f"{whole.source} has no samples that {earlier.name} was not fitted to; none are added."))
        model = fit.model(request, listener)
        sources = [*(source for source in seen if source is not before), now]
        about = provenance_of_sources(sources, data_of(whole, whole.states(), None, None), model.provenance)
        model = replace(model, provenance={**about, "peak_bytes": meter.peak()})
        if current.output is not None:
            hand_back()  # the memory that the pass freed
            overwrite = current.overwrite or is_in_place(current.output, earlier)
            model.save(current.output, overwrite=overwrite, keep_state=True)
    return model


def _checkpoint(
    current: Session, earlier: PCAModel, new: Prepared, request: Request, weights: Float64 | None
) -> CheckpointFolder | None:
    """Return the checkpoint of adding samples to a model, which a resumed run must find unchanged."""
    if current.checkpointing is None:
        return None
    identity = identity_of(new, request, weights_digest(weights), None, new.states())
    model = {f"{name} of the model": earlier.provenance.get(name) for name in ("created", "fingerprint")}
    return current.checkpoint(identity | model)
