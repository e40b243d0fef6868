"""The engine's story: open, plan, pick the method, run it, make the model."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from . import __version__
from .collection import check_dtype, digest, sample_dims
from .errors import DataError, RequestError, SourceError, nearest
from .events import Finished, Listener, Planned, silent
from .execute import Executor, SerialExecutor
from .machine import PeakMeter
from .methods import METHODS, Decomposition
from .model import PCAModel
from .planning import Plan, make_plan, problem_of
from .prepare import Preparation, Prepared, resolved, unflatten
from .readers import Collection, Opening, open_collection, open_column
from .request import Request
from .solve.certificate import FAILURE
from .units import parse_bytes, parse_shape

Float64 = npt.NDArray[np.float64]

_OPTIONS = ("n_components", "method", "memory", "precision", "preparation", "sample_weight", "seed", "listener")
VERSIONS = ("numpy", "scipy", "dask", "zarr")


def plan(
    source: Any = None,
    *,
    n_components: int | float | str | None = 0.95,
    method: str = "auto",
    memory: int | str | None = None,
    precision: str = "auto",
    preparation: Preparation | None = None,
    sample_weight: Any = None,
    shape: Sequence[int] | str | None = None,
    dtype: Any = "uint8",
    **opening: Unpack[Opening],
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
    n_components, method, memory, precision, preparation, sample_weight, **opening
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
    check_options(opening)
    raw = open_collection(source if shape is None else declared(shape, dtype), **opening)
    return plan_collection(prepared(raw, preparation), request, weighted=sample_weight is not None)


def check_options(opening: Mapping[str, Any]) -> None:
    """Refuse keywords that no option of opening has, saying where such an option belongs."""
    prepares, opens = [field.name for field in fields(Preparation)], list(Opening.__annotations__)
    for name in opening:
        if name in prepares:
            raise TypeError(f"{name!r} is a step of preparation; give preparation=Preparation({name}=...).")
        if name not in opens:
            raise TypeError(f"{name!r} is not an option.{nearest(name, [*_OPTIONS, *opens])}")


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


def plan_collection(collection: Prepared, request: Request, *, weighted: bool = False) -> Plan:
    """Plan a request on an opened collection; see `plan`."""
    if collection.n_samples < 2:
        raise DataError(
            f"{collection.source} has one sample, and variance needs at least two; give more images, cut one "
            "into windows by --patches 16x16 (patches=16), or name the axes of one by --sample-axes y,x (sample_axes)."
        )
    return make_plan(replace(problem_of(collection), weighted=weighted), request)


def fit(
    source: Any,
    *,
    n_components: int | float | str | None = 0.95,
    method: str = "auto",
    memory: int | str | None = None,
    precision: str = "auto",
    preparation: Preparation | None = None,
    sample_weight: Any = None,
    seed: int = 0,
    listener: Listener = silent,
    **opening: Unpack[Opening],
) -> PCAModel:
    """Learn the principal components of a collection of images.

    Parameters
    ----------
    source : path, glob, list of paths, array or Collection
        See `open_collection`.
    n_components : int, float, {"elbow", "mp", "mle"} or None, default=0.95
        A number of components; a fraction of the variance, between 0 and 1; None for all; or a rule: up to the elbow
        of the first 50 variances, above the Marchenko-Pastur edge (assumes white noise), or of the largest evidence
        (Minka; needs n >= p).
    method : {"auto", "covariance"}, default="auto"
        "auto" lets the plan choose.
    memory : int or str, optional
        Most bytes to use, e.g. ``"2 GiB"``; half of what the machine allows by default.
    precision : {"auto", "single", "double"}, default="auto"
        Of products; sums are always double. "auto" takes single for integers of up to 16 bits and float32, but for
        small work (n p^2 of up to 2e9).
    preparation : Preparation, optional
        Done to every sample first, and kept in the model.
    sample_weight : array, path or str, optional
        How often each sample counts, n numbers of at least 0: a sample of weight 2 counts as if it were there twice.
        Anything `open_column` takes.
    seed : int, default=0
        Of everything random: the probes that bound the error.
    listener : callable, optional
        Told what happens (`streampca.events`).
    **opening
        ``key``, ``sample_axes``, ``select``, ``on_bad_file`` ...: see `open_collection`.

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
    check_options(opening)
    raw = open_collection(source, listener=listener, **opening)
    weights = weights_of(sample_weight, raw)
    return fit_collection(prepared(raw, preparation, listener), request, weights=weights, listener=listener)


