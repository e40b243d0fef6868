"""`copy`: a copy of a collection, prepared or not, in Zarr that is fast to read."""

from __future__ import annotations

from typing import Any, Unpack

from ..errors import RequestError
from ..events import check_listener, or_logged
from ..execution.checkpoint import checkpointing_of
from ..execution.executor import cluster_of, executing
from ..preprocessing import Preparation
from ..preprocessing.copy import copy_collection, foresee_copy
from ..preprocessing.run_options import DEVICE, OF_FITS, FitOptions, run_and_opening
from ..readers import open_collection
from ..signals import stopping_on_signals
from ..storage.disk import expanded
from .open_fit import open_samples


@stopping_on_signals()
def copy(source: Any, *, preparation: Preparation | None = None, **options: Unpack[FitOptions]) -> None:
    """Copy a collection, prepared or not, to Zarr that is fast to read by samples.

    Values and dtype stay unchanged. Names of samples, coordinates and attributes are copied too: xarray opens the copy
    as a Dataset, and `open_collection` as a collection equal to the source.

    Parameters
    ----------
    source : path, glob, list of paths, array or Collection
        See `open_collection`.
    preparation : Preparation, optional
        Steps applied to every sample; a mask is refused.
    **options
        ``output``, which is required: a new folder, ending in ``.zarr``. ``memory``, ``overwrite``,
        ``checkpoint``, ``workers`` ...: see `streampca.Run`. ``key``, ``sample_axes`` ...: how the source is opened,
        see `open_collection`.

    Raises
    ------
    RequestError
        If the output's name has another ending, there is a mask, images differ in shape, or the output is, contains or
        lies in the source.
    OutputError
        If the output exists (and ``overwrite`` is false) or cannot be written.
    BudgetError
        If not even the smallest tile fits; before any data is read.
    SourceError
        If the collection cannot be read; as a ChangedError, if it changed since it was opened.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> streampca.copy(load_digits().images, output="digits.zarr")
    >>> streampca.open_collection("digits.zarr").shape
    (1797, 8, 8)
    """
    run, opening = run_and_opening(copy, options, unused=(*OF_FITS, *DEVICE))
    listener = or_logged(run.listener)
    check_listener(listener)
    if run.output is None:
        raise RequestError("a copy needs its place; give -o (output), a folder ending in .zarr.")
    path = expanded(run.output)
    raw = open_collection(source, listener=listener, **opening)
    foreseen = open_samples(raw, preparation, memory=run.budget, foreseen=True)
    foresee_copy(foreseen, path, memory=run.budget, overwrite=run.overwrite)
    collection = open_samples(raw, preparation, memory=run.budget, listener=listener)
    with executing(cluster_of(run), run.budget, listener=listener) as executor:
        copy_collection(
            collection,
            path,
            memory=run.budget,
            overwrite=run.overwrite,
            executor=executor,
            checkpointing=checkpointing_of(run),
            listener=listener,
        )
