"""What is done to rows of features: functions of a subspace first, so that `functools.partial` of them pickles."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...preprocessing import Frame
from ..subspace import Subspace, squared_lengths

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def scores_of(subspace: Subspace, rows: Array, *, whiten: bool = False) -> Array:
    """Scores, (m, k)."""
    return subspace.project(rows, whiten=whiten)


def images_of(subspace: Subspace, scores: Array, *, frame: Frame, whiten: bool = False) -> Array:
    """Images from scores; scores beyond the subspace's components are left out."""
    return frame.images(subspace.reconstruct(scores[:, : len(subspace.components)], whiten=whiten))


def reconstructions_of(subspace: Subspace, rows: Array, *, frame: Frame) -> Array:
    """Images from rows that are not normalized yet: normalized, projected and back, each by its own mean or norm."""
    return Rebuilt.of(subspace, rows, frame).images(frame)


def residuals_of(subspace: Subspace, rows: Array, *, frame: Frame) -> Array:
    """Images of what reconstruction leaves of rows that are not normalized yet."""
    return Rebuilt.of(subspace, rows, frame).residual(rows, frame)


class Rebuilt(NamedTuple):
    """Rows as analysed, what comes back of them, and what they were normalized by."""

    analysed: Array
    rows: Array
    numbers: Float64 | None

    @classmethod
    def of(cls, subspace: Subspace, rows: Array, frame: Frame) -> Rebuilt:
        """Project rows that are not normalized yet, and back."""
        normal, numbers = frame.normalized(rows)
        return cls(normal, subspace.reconstruct(subspace.project(normal)), numbers)

    def images(self, frame: Frame) -> Array:
        """Images of what comes back."""
        return frame.images(frame.denormalized(self.rows, self.numbers))

    def residual(self, rows: Array, frame: Frame) -> Array:
        """Images of rows that are not normalized less those; changes what is here."""
        left = frame.denormalized(self.rows, self.numbers)
        return frame.images(np.subtract(rows, left, out=left, casting="unsafe"))


class Rebuilding:
    """Makes images, or their residuals, of rows that are not normalized yet, and adds up their squared errors.

    Parameters
    ----------
    subspace, frame : Subspace, Frame
        Of a model.
    residual : bool
        Whether residuals are made.

    Attributes
    ----------
    squares : float
        Sum of the squared errors, of features as analysed.
    """

    def __init__(self, subspace: Subspace, frame: Frame, *, residual: bool) -> None:
        self._subspace, self._frame, self._residual, self.squares = subspace, frame, residual, 0.0

    def __call__(self, rows: Array) -> Array:
        """Make them of the next rows, (m, p)."""
        made = Rebuilt.of(self._subspace, rows, self._frame)
        self.squares += float(squared_lengths(made.analysed, made.rows).sum())
        return made.residual(rows, self._frame) if self._residual else made.images(self._frame)


def errors_of(subspace: Subspace, rows: Array) -> Array:
    """Squared distance of each row from the subspace, (m,)."""
    return subspace.squared_error(rows)


def t2_of(subspace: Subspace, rows: Array) -> Array:
    """Hotelling's T2 of each row, (m,)."""
    return subspace.t2(rows)