def fit_collection(
    collection: Prepared,
    request: Request,
    *,
    weights: Float64 | None = None,
    executor: Executor | None = None,
    listener: Listener = silent,
) -> PCAModel:
    """Plan and run a request on an opened collection; see `fit`."""
    began = time.perf_counter()
    chosen = plan_collection(collection, request, weighted=weights is not None)
    listener(Planned(chosen))
    meter = PeakMeter()
    run = METHODS[chosen.method]
    found = run(collection, chosen, executor or SerialExecutor(), weights=weights, listener=listener)
    seconds = time.perf_counter() - began
    provenance = _provenance(collection, chosen, found, seconds, meter.peak())
    provenance["sample_weight"] = weights_digest(weights)
    listener(Finished("fit", seconds))
    return _model(collection, found, provenance)


def prepared(raw: Collection, preparation: Preparation | None, listener: Listener = silent) -> Prepared:
    """A raw collection seen through a preparation, what that leaves to the data found, or through none."""
    if preparation is not None and not isinstance(preparation, Preparation):
        raise RequestError(f"preparation {preparation!r} is not a Preparation; give such as Preparation(bin=2).")
    if isinstance(raw, Prepared):
        return raw
    return Prepared(raw, resolved(preparation or Preparation(), raw, listener))


def weights_of(column: Any, collection: Collection) -> Float64 | None:
    """How often each sample counts, shape (n,); None for once each.

    Raises
    ------
    RequestError
        If the column is not n numbers of at least 0 that add up to more than 1.
    """
    if column is None:
        return None
    found = open_column(column, collection)
    if found.dtype.kind not in "biuf":
        raise RequestError(f"sample_weight of {collection.source} holds {found[0]!r}; give numbers of at least 0.")
    weights: Float64 = found.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise RequestError(
            f"sample_weight of {collection.named(int(bad[0]))} is {weights[bad[0]]}; give numbers of at least 0."
        )
    if not weights.any():
        raise DataError(f"the sample weights of {collection.source} are all zero; give some sample a weight above 0.")
    if weights.sum() <= 1:
        raise RequestError(
            f"the sample weights of {collection.source} add up to {weights.sum():.6g}, and as numbers of copies they "
            "must exceed 1; multiply them, so that for example their mean is 1."
        )
    return weights


def weights_digest(weights: Float64 | None) -> str | None:
    """A short text that tells one run's weights from another's."""
    return None if weights is None else digest(weights.tobytes())


def _model(collection: Prepared, found: Decomposition, provenance: dict[str, Any]) -> PCAModel:
    dims = sample_dims(collection)
    return PCAModel(
        components=unflatten(found.components, collection.sample_shape, collection.mask),
        mean=unflatten(found.mean[None], collection.sample_shape, collection.mask)[0],
        explained_variance=found.explained_variance,
        error_bound=found.error_bound,
        angle_bound=found.angle_bound,
        total_variance=found.total_variance,
        n_samples=found.n_samples,
        total_weight=None if found.total_weight == found.n_samples else found.total_weight,
        sample_dims=dims,
        coordinates={name: values for name, values in collection.coordinates.items() if name in dims},
        raw_shape=collection.raw.sample_shape,
        raw_kind=collection.raw.dtype.kind,
        eigenvalues=found.eigenvalues,
        mask=collection.mask,
        preparation=collection.preparation,
        provenance=provenance,
        statistic=found.statistic,
    )


def _provenance(
    collection: Collection, chosen: Plan, found: Decomposition, seconds: float, peak: int | None
) -> dict[str, Any]:
    return {
        "streampca": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": collection.source,
        "fingerprint": collection.fingerprint(),
        "plan": chosen.to_json(),
        "skipped": [list(item) for item in collection.skipped],
        "exact_sums": found.exact,
        "bound_failure_probability": FAILURE,
        "seconds": round(seconds, 3),
        "peak_bytes": peak,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}},
    }
