"""`Target`: classes or numbers of the samples, read from a column, from which supervised kinds of model learn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError, RequestError
from ..planning.registry import KINDS
from . import open_column
from .collection import Collection, digest

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Target:
    """Class of each sample, or numbers of each sample.

    Attributes
    ----------
    values : ndarray of int, shape (n,), or of float64, shape (n, l)
        Place of each sample's label in `classes`, or its l numbers.
    classes : ndarray of shape (c,) or None
        Labels, ascending; None where samples have numbers.
    """

    values: Array
    classes: Array | None = None

    @property
    def width(self) -> int:
        """Number of label features: the classes, or the numbers of a sample."""
        return len(self.classes) if self.classes is not None else int(self.values.shape[1])

    @property
    def rank(self) -> int:
        """Largest number of label features that are independent once their means are subtracted."""
        return self.width if self.classes is None else self.width - 1

    def scatter(self, weights: Array | None = None) -> float:
        """Return the sum of squares of the label features about their means, weighted."""
        shares = np.full(len(self.values), 1.0) if weights is None else weights
        total = float(shares.sum())
        if self.classes is not None:
            return total - float(np.square(np.bincount(self.values, shares)).sum()) / total
        mean = shares @ self.values / total
        return float(shares @ np.square(self.values - mean).sum(axis=1))

    @cached_property
    def digest(self) -> str:
        """Short digest of all values."""
        return digest(self.values.tobytes(), None if self.classes is None else self.classes.tolist())

    def to_json(self) -> dict[str, Any]:
        """Return the description of the target that a model's provenance holds."""
        return {"digest": self.digest, "classes": None if self.classes is None else self.classes.tolist()}


def digest_of(target: Target | None) -> str | None:
    """Return a short digest of a target, None where there is none."""
    return None if target is None else target.digest


def check_target(target: Any, kind: str) -> None:
    """Refuse a target beside a kind of model that takes none, and a supervised kind without one."""
    rule = KINDS[kind]
    if target is not None and not rule:
        raise RequestError(
            f"target is what supervised kinds of model learn from, and kind is {kind!r}; leave --target (target=) out."
        )
    if target is None and rule:
        raise RequestError(
            f"kind {kind!r} learns from a label or number of each sample; give --target COLUMN (target=...)."
        )


def target_of(
    column: Any, collection: Collection, kind: str, weights: Float64 | None = None, *, n_slices: int = 10
) -> Target | None:
    """Return the target of a collection as a kind of model takes it; None where it takes none.

    Parameters
    ----------
    column
        Column, see `open_column`, or numbers of shape (n, l). Text, whole numbers and yes or no are classes; fractions
        are numbers, or classes for a kind that takes these, where all are whole. For a kind that takes one number a
        sample, all numbers are numbers, and text of two labels is 0 and 1.
    collection : Collection
        The samples.
    kind : str
        Kind of model; a key of `streampca.planning.registry.KINDS`.
    weights : ndarray of shape (n,), optional
        Weight of each sample; nothing is learned from samples of weight 0, whose values must be valid too.
    n_slices : int, default=10
        Parts that sorted numbers are cut into, for a kind that takes slices.

    Raises
    ------
    RequestError
        If a target is missing or not wanted, or it has another number of values than there are samples.
    DataError
        If all samples are of one class, or have the same numbers, or a number is NaN or infinite.
    """
    check_target(column, kind)
    if column is None:
        return None
    values = open_column(column, collection, wide=KINDS[kind] == "features")
    counted = np.ones(len(values), bool) if weights is None else weights > 0
    if KINDS[kind] == "slices":
        return _slices(values, counted, collection, n_slices)
    if KINDS[kind] == "number":
        return _one_number(values, counted, collection, kind)
    if values.ndim == 1 and (values.dtype.kind != "f" or KINDS[kind] == "classes"):
        return _classes(values, counted, collection, kind)
    return _numbers(values, counted, collection)


def _classes(values: Array, counted: npt.NDArray[np.bool_], collection: Collection, kind: str) -> Target:
    """Return a target of classes."""
    if values.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(values) | (values != np.rint(values)))
        if len(bad):
            raise RequestError(
                f"the target of {collection.named(int(bad[0]))} is {values[bad[0]]}, and kind {kind!r} learns from "
                "classes; give text or whole numbers, or use another kind, such as 'supervised-pca'."
            )
        values = values.astype(np.int64)
    classes, codes = np.unique(values, return_inverse=True)
    present = np.bincount(codes[counted], minlength=len(classes)) > 0
    if present.sum() < 2:
        raise DataError(
            f"the target of {collection.source} is {classes[present][0]} for every sample, and kind {kind!r} needs two "
            "classes; give another target, or samples of another class too."
        )
    return Target(codes.astype(np.intp), classes)


def _slices(values: Array, counted: npt.NDArray[np.bool_], collection: Collection, count: int) -> Target:
    """Return a target of slices, named by their least numbers: nearly equal in size, equal numbers in one slice."""
    if values.dtype.kind not in "biuf":
        raise RequestError(
            f"the target of {collection.source} holds text such as {str(values[0])!r}, and slices are of sorted "
            "numbers; give numbers, or use kind 'discriminant' for classes."
        )
    numbers = _numbers(values, counted, collection).values
    seen = np.sort(numbers[counted, 0])
    edges = np.unique(seen[[part * len(seen) // count for part in range(1, count)]])
    edges = edges[edges > seen[0]]
    if not len(edges):  # the smallest number fills all slices but part of the last
        edges = seen[seen > seen[0]][:1]
    return Target(np.searchsorted(edges, numbers[:, 0], side="right"), np.concatenate([seen[:1], edges]))


def _one_number(values: Array, counted: npt.NDArray[np.bool_], collection: Collection, kind: str) -> Target:
    """Return a target of one number a sample, or of two labels that stand for 0 and 1."""
    if values.dtype.kind in "biuf":
        return _numbers(values, counted, collection)
    found = _classes(values, counted, collection, kind)
    if found.width > 2:
        raise RequestError(
            f"the target of {collection.source} has {found.width} labels, and kind {kind!r} learns from a number or "
            "from two labels; give numbers, leave samples of other labels out (--where, where=), or use kind "
            "'supervised-pca'."
        )
    return found


def _numbers(values: Array, counted: npt.NDArray[np.bool_], collection: Collection) -> Target:
    """Return a target of numbers."""
    numbers = values.astype(np.float64).reshape(len(values), -1)
    bad = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
    if len(bad):
        raise DataError(
            f"the target of {collection.named(int(bad[0]))} is {numbers[bad[0]].tolist()}; give finite numbers, or "
            "leave samples without one out (samples=, where=)."
        )
    seen = numbers[counted]
    if (seen == seen[:1]).all():
        raise DataError(
            f"the target of {collection.source} is {seen[0].tolist()} for every sample, from which nothing can be "
            "learned; give another target."
        )
    return Target(numbers)
