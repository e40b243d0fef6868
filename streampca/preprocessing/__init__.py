"""Maps of raw samples to rows of features: part of the model, pure, picklable.

A model stores its `Preparation` and applies it to any raw collection. The order of the steps is fixed: crop, grey,
resize, bin, mask, anomaly, detrend, standardize, scale, normalize, feature map. The first four (`Preparation.apply`)
turn an image into another image; the mask turns it into a row of features. The next three subtract and divide by
statistics that were `Learned` from the samples of the fit, by the group and the date of a sample (`sample_keys.py`);
scale multiplies every feature; normalize subtracts or divides by the mean or norm of each row; and a feature map
returns rows whose inner products are a kernel's. `Frame` applies the steps, and undoes them for reconstructions;
`Prepared` is a collection with the steps applied. They map samples one by one, so that any block of a collection gives
the same rows.

Some parameters depend on the data: `resolved` determines ``mask="valid"`` and ``scale="area"`` from a collection, and
`streampca.fitting.learning` the others, once, before anything is planned.
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
