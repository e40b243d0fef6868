"""`update`: a model with samples added, without those that it has seen being read again.

Samples are added to the statistic that the model keeps, as by `partial_fit`. A source that the model has seen, and that
has grown since, gives its further samples only, once the states of what was seen have been found unchanged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from ..errors import ChangedError, RequestError
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
from ..readers.collection import encoded_states, first_change, growth_states, place_of
from ..readers.views.chosen import Chosen
from ..readers.weights import weights_digest, weights_of_batch
from ..signals import stopping_on_signals
from ..storage.disk import expanded
from ..storage.locks import alone_at, alone_in
from ..units import parse_bytes
from .build_model import data_of
from .executor import suited
from .fit import Place
from .identity import check_adds, check_beside, decisive_fields, identity_of
from .incremental import IncrementalFit, Running
from .methods import sketch_of_model
from .plan import check_options

Float64 = npt.NDArray[np.float64]
PathLike = str | os.PathLike[str]

SEEN = "seen"  # in provenance: what a model was fitted on, an entry a source


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
    known = seen_by(earlier)
    before = next((each for each in known if each.is_of(raw)), None)
    if before is not None:
        if "dropped" in earlier.provenance:
            raise RequestError(
                f"{earlier.name} was fitted to {raw.source} without samples that have missing values, so those that it "
                "has seen cannot be counted; give the new ones alone: --samples START: (samples=slice(START, None))."
            )
        before.check(whole, earlier.name)
    first, now = 0 if before is None else before.n_samples, Seen.of(whole)
    if checkpoint is not None:
        check_beside(checkpoint.folder, None if place is None else place.path)
    with ExitStack() as stack:
        stack.enter_context(alone_at(None if place is None else place.path))
        stack.enter_context(alone_in(None if checkpoint is None else checkpoint.folder))
        if first < whole.n_samples:
            new = Chosen(raw, range(first, raw.n_samples)) if first else raw
            weights = weights_of_batch(sample_weight, raw)
            weights = None if weights is None else weights[first:]
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


@dataclass(frozen=True)
class Seen:
    """Source as a model has seen it; plain data.

    Attributes
    ----------
    place : str or None
        Its place; None where that is not known.
    options : mapping or None
        Options that it was opened with.
    n_samples : int
        Number of samples it had.
    states : str
        Their states (`streampca.readers.collection.encoded_states`).
    """

    place: str | None
    options: Mapping[str, Any] | None
    n_samples: int
    states: str

    @classmethod
    def of(cls, collection: Prepared) -> Self:
        """Return a source as it is now."""
        opened = collection.raw.opened
        options = None if opened is None else {**opened.to_json(), "source": None}
        return cls(place_of(collection.raw), options, collection.n_samples, encoded_states(growth_states(collection)))

    def is_of(self, raw: Collection) -> bool:
        """Return whether a collection is this source, perhaps after samples were added to it."""
        opened, place = raw.opened, place_of(raw)
        return place is not None and (self.place, self.options) == (place, {**opened.to_json(), "source": None})

    def check(self, whole: Prepared, model: str) -> None:
        """Refuse a source of whose samples that were seen some have changed.

        A storage chunk that they did not fill is not compared: it is written anew when samples are added.

        Raises
        ------
        ChangedError, RequestError
            If one has changed, or if nobody can tell.
        """
        first, n = self.n_samples, whole.n_samples
        if n < first:
            raise ChangedError(
                f"{whole.source} has {n} samples now, and {model} was fitted to {first}; fit a new model to them."
            )
        states = growth_states(whole) if n == first else whole.states_of_first(first)
        if states is None:
            raise RequestError(
                f"{whole.source} does not show whether the {first} samples that {model} was fitted to are unchanged; "
                f"give the new ones alone: --samples {first}:{n} (samples=slice({first}, {n}))."
            )
        known, full = self.states.split(), first // whole.chunks.samples * whole.chunks.samples
        if n > first and full < first and states[-1].first == full:
            known, states = known[:-1], states[:-1]
        if (changed := first_change(" ".join(known), states)) is not None:
            raise ChangedError(f"{changed} has changed since {model} was fitted; fit a new model to all samples.")


def seen_by(model: PCAModel) -> list[Seen]:
    """Return what a model was fitted on, as far as it was noted."""
    about = model.provenance
    if SEEN in about:
        return [Seen(**entry) for entry in about[SEEN]]
    if about.get("place") is None or about.get("states") is None:
        return []
    options = None if about.get("opened") is None else {**about["opened"], "source": None}
    states = about.get("states_of_parts", about["states"])
    return [Seen(about["place"], options, about["plan"]["problem"]["n_samples"], states)]


def provenance_of_sources(seen: Sequence[Seen], last: Mapping[str, Any], fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a model of all sources seen.

    Parameters
    ----------
    seen : sequence of Seen
        The sources, in order.
    last : mapping
        Provenance of the data of the last source, see `data_of`; that of the model where it is the only one.
    fitted : mapping
        Provenance of the fit.
    """
    entries = {SEEN: [vars(each) for each in seen]}
    if len(seen) > 1:
        return {**fitted, **entries}
    weights = fitted.get("sample_weight")
    return {**fitted, **last, **entries, "sample_weight": weights}
