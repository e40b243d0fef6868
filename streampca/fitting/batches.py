"""Fits of principal components to batches of samples, each of which can be read only once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from ..errors import RequestError
from ..execution.session import run_session
from ..kinds.description import Description, default_of, fields_of
from ..kinds.pca import PCADescription
from ..kinds.run import Run
from ..models.pca import PCAModel
from ..readers import open_collection
from ..readers.source import batch_of
from .arguments import Arguments
from .incremental import IncrementalFit

OF_BATCHES = ("memory", "listener")  # fields of a run that apply to batches
NO_BATCHES = "the batches are over before the first; give at least one."


def check_batches(kind: Description, run: Run, sample_weight: Any, options: Collection[str] = OF_BATCHES) -> None:
    """Refuse options that require several reads of the samples, as batches allow a single one.

    Raises
    ------
    RequestError
    """
    unusable = [] if sample_weight is None else ["sample_weight"]
    unusable += [
        name
        for name, field in fields_of(Run).items()
        if name not in options and getattr(run, name) != default_of(field)
    ]
    if unusable:
        raise RequestError(
            f"batches can be read only once, and {unusable[0]} needs samples that can be read again; leave it out, or "
            "give each batch with its weights to partial_fit, and pickle the estimator between batches."
        )
    if not isinstance(kind, PCADescription):
        raise RequestError(
            f"batches can be read only once, and kind {kind.kind!r} reads samples again; give all samples at once, or "
            "fit kind 'pca'."
        )
    if kind.method not in ("auto", "covariance"):
        raise RequestError(f"method={kind.method!r} reads samples again; fit batches by 'auto' or 'covariance'.")


def fit_batches(batches: Iterator[Any], arguments: Arguments, path: str | None, sample_weight: Any) -> PCAModel:
    """Return the model of all batches, and write it if there is a path; see `fit`.

    Raises
    ------
    RequestError
        If there are too few samples, or an option needs samples that can be read again.
    """
    run, request = arguments.run, arguments.request()
    check_batches(arguments.model, run, sample_weight, (*OF_BATCHES, "output", "overwrite"))
    fit: IncrementalFit | None = None
    with run_session("fit", run, path) as current:
        for batch in map(batch_of, batches):
            raw = open_collection(batch, **arguments.opening)
            fit = IncrementalFit.begin(raw, arguments.preparation, request) if fit is None else fit
            fit.add(raw, None, current.listener)
        if fit is None:
            raise RequestError(NO_BATCHES)
        if shortage := fit.shortage(request):
            raise RequestError(f"{shortage}; give more batches, or ask for fewer components.")
        model = fit.model(request, current.listener)
        if path is not None:
            model.save(path, overwrite=run.overwrite)
    return model
