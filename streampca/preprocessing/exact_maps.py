"""Feature maps whose inner products equal a kernel exactly: the delta kernel of classes, and the linear kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array, Float64


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassMap:
    """Indicator features of classes, with 1 in the column of the class: the delta kernel.

    Attributes
    ----------
    n_features : int
        Number of classes; they are numbered from 0.
    """

    n_features: int

    def __call__(self, rows: Array) -> Float64:
        """Map classes (n, 1) to (n, q)."""
        indicators = np.zeros((len(rows), self.n_features))
        indicators[np.arange(len(rows)), rows[:, 0]] = 1.0
        return indicators


@dataclass(frozen=True, eq=False, kw_only=True)
class IdentityMap:
    """Samples with a nearby point subtracted: the linear kernel of centred samples.

    Attributes
    ----------
    origin : ndarray of shape (p,)
    """

    origin: Float64

    @property
    def n_features(self) -> int:
        """Number of features of a sample, p."""
        return len(self.origin)

    def __call__(self, rows: Array) -> Float64:
        """Map rows (n, p) to (n, p)."""
        centred: Float64 = rows - self.origin
        return centred
