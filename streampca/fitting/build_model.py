"""What a fit and a merge make of a decomposition: the numbers of a model, and the note of how they came about."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..eigensolvers import FAILURE
from ..planning import Plan
from ..preprocessing import unflatten
from .methods import Decomposition

VERSIONS = ("numpy", "scipy", "dask", "zarr")


def numbers_of(
    found: Decomposition, shape: tuple[int, ...], mask: npt.NDArray[np.bool_] | None, components: Any
) -> dict[str, Any]:
    """The fields of a `PCAModel` that follow from a decomposition; the others are the collection's.

    Parameters
    ----------
    found : Decomposition
        Of rows of p features.
    shape, mask
        Of a prepared sample, and which of its pixels are features.
    components : ndarray of shape (k, p) or StoredComponents
        Those of `found`, or where they were written.
    """
    return {
        "components": unflatten(components, shape, mask) if isinstance(components, np.ndarray) else components,
        "mean": unflatten(found.mean[None], shape, mask)[0],
        "explained_variance": found.explained_variance,
        "error_bound": found.error_bound,
        "angle_bound": found.angle_bound,
        "outside": found.outside,
        "variance_bound": found.variance_bound,
        "total_variance": found.total_variance,
        "n_samples": found.n_samples,
        "total_weight": None if found.total_weight == found.n_samples else found.total_weight,
        "eigenvalues": found.eigenvalues,
        "statistic": found.statistic,
    }


@cache  # each is looked up in a file
def versions() -> Mapping[str, str]:
    """Return the versions of Python and of the packages that numbers depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}}


def provenance_of(
    data: Mapping[str, Any], chosen: Plan, found: Decomposition, *, seconds: float, peak: int | None
) -> dict[str, Any]:
    """Where a model comes from, as plain data.

    Parameters
    ----------
    data : mapping
        What is known of the data: source, fingerprint ...
    chosen : Plan
        What was done.
    found : Decomposition
        What came out.
    seconds, peak
        What it took, of time and of bytes.
    """
    return {
        "streampca": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **data,
        "plan": chosen.to_json(),
        "passes": chosen.passes if found.passes is None else found.passes,
        "exact_sums": found.exact,
        "bound_failure_probability": FAILURE,
        "seconds": round(seconds, 3),
        "peak_bytes": peak,
        "versions": dict(versions()),
    }
