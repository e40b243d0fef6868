"""The engine's story: open, plan, pick the method, run it, make the model."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np

from . import __version__
from .collection import check_dtype
from .errors import DataError, RequestError, SourceError
from .events import Finished, Listener, Planned, silent
from .execute import Executor, SerialExecutor
from .machine import PeakMeter
from .methods import METHODS, Decomposition
from .model import PCAModel
from .planning import Plan, make_plan, problem_of
from .prepare import Preparation, Prepared, unflatten
from .readers import Collection, open_collection
from .request import Request
from .solve.certificate import FAILURE
from .units import parse_bytes, parse_shape

COLOURS = (3, 4)  # lengths of a last axis that is taken for colours when axes have no names
VERSIONS = ("numpy", "scipy", "dask", "zarr")


def plan(
    source: Any = None,
    *,
    n_components: int | float | None = 0.95,
    method: str = "auto",
    memory: int | str | None = None,
    precision: str = "auto",
    preparation: Preparation | None = None,
    key: str | None = None,
    sample_axes: Sequence[int | str] | None = None,
    select: Mapping[int | str, int | slice] | None = None,
    shape: Sequence[int] | str | None = None,
    dtype: Any = "uint8",
) -> Plan:
    """Say what `fit` would do, without reading more than headers.

    Parameters
    ----------
    source : optional
        As for `fit`; or leave it out and give `shape`.
    shape : sequence of int or str, optional
        (n, *sample_shape) of data that are not here yet, e.g. ``"60000x28x28"``.
    dtype : dtype, default="uint8"
        Of data declared by `shape`.
    n_components, method, memory, precision, preparation, key, sample_axes, select
        As for `fit`.

    Returns
    -------
    Plan
        Print it.

    Raises
    ------
    BudgetError, RequestError, SourceError
        As `fit`.
    """
    request = Request(n_components, method, None if memory is None else parse_bytes(memory), precision)
    found = source if shape is None else declared(shape, dtype)
    return plan_collection(_opened(found, preparation, key=key, sample_axes=sample_axes, select=select), request)


def declared(shape: Sequence[int] | str, dtype: Any) -> Any:
    """An array of zeros that takes no memory, for planning for data that are not here yet.

    Raises
    ------
    RequestError
        If the shape or dtype makes no sense.
    """
    lengths = parse_shape(shape if isinstance(shape, str) else "x".join(str(length) for length in shape))
    try:
        return np.broadcast_to(np.zeros((), check_dtype(np.dtype(dtype), "the declared collection")), lengths)
    except (TypeError, SourceError):
        raise RequestError(f"dtype {dtype!r} is not a real number's; give one such as uint8 or float32.") from None
    except ValueError:
        raise RequestError(f"shape {shape!r} is more than 2^63 bytes; give the shape of a part.") from None


def plan_collection(collection: Prepared, request: Request) -> Plan:
    """Plan a request on an opened collection; see `plan`."""
    if collection.n_samples < 2:
        raise DataError(
            f"{collection.source} has one sample, and variance needs at least two; give more images, or name the axes "
            "that make one image with sample_axes."
        )
    return make_plan(problem_of(collection), request)


def fit(
    source: Any,
    *,
    n_components: int | float | None = 0.95,
    method: str = "auto",
    memory: int | str | None = None,
    precision: str = "auto",
    preparation: Preparation | None = None,
    key: str | None = None,
    sample_axes: Sequence[int | str] | None = None,
    select: Mapping[int | str, int | slice] | None = None,
    seed: int = 0,
    listener: Listener = silent,
) -> PCAModel:
    """Learn the principal components of a collection of images.

    Parameters
    ----------
    source : path, glob, list of paths, array or Collection
        See `open_collection`.
    n_components : int, float or None, default=0.95
        A number of components; a fraction of the variance, between 0 and 1; or None for all.
    method : {"auto", "covariance"}, default="auto"
        "auto" lets the plan choose.
    memory : int or str, optional
        Most bytes to use, e.g. ``"2 GiB"``; half of what the machine allows by default.
    precision : {"auto", "single", "double"}, default="auto"
        Of products; sums are always double. "auto" takes single for integers of up to 16 bits and float32.
    preparation : Preparation, optional
        Done to every sample first, and kept in the model.
    key, sample_axes, select
        See `open_collection`.
    seed : int, default=0
        Of everything random: the probes that bound the error.
    listener : callable, optional
        Told what happens (`streampca.events`).

    Returns
    -------
    PCAModel
        With error bounds. The peak memory measured is in ``provenance["peak_bytes"]``.

    Raises
    ------
    SourceError
        If the source cannot be read.
    DataError
        If it has one sample only, NaN or infinity, or no variance.
    RequestError
        If an option is wrong for this collection.
    BudgetError
        If what was asked does not fit the budget; before any data is read.
    """
    request = Request(n_components, method, None if memory is None else parse_bytes(memory), precision, seed)
    collection = _opened(source, preparation, key=key, sample_axes=sample_axes, select=select)
    return fit_collection(collection, request, listener=listener)


def fit_collection(
    collection: Prepared, request: Request, *, executor: Executor | None = None, listener: Listener = silent
) -> PCAModel:
    """Plan and run a request on an opened collection; see `fit`."""
    began = time.perf_counter()
    chosen = plan_collection(collection, request)
    listener(Planned(chosen))
    meter = PeakMeter()
    found = METHODS[chosen.method](collection, chosen, executor or SerialExecutor(), listener=listener)
    seconds = time.perf_counter() - began
    provenance = _provenance(collection, chosen, found, seconds, meter.peak())
    listener(Finished("fit", seconds))
    return _model(collection, found, provenance)


def _opened(source: Any, preparation: Preparation | None, **options: Any) -> Prepared:
    return prepared(open_collection(source, **options), preparation)


def prepared(raw: Collection, preparation: Preparation | None) -> Prepared:
    """A raw collection seen through a preparation, or through none."""
    return raw if isinstance(raw, Prepared) else Prepared(raw, preparation or Preparation())


def _model(collection: Prepared, found: Decomposition, provenance: dict[str, Any]) -> PCAModel:
    return PCAModel(
        components=unflatten(found.components, collection.sample_shape, collection.mask),
        mean=unflatten(found.mean[None], collection.sample_shape, collection.mask)[0],
        explained_variance=found.explained_variance,
        error_bound=found.error_bound,
        angle_bound=found.angle_bound,
        total_variance=found.total_variance,
        n_samples=found.n_samples,
        sample_dims=sample_dims(collection),
        raw_shape=collection.raw.sample_shape,
        raw_kind=collection.raw.dtype.kind,
        eigenvalues=found.eigenvalues,
        mask=collection.mask,
        preparation=collection.preparation,
        provenance=provenance,
        statistic=found.statistic,
    )


def sample_dims(collection: Collection) -> tuple[str, ...]:
    """Names of a sample's axes: the source's own, else by their number and lengths."""
    shape, names = collection.sample_shape, collection.axes
    taken = {"component", "eigenvalue", "sample"}
    if names and len(set(names)) == len(names) and not taken & set(names):
        return names
    if len(shape) == 2:
        return ("y", "x")
    if len(shape) == 3:
        return ("y", "x", "channel") if shape[-1] in COLOURS else ("z", "y", "x")
    return tuple(f"axis_{number}" for number in range(len(shape)))


def _provenance(
    collection: Collection, chosen: Plan, found: Decomposition, seconds: float, peak: int | None
) -> dict[str, Any]:
    return {
        "streampca": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": collection.source,
        "fingerprint": collection.fingerprint(),
        "plan": chosen.to_json(),
        "exact_sums": found.exact,
        "bound_failure_probability": FAILURE,
        "seconds": round(seconds, 3),
        "peak_bytes": peak,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}},
    }
