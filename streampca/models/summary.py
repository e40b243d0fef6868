"""A model's numbers as plain data, for `inspect --json` and other programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from .accuracy import trust_of
from .store import PER_COMPONENT


def summary_of(model: Any) -> dict[str, Any]:
    """The numbers of a `PCAModel`, and how far to trust them; None for what is not finite."""
    table = {name: [x if np.isfinite(x) else None for x in getattr(model, name).tolist()] for name in PER_COMPONENT}
    return {
        "kind": model.kind,
        "n_components": model.n_components,
        "n_samples": model.n_samples,
        "n_features": model.n_features,
        "sample_shape": list(model.sample_shape),
        "sample_dims": list(model.sample_dims),
        "total_variance": model.total_variance,
        **table,
        **{name: np.asarray(getattr(model, name)).tolist() for name in model.own_arrays},
        "trust": trust_of(model).to_json(),
        "preparation": model.preparation.to_json(),
        "provenance": dict(model.provenance),
    }
