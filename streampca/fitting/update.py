"""`update`: a model with samples added, without those that it has seen being read again.

Samples are added to the statistic that the model keeps, as by `partial_fit`. A source that the model has seen, and that
has grown since, gives its further samples only, once the states of what was seen have been found unchanged.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..errors import RequestError
from ..events import Finished, Listener, Planned, Warned, check_listener, logged, one_at_a_time
from ..execution import Executor, LocalExecutor
from ..execution.checkpoint import CheckpointFolder, Checkpointing, checkpointing
from ..execution.executor import executing
from ..machine import PeakMeter, hand_back
from ..models.pca import PCAModel, load_but_components
from ..planning.incremental import sketch_rows
from ..planning.request import Request
from ..preprocessing import Prepared
from ..readers import Collection, Opening, check_apart, column_paths, open_collection, paths_of
from ..readers.views.chosen import Chosen
from ..readers.weights import weights_digest, weights_of_batch
from ..signals import stopping_on_signals
from ..storage.disk import expanded
from ..storage.locks import checkpoint_lock, output_lock
from ..units import parse_bytes
from .build_model import data_of
from .executor import suited
from .fit import Place
from .identity import check_adds, check_beside, decisive_fields, identity_of
from .incremental import IncrementalFit, Running
from .methods import sketch_of_model
from .plan import check_options
from .seen import Seen, places_to_add, provenance_of_sources, seen_by

Float64 = npt.NDArray[np.float64]
PathLike = str | os.PathLike[str]


@stopping_on_signals()
def update(
    model: PathLike | PCAModel,
    source: Any,
    output: PathLike | None = None,
    *,
    n_components: int | float | str | None = None,
    half_life: float | None = None,
    approximate: bool = False,
    memory: int | str | None = None,
    sample_weight: Any = None,
    overwrite: bool = False,
    checkpoint: PathLike | Checkpointing | None = None,
    cluster: Any = None,
    listener: Listener = logged,
    **opening: Unpack[Opening],
) -> PCAModel:
    """Return a model with the samples of a collection added, as if it had been fitted to all of them.

    Parameters
    ----------
    model : path or PCAModel
        A model that keeps its statistic, as those of method "covariance" and of `partial_fit` do.
    source : path, glob, list of paths, array or Collection
        Further samples; or a source that the model has seen and that has grown at its end since, of which only the new
        ones are read: a Zarr array, a folder or glob of images, a series of files, a chunked HDF5 dataset.
    output : path, optional
        Folder to write the model to, which may be that of `model`: it is replaced in one step when all is done.
    n_components : int, float or str, optional
        As for `fit`; by default what the model was fitted with.
    half_life : float, optional
        Samples after which a sample counts half as much, from now on; by default that of the model, if it has one.
    approximate : bool, default=False
        Let the components of a model that keeps no statistic stand for it, see `merge`.
    memory : int or str, optional
        Most bytes to use, e.g. ``"2 GiB"``; half of what the machine allows by default.
    sample_weight : array, path or str, optional
        A weight for each sample of `source`, as for `fit`.
    overwrite : bool, default=False
        Replace another model that is at `output`.
    checkpoint : path or Checkpointing, optional
        Folder to save progress in; after a kill the same call resumes.
    cluster : int, str or distributed.Client, optional
        Shares the work, as in `fit`.
    listener : callable, optional
        Told what happens (`streampca.events`); by default warnings are logged.
    **opening
        ``key``, ``sample_axes``, ``select``, ...: see `open_collection`.

    Returns
    -------
    PCAModel
        With its statistic. Of whole numbers whose products are exact it has the bits of one fit of all samples; else
        it agrees to rounding.

    Raises
    ------
    ModelError
        If the model keeps no statistic, or the samples are of another shape, kind or grid.
    ChangedError
        If the source is one that the model has seen, and what was seen of it has changed.
    RequestError
        If the source is one that the model has seen, has grown, and cannot be compared with itself before.
    DuplicatesError
        If it has files, or dates, of other sources that the model has seen; ``duplicates="first"`` leaves out samples
        of such dates, "all" adds all.
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
    check_listener(listener)
    check_options(update, opening)
    earlier = load_to_update(model, memory)
    path = None if output is None else expanded(output)
    raw = open_collection(source, like=earlier, listener=listener, **opening)
    if path is not None:
        check_apart([path], [*paths_of(source), *column_paths(opening.get("labels"), sample_weight)])
    request = updating_request(earlier, n_components=n_components, half_life=half_life, memory=memory)
    place = None if path is None else Place(path, overwrite or is_in_place(path, earlier))
    how: dict[str, Any] = {"sample_weight": sample_weight, "place": place, "listener": listener}
    if checkpoint is not None:
        how["checkpoint"] = checkpointing(checkpoint)
    with executing(cluster, request.memory, listener=listener) as executor:
        return update_model(earlier, raw, request, approximate=approximate, executor=executor, **how)


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
    """Return the request by which a model is updated: that of its fit, but for what is given."""
    asked = (model.provenance.get("plan") or {}).get("request") or {}
    return Request(
        n_components=asked.get("n_components") if n_components is None else n_components,
        half_life=asked.get("half_life") if half_life is None else half_life,
        precision=asked.get("precision", "auto"),
        seed=asked.get("seed", 0),
        memory=parse_bytes(memory),
        missing=rule if (rule := asked.get("missing", "error")) != "em" else "error",
    )


