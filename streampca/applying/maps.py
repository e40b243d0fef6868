"""What is done to rows of features: functions of a subspace first, so that `functools.partial` of them pickles."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ..prepare import Frame
from ..subspace import Subspace

Array = npt.NDArray[Any]


def scores_of(subspace: Subspace, rows: Array, *, whiten: bool = False) -> Array:
    """Scores, (m, k)."""
    return subspace.project(rows, whiten=whiten)


def images_of(subspace: Subspace, scores: Array, *, frame: Frame, whiten: bool = False) -> Array:
    """Images from scores; scores beyond the subspace's components are left out."""
    return frame.images(subspace.reconstruct(scores[:, : len(subspace.components)], whiten=whiten))


def reconstructions_of(subspace: Subspace, rows: Array, *, frame: Frame) -> Array:
    """Images from rows that are not normalized yet: normalized, projected and back, each by its own mean or norm."""
    rows, numbers = frame.normalized(rows)
    return frame.images(frame.denormalized(subspace.reconstruct(subspace.project(rows)), numbers))


def errors_of(subspace: Subspace, rows: Array) -> Array:
    """Squared distance of each row from the subspace, (m,)."""
    return subspace.squared_error(rows)


def prepared_first(raw: Array, *, frame: Frame, function: Any) -> Array:
    """Apply a map of features to raw rows."""
    result: Array = function(frame.rows(raw))
    return result
