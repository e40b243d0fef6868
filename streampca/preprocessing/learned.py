"""`Learned`: statistics of the fitted samples for the steps anomaly, detrend and standardize, as arrays of a model.

Samples are analysed as departures from the level expected for their group and date, with standardize in units of the
standard deviation:

    (x - mean of its group - trend * (date - origin)) / deviation,

in float64, whatever the samples' dtype.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64


class SampleKeys(NamedTuple):
    """Group of each sample, a row of `Learned.means`, (n,), and its date in days from the origin of the trend, (n,)."""

    groups: npt.NDArray[np.int32]
    days: Float64 | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Learned:
    """Means of groups, trend and standard deviation of features.

    Attributes
    ----------
    means : ndarray of shape (g, p)
        Mean of each group; without groups, of all samples.
    groups : ndarray of shape (g,) or None
        Numbers or texts of the groups, ascending; None without groups.
    weights : ndarray of shape (g,)
        Sum of the weights of each group's samples.
    trend : ndarray of shape (p,) or None
        Change per day after the means are subtracted.
    origin : float
        Mean date of the samples, in days of their calendar.
    calendar : str
        Calendar of the days; see `streampca.readers.dates`.
    deviation : ndarray of shape (p,) or None
        Standard deviation after means and trend are subtracted; 0 for a constant feature.
    """

    means: Float64
    weights: Float64
    groups: Array | None = None
    trend: Float64 | None = None
    origin: float = 0.0
    calendar: str = ""
    deviation: Float64 | None = None

    @property
    def is_of_samples(self) -> bool:
        """True if the level depends on the group or the date of a sample."""
        return self.groups is not None or self.trend is not None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (getattr(self, field.name) for field in fields(self))
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    @cached_property
    def digest(self) -> str:
        """Digest of all values."""
        groups = None if self.groups is None else self.groups.tolist()
        hasher = hashlib.sha256(repr((self.origin, self.calendar, groups)).encode())
        for array in (self.means, self.weights, self.trend, self.deviation):
            if array is not None:
                hasher.update(repr(array.shape).encode())
                hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return hasher.hexdigest()[:16]

    @property
    def divisor(self) -> Float64 | None:
        """Divisor of each feature: its deviation, or 1 for a constant one; None without standardize."""
        return None if self.deviation is None else np.where(self.deviation > 0, self.deviation, 1.0)

    def level(self, keys: SampleKeys | None, samples: slice, features: slice = slice(None)) -> Float64:
        """Return the level of samples, (m, features), or (features,) if it is the same for all samples."""
        if not self.is_of_samples:
            return self.means[0, features]
        assert keys is not None  # noqa: S101 - `keys_of` returns keys if the level depends on samples
        level = self.means[keys.groups[samples], features]
        if self.trend is not None and keys.days is not None:
            level += keys.days[samples, None] * self.trend[features]
        return level