def load_to_update(model: PathLike | PCAModel, memory: int | str | None = None) -> PCAModel:
    """Return a model with its statistic, where it has one."""
    if isinstance(model, PCAModel) and model.statistic is None and os.path.isdir(model.name):
        model = model.name
    return model if isinstance(model, PCAModel) else load_but_components(model, statistic=True, memory=memory)


def update_model(
    earlier: PCAModel,
    raw: Collection,
    request: Request,
    *,
    approximate: bool = False,
    sample_weight: Any = None,
    place: Place | None = None,
    executor: Executor | None = None,
    checkpoint: Checkpointing | None = None,
    listener: Listener,
) -> PCAModel:
    """Add an opened collection to a model, and write the outcome where there is a place for it; see `update`."""
    began, meter, listener = time.perf_counter(), PeakMeter(), one_at_a_time(listener)
    check_adds(earlier, earlier.name)
    if approximate and earlier.statistic is None:
        earlier = replace(earlier, statistic=sketch_of_model(earlier, sketch_rows(request, earlier.n_features)))
    whole = earlier.prepared(raw)
    known = seen_by(earlier.provenance)
    before = next((each for each in known if each.is_of(raw)), None)
    if before is not None:
        if "dropped" in earlier.provenance:
            raise RequestError(
                f"{earlier.name} was fitted to {raw.source} without samples that have missing values, so those that it "
                "has seen cannot be counted; give the new ones alone: --samples START: (samples=slice(START, None))."
            )
        before.check(whole, earlier.name)
    places, now = places_to_add(whole, known, before, earlier.name, listener), Seen.of(whole)
    if checkpoint is not None:
        check_beside(checkpoint.folder, None if place is None else place.path)
    with ExitStack() as stack:
        stack.enter_context(output_lock(None if place is None else place.path))
        stack.enter_context(checkpoint_lock(None if checkpoint is None else checkpoint.folder))
        if len(places):
            new = Chosen(raw, places) if len(places) < raw.n_samples else raw
            weights = weights_of_batch(sample_weight, raw)
            weights = None if weights is None else weights[np.asarray(places)]
            runner, saved = executor or LocalExecutor(), None
            if checkpoint is not None:
                saved = _checkpoint(checkpoint, earlier, earlier.prepared(new), request, weights, place, listener)
            fit = IncrementalFit.going_on(earlier, suited(request, runner, saved))
            running = Running(runner, None if saved is None else saved.stage)
            plan = fit.plan_for(earlier.prepared(new), weights, running)
            runner.check(partial(whole.read, slice(0, 1)), plan.memory_estimate.total, listener)
            listener(Planned(plan))
            if saved is not None:
                saved.begin(decisive_fields(plan), memory=plan.memory, workers=plan.workers)
                stack.enter_context(saved.running())
            fit.add(new, weights, listener, running)
        else:
            fit = IncrementalFit.going_on(earlier, request)
            listener(Planned(fit.plan_for(whole, None, Running())))
            listener(Warned(f"{whole.source} has no samples that {earlier.name} was not fitted to; none are added."))
        model = fit.model(request, listener)
        seen = [*(each for each in known if each is not before), now]
        about = provenance_of_sources(seen, data_of(whole, whole.states(), None, None), model.provenance)
        model = replace(model, provenance={**about, "peak_bytes": meter.peak()})
        if place is not None:
            hand_back()  # what the pass freed
            model.save(place.path, overwrite=place.overwrite, keep_state=True)
    listener(Finished("fit", time.perf_counter() - began))
    return model


def _checkpoint(
    how: Checkpointing,
    earlier: PCAModel,
    new: Prepared,
    request: Request,
    weights: Float64 | None,
    place: Place | None,
    listener: Listener,
) -> CheckpointFolder:
    """Return the checkpoint of adding samples to a model, which is part of what is resumed."""
    identity = identity_of(new, request, weights_digest(weights), None, new.states())
    model = {f"{name} of the model": earlier.provenance.get(name) for name in ("created", "fingerprint")}
    overwrite = place is not None and place.overwrite and not is_in_place(place.path, earlier)
    return CheckpointFolder(how, identity | model, overwrite=overwrite, listener=listener)
