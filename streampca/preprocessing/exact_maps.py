"""Feature maps whose inner products are a kernel exactly: of classes, and of the linear kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .kernels import Array, Float64


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassMap:
    """Indicator features of classes, (n, 1) to (n, n_features), 1 in the column of the class: the delta kernel.

    Attributes
    ----------
    n_features : int
        Number of classes; they are numbered from 0.
    """

    n_features: int

    def __call__(self, rows: Array) -> Float64:
        """Map classes (n, 1) to (n, q)."""
        made = np.zeros((len(rows), self.n_features))
        made[np.arange(len(rows)), rows[:, 0]] = 1.0
        return made


@dataclass(frozen=True, eq=False, kw_only=True)
class IdentityMap:
    """Samples less a point near them: the linear kernel of centred samples.

    Attributes
    ----------
    origin : ndarray of shape (p,)
    """

    origin: Float64

    @property
    def n_features(self) -> int:
        """Number of features, that of a sample."""
        return len(self.origin)

    def __call__(self, rows: Array) -> Float64:
        """Map rows (n, p) to (n, p)."""
        made: Float64 = rows - self.origin
        return made
