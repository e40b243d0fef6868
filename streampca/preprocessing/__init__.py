"""Maps of raw samples to rows of features: part of the model, pure, picklable.

A model stores its `Preparation` and applies it to whatever raw collection it is given. The order of the steps is fixed:
crop, grey, resize, bin, mask, anomaly, detrend, standardize, scale, normalize, feature map. The first four
(`Preparation.apply`) make another image of an image; the mask makes it a row of features; the next three set features
against what was `Learned` of the samples fitted, by the group and the date of a sample (`sample_keys.py`); scale
multiplies every feature, normalize sets each row against its own mean or norm, and a feature map makes of each row
one whose inner products are a kernel's. `Frame` does this, and for reconstructions undoes it; `Prepared` is a
collection seen through the steps. They map samples one by one, so any cut of a collection gives the same rows.

A preparation may leave to the data what it cannot know: `resolved` reads ``mask="valid"`` and ``scale="area"`` off a
collection, and `streampca.fitting.learning` the rest, once, before anything is planned.
"""

from __future__ import annotations

from .dtypes import SampleError
from .frame import Frame, unflatten
from .normalize import NormalizeError
from .preparation import Preparation
from .prepared import Prepared, check_raw, given_shape, shape_like
from .valid_pixels import complete_samples, missing_share, observed_features, resolved, valid_mask

__all__ = [
    "Frame",
    "NormalizeError",
    "Preparation",
    "Prepared",
    "SampleError",
    "check_raw",
    "complete_samples",
    "given_shape",
    "missing_share",
    "observed_features",
    "resolved",
    "shape_like",
    "unflatten",
    "valid_mask",
]
